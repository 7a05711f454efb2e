package acceptance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

// Check 01 (RFC 3261 §16.3): a request with Max-Forwards 0 is answered 483 with
// a To tag, by the first hop or by the one that its hops end at, and reaches no
// phone.
func TestCheck01NoHopLeftIsAnswered483(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk01", "UDP", "UDP", always(200))
	for left := range hops {
		l := p.caller.initial("MESSAGE", p.peer)
		l[6] = fmt.Sprintf("Max-Forwards: %d", left)
		a := refused(t, p.caller, text(l, ""), 483)
		if a.ToTag() == "" {
			t.Errorf("with Max-Forwards %d the 483 has no To tag:\n%s", left, a.raw)
		}
	}
	l := p.caller.initial("INVITE", p.peer)
	l[6] = "Max-Forwards: 0"
	if a := refused(t, p.caller, text(l, ""), 483); a.ToTag() == "" {
		t.Errorf("the 483 to INVITE has no To tag:\n%s", a.raw)
	}
	p.callee.none(t, "MESSAGE")
	p.callee.none(t, "INVITE")
}

// Check 02 (RFC 3261 §16.6): a hop that gets Max-Forwards 1 forwards it as 0:
// what starts with as many as there are hops reaches the phone with 0.
func TestCheck02LastHopIsForwardedWithZero(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk02", "UDP", "UDP", always(200))
	l := p.caller.initial("MESSAGE", p.peer)
	l[6] = fmt.Sprintf("Max-Forwards: %d", hops)
	m, raw := p.deliver(t, text(l, ""))
	if n, ok := m.MaxForwards(); n != 0 || !ok {
		t.Errorf("Max-Forwards is %d, want 0:\n%s", n, raw)
	}
}

// Check 03 (RFC 3261 §16.6): the first hop adds Max-Forwards 70 where there is
// none; the other hops count it down.
func TestCheck03MissingMaxForwardsIsAdded(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk03", "UDP", "UDP", always(200))
	m, raw := p.deliver(t, text(without(6)(p.caller.initial("MESSAGE", p.peer)), ""))
	if n, ok := m.MaxForwards(); n != 70-(hops-1) || !ok {
		t.Errorf("Max-Forwards is %d, want %d:\n%s", n, 70-(hops-1), raw)
	}
}

// Check 06 (RFC 3261 §16.3): Proxy-Require with an unknown option is answered
// 420 that names it in Unsupported; Require is the business of the phone that
// is called.
func TestCheck06ProxyRequireIsOursAndRequireIsNot(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk06", "UDP", "UDP", always(200))
	a := refused(t, p.caller, text(p.caller.initial("MESSAGE", p.peer, "Proxy-Require: foo"), ""), 420)
	if v := value(&a.Message, sipmsg.Unsupported); v != "foo" {
		t.Errorf("Unsupported is %q, want foo", v)
	}
	s := p.stranger(t, 3)
	a = refused(t, s, text(append(s.request("REGISTER", "sip:"+domain, "x"), "proxy-require: foo, bar"), ""), 420)
	if v := value(&a.Message, sipmsg.Unsupported); v != "foo, bar" {
		t.Errorf("Unsupported is %q, want foo, bar", v)
	}
	m, raw := p.deliver(t, text(p.caller.initial("MESSAGE", p.peer, "Require: foo"), ""))
	if v := value(m, sipmsg.Require); v != "foo" {
		t.Errorf("Require is %q at the phone:\n%s", v, raw)
	}
}

// Check 07 (RFC 3261 §16.3): a Request-URI of an unknown scheme is answered 416.
func TestCheck07UnknownSchemeIsAnswered416(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk07", "UDP", "UDP", always(200))
	for _, uri := range []string{"nobodyknows:x", "http://example.com/", "mailto:a@b.example", "soap.beep://192.0.2.103:3002"} {
		refused(t, p.caller, text(p.caller.initial("MESSAGE", uri), ""), 416)
		s := p.stranger(t, 3)
		refused(t, s, text(s.request("INVITE", uri, "x"), ""), 416)
	}
}

