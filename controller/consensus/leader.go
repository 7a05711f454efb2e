package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"bellwether/controller/state"
)

// errNotServing is answered by a member that is not the leader, or not yet
// aware of all that the leader before it committed.
var errNotServing = errors.New("not the leader")

// Pauses between attempts; a change of leader ends a pause early.
const (
	firstPause     = 10 * time.Millisecond
	longestPause   = 160 * time.Millisecond
	attemptTimeout = 2 * time.Second

	transferTimeout = 5 * time.Second
)

// leaderWatch knows who leads and tells when that changes.
type leaderWatch struct {
	serving  atomic.Bool // this member leads and has applied everything committed before
	observer *raft.Observer
	events   chan raft.Observation // capacity 1: only that something changed counts
	done     chan struct{}
	stopped  chan struct{}

	mu      sync.Mutex
	id      string
	changed chan struct{}
}

func (w *leaderWatch) watch(r *raft.Raft) {
	w.events = make(chan raft.Observation, 1)
	w.done, w.stopped, w.changed = make(chan struct{}), make(chan struct{}), make(chan struct{})
	w.observer = raft.NewObserver(w.events, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	r.RegisterObserver(w.observer)
	w.update(r)
	go func() {
		defer close(w.stopped)
		for {
			select {
			case <-w.events:
				w.update(r)
			case <-w.done:
				return
			}
		}
	}()
}

func (w *leaderWatch) update(r *raft.Raft) {
	_, id := r.LeaderWithID()
	w.mu.Lock()
	defer w.mu.Unlock()
	if string(id) != w.id {
		w.id = string(id)
		close(w.changed)
		w.changed = make(chan struct{})
	}
}

func (w *leaderWatch) stop(r *raft.Raft) {
	r.DeregisterObserver(w.observer)
	close(w.done)
	<-w.stopped
}

// leader returns the leader's name, "" if none is known, and a channel that is
// closed when that changes.
func (w *leaderWatch) leader() (string, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.id, w.changed
}

// Leader returns the node that leads, as far as this member knows.
func (c *Controller) Leader() (node string, ok bool) {
	node, _ = c.leader.leader()
	return node, node != ""
}

// retry calls fn with the leader's name until it gives no error, an error of
// the state (a decision, which no repetition changes), or ctx ends. An attempt
// is given up when another leader is known.
func (c *Controller) retry(ctx context.Context, fn func(ctx context.Context, leader string) error) error {
	pause := firstPause
	last := ErrNoLeader
	for {
		leader, changed := c.leader.leader()
		if leader != "" {
			attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
			stop := cancelOn(changed, cancel)
			err := fn(attempt, leader)
			stop()
			cancel()
			var decided *state.Error
			if err == nil || errors.As(err, &decided) {
				return err
			}
			last = err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, longestPause)
		case <-changed:
			pause = firstPause
		case <-ctx.Done():
		}
		timer.Stop()
		if err := ctx.Err(); err != nil {
			return errors.Join(err, last)
		}
	}
}

// cancelOn calls cancel when changed is closed, unless stop was called.
func cancelOn(changed <-chan struct{}, cancel func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-changed:
			cancel()
		case <-done:
		}
	}()
	return func() { close(done) }
}

// followLeadership lets a new leader serve once it has applied all that was
// committed before, and with no reservations.
func (c *Controller) followLeadership() {
	for {
		select {
		case leads := <-c.raft.LeaderCh():
			c.leader.serving.Store(false)
			c.local.forget()
			if !leads {
				c.log.Info("this controller no longer leads", "node", c.cfg.Node)
				continue
			}
			c.log.Info("this controller leads", "node", c.cfg.Node, "term", c.raft.CurrentTerm())
			c.serve()
		case <-c.ctx.Done():
			return
		}
	}
}

// serve returns once this leader has applied what the leaders before it
// committed, or leads no more.
func (c *Controller) serve() {
	for c.ctx.Err() == nil && c.raft.State() == raft.Leader {
		if err := await(c.ctx, c.raft.Barrier(attemptTimeout)); err == nil {
			c.leader.serving.Store(true)
			return
		}
	}
}

// await waits for a future that, if raft hangs, would never come.
func await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TransferLeadership hands leadership to a member, or to any that is up to
// date if to is "". Any member can be asked. It takes at most five seconds; if
// it fails, the outcome is what Leader says later.
func (c *Controller) TransferLeadership(ctx context.Context, to string) error {
	if to != "" {
		if _, ok := c.member(to); !ok {
			return fmt.Errorf("transfer leadership: node %s is not one of the controllers", to)
		}
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	ctx, cancelTimeout := context.WithTimeout(ctx, transferTimeout)
	defer cancelTimeout()
	leader, _ := c.leader.leader()
	var err error
	switch {
	case leader == "":
		err = ErrNoLeader
	case leader == to:
	case leader == c.cfg.Node:
		err = c.transferHere(ctx, to)
	default:
		err = c.askTransfer(ctx, leader, to)
	}
	if err != nil {
		return fmt.Errorf("transfer leadership: %w", c.reason(err))
	}
	return nil
}

func (c *Controller) transferHere(ctx context.Context, to string) error {
	if m, ok := c.member(to); ok {
		return await(ctx, c.raft.LeadershipTransferToServer(raft.ServerID(m.Name), raft.ServerAddress(m.Addr)))
	}
	return await(ctx, c.raft.LeadershipTransfer())
}
