package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type nopHandler struct{}

func (nopHandler) SIP(*Conn, *SIP)                               {}
func (nopHandler) Call(*Conn, string, []byte) ([]byte, error)    { return nil, nil }
func (nopHandler) Notify(c *Conn, method string, payload []byte) {}

type nopConn struct{ net.Conn }

func (nopConn) Close() error { return nil }

// handler is made of functions; missing ones do nothing.
type handler struct {
	sip    func(*SIP)
	call   func(method string, payload []byte) ([]byte, error)
	notify func(method string, payload []byte)
}

func (h handler) SIP(_ *Conn, f *SIP) {
	if h.sip != nil {
		h.sip(f)
	}
}

func (h handler) Call(_ *Conn, method string, payload []byte) ([]byte, error) {
	if h.call != nil {
		return h.call(method, payload)
	}
	return nil, nil
}

func (h handler) Notify(_ *Conn, method string, payload []byte) {
	if h.notify != nil {
		h.notify(method, payload)
	}
}

// contextHandler answers calls with its function.
type contextHandler struct {
	nopHandler
	call func(ctx context.Context) ([]byte, error)
}

func (h contextHandler) CallContext(ctx context.Context, _ *Conn, _ string, _ []byte) ([]byte, error) {
	return h.call(ctx)
}

// unixPair is a connected pair of unix stream sockets.
func unixPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// start runs both ends until the test ends.
func start(t testing.TB, a, b *Conn) {
	var wg sync.WaitGroup
	for _, c := range []*Conn{a, b} {
		wg.Go(func() { _ = c.Run() })
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
		wg.Wait()
	})
}

func TestFramesArriveInOrderOverEachStream(t *testing.T) {
	for name, pair := range map[string]func(testing.TB) (net.Conn, net.Conn){
		"unix socket": unixPair,
		"pipe":        func(testing.TB) (net.Conn, net.Conn) { return net.Pipe() },
	} {
		t.Run(name, func(t *testing.T) {
			const frames = 500
			got := make(chan string, 2*frames)
			na, nb := pair(t)
			a := New(na, nopHandler{}, Options{})
			b := New(nb, handler{
				sip:    func(f *SIP) { got <- fmt.Sprintf("%s %d %s", f.Raw, f.To, f.Flow.Node) },
				notify: func(m string, p []byte) { got <- m + " " + string(p) },
			}, Options{})
			start(t, a, b)
			for i := range frames {
				f := sample()
				f.To, f.Raw = uint32(i), []byte("sip")
				if err := a.SendSIP(&f); err != nil {
					t.Fatal(err)
				}
				if err := a.Notify("note", fmt.Append(nil, i)); err != nil {
					t.Fatal(err)
				}
			}
			for i := range frames {
				if s, want := <-got, fmt.Sprintf("sip %d node-a", i); s != want {
					t.Fatalf("got %q, want %q", s, want)
				}
				if s, want := <-got, fmt.Sprintf("note %d", i); s != want {
					t.Fatalf("got %q, want %q", s, want)
				}
			}
		})
	}
}

func TestRawMayBeKept(t *testing.T) {
	got := make(chan []byte, 2)
	na, nb := unixPair(t)
	a, b := New(na, nopHandler{}, Options{}), New(nb, handler{sip: func(f *SIP) { got <- f.Raw }}, Options{})
	start(t, a, b)
	for _, s := range []string{"first", "other"} {
		f := sample()
		f.Raw = []byte(s)
		if err := a.SendSIP(&f); err != nil {
			t.Fatal(err)
		}
	}
	first, other := <-got, <-got
	if string(first) != "first" || string(other) != "other" {
		t.Errorf("got %q and %q", first, other)
	}
}

func TestCloseEndsCallsAndSending(t *testing.T) {
	entered := make(chan struct{})
	na, nb := unixPair(t)
	a := New(na, nopHandler{}, Options{})
	b := New(nb, contextHandler{call: func(ctx context.Context) ([]byte, error) {
		close(entered)
		<-ctx.Done()
		return nil, nil
	}}, Options{})
	start(t, a, b)
	go func() {
		<-entered
		b.Close()
	}()
	if _, err := a.Call(t.Context(), "wait", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("call: %v, want ErrClosed", err)
	}
	<-a.Done()
	f := sample()
	if err := a.SendSIP(&f); !errors.Is(err, ErrClosed) {
		t.Errorf("SendSIP: %v, want ErrClosed", err)
	}
	if err := a.Notify("x", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Notify: %v, want ErrClosed", err)
	}
	if a.Err() == nil {
		t.Error("the side that did not close has no reason")
	}
	if b.Err() != nil {
		t.Errorf("the side that closed has a reason: %v", b.Err())
	}
}

func TestQueueIsBounded(t *testing.T) {
	na, nb := net.Pipe()
	defer nb.Close()
	a := New(na, nopHandler{}, Options{QueueBytes: 10 << 10})
	defer a.Close()
	f := sample()
	f.Raw = make([]byte, 1000)
	sent := 0
	for ; a.SendSIP(&f) == nil; sent++ {
	}
	if sent < 8 || sent > 10 {
		t.Errorf("%d frames of 1 kB in a queue of 10 kB", sent)
	}
	if err := a.SendSIP(&f); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	// Control still passes, up to a limit of its own.
	payload := make([]byte, MaxCall-100)
	n := 0
	for ; a.Notify("big", payload) == nil; n++ {
	}
	if n != 2 {
		t.Errorf("%d notifications of the largest size, want 2", n)
	}
}