// Check 08 (RFC 3261 §21.5.6): a request of another version than SIP/2.0 is
// answered 505, in SIP/2.0.
func TestCheck08UnknownVersionIsAnswered505(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk08", "UDP", "UDP", always(200))
	for _, version := range []string{"SIP/7.0", "SIP/1.0", "SIP/2.1", "SIP/20"} {
		l := p.caller.initial("MESSAGE", p.peer)
		l[0] = "MESSAGE " + p.peer + " " + version
		if a := refused(t, p.caller, text(l, ""), 505); !strings.HasPrefix(a.raw, "SIP/2.0 505 ") {
			t.Errorf("answered by %q", a.raw)
		}
	}
	p.callee.none(t, "MESSAGE")
}

// Check 09 (RFC 3261 §8.1.1): a request without From, To, Call-ID or CSeq is
// answered 400, without all of them too, and the core goes on.
func TestCheck09MissingHeaderIsAnswered400(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk09", "UDP", "UDP", always(200))
	for _, method := range []string{"MESSAGE", "INVITE", "REGISTER"} {
		for _, name := range []string{"From", "To", "Call-ID", "CSeq"} {
			l := stripped(p.caller.initial(method, p.peer), name)
			if name == "To" && method == "INVITE" { // its ACK would have none
				l = stripped(l, "From")
			}
			refused(t, p.caller, text(l, ""), 400)
		}
		refused(t, p.caller, text(stripped(p.caller.initial(method, p.peer), "From", "To", "Call-ID", "CSeq"), ""), 400)
	}
	p.callee.none(t, "MESSAGE")
	p.deliver(t, text(p.caller.initial("MESSAGE", p.peer), ""))
}

// Check 10 (RFC 3261 §8.1.1.5): a request whose CSeq names another method is
// answered 400.
func TestCheck10OtherMethodInCSeqIsAnswered400(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk10", "UDP", "UDP", always(200))
	for method, other := range map[string]string{"MESSAGE": "INVITE", "OPTIONS": "options", "INVITE": "BYE", "REGISTER": "REGISTERED"} {
		l := p.caller.initial(method, p.peer)
		l[5] = "CSeq: 1 " + other
		refused(t, p.caller, text(l, ""), 400)
	}
	p.callee.none(t, "MESSAGE")
}

// Check 11 (RFC 3261 §7.3.1): a second From, To, Call-ID or CSeq is answered
// 400, also in compact form, and also if it says the same.
func TestCheck11SecondFromToCallIDOrCSeqIsAnswered400(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk11", "UDP", "UDP", always(200))
	for line, names := range map[int][]string{2: {"From", "f"}, 3: {"To", "t"}, 4: {"Call-ID", "i"}, 5: {"CSeq", "cseq"}} {
		for _, name := range names {
			l := p.caller.initial("MESSAGE", p.peer)
			_, same, _ := strings.Cut(l[line], ":")
			refused(t, p.caller, text(append(l, name+":"+same), ""), 400)
		}
	}
	p.callee.none(t, "MESSAGE")
}

// Check 12 (RFC 3261 §18.3): of a datagram, a Content-Length that is too long is
// answered 400, one that is short cuts what follows off, and without one the
// body goes to the end.
func TestCheck12ContentLengthOfADatagram(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk12", "UDP", "UDP", always(200))
	send := func(length, body string) string {
		return strings.Join(append(p.caller.initial("MESSAGE", p.peer, "Content-Type: text/plain"), length), "\r\n") + "\r\n\r\n" + body
	}
	for _, long := range []string{"9", "10000", "4294967296", "99999999999999999999"} {
		refused(t, p.caller, send("Content-Length: "+long, "12345678"), 400)
	}
	p.callee.none(t, "MESSAGE")
	for _, tt := range []struct{ length, want string }{
		{"Content-Length: 4", "1234"},
		{"l: 0", ""},
		{"X-Length: none", "12345678"},
	} {
		m, raw := p.deliver(t, send(tt.length, "12345678"))
		if string(m.Body()) != tt.want || !strings.HasSuffix(raw, "\r\n\r\n"+tt.want) {
			t.Errorf("%s: the body is %q, want %q:\n%s", tt.length, m.Body(), tt.want, raw)
		}
	}
}

