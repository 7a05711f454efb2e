package mesh_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bellwether/controller/mesh"
	"bellwether/controller/mesh/meshtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSuffix(l.buf.String(), "\n"), "\n")
}

func context5(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// echo answers every connection of l with a name and what it is sent.
func echo(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			fmt.Fprintf(c, "%s:%s:", name, mesh.PeerNode(c))
			_, _ = io.Copy(c, c)
		}()
	}
}

func TestProtocolsShareOnePort(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	a, b := ca.Listen(t, "a", "127.0.0.1:0"), ca.Listen(t, "b", "127.0.0.2:0")
	go echo(a.Handle("bw-raft/1"), "raft")
	go echo(a.Handle("bw-link/1"), "link")
	for _, proto := range []string{"raft", "link"} {
		c, err := b.Dial(context5(t), a.Addr().String(), "a", "bw-"+proto+"/1")
		if err != nil {
			t.Fatal(err)
		}
		if got := mesh.PeerNode(c); got != "a" {
			t.Errorf("dialled node is %q, want a", got)
		}
		if got, _, _ := net.SplitHostPort(c.LocalAddr().String()); got != "127.0.0.2" {
			t.Errorf("connection comes from %s, want the mesh address 127.0.0.2", got)
		}
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		want := proto + ":b:hello"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("read %q, %v, want %q", got, err, want)
		}
		_ = c.Close()
	}
}

func TestWrongPeersAreRefusedOnBothSidesWithOneLine(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	sameName := meshtest.NewCA(t, "c1")
	other := meshtest.NewCA(t, "c2")
	log := &lines{}
	cfg := ca.Config(t, "a", "127.0.0.1:0")
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	a, err := mesh.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	go echo(a.Handle("bw-api/1"), "api")

	role, _ := url.Parse("bellwether://c1/operator/eve")
	host, _ := url.Parse("https://example.org/")
	now := time.Now()
	for i, tt := range []struct {
		name   string
		cert   *tls.Certificate
		expect string // in the log of the side that is dialled
	}{
		{"a node of another cluster", other.Issue(t, mesh.NodeURI("c2", "b"), now), "of cluster c2, this is cluster c1"},
		{"a node of a CA that only calls itself alike", sameName.Issue(t, mesh.NodeURI("c1", "b"), now), "unknown authority"},
		{"an operator", ca.Issue(t, role, now), `\"operator\", not \"node\"`},
		{"a certificate without our name", ca.Issue(t, host, now), "0 bellwether:// names"},
		{"an expired certificate", ca.Issue(t, mesh.NodeURI("c1", "b"), now.Add(-2*time.Hour)), "expired"},
		{"one that is not valid yet", ca.Issue(t, mesh.NodeURI("c1", "b"), now.Add(30*time.Minute)), "not yet valid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Twice: a peer that tries again is not logged again.
			for range 2 {
				raw, err := net.Dial("tcp", a.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"bw-api/1"},
					GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return tt.cert, nil }})
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "bad certificate") {
					t.Errorf("the client reads %v, want an alert", err)
				}
				_ = c.Close()
			}
			waitFor(t, func() bool { return len(log.all()) > i && log.all()[i] != "" })
			if got := log.all(); len(got) != i+1 || !strings.Contains(got[i], tt.expect) {
				t.Errorf("log is %q, want line %d with %q", got, i, tt.expect)
			}
		})
	}
}

// waitFor polls a condition of another goroutine that has no channel to wait on.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(5 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("condition did not come true")
		}
	}
}

