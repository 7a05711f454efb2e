package sipmsg

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

// crlf makes wire text of readable text.
func crlf(s string) []byte { return []byte(strings.ReplaceAll(s, "\n", "\r\n")) }

// register is a REGISTER of a phone behind two proxies, about 1.3 kB.
var register = crlf(`REGISTER sip:ims.example.org SIP/2.0
Via: SIP/2.0/UDP 192.0.2.10:4060;branch=z9hG4bKaebagbaf3q5c2mzr7xk4hdyn6wva2p4e7i.5f1c0d9a77e1b3c8
Via: SIP/2.0/UDP 10.20.30.40:5060;rport=31021;received=203.0.113.77;branch=z9hG4bK-524287-1---a5f2b0c4d1e6f708
Max-Forwards: 69
Path: <sip:aebagbaf3q5c2mzr7xk4hdyn6wva2p4e7i@192.0.2.10:5060;lr>
Require: path
Contact: <sip:alice@10.20.30.40:5060;transport=udp>;+sip.instance="<urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6>";reg-id=1;+g.3gpp.icsi-ref="urn%3Aurn-7%3A3gpp-service.ims.icsi.mmtel";expires=600000
To: "Alice Example" <sip:alice@ims.example.org>
From: "Alice Example" <sip:alice@ims.example.org>;tag=5e1d9c20
Call-ID: 6q3Zy2bVfW0Yt8nL-1kR4w..@10.20.30.40
CSeq: 2 REGISTER
Expires: 600000
Allow: INVITE, ACK, CANCEL, BYE, OPTIONS, NOTIFY, MESSAGE, PRACK, UPDATE, INFO, REFER
Supported: path, outbound, gruu, sec-agree
User-Agent: Example Phone 4.2.1/Linux (build 20260101)
P-Access-Network-Info: 3GPP-E-UTRAN-FDD; utran-cell-id-3gpp=234151D0FCE11
P-Visited-Network-ID: "ims.example.org"
P-Charging-Vector: icid-value="bw-7f3a6c1e-0000000000001f3b";icid-generated-at=192.0.2.10
Authorization: Digest username="alice@ims.example.org",realm="ims.example.org",nonce="b7c9036dbf357f7683f054aea940e9703dc8f84c1108",uri="sip:ims.example.org",response="6629fae49393a05397450978507c4ef1",algorithm=MD5,cnonce="9d0c6b2a",qop=auth,nc=00000001
Content-Length: 0

`)

func mustParse(t testing.TB, raw []byte) *Message {
	t.Helper()
	m, err := Parse(raw)
	if err != nil {
		t.Fatalf("Parse: %v\n%s", err, raw)
	}
	return m
}

// with gives a small request with lines changed: each edit is "old -> new".
func with(edits ...string) []byte {
	s := "OPTIONS sip:bob@example.com SIP/2.0\n" +
		"Via: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKx\n" +
		"From: <sip:alice@example.com>;tag=1\n" +
		"To: <sip:bob@example.com>\n" +
		"Call-ID: a@b\n" +
		"CSeq: 7 OPTIONS\n" +
		"Max-Forwards: 70\n" +
		"Content-Length: 0\n" +
		"\n"
	for _, e := range edits {
		from, to, _ := strings.Cut(e, " -> ")
		if !strings.Contains(s, from) {
			panic("no " + from)
		}
		s = strings.Replace(s, from, to, 1)
	}
	return crlf(s)
}

