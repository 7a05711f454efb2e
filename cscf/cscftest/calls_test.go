package cscftest_test

import (
	"slices"
	"testing"

	"bellwether/controller/state"
	. "bellwether/cscf/cscftest"
)

// through lists the P-CSCFs of the halves of all calls, as "orig 1".
func (c *ims) through() map[string]state.GroupID {
	out := map[string]state.GroupID{}
	for _, s := range c.s {
		for _, call := range s.Calls() {
			out[call.Role] = call.PCSCF
		}
	}
	return out
}

// The P-CSCFs of a call are those that it runs through, whatever the two were
// called: an identity is assigned to a P-CSCF only as it was registered.
func TestThePCSCFsOfACallAreKnown(t *testing.T) {
	p := groups[state.PCSCF]
	for _, tt := range []struct {
		name, called string
		headers      []string
	}{
		{"the identity that was registered", "sip:bob@ims.test", nil},
		{"a number", "tel:+4930222", nil},
		{"a number with separators", "tel:+49-30-222", nil},
		{"a number as a SIP URI", "sip:+4930222@ims.test;user=phone", nil},
		{"a caller who shows another identity", "sip:bob@ims.test", []string{"P-Preferred-Identity: <tel:+4930111>"}},
		{"a caller who stays unknown", "sip:bob@ims.test", []string{"Privacy: id"}},
	} {
		run(t, tt.name, func(t *testing.T, c *ims) {
			alice, bob := c.alice(), c.bob()
			registered(alice, bob)
			where := func(user string) state.GroupID {
				g, _ := c.State().Assignment(state.PCSCF, user)
				return g
			}
			caller, callee := where("sip:alice@ims.test"), where("sip:bob@ims.test")
			if !slices.Contains(p[:], caller) || !slices.Contains(p[:], callee) {
				t.Fatalf("they are at %d and %d", caller, callee)
			}
			check := func(when string) {
				t.Helper()
				if got := c.through(); got["orig"] != caller || got["term"] != callee {
					t.Errorf("%s: the call runs through %v, the phones are at %d and %d", when, got, caller, callee)
				}
			}
			invite := alice.Call("INVITE", tt.called, tt.headers...)
			got := bob.Expect(0, "INVITE")
			check("before an answer")
			bob.Answer(got, 180)
			alice.Expect(180, "INVITE")
			check("while it rings")
			ok := bob.Answer(got, 200)
			alice.Expect(200, "INVITE")
			alice.Send(alice.InDialog("ACK", invite, ok))
			bob.Expect(0, "ACK")
			check("while they talk")
			for i := range c.s {
				c.start(state.SCSCF, i)
			}
			check("after a restart of the S-CSCFs")
		})
	}
	run(t, "of two phones at two P-CSCFs the one that answers counts", func(t *testing.T, c *ims) {
		alice, one := c.alice(), c.bob()
		registered(alice, one)
		other := c.NewPhone("b", "192.0.2.9:5060", "bob", "tel:+4930222")
		c.Apply(state.Command{Assign: &state.Assign{Kind: state.PCSCF, User: "tel:+4930222", Hint: p[0] + p[1] - must(c.State().Assignment(state.PCSCF, "sip:bob@ims.test"))}})
		other.Register()
		at := map[*Phone]state.GroupID{
			one:   must(c.State().Assignment(state.PCSCF, "sip:bob@ims.test")),
			other: must(c.State().Assignment(state.PCSCF, "tel:+4930222")),
		}
		if at[one] == at[other] {
			t.Fatalf("both phones are at %d", at[one])
		}
		for _, answers := range []*Phone{one, other} {
			rings := one
			if answers == one {
				rings = other
			}
			invite := alice.Call("INVITE", "sip:bob@ims.test")
			a, b := answers.Expect(0, "INVITE"), rings.Expect(0, "INVITE")
			answers.Answer(a, 180)
			alice.Expect(180, "INVITE")
			rings.Answer(b, 180)
			alice.Expect(180, "INVITE")
			ok := answers.Answer(a, 200)
			alice.Expect(200, "INVITE")
			alice.Send(alice.InDialog("ACK", invite, ok))
			answers.Expect(0, "ACK")
			if got := c.through()["term"]; got != at[answers] {
				t.Errorf("the call runs through %d, the phone that answered is at %d", got, at[answers])
			}
			c.Settle()
			one.Drain()
			other.Drain()
			alice.Send(alice.InDialog("BYE", invite, ok))
			answers.Answer(answers.Expect(0, "BYE"), 200)
			alice.Expect(200, "BYE")
		}
	})
}

// must is what is there.
func must(g state.GroupID, ok bool) state.GroupID {
	if !ok {
		panic("not assigned")
	}
	return g
}
