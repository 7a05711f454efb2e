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
	bwdigest "bellwether/cscf/digest"
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
	home := hss.NewEmbedded(hss.Config{State: c.State, Realm: Domain, Node: string("ab"[i]), Propose: e.Propose})
	switch k {
	case state.PCSCF:
		r := pcscf.New(pcscf.Config{Group: g, Sealer: c.Sealer, ServiceAddr: c.ServiceAddrs(g), Domain: Domain}, e, c.Store)
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
	run(t, "a set that was registered by several identities ends as one", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		alice.AOR = "tel:+4930111"
		registered(alice)
		if n := len(c.p[0].Users()); n != 2 {
			t.Fatalf("%d users", n)
		}
		ok := alice.Register("Expires: 0")
		want(t, ok, sipmsg.Contact)
		c.gone(t, alice)
		alice.AOR = "sip:alice@ims.test"
		c.gone(t, alice)
		c.Sleep(2 * time.Hour)
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
	run(t, "the right password under another name is none", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		m := alice.RegisterRequest()
		v, _ := m.Value(sipmsg.Authorization)
		m.Set(sipmsg.Authorization, strings.Replace(v, `username="alice"`, `username="bob"`, 1))
		alice.Send(m)
		alice.Expect(401, "REGISTER")
	})
	run(t, "who has no secret for an algorithm cannot be registered with it by anybody", func(t *testing.T, c *ims) {
		host := 65
		for impi, has := range map[string]state.HA1{
			"md5": {"MD5": bwdigest.HA1(bwdigest.MD5, "md5", Domain, "md5")},
			"sha": {"SHA-256": bwdigest.HA1(bwdigest.SHA256, "sha", Domain, "sha")},
			"aka": {},
		} {
			c.Apply(state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{{
				IMPI: impi, Realm: Domain, HA1: has, Identities: []state.Identity{{URI: "sip:" + impi + "@ims.test"}},
			}}}})
			host++
			p := c.NewPhone("a", fmt.Sprintf("192.0.2.%d:5060", host), impi, "sip:"+impi+"@ims.test")
			for _, alg := range bwdigest.Algorithms {
				if has[string(alg)] != "" {
					continue
				}
				c.Sleep(time.Minute) // too many wrong answers end in 403
				for _, guess := range []string{"", bwdigest.HA1(alg, impi, Domain, ""), bwdigest.HA1(alg, "", "", "")} {
					p.Send(p.RegisterRequest())
					resp := p.Expect(401, "REGISTER")
					ch, err := nonceOf(resp)
					if err != nil {
						t.Fatal(err)
					}
					cred := bwdigest.Credentials{
						Username: impi, Realm: Domain, Nonce: ch, URI: "sip:" + Domain, Algorithm: alg, QOP: "auth", CNonce: "c", NC: "00000001",
					}
					m := p.RegisterRequest()
					m.Set(sipmsg.Authorization, fmt.Sprintf(`Digest username="%s", realm="%s", nonce="%s", uri="%s", algorithm=%s, qop=auth, cnonce="c", nc=00000001, response="%s"`,
						impi, Domain, ch, cred.URI, alg, cred.Expected("REGISTER", guess)))
					p.Send(m)
					p.Expect(401, "REGISTER")
				}
			}
		}
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

// nonceOf reads the nonce of a challenge.
func nonceOf(m *sipmsg.Message) (nonce string, err error) {
	v, _ := m.Value(sipmsg.WWWAuthenticate)
	_, params, err := sipmsg.ParseAuth(v)
	nonce, _ = params.Value("nonce")
	return nonce, err
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
