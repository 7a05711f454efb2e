package phone

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"

	"bellwether/media/rtp"
)

// maxDatagram is the longest message a phone reads, in bytes. Its own are
// shorter than 2 kB, and a core adds Via and Record-Route of a few hops.
const maxDatagram = 16 << 10

// wire is how a phone's SIP messages come and go. Its methods may be called by
// several goroutines, but for read.
type wire interface {
	// transport is its name in a Via: UDP or TCP.
	transport() string
	// local is where the phone is reached.
	local() netip.AddrPort
	// online returns when messages can be sent, or as soon as ctx ends.
	online(ctx context.Context) error
	// send sends one message, which it does not keep. A wire that has one peer
	// only ignores to.
	send(b []byte, to netip.AddrPort) error
	// read hands over what comes in, one message at a time, until the wire is
	// closed. The bytes are the receiver's.
	read(receive func(b []byte, from netip.AddrPort))
	// close ends read.
	close()
}

// datagrams is SIP over UDP: one socket for all peers.
type datagrams struct {
	conn rtp.Conn
	addr netip.AddrPort
	log  *slog.Logger
}

func (d *datagrams) transport() string            { return "UDP" }
func (d *datagrams) local() netip.AddrPort        { return d.addr }
func (d *datagrams) online(context.Context) error { return nil }
func (d *datagrams) close()                       { d.conn.Close() } // read's only way out; nothing to do about an error

func (d *datagrams) send(b []byte, to netip.AddrPort) error {
	_, err := d.conn.WriteToUDPAddrPort(b, to)
	return err
}

func (d *datagrams) read(receive func([]byte, netip.AddrPort)) {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := d.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				d.log.Error("phone stopped reading", "err", err)
			}
			return
		}
		if n == len(buf) {
			d.log.Debug("datagram too long", "from", from)
			continue
		}
		receive(bytes.Clone(buf[:n]), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
	}
}
