package acceptance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

// Bug class 21 (Asterisk CVE-2019-18790): no request without credentials, from
// whatever address, changes where a registered phone is reached.
func TestBugClass21UnauthenticatedRebinding(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug21", "UDP", "UDP", always(200))
	thief := p.stranger(t, 3)
	user := p.callee.w.user
	for _, method := range []string{"REGISTER", "OPTIONS", "MESSAGE", "INVITE", "NOTIFY", "PUBLISH"} {
		for _, uri := range []string{"sip:" + domain, p.entry, p.peer} {
			if a := thief.final(t, text(append(thief.request(method, uri, user), "Expires: 600"), "")); a.status == 200 && method != "OPTIONS" {
				t.Errorf("%s %s is answered 200", method, uri)
			}
		}
	}
	p.survived(t)
	for {
		got := thief.receive(t, 100*time.Millisecond)
		if got == "" {
			break
		}
		if !strings.HasPrefix(got, "SIP/2.0 ") {
			t.Errorf("came to the thief: %.200q", got)
		}
	}
}

// Bug class 22 (Asterisk CVE-2020-28242): challenges end. The core answers none
// itself: what the called phone asks for goes to the caller, once; and wrong
// credentials are answered once each.
func TestBugClass22EndlessChallenges(t *testing.T) {
	t.Parallel()
	challenge := func(m *sipmsg.Message) []int {
		if m.Method() == "INVITE" {
			return []int{407}
		}
		return []int{200}
	}
	p := newParties(t, "bug22", "UDP", "UDP", challenge)
	for range 5 {
		refused(t, p.caller, text(p.caller.initial("INVITE", p.peer), ""), 407)
		p.callee.take(t, "INVITE")
		p.callee.none(t, "INVITE")
	}
	s := p.stranger(t, 3)
	user := subscribe(t, sharedCluster(t), "bug22x", 1)[0]
	a := s.final(t, text(s.request("REGISTER", "sip:"+domain, user), ""))
	for range 5 {
		auth := strings.Replace(s.authorize(t, a, user, "SHA-256"), `response="`, `response="0`, 1)
		b := s.final(t, text(append(s.request("REGISTER", "sip:"+domain, user), auth), ""))
		if b.status != 401 && b.status != 403 && b.status != 400 {
			t.Fatalf("wrong credentials are answered %d", b.status)
		}
		if b.status == 401 {
			a = b
		}
	}
	if got := s.receive(t, 200*time.Millisecond); got != "" {
		t.Errorf("came without a question: %.200q", got)
	}
	p.survived(t)
}

// Bug class 23 (Asterisk CVE-2024-42491): a host such as .1 in Contact, Via,
// Route or Record-Route is never looked up: it is refused, or carried along.
func TestBugClass23HostsThatAreNone(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug23", "UDP", "UDP", always(200))
	user := subscribe(t, sharedCluster(t), "bug23x", 1)[0]
	w := p.stranger(t, 3)
	for _, host := range []string{".1", ".", "..", "1..2", "-", "[.1]", ".1:5060", "a..b"} {
		if a := w.registration(t, user, "SHA-256", "Contact: <sip:x@"+host+">", "Expires: 600"); a.status != 400 {
			t.Errorf("Contact at %s is answered %d, want 400", host, a.status)
		}
		p.caller.ask(t, text(p.caller.initial("INVITE", p.peer, "Record-Route: <sip:"+host+";lr>", "Contact: <sip:x@"+host+">"), ""), 50*time.Millisecond)
		p.caller.ask(t, text(append(p.caller.request("MESSAGE", p.peer, p.caller.user), "Route: <sip:"+host+";lr>"), ""), 50*time.Millisecond)
		refused(t, p.caller, text(p.caller.initial("MESSAGE", "sip:x@"+host), ""), 400)
	}
	q := newParties(t, "bug23b", "UDP", "UDP", always(200))
	q.survived(t)
}

// Bug class 24 (Asterisk CVE-2025-47779): a MESSAGE whose From is somebody else
// is asserted to come from the one who registered; one that claims a dialog
// that does not exist reaches nobody.
func TestBugClass24FromIsNotTheSender(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug24", "UDP", "UDP", always(200))
	third := subscribe(t, sharedCluster(t), "bug24x", 1)[0]
	for _, from := range []string{third + "@" + domain, "nobody@" + domain, "boss@example.com", p.callee.w.user + "@" + domain} {
		l := p.caller.initial("MESSAGE", p.peer, "P-Preferred-Identity: <sip:"+from+">")
		l[2] = "From: \"Boss\" <sip:" + from + ">;tag=1"
		m, raw := p.deliver(t, text(l, ""))
		if v := value(m, sipmsg.PAssertedIdentity); v != "<sip:"+p.caller.user+"@"+domain+">" {
			t.Errorf("asserted is %q:\n%s", v, raw)
		}
	}
	l := p.caller.initial("MESSAGE", p.peer)
	l[2], l[3] = "From: <sip:"+third+"@"+domain+">;tag=1", "To: <"+p.peer+">;tag=invented"
	if a := p.caller.final(t, text(l, "")); a.status != 403 && a.status != 481 {
		t.Errorf("a MESSAGE in a dialog that does not exist is answered %d", a.status)
	}
	p.callee.none(t, "MESSAGE")
	p.survived(t)
}

