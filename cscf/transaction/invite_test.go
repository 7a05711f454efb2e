package transaction

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

func TestCallPassesThrough(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(alice, call{}.String())
		w.answer(bob, "INVITE", 100)
		w.sleep(time.Second)
		w.answer(bob, "INVITE", 180)
		w.sleep(time.Second)
		w.answer(bob, "INVITE", 200)
		w.expect(`
			0.0 > alice 100 INVITE
			0.0 > bob INVITE
			1.0 > alice 180 INVITE
			2.0 > alice 200 INVITE`)
		w.receive(alice, call{method: "ACK", branch: "z9hG4bKa2", toTag: "tag-bob"}.String())
		w.sleep(time.Minute)
		w.expect(`2.0 ack from alice`)
		if got := w.last(alice, "200 INVITE").ToTag(); got != "tag-bob" {
			t.Errorf("To tag of the 200 is %q", got)
		}
	})
}

func TestSlowRoleLetsTheLayerAnswer100Within200ms(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		var r *Request
		w.request = func(got *Request) { r = got }
		w.receive(alice, call{}.String())
		w.sleep(time.Second)
		w.expect(`0.2 > alice 100 INVITE`)
		if tag := w.last(alice, "100 INVITE").ToTag(); tag != "" {
			t.Errorf("100 has To tag %q", tag)
		}
		w.receive(alice, call{}.String())
		w.expect(`1.0 > alice 100 INVITE`)
		w.do(func() { r.Reply(100, "Soon", nil); r.Reply(486, "", nil) })
		w.expect(`
			1.0 > alice 100 INVITE
			1.0 > alice 486 INVITE`)
		if m := w.last(alice, "100 INVITE"); m.ToTag() != "" || m.Reason() != "Soon" {
			t.Errorf("the role's 100 is %q with To tag %q", m.Reason(), m.ToTag())
		}
		w.receive(alice, call{method: "ACK"}.String())
	})
}

func TestRefusalIsRepeatedUntilItsAck(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = func(r *Request) { r.Reply(404, "", nil) }
		w.receive(alice, call{}.String())
		w.sleep(4 * time.Second)
		w.receive(alice, call{}.String())
		w.receive(alice, call{method: "ACK"}.String())
		w.sleep(time.Second)
		w.receive(alice, call{}.String()) // late repeat, absorbed in Confirmed
		w.receive(alice, call{method: "ACK"}.String())
		w.sleep(time.Minute)
		w.expect(`
			0.0 > alice 404 INVITE
			0.5 > alice 404 INVITE
			1.5 > alice 404 INVITE
			3.5 > alice 404 INVITE
			4.0 > alice 404 INVITE`)
		if w.acks != 0 {
			t.Error("the ACK of a non-2xx reached the role")
		}
	})
}

func TestRefusalWithoutAckEndsAfter64T1(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = func(r *Request) { r.Reply(404, "", nil) }
		w.receive(alice, call{}.String())
		w.sleep(31 * time.Second)
		w.expect(`
			0.0 > alice 404 INVITE
			0.5 > alice 404 INVITE
			1.5 > alice 404 INVITE
			3.5 > alice 404 INVITE
			7.5 > alice 404 INVITE
			11.5 > alice 404 INVITE
			15.5 > alice 404 INVITE
			19.5 > alice 404 INVITE
			23.5 > alice 404 INVITE
			27.5 > alice 404 INVITE`)
		w.sleep(10 * time.Second)
		w.expect(`31.5 > alice 404 INVITE`)
		if servers, _ := w.len(); servers != 0 {
			t.Error("Timer H did not end the transaction")
		}
	})
}

