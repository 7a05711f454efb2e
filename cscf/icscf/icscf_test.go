package icscf_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bellwether/controller/state"
	. "bellwether/cscf/cscftest"
	"bellwether/cscf/hss"
	"bellwether/cscf/icscf"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slow is an HSS that answers after a while, or not at all.
type slow struct {
	hss.HSS
	err error
}

func later[Q, A any](s *slow, ask func(Q, func(A, error)), q Q, reply func(A, error)) {
	time.AfterFunc(time.Second, func() {
		if s.err != nil {
			var none A
			reply(none, s.err)
			return
		}
		ask(q, reply)
	})
}

func (s *slow) UserAuthorization(q hss.UserAuthorization, reply func(hss.UserAuthorizationAnswer, error)) {
	later(s, s.HSS.UserAuthorization, q, reply)
}

func (s *slow) LocationInfo(q hss.LocationInfo, reply func(hss.LocationInfoAnswer, error)) {
	later(s, s.HSS.LocationInfo, q, reply)
}

// bench is an I-CSCF between a P-CSCF and two S-CSCFs that the test plays.
type bench struct {
	*Cluster
	hss    *slow
	e, p   *Engine
	s      [2]*Engine
	wire   *Phone
	serial int
}

func run(t *testing.T, name string, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &bench{Cluster: New(t)}
			b.hss = &slow{HSS: hss.NewEmbedded(hss.Config{State: b.State, Realm: Domain})}
			play := func(k state.Kind, node string) *Engine {
				e := b.NewEngine(b.AddGroup(k, node))
				e.Start(nil)
				return e
			}
			b.p, b.s[0], b.s[1] = play(state.PCSCF, "a"), play(state.SCSCF, "a"), play(state.SCSCF, "b")
			g := b.AddGroup(state.ICSCF, "b")
			b.e = b.NewEngine(g)
			i := icscf.New(icscf.Config{Group: g, Sealer: b.Sealer, ServiceAddr: b.ServiceAddr(g), Domain: Domain, HSS: b.hss}, b.e)
			b.e.Start(i)
			b.wire = b.NewPhone("b", "192.0.2.50:5060", "x", "sip:x@elsewhere.test")
			b.Subscriber("alice", "sip:alice@ims.test", "tel:+4930111")
			b.Subscriber("mute", "!sip:mute@ims.test")
			test(t, b)
			b.Sleep(5 * time.Minute)
			if !b.e.Idle() {
				t.Error("transactions are left")
			}
		})
	})
}

// request is one as an engine sends it to the I-CSCF.
func (b *bench) request(from *Engine, method, uri string, headers ...string) *sipmsg.Message {
	b.serial++
	id := strconv.Itoa(b.serial)
	m := sipmsg.NewRequest(method, uri)
	for _, h := range append([]string{
		"Via: SIP/2.0/UDP " + b.ServiceAddr(from.Group).String() + ";branch=z9hG4bK" + b.Sealer.Seal(token.Token{Mode: token.Via, Group: from.Group}) + "." + id,
		"Max-Forwards: 60", "From: <sip:x@ims.test>;tag=x", "To: <" + uri + ">", "Call-ID: c" + id, "CSeq: 1 " + method,
	}, headers...) {
		name, value, _ := strings.Cut(h, ": ")
		m.RemoveNamed(name)
		m.AddNamed(name, value)
	}
	return m
}

func (b *bench) register(to string, headers ...string) *sipmsg.Message {
	return b.request(b.p, "REGISTER", "sip:ims.test", append([]string{"To: <" + to + ">", "Path: <sip:p;lr>"}, headers...)...)
}

// arrived checks that a request reached an S-CSCF the way it should.
func (b *bench) arrived(t *testing.T, s *Engine, uri string) *sipmsg.Message {
	t.Helper()
	m := s.Next()
	top, _ := m.TopRoute()
	u, err := sipmsg.ParseURI(top.URI)
	if err != nil {
		t.Fatal(err)
	}
	if tok, ok := b.Sealer.Open(u.User); !ok || tok != (token.Token{Mode: token.Term, Group: s.Group}) {
		t.Errorf("token %+v", tok)
	}
	if addr, _ := u.HostPort(); addr != b.ServiceAddr(s.Group) {
		t.Errorf("Route to %s", addr)
	}
	if m.RequestURI() != uri {
		t.Errorf("Request-URI %s", m.RequestURI())
	}
	if _, ok := m.Value(sipmsg.RecordRoute); ok {
		t.Error("the I-CSCF recorded its route")
	}
	return m
}

