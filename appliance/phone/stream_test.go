package phone

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/cscf/sipmsg"
	"bellwether/media/rtp"
)

// edge is a socket of the core for both transports: what comes over a TCP
// connection comes from its remote address, and what goes there goes over it.
type edge struct {
	*net.UDPConn
	tcp *net.TCPListener
	in  chan datagram
	wg  sync.WaitGroup

	mu    sync.Mutex
	conns map[netip.AddrPort]net.Conn
}

func (e *edge) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	d, ok := <-e.in
	if !ok {
		return 0, netip.AddrPort{}, net.ErrClosed
	}
	return copy(b, d.b), d.from, nil
}

func (e *edge) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	e.mu.Lock()
	c := e.conns[to]
	e.mu.Unlock()
	if c != nil {
		return c.Write(b)
	}
	return e.UDPConn.WriteToUDPAddrPort(b, to)
}

func (e *edge) Close() error {
	e.tcp.Close()
	e.UDPConn.Close()
	e.mu.Lock()
	for _, c := range e.conns {
		c.Close()
	}
	e.mu.Unlock()
	e.wg.Wait()
	close(e.in)
	return nil
}

func (e *edge) serve() {
	e.wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := e.UDPConn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			e.in <- datagram{from, append([]byte(nil), buf[:n]...)}
		}
	})
	e.wg.Go(func() {
		for {
			c, err := e.tcp.AcceptTCP()
			if err != nil {
				return
			}
			from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
			e.mu.Lock()
			e.conns[from] = c
			e.mu.Unlock()
			e.wg.Go(func() {
				var f sipmsg.Framer
				buf := make([]byte, 4096)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					f.Push(buf[:n])
					for unit := sipmsg.Whole; unit == sipmsg.Whole; {
						var raw []byte
						if unit, raw, err = f.Next(); unit == sipmsg.Whole {
							e.in <- datagram{from, append([]byte(nil), raw...)}
						}
					}
				}
			})
		}
	})
}

// listenEdge makes edges at an address of the given host.
func listenEdge(host string) listener {
	return func(netip.AddrPort) (rtp.Conn, netip.AddrPort, error) {
		u, addr, err := listenUDP(netip.AddrPortFrom(netip.MustParseAddr(host), 0))
		if err != nil {
			return nil, addr, err
		}
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
		if err != nil {
			return nil, addr, err
		}
		e := &edge{UDPConn: u.(*net.UDPConn), tcp: l, in: make(chan datagram, 64), conns: map[netip.AddrPort]net.Conn{}}
		e.serve()
		return e, addr, nil
	}
}

func TestPhonesCallEachOtherOverTCP(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			c := newCore(t, listenEdge(host))
			heard := make(chan Result, 1)
			at := func(transport sipmsg.Transport, edit func(*Config)) func(*Config) {
				return func(c *Config) {
					c.LocalIP, c.Transport, c.ToneHz = netip.MustParseAddr(host), transport, 1004
					edit(c)
				}
			}
			alice := c.registered(t, nil, "alice", at(sipmsg.TCP, func(*Config) {}))
			c.registered(t, nil, "bob", at(sipmsg.UDP, func(c *Config) {
				c.ToneHz, c.Reliable, c.Ring = 620, true, 50*time.Millisecond
				c.OnCall = func(r Result) { heard <- r }
			}))
			carol := c.registered(t, nil, "carol", at(sipmsg.TCP, func(c *Config) { c.OnCall = func(r Result) { heard <- r } }))
			if got := c.bindings["sip:alice@ims.test"]; got != fmt.Sprintf("sip:alice@%v;transport=tcp", alice.Addr()) {
				t.Errorf("contact %q, address %v", got, alice.Addr())
			}
			for _, callee := range []string{"bob", "carol"} {
				r, err := alice.Call(t.Context(), "sip:"+callee+"@ims.test", CallOptions{Hold: 200 * time.Millisecond, Update: true})
				if err != nil || r.Status != 200 {
					t.Fatalf("alice: %+v, %v", r, err)
				}
				if far := <-heard; far.Status != 200 || far.Err != nil || far.RTPReceived == 0 || r.RTPReceived == 0 {
					t.Errorf("%s: %+v, alice: %+v", callee, far, r)
				}
			}
			long := strings.Repeat("words ", 2000)
			if status, err := alice.Message(t.Context(), "sip:carol@ims.test", long); status != 200 || err != nil {
				t.Errorf("a message of %d bytes: %d, %v", len(long), status, err)
			}
			if err := carol.Unregister(t.Context()); err != nil {
				t.Error(err)
			}
			if r, err := alice.Call(t.Context(), "sip:carol@ims.test", CallOptions{}); err != nil || r.Status != 404 {
				t.Errorf("a call to nobody: %+v, %v", r, err)
			}
		})
	}
}