func TestAckOfRefusalIsHopByHop(t *testing.T) {
	for _, c := range []struct {
		name     string
		up, down Peer
		trace    string
	}{
		{"over UDP", alice, bob, `
			0.0 > alice 100 INVITE
			0.0 > bob INVITE
			0.0 > bob ACK
			0.0 > alice 486 INVITE
			0.0 > bob ACK`}, // again for the repeated 486
		{"over TCP", tina, tom, `
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > tom ACK
			0.0 > tina 486 INVITE`},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(c.down)
				invite := call{extra: []string{"Route: <sip:one.test;lr>", "Route: <sip:two.test;lr>"}}
				w.receive(c.up, invite.String())
				w.answer(c.down, "INVITE", 486)
				w.answer(c.down, "INVITE", 486)
				w.receive(c.up, call{method: "ACK", toTag: "tag"}.String())
				w.expect(c.trace)
				if w.acks != 0 {
					t.Error("the ACK of a non-2xx reached the role")
				}
				sent, ack := w.last(c.down, "INVITE"), w.last(c.down, "ACK")
				sentVia, _ := sent.Value(sipmsg.ViaHeader)
				if vias := slices.Collect(ack.Values(sipmsg.ViaHeader)); !slices.Equal(vias, []string{sentVia}) {
					t.Errorf("Vias of the ACK are %q, want the INVITE's %q", vias, sentVia)
				}
				if got, want := slices.Collect(ack.Values(sipmsg.Route)), slices.Collect(sent.Values(sipmsg.Route)); !slices.Equal(got, want) {
					t.Errorf("Routes of the ACK are %q, want %q", got, want)
				}
				if ack.RequestURI() != sent.RequestURI() || ack.ToTag() != "tag-"+nameOf(c.down) {
					t.Errorf("the ACK is for %s with To tag %s", ack.RequestURI(), ack.ToTag())
				}
				if n, method := ack.CSeq(); n != 1 || method != "ACK" {
					t.Errorf("CSeq of the ACK is %d %s", n, method)
				}
			})
		})
	}
}

