package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"bellwether/controller/state"
)

// gate is a log that hangs when told to, as a dead disk does.
type gate struct {
	raft.LogStore
	mu   sync.RWMutex
	hang chan struct{} // nil: open
}

func (g *gate) wait() {
	g.mu.RLock()
	hang := g.hang
	g.mu.RUnlock()
	if hang != nil {
		<-hang
	}
}

func (g *gate) set(hang chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hang = hang
}

func (g *gate) StoreLogs(logs []*raft.Log) error { g.wait(); return g.LogStore.StoreLogs(logs) }
func (g *gate) StoreLog(log *raft.Log) error     { g.wait(); return g.LogStore.StoreLog(log) }

func TestALeaderWhoseDiskHangsIsEnded(t *testing.T) {
	t.Parallel()
	gates := make(map[string]*gate)
	stalled := make(chan string, 3)
	c := newCluster(t, 3, func(cfg *Config) {
		g := &gate{}
		gates[cfg.Node] = g
		cfg.logStore = func(l raft.LogStore) raft.LogStore { g.LogStore = l; return g }
		cfg.OnStall = func() { stalled <- cfg.Node }
		cfg.watchPeriod, cfg.stallTime = 50*time.Millisecond, 500*time.Millisecond
	})
	leader := c.leader().cfg.Node
	hang := make(chan struct{})
	gates[leader].set(hang)
	if got := <-stalled; got != leader {
		t.Errorf("the watchdog of %s bites, want that of %s", got, leader)
	}
	close(hang)
}

func TestStalled(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	type look struct {
		at    float64
		leads bool
		index uint64
		want  bool
	}
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"a leader that commits", []look{{0, true, 1, false}, {1, true, 2, false}, {2, true, 3, false}, {3, true, 4, false}, {4, true, 5, false}}},
		{"a leader that commits nothing for three seconds", []look{{0, true, 1, false}, {1, true, 1, false}, {2.1, true, 1, false}, {3, true, 1, true}}},
		{"a follower may be quiet", []look{{0, false, 1, false}, {1, false, 1, false}, {2, false, 1, false}, {3, false, 1, false}}},
		{"the time as a follower does not count", []look{{0, false, 1, false}, {1, false, 1, false}, {2, true, 1, false}, {3, true, 1, false}, {4, true, 1, true}}},
		{"one commit begins the time again", []look{{0, true, 1, false}, {1, true, 1, false}, {2, true, 2, false}, {3, true, 2, false}, {4, true, 2, false}, {5, true, 2, true}}},
		{"a frozen process does not accuse its disk", []look{{0, true, 1, false}, {1, true, 1, false}, {9, true, 1, false}, {10, true, 1, false}, {11, true, 1, false}, {12, true, 1, true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := progress{limit: stallTime}
			for _, l := range tt.looks {
				if got := p.stalled(at(l.at), l.leads, l.index); got != l.want {
					t.Errorf("after %v s: stalled %v, want %v", l.at, got, l.want)
				}
			}
		})
	}
}

// workers is a state with n S-CSCF workers.
func workers(n int) *state.State {
	cmds := []state.Command{{PutNode: &state.Node{Name: "n1", Service: netip.MustParseAddr("127.0.0.1"), S: 6060}}}
	for i := range n {
		cmds = append(cmds, state.Command{PutWorker: &state.Worker{ID: fmt.Sprintf("s%d", i), Kind: state.SCSCF, Node: "n1"}})
	}
	s, _ := state.New().Apply(1, cmds)
	return s
}

func TestReservationsEndAndAreBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	s := workers(2)
	r := newReservations()
	take := func(user string) state.GroupID {
		t.Helper()
		g, err := r.take(now, s, state.SCSCF, user)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	if a, b := take("a"), take("b"); a != 1 || b != 2 {
		t.Fatalf("a and b get %d and %d, want 1 and 2", a, b)
	}
	now = now.Add(30 * time.Second)
	take("b") // again: holds for 40 s from here
	now = now.Add(10 * time.Second)
	if c := take("c"); c != 1 || r.users[1] != 1 || r.users[2] != 1 {
		t.Errorf("c gets %d with %v reserved; a's place has ended, b's has not", c, r.users)
	}
	// An assignment of another user to group 1 counts with the reservations.
	s, _ = s.Apply(2, []state.Command{{Assign: &state.Assign{Kind: state.SCSCF, User: "x", Hint: 1}}})
	if d := take("d"); d != 2 {
		t.Errorf("d gets %d, want 2", d)
	}
	// b is assigned elsewhere meanwhile: that counts, and ends the reservation.
	s, _ = s.Apply(3, []state.Command{{Assign: &state.Assign{Kind: state.SCSCF, User: "b", Hint: 1}}})
	if b := take("b"); b != 1 || r.users[2] != 1 {
		t.Errorf("b gets %d with %v reserved, want 1", b, r.users)
	}
	// Group 2 goes: d needs another place.
	s, _ = s.Apply(4, []state.Command{{RemoveWorker: &state.RemoveWorker{ID: "s1"}}})
	if d := take("d"); d != 1 || r.users[2] != 0 {
		t.Errorf("d gets %d with %v reserved, want 1", d, r.users)
	}
	for i := range maxReservations + 10 {
		take(fmt.Sprint(i))
	}
	if r.oldest.Len() != maxReservations || len(r.byUser) != maxReservations || r.users[1] != maxReservations {
		t.Errorf("%d reservations by %d users, %v in the group", r.oldest.Len(), len(r.byUser), r.users)
	}
	if _, ok := r.byUser[reservedUser{state.SCSCF, "d"}]; ok {
		t.Error("not the oldest reservation was given up")
	}
}

