package cscftest_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bellwether/controller/state"
	. "bellwether/cscf/cscftest"
	"bellwether/cscf/hss"
	"bellwether/cscf/icscf"
	"bellwether/cscf/pcscf"
	"bellwether/cscf/scscf"
	"bellwether/cscf/sipmsg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ims is a cluster with a P-, an I- and an S-CSCF on each of two nodes.
type ims struct {
	*Cluster
	p [2]*pcscf.CSCF
	s [2]*scscf.CSCF
	e []*Engine
}

var (
	kinds  = []state.Kind{state.PCSCF, state.ICSCF, state.SCSCF}
	groups = map[state.Kind][2]state.GroupID{state.PCSCF: {1, 4}, state.ICSCF: {2, 5}, state.SCSCF: {3, 6}}
)

func run(t *testing.T, name string, test func(t *testing.T, c *ims)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := &ims{Cluster: New(t)}
			for _, node := range []string{"a", "b"} {
				for _, k := range kinds {
					c.AddGroup(k, node)
				}
			}
			for i := range 2 {
				for _, k := range kinds {
					c.start(k, i)
				}
			}
			c.Subscriber("alice", "sip:alice@ims.test", "tel:+4930111")
			c.Subscriber("bob", "!sip:bob-barred@ims.test", "sip:bob@ims.test", "tel:+4930222", "", "sip:bob.work@ims.test")
			c.Subscriber("carol", "sip:carol@ims.test")
			test(t, c)
			c.Sleep(5 * time.Minute)
			for _, e := range c.e {
				if !e.Idle() {
					t.Errorf("group %d still has transactions", e.Group)
				}
			}
		})
	})
}

// start starts, or starts anew, the i-th engine of a kind.
func (c *ims) start(k state.Kind, i int) {
	g := groups[k][i]
	e := c.NewEngine(g)
	home := hss.NewEmbedded(c.State, Domain)
	switch k {
	case state.PCSCF:
		r := pcscf.New(pcscf.Config{Group: g, Sealer: c.Sealer, ServiceAddr: c.ServiceAddr(g), Domain: Domain}, e, c.Store)
		r.Load()
		c.p[i] = r
		e.Start(r)
	case state.ICSCF:
		e.Start(icscf.New(icscf.Config{Group: g, Sealer: c.Sealer, ServiceAddr: c.ServiceAddr(g), Domain: Domain, HSS: home}, e))
	case state.SCSCF:
		r := scscf.New(scscf.Config{Group: g, Sealer: c.Sealer, ServiceAddr: c.ServiceAddr(g), Domain: Domain, HSS: home}, e, c.Store)
		r.Load()
		c.s[i] = r
		e.Start(r)
	}
	c.e = slices.DeleteFunc(c.e, func(old *Engine) bool { return old.Group == g })
	c.e = append(c.e, e)
}

func (c *ims) alice() *Phone { return c.NewPhone("a", "192.0.2.1:5060", "alice", "sip:alice@ims.test") }
func (c *ims) bob() *Phone   { return c.NewPhone("b", "192.0.2.2:5060", "bob", "sip:bob@ims.test") }
func (c *ims) carol() *Phone { return c.NewPhone("a", "192.0.2.3:5060", "carol", "sip:carol@ims.test") }

// registered gives phones that are registered.
func registered(phones ...*Phone) {
	for _, p := range phones {
		p.Register()
	}
}

func values(m *sipmsg.Message, h sipmsg.Header) []string { return slices.Collect(m.Elements(h)) }

func want(t *testing.T, m *sipmsg.Message, h sipmsg.Header, expected ...string) {
	t.Helper()
	if got := values(m, h); !slices.Equal(got, expected) {
		t.Errorf("%s: got %q, want %q in:\n%s", h, got, expected, m.Bytes())
	}
}

func (c *ims) calls() (states []string) {
	for _, s := range c.s {
		for _, call := range s.Calls() {
			states = append(states, call.Role+" "+call.State)
		}
	}
	slices.Sort(states)
	return states
}

