package rtp

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// link is an in-memory pair of sockets. drop, if set, is asked about each
// packet on its way from a to b.
type end struct {
	addr, peer netip.AddrPort
	out, in    chan []byte
	drop       func(n int) bool
	sent       int
	closed     chan struct{}
	once       sync.Once
}

func pair() (a, b *end) {
	ab, ba := make(chan []byte, 4096), make(chan []byte, 4096)
	addrA, addrB := netip.MustParseAddrPort("192.0.2.1:4000"), netip.MustParseAddrPort("192.0.2.2:4002")
	a = &end{addr: addrA, peer: addrB, out: ab, in: ba, closed: make(chan struct{})}
	b = &end{addr: addrB, peer: addrA, out: ba, in: ab, closed: make(chan struct{})}
	return a, b
}

func (e *end) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case p := <-e.in:
		return copy(b, p), e.peer, nil
	case <-e.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

func (e *end) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	e.sent++
	if to == e.peer && (e.drop == nil || !e.drop(e.sent)) {
		e.out <- append([]byte(nil), b...)
	}
	return len(b), nil
}

func (e *end) Close() error {
	e.once.Do(func() { close(e.closed) })
	return nil
}
