package state_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"bellwether/controller/state"
)

func withSIM(impi string, offset int64) state.Subscriber {
	sub := subscriber(impi, "sip:"+impi)
	sub.AKA = &state.AKA{K: bytes.Repeat([]byte{1}, 16), OPc: bytes.Repeat([]byte{2}, 16), AMF: [2]byte{0x80}, Offset: offset}
	return sub
}

func offset(t *testing.T, s *state.State, impi string) int64 {
	t.Helper()
	sub, ok := s.Subscriber(impi)
	if !ok || sub.AKA == nil {
		t.Fatalf("%s has no AKA", impi)
	}
	return sub.AKA.Offset
}

func TestAKAKeysAreChecked(t *testing.T) {
	for name, change := range map[string]func(*state.AKA){
		"K of 15 bytes":         func(a *state.AKA) { a.K = a.K[:15] },
		"no OPc":                func(a *state.AKA) { a.OPc = nil },
		"an offset beyond SEQ":  func(a *state.AKA) { a.Offset = 1<<43 + 1 },
		"one that is too small": func(a *state.AKA) { a.Offset = -1<<43 - 1 },
	} {
		sub := withSIM("x@d", 0)
		change(sub.AKA)
		if _, r := one(small(t), put(sub)); !errors.Is(r.Check(), &state.Error{Code: state.Invalid}) {
			t.Errorf("%s: %v", name, r.Err)
		}
	}
}

func TestAKASurvivesASnapshot(t *testing.T) {
	s := restored(t, apply(t, small(t), put(withSIM("x@d", -7))))
	sub, _ := s.Subscriber("x@d")
	if a := sub.AKA; a == nil || !bytes.Equal(a.K, bytes.Repeat([]byte{1}, 16)) || !bytes.Equal(a.OPc, bytes.Repeat([]byte{2}, 16)) ||
		a.AMF != [2]byte{0x80} || a.Offset != -7 {
		t.Errorf("restored %v offset %d", sub.AKA, sub.AKA.Offset)
	}
}

func TestResynchronisationTakesEffectOnce(t *testing.T) {
	resync := func(impi string, from, to int64) state.Command {
		return state.Command{ResyncAKA: &state.ResyncAKA{IMPI: impi, From: from, To: to}}
	}
	before := apply(t, small(t), put(withSIM("x@d", 0)))
	s, r := one(before, resync("x@d", 0, 500))
	if r.Err != nil || r.N != 1 || offset(t, s, "x@d") != 500 {
		t.Fatalf("%+v", r)
	}
	if offset(t, before, "x@d") != 0 {
		t.Error("the earlier state changed")
	}
	for _, again := range []state.Command{resync("x@d", 0, 500), resync("x@d", 0, 900)} {
		if s, r = one(s, again); r.Err != nil || r.N != 0 || offset(t, s, "x@d") != 500 {
			t.Errorf("again: %+v, offset %d", r, offset(t, s, "x@d"))
		}
	}
	for impi, code := range map[string]state.Code{"nobody@d": state.NotFound, "alice@d": state.NotFound, "": state.Invalid} {
		if _, r := one(s, resync(impi, 0, 1)); !errors.Is(r.Check(), &state.Error{Code: code}) {
			t.Errorf("%q: %v", impi, r.Err)
		}
	}
	if _, r := one(s, resync("x@d", 500, 1<<60)); !errors.Is(r.Check(), &state.Error{Code: state.Invalid}) {
		t.Errorf("far out of range: %v", r.Err)
	}
}

// An operator who imports subscribers again must not bring their SIMs out of
// step; one who gives a subscriber another SIM begins anew.
func TestASubscriberThatIsPutAgainKeepsTheOffsetOfItsSIM(t *testing.T) {
	s := apply(t, small(t), put(withSIM("x@d", 0)), state.Command{ResyncAKA: &state.ResyncAKA{IMPI: "x@d", To: 500}})
	if s = apply(t, s, put(withSIM("x@d", 0))); offset(t, s, "x@d") != 500 {
		t.Errorf("the same SIM: offset %d", offset(t, s, "x@d"))
	}
	other := withSIM("x@d", 0)
	other.AKA.K[0] = 9
	if s = apply(t, s, put(other)); offset(t, s, "x@d") != 0 {
		t.Errorf("another SIM: offset %d", offset(t, s, "x@d"))
	}
}

func TestWhatStrangersAreShownIsWhatSubscribersHave(t *testing.T) {
	count := func(s *state.State) map[state.Schemes]int {
		seen := map[state.Schemes]int{}
		for p := range uint64(60) {
			seen[s.SchemesAt(p)]++
		}
		return seen
	}
	s := state.New()
	if got := count(s); got[state.DigestMD5|state.DigestSHA256] != 60 {
		t.Errorf("without subscribers: %v", got)
	}
	sha := subscriber("sha@d", "sip:sha@d")
	sha.HA1 = state.HA1{"MD5": sha.HA1["MD5"], "SHA-256": strings.Repeat("0f", 32)}
	sim := withSIM("sim@d", 0)
	sim.HA1 = nil
	none := subscriber("none@d", "sip:none@d")
	none.HA1 = nil
	s = apply(t, s, put(subscriber("md5@d", "sip:md5@d"), sha, sim, none))
	for _, s := range []*state.State{s, restored(t, s)} {
		if got := count(s); got[state.DigestMD5] != 20 || got[state.DigestMD5|state.DigestSHA256] != 20 || got[state.AKAv1] != 20 {
			t.Errorf("%v", got)
		}
	}
	s = apply(t, s, state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "md5@d"}}, put(withSIM("sha@d", 0)))
	if got := count(s); got[state.DigestMD5|state.AKAv1] != 30 || got[state.AKAv1] != 30 {
		t.Errorf("after changes: %v", got)
	}
}