func TestRegistration(t *testing.T) {
	run(t, "a phone is challenged, then registered, and everything is known", func(t *testing.T, c *ims) {
		alice := c.alice()
		alice.Send(alice.RegisterRequest("Security-Client: ipsec-3gpp;alg=hmac-md5-96", "Require: sec-agree", "Proxy-Require: sec-agree"))
		challenge := alice.Expect(401, "REGISTER")
		if n := len(values(challenge, sipmsg.WWWAuthenticate)); n != 2 {
			t.Errorf("%d challenges", n)
		}
		if got := c.Bound(1); len(got) != 0 {
			t.Errorf("a challenge bound %v", got)
		}
		ok := alice.Register()
		want(t, ok, sipmsg.PAssociatedURI, "<sip:alice@ims.test>", "<tel:+4930111>")
		want(t, ok, sipmsg.Contact, "<sip:192.0.2.1:5060>;expires=3600")
		want(t, ok, sipmsg.PChargingVector)
		if len(values(ok, sipmsg.ServiceRoute)) != 1 || len(values(ok, sipmsg.Path)) != 1 {
			t.Errorf("no Service-Route or Path in:\n%s", ok.Bytes())
		}
		p, _ := c.State().Assignment(state.PCSCF, "sip:alice@ims.test")
		s, _ := c.State().Assignment(state.SCSCF, "alice")
		if p != 1 || s != 3 {
			t.Errorf("assigned to P %d, S %d", p, s)
		}
		if got := c.Bound(1); len(got) != 1 || got[0] != alice.Flow {
			t.Errorf("bound %v", got)
		}
		r, known := c.s[0].Registration("tel:+4930111")
		if !known || r.IMPI != "alice" || len(r.Contacts) != 1 || !r.Expires.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("registration %+v", r)
		}
		b := c.p[0].Bindings("sip:alice@ims.test")
		if len(b) != 1 || b[0].Flow != alice.Flow || !slices.Equal(b[0].ServiceRoute, alice.ServiceRoute) || b[0].Identities[0] != "sip:alice@ims.test" {
			t.Errorf("bindings %+v", b)
		}
		if f := c.p[0].Figures(); f.Users != 1 || f.Bindings != 1 {
			t.Errorf("P figures %+v", f)
		}
		if f := c.s[0].Figures(); f.Users != 1 || f.Identities != 2 || f.Contacts != 1 {
			t.Errorf("S figures %+v", f)
		}
	})
	run(t, "users spread over the groups", func(t *testing.T, c *ims) {
		registered(c.alice(), c.bob(), c.carol())
		for _, k := range []state.Kind{state.PCSCF, state.SCSCF} {
			n := map[state.GroupID]int{}
			for _, g := range c.State().Assignments(k) {
				n[g]++
			}
			if n[groups[k][0]] != 2 || n[groups[k][1]] != 1 {
				t.Errorf("%s: %v", k, n)
			}
		}
	})
	run(t, "a refresh needs no challenge and moves the end", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		c.Sleep(50 * time.Minute)
		alice.Send(alice.RegisterRequest())
		alice.Expect(200, "REGISTER")
		c.Sleep(50 * time.Minute)
		if len(c.p[0].Bindings("sip:alice@ims.test")) != 1 {
			t.Error("the binding ended")
		}
		if _, ok := c.s[0].Registration("sip:alice@ims.test"); !ok {
			t.Error("the registration ended")
		}
	})
	run(t, "a registration that is not refreshed ends everywhere", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		c.Sleep(time.Hour + time.Second)
		c.gone(t, alice)
	})
	run(t, "a phone de-registers", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		ok := alice.Register("Expires: 0")
		want(t, ok, sipmsg.Contact)
		c.gone(t, alice)
	})
	run(t, "a star de-registers all phones", func(t *testing.T, c *ims) {
		alice := c.alice()
		second := c.NewPhone("b", "192.0.2.9:5060", "alice", "sip:alice@ims.test")
		registered(alice, second)
		if n := len(c.p[0].Bindings("sip:alice@ims.test")); n != 2 {
			t.Fatalf("%d bindings", n)
		}
		alice.Register("Contact: *", "Expires: 0")
		c.gone(t, alice)
	})
	run(t, "a replayed REGISTER changes nothing", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		m := alice.RegisterRequest("Expires: 0")
		alice.Send(m)
		alice.Expect(200, "REGISTER")
		registered(alice)
		replay := m.Clone()
		replay.Set(sipmsg.ViaHeader, "SIP/2.0/UDP 192.0.2.66:5060;branch=z9hG4bKreplay")
		evil := c.NewPhone("a", "192.0.2.66:5060", "evil", "sip:alice@ims.test")
		evil.Send(replay)
		resp := evil.Expect(401, "REGISTER")
		if !strings.Contains(values(resp, sipmsg.WWWAuthenticate)[0], "stale=true") {
			t.Errorf("not stale: %s", resp.Bytes())
		}
		if _, ok := c.s[0].Registration("sip:alice@ims.test"); !ok {
			t.Error("the replay ended the registration")
		}
	})
	run(t, "unknown users and foreign identities are refused alike", func(t *testing.T, c *ims) {
		for _, p := range []*Phone{
			c.NewPhone("a", "192.0.2.66:5060", "nobody", "sip:nobody@ims.test"),
			c.NewPhone("a", "192.0.2.67:5060", "alice", "sip:nobody@ims.test"),
		} {
			p.Send(p.RegisterRequest())
			p.Expect(403, "REGISTER")
		}
		alice := c.alice()
		alice.Send(alice.RegisterRequest())
		alice.Challenged(alice.Expect(401, "REGISTER"), "MD5")
		alice.AOR = "sip:carol@ims.test"
		alice.Send(alice.RegisterRequest())
		alice.Expect(403, "REGISTER")
	})
	run(t, "a barred identity registers its set and is not told of", func(t *testing.T, c *ims) {
		bob := c.bob()
		bob.AOR = "sip:bob-barred@ims.test"
		want(t, bob.Register(), sipmsg.PAssociatedURI, "<sip:bob@ims.test>", "<tel:+4930222>")
	})
	run(t, "implicit sets are registered one by one", func(t *testing.T, c *ims) {
		bob := c.bob()
		registered(bob)
		if _, ok := c.s[0].Registration("sip:bob.work@ims.test"); ok {
			t.Error("the other set is registered too")
		}
		bob.AOR = "sip:bob.work@ims.test"
		want(t, bob.Register(), sipmsg.PAssociatedURI, "<sip:bob.work@ims.test>")
		bob.AOR = "sip:bob@ims.test"
		bob.Register("Expires: 0")
		if _, ok := c.s[0].Registration("sip:bob.work@ims.test"); !ok {
			t.Error("the other set went too")
		}
		if _, ok := c.State().Assignment(state.SCSCF, "bob"); !ok {
			t.Error("the user lost its S-CSCF")
		}
	})
	run(t, "registrations survive a restart of every engine", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		for i := range 2 {
			for _, k := range kinds {
				c.start(k, i)
			}
		}
		alice.Call("MESSAGE", "sip:bob@ims.test")
		bob.Answer(bob.Expect(0, "MESSAGE"), 200)
		alice.Expect(200, "MESSAGE")
		alice.Send(alice.RegisterRequest()) // the nonce and its count survived
		alice.Expect(200, "REGISTER")
		c.Sleep(2 * time.Hour)
		c.gone(t, alice)
	})
	run(t, "what ended during an outage is cleared at the start", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		for _, k := range []state.Kind{state.PCSCF, state.SCSCF} {
			c.NewEngine(groups[k][0]).Start(nil) // stops the old one
		}
		c.Sleep(2 * time.Hour)
		c.start(state.PCSCF, 0)
		c.start(state.SCSCF, 0)
		c.Settle()
		c.gone(t, alice)
	})
}

