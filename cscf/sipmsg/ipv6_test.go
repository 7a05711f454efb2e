package sipmsg

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// RFC 5118: the forms in which an IPv6 address may stand in a message, and
// those in which it may not, section by section.
func TestIPv6Forms(t *testing.T) {
	request := func(uri, via string, more ...string) string {
		lines := append([]string{
			"REGISTER " + uri + " SIP/2.0", "Via: " + via, "Max-Forwards: 70",
			"From: sip:user@example.com;tag=81x2", "To: sip:user@example.com", "Call-ID: SSG9559905523997077@hlau_4100",
			"CSeq: 98176 REGISTER", `Contact: "Caller" <sip:caller@[2001:db8::1]>`,
		}, more...)
		return strings.Join(lines, "\r\n") + "\r\nContent-Length: 0\r\n\r\n"
	}
	const via = "SIP/2.0/UDP [2001:db8::9:1]:6050;branch=z9hG4bKas3-111"
	for _, tt := range []struct {
		name   string
		raw    string
		status int // 0: accepted
		uri    string
		sentBy string
	}{
		{"§4.1: a reference in brackets as Request-URI and sent-by", request("sip:[2001:db8::10]", via), 0, "[2001:db8::10]:5060", "[2001:db8::9:1]:6050"},
		{"§4.2: an address without brackets as Request-URI", request("sip:2001:db8::10", via), 400, "", ""},
		{"§4.2: an address without brackets as sent-by", request("sip:[2001:db8::10]", "SIP/2.0/UDP 2001:db8::9:1;branch=z9hG4bKas3"), 400, "", ""},
		{"§4.3: what looks like a port inside the brackets belongs to the address", request("sip:[2001:db8::10:5070]", via), 0, "[2001:db8::10:5070]:5060", "[2001:db8::9:1]:6050"},
		{"§4.4: a port behind the brackets is one", request("sip:[2001:db8::10]:5070", via), 0, "[2001:db8::10]:5070", "[2001:db8::9:1]:6050"},
		{"§4.5: received with brackets", request("sip:[2001:db8::10]", "SIP/2.0/UDP [2001:db8::9:1]:6050;received=[2001:db8::9:255];branch=z9hG4bKas3-111"), 0, "[2001:db8::10]:5060", "[2001:db8::9:1]:6050"},
		{"§4.5: received without brackets", request("sip:[2001:db8::10]", "SIP/2.0/UDP [2001:db8::9:1]:6050;received=2001:db8::9:255;branch=z9hG4bKas3-111"), 0, "[2001:db8::10]:5060", "[2001:db8::9:1]:6050"},
		{"§4.9: an IPv4-mapped address", request("sip:[::ffff:192.0.2.10]:19823", via), 0, "[::ffff:192.0.2.10]:19823", "[2001:db8::9:1]:6050"},
		{"§4.7: hosts of both families in one Via list", request("sip:[2001:db8::10]", via+", SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKjhja8781hjuaij65144,\r\n SIP/2.0/TCP [2001:db8::9:255];branch=z9hG4bK451jj;received=192.0.2.200"), 0, "[2001:db8::10]:5060", "[2001:db8::9:1]:6050"},
		{"§4.10, as RFC 5954 §4.1 corrects it: three colons in a row", request("sip:user@[2001:db8:::192.0.2.1]", via), 400, "", ""},
		{"a zone, which means nothing to others", request("sip:[fe80::1%25eth0]", via), 400, "", ""},
		{"an IPv4 address in brackets", request("sip:[192.0.2.1]", via), 400, "", ""},
		{"brackets that do not close", request("sip:[2001:db8::10", via), 400, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Parse([]byte(tt.raw))
			if tt.status != 0 {
				var e *Error
				if !errors.As(err, &e) || e.Status != tt.status {
					t.Errorf("%v, want status %d", err, tt.status)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			u, err := ParseURI(m.RequestURI())
			if addr, ok := u.HostPort(); err != nil || !ok || addr != netip.MustParseAddrPort(tt.uri) {
				t.Errorf("Request-URI is %v (%v), want %s", addr, err, tt.uri)
			}
			if v, ok := m.TopVia(); !ok || v.SentBy() != tt.sentBy {
				t.Errorf("sent-by is %q, want %q", v.SentBy(), tt.sentBy)
			}
			if string(m.Bytes()) != tt.raw {
				t.Errorf("Bytes are not what came")
			}
		})
	}
}

// RFC 5118 §4.6, §4.8: a session description with IPv6 addresses, one or
// several, is carried as it is.
func TestIPv6SessionsAreCarried(t *testing.T) {
	body := "v=0\r\no=bob 280744730 28977631 IN IP6 2001:db8::20\r\ns=\r\nt=0 0\r\n" +
		"m=audio 22334 RTP/AVP 0\r\nc=IN IP6 2001:db8::1\r\nm=video 6024 RTP/AVP 107\r\nc=IN IP6 2001:db8::1\r\n"
	m := NewRequest("INVITE", "sip:user@[2001:db8::10]")
	m.Set(ViaHeader, "SIP/2.0/UDP [2001:db8::20]:5060;branch=z9hG4bKas3-111")
	for _, h := range []Header{From, To} {
		m.Set(h, "<sip:user@[2001:db8::20]>;tag=1")
	}
	m.Set(CallID, "lookup@[2001:db8::20]")
	m.Set(CSeq, "1 INVITE")
	m.SetBody("application/sdp", []byte(body))
	back, err := Parse(m.Bytes())
	if err != nil || string(back.Body()) != body {
		t.Errorf("%v, body %q", err, back.Body())
	}
}

// RFC 5118 §4.5: a client that wrote received with brackets and one that wrote
// it without are the same; ParseVia keeps what was written.
func TestReceivedOfIPv6(t *testing.T) {
	for _, s := range []string{"2001:db8::9:255", "[2001:db8::9:255]"} {
		v, err := ParseVia("SIP/2.0/UDP [2001:db8::9:1];received=" + s + ";branch=z9hG4bKas3")
		got, _ := v.Params.Value("received")
		if err != nil || got != s || v.Branch() != "z9hG4bKas3" {
			t.Errorf("received=%s: %q, branch %q, %v", s, got, v.Branch(), err)
		}
	}
}
