package transaction

import (
	"net/netip"
	"strconv"
	"strings"

	"bellwether/cscf/sipmsg"
)

const defaultPort = 5060

// stamp writes into the top Via of a request from the wire where it really
// came from: received if sent-by is another address (RFC 3261 §18.2.1), and
// both received and rport if the client asked for rport (RFC 3581 §4). Of a
// connection both are always written, so that its response finds it even when
// all else about the request is lost. A received parameter that the client
// wrote itself is removed.
func stamp(m *sipmsg.Message, via sipmsg.Via, from Peer) sipmsg.Via {
	source := from.Flow.Remote
	addr := source.Addr().Unmap().WithZone("")
	rport := via.Params.Has("rport") || from.Flow.Transport.Reliable()
	received := via.Params.Has("received")
	same := sameHost(via.Host, addr)
	if same && !rport && !received {
		return via
	}
	if rport {
		via.Params = via.Params.With("rport", strconv.Itoa(int(source.Port())))
	}
	if rport || !same {
		via.Params = via.Params.With("received", addr.String())
	} else {
		via.Params = via.Params.Without("received")
	}
	m.ReplaceTop(sipmsg.ViaHeader, via.String())
	return via
}

func sameHost(host string, addr netip.Addr) bool {
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && a.Unmap().WithZone("") == addr
}

// responsePeer is where the responses to a request with this Via go
// (RFC 3261 §18.2.2, RFC 3581 §4): back over the connection or to the engine
// it came from; over UDP to the source address, and to its port if the client
// asked for rport, else to the port of sent-by. They leave from the socket
// that received the request. A maddr is ignored: obeying it would let anyone
// point our responses at a third party.
func responsePeer(via sipmsg.Via, from Peer) Peer {
	if from.Group != 0 || from.Flow.Transport.Reliable() {
		return from
	}
	if _, ok := via.Params.Value("rport"); ok {
		return from
	}
	if via.Port == 0 {
		via.Port = defaultPort // over UDP, whatever transport the Via claims
	}
	to := from
	to.Flow.Remote = netip.AddrPortFrom(from.Flow.Remote.Addr(), viaPort(via))
	return to
}

func viaPort(via sipmsg.Via) uint16 {
	if via.Port > 0 && via.Port <= 65535 {
		return uint16(via.Port)
	}
	if t, _ := sipmsg.ParseTransport(via.Transport); t == sipmsg.TLS || t == sipmsg.WSS {
		return defaultPort + 1
	}
	return defaultPort
}

// ResponseAddr is the address that a Via names for responses when all else
// about the request is forgotten: received and rport where present, else
// sent-by (RFC 3261 §18.2.2). It is false if sent-by is a name and there is
// no received.
func ResponseAddr(via sipmsg.Via) (netip.AddrPort, bool) {
	host := via.Host
	if received, ok := via.Params.Value("received"); ok {
		host = received
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	if err != nil {
		return netip.AddrPort{}, false
	}
	port := viaPort(via)
	if text, ok := via.Params.Value("rport"); ok {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
			port = uint16(n)
		}
	}
	return netip.AddrPortFrom(addr, port), true
}