// gone checks that nothing is left of a user.
func (c *ims) gone(t *testing.T, p *Phone) {
	t.Helper()
	c.Settle()
	for i := range 2 {
		if b := c.p[i].Bindings(p.AOR); len(b) != 0 {
			t.Errorf("bindings left: %+v", b)
		}
		if _, ok := c.s[i].Registration(p.AOR); ok {
			t.Error("registration left")
		}
		if got := c.Bound(groups[state.PCSCF][i]); len(got) != 0 {
			t.Errorf("flows left: %v", got)
		}
		if f := c.p[i].Figures(); f.Users != 0 || f.Bindings != 0 {
			t.Errorf("P figures %+v", f)
		}
	}
	if g, ok := c.State().Assignment(state.PCSCF, p.AOR); ok {
		t.Errorf("still assigned to P %d", g)
	}
	if g, ok := c.State().Assignment(state.SCSCF, p.IMPI); ok {
		t.Errorf("still assigned to S %d", g)
	}
}

func TestCall(t *testing.T) {
	run(t, "a call with PRACK, UPDATE, early media, re-INVITE and BYE", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		invite := alice.Call("INVITE", "sip:bob@ims.test", "P-Access-Network-Info: IEEE-802.11", "Content-Type: application/sdp", "X-Odd:  kept as it is")
		got := bob.Expect(0, "INVITE")
		if got.RequestURI() != "sip:192.0.2.2:5060" {
			t.Errorf("Request-URI %s", got.RequestURI())
		}
		want(t, got, sipmsg.PCalledPartyID, "<sip:bob@ims.test>")
		want(t, got, sipmsg.PAssertedIdentity, "<sip:alice@ims.test>", "<tel:+4930111>")
		want(t, got, sipmsg.PChargingVector)
		want(t, got, sipmsg.Route)
		want(t, got, sipmsg.MaxForwards, "65") // P S I S P
		if n := len(values(got, sipmsg.RecordRoute)); n != 4 {
			t.Errorf("%d Record-Route entries", n)
		}
		if n := len(values(got, sipmsg.ViaHeader)); n != 6 {
			t.Errorf("%d Via entries", n)
		}
		if v := slices.Collect(got.Named("X-Odd")); len(v) != 1 {
			t.Errorf("unknown header: %q", v)
		}
		if s := c.calls(); !slices.Equal(s, []string{"orig trying", "term trying"}) {
			t.Errorf("calls %v", s)
		}

		bob.Answer(got, 183, "Require: 100rel", "RSeq: 1")
		early := alice.Expect(183, "INVITE")
		want(t, early, sipmsg.PAssertedIdentity, "<sip:bob@ims.test>")
		want(t, early, sipmsg.PChargingVector)
		if s := c.calls(); !slices.Equal(s, []string{"orig ringing", "term ringing"}) {
			t.Errorf("calls %v", s)
		}
		for _, method := range []string{"PRACK", "UPDATE"} {
			alice.Send(alice.InDialog(method, invite, early))
			m := bob.Expect(0, method)
			want(t, m, sipmsg.Route)
			want(t, m, sipmsg.MaxForwards, "66") // P S S P, never I
			bob.Answer(m, 200)
			alice.Expect(200, method)
		}
		bob.Answer(got, 180)
		alice.Expect(180, "INVITE")
		ok := bob.Answer(got, 200)
		alice.Expect(200, "INVITE")
		alice.Send(alice.InDialog("ACK", invite, ok))
		bob.Expect(0, "ACK")
		if s := c.calls(); !slices.Equal(s, []string{"orig confirmed", "term confirmed"}) {
			t.Errorf("calls %v", s)
		}

		again := bob.InDialog("INVITE", got, ok)
		bob.Send(again)
		bobs := alice.Expect(0, "INVITE")
		want(t, bobs, sipmsg.Route)
		alice.Answer(bobs, 200)
		bob.Expect(200, "INVITE")
		bob.Send(bob.InDialog("ACK", got, ok))
		alice.Expect(0, "ACK")

		bye := bob.InDialog("BYE", got, ok)
		bob.Send(bye)
		alice.Answer(alice.Expect(0, "BYE"), 200)
		bob.Expect(200, "BYE")
		if s := c.calls(); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
		alice.Silent()
		bob.Silent()
	})
	run(t, "two users of the same groups call each other", func(t *testing.T, c *ims) {
		alice, carol := c.alice(), c.carol()
		registered(alice, c.bob(), carol)
		invite := alice.Call("INVITE", "sip:carol@ims.test")
		got := carol.Expect(0, "INVITE")
		ok := carol.Answer(got, 200)
		alice.Expect(200, "INVITE")
		alice.Send(alice.InDialog("ACK", invite, ok))
		carol.Expect(0, "ACK")
		if s := c.calls(); !slices.Equal(s, []string{"orig confirmed", "term confirmed"}) || c.s[0].Figures().Calls != 1 {
			t.Errorf("calls %v", s)
		}
		carol.Send(carol.InDialog("BYE", got, ok))
		alice.Answer(alice.Expect(0, "BYE"), 200)
		carol.Expect(200, "BYE")
		if s := c.calls(); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "busy", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		bob.Answer(bob.Expect(0, "INVITE"), 486)
		bob.Expect(0, "ACK")
		resp := alice.Expect(486, "INVITE")
		alice.AckRefusal(invite, resp)
		want(t, resp, sipmsg.PAssertedIdentity)
		bob.Silent() // the ACK is not forwarded
		if s := c.calls(); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "cancelled while it rings", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		got := bob.Expect(0, "INVITE")
		bob.Answer(got, 180)
		alice.Expect(180, "INVITE")
		alice.Cancel(invite)
		alice.Expect(200, "CANCEL")
		bob.Answer(bob.Expect(0, "CANCEL"), 200)
		bob.Answer(got, 487)
		bob.Expect(0, "ACK")
		alice.AckRefusal(invite, alice.Expect(487, "INVITE"))
		if s := c.calls(); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "nobody answers", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		got := bob.Expect(0, "INVITE")
		bob.Answer(got, 180)
		alice.Expect(180, "INVITE")
		c.Sleep(181 * time.Second)
		bob.Answer(bob.Expect(0, "CANCEL"), 200)
		bob.Answer(got, 487)
		alice.AckRefusal(invite, alice.Expect(408, "INVITE"))
		if s := c.calls(); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "a phone that is silent is given up", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		c.Sleep(32 * time.Second)
		alice.AckRefusal(invite, alice.Expect(408, "INVITE"))
	})
	run(t, "unknown, unregistered, foreign and barred targets", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		for uri, status := range map[string]int{
			"sip:nobody@ims.test":              604,
			"sip:carol@ims.test":               480,
			"sip:bob.work@ims.test":            480, // another set of a registered user
			"sip:bob-barred@ims.test":          404,
			"sip:bob@elsewhere.test":           404,
			"sip:192.0.2.2:5060":               404, // no way past the S-CSCF
			"tel:+4930999":                     404,
			"sip:+4930999@ims.test":            604,
			"sip:ims.test":                     404,
			"sip:+4930999@ims.test;user=phone": 604,
		} {
			invite := alice.Call("INVITE", uri)
			resp := alice.Next()
			if resp.Status() != status {
				t.Errorf("%s: %d, want %d", uri, resp.Status(), status)
			}
			alice.AckRefusal(invite, resp)
		}
		bob.Silent()
		if s := c.calls(); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "a number reaches its user in every form", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		for _, uri := range []string{"tel:+49-30-222", "sip:+4930222@ims.test;user=phone", "sip:+4930222@ims.test", "SIP:bob@IMS.test:5060;x=y"} {
			alice.Call("MESSAGE", uri)
			got := bob.Expect(0, "MESSAGE")
			want(t, got, sipmsg.PCalledPartyID, "<"+uri+">")
			bob.Answer(got, 200)
			alice.Expect(200, "MESSAGE")
		}
	})
	run(t, "a MESSAGE and unknown methods pass without Record-Route", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		for _, method := range []string{"MESSAGE", "OPTIONS", "FROBNICATE", "invite"} {
			m := alice.Request(method, "sip:bob@ims.test")
			m.SetBody("text/plain", []byte("hello\x00\xff"))
			alice.Send(m)
			got := bob.Expect(0, method)
			want(t, got, sipmsg.RecordRoute)
			if string(got.Body()) != "hello\x00\xff" {
				t.Errorf("body %q", got.Body())
			}
			bob.Answer(got, 200)
			alice.Expect(200, method)
		}
	})
	run(t, "a call survives the de-registration of both phones", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		got := bob.Expect(0, "INVITE")
		ok := bob.Answer(got, 200)
		alice.Expect(200, "INVITE")
		alice.Send(alice.InDialog("ACK", invite, ok))
		bob.Expect(0, "ACK")
		alice.Register("Expires: 0")
		bob.Register("Expires: 0")
		bob.Send(bob.InDialog("BYE", got, ok))
		alice.Answer(alice.Expect(0, "BYE"), 200)
		bob.Expect(200, "BYE")
		alice.Call("MESSAGE", "sip:bob@ims.test")
		alice.Expect(403, "MESSAGE")
	})
	run(t, "a phone that reconnects is reached over its new connection", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		bob.Contact = `<sip:bob@192.0.2.2:5060;transport=tcp>;reg-id=1;+sip.instance="<urn:uuid:0001>"`
		bob.Reconnect("192.0.2.2:40001")
		registered(alice, bob)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		ok := bob.Answer(bob.Expect(0, "INVITE"), 200)
		alice.Expect(200, "INVITE")
		bob.Reconnect("192.0.2.2:40002")
		bob.Contact = `<sip:bob@192.0.2.2:40002;transport=tcp>;reg-id=1;+sip.instance="<urn:uuid:0001>"`
		registered(bob)
		if b := c.p[1].Bindings("sip:bob@ims.test"); len(b) != 1 || b[0].Flow != bob.Flow {
			t.Fatalf("bindings %+v", b)
		}
		alice.Send(alice.InDialog("BYE", invite, ok))
		bob.Answer(bob.Expect(0, "BYE"), 200)
		alice.Expect(200, "BYE")
	})
	run(t, "a subscriber who is removed or barred is cut off at once", func(t *testing.T, c *ims) {
		alice, bob, carol := c.alice(), c.bob(), c.carol()
		registered(alice, bob, carol)
		c.Subscriber("bob", "!sip:bob@ims.test", "tel:+4930222")
		c.Apply(state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "carol"}})
		for p, status := range map[*Phone]int{bob: 403, carol: 403} {
			p.Call("MESSAGE", "sip:alice@ims.test")
			p.Expect(status, "MESSAGE")
		}
		alice.Call("MESSAGE", "sip:bob@ims.test")
		alice.Expect(404, "MESSAGE")
		alice.Call("MESSAGE", "sip:carol@ims.test")
		alice.Expect(604, "MESSAGE")
	})
}