// Check 14 (RFC 3261 §7.3): a header's name counts the same in any letter case,
// in compact form and with white space before its colon, also where the core
// removes it.
func TestCheck14NamesOfHeaders(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk14", "UDP", "UDP", always(200))
	plain, raw := p.deliver(t, text(p.caller.initial("MESSAGE", p.peer, "Subject: x"), "body"))
	own := value(plain, sipmsg.PAssertedIdentity)
	if own != "<sip:"+p.caller.user+"@"+domain+">" {
		t.Fatalf("P-Asserted-Identity is %q:\n%s", own, raw)
	}
	for name, write := range map[string]func(name string) string{
		"lower case":  strings.ToLower,
		"upper case":  strings.ToUpper,
		"white space": func(name string) string { return name + " \t" },
		"compact": func(name string) string {
			if c := map[string]string{"Via": "v", "From": "f", "To": "t", "Call-ID": "i", "Contact": "m", "Content-Length": "l", "Subject": "s"}[name]; c != "" {
				return c
			}
			return name
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := p.caller.initial("MESSAGE", p.peer, "Subject: x",
				"P-Asserted-Identity: <sip:evil@"+domain+">", "P-Charging-Vector: icid-value=evil", "P-Served-User: <sip:evil@"+domain+">",
				"P-Profile-Key: <sip:evil@"+domain+">", "Path: <sip:evil@192.0.2.1;lr>", "Service-Route: <sip:evil@192.0.2.1;lr>")
			l = append(l, "Content-Length: 4")
			for i := range l[1:] {
				head, rest, _ := strings.Cut(l[i+1], ":")
				l[i+1] = write(head) + ":" + rest
			}
			m, raw := p.deliver(t, strings.Join(l, "\r\n")+"\r\n\r\nbodyTAIL")
			if string(m.Body()) != "body" || value(m, sipmsg.Subject) != "x" {
				t.Errorf("body %q, subject %q", m.Body(), value(m, sipmsg.Subject))
			}
			if strings.Contains(raw, "evil") {
				t.Errorf("what a phone may not say came through:\n%s", raw)
			}
			if v := value(m, sipmsg.PAssertedIdentity); v != own {
				t.Errorf("P-Asserted-Identity is %q, want %q", v, own)
			}
		})
	}
}

// Check 15 (RFC 3261 §25.1): white space around ; = , and /, and folded lines,
// change no meaning.
func TestCheck15WhiteSpaceAndFolding(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk15", "UDP", "UDP", always(200))
	w := p.caller
	w.number++
	l := []string{
		"MESSAGE " + p.peer + " SIP/2.0",
		fmt.Sprintf("Via: SIP / 2.0\r\n /\t UDP   %s ; branch \t=\r\n z9hG4bK-%d ;\r\n  rport", w.local, w.number),
		fmt.Sprintf("From \t:\r\n \"A \\\" ; tag=no , B\"  <sip:%s@%s> \r\n ;\t tag  =  folded-%d", w.user, domain, w.number),
		fmt.Sprintf("To:   <%s>", p.peer),
		fmt.Sprintf("Call-ID:\r\n\t%d-%s", w.number, w.local),
		"CSeq:  7 \t \r\n  MESSAGE  ",
		"Max-Forwards:\r\n  70",
		"Route: <sip:" + w.to.String() + ";lr>\r\n ,\t " + w.serviceRoute,
		"Content-Type: text / plain ; charset = utf-8",
		"Content-Length :\t 4  ",
	}
	m, raw := p.deliver(t, strings.Join(l, "\r\n")+"\r\n\r\nbodyTAIL")
	num, method := m.CSeq()
	from, err := m.From()
	want := fmt.Sprintf("folded-%d", w.number)
	if m.FromTag() != want || num != 7 || method != "MESSAGE" || string(m.Body()) != "body" || err != nil || from.URI != "sip:"+w.user+"@"+domain {
		t.Errorf("From %+v (%v), tag %q, CSeq %d %s, body %q:\n%s", from, err, m.FromTag(), num, method, m.Body(), raw)
	}
	if !strings.Contains(m.CallID(), w.local) {
		t.Errorf("Call-ID is %q", m.CallID())
	}
}

// Check 16 (RFC 3261 §7.1): methods are case-sensitive, and one that nobody
// knows is forwarded as it is.
func TestCheck16UnknownMethodIsForwarded(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk16", "UDP", "UDP", always(200))
	for _, method := range []string{"FROBNICATE", "invite", "Message", "re%47ister", "!interesting-Method0123456789_*+`.%indeed'~"} {
		m, raw := p.deliver(t, text(p.caller.initial(method, p.peer), "x"))
		if _, c := m.CSeq(); c != method || !strings.HasPrefix(raw, method+" sip:") {
			t.Errorf("%s came as\n%s", method, raw)
		}
	}
	// register in lower case is no REGISTER: a stranger gets no challenge.
	s := p.stranger(t, 3)
	refused(t, s, text(s.request("register", "sip:"+domain, "x"), ""), 403)
}

