package front

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"bellwether/controller/link"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

// newStreamFront is a front with limits of TCP and what it says is gone.
func newStreamFront(t testing.TB, limits Streams, addrs ...string) (*Front, chan sipmsg.Flow) {
	t.Helper()
	if addrs == nil {
		addrs = []string{"127.0.0.1:0"}
	}
	gone := make(chan sipmsg.Flow, 100)
	cfg := Config{Node: "a", Sockets: 1, Streams: limits, Gone: func(_ *link.Conn, flow sipmsg.Flow) {
		select {
		case gone <- flow:
		default: // a test that sends on and on hears it once for each message, and need not listen
		}
	}}
	for _, kind := range []byte{'p', 'i', 's'} {
		for _, a := range addrs {
			cfg.Entries = append(cfg.Entries, Entry{kind, netip.MustParseAddrPort(a)})
		}
	}
	f, err := New(cfg, newCluster(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f, gone
}

// caller is a TCP connection of an outsider.
type caller struct {
	net.Conn
	t  testing.TB
	br *bufio.Reader
}

func dialFront(t testing.TB, to netip.AddrPort) *caller {
	t.Helper()
	c, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return newCaller(t, c)
}

func newCaller(t testing.TB, c net.Conn) *caller { return &caller{c, t, bufio.NewReader(c)} }

func (c *caller) addr() netip.AddrPort { return c.LocalAddr().(*net.TCPAddr).AddrPort() }

func (c *caller) write(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
}

// message reads the next message.
func (c *caller) message() *sipmsg.Message {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	var b strings.Builder
	length := 0
	for {
		line, err := c.br.ReadString('\n')
		if err != nil {
			c.t.Fatalf("%v after %q", err, b.String())
		}
		b.WriteString(line)
		_, _ = fmt.Sscanf(line, "Content-Length: %d", &length)
		if line == "\r\n" {
			break
		}
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(c.br, body); err != nil {
		c.t.Fatal(err)
	}
	m, err := sipmsg.Parse(append([]byte(b.String()), body...))
	if err != nil {
		c.t.Fatalf("%v:\n%s", err, b.String())
	}
	return m
}

// closed waits until the front has closed the connection.
func (c *caller) closed() {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if rest, err := io.ReadAll(c.br); errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("it is not closed; %q came", rest)
	}
}

// bound is a connection of a phone of p1, and its flow.
func bound(t testing.TB, f *Front, w *process) (*caller, sipmsg.Flow) {
	t.Helper()
	c := dialFront(t, f.Addr('p'))
	c.write(message("REGISTER sip:ims.test SIP/2.0", "To: <sip:stranger@ims.test>"))
	s := w.next(t)
	f.Bind(s.Flow, p1, time.Now().Add(time.Hour))
	return c, s.Flow
}

func TestMessagesOverTCPReachTheWorkerInOrder(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	w := connect(t, f, p1)
	c, flow := bound(t, f, w)
	if want := (sipmsg.Flow{Node: "a", Transport: sipmsg.TCP, Local: f.Addr('p'), Remote: c.addr(), Conn: flow.Conn}); flow != want || flow.Conn == 0 {
		t.Errorf("the flow is %v, want %v", flow, want)
	}
	var all strings.Builder
	const n = 200
	for i := range n {
		all.WriteString(message("MESSAGE sip:bob@ims.test SIP/2.0", fmt.Sprint("Call-ID: ", i), "Content-Length: 5") + "hello")
	}
	rest := all.String()
	for i := 1; rest != ""; i++ { // in pieces of growing size
		n := min(i, len(rest))
		c.write(rest[:n])
		rest = rest[n:]
	}
	for i := range n {
		s := w.next(t)
		if m, err := sipmsg.Parse(s.Raw); err != nil || m.CallID() != fmt.Sprint(i) || string(m.Body()) != "hello" || s.Flow != flow {
			t.Fatalf("message %d: %v, over %v\n%s", i, err, s.Flow, s.Raw)
		}
	}
}

func TestWorkersSendOverTheConnection(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	w := connect(t, f, p1)
	c, flow := bound(t, f, w)
	byAddr := flow
	byAddr.Conn = 0           // there is a connection that leads there
	const n, window = 100, 50 // what is not read yet stays below what a connection may have waiting
	read := 0
	for i := range n {
		via := flow
		if i%2 == 1 {
			via = byAddr
		}
		raw := []byte(message("INVITE sip:phone SIP/2.0", fmt.Sprint("Call-ID: ", i), "Content-Length: 3000") + strings.Repeat("x", 3000))
		if err := w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: via, Raw: raw}); err != nil {
			t.Fatal(err)
		}
		if (i+1)%window != 0 {
			continue
		}
		for ; read <= i; read++ {
			if m := c.message(); m.CallID() != fmt.Sprint(read) || len(m.Body()) != 3000 {
				t.Fatalf("got %s as number %d", m.CallID(), read)
			}
		}
	}
	if s := f.Stats(); s.Accepted != 1 || s.Dialled != 0 || s.Connections != 1 || s.Unbound != 0 {
		t.Errorf("%+v", s)
	}
}