func TestForks(t *testing.T) {
	phones := func(c *ims, q ...string) []*Phone {
		var out []*Phone
		for i, v := range q {
			p := c.NewPhone([]string{"a", "b"}[i%2], "192.0.2.1"+string(rune('0'+i))+":5060", "bob", "sip:bob@ims.test")
			p.Contact += ";q=" + v
			// Each phone has its own Call-ID, as Node is part of it.
			p.Register("Call-ID: phone" + v + string(rune('0'+i)))
			out = append(out, p)
		}
		return out
	}
	run(t, "phones of equal q ring together, the first to answer wins", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		bobs := phones(c, "0.5", "0.5")
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		first, second := bobs[0].Expect(0, "INVITE"), bobs[1].Expect(0, "INVITE")
		bobs[0].Answer(first, 180)
		bobs[1].Answer(second, 180)
		alice.Expect(180, "INVITE")
		alice.Expect(180, "INVITE")
		ok := bobs[1].Answer(second, 200)
		alice.Expect(200, "INVITE")
		alice.Send(alice.InDialog("ACK", invite, ok))
		bobs[1].Expect(0, "ACK")
		bobs[0].Answer(bobs[0].Expect(0, "CANCEL"), 200)
		bobs[0].Answer(first, 487)
		bobs[0].Expect(0, "ACK")
		alice.Silent()
		if s := c.calls(); !slices.Equal(s, []string{"orig confirmed", "term confirmed"}) {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "lower q rings when the higher one is busy", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		bobs := phones(c, "0.1", "0.9")
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		bobs[0].Silent()
		bobs[1].Answer(bobs[1].Expect(0, "INVITE"), 486)
		bobs[1].Expect(0, "ACK")
		bobs[0].Answer(bobs[0].Expect(0, "INVITE"), 603)
		alice.AckRefusal(invite, alice.Expect(603, "INVITE"))
	})
	run(t, "a call to two phones is cancelled at both", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		bobs := phones(c, "1.0", "1.0")
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		var got []*sipmsg.Message
		for _, b := range bobs {
			got = append(got, b.Expect(0, "INVITE"))
			b.Answer(got[len(got)-1], 180)
			alice.Expect(180, "INVITE")
		}
		alice.Cancel(invite)
		alice.Expect(200, "CANCEL")
		for i, b := range bobs {
			b.Answer(b.Expect(0, "CANCEL"), 200)
			b.Answer(got[i], 487)
		}
		alice.AckRefusal(invite, alice.Expect(487, "INVITE"))
		alice.Silent()
	})
}

