package acceptance

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

var siegeMu sync.Mutex // one siege at a time, or nobody knows whose memory it is

// siege is a cluster of one node that is sent bad input, by strangers and by a
// registered phone, while two others go on to talk.
type siege struct {
	*parties
	insider *wire
}

func besiege(t *testing.T, prefix string) *siege {
	t.Helper()
	t.Parallel()
	siegeMu.Lock()
	t.Cleanup(siegeMu.Unlock)
	besieged.once.Do(func() { besieged.c, besieged.err = launch(filepath.Join(tmp, "besieged"), alone, nil) })
	if besieged.err != nil {
		t.Fatal(besieged.err)
	}
	n := besieged.c.Nodes[0]
	s := &siege{parties: partiesAt(t, besieged.c, n, n, prefix, "UDP", "UDP", func(m *sipmsg.Message) []int {
		if m.Method() == "INVITE" {
			return []int{488}
		}
		return []int{200}
	})}
	s.insider = newWire(t, s.addr(3), n.P())
	s.insider.register(t, subscribe(t, besieged.c, unique(prefix+"x", s.addr), 1)[0])
	return s
}

// most is how much a process may grow by a siege: a registered phone that sends
// 400 requests of 64 kB has them kept at five hops until their transactions end
// after 32 s, and the collector lets as much again pile up before it runs. What
// the strangers send, five times as much, does not fit in.
const most = 2 * 400 * 5 * sipmsg.MaxSize

// endure sends the kinds of messages in turn, 50 from each of 40 strangers and
// 400 from the insider; meanwhile the two phones send messages to each other,
// and none may be lost. It logs and bounds the memory of both processes.
func (s *siege) endure(t *testing.T, kinds ...func(w *wire) string) {
	t.Helper()
	attack := func(w *wire, count int) {
		for i := range count {
			w.to = netip.AddrPortFrom(s.n.Address, []uint16{5060, 5060, 4060, 6060}[i/len(kinds)%4])
			w.send(t, kinds[i%len(kinds)](w))
			if i%10 == 9 {
				<-time.After(4 * time.Millisecond)
			}
		}
		w.to = s.n.P()
	}
	warm := newWire(t, s.addr(4), s.n.P())
	attack(warm, 50)
	alive(t, s.insider)
	before := rss(t, s.n)

	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		wg.Go(func() { attack(s.insider, 400) })
		for host := range 40 {
			w := newWire(t, s.addr(10+host), s.n.P())
			attack(w, 50)
		}
		wg.Wait()
	}()
	served := 0
	var slowest time.Duration
	for going := true; going; served++ {
		select {
		case <-done:
			going = false
		default:
		}
		begun := time.Now()
		body := fmt.Sprintf("%d", served)
		if a := s.caller.final(t, text(s.caller.initial("MESSAGE", s.peer), body)); a.status != 200 {
			t.Errorf("meanwhile a MESSAGE is answered %d:\n%s", a.status, a.raw)
		}
		slowest = max(slowest, time.Since(begun))
	}
	after := rss(t, s.n)
	for name, b := range before {
		t.Logf("%s: %d MB before, %d MB after; %d messages served meanwhile, the slowest in %v", name, b>>20, after[name]>>20, served, slowest.Round(time.Millisecond))
		if after[name] > b+most {
			t.Errorf("the %s process grew from %d to %d MB", name, b>>20, after[name]>>20)
		}
	}
	alive(t, newWire(t, s.addr(5), s.n.P()))
}

// Bad input (header bombs): 64 kB of one header, 10,000 headers and 59 kB of
// parameters are answered 400 at once, cost no memory and reach nobody.
func TestBadInputHeaderBombs(t *testing.T) {
	s := besiege(t, "bomb")
	with := func(more string) func(w *wire) string {
		return func(w *wire) string {
			l := w.request("MESSAGE", s.peer, "bomb")
			if w.serviceRoute != "" {
				l = w.initial("MESSAGE", s.peer)
			}
			return strings.Join(append(l, more), "\r\n") + "\r\n\r\n"
		}
	}
	kinds := []func(w *wire) string{
		with("X: " + strings.Repeat("x", 64_000)),
		with(strings.TrimSuffix(strings.Repeat("X: y\r\n", 10_000), "\r\n")),
		with("Contact: <sip:a@b>" + strings.Repeat(";p=q", 59_000/4)),
		with("Contact: <sip:a@b>" + strings.Repeat(";", 59_000)),
		with("Accept: " + strings.Repeat("a,", 29_000)),
		with("X-Fold: " + strings.Repeat("\r\n ", 19_000) + "x"),
		with("Subject: \"" + strings.Repeat("\\\"", 29_000)),
		with("Route: " + strings.Repeat("<sip:a@b>,", 5_900) + "<sip:a@b>"),
		with("Via: " + strings.Repeat("SIP/2.0/UDP a,", 4_000) + "SIP/2.0/UDP b"),
		with("Authorization: Digest " + strings.Repeat("a=\"b\",", 9_000) + "c=d"),
	}
	for _, i := range []int{1, 2, 3} {
		w := newWire(t, s.addr(6), s.n.P())
		begun := time.Now()
		refused(t, w, kinds[i](w), 400)
		if d := time.Since(begun); d > 2*time.Second {
			t.Errorf("bomb %d takes %v", i, d)
		}
	}
	s.endure(t, kinds...)
}

