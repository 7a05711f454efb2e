package cscftest_test

import (
	"strings"
	"testing"

	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

func TestIdentity(t *testing.T) {
	run(t, "what a phone claims without right is not passed on", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		alice.Call("MESSAGE", "sip:bob@ims.test",
			"p-asserted-identity: <sip:carol@ims.test>", "P-ASSERTED-IDENTITY: <tel:+1>",
			"P-Charging-Vector: icid-value=x", "P-Charging-Function-Addresses: ccf=x", "p-served-user: <sip:carol@ims.test>",
			"P-Called-Party-ID: <sip:carol@ims.test>", "P-Preferred-Identity: <sip:carol@ims.test>",
			"P-Access-Network-Info: 3GPP-E-UTRAN-FDD;utran-cell-id-3gpp=1", "From: <sip:carol@ims.test>;tag=1")
		got := bob.Expect(0, "MESSAGE")
		want(t, got, sipmsg.PAssertedIdentity, "<sip:alice@ims.test>", "<tel:+4930111>")
		want(t, got, sipmsg.PCalledPartyID, "<sip:bob@ims.test>")
		for _, h := range []sipmsg.Header{sipmsg.PChargingVector, sipmsg.PChargingFunctionAddresses, sipmsg.PServedUser, sipmsg.PPreferredIdentity, sipmsg.PAccessNetworkInfo} {
			want(t, got, h)
		}
		bob.Answer(got, 200, "P-Asserted-Identity: <sip:carol@ims.test>", "P-Access-Network-Info: 3GPP-E-UTRAN-FDD;utran-cell-id-3gpp=1", "P-Charging-Vector: icid-value=x")
		ok := alice.Expect(200, "MESSAGE")
		want(t, ok, sipmsg.PAssertedIdentity, "<sip:bob@ims.test>")
		want(t, ok, sipmsg.PAccessNetworkInfo)
		want(t, ok, sipmsg.PChargingVector)
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
	run(t, "the called phone cannot answer past its P-CSCF", func(t *testing.T, c *ims) {
		alice, bob := c.alice(), c.bob()
		registered(alice, bob)
		for _, method := range []string{"INVITE", "MESSAGE"} {
			req := alice.Call(method, "sip:bob@ims.test")
			got := bob.Expect(0, method)
			vias := values(got, sipmsg.ViaHeader)
			// inject answers in the place of the engine that each Via of ours
			// leads to, but the own P-CSCF.
			inject := func(status int) {
				for i, v := range vias[1 : len(vias)-1] {
					via, err := sipmsg.ParseVia(v)
					if err != nil {
						t.Fatal(err)
					}
					tok, _ := token.FromBranch(via.Branch())
					at, ok := c.Sealer.Open(tok)
					if !ok {
						t.Fatalf("no token in %s", v)
					}
					forged := got.Response(status, "", "forged")
					forged.Set(sipmsg.ViaHeader, strings.Join(vias[i+1:], ", "))
					forged.Add(sipmsg.PAssertedIdentity, "<sip:carol@ims.test>")
					for _, e := range c.e {
						if e.Group == at.Group {
							e.Deliver(transaction.Peer{Flow: bob.Flow}, reparsed(t, forged))
						}
					}
				}
			}
			inject(200)
			inject(486)
			alice.Silent()
			ok := bob.Answer(got, 200)
			want(t, alice.Expect(200, method), sipmsg.PAssertedIdentity, "<sip:bob@ims.test>")
			if method == "INVITE" {
				alice.Send(alice.InDialog("ACK", req, ok))
				bob.Expect(0, "ACK")
			}
			// A successor, and a transaction that has ended, know no branch.
			for i := range 2 {
				for _, k := range kinds {
					c.start(k, i)
				}
			}
			inject(200)
			alice.Silent()
		}
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
	run(t, "nobody takes the identity of another user of the same P-CSCF", func(t *testing.T, c *ims) {
		alice, bob, carol := c.alice(), c.bob(), c.carol()
		registered(alice, bob, carol)
		if n := len(c.p[0].Users()); n != 2 {
			t.Fatalf("%d users at the P-CSCF of both", n)
		}
		for _, uri := range []string{
			"sip:carol@ims.test", "SIP:carol@IMS.TEST", "sips:carol@ims.test", "sip:%63arol@ims.test", "sip:carol@ims.test.", "sip:carol@ims.test:5060",
			"sip:carol:secret@ims.test", "sip:carol@ims.test;user=phone", "sip:carol@ims.test;transport=tcp?x=y",
		} {
			for _, headers := range [][]string{
				{"From: <" + uri + ">;tag=1"},
				{"P-Preferred-Identity: <" + uri + ">"},
				{"P-Preferred-Identity: <" + uri + ">, <" + uri + ">, <tel:+4930111>"},
				{"p-preferred-identity: \"Alice\" <" + uri + ">", "P-Preferred-Identity: <" + uri + ">"},
				{"P-Asserted-Identity: <" + uri + ">", "From: \"sip:alice@ims.test\" <" + uri + ">;tag=1"},
			} {
				alice.Call("MESSAGE", "sip:bob@ims.test", headers...)
				got := bob.Expect(0, "MESSAGE")
				want(t, got, sipmsg.PAssertedIdentity, "<sip:alice@ims.test>", "<tel:+4930111>")
				want(t, got, sipmsg.PPreferredIdentity)
				bob.Answer(got, 200)
				alice.Expect(200, "MESSAGE")
			}
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
		// The token of a phone that is no more is of use to nobody without a
		// registration.
		bye.Set(sipmsg.ViaHeader, "SIP/2.0/UDP 192.0.2.66:5060;branch=z9hG4bKevil2")
		routes := values(bye, sipmsg.Route)
		routes[0] = c.Route(token.Token{Mode: token.Binding, Group: 1, Binding: 99})
		bye.Set(sipmsg.Route, strings.Join(routes, ", "))
		stranger.Send(bye)
		stranger.Expect(403, "BYE")
		claims := alice.InDialog("UPDATE", invite, ok, "P-Asserted-Identity: <sip:carol@ims.test>", "P-Preferred-Identity: <sip:carol@ims.test>", "P-Served-User: <sip:carol@ims.test>")
		alice.Send(claims)
		got := bob.Expect(0, "UPDATE")
		for _, h := range []sipmsg.Header{sipmsg.PAssertedIdentity, sipmsg.PPreferredIdentity, sipmsg.PServedUser} {
			want(t, got, h)
		}
		bob.Answer(got, 200)
		alice.Expect(200, "UPDATE")
		skipping := alice.InDialog("BYE", invite, ok)
		routes = values(skipping, sipmsg.Route)
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

// reparsed is a message as the wire brings it.
func reparsed(t *testing.T, m *sipmsg.Message) *sipmsg.Message { return mustParse(t, m.Append(nil)) }

func TestAnEngineThatTheStateDoesNotKnowYetIsNoIntruder(t *testing.T) {
	run(t, "it is answered 504, so that it tries again", func(t *testing.T, c *ims) {
		answers := make(chan int, len(c.e))
		c.Lose(func(to transaction.Peer, m *sipmsg.Message) bool {
			if to.Group == 99 {
				answers <- m.Status()
			}
			return to.Group == 99
		})
		for _, e := range c.e {
			m := c.alice().Request("MESSAGE", "sip:bob@ims.test", "Route: "+c.Route(token.Token{Mode: token.Binding, Group: e.Group, Binding: 1}))
			e.Deliver(transaction.Peer{Group: 99}, m)
			c.Settle()
			select {
			case status := <-answers:
				if status != 504 {
					t.Errorf("group %d answered %d", e.Group, status)
				}
			default:
				t.Errorf("group %d did not answer", e.Group)
			}
		}
	})
}
