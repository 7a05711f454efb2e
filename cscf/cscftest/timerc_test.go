package cscftest_test

import (
	"testing"
	"time"
)

// Check 40 (RFC 3261 §16.6 step 11, §16.7 step 2, §16.8): a call that rings for more than three minutes without news is cancelled and answered 408; each of 101 to 199 begins the three minutes anew, a 100 does not.
func TestCheck40TimerC(t *testing.T) {
	const timerC = 181 * time.Second
	for _, c := range []struct {
		name   string
		status int  // sent again and again while it rings
		begins bool // the time anew
	}{
		{"100 does not count", 100, false},
		{"180 begins the time anew", 180, true},
		{"183 begins the time anew", 183, true},
		{"199 begins the time anew", 199, true},
	} {
		run(t, c.name, func(t *testing.T, cl *ims) {
			alice, bob := cl.alice(), cl.bob()
			registered(alice, bob)
			invite := alice.Call("INVITE", "sip:bob@ims.test")
			got := bob.Expect(0, "INVITE")
			began := time.Now()
			bob.Answer(got, 180)
			alice.Expect(180, "INVITE")
			for range 3 {
				cl.Sleep(50 * time.Second)
				bob.Answer(got, c.status)
				if c.begins {
					alice.Expect(c.status, "INVITE")
				}
			}
			if c.begins {
				began = time.Now()
			}
			if rest := began.Add(3 * time.Minute).Sub(time.Now()); rest > 0 {
				cl.Sleep(rest)
			}
			bob.Silent()
			alice.Silent()
			cl.Sleep(began.Add(timerC).Sub(time.Now()))
			bob.Answer(bob.Expect(0, "CANCEL"), 200)
			bob.Answer(got, 487)
			alice.AckRefusal(invite, alice.Expect(408, "INVITE"))
			if n := len(cl.calls()); n != 0 {
				t.Errorf("%d calls are left", n)
			}
		})
	}
	run(t, "a phone that does not even end its INVITE is given up", func(t *testing.T, cl *ims) {
		alice, bob := cl.alice(), cl.bob()
		registered(alice, bob)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		bob.Answer(bob.Expect(0, "INVITE"), 180)
		alice.Expect(180, "INVITE")
		cl.Sleep(timerC)
		bob.Answer(bob.Expect(0, "CANCEL"), 200)
		alice.Silent()
		cl.Sleep(32 * time.Second)
		alice.AckRefusal(invite, alice.Expect(408, "INVITE"))
	})
}
