package acceptance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

// survived proves that the core of a pair of phones goes on: somebody new
// registers, and the caller reaches the callee. What the nodes logged is
// searched for panics and data races when all tests are over.
func (p *parties) survived(t *testing.T) {
	t.Helper()
	w := newWire(t, p.addr(250), p.n.P())
	user := subscribe(t, p.c, "probe"+strings.NewReplacer(".", "").Replace(p.addr(0).String()), 1)[0]
	w.register(t, user)
	for {
		select {
		case <-p.callee.requests:
			continue
		default:
		}
		break
	}
	if a := p.caller.final(t, text(p.caller.initial("MESSAGE", p.peer), "probe")); a.status != 200 {
		t.Errorf("the probe is answered %d %s", a.status, a.Reason())
	}
	if m, _ := p.callee.take(t, "MESSAGE"); string(m.Body()) != "probe" {
		t.Errorf("the probe is %q", m.Body())
	}
}

// variants sends a request with each of the lines in the place of the one at
// an index, from a stranger and from the registered phone, and wants one of
// the statuses, silence being 0. None reaches the callee.
func (p *parties) variants(t *testing.T, method, uri string, at int, lines []string, statuses ...int) {
	t.Helper()
	s := p.stranger(t, 3)
	patience := 3 * time.Second
	if slices.Contains(statuses, 0) {
		patience = 100 * time.Millisecond
	}
	for _, w := range []*wire{s, p.caller} {
		for _, line := range lines {
			var l []string
			if w == p.caller {
				l = w.initial(method, uri)
			} else {
				l = w.request(method, uri, "stranger")
			}
			l[at] = line
			// A source gets 20 answers of the front at once; what is repeated is answered.
			a := w.ask(t, text(l, ""), patience)
			got := 0
			if a != nil {
				got = a.status
			}
			if !slices.Contains(statuses, got) {
				t.Errorf("answered %d, want one of %v, to\n%.300q", got, statuses, line)
			}
		}
	}
	p.callee.none(t, method)
}

// Bug class 1 (sipgo CVE-2025-68274): a request without To is answered 400.
func TestBugClass01NoTo(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug01", "UDP", "UDP", always(200))
	for _, method := range []string{"INVITE", "REGISTER", "OPTIONS", "MESSAGE", "BYE"} {
		for _, w := range []*wire{p.stranger(t, 3), p.caller} {
			refused(t, w, text(stripped(w.request(method, p.peer, "x"), "To"), ""), 400)
		}
	}
	s := p.stranger(t, 3)
	silent(t, s, text(stripped(s.request("ACK", p.peer, "x"), "To"), ""))
	p.survived(t)
}

// Bug class 4 (Kamailio CVE-2018-14767): two To headers, an empty To, and a To
// with an empty tag are answered 400 and reach nobody.
func TestBugClass04TwoTosAndAnEmptyTag(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug04", "UDP", "UDP", always(200))
	to := "To: <" + p.peer + ">"
	p.variants(t, "MESSAGE", p.peer, 3, []string{
		to + "\r\n" + to, to + "\r\nt: <sip:x@y>;tag=", "To:\r\n" + to, to + ";tag=\r\n" + to + ";tag=1", to + ";tag=", "To: ", "To:\r\n ;tag=",
	}, 400)
	p.survived(t)
}

// Bug class 5 (Kamailio CVE-2018-16657): an invalid Via is answered 400 where
// the way back can be read, else by silence.
func TestBugClass05InvalidVia(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug05", "UDP", "UDP", always(200))
	me := p.caller.local
	p.variants(t, "MESSAGE", p.peer, 1, []string{
		"Via: ", "Via:\r\nVia:", "Via: SIP/2.0", "Via: SIP/2.0/UDP", "Via: SIP/2.0/UDP ", "Via: SIP/2.0/UDP :", "Via: SIP/2.0/UDP ;branch=z9hG4bKx",
		"Via: SIP/2.0/UDP " + me + ":;branch", "Via: SIP/2.0/UDP [::1", "Via: SIP/2.0/UDP [;branch=z9hG4bK", "Via: ,,,,", "Via: SIP/2.0/UDP a:99999",
		"Via: SIP/2.0/UDP " + me + ";branch=\"", "Via: SIP/2.0/UDP " + me + ";;;", "Via: /////", "Via: SIP\x01/2.0/UDP x", "Via: " + strings.Repeat("SIP/", 1000),
	}, 0, 400)
	p.survived(t)
}