// Bug class 25 (Asterisk CVE-2025-57767): credentials for a realm that nobody
// challenged count as none: a REGISTER is challenged, other requests go on.
func TestBugClass25CredentialsForAnotherRealm(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug25", "UDP", "UDP", always(200))
	s := p.stranger(t, 3)
	user := subscribe(t, sharedCluster(t), "bug25x", 1)[0]
	a := s.final(t, text(s.request("REGISTER", "sip:"+domain, user), ""))
	foreign := strings.Replace(s.authorize(t, a, user, "SHA-256"), `realm="`+domain, `realm="elsewhere.test`, 1)
	b := refused(t, s, text(append(s.request("REGISTER", "sip:"+domain, user), foreign), ""), 401)
	if !strings.Contains(value(&b.Message, sipmsg.WWWAuthenticate), `realm="`+domain+`"`) {
		t.Errorf("challenged by\n%s", b.raw)
	}
	p.deliver(t, text(p.caller.initial("MESSAGE", p.peer, foreign, "Proxy-"+foreign), ""))
	p.survived(t)
}

// Bug class 27 (pjsip CVE-2022-21723): a broken multipart body comes to the
// phone byte for byte.
func TestBugClass27BrokenMultipart(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug27", "UDP", "UDP", always(200))
	for _, contentType := range []string{"multipart/mixed", "multipart/mixed;boundary=", "multipart/mixed;boundary=\"", "multipart/mixed;boundary=x", "multipart/;boundary=" + strings.Repeat("x", 3000)} {
		for _, body := range []string{"", "--", "--x", "--x\r\n", "--x\r\nContent-Type:", "--x--", strings.Repeat("--x\r\n", 5000), "--x\r\n\x00\r\n--x--\r\n\r"} {
			m, _ := p.deliver(t, text(p.caller.initial("MESSAGE", p.peer, "Content-Type: "+contentType), body))
			if string(m.Body()) != body {
				t.Errorf("%s: came as %.80q, sent %.80q", contentType, m.Body(), body)
			}
		}
	}
	p.survived(t)
}

// Bug class 28 (pjsip CVE-2022-23608): two phones of a user answer a call at
// once: both answers reach the caller, and each dialog is ended on its own.
func TestBugClass28ForkedDialogs(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug28", "UDP", "UDP", always(180, 200))
	w := newWire(t, p.addr(3), p.n.P())
	w.register(t, p.callee.w.user)
	second := w.serve(t, always(180, 200))
	tags := map[string]bool{}
	for range 3 {
		invite := text(p.caller.initial("INVITE", p.peer), sdp)
		p.caller.send(t, invite)
		ended := map[string]bool{}
		want := 1 // the other phone may be cancelled before it answers
		for end := time.Now().Add(3 * time.Second); len(ended) < 2 && (len(ended) < want || time.Now().Before(end)); {
			a := p.caller.await(t, invite, 500*time.Millisecond)
			if a == nil || ended[a.ToTag()] {
				continue
			}
			if a.status != 200 {
				t.Fatalf("answered %d", a.status)
			}
			ended[a.ToTag()], tags[a.ToTag()] = true, true
			for _, method := range []string{"ACK", "BYE"} {
				p.caller.send(t, p.caller.inDialog(a, method))
			}
		}
		for _, c := range []*callee{p.callee, second} {
			select { // whoever was asked is told the end, or never had a call
			case <-c.requests:
			default:
			}
		}
	}
	if len(tags) == 0 {
		t.Error("no call was answered")
	}
	p.survived2(t, second)
}

// survived2 is survived where two phones are registered.
func (p *parties) survived2(t *testing.T, second *callee) {
	t.Helper()
	request := text(p.caller.initial("MESSAGE", p.peer), "probe")
	if a := p.caller.final(t, request); a.status != 200 {
		t.Errorf("the probe is answered %d", a.status)
	}
	for _, c := range []*callee{p.callee, second} {
		for m, _ := c.take(t, "MESSAGE"); string(m.Body()) != "probe"; m, _ = c.take(t, "MESSAGE") {
		}
	}
}

// inDialog is a request of the caller in the dialog that a 2xx began.
func (w *wire) inDialog(a *answer, method string) string {
	w.number++
	num, _ := a.CSeq()
	if method != "ACK" {
		num++
	}
	uri := "sip:gone@" + domain
	if c, err := sipmsg.ParseNameAddr(value(&a.Message, sipmsg.Contact)); err == nil {
		uri = c.URI
	}
	routes := slices.Collect(a.Elements(sipmsg.RecordRoute))
	slices.Reverse(routes)
	return text([]string{
		method + " " + uri + " SIP/2.0",
		fmt.Sprintf("Via: SIP/2.0/%s %s;branch=z9hG4bK-%d;rport", w.transport, w.local, w.number),
		"From: " + value(&a.Message, sipmsg.From),
		"To: " + value(&a.Message, sipmsg.To),
		"Call-ID: " + a.CallID(),
		fmt.Sprintf("CSeq: %d %s", num, method),
		"Max-Forwards: 70",
		"Route: " + strings.Join(routes, ", "),
	}, "")
}

