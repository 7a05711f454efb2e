package transaction

import (
	"slices"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

func TestCancelIsAnswered200AndTheBranchEndsTheCall(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(alice, call{extra: []string{"Route: <sip:one.test;lr>"}}.String())
		w.answer(bob, "INVITE", 180)
		w.receive(alice, call{method: "CANCEL", extra: []string{"Reason: Q.850;cause=16"}}.String())
		w.expect(`
			0.0 > alice 100 INVITE
			0.0 > bob INVITE
			0.0 > alice 180 INVITE
			0.0 > alice 200 CANCEL
			0.0 > bob CANCEL`)
		w.sleep(time.Second)
		w.answer(bob, "CANCEL", 200)
		w.answer(bob, "INVITE", 487)
		w.receive(alice, call{method: "CANCEL"}.String())
		w.receive(alice, call{method: "ACK"}.String())
		w.expect(`
			0.5 > bob CANCEL
			1.0 > bob ACK
			1.0 > alice 487 INVITE
			1.0 > alice 200 CANCEL`)
		if got := w.last(alice, "487 INVITE").ToTag(); got != "tag-bob" {
			t.Errorf("the 487 has To tag %q: it is not the branch's", got)
		}
		invite, cancel := w.last(bob, "INVITE"), w.last(bob, "CANCEL")
		for _, h := range []sipmsg.Header{sipmsg.Route, sipmsg.From, sipmsg.To, sipmsg.CallID} {
			if got, want := slices.Collect(cancel.Values(h)), slices.Collect(invite.Values(h)); !slices.Equal(got, want) {
				t.Errorf("%s of the CANCEL is %q, the INVITE's %q", h, got, want)
			}
		}
		sent, _ := invite.Value(sipmsg.ViaHeader)
		if got := slices.Collect(cancel.Values(sipmsg.ViaHeader)); !slices.Equal(got, []string{sent}) {
			t.Errorf("Via of the CANCEL is %q, the INVITE's %q", got, sent)
		}
		if got, _ := cancel.Value(sipmsg.ReasonHeader); got != "Q.850;cause=16" {
			t.Errorf("Reason is %q", got)
		}
		if cancel.RequestURI() != invite.RequestURI() {
			t.Errorf("Request-URI of the CANCEL is %s", cancel.RequestURI())
		}
	})
}

func TestA200ThatRacedTheCancelIsForwarded(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom)
		w.receive(tina, call{}.String())
		w.answer(tom, "INVITE", 180)
		w.receive(tina, call{method: "CANCEL"}.String())
		w.answer(tom, "INVITE", 200)
		w.answer(tom, "CANCEL", 481)
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > tina 180 INVITE
			0.0 > tina 200 CANCEL
			0.0 > tom CANCEL
			0.0 > tina 200 INVITE`)
	})
}

func TestCancelWaitsForAProvisionalResponse(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(tina, call{}.String())
		w.receive(tina, call{method: "CANCEL"}.String())
		w.sleep(time.Second)
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > bob INVITE
			0.0 > tina 200 CANCEL
			0.5 > bob INVITE`)
		w.answer(bob, "INVITE", 100)
		w.answer(bob, "CANCEL", 200)
		w.answer(bob, "INVITE", 183)
		w.answer(bob, "INVITE", 487)
		w.receive(tina, call{method: "ACK"}.String())
		w.expect(`
			1.0 > bob CANCEL
			1.0 > tina 183 INVITE
			1.0 > bob ACK
			1.0 > tina 487 INVITE`)
	})
}

func TestCancelledBranchThatStaysSilentEndsAfter64T1(t *testing.T) {
	for _, c := range []struct {
		name  string
		rings bool
		trace string
	}{
		{"after ringing: 64*T1 from the CANCEL", true, `
			5.0 > tina 200 CANCEL
			5.0 > tom CANCEL
			37.0 > tina 487 INVITE`},
		{"never heard of: Timer B", false, `
			5.0 > tina 200 CANCEL
			32.0 > tina 487 INVITE`},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(tom)
				w.receive(tina, call{}.String())
				if c.rings {
					w.answer(tom, "INVITE", 180)
				}
				w.sleep(5 * time.Second)
				w.do(func() { w.trace = nil })
				w.receive(tina, call{method: "CANCEL"}.String())
				w.sleep(time.Minute)
				w.ack(tina, "487 INVITE")
				w.expect(c.trace)
			})
		})
	}
}

func TestUnmatchedCancelIsAnswered481(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.receive(alice, call{method: "CANCEL"}.String())
		w.expect(`0.0 > alice 481 CANCEL`)
		if w.last(alice, "481 CANCEL").ToTag() == "" {
			t.Error("the 481 has no To tag")
		}
	})
}

func TestCancelOfAnotherMethodMatchesByBranchWithoutEffect(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom)
		w.receive(alice, call{method: "OPTIONS"}.String())
		w.receive(alice, call{method: "CANCEL"}.String())
		w.receive(alice, call{method: "CANCEL", branch: "z9hG4bKother"}.String())
		w.answer(tom, "OPTIONS", 200)
		w.expect(`
			0.0 > tom OPTIONS
			0.0 > alice 200 CANCEL
			0.0 > alice 481 CANCEL
			0.0 > alice 200 OPTIONS`)
	})
}