// Bug class 6 (Kamailio CVE-2018-8828): a REGISTER with a malformed branch or
// From tag is answered, and neither is taken for what it is not.
func TestBugClass06MalformedBranchAndTag(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug06", "UDP", "UDP", always(200))
	s := p.stranger(t, 3)
	for i, branch := range []string{"", "=", "=z9hG4bK", "=z9hG4bK.", "=" + strings.Repeat("z9hG4bK", 2000), "=\"z9hG4bK\"", "=z9hG4bK%00%ff"} {
		for _, tag := range []string{";tag", ";tag=", ";tag=\"", ";tag=%", ";tag=" + strings.Repeat("t", 9000), ";tag=a;tag=b", ";;tag=a"} {
			l := s.request("REGISTER", "sip:"+domain, p.caller.user)
			l[1] = fmt.Sprintf("Via: SIP/2.0/UDP %s;rport;branch%s", s.local, branch)
			l[2] = "From: <sip:" + p.caller.user + "@" + domain + ">" + tag
			s.send(t, text(l, ""))
			if i == 0 {
				alive(t, s)
			}
		}
	}
	for { // whatever came: no registration was granted
		got := s.receive(t, 300*time.Millisecond)
		if got == "" {
			break
		}
		if strings.HasPrefix(got, "SIP/2.0 2") && strings.Contains(got, "REGISTER") {
			t.Errorf("granted: %.500s", got)
		}
	}
	p.survived(t)
}

// Bug class 7 (Kamailio CVE-2020-27507): duplicated fields with an overlong tag
// are answered 400.
func TestBugClass07DuplicatesWithAnOverlongTag(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug07", "UDP", "UDP", always(200))
	long := strings.Repeat("0123456789abcdef", 1500)
	from, to := "From: <sip:a@"+domain+">;tag="+long, "To: <"+p.peer+">;tag="+long
	p.variants(t, "MESSAGE", p.peer, 2, []string{from + "\r\n" + from, from + "\r\n" + to, from + "\r\nf: <sip:b@c>;tag=1", from + "\r\nFrom: x"}, 400)
	p.survived(t)
}

// Bug class 8 (Kamailio CVE-2020-28361, Asterisk 2016-9938): white space or a
// control character before the colon, folding, letter case and repetition do
// not carry a header past its removal.
func TestBugClass08HeadersThatEvadeRemoval(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug08", "UDP", "UDP", always(200))
	evil := " <sip:evil@" + domain + ">"
	own := "<sip:" + p.caller.user + "@" + domain + ">"
	for _, name := range []string{"P-Asserted-Identity", "p-asserted-identity", "P-ASSERTED-identity", "P-Served-User", "P-Charging-Vector", "P-Profile-Key", "P-Called-Party-ID", "P-Associated-URI"} {
		for _, before := range []string{"", " ", "\t", " \t  \t"} {
			for _, line := range []string{name + before + ":" + evil, name + before + ":\r\n" + evil, name + before + ":" + evil + "\r\n" + name + ":" + evil + "\r\n " + evil} {
				m, raw := p.deliver(t, text(p.caller.initial("MESSAGE", p.peer, line), ""))
				if got := slices.Collect(m.Elements(sipmsg.PAssertedIdentity)); strings.Contains(raw, "evil") || !slices.Equal(got, []string{own}) {
					t.Fatalf("%q came through, asserted is %q:\n%s", line, got, raw)
				}
			}
		}
	}
	var wrong []string
	for _, before := range []string{"\x00", "\x01", "\x0b", "\x0c", "\x7f", "\xa0", "\u00a0", "\u2003", "\r", "\r\n", "\r\n ", "\n ", ";", "<"} {
		wrong = append(wrong, "Max-Forwards: 70\r\nP-Asserted-Identity"+before+":"+evil)
	}
	p.variants(t, "MESSAGE", p.peer, 6, wrong, 400)
	// The capital K of Kelvin and the long s are not letters of a name.
	m, raw := p.deliver(t, text(p.caller.initial("MESSAGE", p.peer, "X-Kelvin: 1"), ""))
	if len(slices.Collect(m.Elements(sipmsg.PAssertedIdentity))) != 1 {
		t.Errorf("asserted twice:\n%s", raw)
	}
	p.variants(t, "MESSAGE", p.peer, 6, []string{"Max-Forwards: 70\r\nP-A\u017fserted-Identity:" + evil}, 400)
	p.survived(t)
}