// Bad input (line ends): a bare LF, a bare CR or a NUL in the headers, and a
// request line of each, are answered 400 or by silence and reach nobody.
func TestBadInputLineEndsAndNUL(t *testing.T) {
	s := besiege(t, "ends")
	change := func(old, new string) func(w *wire) string {
		return func(w *wire) string {
			l := w.request("MESSAGE", s.peer, "ends")
			if w.serviceRoute != "" {
				l = w.initial("MESSAGE", s.peer)
			}
			return strings.Replace(text(l, ""), old, new, 1)
		}
	}
	kinds := []func(w *wire) string{
		change("\r\nFrom", "\nFrom"), change("\r\nTo", "\rTo"), change("Max-Forwards: 70", "Max-Forwards: 7\x000"), change("tag=", "tag=\x00"),
		change("\r\nCSeq", "\n\r\nCSeq"), change("Call-ID: ", "Call-ID: \r"), change("SIP/2.0\r\n", "SIP/2.0\n"), change("\r\nVia", "\r\n\nVia"),
	}
	for i, k := range kinds {
		for _, w := range []*wire{newWire(t, s.addr(6), s.n.P()), s.insider} {
			a := w.ask(t, k(w), 200*time.Millisecond)
			if a != nil && a.status != 400 {
				t.Errorf("kind %d is answered %d", i, a.status)
			}
		}
	}
	all := change("\r\n", "\n")
	kinds = append(kinds, func(w *wire) string { return strings.ReplaceAll(all(w), "\r\n", "\n") },
		func(w *wire) string { return strings.Repeat("\x00", 1000) }, func(w *wire) string { return strings.Repeat("\n", 1000) })
	s.endure(t, kinds...)
	s.callee.none(t, "INVITE")
}

// Bad input (two lengths): a second Content-Length, equal or not, is answered
// 400, and what is hidden behind a length reaches nobody.
func TestBadInputTwoLengths(t *testing.T) {
	s := besiege(t, "lens")
	hidden := "INVITE " + s.peer + " SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKhidden\r\nFrom: <sip:evil@" + domain + ">;tag=1\r\nTo: <" + s.peer + ">\r\nCall-ID: hidden\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n"
	with := func(lengths ...string) func(w *wire) string {
		return func(w *wire) string {
			l := w.request("MESSAGE", s.peer, "lens")
			if w.serviceRoute != "" {
				l = w.initial("MESSAGE", s.peer)
			}
			return strings.Join(append(l, lengths...), "\r\n") + "\r\n\r\n" + hidden
		}
	}
	kinds := []func(w *wire) string{
		with("Content-Length: 0", "Content-Length: 0"), with("Content-Length: 0", fmt.Sprintf("Content-Length: %d", len(hidden))),
		with("l: 0", "Content-Length: 1"), with("Content-Length: 0, 5"), with("Content-Length:"), with("Content-Length: +1"), with("Content-Length: 1e3"),
	}
	for _, k := range kinds {
		refused(t, s.insider, k(s.insider), 400)
	}
	s.endure(t, kinds...)
	s.callee.none(t, "INVITE")
}