func TestParseJudgesMessages(t *testing.T) {
	const ok, drop = -1, 0
	response := func(edits ...string) []byte {
		return with(append([]string{"OPTIONS sip:bob@example.com SIP/2.0 -> SIP/2.0 200 OK"}, edits...)...)
	}
	many := func(n int, s string) string { return strings.Repeat(s, n) }
	tests := []struct {
		name       string
		raw        []byte
		status     int
		answerable bool
	}{
		{"a plain request", with(), ok, true},
		{"a Via of another version", with("Via: SIP/2.0 -> Via: SIP/3.0"), ok, true},
		{"a large REGISTER", register, ok, true},
		{"a plain response", response(), ok, false},
		{"CRLFs before the start line", append([]byte("\r\n\r\n"), with()...), ok, true},
		{"version in lower case", with("SIP/2.0\n -> sip/2.0\n"), ok, true},
		{"a tel Request-URI", with("sip:bob@example.com SIP -> tel:+49-30-1234 SIP"), ok, true},
		{"an IPv6 Request-URI", with("sip:bob@example.com SIP -> sip:[2001:db8::1]:5070;lr SIP"), ok, true},
		{"an unknown method", with("OPTIONS sip -> newMethod.1 sip", "7 OPTIONS -> 7 newMethod.1"), ok, true},
		{"no Content-Length", with("Content-Length: 0\n -> "), ok, true},
		{"no Max-Forwards", with("Max-Forwards: 70\n -> "), ok, true},
		{"white space around everything", with("Via: SIP/2.0/UDP 192.0.2.1:5060;branch -> v \t: SIP / 2.0 / UDP  192.0.2.1 : 5060 ; branch"), ok, true},
		{"a line break after every separator", with("From: <sip:alice@example.com>;tag=1 -> From:\n <sip:alice@example.com>\n ;\n\ttag =\n 1"), ok, true},
		{"an empty header that may be empty", with("Max-Forwards -> Supported:\nMax-Forwards"), ok, true},
		{"NUL in a quoted-pair", with("To: <sip -> To: \"\\\x00\" <sip"), ok, true},
		{"NUL in the body", append(with("Content-Length: 0 -> Content-Length: 1"), 0), ok, true},
		{"64 parameters", with("bob@example.com>\n -> bob@example.com>" + many(64, ";a") + "\n"), ok, true},
		{"more semicolons in several elements", with("Max-Forwards -> Contact: <sip:a@b>" + many(60, ";a") + ", <sip:a@c>" + many(60, ";a") + "\nMax-Forwards"), ok, true},
		{"semicolons in quotes are no parameters", with("Max-Forwards -> Subject: \"" + many(200, ";") + "\"\nMax-Forwards"), ok, true},
		{"128 headers", with("Max-Forwards -> " + many(128-7, "A: b\n") + "Max-Forwards"), ok, true},
		{"a response without reason", response("200 OK -> 200"), ok, false},
		{"an unquoted UTF-8 display name", with("To: < -> To: Jürgen <"), ok, true},

		{"nothing", nil, drop, false},
		{"CRLF keep-alive", []byte("\r\n"), drop, false},
		{"double CRLF keep-alive", []byte("\r\n\r\n"), drop, false},
		{"NUL keep-alive", []byte{0}, drop, false},
		{"four NULs", []byte{0, 0, 0, 0}, drop, false},
		{"STUN", []byte("\x00\x01\x00\x00\x21\x12\xa4\x42abcdefghijkl\r\n"), drop, false},
		{"text", []byte("hello\r\nworld\r\n\r\n"), drop, false},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), drop, false},
		{"a request cut in the first line", with()[:20], drop, false},
		{"a response of another version", response("SIP/2.0 200 -> SIP/3.0 200"), drop, false},
		{"a status of two digits", response("200 OK -> 20 OK"), drop, false},
		{"a status of four digits", response("200 OK -> 2000 OK"), drop, false},
		{"a status below 100", response("200 OK -> 099 OK"), drop, false},
		{"a status above 699", response("200 OK -> 700 OK"), drop, false},
		{"a status of 4294967301", response("200 OK -> 4294967301 OK"), drop, false},
		{"a response without Via", response("Via -> X"), drop, false},
		{"a response without CSeq", response("CSeq -> X"), drop, false},
		{"a response with two Call-IDs", response("CSeq -> Call-ID: x\nCSeq"), drop, false},
		{"a response shorter than its Content-Length", response("Length: 0 -> Length: 1"), drop, false},
		{"a response with NUL in its reason", response("200 OK -> 200 O\x00K"), drop, false},

		{"another version", with("SIP/2.0\n -> SIP/7.0\n"), 505, true},
		{"a service", with("sip:bob@example.com SIP -> urn:service:sos SIP"), ok, true},
		{"an unknown scheme", with("sip:bob@example.com SIP -> http://example.com SIP"), 416, true},
		{"no scheme", with("sip:bob@example.com SIP -> bob@example.com SIP"), 400, true},
		{"a Request-URI in brackets", with("sip:bob@example.com SIP -> <sip:bob@example.com> SIP"), 400, true},
		{"a Request-URI with white space", with("sip:bob@example.com SIP -> sip:bob@example.com; lr SIP"), 400, true},
		{"a Request-URI with headers", with("sip:bob@example.com SIP -> sip:bob@example.com?Route=x SIP"), 400, true},
		{"a Request-URI that ends in a percent sign", with("sip:bob@example.com SIP -> sip:bob% SIP"), 400, true},
		{"a Request-URI with port 70000", with("sip:bob@example.com SIP -> sip:bob@example.com:70000 SIP"), 400, true},
		{"a Request-URI without host", with("sip:bob@example.com SIP -> sip:bob@ SIP"), 400, true},
		{"no Request-URI", with("OPTIONS sip:bob@example.com SIP -> OPTIONS SIP"), 400, true},
		{"two spaces in the start line", with("OPTIONS sip -> OPTIONS  sip"), 400, true},
		{"a space behind the start line", with("SIP/2.0\n -> SIP/2.0 \n"), 400, true},
		{"a method that is no token", with("OPTIONS sip -> OPT@IONS sip"), 400, true},

		{"no Via", with("Via -> X"), 400, false},
		{"no From", with("From -> X"), 400, true},
		{"no To", with("To: -> X:"), 400, true},
		{"no Call-ID", with("Call-ID -> X"), 400, true},
		{"no CSeq", with("CSeq -> X"), 400, true},
		{"two From", with("CSeq -> f: <sip:a@b>;tag=2\nCSeq"), 400, true},
		{"two To", with("CSeq -> t: <sip:a@b>;tag=\nCSeq"), 400, true},
		{"two Call-ID", with("CSeq -> CALL-id \t: x\nCSeq"), 400, true},
		{"two CSeq", with("CSeq -> cseq: 8 OPTIONS\nCSeq"), 400, true},
		{"two Max-Forwards", with("CSeq -> max-forwards: 8\nCSeq"), 400, true},
		{"two equal Content-Length", with("CSeq -> l: 0\nCSeq"), 400, true},
		{"an ACK is never answered", with("OPTIONS sip -> ACK sip", "7 OPTIONS -> 7 ACK", "Call-ID -> X"), 400, false},

		{"a Via without host", with("192.0.2.1:5060;branch=z9hG4bKx -> ;branch=x"), 400, false},
		{"a Via of another protocol", with("Via: SIP/2.0 -> Via: HTTP/2.0"), 400, false},
		{"a Via with an empty element", with("branch=z9hG4bKx -> branch=x,"), 400, true},
		{"a Via with an empty parameter", with("branch=z9hG4bKx -> ;"), 400, true},
		{"a Via whose open quote hides parameters", with("branch=z9hG4bKx -> x=\"" + many(25_000, ";a")), 400, true},
		{"a Via with an empty branch", with("branch=z9hG4bKx -> branch="), 400, true},
		{"a Via with port 0", with("192.0.2.1:5060 -> 192.0.2.1:0"), 400, false},
		{"a Via with a broken IPv6 address", with("192.0.2.1:5060 -> [2001:db8::1"), 400, false},
		{"a bad second Via", with("From -> Via: x\nFrom"), 400, true},
		{"a Route that is no name-addr", with("From -> Route: <sip:a@b\nFrom"), 400, true},
		{"an empty Route", with("From -> Route:\nFrom"), 400, true},
		{"a To whose quotes do not balance", with("To: < -> To: \"Bob <"), 400, true},
		{"a To with white space in its URI", with("To: <sip:bob@example.com> -> To: < sip:bob@example.com>"), 400, true},
		{"a From with an empty tag", with("tag=1 -> tag="), 400, true},
		{"a From without URI", with("<sip:alice@example.com>;tag=1 -> ;tag=1"), 400, true},
		{"an empty Call-ID", with("a@b -> "), 400, true},
		{"a Call-ID of two words", with("a@b -> a b"), 400, true},
		{"CSeq with another method", with("7 OPTIONS -> 7 INVITE"), 400, true},
		{"CSeq with the method in another case", with("7 OPTIONS -> 7 options"), 400, true},
		{"CSeq of 2^31", with("7 OPTIONS -> 2147483648 OPTIONS"), 400, true},
		{"CSeq of 2^65", with("7 OPTIONS -> 36893488147419103232 OPTIONS"), 400, true},
		{"CSeq without number", with("7 OPTIONS -> OPTIONS"), 400, true},
		{"negative Max-Forwards", with("Forwards: 70 -> Forwards: -1"), 400, true},
		{"Max-Forwards of 256", with("Forwards: 70 -> Forwards: 256"), 400, true},

		{"Content-Length beyond the datagram", with("Length: 0 -> Length: 1"), 400, true},
		{"Content-Length of 4 GB", with("Length: 0 -> Length: 4294967296"), 400, true},
		{"Content-Length of 2^65", with("Length: 0 -> Length: 36893488147419103232"), 400, true},
		{"negative Content-Length", with("Length: 0 -> Length: -999"), 400, true},
		{"Content-Length of two numbers", with("Length: 0 -> Length: 0, 0"), 400, true},
		{"empty Content-Length", with("Length: 0 -> Length:"), 400, true},

		{"a bare CR in a header", with("a@b -> a\r@b"), 400, true},
		{"a bare LF in a header", bytes.Replace(with(), []byte("a@b"), []byte("a@b\nX: y"), 1), 400, true},
		{"a NUL in a header", with("a@b -> a\x00@b"), 400, true},
		{"a NUL in a quoted string", with("To: < -> To: \"\x00\" <"), 400, true},
		{"a NUL behind a quoted string", with("To: < -> To: \"a\" \\\x00<"), 400, true},
		{"a NUL in the start line", with("bob@example.com SIP -> bob\x00@example.com SIP"), 400, true},
		{"all lines end in LF", []byte(strings.ReplaceAll(string(with()), "\r", "")), 400, true},
		{"an LF that ends the headers early", bytes.Replace(with(), []byte("From"), []byte("\nFrom"), 1), 400, true},
		{"a first header line that continues nothing", with("Via -> \tVia"), 400, false},
		{"a line without colon", with("Max-Forwards: -> Max-Forwards "), 400, true},
		{"a line without name", with("Max-Forwards: -> :"), 400, true},
		{"a control before the colon", with("CSeq: -> CSeq\x01:"), 400, true},
		{"a line break before the colon", with("CSeq: -> CSeq\n :"), 400, true},
		{"a name of two words", with("Max-Forwards: -> Max Forwards:"), 400, true},
		{"no empty line", with("Length: 0\n\n -> Length: 0\n"), 400, true},
		{"cut in the headers", with()[:200], 400, true},
		{"129 headers", with("Max-Forwards -> " + many(129-7, "A: b\n") + "Max-Forwards"), 400, true},
		{"65 parameters", with("bob@example.com>\n -> bob@example.com>" + many(65, ";a") + "\n"), 400, true},
		{"65 parameters in a header that nobody knows", with("Max-Forwards -> X: y" + many(65, ";a") + "\nMax-Forwards"), 400, true},
		{"65 parameters in the second element", with("Max-Forwards -> Contact: <sip:a@b>, <sip:a@c>" + many(65, ";a") + "\nMax-Forwards"), 400, true},
		{"more than 64 kB", append(with(), make([]byte, MaxSize)...), 513, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Parse(tt.raw)
			status := ok
			var e *Error
			if errors.As(err, &e) {
				status = e.Status
			}
			if status != tt.status {
				t.Errorf("status %d (%v), want %d", status, err, tt.status)
			}
			if got := m.Answerable(); got != tt.answerable {
				t.Errorf("Answerable %v, want %v", got, tt.answerable)
			}
			if m.Answerable() {
				checkAnswer(t, m, max(status, 200))
			}
		})
	}
}