func TestQueuedFramesShareWrites(t *testing.T) {
	na, nb := net.Pipe()
	counted := &countedConn{Conn: na}
	a := New(counted, nopHandler{}, Options{})
	done := make(chan struct{})
	const frames = 100
	n := 0
	b := New(nb, handler{sip: func(*SIP) {
		if n++; n == frames {
			close(done)
		}
	}}, Options{})
	f := sample()
	for range frames { // before Run, so that they wait
		if err := a.SendSIP(&f); err != nil {
			t.Fatal(err)
		}
	}
	start(t, a, b)
	<-done
	if w := counted.count(); w > 2 {
		t.Errorf("%d frames took %d writes, want one", frames, w)
	}
}

type countedConn struct {
	net.Conn
	mu     sync.Mutex
	writes int
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.writes++
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *countedConn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

func TestSilentPeerIsNoticedWithinTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		na, nb := net.Pipe()
		go io.Copy(io.Discard, nb) // takes everything, says hello and no more
		go nb.Write(appendHello(nil, 1, 1))
		begin := time.Now()
		err := New(na, nopHandler{}, Options{}).Run()
		if !errors.Is(err, ErrSilent) {
			t.Errorf("got %v, want ErrSilent", err)
		}
		if d := time.Since(begin); d > 2*time.Second || d < time.Second {
			t.Errorf("noticed after %v, want 1 s to 2 s", d)
		}
		nb.Close()
	})
}

func TestQuietLinkStaysUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		na, nb := net.Pipe()
		a, b := New(na, nopHandler{}, Options{}), New(nb, nopHandler{}, Options{})
		go a.Run()
		go b.Run()
		time.Sleep(time.Hour)
		if a.Err() != nil || b.Err() != nil {
			t.Errorf("ended: %v, %v", a.Err(), b.Err())
		}
		if _, err := a.Call(t.Context(), "x", nil); err != nil {
			t.Error(err)
		}
		a.Close()
		b.Close()
		synctest.Wait()
	})
}

func TestLateReaderAccusesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		na, nb := net.Pipe()
		// The first look finds its deadline passed; the bytes are there.
		s := &source{nc: &lateConn{Conn: na}, wait: time.Second, grace: time.Second}
		go nb.Write([]byte("x"))
		if n, err := s.Read(make([]byte, 8)); n != 1 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
		na.Close()
		nb.Close()
	})
}

// lateConn misses its first deadline.
type lateConn struct {
	net.Conn
	late bool
}

func (c *lateConn) SetReadDeadline(t time.Time) error {
	if !c.late {
		c.late = true
		t = time.Now().Add(-time.Second)
	}
	return c.Conn.SetReadDeadline(t)
}

func TestPeerThatTakesNothingIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		na, nb := net.Pipe()
		go func() { // speaks, but never reads
			nb.Write(appendHello(nil, 1, 1))
			for {
				if _, err := nb.Write(appendHeader(nil, frameAlive, 0)); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}()
		begin := time.Now()
		if err := New(na, nopHandler{}, Options{}).Run(); err == nil {
			t.Error("no error")
		}
		if d := time.Since(begin); d > stall+time.Second {
			t.Errorf("given up after %v", d)
		}
		nb.Close()
		time.Sleep(time.Second) // the speaker notices
	})
}

func TestGarbageEndsTheConnectionWithAClearError(t *testing.T) {
	call := func(id byte) []byte {
		b := appendHeader(nil, frameCall, 14)
		return append(append(b, 0, 0, 0, 0, 0, 0, 0, id, 0, 0, 0, 0), "\x01x"...)
	}
	for name, tc := range map[string]struct {
		in   []byte
		want error
	}{
		"random bytes":        {[]byte("\x80\x03 something else entirely"), ErrGarbage},
		"a future version":    {appendHello(nil, 7, 9), ErrVersion},
		"an oversized frame":  {append(appendHello(nil, 1, 1), 0xff, 0xff, 0xff, 0xff, 1, frameSIP), ErrTooLarge},
		"a short SIP frame":   {append(appendHello(nil, 1, 1), append(appendHeader(nil, frameSIP, 3), "abc"...)...), ErrGarbage},
		"a call number twice": {append(append(appendHello(nil, 1, 1), call(1)...), call(1)...), ErrGarbage},
		"a short answer":      {append(appendHello(nil, 1, 1), append(appendHeader(nil, frameAnswer, 3), "abc"...)...), ErrGarbage},
	} {
		t.Run(name, func(t *testing.T) {
			na, nb := unixPair(t)
			defer nb.Close()
			if _, err := nb.Write(tc.in); err != nil {
				t.Fatal(err)
			}
			release := make(chan struct{})
			defer close(release)
			err := New(na, handler{call: func(string, []byte) ([]byte, error) {
				<-release
				return nil, nil
			}}, Options{}).Run()
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestSendAllocatesNothing(t *testing.T) {
	c := New(nopConn{}, nopHandler{}, Options{QueueBytes: 1 << 20})
	f := sample()
	if n := testing.AllocsPerRun(100, func() {
		c.mu.Lock()
		c.queue = c.queue[:0]
		c.mu.Unlock()
		if err := c.SendSIP(&f); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a frame, want 0", n)
	}
}

// BenchmarkSIP sends messages of the size of a REGISTER over a unix socket.
func BenchmarkSIP(b *testing.B) {
	na, nb := unixPair(b)
	done := make(chan struct{})
	n := 0
	x := New(na, nopHandler{}, Options{})
	y := New(nb, handler{sip: func(*SIP) {
		if n++; n == b.N {
			close(done)
		}
	}}, Options{})
	start(b, x, y)
	f := sample()
	f.Raw = make([]byte, 1295)
	b.SetBytes(int64(len(f.Raw)))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for x.SendSIP(&f) != nil {
			// The queue is full: let the writer run.
			select {
			case <-x.Done():
				b.Fatal(x.Err())
			case <-time.After(50 * time.Microsecond):
			}
		}
	}
	<-done
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
}
