package cscftest_test

import (
	"strings"
	"testing"
	"time"

	"bellwether/controller/state"
	. "bellwether/cscf/cscftest"
	bwdigest "bellwether/cscf/digest"
	"bellwether/cscf/sipmsg"
)

// talking sets up a call from one phone to another.
func talking(caller, called *Phone) (invite, got, ok *sipmsg.Message) {
	invite = caller.Call("INVITE", called.AOR)
	got = called.Expect(0, "INVITE")
	ok = called.Answer(got, 200)
	caller.Expect(200, "INVITE")
	caller.Send(caller.InDialog("ACK", invite, ok))
	called.Expect(0, "ACK")
	return invite, got, ok
}

// from writes the Via of another phone into a message.
func from(p *Phone, m *sipmsg.Message, branch string) *sipmsg.Message {
	m.Set(sipmsg.ViaHeader, "SIP/2.0/"+p.Flow.Transport.String()+" "+p.Addr.String()+";rport;branch=z9hG4bK"+branch)
	return m
}

// TestAUserWhoKnowsAllOfACall has carol, who is registered at the same P- and
// S-CSCF as alice, know all that was ever written in a call of alice and bob.
func TestAUserWhoKnowsAllOfACall(t *testing.T) {
	run(t, "cannot send anything in it", func(t *testing.T, c *ims) {
		alice, bob, carol := c.alice(), c.bob(), c.carol()
		registered(alice, bob)
		path := values(carol.Register(), sipmsg.Path)[0]
		invite, got, ok := talking(alice, bob)
		for _, method := range []string{"INFO", "UPDATE", "INVITE", "BYE", "ACK"} {
			routes := values(alice.InDialog(method, invite, ok), sipmsg.Route)
			for name, route := range map[string]string{
				"by the whole way":    path + ", " + strings.Join(routes[1:], ", "),
				"by a way to nowhere": path + ", " + routes[1],
				"by bob's S-CSCF":     path + ", " + strings.Join(routes[2:], ", "),
				"back to herself":     path + ", " + routes[1] + ", " + path,
			} {
				m := from(carol, alice.InDialog(method, invite, ok), "evil"+strings.ReplaceAll(name, " ", "")+method)
				m.Set(sipmsg.Route, route)
				carol.Send(m)
				if method != "ACK" {
					if resp := carol.Next(); resp.Status() != 403 && resp.Status() != 404 && resp.Status() != 481 {
						t.Errorf("%s %s: answered %d", method, name, resp.Status())
					}
				}
				bob.Silent()
				m = from(carol, bob.InDialog(method, got, ok), "live"+strings.ReplaceAll(name, " ", "")+method)
				m.Set(sipmsg.Route, route)
				carol.Send(m)
				carol.Drain()
				alice.Silent()
				bob.Silent()
			}
		}
		bye := alice.InDialog("BYE", invite, ok)
		alice.Send(bye)
		m := bob.Expect(0, "BYE")
		want(t, m, sipmsg.PAssertedIdentity)
		bob.Answer(m, 200)
		alice.Expect(200, "BYE")
	})
	run(t, "cannot take it over by calls of the same Call-ID and tags", func(t *testing.T, c *ims) {
		alice, bob, carol := c.alice(), c.bob(), c.carol()
		registered(alice, bob, carol)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		got := bob.Expect(0, "INVITE")
		bob.Answer(got, 180)
		alice.Expect(180, "INVITE")
		callID := "Call-ID: " + invite.CallID()
		for _, tag := range []string{invite.FromTag(), bob.Response(got, 180).ToTag()} {
			carol.Send(carol.Request("INVITE", "sip:bob@ims.test", callID, "From: <sip:carol@ims.test>;tag="+tag))
			refuseAll(bob, 486)
			carol.Drain()
			carol.Send(carol.Request("SUBSCRIBE", "sip:bob@ims.test", callID, "Expires: 1", "From: <sip:alice@ims.test>;tag="+tag, "P-Preferred-Identity: <sip:carol@ims.test>"))
			refuseAll(bob, 489)
			carol.Drain()
		}
		alice.Drain()
		ok := bob.Answer(got, 200)
		alice.Expect(200, "INVITE")
		alice.Send(alice.InDialog("ACK", invite, ok))
		bob.Expect(0, "ACK")
		for _, tag := range []string{invite.FromTag(), ok.ToTag()} {
			carol.Send(carol.Request("INVITE", "sip:bob@ims.test", callID, "From: <sip:carol@ims.test>;tag="+tag))
			refuseAll(bob, 486)
			carol.Drain()
		}
		bob.Send(bob.InDialog("BYE", got, ok))
		alice.Answer(alice.Expect(0, "BYE"), 200)
		bob.Expect(200, "BYE")
		carol.Drain()
	})
	run(t, "cannot cancel it", func(t *testing.T, c *ims) {
		alice, bob, carol := c.alice(), c.bob(), c.carol()
		registered(alice, bob, carol)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		got := bob.Expect(0, "INVITE")
		bob.Answer(got, 180)
		alice.Expect(180, "INVITE")
		carol.Send(CancelOf(invite))
		carol.Expect(481, "CANCEL")
		bob.Silent()
		// Nor does her request pass for alice's repeated one.
		carol.Send(invite.Clone())
		alice.Silent()
		alice.Cancel(invite)
		alice.Expect(200, "CANCEL")
		bob.Drain() // the CANCEL, and what carol wants of him
		bob.Answer(got, 487)
		alice.Expect(487, "INVITE")
		c.Sleep(4 * time.Minute)
		bob.Drain()
	})
	run(t, "cannot answer it", func(t *testing.T, c *ims) {
		alice, bob, carol := c.alice(), c.bob(), c.carol()
		registered(alice, bob, carol)
		alice.Call("INVITE", "sip:bob@ims.test")
		got := bob.Expect(0, "INVITE")
		for _, status := range []int{180, 200, 486} {
			carol.Send(got.Response(status, "", "evil"))
		}
		alice.Silent()
		bob.Answer(got, 486)
		alice.Expect(486, "INVITE")
		bob.Drain()
	})
}

