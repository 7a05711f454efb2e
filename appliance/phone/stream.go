package phone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bellwether/cscf/sipmsg"
)

const (
	// dialLimit is how long a connection may take to be made, writeLimit how
	// long a message may take to be taken.
	dialLimit  = 5 * time.Second
	writeLimit = 5 * time.Second
	// streamBuffer is how much is read at once, in bytes.
	streamBuffer = 4 << 10
	// redialFirst and redialLast bound the pauses between attempts to connect;
	// each is about twice the one before.
	redialFirst = 200 * time.Millisecond
	redialLast  = 30 * time.Second
	// steady is how old a connection must become to be replaced without a pause.
	steady = 10 * time.Second
	// keepAlive is the longest pause between two keep-alives, pongLimit how
	// long an answer may take (RFC 5626 §4.4.1).
	keepAlive = 120 * time.Second
	pongLimit = 10 * time.Second
)

var (
	errConnectionLost = errors.New("the connection to the P-CSCF was lost")
	errUnreachable    = errors.New("the P-CSCF cannot be reached")
	errNoPong         = errors.New("no answer to the keep-alive")
)

// dialer connects to an address from one of the phone's.
type dialer func(ctx context.Context, from, to netip.AddrPort) (net.Conn, error)

// stream is SIP over TCP: one connection to the P-CSCF, which carries requests
// both ways (RFC 5626 §4.2). It is opened when read begins, kept alive, and
// opened again whenever it breaks, from the same address if that can be.
type stream struct {
	dial  dialer
	peer  netip.AddrPort
	fixed bool // the local port was asked for
	log   *slog.Logger
	pause time.Duration // the longest between two keep-alives

	made   func() // a connection replaced one that broke
	broken func() // what was sent will not be answered

	ctx   context.Context
	stop  context.CancelFunc
	hurry chan struct{} // capacity 1: somebody waits for a connection

	mu   sync.Mutex
	addr netip.AddrPort
	conn net.Conn      // nil: none
	up   chan struct{} // closed while there is one
	err  error         // why there is none
}

// newStream reserves a local port; it does not connect.
func newStream(dial dialer, local, peer netip.AddrPort, log *slog.Logger, made, broken func()) (*stream, error) {
	s := &stream{
		dial: dial, peer: peer, fixed: local.Port() != 0, log: log, pause: keepAlive,
		made: made, broken: broken, hurry: make(chan struct{}, 1), addr: local, up: make(chan struct{}),
	}
	if dial == nil {
		s.dial = dialTCP
		var err error
		if s.addr, err = reserve(local); err != nil {
			return nil, err
		}
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// reserve finds a port that is free for TCP.
func reserve(local netip.AddrPort) (netip.AddrPort, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local))
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort(), nil
}

// dialTCP connects from a given port, also where a former connection from it
// has not been forgotten yet.
func dialTCP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(from), KeepAlive: -1,
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			if e := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			}); e != nil {
				return e
			}
			return err
		},
	}
	return d.DialContext(ctx, "tcp", to.String())
}

func (s *stream) transport() string { return "TCP" }

func (s *stream) local() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

func (s *stream) close() { s.stop() }

func (s *stream) online(ctx context.Context) error {
	s.mu.Lock()
	up := s.up
	s.mu.Unlock()
	select {
	case <-up:
		return nil
	default:
	}
	select {
	case s.hurry <- struct{}{}:
	default:
	}
	select {
	case <-up:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), s.err)
		}
		return context.Cause(ctx)
	}
}

func (s *stream) send(b []byte, _ netip.AddrPort) error {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn == nil {
		return errConnectionLost
	}
	conn.SetWriteDeadline(time.Now().Add(writeLimit))
	if _, err := conn.Write(b); err != nil {
		conn.Close() // a part of the message may be out: read ends
		return err
	}
	return nil
}

