package phone

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"bellwether/media/rtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network is UDP in memory, for virtual time.
type network struct {
	mu    sync.Mutex
	socks map[netip.AddrPort]*sock
	port  uint16
	// lose, if set, is asked about each datagram.
	lose func(from, to netip.AddrPort, b []byte) bool
}

type datagram struct {
	from netip.AddrPort
	b    []byte
}

type sock struct {
	n      *network
	addr   netip.AddrPort
	in     chan datagram
	closed chan struct{}
	once   sync.Once
}

func newNetwork() *network {
	return &network{socks: make(map[netip.AddrPort]*sock), port: 20000}
}

func (n *network) listen(addr netip.AddrPort) (rtp.Conn, netip.AddrPort, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr.Port() == 0 {
		n.port++
		addr = netip.AddrPortFrom(addr.Addr(), n.port)
	}
	if n.socks[addr] != nil {
		return nil, addr, net.ErrClosed
	}
	s := &sock{n: n, addr: addr, in: make(chan datagram, 1024), closed: make(chan struct{})}
	n.socks[addr] = s
	return s, addr, nil
}

func (n *network) setLoss(lose func(from, to netip.AddrPort, b []byte) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lose = lose
}

func (s *sock) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case d := <-s.in:
		return copy(b, d.b), d.from, nil
	case <-s.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

func (s *sock) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	s.n.mu.Lock()
	defer s.n.mu.Unlock()
	select {
	case <-s.closed:
		return 0, net.ErrClosed
	default:
	}
	dest := s.n.socks[to]
	if dest == nil || s.n.lose != nil && s.n.lose(s.addr, to, b) {
		return len(b), nil
	}
	select {
	case dest.in <- datagram{s.addr, append([]byte(nil), b...)}:
	default:
	}
	return len(b), nil
}

func (s *sock) Close() error {
	s.once.Do(func() {
		s.n.mu.Lock()
		delete(s.n.socks, s.addr)
		s.n.mu.Unlock()
		close(s.closed)
	})
	return nil
}
