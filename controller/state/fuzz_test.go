package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"bellwether/controller/state"
)

func TestBatchesAreBounded(t *testing.T) {
	set := state.Command{Set: &state.Set{Name: "a", Value: strings.Repeat("x", 4096)}}
	many := make([]state.Command, state.MaxBatch+1)
	for i := range many {
		many[i] = set
	}
	if _, err := state.EncodeBatch(many); !errors.Is(err, state.ErrTooLarge) {
		t.Errorf("%d commands: %v", len(many), err)
	}
	if _, err := state.EncodeBatch(many[:state.MaxBatch]); !errors.Is(err, state.ErrTooLarge) {
		t.Errorf("%d commands of 4 kB: %v", state.MaxBatch, err)
	}
	if _, err := state.DecodeBatch(make([]byte, state.MaxBatchSize+1)); !errors.Is(err, state.ErrTooLarge) {
		t.Errorf("decode: %v", err)
	}
	if _, err := state.DecodeCommand(make([]byte, state.MaxCommandSize+1)); !errors.Is(err, state.ErrTooLarge) {
		t.Errorf("decode command: %v", err)
	}
}

// An unknown field is skipped, an unknown operation refused, and a command that
// is not one at all spoils only itself.
func TestCommandsOfLaterVersionsSpoilOnlyThemselves(t *testing.T) {
	good, err := assign("u", 0).Encode()
	if err != nil {
		t.Fatal(err)
	}
	extra := append([]byte{good[0] + 1}, good[1:]...) // one more pair in the map
	extra = append(extra, "\x65later\x01"...)
	b, err := state.JoinBatch([][]byte{good, []byte("\xa2\x61v\x01\x64move\xa0"), []byte("\x01"), extra})
	if err != nil {
		t.Fatal(err)
	}
	cmds, err := state.DecodeBatch(b)
	if err != nil {
		t.Fatal(err)
	}
	s := small(t)
	_, results := s.Apply(s.Index()+1, cmds)
	var got []string
	for _, r := range results {
		code := state.Code("done")
		if r.Err != nil {
			code = r.Err.Code
		}
		got = append(got, string(code))
	}
	if want := "[done unsupported unsupported done]"; fmt.Sprint(got) != want {
		t.Errorf("results are %v, want %s", got, want)
	}
}

func describe(results []state.Result) string {
	var b strings.Builder
	for _, r := range results {
		fmt.Fprintln(&b, r.Index, r.Group, r.N, r.Check())
	}
	return b.String()
}

func FuzzApply(f *testing.F) {
	for _, cmds := range [][]state.Command{
		{},
		{assign("u", 3), unassign("alice@d", 3), node("c", 3), worker("s3", state.SCSCF, "b")},
		{put(subscriber("x@d", "sip:x@d")), {RemoveSubscriber: &state.RemoveSubscriber{IMPI: "bob@d"}}},
		{{Set: &state.Set{Name: "a", Value: "b"}, RequestID: "r"}, {RemoveWorker: &state.RemoveWorker{ID: "s2"}}},
		{{Init: &state.Init{ClusterID: "c", Name: "n", Secret: make([]byte, 32)}}},
		{put(withSIM("x@d", -3)), {ResyncAKA: &state.ResyncAKA{IMPI: "x@d", From: -3, To: 9}}, put(withSIM("x@d", 0))},
		{ban("192.0.2.0/24", 1, 9), ban("2001:db8::/48", 10, 0), unban("192.0.2.0/24")},
	} {
		b, err := state.EncodeBatch(cmds)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	start := small(f)
	before := snapshot(f, start)
	f.Fuzz(func(t *testing.T, data []byte) {
		cmds, err := state.DecodeBatch(data)
		if err != nil {
			return
		}
		s, results := start.Apply(2, cmds)
		again, resultsAgain := start.Apply(2, cmds)
		if len(results) != len(cmds) || describe(results) != describe(resultsAgain) {
			t.Fatalf("results %v, then %v", results, resultsAgain)
		}
		after := snapshot(t, s)
		if !bytes.Equal(after, snapshot(t, again)) {
			t.Fatal("the same batch gives two states")
		}
		if !bytes.Equal(before, snapshot(t, start)) {
			t.Fatal("Apply changed its receiver")
		}
		if !bytes.Equal(after, snapshot(t, restored(t, s))) {
			t.Fatal("the state does not survive a snapshot")
		}
		checkCounts(t, s)
		for i := range cmds {
			_ = cmds[i].String()
		}
	})
}

func FuzzSnapshot(f *testing.F) {
	f.Add(snapshot(f, state.New()))
	f.Add(snapshot(f, small(f)))
	f.Add(snapshot(f, apply(f, small(f), put(withSIM("x@d", 5)))))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := state.DecodeSnapshot(bytes.NewReader(data))
		if err != nil {
			if !errors.Is(err, state.ErrSnapshot) {
				t.Fatalf("error of another sort: %v", err)
			}
			return
		}
		checkCounts(t, s)
		if !bytes.Equal(snapshot(t, s), snapshot(t, restored(t, s))) {
			t.Fatal("a snapshot of what was read does not come back equal")
		}
		next, _ := s.Apply(s.Index()+1, []state.Command{assign("fuzz", 0), put(subscriber("f@d", "sip:f@d")), node("f", 1), worker("f1", state.SCSCF, "f")})
		checkCounts(t, next)
		for g := range next.Groups() {
			next.ServiceAddr(g.ID)
		}
		next.SchemesAt(uint64(len(data)))
	})
}

func FuzzUpdate(f *testing.F) {
	for _, u := range append(updates(f, small(f)), batch(f, 2, 1, assign("u", 0))) {
		b, err := u.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		u, err := state.DecodeUpdate(data)
		if err != nil {
			return
		}
		var m state.Mirror
		for _, part := range updates(t, small(t)) {
			_ = m.Apply(part)
		}
		_ = m.Apply(u)
		_ = m.Apply(u)
		checkCounts(t, m.State())
	})
}
