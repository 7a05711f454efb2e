package transaction

import (
	"testing"
	"time"
)

func TestRequestOtherThanInvitePassesThrough(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(alice, call{method: "MESSAGE"}.String())
		w.sleep(250 * time.Millisecond)
		w.receive(alice, call{method: "MESSAGE"}.String()) // absorbed: nothing to repeat yet
		w.sleep(750 * time.Millisecond)
		w.answer(bob, "MESSAGE", 200)
		w.answer(bob, "MESSAGE", 200)
		w.sleep(20 * time.Second)
		w.receive(alice, call{method: "MESSAGE"}.String())
		w.expect(`
			0.0 > bob MESSAGE
			0.5 > bob MESSAGE
			1.0 > alice 200 MESSAGE
			21.0 > alice 200 MESSAGE`)
		if servers, clients := w.len(); servers != 1 || clients != 0 {
			t.Errorf("%d servers and %d clients after Timer K, before Timer J", servers, clients)
		}
		w.sleep(13 * time.Second)
		if servers, _ := w.len(); servers != 0 {
			t.Error("Timer J did not end the transaction")
		}
	})
}

func TestReliableRequestOtherThanInviteLeavesNothingBehind(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom)
		w.receive(tina, call{method: "BYE"}.String())
		w.answer(tom, "BYE", 200)
		if servers, clients := w.len(); servers != 0 || clients != 0 {
			t.Errorf("%d servers and %d clients", servers, clients)
		}
		if w.timers != 0 {
			t.Errorf("%d timers", w.timers)
		}
	})
}

func TestNo408AndNo100ForOtherThanInvite(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(alice, call{method: "MESSAGE"}.String())
		w.sleep(time.Second)
		w.answer(bob, "MESSAGE", 100)
		w.answer(bob, "MESSAGE", 183)
		w.sleep(40 * time.Second)
		w.receive(alice, call{method: "MESSAGE"}.String())
		w.expect(`
			0.0 > bob MESSAGE
			0.5 > bob MESSAGE
			1.5 > bob MESSAGE
			5.5 > bob MESSAGE
			9.5 > bob MESSAGE
			13.5 > bob MESSAGE
			17.5 > bob MESSAGE
			21.5 > bob MESSAGE
			25.5 > bob MESSAGE
			29.5 > bob MESSAGE`)
	})
}

func TestTimerEGrowsToT2(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.receive(alice, call{method: "MESSAGE"}.String())
		w.sleep(14 * time.Second)
		w.expect(`
			0.0 > bob MESSAGE
			0.5 > bob MESSAGE
			1.5 > bob MESSAGE
			3.5 > bob MESSAGE
			7.5 > bob MESSAGE
			11.5 > bob MESSAGE`)
	})
}

func TestDownstream408IsNotForwarded(t *testing.T) {
	for _, c := range []struct {
		name  string
		other int
		trace string
	}{
		{"alone", 408, ``},
		{"another response goes instead", 503, `0.0 > alice 500 MESSAGE`},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(tom, near)
				w.receive(alice, call{method: "MESSAGE"}.String())
				w.do(func() { w.trace = nil })
				w.answer(tom, "MESSAGE", 408)
				w.answer(near, "MESSAGE", c.other)
				w.expect(c.trace)
				w.sleep(time.Second)
				w.do(func() { w.trace = nil })
				w.receive(alice, call{method: "MESSAGE"}.String())
				if w.do(func() {}); c.other == 408 {
					w.expect(``)
				}
			})
		})
	}
}

func TestRoleCannotBreakRFC4320(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = func(r *Request) {
			r.Reply(100, "", nil)
			r.Reply(183, "", nil)
			r.Reply(408, "", nil)
			if !r.Finished() {
				t.Error("not finished")
			}
		}
		w.receive(alice, call{method: "MESSAGE"}.String())
		w.receive(alice, call{method: "MESSAGE"}.String())
		w.expect(``)
	})
}

func TestForkedRequestOtherThanInviteTakesTheFirst2xx(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom, near)
		w.receive(tina, call{method: "SUBSCRIBE"}.String())
		w.answer(tom, "SUBSCRIBE", 202)
		w.answer(near, "SUBSCRIBE", 200)
		w.expect(`
			0.0 > tom SUBSCRIBE
			0.0 > near SUBSCRIBE
			0.0 > tina 202 SUBSCRIBE`)
	})
}

func TestChangedT1AppliesToWhatStartsAfterwards(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		w.do(func() { w.layer.SetT1(100 * time.Millisecond) })
		w.receive(alice, call{method: "MESSAGE"}.String())
		w.sleep(time.Second)
		w.expect(`
			0.0 > bob MESSAGE
			0.1 > bob MESSAGE
			0.3 > bob MESSAGE
			0.7 > bob MESSAGE`)
	})
}
