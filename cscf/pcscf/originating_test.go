package pcscf_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	. "bellwether/cscf/cscftest"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

// dialog lets a phone receive an INVITE and accept it, and gives the entry of
// ours in its route set.
func (b *bench) dialog(p *Phone) (own string) {
	b.t.Helper()
	b.s.Send(b.e, b.toPhone("INVITE", b.path(p)))
	in := p.Expect(0, "INVITE")
	p.Answer(in, 200)
	for b.s.Pending() > 0 {
		b.s.Next()
	}
	own, _ = in.Value(sipmsg.RecordRoute)
	return own
}

func (b *bench) dialogRoute() string {
	return b.Route(token.Token{Mode: token.Dialog, Group: b.s.Group})
}

func TestRouteOfARequestInsideADialog(t *testing.T) {
	const bob, far = "sip:bob@192.0.2.9:5062", "<sip:far.test;lr>"
	in := func(uri string) string { return strings.Trim(uri, "<>") }
	for _, c := range []struct {
		name   string
		uri    func(own string) string
		routes func(own, s string) []string
	}{
		{"a loose router", func(string) string { return bob },
			func(own, s string) []string { return []string{own, s, far} }},
		{"a strict router: the last Route is the target", in,
			func(own, s string) []string { return []string{s, far, "<" + bob + ">"} }},
		{"its outbound proxy first, by address and port", func(string) string { return bob },
			func(own, s string) []string { return []string{"<sip:127.0.0.1:5060;lr>", own, s, far} }},
		{"its outbound proxy first, without port, over TCP", func(string) string { return bob },
			func(own, s string) []string { return []string{"<sip:127.0.0.1;transport=tcp;lr>", own, s, far} }},
		{"its outbound proxy first, another node's", func(string) string { return bob },
			func(own, s string) []string { return []string{"<sip:127.0.0.2:5060;lr>", own, s, far} }},
		{"its outbound proxy first, by domain", func(string) string { return bob },
			func(own, s string) []string { return []string{"<sip:IMS.test;lr>", own, s, far} }},
		{"its outbound proxy first, by an IPv6 address", func(string) string { return bob },
			func(own, s string) []string { return []string{"<sip:[2001:DB8:0::1]:5060;lr>", own, s, far} }},
		{"its outbound proxy first, IPv4 written as IPv6, twice", func(string) string { return bob },
			func(own, s string) []string {
				return []string{"<sip:[::ffff:127.0.0.1];lr>", "<sip:127.0.0.1;lr>", own, s, far}
			}},
	} {
		run(t, c.name, func(t *testing.T, b *bench) {
			p := b.phone()
			own, s := b.dialog(p), b.dialogRoute()
			m := p.Request("BYE", c.uri(own), "To: <sip:bob@ims.test>;tag=x")
			m.Remove(sipmsg.Route)
			for _, r := range c.routes(own, s) {
				m.Add(sipmsg.Route, r)
			}
			p.Send(m)
			got := b.s.Next()
			if got.RequestURI() != bob {
				t.Errorf("Request-URI %s, want %s", got.RequestURI(), bob)
			}
			if r := slices.Collect(got.Elements(sipmsg.Route)); !slices.Equal(r, []string{s, far}) {
				t.Errorf("Route %q, want %q", r, []string{s, far})
			}
			b.s.Send(b.e, got.Response(200, "", "s"))
			p.Expect(200, "BYE")
		})
	}
}

