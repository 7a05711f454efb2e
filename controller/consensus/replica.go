package consensus

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"bellwether/controller/state"
)

// How much of the past a follower may be behind before it gets a snapshot.
const (
	maxFeedBatches = 4096
	maxFeedBytes   = 16 << 20
	feedStep       = 64 // batches that a follower takes at a time
)

// replica is this member's copy of the state: Raft's FSM, and the feed of
// recent batches that followers of the copy read, each at its own pace. Raft
// never waits for any of them.
type replica struct {
	log      *slog.Logger
	state    atomic.Pointer[state.State] // written with mu held
	reserved *reservations               // guarded by mu: an assignment and the end of its reservation are one step

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	feed    []batch       // oldest first
	first   uint64        // number of feed[0]; grows by more than the batches when a snapshot replaces the state
	bytes   int
}

// batch is a log entry that was applied.
type batch struct {
	index uint64
	data  []byte
}

// applied is what Apply tells the proposer of a log entry.
type applied struct {
	results []state.Result
	err     error
}

func newReplica(log *slog.Logger) *replica {
	r := &replica{log: log, changed: make(chan struct{}), reserved: newReservations()}
	r.state.Store(state.New())
	return r
}

func (r *replica) current() *state.State { return r.state.Load() }

// Apply implements raft.FSM.
func (r *replica) Apply(entry *raft.Log) any {
	cmds, err := state.DecodeBatch(entry.Data)
	if err != nil {
		// Nobody could have proposed it; every member skips it alike.
		r.log.Error("log entry does not decode", "index", entry.Index, "err", err)
	}
	next, results := r.current().Apply(entry.Index, cmds)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range cmds {
		if a := cmds[i].Assign; a != nil {
			r.reserved.drop(a.Kind, a.User)
		}
	}
	r.feed = append(r.feed, batch{index: entry.Index, data: entry.Data})
	r.bytes += len(entry.Data)
	for len(r.feed) > maxFeedBatches || r.bytes > maxFeedBytes {
		r.bytes -= len(r.feed[0].data)
		r.feed[0] = batch{}
		r.feed = r.feed[1:]
		r.first++
	}
	r.publish(next)
	return &applied{results: results, err: err}
}

// publish is called with mu held.
func (r *replica) publish(s *state.State) {
	r.state.Store(s)
	close(r.changed)
	r.changed = make(chan struct{})
}

// Snapshot implements raft.FSM. The state is immutable, so this costs nothing.
func (r *replica) Snapshot() (raft.FSMSnapshot, error) { return frozen{r.current()}, nil }

type frozen struct{ state *state.State }

func (f frozen) Persist(sink raft.SnapshotSink) error {
	if err := state.EncodeSnapshot(sink, f.state); err != nil {
		_ = sink.Cancel() // the first error is the one that tells
		return err
	}
	return sink.Close()
}

func (frozen) Release() {}

// Restore implements raft.FSM.
func (r *replica) Restore(in io.ReadCloser) error {
	defer in.Close()
	s, err := state.DecodeSnapshot(in)
	if err != nil {
		return fmt.Errorf("restore cluster state: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first += uint64(len(r.feed)) + 1
	r.feed, r.bytes = nil, 0
	r.publish(s)
	return nil
}

// wait returns the state once ok holds for it.
func (r *replica) wait(ctx context.Context, ok func(*state.State) bool) (*state.State, error) {
	for {
		r.mu.Lock()
		s, changed := r.current(), r.changed
		r.mu.Unlock()
		if ok(s) {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// follow sends a snapshot, then each batch after it; and again from the start
// when it has fallen behind what the feed keeps.
func (r *replica) follow(ctx context.Context, send func(state.Update) error) error {
	for {
		r.mu.Lock()
		s, next := r.current(), r.first+uint64(len(r.feed))
		r.mu.Unlock()
		for u, err := range state.SnapshotUpdates(s) {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				err = send(u)
			}
			if err != nil {
				return err
			}
		}
		if err := r.followBatches(ctx, next, s.Index(), send); err != nil {
			return err
		}
	}
}

// followBatches returns nil when batches are missing.
func (r *replica) followBatches(ctx context.Context, next, prev uint64, send func(state.Update) error) error {
	buf := make([]batch, 0, feedStep)
	for {
		got, changed, ok := r.since(next, buf)
		if !ok {
			return nil
		}
		if len(got) == 0 {
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, b := range got {
			if err := send(state.Update{Index: b.index, Prev: prev, Data: b.data}); err != nil {
				return err
			}
			prev = b.index
			next++
		}
	}
}

// since copies batches from number next on into buf; false if the feed does
// not reach that far back.
func (r *replica) since(next uint64, buf []batch) ([]batch, <-chan struct{}, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := r.first + uint64(len(r.feed))
	if next < r.first || next > end {
		return nil, nil, false
	}
	from := r.feed[next-r.first:]
	return append(buf[:0], from[:min(len(from), feedStep)]...), r.changed, true
}
