package acceptance

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

// closedByPeer sends bytes over a connection of its own, in pieces of a size,
// and returns what came before the core closed it.
func (p *parties) closedByPeer(t *testing.T, raw string, piece int) string {
	t.Helper()
	w := dialWire(t, p.addr(3), p.n.P())
	go func() {
		for len(raw) > 0 {
			n := min(piece, len(raw))
			if _, err := w.conn.Write([]byte(raw[:n])); err != nil {
				return // the core has closed it
			}
			raw = raw[n:]
		}
	}()
	return w.closed(t, 30*time.Second)
}

// Bug class 2 (sipgo GHSA-pg59-5vwg-4jxq): a Content-Length of 4 GB on a stream
// reserves no memory: it is answered 400 or 513 and the connection is closed.
func TestBugClass02ContentLengthOf4GB(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug02", "TCP", "TCP", always(200))
	before := rss(t, p.n)
	for _, length := range []string{"4294967295", "4294967296", "4294967294", "2147483647", "2147483648", "9223372036854775807", "18446744073709551616", "65536000"} {
		w := dialWire(t, p.addr(3), p.n.P())
		head := strings.Join(append(w.request("INVITE", p.peer, "x"), "Content-Length: "+length), "\r\n") + "\r\n\r\n"
		w.send(t, head)
		if got := w.closed(t, 10*time.Second); !strings.HasPrefix(got, "SIP/2.0 400 ") && !strings.HasPrefix(got, "SIP/2.0 513 ") {
			t.Errorf("Content-Length %s is answered %.200q", length, got)
		}
	}
	for name, b := range before {
		if after := rss(t, p.n)[name]; after > b+200<<20 { // other tests run at the same time
			t.Errorf("the %s process grew from %d to %d MB", name, b>>20, after>>20)
		}
	}
	p.survived(t)
}

// Bug class 3 (sipgo commit 769e4bc): no WebSocket is served yet: a frame of
// one, with whatever length it claims, is not SIP and ends its connection.
func TestBugClass03WebSocketFrames(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug03", "TCP", "UDP", always(200))
	for _, frame := range []string{
		"\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff", "\x81\x7e\xff\xff", "\x88\x80\x00\x00\x00\x00", "\x01\x00",
	} {
		if got := p.closedByPeer(t, frame+strings.Repeat("x", 2000)+"\r\n\r\n", 4096); strings.HasPrefix(got, "SIP/2.0 2") {
			t.Errorf("frame % x is answered %q", frame, got)
		}
	}
	p.survived(t)
}

// Bug class 12 (OpenSIPS CVE-2023-28097): a huge Content-Length with an odd
// Request-URI is answered 400 over UDP, and over TCP the connection is closed.
func TestBugClass12HugeLengthAndOddURI(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug12", "UDP", "UDP", always(200))
	s := p.stranger(t, 4)
	for _, uri := range []string{"sip:", "sip:%@" + domain, "sip:a@" + domain + ";=", "sip:a@[::1", "sip:" + strings.Repeat("a", 5000), "x", "sip:a@b?c"} {
		for _, length := range []string{"4294967295", "2147483648", "-2147483648", "99999999999999999999999"} {
			l := append(s.request("MESSAGE", uri, "x"), "Content-Length: "+length)
			raw := strings.Join(l, "\r\n") + "\r\n\r\n"
			refused(t, s, raw, 400)
		}
		w := dialWire(t, p.addr(3), p.n.P())
		w.send(t, strings.Join(append(w.request("MESSAGE", uri, "x"), "Content-Length: 4294967295"), "\r\n")+"\r\n\r\n")
		w.closed(t, 10*time.Second)
	}
	p.survived(t)
}

// Bug class 18 (Asterisk CVE-2018-7286): connections that break off in bulk, in
// the middle of a message or while an answer is under way, do no harm to others.
func TestBugClass18AbruptCloses(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug18", "TCP", "TCP", always(200))
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for k := range 60 {
				c, err := net.DialTimeout("tcp", p.n.P().String(), 5*time.Second)
				if err != nil {
					t.Errorf("connection %d: %v", k, err)
					return
				}
				w := &wire{transport: "TCP", conn: c, to: p.n.P(), local: c.LocalAddr().String(), number: 1000*i + k}
				raw := text(w.request([]string{"REGISTER", "INVITE", "OPTIONS"}[k%3], "sip:"+domain, "x"), sdp)
				if k%2 == 0 {
					raw = raw[:k*len(raw)/60]
				}
				_, _ = c.Write([]byte(raw))
				_ = c.(*net.TCPConn).SetLinger(0) // a reset instead of an end
				c.Close()
			}
		})
	}
	for range 10 {
		p.deliver(t, text(p.caller.initial("MESSAGE", p.peer), "meanwhile"))
	}
	wg.Wait()
	p.survived(t)
}