// Bad input (forged tokens): routes, Vias and Request-URIs with tokens that are
// not genuine, or genuine and used by somebody else, lead nowhere.
func TestBadInputForgedTokens(t *testing.T) {
	s := besiege(t, "forg")
	genuine := s.insider.serviceRoute
	user := strings.TrimSuffix(strings.TrimPrefix(forge(genuine), "<"), ";lr>")
	route := func(r func() string) func(w *wire) string {
		return func(w *wire) string {
			return text(append(w.request("MESSAGE", s.peer, "forg"), "Route: "+r()), "")
		}
	}
	s.endure(t,
		route(func() string { return forge(genuine) }),
		route(func() string { return genuine }),
		route(func() string { return fmt.Sprintf("<sip:%016x%016x@%s;lr>", rand.Uint64(), rand.Uint64(), s.n.P()) }),
		route(func() string { return strings.Repeat(forge(genuine)+",", 50) + genuine }),
		func(w *wire) string { return text(w.request("MESSAGE", user, "forg"), "") },
		func(w *wire) string { // a response
			l := w.request("MESSAGE", s.peer, "forg")
			token := strings.TrimPrefix(user[:strings.IndexByte(user, '@')], "sip:")
			l[0], l[1] = "SIP/2.0 200 OK", fmt.Sprintf("Via: SIP/2.0/UDP %s;branch=z9hG4bK%s.%x\r\nVia: SIP/2.0/UDP 192.0.2.1", w.to, token, rand.Uint64())
			return text(l, "")
		},
	)
}

// Bad input (loops): routes and Vias that name the core itself, once or a
// hundred times, end: with an answer, with 482 or 483, or with nothing.
func TestBadInputRouteAndViaLoops(t *testing.T) {
	s := besiege(t, "loop")
	self := "<sip:" + s.n.P().String() + ";lr>"
	entries := []string{self, fmt.Sprintf("<sip:%s:4060;lr>", s.n.Address), fmt.Sprintf("<sip:%s:6060;lr>", s.n.Address), "<sip:" + domain + ";lr>"}
	request := func(method, uri string, change func(w *wire, l []string) []string) func(w *wire) string {
		return func(w *wire) string {
			l := w.request(method, uri, "loop")
			if w.serviceRoute != "" {
				l = w.initial(method, uri)
			}
			return text(change(w, l), "")
		}
	}
	routes := func(r string) func(w *wire, l []string) []string {
		return func(w *wire, l []string) []string { return append(stripped(l, "Route"), "Route: "+r) }
	}
	kinds := []func(w *wire) string{
		request("MESSAGE", s.peer, routes(strings.Repeat(self+",", 100)+self)),
		request("MESSAGE", s.entry, routes(strings.Join(entries, ","))),
		request("OPTIONS", s.entry, routes(strings.Repeat(strings.Join(entries, ",")+",", 20)+self)),
		request("INVITE", s.entry, routes(self)),
		request("MESSAGE", "sip:x@"+s.n.P().String(), routes(self)),
		request("MESSAGE", s.peer, func(w *wire, l []string) []string {
			return append(l[:1:1], append([]string{fmt.Sprintf("Via: SIP/2.0/UDP %s;branch=z9hG4bKself%d", s.n.P(), rand.Uint64())}, l[1:]...)...)
		}),
		request("MESSAGE", s.peer, func(w *wire, l []string) []string {
			l[1] = fmt.Sprintf("Via: SIP/2.0/UDP %s;branch=z9hG4bKself%d;rport", s.n.P(), rand.Uint64())
			return append(l, slices.Repeat([]string{"Via: SIP/2.0/UDP " + s.n.P().String() + ";branch=z9hG4bKx"}, 90)...)
		}),
		request("REGISTER", "sip:"+domain, func(w *wire, l []string) []string { return append(l, "Route: "+strings.Repeat(self+",", 60)+self) }),
		request("REGISTER", "sip:"+domain, func(w *wire, l []string) []string {
			return append(stripped(l, "Contact"), "Contact: <"+s.entry+">", "Path: "+self)
		}),
	}
	s.endure(t, kinds...)
}