func TestRegister(t *testing.T) {
	run(t, "a user without an S-CSCF gets the one with the fewest users", func(t *testing.T, b *bench) {
		b.Apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "somebody", Hint: b.s[0].Group}})
		b.p.Send(b.e, b.register("sip:alice@ims.test", "Route: <sip:127.0.0.2:4060;lr>"))
		b.Sleep(time.Second)
		m := b.arrived(t, b.s[1], "sip:ims.test")
		b.s[1].Send(b.e, m.Response(401, "", "s"))
		if resp := b.p.Next(); resp.Status() != 401 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "a user goes to the S-CSCF that has it", func(t *testing.T, b *bench) {
		b.Apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice", Hint: b.s[1].Group}})
		b.p.Send(b.e, b.register("tel:+49-30-111", `Authorization: Digest username="alice", realm="IMS.test", nonce="", uri="sip:ims.test", response=""`))
		b.Sleep(time.Second)
		b.s[1].Send(b.e, b.arrived(t, b.s[1], "sip:ims.test").Response(200, "", "s"))
		b.p.Next()
	})
	for _, c := range []struct {
		name    string
		to      string
		headers []string
		status  int
	}{
		{"a To that names nobody", "sip:ims.test", nil, 400},
		{"an unknown Proxy-Require", "sip:alice@ims.test", []string{"Proxy-Require: foo"}, 420},
	} {
		run(t, c.name+" is refused", func(t *testing.T, b *bench) {
			b.p.Send(b.e, b.register(c.to, c.headers...))
			b.Sleep(time.Second)
			if resp := b.p.Next(); resp.Status() != c.status {
				t.Errorf("status %d, want %d", resp.Status(), c.status)
			}
		})
	}
	for _, c := range []struct {
		name    string
		to      string
		headers []string
	}{
		{"an unknown user", "sip:nobody@ims.test", nil},
		{"another unknown user", "sip:somebody@ims.test", nil},
		{"a user whose identities are all barred", "sip:mute@ims.test", nil},
	} {
		run(t, c.name+" goes to an S-CSCF, always the same, without a reservation", func(t *testing.T, b *bench) {
			var at *Engine
			for range 3 {
				b.p.Send(b.e, b.register(c.to, c.headers...))
				b.Sleep(time.Second)
				if at == nil {
					at = b.s[0]
					if at.Pending() == 0 {
						at = b.s[1]
					}
				}
				at.Send(b.e, b.arrived(t, at, "sip:ims.test").Response(401, "", "s"))
				if resp := b.p.Next(); resp.Status() != 401 {
					t.Errorf("status %d", resp.Status())
				}
			}
		})
	}
	run(t, "a foreign user name changes nothing of the way", func(t *testing.T, b *bench) {
		b.Apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice", Hint: b.s[1].Group}})
		b.p.Send(b.e, b.register("sip:alice@ims.test", `Authorization: Digest username="mute", realm="ims.test", nonce="", uri="sip:ims.test", response=""`))
		b.Sleep(2 * time.Second) // the HSS is asked twice
		b.s[1].Send(b.e, b.arrived(t, b.s[1], "sip:ims.test").Response(401, "", "s"))
		b.p.Next()
	})
	run(t, "credentials of a foreign realm do not count", func(t *testing.T, b *bench) {
		b.p.Send(b.e, b.register("sip:alice@ims.test", `Authorization: Digest username="else", realm="elsewhere", nonce="n", uri="sip:x", response="r"`))
		b.Sleep(time.Second)
		b.s[0].Send(b.e, b.arrived(t, b.s[0], "sip:ims.test").Response(401, "", "s"))
		b.p.Next()
	})
	run(t, "from the wire, or from an S-CSCF, it is refused", func(t *testing.T, b *bench) {
		m := b.request(b.s[0], "REGISTER", "sip:ims.test", "To: <sip:alice@ims.test>")
		b.s[0].Send(b.e, m)
		if resp := b.s[0].Next(); resp.Status() != 403 {
			t.Errorf("status %d", resp.Status())
		}
		b.e.Deliver(wirePeer(b), parse(t, b.wire.RegisterRequest()))
		b.wire.Expect(403, "REGISTER")
	})
	run(t, "an HSS that does not answer is no refusal", func(t *testing.T, b *bench) {
		b.hss.err = errors.New("no connection")
		b.p.Send(b.e, b.register("sip:alice@ims.test"))
		b.Sleep(time.Second)
		if resp := b.p.Next(); resp.Status() != 504 {
			t.Errorf("status %d", resp.Status())
		}
		b.s[0].Send(b.e, b.request(b.s[0], "MESSAGE", "sip:alice@ims.test"))
		b.Sleep(time.Second)
		if resp := b.s[0].Next(); resp.Status() != 504 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "nor are missing S-CSCFs", func(t *testing.T, b *bench) {
		b.Isolate(b.s[0].Group, true)
		b.p.Send(b.e, b.register("sip:alice@ims.test"))
		b.Sleep(4 * time.Second)
		if resp := b.p.Next(); resp.Status() != 504 {
			t.Errorf("status %d", resp.Status())
		}
		for _, s := range []string{"s2", "s3"} {
			b.Apply(state.Command{RemoveWorker: &state.RemoveWorker{ID: s}})
		}
		b.p.Send(b.e, b.register("sip:alice@ims.test"))
		b.Sleep(time.Second)
		if resp := b.p.Next(); resp.Status() != 504 {
			t.Errorf("status %d", resp.Status())
		}
	})
}