// switchboard accepts a phone's connections in virtual time.
type switchboard struct {
	t     *testing.T
	conns chan net.Conn // each dialled one
	began time.Time

	mu    sync.Mutex
	fail  func() error // nil: none fails
	dials int
}

// refuse makes attempts fail as f says.
func (b *switchboard) refuse(f func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = f
}

func (b *switchboard) attempts() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dials
}

func board(t *testing.T) *switchboard {
	return &switchboard{t: t, conns: make(chan net.Conn, 16), began: time.Now()}
}

func (b *switchboard) dial(ctx context.Context, _, _ netip.AddrPort) (net.Conn, error) {
	b.mu.Lock()
	b.dials++
	fail := b.fail
	b.mu.Unlock()
	if fail != nil {
		if err := fail(); err != nil {
			return nil, err
		}
	}
	near, far := net.Pipe()
	select {
	case b.conns <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *switchboard) phone(t *testing.T) *Phone {
	p, err := New(Config{
		AOR: "sip:alice@ims.test", Domain: domain, Proxy: netip.MustParseAddrPort("192.0.2.8:5060"), Expires: time.Hour,
		LocalIP: netip.MustParseAddr("192.0.2.1"), Port: 5070, Transport: sipmsg.TCP, dial: b.dial,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// line is one connection as the P-CSCF sees it.
type line struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func (b *switchboard) answer() *line {
	c := <-b.conns
	b.t.Cleanup(func() { c.Close() })
	return &line{b.t, c, bufio.NewReader(c)}
}

// next reads a message of the phone, which has no body, and passes pings by.
func (l *line) next() *sipmsg.Message {
	l.t.Helper()
	var head []byte
	for {
		s, err := l.r.ReadBytes('\n')
		if err != nil {
			l.t.Fatal(err)
		}
		if head = append(head, s...); string(s) != "\r\n" {
			continue
		}
		if len(head) > 2 {
			break
		}
		head = nil
	}
	m, err := sipmsg.Parse(head)
	if err != nil {
		l.t.Fatalf("%q: %v", head, err)
	}
	return m
}

func (l *line) reply(m *sipmsg.Message, status int) {
	l.t.Helper()
	res := m.Response(status, "", "core")
	if contact, ok := m.Value(sipmsg.Contact); ok && status == 200 {
		res.Add(sipmsg.Contact, contact+";expires=3600")
	}
	l.write(string(res.Bytes()))
}

func (l *line) write(s string) {
	l.t.Helper()
	if _, err := io.WriteString(l, s); err != nil {
		l.t.Error(err)
	}
}

// registers runs a Register of p, which the line answers.
func (l *line) registers(p *Phone) {
	l.t.Helper()
	got := make(chan error, 1)
	go func() { got <- p.Register(l.t.Context()) }()
	l.reply(l.next(), 200)
	if err := <-got; err != nil {
		l.t.Fatal(err)
	}
}

func TestBrokenConnectionIsReplacedAndTheRegistrationMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := board(t)
		p := b.phone(t)
		first := b.answer()
		first.registers(p)
		refusals := 3
		b.refuse(func() error {
			if refusals--; refusals >= 0 {
				return errors.New("refused")
			}
			return nil
		})
		lost := make(chan error, 1)
		go func() {
			_, err := p.Message(t.Context(), "sip:bob@ims.test", "")
			lost <- err
		}()
		if m := first.next(); m.Method() != "MESSAGE" {
			t.Fatalf("got %q", m.Bytes())
		}
		first.Close()
		if err := <-lost; !errors.Is(err, errConnectionLost) {
			t.Errorf("a request whose connection broke ended with %v", err)
		}
		second := b.answer()
		m := second.next()
		if contact, _ := m.Value(sipmsg.Contact); m.Method() != "REGISTER" || !strings.Contains(contact, "<sip:alice@192.0.2.1:5070;transport=tcp>") {
			t.Errorf("over the new connection came first %q", m.Bytes())
		}
		second.reply(m, 200)
		if d := time.Since(b.began); d > 4*time.Second {
			t.Errorf("registered again after %v", d)
		}
		if via, _ := m.TopVia(); via.Transport != "TCP" || via.SentBy() != "192.0.2.1:5070" {
			t.Errorf("Via %v", via)
		}
		// Requests of the core come by the connection.
		second.write("OPTIONS sip:alice@192.0.2.1:5070;transport=tcp SIP/2.0\r\nVia: SIP/2.0/TCP 192.0.2.8;branch=z9hG4bKa\r\n" +
			"From: <sip:c@ims.test>;tag=1\r\nTo: <sip:alice@ims.test>\r\nCall-ID: o\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 9\r\nContent-Length: 0\r\n\r\n")
		if m := second.next(); m.Status() != 200 {
			t.Errorf("OPTIONS was answered %q", m.Bytes())
		}
	})
}

func TestUnreachablePCSCFIsTriedWithGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := board(t)
		refused := errors.New("connection refused")
		b.refuse(func() error { return refused })
		p := b.phone(t)
		if err := p.Register(t.Context()); !errors.Is(err, errUnreachable) || !errors.Is(err, refused) {
			t.Errorf("got %v", err)
		}
		time.Sleep(10 * time.Minute)
		if n := b.attempts(); n < 20 || n > 45 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		// Who wants to register does not wait for the end of a pause.
		b.refuse(nil)
		go func() { b.answer().next() }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Register(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, refused) {
			t.Errorf("got %v, want no answer from a P-CSCF that is there", err)
		}
	})
}