func quietReplica() *replica { return newReplica(slog.New(slog.DiscardHandler)) }

func (r *replica) applyForTest(t *testing.T, index uint64, cmds ...state.Command) {
	t.Helper()
	data, err := state.EncodeBatch(cmds)
	if err != nil {
		t.Fatal(err)
	}
	r.Apply(&raft.Log{Index: index, Data: data})
}

// While the follower is stuck in its first update, more batches come than the
// feed keeps. Apply never waits for it, and it begins again with a snapshot.
func TestASlowFollowerIsRestartedWithASnapshot(t *testing.T) {
	r := quietReplica()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mirror state.Mirror
	entered, release := make(chan struct{}), make(chan struct{})
	var snapshots, batches int
	first := true
	done := make(chan error, 1)
	go func() {
		done <- r.follow(ctx, func(u state.Update) error {
			if u.Snapshot {
				snapshots++
			} else {
				batches++
			}
			if first {
				first = false
				close(entered)
				<-release
			}
			return mirror.Apply(u)
		})
	}()
	<-entered
	for i := range uint64(maxFeedBatches + 1) {
		r.applyForTest(t, i+1, state.Command{Set: &state.Set{Name: "n", Value: fmt.Sprint(i)}})
	}
	if len(r.feed) != maxFeedBatches {
		t.Errorf("the feed keeps %d batches, want %d", len(r.feed), maxFeedBatches)
	}
	close(release)
	if _, err := mirror.Wait(t.Context(), func(s *state.State) bool { return s.Index() == maxFeedBatches+1 }); err != nil {
		t.Fatal(err)
	}
	r.applyForTest(t, maxFeedBatches+2, state.Command{Set: &state.Set{Name: "n", Value: "last"}})
	s, err := mirror.Wait(t.Context(), func(s *state.State) bool { return s.Index() == maxFeedBatches+2 })
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("follow: %v", err)
	}
	if v, _ := s.Setting("n"); v != "last" || snapshots != 2 || batches != 1 {
		t.Errorf("setting is %q after %d snapshots and %d batches, want last, 2, 1", v, snapshots, batches)
	}
}

func TestTheFeedIsBoundedInBytes(t *testing.T) {
	r := quietReplica()
	data := make([]byte, 1<<20) // what is in it does not matter
	for i := range uint64(40) {
		r.Apply(&raft.Log{Index: i + 1, Data: data})
	}
	if r.bytes > maxFeedBytes || len(r.feed) == 40 {
		t.Errorf("the feed keeps %d batches, %d bytes", len(r.feed), r.bytes)
	}
}

func TestFollowEndsWithTheErrorOfSend(t *testing.T) {
	r := quietReplica()
	broken := errors.New("broken pipe")
	if err := r.follow(t.Context(), func(state.Update) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("follow: %v", err)
	}
}

func TestRestoreBringsFollowersToTheNewState(t *testing.T) {
	r := quietReplica()
	mirror := new(state.Mirror)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.follow(ctx, mirror.Apply) }()
	r.applyForTest(t, 1, state.Command{Set: &state.Set{Name: "old", Value: "1"}})
	if _, err := mirror.Wait(t.Context(), func(s *state.State) bool { return s.Index() == 1 }); err != nil {
		t.Fatal(err)
	}
	snapshot, _ := workers(3).Apply(500, nil)
	var buf bytes.Buffer
	if err := state.EncodeSnapshot(&buf, snapshot); err != nil {
		t.Fatal(err)
	}
	if err := r.Restore(io.NopCloser(&buf)); err != nil {
		t.Fatal(err)
	}
	s, err := mirror.Wait(t.Context(), func(s *state.State) bool { return s.Index() == 500 })
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Setting("old"); ok {
		t.Error("the old state shines through")
	}
	cancel()
	<-done
	if err := r.Restore(io.NopCloser(strings.NewReader("nonsense"))); !errors.Is(err, state.ErrSnapshot) {
		t.Errorf("restore of nonsense: %v", err)
	}
}

func TestAnEntryThatDoesNotDecodeChangesOnlyTheIndex(t *testing.T) {
	r := quietReplica()
	got := r.Apply(&raft.Log{Index: 7, Data: []byte("\xff\xff")}).(*applied)
	if got.err == nil || r.current().Index() != 7 {
		t.Errorf("%+v, index %d", got, r.current().Index())
	}
}

func TestRaftsMessagesAreSaidOnce(t *testing.T) {
	var buf bytes.Buffer
	l := raftLogger(slog.New(slog.NewTextHandler(&buf, nil))).Named("transport")
	for range 3 {
		l.Error("failed to heartbeat to", "peer", "n2", "error", errors.New("refused"))
		l.Warn("heartbeat timeout reached, starting election", "last-leader-id", "n2")
		l.Info("entering follower state")
		l.Debug("votes", "needed", 2)
	}
	got := strings.Split(strings.TrimSpace(buf.String()), "\n")
	if len(got) != 2 || !strings.Contains(got[0], "level=WARN") || !strings.Contains(got[0], "peer=n2") || !strings.Contains(got[1], "level=INFO") {
		t.Errorf("log is %q, want a warning and an information", got)
	}
}