func TestCancelBeforeTheRoleHasForwarded(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		var r *Request
		w.request = func(got *Request) { r = got }
		w.receive(tina, call{}.String())
		w.receive(tina, call{method: "CANCEL"}.String())
		w.do(func() {
			if !r.Finished() {
				t.Error("the request is not finished")
			}
			r.Forward(forward(r, []Peer{bob}))
			r.Reply(200, "", nil)
		})
		w.receive(tina, call{method: "ACK"}.String())
		w.expect(`
			0.0 > tina 200 CANCEL
			0.0 > tina 487 INVITE`)
		if a, b := w.last(tina, "200 CANCEL").ToTag(), w.last(tina, "487 INVITE").ToTag(); a != b {
			t.Errorf("To tags differ: %q, %q", a, b)
		}
	})
}

func TestCancelReachesEveryForkAndNoFurtherGroup(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = serially([]Peer{bob, tom}, []Peer{carol})
		w.receive(tina, call{}.String())
		w.answer(bob, "INVITE", 180)
		w.answer(tom, "INVITE", 100)
		w.receive(tina, call{method: "CANCEL"}.String())
		w.answer(bob, "CANCEL", 200)
		w.answer(bob, "INVITE", 487)
		w.answer(tom, "INVITE", 487)
		w.receive(tina, call{method: "ACK"}.String())
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > bob INVITE
			0.0 > tom INVITE
			0.0 > tina 180 INVITE
			0.0 > tina 200 CANCEL
			0.0 > bob CANCEL
			0.0 > tom CANCEL
			0.0 > bob ACK
			0.0 > tom ACK
			0.0 > tina 487 INVITE`)
	})
}

func TestNothingIsForwardedAfterACancel(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		var r *Request
		w.request = func(got *Request) { r = got; to(tom)(r) }
		w.receive(tina, call{}.String())
		w.answer(tom, "INVITE", 180)
		w.receive(tina, call{method: "CANCEL"}.String())
		w.do(func() { r.Forward(forward(r, []Peer{near})) })
		w.answer(tom, "INVITE", 487)
		w.ack(tina, "487 INVITE")
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > tina 180 INVITE
			0.0 > tina 200 CANCEL
			0.0 > tom CANCEL
			0.0 > tom ACK
			0.0 > tina 487 INVITE`)
	})
}

func TestTimerC(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int // of the response after 100 s
		answer int // of the branch after 300 s
		trace  string
	}{
		{"starts again with 180, and the branch's 487 counts as 408", 180, 487, `
			100.0 > tina 180 INVITE
			281.0 > tom CANCEL
			300.0 > tom ACK
			300.0 > tina 408 INVITE`},
		{"does not start again with 100, and silence counts as 408", 100, 487, `
			181.0 > tom CANCEL
			213.0 > tina 408 INVITE`},
		{"lets a branch answer after all", 183, 200, `
			100.0 > tina 183 INVITE
			281.0 > tom CANCEL
			300.0 > tina 200 INVITE`},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(tom)
				w.receive(tina, call{}.String())
				w.answer(tom, "INVITE", 100)
				w.sleep(100 * time.Second)
				w.do(func() { w.trace = nil })
				w.answer(tom, "INVITE", c.status)
				w.sleep(200 * time.Second)
				w.answer(tom, "INVITE", c.answer)
				if c.answer == 487 {
					w.ack(tina, "408 INVITE")
				}
				w.expect(c.trace)
			})
		})
	}
}

func TestCancelledBranchWhosePeerIsGoneEndsAsCancelled(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(far)
		w.receive(alice, call{}.String())
		w.receive(alice, call{method: "CANCEL"}.String())
		w.do(func() { w.layer.Unreachable(far) })
		w.last(alice, "487 INVITE")
		w.ack(alice, "487 INVITE")
	})
}

func TestARepeatedCancelIsAnsweredAlike(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(alice, call{}.String())
		w.answer(bob, "INVITE", 180)
		w.receive(alice, call{method: "CANCEL"}.String())
		w.answer(bob, "CANCEL", 200)
		w.answer(bob, "INVITE", 487)
		w.ack(alice, "487 INVITE")
		w.sleep(31 * time.Second) // the client repeats until Timer F
		w.trace = nil
		w.receive(alice, call{method: "CANCEL"}.String())
		w.expect(`31.0 > alice 200 CANCEL`)
	})
}

func TestNobodyCancelsOrAnswersForAnother(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(alice, call{}.String())
		w.receive(carol, call{method: "CANCEL"}.String())
		for _, status := range []int{180, 200, 486} {
			w.answerFrom(carol, bob, "INVITE", status)
		}
		w.expect(`
			0.0 > alice 100 INVITE
			0.0 > bob INVITE
			0.0 > carol 481 CANCEL`)
		// Another port of the same host is no other phone.
		w.answerFrom(wire(sipmsg.UDP, "203.0.113.2:40000", 0), bob, "INVITE", 486)
		w.ack(alice, "486 INVITE")
	})
}