// Bad input (spoofed identities): P-Asserted-Identity and the like, in any
// letter case, doubled, folded or with white space, never reach a phone; the
// identity that does is the sender's own.
func TestBadInputSpoofedIdentity(t *testing.T) {
	s := besiege(t, "spoof")
	any := func(name string) string {
		b := []byte(name)
		for i := range b {
			if rand.IntN(2) == 0 && b[i] >= 'A' {
				b[i] ^= 0x20
			}
		}
		return string(b)
	}
	spoof := func(w *wire) string {
		l := w.request("MESSAGE", s.peer, "boss")
		if w.serviceRoute != "" {
			l = w.initial("MESSAGE", s.peer)
		}
		for _, name := range []string{"P-Asserted-Identity", "P-Served-User", "P-Preferred-Identity", "P-Profile-Key"} {
			l = append(l, any(name)+strings.Repeat(" ", rand.IntN(3))+": <sip:boss@"+domain+">", any(name)+":\r\n <sip:boss@"+domain+">")
		}
		return text(l, "spoofed")
	}
	s.endure(t, spoof)
	seen := 0
	for {
		select {
		case raw := <-s.callee.requests:
			if !strings.HasSuffix(raw, "spoofed") {
				continue
			}
			seen++
			m, _ := sipmsg.Parse([]byte(raw))
			if v := value(m, sipmsg.PAssertedIdentity); v != "<sip:"+s.insider.user+"@"+domain+">" || strings.Contains(raw, "boss@") {
				t.Fatalf("asserted is %q:\n%s", v, raw)
			}
			continue
		default:
		}
		break
	}
	if seen == 0 {
		t.Error("nothing came through at all")
	}
}

// Bad input (schemes): tel and unknown schemes where an address may stand are
// answered, and nothing is looked up or sent for them.
func TestBadInputSchemes(t *testing.T) {
	s := besiege(t, "scheme")
	uris := []string{
		"tel:+4930123456", "tel:", "tel:x", "tel:110;phone-context=" + domain, "tel:" + strings.Repeat("1", 5000), "nobodyknows:x", "http://192.0.2.1/", "mailto:a@b",
		"urn:service:sos", "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "sips:a@" + domain, "im:a@b", "pres:a@b", ":", "x", "sip:", "sip:@", "javascript:alert(1)", "file:///etc/passwd",
	}
	var kinds []func(w *wire) string
	for i, uri := range uris {
		for line, as := range []string{"", "", "From: <" + uri + ">;tag=1", "To: <" + uri + ">", "Contact: <" + uri + ">", "Route: <" + uri + ">", "Record-Route: <" + uri + ">"} {
			if line == 1 {
				continue
			}
			kinds = append(kinds, func(w *wire) string {
				method, to := []string{"MESSAGE", "INVITE", "REGISTER"}[i%3], s.peer
				if line == 0 {
					to = uri
				}
				l := w.request(method, to, "scheme")
				if w.serviceRoute != "" {
					l = w.initial(method, to)
				}
				switch line {
				case 0:
				case 2, 3:
					l[line] = as
				case 4:
					l = append(stripped(l, "Contact"), as)
				default:
					l = append(l[:7:7], append([]string{as}, l[7:]...)...)
				}
				return text(l, "")
			})
		}
	}
	for _, uri := range []string{"nobodyknows:x", "http://192.0.2.1/", "mailto:a@b", "javascript:alert(1)"} {
		refused(t, s.insider, text(s.insider.initial("MESSAGE", uri), ""), 416)
	}
	refused(t, s.insider, text(s.insider.initial("MESSAGE", "tel:+4930123456"), ""), 404)
	s.endure(t, kinds...)
}

// Bad input (SDP bombs): session descriptions of 60 kB, with thousands of
// lines, streams or attributes, cost what their bytes cost, and the phone gets
// them as they are.
func TestBadInputSDPBombs(t *testing.T) {
	s := besiege(t, "sdp")
	bodies := []string{
		"v=0\r\n" + strings.Repeat("m=audio 1 RTP/AVP 0\r\n", 2700), "v=0\r\n" + strings.Repeat("a=\r\n", 14_000), strings.Repeat("\n", 58_000),
		"v=0\r\nm=audio 1 RTP/AVP " + strings.Repeat("0 ", 28_000), "v=0\r\nc=IN IP4 " + strings.Repeat("1", 58_000),
	}
	var kinds []func(w *wire) string
	for _, body := range bodies {
		kinds = append(kinds, func(w *wire) string {
			l := w.request("INVITE", s.peer, "sdp")
			if w.serviceRoute != "" {
				l = w.initial("INVITE", s.peer)
			}
			return text(append(l, "Content-Type: application/sdp"), body)
		})
		a := s.insider.final(t, kinds[len(kinds)-1](s.insider))
		if a.status != 488 {
			t.Errorf("answered %d %s", a.status, a.Reason())
		}
		if m, _ := s.callee.take(t, "INVITE"); string(m.Body()) != body {
			t.Errorf("the body came otherwise: %d bytes, sent %d", len(m.Body()), len(body))
		}
	}
	s.endure(t, kinds...)
}