func TestDialRefusesWhoIsNotThatNode(t *testing.T) {
	ca, other := meshtest.NewCA(t, "c1"), meshtest.NewCA(t, "c2")
	a, b := ca.Listen(t, "a", "127.0.0.1:0"), ca.Listen(t, "b", "127.0.0.2:0")
	x := other.Listen(t, "a", "127.0.0.3:0")
	for _, m := range []*mesh.Mesh{a, x} {
		go echo(m.Handle("bw-api/1"), "api")
	}
	for _, tt := range []struct {
		name, addr, node, alpn, want string
	}{
		{"another node answers", a.Addr().String(), "c", "bw-api/1", "it is node a, not node c"},
		{"another cluster answers", x.Addr().String(), "a", "bw-api/1", "of cluster c2, this is cluster c1"},
		{"nobody handles the protocol", a.Addr().String(), "a", "bw-pair/1", "does not serve this protocol"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := b.Dial(context5(t), tt.addr, tt.node, tt.alpn)
			if !errors.Is(err, mesh.ErrRefused) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("dial: %v, want a refusal with %q", err, tt.want)
			}
		})
	}
	t.Run("it does not accept us", func(t *testing.T) {
		// c trusts a's CA but has a certificate of the role operator once listening.
		role, _ := url.Parse("bellwether://c1/operator/eve")
		cfg := ca.Config(t, "c", "127.0.0.4:0")
		good, _ := cfg.Certificate()
		use := atomic.Pointer[tls.Certificate]{}
		use.Store(good)
		cfg.Certificate = func() (*tls.Certificate, error) { return use.Load(), nil }
		c, err := mesh.Listen(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		use.Store(ca.Issue(t, role, time.Now()))
		_, err = c.Dial(context5(t), a.Addr().String(), "a", "bw-api/1")
		if !errors.Is(err, mesh.ErrRefused) || !strings.Contains(err.Error(), "its log says why") {
			t.Errorf("dial: %v, want a refusal", err)
		}
		use.Store(good)
		conn, err := c.Dial(context5(t), a.Addr().String(), "a", "bw-api/1")
		if err != nil {
			t.Fatalf("dial with the certificate read again: %v", err)
		}
		_ = conn.Close()
	})
}

func TestOwnCertificateMustBeThisNodes(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	cfg := ca.Config(t, "a", "127.0.0.1:0")
	cfg.NodeName = "b"
	if _, err := mesh.Listen(cfg); err == nil || !strings.Contains(err.Error(), "own certificate: it is node a, not node b") {
		t.Errorf("listen: %v", err)
	}
	cfg.Certificate = func() (*tls.Certificate, error) { return nil, errors.New("no such file") }
	if _, err := mesh.Listen(cfg); err == nil || !strings.Contains(err.Error(), "load certificate: no such file") {
		t.Errorf("listen: %v", err)
	}
}

func TestSilentClientsAreBoundedAndCutOff(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	cfg := ca.Config(t, "a", "127.0.0.1:0")
	cfg.MaxHandshakes, cfg.HandshakeTimeout = 2, 200*time.Millisecond
	a, err := mesh.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	go echo(a.Handle("bw-api/1"), "api")
	var silent []net.Conn
	for range 6 {
		c, err := net.Dial("tcp", a.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	// Behind three rounds of silent ones, a real peer still gets in.
	b := ca.Listen(t, "b", "127.0.0.2:0")
	c, err := b.Dial(context5(t), a.Addr().String(), "a", "bw-api/1")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	for _, s := range silent {
		_ = s.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := s.Read(make([]byte, 1)); err != io.EOF {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				t.Errorf("a silent connection is still open")
			}
		}
	}
}

// TestSilentClientsKeepNobodyOut: strangers that hold, and hold again, every
// handshake there can be; a node of the cluster connects at once, and so does
// somebody from an address of its own.
func TestSilentClientsKeepNobodyOut(t *testing.T) {
	t.Run("from a few addresses", func(t *testing.T) { besiege(t, 4, "127.0.0.2", "127.0.0.3") })
	t.Run("from more addresses than there can be handshakes", func(t *testing.T) { besiege(t, 32, "127.0.0.2") })
}

// besiege holds all handshakes of a mesh whose peer is 127.0.0.2, from so many
// addresses, and connects from others.
func besiege(t *testing.T, sources int, others ...string) {
	t.Helper()
	ca := meshtest.NewCA(t, "c1")
	cfg := ca.Config(t, "a", "127.0.0.1:0")
	cfg.MaxHandshakes, cfg.HandshakeTimeout = 8, time.Minute // longer than this test
	cfg.Peers = []netip.Addr{netip.MustParseAddr("127.0.0.2")}
	a, err := mesh.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	go echo(a.Handle("bw-api/1"), "api")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	held := make(chan struct{}, 32)
	for i := range 32 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%sources))}}
		wg.Go(func() {
			for first := true; ctx.Err() == nil; first = false {
				c, err := d.DialContext(ctx, "tcp", a.Addr().String())
				if first {
					held <- struct{}{}
				}
				if err != nil {
					continue
				}
				end := context.AfterFunc(ctx, func() { _ = c.Close() })
				_, _ = c.Read(make([]byte, 1)) // until it is closed
				end()
				_ = c.Close()
			}
		})
	}
	for range 32 {
		<-held
	}
	for _, from := range others {
		for range 5 {
			d, err := mesh.Dialer(ca.Config(t, "b", from+":0"))
			if err != nil {
				t.Fatal(err)
			}
			c, err := d.Dial(context5(t), a.Addr().String(), "a", "bw-api/1")
			if err != nil {
				t.Errorf("from %s: %v", from, err)
				continue
			}
			_ = c.Close()
			_ = d.Close()
		}
	}
}

