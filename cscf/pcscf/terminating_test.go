package pcscf_test

import (
	"strings"
	"testing"
	"time"

	. "bellwether/cscf/cscftest"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// gone tells the P-CSCF that the connection of a flow ended.
func (b *bench) gone(flow sipmsg.Flow) { b.e.Unreachable(transaction.Peer{Flow: flow}) }

func TestAddressesTowardsThePhone(t *testing.T) {
	for _, c := range []struct {
		name, addr string
		tcp        bool
		uri, via   string
	}{
		{"UDP over IPv4", "192.0.2.1:5060", false, "@127.0.0.1:5060;lr>", "SIP/2.0/UDP 127.0.0.1:5060;"},
		{"TCP over IPv4", "192.0.2.1:5060", true, "@127.0.0.1:5060;transport=tcp;lr>", "SIP/2.0/TCP 127.0.0.1:5060;"},
		{"UDP over IPv6", "[2001:db8::99]:5060", false, "@[2001:db8::1]:5060;lr>", "SIP/2.0/UDP [2001:db8::1]:5060;"},
		{"TCP over IPv6", "[2001:db8::99]:5060", true, "@[2001:db8::1]:5060;transport=tcp;lr>", "SIP/2.0/TCP [2001:db8::1]:5060;"},
	} {
		run(t, c.name+": Path, Record-Route and Via show what the phone reaches", func(t *testing.T, b *bench) {
			p := b.NewPhone("a", c.addr, "alice", aliceURI)
			if c.tcp {
				p.Reconnect(c.addr)
			}
			path := b.path(p)
			b.s.Send(b.e, b.toPhone("INVITE", path))
			in := p.Expect(0, "INVITE")
			via, _ := in.Value(sipmsg.ViaHeader)
			rr, _ := in.Value(sipmsg.RecordRoute)
			p.Call("INVITE", "sip:bob@ims.test")
			own, _ := b.nextOf("INVITE").Value(sipmsg.RecordRoute)
			for what, uri := range map[string]string{"Path": path, "Record-Route to the phone": rr, "Record-Route of the phone": own} {
				if !strings.HasSuffix(uri, c.uri) {
					t.Errorf("%s is %s, want ...%s", what, uri, c.uri)
				}
			}
			if !strings.HasPrefix(via, c.via) {
				t.Errorf("Via is %s, want %s...", via, c.via)
			}
		})
	}
}

// nextOf takes the next request of a method that the S-CSCF gets.
func (b *bench) nextOf(method string) *sipmsg.Message {
	b.t.Helper()
	for {
		if m := b.s.Next(); m.IsRequest() && m.Method() == method {
			return m
		}
	}
}

// final takes the next final response that the S-CSCF gets.
func (b *bench) final() int {
	b.t.Helper()
	for {
		if m := b.s.Next(); m.Status() >= 200 {
			return m.Status()
		}
	}
}

func TestAConnectionThatIsGone(t *testing.T) {
	start := func(b *bench) (p *Phone, path string) {
		p = b.phone()
		p.Reconnect("192.0.2.1:40000")
		return p, b.path(p)
	}
	for _, c := range []struct {
		name, uri string
		tried     string // where a connection is tried, "" for nowhere
	}{
		{"its contact has another address: 430 at once", "sip:alice@10.0.0.7:5060;transport=tcp", ""},
		{"its contact is a name: 430 at once", "sip:alice@phone.test", ""},
		{"its contact is for UDP: 430 at once", "sip:alice@192.0.2.1:5060;transport=udp", ""},
		{"its contact is where it came from: it is tried there", "sip:alice@192.0.2.1:5070;transport=TCP", "192.0.2.1:5070"},
		{"without port and transport, too", "sip:alice@192.0.2.1", "192.0.2.1:5060"},
	} {
		run(t, c.name, func(t *testing.T, b *bench) {
			p, path := start(b)
			b.Lose(func(to transaction.Peer, m *sipmsg.Message) bool { return to.Flow == p.Flow })
			listener := b.NewPhone("a", "192.0.2.1:5070", "alice", aliceURI)
			if c.tried == "192.0.2.1:5060" {
				listener = b.NewPhone("a", "192.0.2.1:5060", "alice", aliceURI)
			}
			began := time.Now()
			for _, method := range []string{"INVITE", "MESSAGE"} {
				m := b.toPhone(method, path)
				m.SetRequestURI(c.uri)
				b.s.Send(b.e, m)
				b.gone(p.Flow)
				if c.tried != "" {
					listener.Answer(listener.Expect(0, method), 486)
					if s := b.final(); s != 486 {
						t.Errorf("%s: %d, want 486", method, s)
					}
					listener.Drain() // the ACK
				} else if s := b.final(); s != 430 {
					t.Errorf("%s: %d, want 430", method, s)
				}
			}
			listener.Silent()
			if d := time.Since(began); d > time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
	run(t, "the ACK and what follows in the dialog go where the phone was found", func(t *testing.T, b *bench) {
		p, path := start(b)
		old := p.Flow
		b.Lose(func(to transaction.Peer, m *sipmsg.Message) bool { return to.Flow == old })
		listener := b.NewPhone("a", "192.0.2.1:5060", "alice", aliceURI)
		b.s.Send(b.e, b.toPhone("INVITE", path))
		b.gone(old)
		listener.Answer(listener.Expect(0, "INVITE"), 200)
		if s := b.final(); s != 200 {
			t.Fatalf("%d, want 200", s)
		}
		for _, method := range []string{"ACK", "BYE"} {
			b.s.Send(b.e, b.toPhone(method, path, "To: <"+aliceURI+">;tag=x"))
			m := listener.Expect(0, method)
			if method == "BYE" {
				listener.Answer(m, 200)
			}
		}
		p.Reconnect("192.0.2.1:40001")
		b.path(p)
		b.s.Send(b.e, b.toPhone("MESSAGE", path))
		p.Answer(p.Expect(0, "MESSAGE"), 200)
		listener.Silent()
	})
	run(t, "no connection to the contact either: 430", func(t *testing.T, b *bench) {
		p, path := start(b)
		b.Lose(func(to transaction.Peer, m *sipmsg.Message) bool { return to.Group == 0 })
		b.s.Send(b.e, b.toPhone("INVITE", path))
		b.gone(p.Flow)
		again := p.Flow
		again.Conn = 0
		again.Remote = b.NewPhone("a", "192.0.2.1:5060", "x", "sip:x@ims.test").Flow.Remote
		b.gone(again)
		if s := b.final(); s != 430 {
			t.Errorf("%d, want 430", s)
		}
	})
	run(t, "the phone registers over another one: the call goes there", func(t *testing.T, b *bench) {
		p, path := start(b)
		old := p.Flow
		p.Reconnect("192.0.2.1:40001")
		if again := b.path(p); again != path {
			t.Errorf("Path %s, before %s", again, path)
		}
		b.gone(old)
		b.s.Send(b.e, b.toPhone("MESSAGE", path))
		p.Answer(p.Expect(0, "MESSAGE"), 200)
		if s := b.final(); s != 200 {
			t.Errorf("%d, want 200", s)
		}
		if bound := b.Bound(b.e.Group); len(bound) != 1 || bound[0] != p.Flow {
			t.Errorf("bound are %v, want %v", bound, p.Flow)
		}
	})
	run(t, "a phone that was heard is waited for", func(t *testing.T, b *bench) {
		p, path := start(b)
		b.s.Send(b.e, b.toPhone("INVITE", path))
		in := p.Expect(0, "INVITE")
		p.Answer(in, 180)
		b.gone(p.Flow)
		p.Reconnect("192.0.2.1:40001")
		p.Answer(in, 200)
		if s := b.final(); s != 200 {
			t.Errorf("%d, want 200", s)
		}
	})
}
