package front

import (
	"context"
	"net"
	"net/netip"
	"time"

	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// toStream sends a frame of a worker over a connection.
//
// Connections are reused as RFC 3261 §18 has it: what belongs to a connection
// goes over that one, and what is for an address over one that leads exactly
// there. The alias of RFC 5923, which would lead requests for one address over
// a connection from another, is for peers that TLS has authenticated, and not
// followed here.
func (f *Front) toStream(l *listener, frame *link.SIP) {
	request := !isResponse(frame.Raw)
	from := state.GroupID(0)
	if request {
		from = frame.From
	}
	remote := frame.Flow.Remote
	if frame.Flow.Conn != 0 {
		if s := f.streams.get(frame.Flow.Conn); s != nil && s.send(frame.Raw, from) {
			return
		}
		if request {
			f.undeliverable(frame)
			return
		}
		// RFC 3261 §18.2.2: the address that the request came from, which
		// received shows where sent-by does not, and the port of sent-by.
		m, err := sipmsg.Parse(frame.Raw)
		if err != nil {
			f.count.drop(Unsendable)
			return
		}
		via, _ := m.TopVia()
		remote = netip.AddrPortFrom(remote.Addr(), sentPort(via))
	}
	if s := f.streams.to(l, remote); s != nil && s.send(frame.Raw, from) {
		return
	}
	if !f.dial(l, remote, queued{frame.Raw, from}) {
		f.undeliverable(frame)
	}
}

// isResponse reports whether a message of a worker is a response.
func isResponse(raw []byte) bool { return len(raw) > 4 && string(raw[:4]) == "SIP/" }

// undeliverable counts a frame that cannot be sent over TCP. A request's
// sender is told.
func (f *Front) undeliverable(frame *link.SIP) {
	f.count.drop(NoStream)
	if !isResponse(frame.Raw) {
		f.tellGone(frame.From, frame.Flow)
	}
}

// dial opens a connection to a remote address, from the entry's own address,
// and sends q over it; false if that may not be tried.
func (f *Front) dial(l *listener, remote netip.AddrPort, q queued) bool {
	if f.local[remote] != nil || l.reachable(remote) != nil {
		return false
	}
	if !f.streams.dialTo(remote.Addr()) {
		return false
	}
	ctx, cancel := context.WithTimeout(f.ctx, f.streams.Dial)
	s := &stream{front: f, at: l, remote: remote, dialled: true, cancel: cancel}
	s.active(time.Now())
	why, ok := f.take(s)
	if ok && s.send(q.raw, q.from) && f.start(func() { f.connect(ctx, s) }) {
		return true
	}
	cancel()
	f.streams.dialEnded(remote.Addr())
	if !ok {
		f.streams.ended[why].Add(1)
		return false
	}
	s.close(ByShutdown)
	f.cleanUp(s)
	return false
}

// connect opens the connection of a stream and serves it.
func (f *Front) connect(ctx context.Context, s *stream) {
	d := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: s.at.addr.Addr().AsSlice()},
		Control:   prepare(tune), KeepAliveConfig: keepAlives,
	}
	c, err := d.DialContext(ctx, network("tcp", s.remote.Addr()), s.remote.String())
	f.streams.dialEnded(s.remote.Addr())
	if err != nil {
		s.close(DialFailed)
		s.cancel()
		f.cleanUp(s)
		return
	}
	f.streams.dialled.Add(1)
	nc := c.(*net.TCPConn)
	s.mu.Lock()
	s.cancel() // of the dial
	s.nc = nc
	begin := len(s.queue) > 0 && !s.ended
	s.writing = begin
	if s.ended {
		nc.Close()
	}
	s.mu.Unlock()
	if begin {
		s.begin()
	}
	f.serve(s, nc)
}