// Bug class 9 (Kamailio #4204): a correct request with bytes changed, cut out,
// doubled or moved at random does no harm, wherever it is.
func TestBugClass09MutatedMessages(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug09", "UDP", "UDP", always(486))
	r := rand.New(rand.NewPCG(9, 9))
	var s *wire
	for i := range 1500 {
		if i%100 == 0 { // a source that sends nothing else is banned for a while
			s = p.stranger(t, 3+i/100)
		}
		w := s
		l := s.request([]string{"INVITE", "REGISTER", "MESSAGE", "CANCEL", "ACK"}[i%5], p.peer, p.caller.user)
		if i%3 == 0 {
			w = p.caller
			l = w.initial([]string{"INVITE", "MESSAGE", "SUBSCRIBE"}[i%9/3], p.peer)
		}
		b := []byte(text(l, sdp))
		for range 1 + r.IntN(4) {
			at, n := r.IntN(len(b)), r.IntN(40)
			end := min(at+n, len(b))
			switch r.IntN(5) {
			case 0:
				b[at] = byte(r.Uint32())
			case 1:
				b = slices.Delete(b, at, end)
			case 2:
				b = slices.Insert(b, at, b[at:end]...)
			case 3:
				b = slices.Insert(b, at, []byte(strings.Repeat(string("\r\n \t;,=<>\"%\x00:@/"[r.IntN(15)]), n))...)
			case 4:
				copy(b[at:], b[r.IntN(len(b)):])
			}
			if len(b) == 0 {
				break
			}
		}
		w.send(t, string(b))
		if i%100 == 99 {
			alive(t, w)
		}
	}
	q := newParties(t, "bug09b", "UDP", "UDP", always(200))
	q.survived(t)
}

// Bug class 10 (OpenSIPS CVE-2023-27598): Vias below the first that are
// malformed are answered 400.
func TestBugClass10MalformedLowerVia(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug10", "UDP", "UDP", always(200))
	var lines []string
	for _, second := range []string{"SIP/2.0/UDP", "SIP/2.0/UDP 1.2.3.4:x", "SIP/2.0/UDP h;branch=\"", "SIP/2.0/UDP h;;", "SIP/2.0/UDP h,", ",", "SIP/2.0/UDP [1::2", "x"} {
		lines = append(lines, fmt.Sprintf("Via: SIP/2.0/UDP %s;branch=z9hG4bKlow%d;rport\r\nVia: %s", p.caller.local, len(lines), second))
	}
	p.variants(t, "MESSAGE", p.peer, 1, lines, 400)
	p.survived(t)
}

// Bug class 11 (OpenSIPS CVE-2023-27599): a malformed To is answered 400.
func TestBugClass11MalformedTo(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug11", "UDP", "UDP", always(200))
	p.variants(t, "MESSAGE", p.peer, 3, []string{
		"To: <", "To: >", "To: <sip:a@b", "To: \"a <sip:a@b>", "To: \"a\\", "To: \"\\\" <sip:a@b>", "To: <>", "To: <sip:a@b>;tag=\"x", "To: <sip:a@b> x",
		"To: a b c", "To: <sip:a@b>;=x", "To: " + strings.Repeat("<", 5000), "To: sip:a@b>;tag=x", "To: ;tag=x",
	}, 400)
	p.survived(t)
}