func TestRequestsThatPretendToBeInsideADialog(t *testing.T) {
	forget := func(b *bench, p *Phone) { // its registration ends, and it had no dialog
		p.Send(p.RegisterRequest("Expires: 0"))
		b.grant(b.i.Next())
		p.Expect(200, "REGISTER")
	}
	for _, c := range []struct {
		name string
		// route makes the Route of a request that mallory sends with a To tag.
		route func(b *bench, victim, mallory *Phone) []string
		want  int
	}{
		{"with the token of somebody else's phone", func(b *bench, victim, mallory *Phone) []string {
			return []string{b.dialog(victim), b.dialogRoute()}
		}, 403},
		{"with the token of a phone that is forgotten", func(b *bench, victim, mallory *Phone) []string {
			path := b.path(victim)
			forget(b, victim)
			return []string{path, b.dialogRoute()}
		}, 481},
		{"with the own token, and then the Service-Route", func(b *bench, victim, mallory *Phone) []string {
			return append([]string{b.path(mallory)}, mallory.ServiceRoute...)
		}, 403},
		{"with the own token, and then straight to another phone", func(b *bench, victim, mallory *Phone) []string {
			return []string{b.path(mallory), b.path(victim)}
		}, 403},
		{"with the own token, and then a terminating half", func(b *bench, victim, mallory *Phone) []string {
			return []string{b.path(mallory), b.Route(token.Token{Mode: token.Term, Group: b.s.Group})}
		}, 403},
		{"with the own token, and no more", func(b *bench, victim, mallory *Phone) []string {
			return []string{b.path(mallory)}
		}, 403},
		{"without any Route", func(b *bench, victim, mallory *Phone) []string { return nil }, 403},
	} {
		run(t, c.name, func(t *testing.T, b *bench) {
			victim := b.phone()
			mallory := b.NewPhone("a", "192.0.2.66:5060", "other", otherURI)
			b.register(mallory)
			m := mallory.Request("MESSAGE", "sip:192.0.2.1:5060", "To: <"+aliceURI+">;tag=x", "From: <sip:boss@ims.test>;tag=y")
			m.Remove(sipmsg.Route)
			for _, r := range c.route(b, victim, mallory) {
				m.Add(sipmsg.Route, r)
			}
			for b.s.Pending() > 0 {
				b.s.Next()
			}
			victim.Drain()
			mallory.Drain()
			mallory.Send(m)
			mallory.Expect(c.want, "MESSAGE")
			victim.Silent()
			if n := b.s.Pending(); n != 0 {
				t.Errorf("%d messages reach the S-CSCF", n)
			}
		})
	}
	run(t, "from nobody's address with a phone's own token", func(t *testing.T, b *bench) {
		p := b.phone()
		own := b.dialog(p)
		p.Drain()
		stranger := b.NewPhone("a", "192.0.2.66:5060", "x", "sip:x@ims.test")
		for _, method := range []string{"BYE", "MESSAGE", "INVITE"} {
			m := stranger.Request(method, "sip:bob@192.0.2.9", "To: <sip:bob@ims.test>;tag=x")
			m.Add(sipmsg.Route, own+", "+b.dialogRoute())
			stranger.Send(m)
			stranger.Expect(403, method)
		}
		if n := b.s.Pending(); n != 0 {
			t.Errorf("%d messages reach the S-CSCF", n)
		}
	})
}

// Whatever way a phone writes what only the network may say, it does not get
// through: it is removed, or the whole request is refused.
func TestSpoofedHeaders(t *testing.T) {
	names := []string{
		"P-Asserted-Identity", "P-Charging-Vector", "P-Charging-Function-Addresses", "P-Served-User", "P-Called-Party-ID",
		"P-Associated-URI", "P-Visited-Network-ID", "Service-Route", "Path", "P-Asserted-Service", "P-Profile-Key",
		"P-User-Database", "P-Private-Network-Indication", "Feature-Caps", "Restoration-Info", "Relayed-Charge",
		"Service-Interact-Info", "Cellular-Network-Info", "Security-Client", "Security-Server", "Security-Verify",
		"P-Preferred-Identity",
	}
	const value = "<sip:spoofed@evil.test>"
	forms := map[string]func(name string) string{
		"as it is":                     func(n string) string { return n + ": " + value },
		"in lower case":                func(n string) string { return strings.ToLower(n) + ": " + value },
		"in upper case":                func(n string) string { return strings.ToUpper(n) + ": " + value },
		"in mixed case":                func(n string) string { return strings.ToLower(n[:1]) + strings.ToUpper(n[1:]) + ": " + value },
		"with a space before :":        func(n string) string { return n + " : " + value },
		"with white space before :":    func(n string) string { return n + " \t :" + value },
		"without white space":          func(n string) string { return n + ":" + value },
		"folded before the value":      func(n string) string { return n + ":\r\n " + value },
		"folded in the value":          func(n string) string { return n + ": <sip:x@evil.test>,\r\n\t" + value },
		"twice":                        func(n string) string { return n + ": " + value + "\r\n" + strings.ToLower(n) + " : " + value },
		"twice, something between":     func(n string) string { return n + ": " + value + "\r\nSubject: x\r\n" + n + ": " + value },
		"with a control before :":      func(n string) string { return n + "\x01: " + value },
		"with a vertical tab before :": func(n string) string { return n + "\v: " + value },
		"with a NUL before :":          func(n string) string { return n + "\x00: " + value },
		"folded before :":              func(n string) string { return n + "\r\n : " + value },
		"behind a bare CR":             func(n string) string { return "Subject: x\r" + n + ": " + value },
		"behind a bare LF":             func(n string) string { return "Subject: x\n" + n + ": " + value },
		"with a space in front":        func(n string) string { return " " + n + ": " + value },
	}
	check := func(t *testing.T, got *sipmsg.Message) {
		t.Helper()
		if raw := got.Bytes(); bytes.Contains(raw, []byte("spoofed")) && !onlyInSubject(got) {
			t.Errorf("it got through:\n%s", raw)
		}
	}
	for form, write := range forms {
		run(t, form, func(t *testing.T, b *bench) {
			p := b.phone()
			b.register(p)
			for _, name := range names {
				for _, method := range []string{"MESSAGE", "REGISTER"} {
					m := p.Request(method, "sip:bob@ims.test")
					if method == "REGISTER" {
						m = p.RegisterRequest()
					}
					raw := bytes.Replace(m.Bytes(), []byte("\r\nFrom:"), []byte("\r\n"+write(name)+"\r\nFrom:"), 1)
					m, err := sipmsg.Parse(raw)
					if err != nil {
						continue // refused at the door
					}
					p.Send(m)
					if method == "REGISTER" {
						got := b.i.Next()
						check(t, got)
						b.grant(got, p.Contact+";expires=3600")
						p.Expect(200, method)
						continue
					}
					got := b.s.Next()
					check(t, got)
					b.s.Send(b.e, got.Response(202, "", "s"))
					p.Expect(202, method)
				}
			}
		})
	}
}