func TestPingsAreAnswered(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	c := dialFront(t, f.Addr('p'))
	for _, piece := range []string{"\r", "\n\r", "\n", "\r\n\r\n\r\n\r\n", strings.Repeat("\r\n\r\n", 40), message("INVITE sip:bob@ims.test SIP/2.0") + "\r\n\r\n"} {
		c.write(piece)
	}
	pongs, refused := 0, 0
	for pongs < 44 || refused < 1 {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		switch line, err := c.br.ReadString('\n'); {
		case err != nil:
			t.Fatalf("%v after %d pongs and %d answers", err, pongs, refused)
		case line == "\r\n":
			pongs++
		case strings.HasPrefix(line, "SIP/2.0 403 "):
			refused++
			for line != "\r\n" {
				line, _ = c.br.ReadString('\n')
			}
		}
	}
	if s := f.Stats(); s.KeepAlives != 44 {
		t.Errorf("%d pings are counted", s.KeepAlives)
	}
}

func TestStatelessAnswersOverTCP(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	c := dialFront(t, f.Addr('p'))
	for name, tc := range map[string]struct{ via, want string }{
		"sent-by is the source": {"SIP/2.0/TCP 127.0.0.1:9;branch=z9hG4bKx", "SIP/2.0/TCP 127.0.0.1:9;branch=z9hG4bKx"},
		"sent-by is another":    {"SIP/2.0/TCP 192.0.2.1:9;branch=z9hG4bKx", "SIP/2.0/TCP 192.0.2.1:9;branch=z9hG4bKx;received=127.0.0.1"},
		"rport":                 {"SIP/2.0/TCP phone.test;rport;branch=z9hG4bKx", fmt.Sprintf("SIP/2.0/TCP phone.test;rport=%d;branch=z9hG4bKx;received=127.0.0.1", c.addr().Port())},
	} {
		c.write(message("INVITE sip:bob@ims.test SIP/2.0", "Via: "+tc.via))
		m := c.message()
		if v, _ := m.Value(sipmsg.ViaHeader); m.Status() != 403 || v != tc.want {
			t.Errorf("%s: got %d, Via %s, want %s", name, m.Status(), v, tc.want)
		}
	}
	c.write(message("INVITE sip:bob@ims.test SIP/2.0", "CSeq: 1 BYE"))
	if m := c.message(); m.Status() != 400 {
		t.Errorf("got %d", m.Status())
	}
	c.write(message("INVITE sip:bob@ims.test SIP/2.0"))
	if m := c.message(); m.Status() != 403 {
		t.Errorf("after a malformed message: %d", m.Status())
	}
}