// Bug class 13 (OpenSIPS CVE-2023-28098): a crafted Authorization registers
// nobody: it is answered 400, 401 or 403.
func TestBugClass13CraftedAuthorization(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug13", "UDP", "UDP", always(200))
	s := p.stranger(t, 3)
	user := subscribe(t, sharedCluster(t), "bug13x", 1)[0]
	usual := fmt.Sprintf(`username="%s@%s",realm="%s",uri="sip:%s"`, user, domain, domain, domain)
	for _, auth := range []string{
		"", "Digest", "Digest ", "Digest ,,,,", "Digest =", "Digest \"", "Digest username", "Digest username=", `Digest username="`, `Digest username="\`,
		"Digest " + usual + `,nonce="`, "Digest " + usual + `,nonce="",response="`, "Digest " + usual + `,nonce=,response=,nc=,cnonce=,qop=`,
		"Digest " + usual + `,nonce="x",response="00000000000000000000000000000000",qop=auth,nc=zzzzzzzz,cnonce="a"`,
		"Digest " + usual + `,nonce="x",response="00000000000000000000000000000000",qop=auth,nc=4294967296,cnonce="a"`,
		"Digest " + usual + `,nonce="` + strings.Repeat("A", 4000) + `",response="x",algorithm=MD5`,
		"Digest " + usual + `,nonce="x",response="x",algorithm=NONE`, "Digest " + usual + `,` + usual + `,` + usual,
		"Digest " + strings.Repeat("a=b,", 3000), "Digest a" + strings.Repeat("=", 3000), "Basic YTpi", "Digest\tusername=\x01", "Digest " + usual + `,auts="AAAA",nonce="",response=""`,
	} {
		l := append(s.request("REGISTER", "sip:"+domain, user), "Authorization: "+auth)
		if a := s.final(t, text(l, "")); a.status != 400 && a.status != 401 && a.status != 403 {
			t.Errorf("%.100q is answered %d", auth, a.status)
		}
		refused(t, p.caller, text(p.caller.initial("MESSAGE", p.peer, "Proxy-Authorization: "+auth), ""), 200)
	}
	p.survived(t)
}

// Bug class 14 (OpenSIPS CVE-2023-27596): a broken session description, again
// and again, is the called phone's business and comes to it as it is.
func TestBugClass14BrokenSDP(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug14", "UDP", "UDP", always(488))
	for _, body := range []string{
		"v", "v=", "v=0\r\nm=", "v=0\r\nm=audio", "v=0\r\nm=audio 99999999999 RTP/AVP", "v=0\r\nc=IN IP4", "a=rtpmap:", "\r\n\r\n", "m=audio 1 RTP/AVP " + strings.Repeat("0 ", 5000),
		"v=0\r\n" + strings.Repeat("m=audio 1 RTP/AVP 0\r\n", 900), strings.Repeat("\x00", 500), "v=0\ro=\rs=",
	} {
		for range 3 {
			refused(t, p.caller, text(p.caller.initial("INVITE", p.peer, "Content-Type: application/sdp"), body), 488)
			if m, _ := p.callee.take(t, "INVITE"); string(m.Body()) != body {
				t.Errorf("came as %.100q, sent %.100q", m.Body(), body)
			}
		}
	}
	p2 := newParties(t, "bug14b", "UDP", "UDP", always(200))
	p2.survived(t)
}

// Bug class 15 (OpenSIPS #2338): a route token that was tampered with, made
// longer, shorter or filled with lengths, leads nowhere.
func TestBugClass15TamperedRouteTokens(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug15", "UDP", "UDP", always(200))
	own, host, _ := strings.Cut(strings.Trim(p.caller.serviceRoute, "<>"), "@")
	own = strings.TrimPrefix(own, "sip:")
	s := p.stranger(t, 3)
	for _, token := range []string{
		own[:len(own)-1], own + "a", own + own, strings.ToUpper(own), "a" + own[1:], own[:1], strings.Repeat("a", len(own)), strings.Repeat("7", 5000),
		"%ff%ff%ff%ff" + own, own[:10] + "%00" + own[10:], own + "%", "\xff\xff\xff\xff", "4294967295",
	} {
		for _, w := range []*wire{s, p.caller} {
			for _, line := range []string{"Route: <sip:" + token + "@" + host + ">", "Route: <sip:" + token + "@" + p.n.P().String() + ";lr>"} {
				a := w.ask(t, text(append(w.request("MESSAGE", p.peer, p.caller.user), line), ""), 100*time.Millisecond)
				// The P-CSCF writes the stored route over that of a registered
				// phone, so its request may well arrive.
				if a != nil && a.status == 200 && w == s {
					t.Errorf("a stranger comes in by %.60q", line)
				}
			}
		}
	}
	p.survived(t)
}

// Bug class 16 (OpenSIPS CVE-2026-45538): what a message holds of control
// characters, quotes and bytes that are no text breaks nothing that is written
// about it: the admin API gives correct JSON of a registration made of them.
func TestBugClass16TextThatBreaksJSON(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug16", "UDP", "UDP", always(200))
	nasty := "\"\\\" \\\\ { } [ ] \x01\x1f \xff\xfe \xc3\x28 \u2028 </script>\""
	user := subscribe(t, sharedCluster(t), "bug16x", 1)[0]
	w := p.stranger(t, 3)
	for _, contact := range []string{
		nasty + " <sip:%22%5C%00%ff{}@phone.example>;x=" + nasty + ";+sip.instance=\"<urn:\xff>\"",
		nasty + " <sip:%22%5C%00%ff@phone.example>;x=\"\\\" }\";+sip.instance=\"<urn:\\\"\x01\xff>\"",
		"<sip:a@phone.example>;x=\"\xff\xfe\"",
	} {
		w.registration(t, user, "SHA-256", "Contact: "+contact, "Expires: 600", "User-Agent: "+nasty)
	}
	if _, err := sharedCluster(t).Nodes[0].Admin.Status(within(t, 5*time.Second)); err != nil {
		t.Errorf("status: %v", err)
	}
	if r := bellwether(t, "", "user", "show", "sip:"+user+"@"+domain, "--socket", p.n.AdminSocket()); strings.ContainsAny(r.out, "\x01\x1f\xff") {
		t.Errorf("control characters reach the operator's terminal: %q", r.out)
	}
	p.deliver(t, text(p.caller.initial("MESSAGE", p.peer, "X-Nasty: "+nasty, "Subject: "+nasty), nasty))
	p.survived(t)
}

// Bug class 17 (Asterisk CVE-2018-7284): many Accept headers do no harm: up to
// the bound of headers they go to the phone, above it the answer is 400.
func TestBugClass17ManyAcceptHeaders(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug17", "UDP", "UDP", always(200))
	lines := slices.Repeat([]string{"Accept: application/x"}, 80)
	m, _ := p.deliver(t, text(p.caller.initial("SUBSCRIBE", p.peer, append(lines, "Event: presence")...), ""))
	if n := len(slices.Collect(m.Named("Accept"))); n != 80 {
		t.Errorf("%d came, want 80", n)
	}
	one := "Accept: " + strings.Repeat("application/x, ", 2000) + "text/plain"
	p.deliver(t, text(p.caller.initial("SUBSCRIBE", p.peer, one, "Event: presence"), ""))
	refused(t, p.caller, text(p.caller.initial("SUBSCRIBE", p.peer, slices.Repeat(lines, 2)...), ""), 400)
	p.survived(t)
}