// onlyInSubject reports whether all of it is the text of a harmless header.
func onlyInSubject(m *sipmsg.Message) bool {
	for name, value := range m.Headers() {
		if strings.Contains(value, "spoofed") && !strings.EqualFold(name, "Subject") {
			return false
		}
	}
	return true
}

// A phone may send over a connection that it did not register by, if that can
// be known to be its own: a request too large for a datagram (RFC 3261
// §18.1.1), or any when its connection was lost.
func TestConnectionThatIsNotTheBindings(t *testing.T) {
	for _, c := range []struct {
		name, contact, from string
		tcp                 bool // how the phone is registered
		want                int  // 0: it reaches the S-CSCF
	}{
		{"of a phone on UDP, from its host", "192.0.2.1:5060", "192.0.2.1:40000", false, 0},
		{"of a phone on UDP, from another host", "192.0.2.1:5060", "192.0.2.66:40000", false, 403},
		{"of a phone on UDP, from behind the same NAT", "10.0.0.7:5060", "192.0.2.1:40000", false, 403},
		{"of a phone on UDP behind a NAT that kept the address but not the port", "192.0.2.1:5062", "192.0.2.1:40000", false, 403},
		{"of a phone on TCP, from its host", "192.0.2.1:5060;transport=tcp", "192.0.2.1:40001", true, 0},
		{"of a phone on TCP, from another host", "192.0.2.1:5060;transport=tcp", "192.0.2.66:40001", true, 403},
		{"of a phone on TCP, from behind the same NAT", "10.0.0.7:5060;transport=tcp", "192.0.2.1:40001", true, 403},
	} {
		run(t, c.name, func(t *testing.T, b *bench) {
			p := b.phone()
			if c.tcp {
				p.Reconnect("192.0.2.1:40000")
			}
			p.Contact = "<sip:alice@" + c.contact + ">"
			b.register(p)
			own := b.dialog(p)
			p.Drain()
			other := b.NewPhone("a", c.from, "alice", aliceURI)
			other.Reconnect(c.from)
			other.Call("INVITE", "sip:bob@ims.test")
			if c.want != 0 {
				other.Expect(c.want, "INVITE")
			} else {
				m := b.nextOf("INVITE")
				want(t, m, sipmsg.PAssertedIdentity, "<"+aliceURI+">")
				if rr, _ := m.Value(sipmsg.RecordRoute); strings.Contains(rr, "tcp") != c.tcp {
					t.Errorf("Record-Route %s; the dialog is not where the phone is registered", rr)
				}
			}
			m := other.Request("INFO", "sip:bob@192.0.2.9", "To: <sip:bob@ims.test>;tag=x")
			m.Add(sipmsg.Route, own+", "+b.dialogRoute())
			other.Drain()
			other.Send(m)
			if c.want != 0 {
				other.Expect(c.want, "INFO")
			} else {
				b.nextOf("INFO")
			}
		})
	}
}