func TestIdentity(t *testing.T) {
	run(t, "what a phone claims without right is not passed on", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		alice.Call("MESSAGE", "sip:bob@ims.test",
			"p-asserted-identity: <sip:carol@ims.test>", "P-ASSERTED-IDENTITY: <tel:+1>",
			"P-Charging-Vector: icid-value=x", "P-Charging-Function-Addresses: ccf=x", "p-served-user: <sip:carol@ims.test>",
			"P-Called-Party-ID: <sip:carol@ims.test>", "P-Preferred-Identity: <sip:carol@ims.test>",
			"From: <sip:carol@ims.test>;tag=1")
		got := bob.Expect(0, "MESSAGE")
		want(t, got, sipmsg.PAssertedIdentity, "<sip:alice@ims.test>", "<tel:+4930111>")
		want(t, got, sipmsg.PCalledPartyID, "<sip:bob@ims.test>")
		for _, h := range []sipmsg.Header{sipmsg.PChargingVector, sipmsg.PChargingFunctionAddresses, sipmsg.PServedUser, sipmsg.PPreferredIdentity} {
			want(t, got, h)
		}
		bob.Answer(got, 200, "P-Asserted-Identity: <sip:carol@ims.test>")
		want(t, alice.Expect(200, "MESSAGE"), sipmsg.PAssertedIdentity, "<sip:bob@ims.test>")
	})
	run(t, "the preferred identity of the set is asserted", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		alice.Call("MESSAGE", "sip:bob@ims.test", `P-Preferred-Identity: "Alice" <tel:+49-30-111>`)
		got := bob.Expect(0, "MESSAGE")
		want(t, got, sipmsg.PAssertedIdentity, "<tel:+4930111>", "<sip:alice@ims.test>")
		bob.Answer(got, 200)
		alice.Expect(200, "MESSAGE")
	})
	run(t, "privacy hides the asserted identity from the phone, both ways", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		alice.Call("MESSAGE", "sip:bob@ims.test", "Privacy: user;ID")
		got := bob.Expect(0, "MESSAGE")
		want(t, got, sipmsg.PAssertedIdentity)
		want(t, got, sipmsg.Privacy, "user;ID")
		bob.Answer(got, 200, "Privacy: id")
		want(t, alice.Expect(200, "MESSAGE"), sipmsg.PAssertedIdentity)
	})
	run(t, "a phone's Route is overwritten by its Service-Route", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		for _, route := range []string{
			"Route: <sip:192.0.2.99;lr>",
			"Route: <sip:127.0.0.1:5060;lr>",
			"Route: " + bob.ServiceRoute[0],
			"Route: <sip:127.0.0.1;lr>, " + alice.ServiceRoute[0],
		} {
			alice.Call("MESSAGE", "sip:bob@ims.test", route)
			got := bob.Expect(0, "MESSAGE")
			want(t, got, sipmsg.PAssertedIdentity, "<sip:alice@ims.test>", "<tel:+4930111>")
			bob.Answer(got, 200)
			alice.Expect(200, "MESSAGE")
		}
		if n := c.p[0].Figures().Overwritten; n != 2 {
			t.Errorf("%d overwritten", n)
		}
	})
	run(t, "users who share a flow are told apart", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		carol := c.NewPhone("a", "192.0.2.1:5060", "carol", "sip:carol@ims.test")
		registered(carol)
		bob := c.bob()
		registered(bob)
		carol.Call("MESSAGE", "sip:bob@ims.test")
		got := bob.Expect(0, "MESSAGE")
		want(t, got, sipmsg.PAssertedIdentity, "<sip:carol@ims.test>")
		bob.Answer(got, 200)
		carol.Expect(200, "MESSAGE")
		carol.Call("MESSAGE", "sip:bob@ims.test", "From: <sip:nobody@ims.test>;tag=1")
		carol.Expect(403, "MESSAGE")
	})
	run(t, "nobody rides on another phone's dialog", func(t *testing.T, c *ims) {
		alice, bob, carol := c.alice(), c.bob(), c.carol()
		registered(alice, bob, carol)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		ok := bob.Answer(bob.Expect(0, "INVITE"), 200)
		alice.Expect(200, "INVITE")
		alice.Send(alice.InDialog("ACK", invite, ok))
		bob.Expect(0, "ACK")
		bye := alice.InDialog("BYE", invite, ok)
		bye.Set(sipmsg.ViaHeader, "SIP/2.0/UDP 192.0.2.3:5060;branch=z9hG4bKcarol")
		carol.Send(bye)
		carol.Expect(403, "BYE")
		stranger := c.NewPhone("a", "192.0.2.66:5060", "evil", "sip:evil@ims.test")
		bye.Set(sipmsg.ViaHeader, "SIP/2.0/UDP 192.0.2.66:5060;branch=z9hG4bKevil")
		stranger.Send(bye)
		stranger.Expect(403, "BYE")
		skipping := alice.InDialog("BYE", invite, ok)
		routes := values(skipping, sipmsg.Route)
		skipping.Set(sipmsg.Route, routes[0]+", "+routes[3]) // straight to bob's P-CSCF
		alice.Send(skipping)
		alice.Expect(403, "BYE")
		bob.Silent()
	})
	run(t, "a flow without registration gets nothing but an answer to OPTIONS", func(t *testing.T, c *ims) {
		bob := c.bob()
		registered(bob)
		stranger := c.NewPhone("b", "192.0.2.66:5060", "evil", "sip:alice@ims.test")
		stranger.Call("MESSAGE", "sip:bob@ims.test")
		stranger.Expect(403, "MESSAGE")
		stranger.Call("MESSAGE", "sip:bob@ims.test", "Route: "+bob.ServiceRoute[0])
		stranger.Expect(403, "MESSAGE")
		stranger.Call("OPTIONS", "sip:ims.test")
		stranger.Expect(200, "OPTIONS")
		stranger.Call("OPTIONS", "sip:127.0.0.1")
		stranger.Expect(200, "OPTIONS")
		bob.Silent()
	})
}