// Check 17 (RFC 3261 §16.6): headers that the core does not know, their order
// and the body reach the phone byte for byte.
func TestCheck17UnknownHeadersAndBodyAreUntouched(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk17", "UDP", "UDP", always(200))
	unknown := []string{
		"X-First:   two  spaces , and a comma;tag = x",
		"NewFangledHeader:   newfangled value\r\n continued newfangled value",
		"x-Umlaut: \xc3\xa4\xc3\xb6 \xff\xfe",
		"X-Quoted: \"a \\\" b\" ; Q = \"\\\\\"",
		"X-Empty:",
		"x-Umlaut: again",
		"User-Agent: Phone (1.0) \t",
	}
	body := "line\r\n\r\nSIP/2.0 200 OK\r\n\x00\x01\x02\n\r\xff" + strings.Repeat("z", 300)
	_, raw := p.deliver(t, text(p.caller.initial("MESSAGE", p.peer, append(unknown, "Content-Type: application/octet-stream")...), body))
	if want := strings.Join(unknown, "\r\n") + "\r\n"; !strings.Contains(raw, want) {
		t.Errorf("the headers came otherwise, want\n%q\nin\n%q", want, raw)
	}
	if !strings.HasSuffix(raw, "\r\n\r\n"+body) {
		t.Errorf("the body came otherwise:\n%q", raw)
	}
}

// Check 18 (RFC 3261 §19.1.4): bindings are compared as URIs: an escaped letter,
// the case of the host and the order of parameters make no other phone, a
// port, a transport or the case of the user do.
func TestCheck18URIsOfBindingsAreCompared(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	addr := freshNet()
	user := subscribe(t, c, unique("chk18", addr), 1)[0]
	w := newWire(t, addr(1), c.Node("n1").P())
	for _, tt := range []struct {
		contact string
		count   int // contacts that are registered then
	}{
		{"sip:alice@phone.example", 1},
		{"sip:%61lice@PHONE.example", 1},
		{"sip:alice@phone.example;foo=bar", 1},
		{"sip:alice@phone.example:5060", 2},
		{"sip:alice@phone.example;transport=tcp", 3},
		{"SIP:al%69ce@phone.EXAMPLE;Transport=TCP", 3},
		{"sip:Alice@phone.example", 4},
		{"sip:alice@phone.example;a=1;transport=tcp", 4},
	} {
		a := w.registration(t, user, "SHA-256", "Contact: <"+tt.contact+">", "Expires: 600")
		got := slices.Collect(a.Elements(sipmsg.Contact))
		if a.status != 200 || len(got) != tt.count {
			t.Errorf("after %s: %d, %d contacts, want %d: %q", tt.contact, a.status, len(got), tt.count, got)
		}
	}
}

// via is a Via line of a wire under another address, without rport.
func (w *wire) via(sentBy string, more string) string {
	return fmt.Sprintf("Via: SIP/2.0/%s %s;branch=z9hG4bK-%d%s", w.transport, sentBy, w.number, more)
}

// Check 19 (RFC 3261 §18.2.1): a top Via whose sent-by is not where the request
// came from gets received, in answers and on the way to the phone; one that is
// right does not need it.
func TestCheck19ReceivedIsAdded(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk19", "UDP", "UDP", always(200))
	me := netip.MustParseAddrPort(p.caller.local)
	for _, host := range []string{"192.0.2.77", "phone.example", "[2001:db8::1]", me.Addr().String()} {
		l := p.caller.initial("MESSAGE", p.peer)
		l[1] = p.caller.via(fmt.Sprintf("%s:%d", host, me.Port()), "")
		m, raw := p.deliver(t, text(l, ""))
		var last sipmsg.Via
		for e := range m.Elements(sipmsg.ViaHeader) {
			last, _ = sipmsg.ParseVia(e)
		}
		received, ok := last.Params.Value("received")
		if want := host != me.Addr().String(); ok != want || ok && received != me.Addr().String() {
			t.Errorf("sent-by %s: received is %q, %v:\n%s", host, received, ok, raw)
		}
	}
	// The same in an answer of the front itself.
	l := stripped(p.caller.initial("MESSAGE", p.peer), "From")
	l[1] = p.caller.via(fmt.Sprintf("192.0.2.77:%d", me.Port()), "")
	if a := refused(t, p.caller, text(l, ""), 400); !strings.Contains(a.raw, ";received="+me.Addr().String()) {
		t.Errorf("no received in\n%s", a.raw)
	}
}