// Bug class 19 (Asterisk CVE-2018-17281): a WebSocket upgrade with crafted
// headers is no SIP: the connection ends, at the SIP entry and at the port of
// the metrics, which upgrades nothing.
func TestBugClass19WebSocketUpgrades(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug19", "TCP", "UDP", always(200))
	for _, more := range []string{
		"Sec-WebSocket-Protocol: " + strings.Repeat("sip,", 15_000), "Sec-WebSocket-Key: ", strings.TrimSuffix(strings.Repeat("Sec-WebSocket-Extensions: x;y=z\r\n", 2000), "\r\n"), "Connection: Upgrade",
	} {
		get := "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + more + "\r\n\r\n"
		if got := p.closedByPeer(t, get, 1<<16); strings.Contains(got, " 101 ") {
			t.Errorf("upgraded: %.200q", got)
		}
		req, err := http.NewRequestWithContext(within(t, 5*time.Second), http.MethodGet, p.n.HTTP()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Upgrade", "websocket")
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Sec-WebSocket-Protocol", strings.Repeat("sip,", 15_000))
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			if resp.StatusCode == http.StatusSwitchingProtocols {
				t.Error("the port of the metrics upgrades")
			}
			resp.Body.Close()
		}
	}
	p.survived(t)
}

// Bug class 26 (pjsip CVE-2020-15260): a connection is used for the phone that
// registered over it and nobody else: a user whose contact names another's
// connection is reached over the own flow. (No TLS is served yet, so there is
// no certificate to compare.)
func TestBugClass26ConnectionOfAnother(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug26", "UDP", "UDP", always(200))
	victim := dialWire(t, p.addr(3), p.n.P())
	victim.register(t, subscribe(t, p.c, "bug26x", 1)[0])
	seen := victim.serve(t, always(200))
	sly := newWire(t, p.addr(4), p.n.P())
	user := subscribe(t, p.c, "bug26y", 1)[0]
	for _, contact := range []string{"sip:x@" + victim.local + ";transport=tcp", "sip:x@" + victim.local} {
		a := sly.registration(t, user, "SHA-256", "Contact: <"+contact+">", "Expires: 600")
		if a.status != 200 {
			t.Fatalf("registered with %d", a.status)
		}
		sly.user = user
		request := text(p.caller.initial("MESSAGE", "sip:"+user+"@"+domain), "for sly")
		p.caller.send(t, request)
		got := ""
		for end := time.Now().Add(10 * time.Second); !strings.HasPrefix(got, "MESSAGE ") && time.Now().Before(end); {
			got = sly.receive(t, time.Second)
		}
		m, err := sipmsg.Parse([]byte(got))
		if err != nil {
			t.Fatalf("came to the flow that registered: %q", got)
		}
		sly.send(t, sly.reply(m, 200))
	}
	seen.none(t, "MESSAGE")
	p.survived(t)
}

// Bug class 32 (drachtio CVE-2022-47515, resiprocate CVE-2018-12584): a giant
// message on a stream, in large or in small pieces, with or without an end of
// its headers, is answered 400, 413 or 513 at most, and ends its connection.
func TestBugClass32GiantStreamMessages(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug32", "TCP", "TCP", always(200))
	before := rss(t, p.n)
	start := strings.Join(p.caller.request("MESSAGE", p.peer, "x"), "\r\n") + "\r\n"
	for name, raw := range map[string]string{
		"one header of 4 MB":             start + "X: " + strings.Repeat("x", 4<<20),
		"headers without end":            start + strings.Repeat("X: y\r\n", 300_000),
		"a body of 4 MB":                 start + "Content-Length: 4194304\r\n\r\n" + strings.Repeat("x", 4<<20),
		"a line without end":             strings.Repeat("x", 1<<20),
		"line ends and then no message":  strings.Repeat("\r\n", 10) + strings.Repeat("x", 1<<20),
		"a length at the limit":          start + fmt.Sprintf("Content-Length: %d\r\n\r\n", sipmsg.MaxSize) + strings.Repeat("x", 1<<20),
		"a length that wraps around":     start + "Content-Length: 18446744073709551615\r\n\r\n" + strings.Repeat("x", 1<<20),
		"folded lines without end":       start + "X: y" + strings.Repeat("\r\n z", 300_000),
		"nothing but colons and NULs":    start + strings.Repeat(":\x00", 1<<19),
		"many requests and then garbage": strings.Repeat("OPTIONS sip:x SIP/2.0\r\n\r\n", 10) + strings.Repeat("\xff", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			for _, piece := range []int{1 << 16, 1000} {
				if got := p.closedByPeer(t, raw, piece); strings.HasPrefix(got, "SIP/2.0 2") {
					t.Errorf("answered %.100q", got)
				}
			}
		})
	}
	for name, b := range before {
		if after := rss(t, p.n)[name]; after > b+200<<20 { // other tests run at the same time
			t.Errorf("the %s process grew from %d to %d MB", name, b>>20, after>>20)
		}
	}
	p.survived(t)
}

// Bug class 33 (FreeSWITCH CVE-2021-41145): a flood of requests, responses and
// connections from many sources leaves the memory where it was and the service
// going on; TestServiceGoesOnDuringAFlood and the tests of bad input measure it
// at length.
func TestBugClass33FloodsExhaustNoMemory(t *testing.T) {
	s := besiege(t, "bug33")
	s.endure(t,
		func(w *wire) string { return text(w.request("INVITE", s.peer, "flood"), sdp) },
		func(w *wire) string { return text(w.request("REGISTER", "sip:"+domain, "flood"), "") },
		func(w *wire) string { return text(w.request("OPTIONS", s.entry, "flood"), "") },
		func(w *wire) string { return "SIP/2.0 200 OK\r\n\r\n" },
	)
}
