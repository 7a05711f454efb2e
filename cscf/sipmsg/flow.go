package sipmsg

import (
	"fmt"
	"net/netip"
)

// Transport is the protocol that carries a message (RFC 3261 §18, RFC 7118).
// The zero value names none.
type Transport uint8

// The transports of a front.
const (
	UDP Transport = 1 + iota
	TCP
	TLS
	WS
	WSS
)

var transportNames = [...]string{"", "UDP", "TCP", "TLS", "WS", "WSS"}

// ParseTransport gives the transport that a Via names, in any letter case.
func ParseTransport(s string) (Transport, bool) {
	for t := UDP; t <= WSS; t++ {
		if equalFold(transportNames[t], s) {
			return t, true
		}
	}
	return 0, false
}

// Reliable says whether the transport itself repeats what is lost
// (RFC 3261 §17); the zero Transport does not.
func (t Transport) Reliable() bool { return t > UDP && t <= WSS }

// String gives the name used in a Via header, "" for no transport.
func (t Transport) String() string {
	if int(t) < len(transportNames) {
		return transportNames[t]
	}
	return fmt.Sprintf("TRANSPORT%d", uint8(t))
}

// Flow names one path between a front and a peer (RFC 5626 §3). Flows are
// comparable; the zero Flow is no flow.
type Flow struct {
	Node      string // node whose front owns the socket
	Transport Transport
	Local     netip.AddrPort
	Remote    netip.AddrPort
	Conn      uint64 // number of the connection at its front; 0 for UDP
}

// String describes the flow for logs.
func (f Flow) String() string {
	s := fmt.Sprintf("%s/%s/%s-%s", f.Node, f.Transport, f.Local, f.Remote)
	if f.Conn != 0 {
		s += fmt.Sprintf("#%d", f.Conn)
	}
	return s
}