func TestFramingFaultsCloseTheConnection(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	next := message("INVITE sip:bob@ims.test SIP/2.0")
	no := strings.ReplaceAll(next, "Content-Length: 0\r\n", "")
	for name, tc := range map[string]struct {
		sent   string
		status int
	}{
		"no Content-Length":       {no + next, 400},
		"two that differ":         {message("INVITE sip:bob@ims.test SIP/2.0", "Content-Length: 3", "l: 5") + next, 400},
		"a negative one":          {message("INVITE sip:bob@ims.test SIP/2.0", "Content-Length: -5") + next, 400},
		"one of 4 GB":             {message("INVITE sip:bob@ims.test SIP/2.0", "Content-Length: 4294967295") + next, 400},
		"a message above 64 kB":   {message("INVITE sip:bob@ims.test SIP/2.0", "Content-Length: 66000") + strings.Repeat("x", 1<<20), 513},
		"a header above 64 kB":    {next[:len(next)-2] + strings.Repeat("X: y\r\n", 20000), 513},
		"an ACK without a length": {strings.ReplaceAll(no, "INVITE", "ACK"), 0},
		"a response without one":  {"SIP/2.0 200 OK\r\n" + no[strings.Index(no, "\n")+1:], 0},
		"HTTP":                    {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0},
		"a TLS handshake":         {"\x16\x03\x01\x02\x00\x01\x00\x01", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := dialFront(t, f.Addr('p'))
			_, _ = io.WriteString(c, tc.sent) // the front may close before it has read all
			if tc.status != 0 {
				if m := c.message(); m.Status() != tc.status {
					t.Errorf("got %d, want %d", m.Status(), tc.status)
				}
			}
			c.closed()
		})
	}
	eventually(t, "all are gone", func() bool { return f.Stats().Connections == 0 })
	if s := f.Stats(); s.Held != 0 || s.Queued != 0 || s.Ended["bad-framing"] != 8 || s.Ended["too-large"] != 2 {
		t.Errorf("%+v", s)
	}
}

func TestFlowEndsWithItsConnection(t *testing.T) {
	f, gone := newStreamFront(t, Streams{})
	w := connect(t, f, p1)
	c, flow := bound(t, f, w)
	c.Close()
	if got := <-gone; got != flow {
		t.Errorf("gone is %v, want %v", got, flow)
	}
	if s := f.Stats(); s.Flows != 0 || s.Connections != 0 {
		t.Errorf("%+v", s)
	}
	// A request over it is undeliverable, and so is a binding.
	if err := w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: []byte(message("INVITE sip:phone SIP/2.0"))}); err != nil {
		t.Fatal(err)
	}
	if got := <-gone; got != flow {
		t.Errorf("gone is %v, want %v", got, flow)
	}
	f.Bind(flow, p1, time.Now().Add(time.Hour))
	if got := <-gone; got != flow {
		t.Errorf("gone is %v, want %v", got, flow)
	}
	if s := f.Stats(); s.Flows != 0 || s.Dropped["no-connection"] != 1 {
		t.Errorf("%+v", s)
	}
}

func TestConnectionOutlivesTheWorkerProcess(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	w := connect(t, f, p1)
	c, flow := bound(t, f, w)
	f.Detach(w.near)
	w.near.Close()
	c.write(message("INVITE sip:bob@ims.test SIP/2.0", "Call-ID: waits")) // nobody would repeat it
	next := connect(t, f, p1)
	if s := next.next(t); s.Flow != flow || !strings.Contains(string(s.Raw), "Call-ID: waits") {
		t.Errorf("over %v:\n%s", s.Flow, s.Raw)
	}
}

func TestRequestIsAnsweredWhenNoWorkerComes(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	w := connect(t, f, p1)
	c, _ := bound(t, f, w)
	f.Detach(w.near)
	c.write(message("OPTIONS sip:bob@ims.test SIP/2.0"))
	if m := c.message(); m.Status() != 503 {
		t.Errorf("got %d", m.Status())
	}
	if s := f.Stats(); s.Dropped["unserved"] != 1 {
		t.Errorf("%v", s.Dropped)
	}
	// Alice's group is not there, Dora would need a reservation.
	c = dialFront(t, f.Addr('p'))
	c.write(message("REGISTER sip:ims.test SIP/2.0", "To: <sip:dora@ims.test>"))
	if m := c.message(); m.Status() != 503 {
		t.Errorf("got %d", m.Status())
	}
}