func TestConnectionsThatBreakAtOnceAreNotMadeWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := board(t)
		b.phone(t)
		for time.Since(b.began) < 10*time.Minute {
			b.answer().Close()
		}
		if n := b.attempts(); n < 20 || n > 45 {
			t.Errorf("%d connections in ten minutes", n)
		}
		// One that lasted is replaced at once.
		l := b.answer()
		time.Sleep(steady)
		l.Close()
		broke := time.Now()
		b.answer()
		if d := time.Since(broke); d > 0 {
			t.Errorf("connected again after %v", d)
		}
	})
}

func TestKeepAlive(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pong  []string // written after a ping, in pieces
		alive bool
	}{
		{"an answer", []string{"\r\n"}, true},
		{"an answer in two pieces", []string{"\r", "\n"}, true},
		{"an answer behind a message", []string{"SIP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n\r\n"}, true},
		{"a message only", []string{"SIP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"}, false},
		{"half an answer", []string{"\r"}, false},
		{"none", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := board(t)
				p := b.phone(t)
				l := b.answer()
				l.registers(p)
				began := time.Now()
				for range 2 {
					var ping [4]byte
					if _, err := io.ReadFull(l.r, ping[:]); err != nil || string(ping[:]) != "\r\n\r\n" {
						t.Fatalf("got %q, %v", ping, err)
					}
					d := time.Since(began)
					began = time.Now()
					if d < keepAlive*4/5 || d > keepAlive {
						t.Errorf("a ping after %v", d)
					}
					for _, s := range tt.pong {
						l.write(s)
					}
					if !tt.alive {
						break
					}
				}
				if tt.alive {
					if b.attempts() != 1 {
						t.Errorf("connected %d times", b.attempts())
					}
					return
				}
				if _, err := l.r.ReadByte(); err != io.EOF {
					t.Errorf("the connection is not closed: %v", err)
				}
				if d := time.Since(began); d != pongLimit {
					t.Errorf("closed after %v", d)
				}
				b.answer().next()
			})
		})
	}
}

func TestStreamThatCannotBeReadOnIsClosed(t *testing.T) {
	for name, junk := range map[string]string{
		"no SIP":            "GET / HTTP/1.1\r\n\r\n",
		"no Content-Length": "SIP/2.0 200 OK\r\nVia: SIP/2.0/TCP h\r\n\r\n",
		"an endless line":   "SIP/2.0 200 OK\r\nX: " + strings.Repeat("x", 70<<10),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := board(t)
				b.phone(t)
				l := b.answer()
				_, _ = io.WriteString(l, junk) // it may be closed in the middle
				if _, err := l.r.ReadByte(); err != io.EOF {
					t.Errorf("the connection is not closed: %v", err)
				}
				b.answer()
			})
		})
	}
}

// TestConnectionComesFromOneAddress: a contact stays good when the connection
// is replaced.
func TestConnectionComesFromOneAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := New(Config{
		AOR: "sip:alice@ims.test", Domain: domain, Proxy: l.Addr().(*net.TCPAddr).AddrPort(),
		LocalIP: netip.MustParseAddr("127.0.0.1"), Transport: sipmsg.TCP,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 3 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := c.RemoteAddr().String(); got != p.Addr().String() {
			t.Errorf("connected from %s, the contact says %v", got, p.Addr())
		}
		c.Close()
	}
}