// Bug class 29 (pjsip CVE-2022-24754): oversized values in credentials and in a
// phone's challenge register nobody and break nothing.
func TestBugClass29OversizedDigest(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug29", "UDP", "UDP", always(200))
	s := p.stranger(t, 3)
	user := subscribe(t, sharedCluster(t), "bug29x", 1)[0]
	long := strings.Repeat("x", 12_000)
	for _, field := range []string{"username", "realm", "nonce", "uri", "response", "cnonce", "opaque", "algorithm", "qop", "nc", "auts"} {
		values := map[string]string{"username": user + "@" + domain, "realm": domain, "nonce": "n", "uri": "sip:" + domain, "response": "r", "cnonce": "c", "opaque": "o", "algorithm": "SHA-256", "qop": "auth", "nc": "00000001", "auts": "a"}
		values[field] = long
		var auth []string
		for k, v := range values {
			auth = append(auth, k+`="`+v+`"`)
		}
		l := append(s.request("REGISTER", "sip:"+domain, user), "Authorization: Digest "+strings.Join(auth, ", "))
		if a := s.final(t, text(l, "")); a.status != 400 && a.status != 401 && a.status != 403 {
			t.Errorf("an oversized %s is answered %d", field, a.status)
		}
	}
	p.survived(t)
}

// Bug class 30 (pjsip CVE-2026-28799): a SUBSCRIBE with Expires 0, first or
// after another, repeated or with a dialog that ended, is answered by the phone
// or by the core, and breaks nothing.
func TestBugClass30SubscribeWithExpires0(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug30", "UDP", "UDP", always(200))
	for _, event := range []string{"reg", "presence", "dialog", ""} {
		for _, expires := range []string{"0", "600", "0", "-1", "99999999999"} {
			for _, uri := range []string{p.peer, "sip:" + p.caller.user + "@" + domain} {
				l := p.caller.initial("SUBSCRIBE", uri, "Event: "+event, "Expires: "+expires)
				request := text(l, "")
				a := p.caller.ask(t, request, 300*time.Millisecond)
				if a == nil {
					continue // the caller's own phone, this wire, does not answer
				}
				p.caller.send(t, request)
				if a.status == 200 {
					p.caller.ask(t, strings.Replace(p.caller.inDialog(a, "SUBSCRIBE"), "Max-Forwards", "Expires: 0\r\nEvent: "+event+"\r\nMax-Forwards", 1), 300*time.Millisecond)
				}
			}
		}
	}
	p.survived(t)
}

// Bug class 31 (Sofia CVE-2022-31002, CVE-2022-31003): a URI that ends with a
// percent sign or a cut escape is refused where it matters; a session
// description cut anywhere is carried.
func TestBugClass31TruncatedEscapesAndSDP(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug31", "UDP", "UDP", always(488))
	user := subscribe(t, sharedCluster(t), "bug31x", 1)[0]
	w := p.stranger(t, 3)
	for _, tail := range []string{"%", "%4", "%g0", "%%"} {
		for _, uri := range []string{"sip:a" + tail + "@" + domain, "sip:a@" + domain + ";p=" + tail, "sip:a@" + domain + tail, "tel:+1" + tail} {
			refused(t, p.caller, text(p.caller.initial("MESSAGE", uri), ""), 400)
			if a := w.registration(t, user, "SHA-256", "Contact: <"+uri+">", "Expires: 60"); a.status != 400 {
				t.Errorf("Contact %s is answered %d, want 400", uri, a.status)
			}
		}
	}
	for n := 0; n < len(sdp); n += 7 {
		refused(t, p.caller, text(p.caller.initial("INVITE", p.peer, "Content-Type: application/sdp"), sdp[:n]), 488)
	}
	q := newParties(t, "bug31b", "UDP", "UDP", always(200))
	q.survived(t)
}

// Bug class 34 (FreeSWITCH CVE-2021-37624, CVE-2021-41157): MESSAGE, SUBSCRIBE
// and the like of somebody who is not registered are answered 403, in whatever
// name they come, and reach nobody.
func TestBugClass34UnauthenticatedMessages(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug34", "UDP", "UDP", always(200))
	s := p.stranger(t, 3)
	for _, method := range []string{"MESSAGE", "SUBSCRIBE", "PUBLISH", "NOTIFY", "REFER", "INFO", "INVITE", "UPDATE", "OPTIONS"} {
		for _, from := range []string{p.caller.user, p.callee.w.user, "nobody"} {
			refused(t, s, text(append(s.request(method, p.peer, from), "Event: presence", "P-Asserted-Identity: <sip:"+from+"@"+domain+">"), ""), 403)
		}
		p.callee.none(t, method)
	}
	p.survived(t)
}