// Phones register and de-register without waiting for one another, each one for
// its own answers only (RFC 3261 §10.2). Whatever came of it, the P-CSCFs, the
// S-CSCFs and the cluster state must agree.
func TestChurn(t *testing.T) {
	run(t, "everybody agrees in the end", func(t *testing.T, c *ims) {
		random := rand.New(rand.NewPCG(1, 2))
		var phones []*Phone
		for u := range 12 {
			impi := fmt.Sprintf("user%d", u)
			c.Subscriber(impi, "sip:"+impi+"@ims.test", "tel:+4930"+fmt.Sprint(1000+u))
			for i, node := range []string{"a", "b"} {
				p := c.NewPhone(node, fmt.Sprintf("192.0.2.%d:506%d", 100+u, i), impi, "sip:"+impi+"@ims.test")
				registered(p)
				p.Post(p.RegisterRequest())
				phones = append(phones, p)
			}
		}
		for round := range 40 {
			for range 20 {
				p := phones[random.IntN(len(phones))]
				if !p.Answered() {
					continue
				}
				if random.IntN(2) == 0 {
					p.Post(p.RegisterRequest("Expires: 0"))
				} else {
					p.Post(p.RegisterRequest("Expires: 100"))
				}
			}
			if round%10 == 9 {
				c.Sleep(time.Duration(random.IntN(150)) * time.Second)
			}
		}
		c.Settle()
		users := [2]int{}
		for _, p := range phones {
			p.Drain()
			at := 0
			for i := range 2 {
				b := c.p[i].Bindings(p.AOR)
				r, known := c.s[i].Registration(p.AOR)
				g, assigned := c.State().Assignment(state.SCSCF, p.IMPI)
				if known != (assigned && g == groups[state.SCSCF][i]) {
					t.Errorf("%s: at S-CSCF %d registered %t, assigned %t to %d", p.AOR, i, known, assigned, g)
				}
				g, assigned = c.State().Assignment(state.PCSCF, p.AOR)
				if assigned && g == groups[state.PCSCF][i] && len(b) == 0 {
					t.Errorf("%s: at P-CSCF %d %d bindings, assigned %t to %d", p.AOR, i, len(b), assigned, g)
				}
				at += len(b) - len(r.Contacts)
				users[i] += len(b)
			}
			if at != 0 {
				t.Errorf("%s: P- and S-CSCF differ by %d contacts", p.AOR, at)
			}
		}
		for i := range 2 {
			if n := c.p[i].Figures().Bindings; 2*n != users[i] {
				t.Errorf("P-CSCF %d counts %d bindings, has %d", i, n, users[i]/2)
			}
		}
		c.Sleep(10 * time.Minute)
		for _, k := range []state.Kind{state.PCSCF, state.SCSCF} {
			for user := range c.State().Assignments(k) {
				t.Errorf("%s: %s is still assigned", k, user)
			}
		}
	})
}