// checkAnswer verifies that the answer to m can be read wherever m had the
// headers for it.
func checkAnswer(t *testing.T, m *Message, status int) {
	t.Helper()
	wire := m.Response(status, "", "totag").Bytes()
	r, err := Parse(wire)
	if err != nil {
		// What was malformed in the request is malformed in its answer; but it
		// has to have a frame and a way back.
		if r.err == nil || bytes.Count(wire, []byte("\r\n\r\n")) != 1 || !bytes.HasSuffix(wire, []byte("\r\n\r\n")) {
			t.Errorf("answer %q: %v", wire, err)
		}
		for _, line := range bytes.SplitAfter(wire, []byte("\r\n")) {
			if bytes.ContainsAny(bytes.TrimSuffix(line, []byte("\r\n")), "\r\n") {
				t.Errorf("answer has a bare line end: %q", wire)
			}
		}
		return
	}
	want, _ := m.TopVia()
	if got, ok := r.TopVia(); !ok || got != want {
		t.Errorf("answer's Via %v, want %v", got, want)
	}
	if r.ToTag() == "" {
		t.Errorf("answer has no To tag: %q", wire)
	}
}

func TestContentLengthCutsTheBody(t *testing.T) {
	tests := []struct {
		name, length, body, want string
	}{
		{"shorter than the datagram", "Content-Length: 3\r\n", "abcdef", "abc"},
		{"equal", "l : 6\r\n", "abcdef", "abcdef"},
		{"absent: to the end", "", "abcdef", "abcdef"},
		{"zero", "Content-Length: 000\r\n", "abcdef", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			raw := with()
			head := strings.TrimSuffix(string(raw), "Content-Length: 0\r\n\r\n") + tt.length + "\r\n"
			m := mustParse(t, []byte(head+tt.body))
			if got := string(m.Body()); got != tt.want {
				t.Errorf("body %q, want %q", got, tt.want)
			}
			if got := string(m.Bytes()); got != head+tt.want {
				t.Errorf("bytes %q, want %q", got, head+tt.want)
			}
		})
	}
}