// peerAt accepts connections as another SIP element.
func peerAt(t testing.TB, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestResponseToAClosedConnectionGoesToSentBy(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	w := connect(t, f, p1)
	l := peerAt(t, "127.0.0.1:0")
	port := l.Addr().(*net.TCPAddr).Port
	c := dialFront(t, f.Addr('p'))
	c.write(message("OPTIONS sip:127.0.0.1 SIP/2.0", "To: <sip:127.0.0.1>", fmt.Sprintf("Via: SIP/2.0/TCP 127.0.0.1:%d;branch=z9hG4bKx", port)))
	s := w.next(t)
	c.Close()
	eventually(t, "the connection is gone", func() bool { return f.Stats().Connections == 0 })
	for i := range 2 { // the second one uses the same connection
		raw := message("SIP/2.0 200 OK", fmt.Sprint("Call-ID: ", i), fmt.Sprintf("Via: SIP/2.0/TCP 127.0.0.1:%d;branch=z9hG4bKx", port))
		if err := w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: s.Flow, Raw: []byte(raw)}); err != nil {
			t.Fatal(err)
		}
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if from := nc.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); from != f.Addr('p').Addr() {
		t.Errorf("it comes from %s", from)
	}
	back := newCaller(t, nc)
	for i := range 2 {
		if m := back.message(); m.CallID() != fmt.Sprint(i) || m.Status() != 200 {
			t.Errorf("got %s", m.CallID())
		}
	}
	// The peer may use it, too.
	back.write(message("OPTIONS sip:127.0.0.1 SIP/2.0", "To: <sip:127.0.0.1>"))
	if got := w.next(t); got.Flow.Local != f.Addr('p') || got.Flow.Remote.Port() != uint16(port) || got.Flow.Conn == 0 {
		t.Errorf("over %v", got.Flow)
	}
	if s := f.Stats(); s.Dialled != 1 {
		t.Errorf("%d were dialled", s.Dialled)
	}
}

func TestRequestsOpenConnections(t *testing.T) {
	f, gone := newStreamFront(t, Streams{Dial: 200 * time.Millisecond})
	w := connect(t, f, p1)
	l := peerAt(t, "127.0.0.1:0")
	send := func(to string) sipmsg.Flow {
		flow := sipmsg.Flow{Node: "a", Transport: sipmsg.TCP, Remote: netip.MustParseAddrPort(to)}
		if err := w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: []byte(message("INVITE sip:peer SIP/2.0"))}); err != nil {
			t.Fatal(err)
		}
		flow.Local = f.Addr('p')
		return flow
	}
	send(l.Addr().String())
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if m := newCaller(t, nc).message(); m.Method() != "INVITE" {
		t.Errorf("got %s", m.Method())
	}
	nc.Close()
	select {
	case got := <-gone:
		if got.Remote.String() != l.Addr().String() || got.Conn != 0 {
			t.Errorf("its connection ended before an answer: gone is %v", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody hears that its connection ended before an answer")
	}
	free := peerAt(t, "127.0.0.1:0")
	nobody := free.Addr().String()
	free.Close()
	flow := send(nobody)
	if got := <-gone; got != flow {
		t.Errorf("gone is %v, want %v", got, flow)
	}
	for name, own := range map[string]netip.AddrPort{"the P entry": f.Addr('p'), "the S entry": f.Addr('s')} {
		send(own.String())
		select {
		case got := <-gone:
			if got.Remote != own {
				t.Errorf("%s: gone is %v", name, got)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: it is dialled", name)
		}
	}
	if s := f.Stats(); s.Dialled != 1 || s.Ended["dial-failed"] != 1 {
		t.Errorf("%+v", s)
	}
}

func TestUnboundConnectionsEndInTime(t *testing.T) {
	const soon = 100 * time.Millisecond
	for name, tc := range map[string]struct {
		limits Streams
		sent   string
		ending string
	}{
		"nothing comes":                      {Streams{First: soon}, "", "no-first-message"},
		"pings only":                         {Streams{First: soon}, "\r\n\r\n", "no-first-message"},
		"the first message does not end":     {Streams{First: soon}, message("INVITE sip:bob@ims.test SIP/2.0")[:50], "no-first-message"},
		"a later message does not end":       {Streams{Message: soon}, message("INVITE sip:bob@ims.test SIP/2.0") + "INVITE sip:", "slow-message"},
		"nothing more comes":                 {Streams{Idle: soon}, message("INVITE sip:bob@ims.test SIP/2.0"), "idle"},
		"nothing more after two in a packet": {Streams{Idle: soon}, strings.Repeat(message("INVITE sip:bob@ims.test SIP/2.0"), 2), "idle"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := newStreamFront(t, tc.limits)
			c := dialFront(t, f.Addr('p'))
			c.write(tc.sent)
			c.closed()
			eventually(t, "it is gone", func() bool { s := f.Stats(); return s.Connections == 0 && s.Ended[tc.ending] == 1 })
			if s := f.Stats(); s.Held != 0 {
				t.Errorf("%d bytes are held", s.Held)
			}
		})
	}
}

func TestBoundConnectionLastsUntilItIsNot(t *testing.T) {
	f, _ := newStreamFront(t, Streams{Idle: 150 * time.Millisecond})
	w := connect(t, f, p1)
	c, flow := bound(t, f, w)
	other := dialFront(t, f.Addr('p')) // which ends in the time in which the bound one would
	other.write(message("INVITE sip:bob@ims.test SIP/2.0"))
	other.closed()
	c.write(message("INVITE sip:bob@ims.test SIP/2.0"))
	if s := w.next(t); s.Flow != flow {
		t.Errorf("over %v", s.Flow)
	}
	f.Unbind(flow)
	c.closed()
}

func TestPeerThatDoesNotReadIsClosed(t *testing.T) {
	f, gone := newStreamFront(t, Streams{Stall: 200 * time.Millisecond})
	w := connect(t, f, p1)
	deaf, flow := bound(t, f, w)
	defer deaf.Close()
	good, goodFlow := bound(t, f, w)
	raw := []byte(message("INFO sip:phone SIP/2.0", "Content-Length: 30000") + strings.Repeat("x", 30000))
	var wg sync.WaitGroup
	ended := make(chan struct{})
	wg.Go(func() {
		for { // until the kernel's buffers are full, too
			select {
			case <-ended:
				return
			default:
				_ = w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: raw})
			}
		}
	})
	if got := <-gone; got != flow {
		t.Errorf("gone is %v", got)
	}
	close(ended)
	wg.Wait()
	if s := f.Stats(); s.Ended["not-reading"]+s.Ended["queue-full"] != 1 {
		t.Errorf("%v", s.Ended)
	}
	for err := link.ErrFull; err != nil; { // what was sent in vain is still in the link
		err = w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: goodFlow, Raw: []byte(message("INFO sip:phone SIP/2.0"))})
	}
	if m := good.message(); m.Method() != "INFO" {
		t.Errorf("got %s", m.Method())
	}
	eventually(t, "nothing waits", func() bool { return f.Stats().Queued == 0 })
}