func TestADialerNeedsNoPort(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	a := ca.Listen(t, "a", "127.0.0.1:0")
	go echo(a.Handle("bw-link/1"), "link")
	d, err := mesh.Dialer(ca.Config(t, "b", "127.0.0.2:0"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Dial(context5(t), a.Addr().String(), "a", "bw-link/1")
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := net.SplitHostPort(c.LocalAddr().String()); got != "127.0.0.2" || d.Addr() != nil || d.Handle("x").Addr() != nil {
		t.Errorf("it dials from %s and listens on %v", got, d.Addr())
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("the connection outlives the dialer")
	}
}

func TestGarbageIsRefusedWithOneLine(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	log := &lines{}
	cfg := ca.Config(t, "a", "127.0.0.1:0")
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	a, err := mesh.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for range 3 {
		c, err := net.Dial("tcp", a.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "REGISTER sip:example.org SIP/2.0\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the connection does not end: %v", err)
		}
		_ = c.Close()
	}
	waitFor(t, func() bool { return log.all()[0] != "" })
	if got := log.all(); len(got) != 1 || !strings.Contains(got[0], "does not look like a TLS handshake") {
		t.Errorf("log is %q", got)
	}
}

func TestAProtocolNobodyAcceptsRefusesTheOverflow(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	a, b := ca.Listen(t, "a", "127.0.0.1:0"), ca.Listen(t, "b", "127.0.0.2:0")
	l := a.Handle("bw-api/1")
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		_, err = b.Dial(context5(t), a.Addr().String(), "a", "bw-api/1")
	}
	if !errors.Is(err, mesh.ErrRefused) || !strings.Contains(err.Error(), "no room") {
		t.Errorf("after %d connections: %v, want a refusal for want of room", n, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, mesh.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	a, b := ca.Listen(t, "a", "127.0.0.1:0"), ca.Listen(t, "b", "127.0.0.2:0")
	l := a.Handle("bw-api/1")
	go echo(l, "api")
	c, err := b.Dial(context5(t), a.Addr().String(), "a", "bw-api/1")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.Copy(io.Discard, c); err != nil {
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			t.Error("the connection outlives its mesh")
		}
	}
	if _, err := l.Accept(); !errors.Is(err, mesh.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if _, err := a.Handle("bw-link/1").Accept(); !errors.Is(err, mesh.ErrClosed) {
		t.Errorf("a listener of a closed mesh accepts: %v", err)
	}
	if _, err := a.Dial(context5(t), b.Addr().String(), "b", "bw-api/1"); err == nil {
		t.Error("a closed mesh dials")
	}
}

func TestAProtocolIsHandledOnceAtATime(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	a := ca.Listen(t, "a", "127.0.0.1:0")
	first := a.Handle("bw-api/1")
	if _, err := a.Handle("bw-api/1").Accept(); !errors.Is(err, mesh.ErrClosed) {
		t.Errorf("second handler: %v", err)
	}
	_ = first.Close()
	again := a.Handle("bw-api/1")
	go echo(again, "again")
	b := ca.Listen(t, "b", "127.0.0.2:0")
	c, err := b.Dial(context5(t), a.Addr().String(), "a", "bw-api/1")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