// refuseAll answers whatever requests a phone has, but ACKs.
func refuseAll(p *Phone, status int) {
	for {
		m, ok := p.Take()
		if !ok {
			return
		}
		if m.IsRequest() && m.Method() != "ACK" {
			p.Answer(m, status)
		}
	}
}

func TestACapturedRegistrationIsOfNoUse(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Second, 30 * time.Second} {
		run(t, "at another S-CSCF, "+wait.String()+" after the user has gone", func(t *testing.T, c *ims) {
			alice := c.alice()
			registered(alice)
			m := alice.RegisterRequest()
			alice.Send(m)
			alice.Expect(200, "REGISTER")
			alice.Register("Expires: 0")
			registered(c.carol()) // now the other group has the fewest users
			c.Sleep(wait)
			evil := c.NewPhone("a", "192.0.2.66:5060", "evil", "sip:alice@ims.test")
			evil.Send(from(evil, m.Clone(), "replay"))
			evil.Expect(401, "REGISTER")
			if g, ok := c.State().Assignment(state.SCSCF, "alice"); ok {
				t.Errorf("assigned to S %d", g)
			}
		})
		run(t, "of a SIM at another S-CSCF, "+wait.String()+" after the user has gone", func(t *testing.T, c *ims) {
			sim := c.card("sim")
			p := c.NewPhone("a", "192.0.2.71:5060", "sim", "sip:sim@ims.test")
			p.Send(p.RegisterRequest())
			m := answerBySIM(t, p, sim, p.Expect(401, "REGISTER"))
			p.Send(m)
			p.Expect(200, "REGISTER")
			p.Send(p.RegisterRequest())
			leave := answerBySIM(t, p, sim, p.Expect(401, "REGISTER"))
			leave.Set(sipmsg.Expires, "0")
			p.Send(leave)
			p.Expect(200, "REGISTER")
			registered(c.carol())
			c.Sleep(wait)
			evil := c.NewPhone("a", "192.0.2.66:5060", "evil", "sip:sim@ims.test")
			evil.Send(from(evil, m.Clone(), "replay"))
			evil.Expect(401, "REGISTER")
			if g, ok := c.State().Assignment(state.SCSCF, "sim"); ok {
				t.Errorf("assigned to S %d", g)
			}
		})
	}
}

func TestARefusedRegistrationUsesItsCredentialsUp(t *testing.T) {
	run(t, "also over a restart", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		m := alice.RegisterRequest("Expires: 1")
		alice.Send(m)
		alice.Expect(423, "REGISTER")
		for i := range 2 {
			c.start(state.SCSCF, i)
		}
		evil := c.NewPhone("a", "192.0.2.66:5060", "evil", "sip:alice@ims.test")
		replay := from(evil, m.Clone(), "replay") // the digest covers neither Contact nor Expires
		replay.Set(sipmsg.Expires, "600")
		replay.Set(sipmsg.Contact, evil.Contact)
		evil.Send(replay)
		evil.Expect(401, "REGISTER")
	})
}

func TestAConnectionIsNoOther(t *testing.T) {
	run(t, "though it comes from the same port of the same NAT", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		alice.Contact = "<sip:alice@10.0.0.7:5060;transport=tcp>"
		alice.Reconnect("192.0.2.1:40000")
		registered(alice, bob)
		invite, _, ok := talking(alice, bob)
		alice.Reconnect("192.0.2.1:40000")
		alice.Call("MESSAGE", "sip:bob@ims.test")
		alice.Expect(403, "MESSAGE")
		alice.Send(alice.InDialog("BYE", invite, ok))
		alice.Expect(403, "BYE")
		bob.Silent()
	})
}

func TestAnAnswerFindsTheSCSCFThatAsked(t *testing.T) {
	run(t, "though the reservation is lost with the leader", func(t *testing.T, c *ims) {
		alice := c.alice()
		alice.Send(alice.RegisterRequest())
		alice.Challenged(alice.Expect(401, "REGISTER"), bwdigest.SHA256)
		c.ForgetReservations()
		registered(c.carol()) // at the S-CSCF that challenged alice: the other one has the fewest users now
		alice.Send(alice.RegisterRequest())
		alice.Expect(200, "REGISTER")
		c.ForgetReservations()
		alice.Send(alice.RegisterRequest("Expires: 0"))
		alice.Expect(200, "REGISTER")
		c.Sleep(time.Minute)
		alice.Send(alice.RegisterRequest())
		alice.Expect(401, "REGISTER") // that time is over: another one has a place for her
	})
}

func TestACallThatIsCancelledWhileItsNextHopIsAwayLeavesNothing(t *testing.T) {
	run(t, "at either S-CSCF", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		for _, away := range []state.GroupID{4, 6, 2, 5} {
			c.Isolate(away, true)
			invite := alice.Call("INVITE", "sip:bob@ims.test")
			alice.Cancel(invite)
			c.Isolate(away, false)
			c.Sleep(time.Minute)
			alice.Drain()
			refuseAll(bob, 487)
		}
		c.Sleep(6 * time.Minute)
		if s := c.calls(); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
		for _, s := range c.s {
			if n := s.Figures().Calls; n != 0 {
				t.Errorf("%d calls counted", n)
			}
		}
	})
}