func TestFullTableEndsTheOldestUnboundConnection(t *testing.T) {
	f, _ := newStreamFront(t, Streams{Connections: 4, Unbound: 3, PerSource: 3})
	w := connect(t, f, p1)
	phone, flow := bound(t, f, w)
	from := func(ip string) *caller {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		c, err := d.Dial("tcp", f.Addr('p').String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return newCaller(t, c)
	}
	first := from("127.0.0.2")
	eventually(t, "the first one is there", func() bool { return f.Stats().Connections == 2 })
	for i := 3; i < 6; i++ {
		from(fmt.Sprint("127.0.0.", i))
		eventually(t, "it is there", func() bool { return f.Stats().Accepted == uint64(i) })
	}
	first.closed()
	// A source that has its share gets no more, whoever else has how many.
	for range 2 {
		from("127.0.0.9")
	}
	eventually(t, "they are there", func() bool { return f.Stats().Accepted == 7 })
	from("127.0.0.9")
	eventually(t, "it is there", func() bool { return f.Stats().Accepted == 8 })
	if c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}).Dial("tcp", f.Addr('p').String()); err == nil {
		newCaller(t, c).closed()
		c.Close()
	}
	phone.write(message("INVITE sip:bob@ims.test SIP/2.0"))
	if s := w.next(t); s.Flow != flow {
		t.Errorf("over %v", s.Flow)
	}
	s := f.Stats()
	if s.Connections != 4 || s.Unbound != 3 || s.Ended["evicted"] != 4 || s.Ended["source-full"] != 1 {
		t.Errorf("%+v", s)
	}
}

func TestTokensAndEntriesOverTCP(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	w := connect(t, f, s1)
	c := dialFront(t, f.Addr('s'))
	c.write(message("BYE sip:x@127.0.0.9 SIP/2.0", "Route: <sip:"+seal(t, token.Dialog, s1)+"@127.0.0.1;lr>"))
	if s := w.next(t); s.Entry != 's' || s.To != s1 || s.Flow.Transport != sipmsg.TCP {
		t.Errorf("%+v", s)
	}
}
