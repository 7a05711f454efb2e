package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/appliance/phone"
	"bellwether/controller/api"
)

// desk is a phone of a test.
type desk struct {
	*member
	fleet    *stub
	answer   phone.Result // what the caller sees; CallID and the callee's view are filled in
	refused  error        // of registering
	busy     atomic.Bool
	deaf     bool // hears nothing as a callee
	silent   bool // as a callee, never reports that a call ended
	confused bool // as a callee, saw the call go wrong
	calls    int
}

func (d *desk) Register(context.Context) error   { return d.refused }
func (d *desk) Unregister(context.Context) error { return nil }
func (d *desk) Close()                           {}

func (d *desk) Call(_ context.Context, target string, o phone.CallOptions) (phone.Result, error) {
	callee := d.fleet.desks[target]
	for _, p := range []*desk{d, callee} {
		if p.busy.Swap(true) {
			d.fleet.t.Errorf("%s is in two calls", p.aor)
		}
		defer p.busy.Store(false)
	}
	d.calls++
	time.Sleep(o.Hold)
	r := d.answer
	r.CallID = fmt.Sprintf("%s %d", d.aor, d.calls)
	if r.Err == nil && r.Status == 200 && !callee.silent {
		in := phone.Result{CallID: r.CallID, Status: 200, RTPExpected: 100, RTPReceived: 100, ToneHeard: !callee.deaf}
		if callee.confused {
			in.Err = errors.New("no BYE")
		}
		callee.over(in)
	}
	return r, r.Err
}

// stub is a fleet of desks, and the directory that knows them.
type stub struct {
	*fleet
	t     *testing.T
	desks map[string]*desk
}

func (s *stub) Workers(context.Context) ([]api.Worker, error) {
	return []api.Worker{{ID: "p0", Node: "n1"}, {ID: "p1", Node: "n2"}}, nil
}

func (s *stub) User(_ context.Context, aor string) (api.User, error) {
	for i, m := range s.phones {
		if m.aor == aor {
			return api.User{PCSCF: api.Serving{Serving: fmt.Sprintf("p%d", i%2)}}, nil
		}
	}
	return api.User{}, errors.New("unknown")
}

var fine = phone.Result{Status: 200, RTPExpected: 100, RTPReceived: 96, ToneHeard: true}

func newStub(t *testing.T, phones int) *stub {
	s := &stub{fleet: &fleet{why: map[string]int{}}, t: t, desks: map[string]*desk{}}
	s.admin = s
	for i := range phones {
		d := &desk{member: newMember(user(i)), fleet: s, answer: fine}
		d.handset = d
		s.phones = append(s.phones, d.member)
		s.desks[d.aor] = d
	}
	return s
}

func TestPhonesThatDoNotRegisterAreLeftOut(t *testing.T) {
	s := newStub(t, 30)
	s.desks[user(3)].refused = errors.New("403")
	s.desks[user(4)].refused = errors.New("403")
	if err := s.register(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.registered() != 28 || len(s.idle) != 28 || !slices.Equal(s.result().Failures, []string{"2 × not registered: 403"}) {
		t.Errorf("%d registered, %d idle, failures %q", s.registered(), len(s.idle), s.result().Failures)
	}
	for _, m := range s.idle {
		if want := s.phones[0].node; m.node != "n1" && m.node != "n2" {
			t.Errorf("%s is at %q, the first at %q", m.aor, m.node, want)
		}
	}
}

func TestCallsGoOnUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t, 2*callsAtOnce+7)
		if err := s.register(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		began := time.Now()
		s.callUntil(ctx)
		if took := time.Since(began); took != 50*hold {
			t.Errorf("calls went on for %v, want those to end that were up", took)
		}
		r := s.result()
		// 20 at a time, each 1.2 s; the last begin after 58.8 s.
		if want := callsAtOnce * 50; r.CallsOK != want || r.CallsFailed != 0 || !r.AudioOK || r.CrossNodeCalls == 0 || r.CrossNodeCalls == want {
			t.Errorf("result %+v, want %d calls", r, want)
		}
		if s.active() != 0 || len(s.idle) != len(s.phones) {
			t.Errorf("%d calls are up, %d of %d phones are idle", s.active(), len(s.idle), len(s.phones))
		}
	})
}

func TestNobodyToCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStub(t, 1)
		if err := s.register(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.callUntil(ctx)
		if r := s.result(); r.CallsOK+r.CallsFailed != 0 || r.AudioOK {
			t.Errorf("result %+v", r)
		}
	})
}

func TestACallIsJudgedFromBothEnds(t *testing.T) {
	with := func(change func(r *phone.Result)) phone.Result {
		r := fine
		change(&r)
		return r
	}
	for _, tt := range []struct {
		name   string
		spoil  func(caller, callee *desk)
		ok     bool
		audio  bool
		reason string
	}{
		{"a good one", func(a, b *desk) {}, true, true, ""},
		{"refused", func(a, b *desk) { a.answer = phone.Result{Status: 486, Reason: "Busy Here"} }, false, false, "1 × answered 486 Busy Here"},
		{"not answered", func(a, b *desk) { a.answer = phone.Result{Err: errors.New("timeout")} }, false, false, "1 × timeout"},
		{"answered, but the BYE was refused", func(a, b *desk) { a.answer = phone.Result{Status: 200, Err: errors.New("BYE: 481")} }, false, false, "1 × BYE: 481"},
		{"of which the callee never saw the end", func(a, b *desk) { b.silent = true }, false, false, "1 × the callee did not see the call end"},
		{"that went wrong for the callee only", func(a, b *desk) { b.confused = true }, false, false, "1 × no BYE"},
		{"the caller hears no tone", func(a, b *desk) { a.answer = with(func(r *phone.Result) { r.ToneHeard, r.ToneHz = false, 17 }) }, true, false,
			"1 × the far end's tone was not heard (17 Hz was, 96 of 100 packets)"},
		{"the callee hears no tone", func(a, b *desk) { b.deaf = true }, true, false, "1 × the far end's tone was not heard (0 Hz was, 100 of 100 packets)"},
		{"packets are lost", func(a, b *desk) { a.answer = with(func(r *phone.Result) { r.RTPReceived = 94 }) }, true, false, "1 × only 94 of 100 packets came"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStub(t, 2)
				if err := s.register(t.Context()); err != nil {
					t.Fatal(err)
				}
				a, b, _ := s.pair()
				tt.spoil(s.desks[a.aor], s.desks[b.aor])
				b.over(phone.Result{CallID: "one of before"})
				s.call(a, b)
				r := s.result()
				if (r.CallsOK == 1) != tt.ok || (r.CallsFailed == 1) == tt.ok || r.AudioOK != tt.audio {
					t.Errorf("result %+v", r)
				}
				if len(r.Failures) > 1 || len(r.Failures) == 1 && r.Failures[0] != tt.reason || len(r.Failures) == 0 && tt.reason != "" {
					t.Errorf("failures %q, want %q", r.Failures, tt.reason)
				}
				if len(s.idle) != 2 || s.up != 0 {
					t.Errorf("afterwards %d phones are idle and %d calls are up", len(s.idle), s.up)
				}
			})
		})
	}
}

func TestReasonsAreBoundedAndSorted(t *testing.T) {
	f := &fleet{why: map[string]int{}}
	for i := range 3 * maxReasons {
		f.note(fmt.Sprintf("reason %02d", i))
	}
	for range 5 {
		f.note("reason 07")
	}
	f.note("reason 03")
	got := f.result().Failures
	if len(got) != maxReasons || got[0] != "6 × reason 07" || got[1] != "2 × reason 03" || got[2] != "1 × reason 00" {
		t.Errorf("failures %q", got)
	}
}

// TestReportsNobodyAsksFor: a phone that is called from outside never blocks.
func TestReportsNobodyAsksFor(t *testing.T) {
	m := newMember("a")
	for i := range 9 {
		m.over(phone.Result{CallID: fmt.Sprint(i)})
	}
	if r, err := m.saw("8"); err != nil || r.CallID != "8" {
		t.Errorf("saw %+v, %v", r, err)
	}
}