func TestParseAgainForgetsTheMessageBefore(t *testing.T) {
	var m Message
	if err := m.Parse(register); err != nil {
		t.Fatal(err)
	}
	m.SetBody("text/plain", []byte("x"))
	if err := m.Parse([]byte("\r\n\r\n")); err == nil {
		t.Error("keep-alive parsed as a message")
	}
	if m.CallID() != "" || m.IsRequest() || m.Body() != nil || m.Bytes() != nil || m.Answerable() {
		t.Errorf("left over: %+v", m)
	}
	raw := with()
	if err := m.Parse(raw); err != nil {
		t.Fatal(err)
	}
	if got := m.Bytes(); &got[0] != &raw[0] {
		t.Error("Bytes of an unedited message are a copy")
	}
}

// TestHostileInputTakesLinearTime has a bound far above what a linear parser
// needs and far below what a quadratic one does.
func TestHostileInputTakesLinearTime(t *testing.T) {
	const n = 60000
	fill := func(header, s string) []byte {
		return with("Max-Forwards -> " + header + strings.Repeat(s, n/len(s)) + "\nMax-Forwards")
	}
	tests := []struct {
		name string
		raw  []byte
	}{
		{"parameters in To", with("bob@example.com>\n -> bob@example.com>" + strings.Repeat(";a=b", n/4) + "\n")},
		{"parameters in Via", with("branch=z9hG4bKx -> branch=z" + strings.Repeat(";a", n/2))},
		{"semicolons", fill("X: ", ";")},
		{"commas in Route", fill("Route: <sip:a>", ",")},
		{"commas in Contact", fill("Contact: ", ",")},
		{"elements of Contact", fill("Contact: ", "a,")},
		{"elements of Via", fill("Via: ", "SIP/2.0/UDP a,")},
		{"escaped quotes without end", fill("Contact: "+strings.Repeat(";", 100), "\"\\\"\\")},
		{"open brackets", fill("Contact: "+strings.Repeat(";", 100), ",<")},
		{"folds", fill("Contact: a", "\n ,")},
		{"white space", fill("Contact: ", " ")},
		{"NULs", fill("Contact: \"", "\\\x00")},
		{"short lines", fill("X:", "\nX:")},
		{"lines without colon", fill("X:", "\nX")},
		{"percent signs", with("sip:bob@ -> sip:" + strings.Repeat("%25", n/3) + "@")},
		{"URI parameters", with("bob@example.com SIP -> bob@example.com" + strings.Repeat(";a", n/2) + " SIP")},
		{"digest parameters", fill("Authorization: Digest a=b", ",c=d")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			m, _ := Parse(tt.raw)
			if m.Answerable() {
				m.Response(400, "", "t").Bytes()
			}
			for _, h := range []Header{ViaHeader, Route, Contact, Authorization} {
				for e := range m.Elements(h) {
					ParseNameAddr(e)
					ParseVia(e)
					ParseAuth(e)
				}
				for m.Pop(h) {
				}
			}
			if u, err := ParseURI(m.RequestURI()); err == nil {
				u.AOR()
				u.Equal(u)
			}
			if d := time.Since(start); d > time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}