func TestInviteIsRepeatedOverUDPUntilTimerB(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(tina, call{}.String())
		w.sleep(time.Minute)
		w.receive(tina, call{method: "ACK"}.String())
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > bob INVITE
			0.5 > bob INVITE
			1.5 > bob INVITE
			3.5 > bob INVITE
			7.5 > bob INVITE
			15.5 > bob INVITE
			31.5 > bob INVITE
			32.0 > tina 408 INVITE`)
	})
}

func TestReliablePeersGetNoRepeats(t *testing.T) {
	for _, down := range []Peer{tom, near} {
		t.Run(nameOf(down), func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(down)
				w.receive(tina, call{}.String())
				w.sleep(time.Minute)
				w.receive(tina, call{method: "ACK"}.String())
				w.expect(`
					0.0 > tina 100 INVITE
					0.0 > ` + nameOf(down) + ` INVITE
					32.0 > tina 408 INVITE`)
			})
		})
	}
}

func TestEngineOfAnotherProcessGetsRepeats(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(far)
		w.receive(near, call{}.String())
		w.sleep(time.Second)
		w.answer(far, "INVITE", 180)
		w.expect(`
			0.0 > near 100 INVITE
			0.0 > far INVITE
			0.5 > far INVITE
			1.0 > near 180 INVITE`)
		w.answer(far, "INVITE", 200)
		w.expect(`1.0 > near 200 INVITE`)
	})
}

func TestAccepted2xxRepeatsAreForwardedAndInviteRepeatsAbsorbed(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(alice, call{}.String())
		w.answer(bob, "INVITE", 200)
		w.receive(alice, call{}.String())
		w.sleep(500 * time.Millisecond)
		w.answer(bob, "INVITE", 200)
		w.answer(bob, "INVITE", 180) // overtaken
		w.answer(bob, "INVITE", 486) // nonsense after a 2xx
		w.sleep(31 * time.Second)
		w.answer(bob, "INVITE", 200)
		w.receive(alice, call{}.String())
		w.expect(`
			0.0 > alice 100 INVITE
			0.0 > bob INVITE
			0.0 > alice 200 INVITE
			0.5 > alice 200 INVITE
			31.5 > alice 200 INVITE`)
		w.sleep(time.Minute)
		w.answer(bob, "INVITE", 200)
		if len(w.strays) != 1 {
			t.Errorf("strays after Timer M: %q, want the 200", w.strays)
		}
	})
}

func TestAckOf2xxWithTheBranchOfTheInviteGoesToTheRole(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(alice, call{}.String())
		w.answer(bob, "INVITE", 200)
		w.receive(alice, call{method: "ACK", toTag: "tag-bob"}.String())
		if w.acks != 1 {
			t.Errorf("%d ACKs reached the role, want 1", w.acks)
		}
	})
}

func TestRefusalFromDownstreamIsAcknowledgedAsOftenAsItComes(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(tina, call{}.String())
		w.answer(bob, "INVITE", 486)
		w.ack(tina, "486 INVITE")
		w.do(func() { w.trace = nil })
		w.sleep(31 * time.Second)
		w.answer(bob, "INVITE", 486)
		w.expect(`31.0 > bob ACK`)
		w.sleep(time.Second)
		if _, clients := w.len(); clients != 0 {
			t.Error("Timer D did not end the transaction")
		}
	})
}

func TestStrayResponses(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(tina, call{}.String())
		w.answer(bob, "INVITE", 486)
		w.receive(tina, call{method: "ACK"}.String())
		w.sleep(100 * time.Second)
		stray := func(status int) []string {
			w.strays = nil
			w.answer(bob, "INVITE", status)
			return w.strays
		}
		if got := stray(486); len(got) != 1 {
			t.Errorf("a predecessor's 486 in the recovery time: %q went to the role", got)
		}
		w.sleep(200 * time.Second)
		if got := stray(486); len(got) != 0 {
			t.Errorf("a stray 486 later: %q went to the role", got)
		}
		if got := stray(200); len(got) != 1 {
			t.Errorf("a stray 200 to INVITE: %q went to the role", got)
		}
	})
}

func TestStrayHasOurViaPopped(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		var got *sipmsg.Message
		w.request = to(bob)
		w.receive(alice, call{}.String())
		resp := w.last(bob, "INVITE").Response(200, "", "x")
		fresh := New(testConfig, w, strayRole{w, &got})
		w.do(func() { fresh.Receive(resp, bob) })
		if got == nil {
			t.Fatal("no stray")
		}
		via, _ := got.TopVia()
		if addr, ok := ResponseAddr(via); !ok || addr != alice.Flow.Remote {
			t.Errorf("top Via %s leads to %v", via, addr)
		}
		w.do(func() { fresh.RelayResponse(got, alice) })
		if m := w.last(alice, "200 INVITE"); m.ToTag() != "x" {
			t.Error("the relayed response is another one")
		}
		w.answer(bob, "INVITE", 200)
	})
}

type strayRole struct {
	*world
	got **sipmsg.Message
}

func (r strayRole) Stray(l *Layer, m *sipmsg.Message, from Peer) { *r.got = m }

func TestAckOf2xxGoesEndToEnd(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		ack := call{method: "ACK", branch: "z9hG4bKack", toTag: "tag-bob", hops: "5", extra: []string{"Route: <sip:next.test;lr>"}}
		m, err := sipmsg.Parse([]byte(ack.String()))
		if err != nil {
			t.Fatal(err)
		}
		w.do(func() { w.layer.Relay(m, bob) })
		w.expect(`0.0 > bob ACK`)
		got := w.last(bob, "ACK")
		if n, _ := got.MaxForwards(); n != 4 {
			t.Errorf("Max-Forwards is %d, want 4", n)
		}
		if vias := slices.Collect(got.Values(sipmsg.ViaHeader)); len(vias) != 2 || !strings.HasPrefix(vias[0], "SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKtok1.") {
			t.Errorf("Vias are %q", vias)
		}
		m, _ = sipmsg.Parse([]byte(call{method: "ACK", branch: "z9hG4bKack", hops: "0"}.String()))
		w.do(func() { w.layer.Relay(m, bob) })
		w.expect(``)
	})
}

func TestTwoBranchesThatBothAnswer200AreBothForwarded(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob, carol)
		w.receive(alice, call{}.String())
		w.answer(bob, "INVITE", 180)
		w.answer(carol, "INVITE", 180)
		w.answer(bob, "INVITE", 200)
		w.answer(carol, "INVITE", 200) // raced the CANCEL
		w.answer(carol, "CANCEL", 200)
		w.expect(`
			0.0 > alice 100 INVITE
			0.0 > bob INVITE
			0.0 > carol INVITE
			0.0 > alice 180 INVITE
			0.0 > alice 180 INVITE
			0.0 > alice 200 INVITE
			0.0 > carol CANCEL
			0.0 > alice 200 INVITE`)
		if got := w.last(alice, "200 INVITE").ToTag(); got != "tag-carol" {
			t.Errorf("the second 200 is %s's", got)
		}
		if reason, _ := w.last(carol, "CANCEL").Value(sipmsg.ReasonHeader); reason != answeredElsewhere {
			t.Errorf("Reason of the CANCEL is %q", reason)
		}
	})
}