func (s *stream) read(receive func([]byte, netip.AddrPort)) {
	var pause time.Duration
	for first := true; ; first = false {
		conn := s.connect(pause)
		if conn == nil {
			return
		}
		began := time.Now()
		if !first {
			s.made()
		}
		stop := context.AfterFunc(s.ctx, func() { conn.Close() })
		err := s.serve(conn, receive)
		stop()
		conn.Close()
		s.mu.Lock()
		s.conn, s.err, s.up = nil, err, make(chan struct{})
		s.mu.Unlock()
		s.broken()
		if s.ctx.Err() == nil {
			s.log.Info("connection lost", "err", err)
		}
		if pause = longer(pause); time.Since(began) >= steady {
			pause = 0
		}
	}
}

// longer is the pause after one that did not help.
func longer(pause time.Duration) time.Duration {
	return min(max(2*pause, redialFirst), redialLast)
}

// connect tries after a pause, and again with longer ones, until there is a
// connection; nil if the stream was closed.
func (s *stream) connect(pause time.Duration) net.Conn {
	for ; s.wait(pause); pause = longer(pause) {
		ctx, cancel := context.WithTimeout(s.ctx, dialLimit)
		conn, err := s.dial(ctx, s.local(), s.peer)
		cancel()
		if err != nil && s.ctx.Err() == nil {
			s.log.Debug("not connected", "err", err)
		}
		s.mu.Lock()
		if err == nil {
			s.conn, s.err = conn, nil
			close(s.up)
			s.mu.Unlock()
			return conn
		}
		s.err = err
		if taken := errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL); taken && !s.fixed {
			if addr, err := reserve(netip.AddrPortFrom(s.addr.Addr(), 0)); err == nil {
				s.addr = addr
			}
		}
		s.mu.Unlock()
	}
	return nil
}

// wait pauses, but not longer than until somebody needs a connection; it
// reports false if the stream was closed.
func (s *stream) wait(pause time.Duration) bool {
	if pause > 0 {
		timer := time.NewTimer(pause + time.Duration(rand.Int64N(int64(pause)/4)))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.hurry:
		case <-s.ctx.Done():
		}
	}
	return s.ctx.Err() == nil
}

// serve reads one connection until it breaks.
func (s *stream) serve(conn net.Conn, receive func([]byte, netip.AddrPort)) error {
	pongs, ended := make(chan struct{}, 1), make(chan struct{})
	var pinger sync.WaitGroup
	pinger.Go(func() { s.ping(conn, pongs, ended) })
	defer pinger.Wait()
	defer close(ended)
	var frames sipmsg.Framer
	breaks := 0 // bytes that belong to no message: line breaks between them
	buf := make([]byte, streamBuffer)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		breaks += n
		frames.Push(buf[:n])
		for unit := sipmsg.Whole; unit == sipmsg.Whole || unit == sipmsg.Ping; {
			var raw []byte
			if unit, raw, err = frames.Next(); err != nil {
				return err
			}
			if unit == sipmsg.Whole {
				breaks -= len(raw)
				receive(bytes.Clone(raw), s.peer)
			}
			if unit == sipmsg.More && breaks >= 2 {
				breaks = 0
				select {
				case pongs <- struct{}{}:
				default:
				}
			}
		}
	}
}

// ping keeps a connection alive, and breaks it where no answer comes.
func (s *stream) ping(conn net.Conn, pongs <-chan struct{}, ended <-chan struct{}) {
	timer := time.NewTimer(s.pause)
	defer timer.Stop()
	for {
		// RFC 5626 §4.4.1: between 80 and 100 % of the pause.
		timer.Reset(s.pause - time.Duration(rand.Int64N(int64(s.pause)/5)))
		select {
		case <-timer.C:
		case <-ended:
			return
		}
		select {
		case <-pongs: // of before
		default:
		}
		if s.send([]byte("\r\n\r\n"), s.peer) != nil {
			return
		}
		timer.Reset(pongLimit)
		select {
		case <-pongs:
		case <-timer.C:
			s.log.Info("connection is dead", "err", errNoPong)
			abort(conn)
			return
		case <-ended:
			return
		}
	}
}

// abort closes a connection whose far end does not answer: nothing waits for
// what was not taken, and the local port is free at once.
func abort(conn net.Conn) {
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	conn.Close()
}