// Check 20 (RFC 3581 §4): rport is filled in, with received, and the answer
// comes from the socket that the request went to, to the one it came from.
func TestCheck20RportIsFilled(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk20", "UDP", "UDP", always(200))
	me := netip.MustParseAddrPort(p.caller.local)
	for _, malformed := range []bool{false, true} {
		l := p.caller.initial("MESSAGE", p.peer)
		l[1] = p.caller.via("192.0.2.77:9", ";rport")
		want := 200
		if malformed {
			l, want = stripped(l, "To"), 400
		}
		a := refused(t, p.caller, text(l, ""), want)
		via, _ := a.TopVia()
		port, _ := via.Params.Value("rport")
		received, _ := via.Params.Value("received")
		if port != fmt.Sprint(me.Port()) || received != me.Addr().String() {
			t.Errorf("rport is %q, received %q:\n%s", port, received, a.raw)
		}
		if p.caller.from != p.caller.to {
			t.Errorf("the answer came from %v, want %v", p.caller.from, p.caller.to)
		}
	}
}

// Check 21 (RFC 3261 §18.2.2): without rport an answer goes to the received
// address and the port of the Via, 5060 if that has none.
func TestCheck21AnswerGoesToTheViaPort(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk21", "UDP", "UDP", always(200))
	sender := newWire(t, p.addr(3), p.n.P())
	for _, tt := range []struct{ port, sentBy string }{{"5099", "192.0.2.77:5099"}, {"5060", "phone.example"}} {
		ear := newWireAt(t, netip.MustParseAddrPort(p.addr(3).String()+":"+tt.port), p.n.P())
		for _, malformed := range []bool{false, true} {
			l := sender.request("OPTIONS", p.entry, "x")
			l[1] = sender.via(tt.sentBy, "")
			want := "SIP/2.0 200 "
			if malformed {
				l, want = stripped(l, "Call-ID"), "SIP/2.0 400 "
			}
			sender.send(t, text(l, ""))
			if got := ear.receive(t, 10*time.Second); !strings.HasPrefix(got, want) {
				t.Errorf("at port %s came %q, want %s", tt.port, got, want)
			}
		}
	}
	alive(t, sender)
}

// Check 22 (RFC 3261 §18.1.2): a response whose top Via is not the core's is
// discarded, whoever sends it.
func TestCheck22ForeignResponseIsDiscarded(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk22", "UDP", "UDP", always(200))
	victim := newWire(t, p.addr(3), p.n.P())
	s := p.stranger(t, 4)
	for _, sender := range []*wire{s, p.caller} {
		for _, via := range []string{
			fmt.Sprintf("Via: SIP/2.0/UDP %s;branch=z9hG4bKforeign", victim.local),
			fmt.Sprintf("Via: SIP/2.0/UDP %s;branch=z9hG4bKforeign\r\nVia: SIP/2.0/UDP %s;branch=z9hG4bK2", p.n.P(), victim.local),
			fmt.Sprintf("Via: SIP/2.0/UDP %s\r\nVia: SIP/2.0/UDP %s", p.n.P(), victim.local),
		} {
			l := sender.request("MESSAGE", p.peer, "x")
			l[0], l[1] = "SIP/2.0 200 OK", via
			silent(t, sender, text(l, ""))
		}
	}
	alive(t, victim) // and nothing else came to it before
	if got := victim.receive(t, 1); got != "" {
		t.Errorf("came to a third party: %q", got)
	}
}

// Check 24 (RFC 3261 §18.1.1): a request as large as a datagram can be, which
// IP carries in fragments, is handled: at the core itself, and on to a phone as
// long as the result fits into a datagram.
func TestCheck24RequestsOf65kB(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk24", "UDP", "UDP", always(200))
	l := p.caller.request("OPTIONS", p.entry, "x")
	request := text(l, "")
	request = text(l, strings.Repeat("x", 65507-len(request)-4))
	if len(request) != 65507 {
		t.Fatalf("%d bytes", len(request))
	}
	refused(t, p.caller, request, 200)
	body := strings.Repeat("y", 60_000)
	if m, _ := p.deliver(t, text(p.caller.initial("MESSAGE", p.peer), body)); string(m.Body()) != body {
		t.Errorf("the body has %d bytes, want %d", len(m.Body()), len(body))
	}
}
