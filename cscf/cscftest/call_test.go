package cscftest_test

import (
	"slices"
	"testing"
	"time"

	"bellwether/controller/state"
	. "bellwether/cscf/cscftest"
	"bellwether/cscf/sipmsg"
)

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
			c.Sleep(300 * time.Millisecond) // the I-CSCF looks twice
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
