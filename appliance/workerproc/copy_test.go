package workerproc

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/controller/state"
)

// history is a cluster state by log index, and the updates that lead from one
// to the next.
type history struct {
	states  []*state.State
	updates []state.Update // updates[i] leads to states[i]
}

func newHistory(t *testing.T, n int) history {
	t.Helper()
	h := history{states: []*state.State{state.New()}, updates: make([]state.Update, 1)}
	for i := 1; i <= n; i++ {
		c := state.Command{Set: &state.Set{Name: "k", Value: string(rune('a' + i))}}
		if i == 1 {
			c = state.Command{Init: &state.Init{ClusterID: clusterID, Name: "test", Secret: bytes.Repeat([]byte{7}, 32)}}
		}
		b, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		data, err := state.JoinBatch([][]byte{b})
		if err != nil {
			t.Fatal(err)
		}
		last := h.states[i-1]
		next, _ := last.Apply(uint64(i), []state.Command{c})
		h.states = append(h.states, next)
		h.updates = append(h.updates, state.Update{Index: uint64(i), Prev: last.Index(), Data: data})
	}
	return h
}

// snapshot is the updates that carry the whole state at an index.
func (h history) snapshot(t *testing.T, at int) []state.Update {
	t.Helper()
	var out []state.Update
	for u, err := range state.SnapshotUpdates(h.states[at]) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, u)
	}
	return out
}

func TestCopyOfState(t *testing.T) {
	h := newHistory(t, 9)
	whole := func(at int) state.Update { return h.snapshot(t, at)[0] }
	half := whole(5)
	half.More, half.Data = true, half.Data[:4+be32(half.Data)]
	type step struct {
		feed uint64 // 0: ask for the next feed
		u    state.Update
		bad  bool
		want uint64
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"a snapshot and what follows it", []step{{}, {1, whole(3), false, 3}, {1, h.updates[4], false, 4}, {1, h.updates[5], false, 5}}},
		{"nothing counts before a feed was asked for", []step{{1, whole(3), false, 0}}},
		{"the copy stays where it is while a new source lags", []step{
			{}, {1, whole(5), false, 5}, {want: 5}, {2, whole(3), false, 5}, {2, h.updates[4], false, 5}, {2, h.updates[5], false, 5}, {2, h.updates[6], false, 6}}},
		{"what an old source still says is late", []step{
			{}, {1, whole(3), false, 3}, {want: 3}, {1, h.updates[4], false, 3}, {2, whole(4), false, 4}, {1, h.updates[5], false, 4}, {2, h.updates[5], false, 5}}},
		{"half a snapshot of an old source does not mix with the next", []step{
			{}, {1, half, false, 0}, {want: 0}, {2, whole(5), false, 5}}},
		{"a gap ends the feed, and the next one mends it", []step{
			{}, {1, whole(3), false, 3}, {1, h.updates[6], true, 3}, {1, h.updates[4], false, 3}, {want: 3}, {2, whole(7), false, 7}}},
		{"a feed that begins without a snapshot is of no use", []step{{}, {1, h.updates[4], true, 0}}},
		{"a snapshot in the middle of a feed replaces it", []step{{}, {1, whole(3), false, 3}, {1, whole(6), false, 6}, {1, h.updates[7], false, 7}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCopy()
			for i, s := range tt.steps {
				if s.feed == 0 {
					c.begin()
				} else if err := c.apply(s.feed, s.u); (err != nil) != s.bad {
					t.Fatalf("step %d: %v", i, err)
				}
				if got := c.current().Index(); got != s.want {
					t.Fatalf("step %d: the copy is at %d, want %d", i, got, s.want)
				}
			}
		})
	}
}

func TestAwaitedStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory(t, 5)
		c := newCopy()
		c.begin()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var reached []uint64
		done := make(chan uint64)
		for i := range uint64(5) {
			go func() {
				if c.await(ctx, i+1) == nil {
					done <- i + 1
				} else {
					done <- 0
				}
			}()
		}
		synctest.Wait()
		for _, u := range append(h.snapshot(t, 2), h.updates[3]) {
			if err := c.apply(1, u); err != nil {
				t.Error(err)
			}
		}
		for range 3 {
			reached = append(reached, <-done)
		}
		slices.Sort(reached)
		if !slices.Equal(reached, []uint64{1, 2, 3}) {
			t.Errorf("the waits for %v ended, want those for 1, 2 and 3", reached)
		}
		for range 2 {
			if i := <-done; i != 0 {
				t.Errorf("the wait for %d ended well", i)
			}
		}
	})
}