func TestLocate(t *testing.T) {
	run(t, "what comes from the wire is refused, whatever it claims", func(t *testing.T, b *bench) {
		b.Apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice", Hint: b.s[1].Group}})
		term := "<sip:" + b.Sealer.Seal(token.Token{Mode: token.Term, Group: b.s[1].Group}) + "@127.0.0.2:6060;lr>"
		for _, method := range []string{"INVITE", "MESSAGE", "OPTIONS", "BYE", "FROBNICATE"} {
			m := b.wire.Request(method, "sip:alice@ims.test", "P-Asserted-Identity: <sip:alice@ims.test>", "P-Served-User: <sip:alice@ims.test>",
				"Route: <sip:127.0.0.2:4060;lr>, "+term, "Record-Route: "+term)
			b.e.Deliver(wirePeer(b), parse(t, m))
			b.wire.Expect(403, method)
		}
		b.Sleep(time.Second)
		if n := b.s[0].Pending() + b.s[1].Pending(); n != 0 {
			t.Errorf("%d requests went on", n)
		}
	})
	run(t, "an S-CSCF's claims go on, an answer to a cancelled request does not matter", func(t *testing.T, b *bench) {
		b.Apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice", Hint: b.s[1].Group}})
		b.s[0].Send(b.e, b.request(b.s[0], "MESSAGE", "tel:+4930111", "P-Asserted-Identity: <sip:x@ims.test>"))
		b.Sleep(time.Second)
		got := b.arrived(t, b.s[1], "tel:+4930111")
		if v, _ := got.Value(sipmsg.PAssertedIdentity); v != "<sip:x@ims.test>" {
			t.Errorf("P-Asserted-Identity %s", v)
		}
		b.s[1].Send(b.e, got.Response(200, "", "s"))
		b.s[0].Next()

		invite := b.request(b.s[0], "INVITE", "sip:alice@ims.test")
		cancel := b.request(b.s[0], "CANCEL", "sip:alice@ims.test")
		for _, h := range []sipmsg.Header{sipmsg.ViaHeader, sipmsg.CallID} {
			v, _ := invite.Value(h)
			cancel.Set(h, v)
		}
		b.s[0].Send(b.e, invite)
		b.s[0].Send(b.e, cancel)
		for _, status := range []int{200, 487} {
			if resp := b.s[0].Next(); resp.Status() != status {
				t.Errorf("status %d, want %d", resp.Status(), status)
			}
		}
		b.Sleep(time.Second)
		if n := b.s[1].Pending(); n != 0 {
			t.Errorf("%d requests went on", n)
		}
	})
	run(t, "a call that is faster than the news of a registration finds its user", func(t *testing.T, b *bench) {
		b.s[0].Send(b.e, b.request(b.s[0], "MESSAGE", "sip:alice@ims.test"))
		b.Sleep(1100 * time.Millisecond) // the HSS has answered once
		b.Apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice", Hint: b.s[1].Group}})
		b.Sleep(2 * time.Second)
		b.s[1].Send(b.e, b.arrived(t, b.s[1], "sip:alice@ims.test").Response(200, "", "s"))
		b.s[0].Next()
	})
	run(t, "who is not registered is not there, after one more look", func(t *testing.T, b *bench) {
		b.s[0].Send(b.e, b.request(b.s[0], "MESSAGE", "sip:alice@ims.test"))
		b.Sleep(5 * time.Second)
		if resp := b.s[0].Next(); resp.Status() != 480 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "a P-CSCF must not go past the S-CSCF", func(t *testing.T, b *bench) {
		b.p.Send(b.e, b.request(b.p, "MESSAGE", "sip:alice@ims.test"))
		if resp := b.p.Next(); resp.Status() != 403 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "OPTIONS to the I-CSCF itself is answered", func(t *testing.T, b *bench) {
		b.e.Deliver(wirePeer(b), parse(t, b.wire.Request("OPTIONS", "sip:127.0.0.2:4060")))
		b.wire.Expect(200, "OPTIONS")
	})
	run(t, "a response of a lost transaction finds its way", func(t *testing.T, b *bench) {
		m := b.request(b.p, "INVITE", "sip:alice@ims.test")
		resp := m.Response(200, "", "s")
		resp.Push(sipmsg.ViaHeader, "SIP/2.0/UDP "+b.ServiceAddr(b.e.Group).String()+";branch=z9hG4bK"+
			b.Sealer.Seal(token.Token{Mode: token.Via, Group: b.e.Group})+".gone")
		b.s[0].Send(b.e, resp)
		if got := b.p.Next(); got.Status() != 200 {
			t.Errorf("status %d", got.Status())
		}
	})
}

func wirePeer(b *bench) transaction.Peer { return transaction.Peer{Flow: b.wire.Flow} }

func parse(t *testing.T, m *sipmsg.Message) *sipmsg.Message {
	t.Helper()
	out, err := sipmsg.Parse(m.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return out
}
