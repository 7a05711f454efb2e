package front

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

const (
	batch       = 16      // datagrams a system call; each socket holds a buffer for that many
	maxDatagram = 1 << 16 // more than UDP can carry
	kernelBytes = 4 << 20 // receive and send buffer of a socket
	queueBytes  = 8 << 20 // messages that wait for a socket to take them
)

// listener is an entry's address with the UDP sockets that share it and the
// TCP socket that accepts connections.
type listener struct {
	kind    byte
	id      uint16
	addr    netip.AddrPort
	sockets []*socket
	tcp     *net.TCPListener
}

func (l *listener) close() {
	for _, s := range l.sockets {
		s.close()
	}
	if l.tcp != nil {
		l.tcp.Close()
	}
}

// listen opens the sockets of an entry. Where any port will do, one is looked
// for that both protocols have free.
func listen(e Entry, id uint16, n int) (*listener, error) {
	for try := 0; ; try++ {
		l, err := listenUDP(e, id, n)
		if err != nil {
			return nil, err
		}
		if l.tcp, err = listenTCP(l.addr); err == nil {
			return l, nil
		}
		l.close()
		if e.Addr.Port() != 0 || try == 16 {
			return nil, err
		}
	}
}

// toward returns the socket for messages to a remote address: always the same
// one, so that they keep their order.
func (l *listener) toward(remote netip.AddrPort) *socket {
	if len(l.sockets) == 1 {
		return l.sockets[0]
	}
	ip := remote.Addr().As16()
	return l.sockets[(int(ip[15])+int(remote.Port()))%len(l.sockets)]
}

// listenUDP opens n sockets at an address.
func listenUDP(e Entry, id uint16, n int) (*listener, error) {
	// Sockets that share a port would share it with another process, too.
	// A socket that does not share tells whether it is taken.
	conn, err := openUDP(e.Addr, false)
	if err != nil {
		return nil, err
	}
	l := &listener{kind: e.Kind, id: id, addr: conn.LocalAddr().(*net.UDPAddr).AddrPort()}
	l.addr = netip.AddrPortFrom(l.addr.Addr().Unmap(), l.addr.Port())
	if n == 1 {
		l.sockets = []*socket{newSocket(l, conn)}
		return l, nil
	}
	conn.Close()
	for range n {
		conn, err := openUDP(l.addr, true)
		if err != nil {
			l.close()
			return nil, err
		}
		l.sockets = append(l.sockets, newSocket(l, conn))
	}
	return l, nil
}

func openUDP(addr netip.AddrPort, share bool) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: prepare(func(fd int) error {
		enlarge(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
		enlarge(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
		if share {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}
		return nil
	})}
	pc, err := lc.ListenPacket(context.Background(), network("udp", addr.Addr()), addr.String())
	if err != nil {
		return nil, err
	}
	return pc.(*net.UDPConn), nil
}

// network is the name of a protocol over the address family of ip.
func network(protocol string, ip netip.Addr) string {
	if ip.Is6() {
		return protocol + "6"
	}
	return protocol + "4"
}

// prepare makes a net.ListenConfig's or net.Dialer's Control of what sets a
// socket's options.
func prepare(set func(fd int) error) func(network, address string, rc syscall.RawConn) error {
	return func(_, _ string, rc syscall.RawConn) error {
		var err error
		if cerr := rc.Control(func(fd uintptr) { err = set(int(fd)) }); cerr != nil {
			return cerr
		}
		return err
	}
}

// enlarge asks for a kernel buffer beyond the system's limit, which takes a
// privilege, else up to that limit. A smaller buffer loses more in a burst and
// is no reason not to start.
func enlarge(fd, force, plain int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, kernelBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, kernelBytes)
	}
}

// socket is a UDP socket with the messages that wait to leave by it.
type socket struct {
	*listener
	conn *net.UDPConn
	pc   *ipv4.PacketConn
	wake chan struct{} // holds one element when queue may be non-empty
	done chan struct{}

	mu     sync.Mutex // guards the rest
	queue  []outgoing
	bytes  int
	closed bool
}

type outgoing struct {
	raw []byte
	to  netip.AddrPort
}

func newSocket(l *listener, conn *net.UDPConn) *socket {
	return &socket{
		listener: l, conn: conn, pc: ipv4.NewPacketConn(conn),
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.done)
		s.conn.Close()
	}
}

var errQueueFull = errors.New("socket queue is full")

// send queues raw, which must not change any more.
func (s *socket) send(raw []byte, to netip.AddrPort) error {
	s.mu.Lock()
	if s.bytes+len(raw) > queueBytes {
		s.mu.Unlock()
		return errQueueFull
	}
	first := len(s.queue) == 0
	s.queue = append(s.queue, outgoing{raw, to})
	s.bytes += len(raw)
	s.mu.Unlock()
	if first {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// write sends what waits, many datagrams a system call, until close.
func (s *socket) write(count *counters) {
	var out []outgoing
	msgs := make([]ipv4.Message, batch)
	addrs := make([]net.UDPAddr, batch)
	for i := range msgs {
		msgs[i].Buffers = make([][]byte, 1)
		addrs[i].IP = make(net.IP, 0, net.IPv6len)
		msgs[i].Addr = &addrs[i]
	}
	for {
		select {
		case <-s.wake:
		case <-s.done:
			return
		}
		s.mu.Lock()
		out, s.queue = s.queue, out[:0]
		s.bytes = 0
		s.mu.Unlock()
		for rest := out; len(rest) > 0; {
			n := min(len(rest), batch)
			for i, o := range rest[:n] {
				msgs[i].Buffers[0] = o.raw
				setAddr(&addrs[i], o.to)
			}
			sent, err := s.pc.WriteBatch(msgs[:n], 0)
			if err != nil {
				select {
				case <-s.done:
					return
				default:
				}
				// The first one cannot be sent; the others may.
				count.drop(SendFailed)
				sent = 1
			} else {
				count.sent.Add(uint64(sent))
			}
			rest = rest[sent:]
		}
		clear(out) // let the messages go
		for i := range msgs {
			msgs[i].Buffers[0] = nil
		}
	}
}

// setAddr puts to into a, whose IP has room for it.
func setAddr(a *net.UDPAddr, to netip.AddrPort) {
	if ip := to.Addr(); ip.Is4() {
		b := ip.As4()
		a.IP = append(a.IP[:0], b[:]...)
	} else {
		b := ip.As16()
		a.IP = append(a.IP[:0], b[:]...)
	}
	a.Port, a.Zone = int(to.Port()), to.Addr().Zone()
}

// reachable reports whether a datagram for a remote address can be meant.
func (l *listener) reachable(remote netip.AddrPort) error {
	ip := remote.Addr()
	switch {
	case !ip.IsValid() || remote.Port() == 0:
		return fmt.Errorf("no address")
	case ip.IsUnspecified() || ip.IsMulticast() || ip == broadcast:
		return fmt.Errorf("not the address of one host")
	case ip.Is4() != l.addr.Addr().Is4():
		return fmt.Errorf("another address family than the socket's")
	}
	return nil
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})
