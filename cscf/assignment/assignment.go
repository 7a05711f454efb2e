// Package assignment keeps the cluster's table of users in step with the
// registrations of one group.
//
// A group calls Hold when it registers a user and Release when the last
// registration ended. The package turns that into Assign and Unassign commands
// of the cluster state, one in flight per user, so that a de-registration that
// is followed at once by a registration can never end with a registered user
// that nobody is assigned to, nor the reverse.
//
// It does not decide where a user belongs: the state does. It stores nothing;
// after a restart it learns from the state what is assigned, and Reconcile ends
// what the group holds nothing of.
//
// Failure: a command whose outcome is unknown leaves the user in doubt. Hold
// reports the error and the next Hold asks again; Release tries again until it
// is done, since a forgotten assignment would count as a user for ever.
package assignment

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"bellwether/controller/state"
)

// ErrReleased means that a user was released while Hold waited.
var ErrReleased = errors.New("user was released meanwhile")

// retryAfter is the pause before an Unassign of unknown outcome is repeated.
const retryAfter = 5 * time.Second

// Cluster is what a Table needs of the cluster state.
type Cluster interface {
	State() *state.State
	// Propose calls done once, on any goroutine.
	Propose(cmd state.Command, done func(state.Result, error))
	After(d time.Duration, fn func()) (stop func())
}

// Table is the users that one group holds. It is safe for concurrent use.
type Table struct {
	kind    state.Kind
	group   state.GroupID
	cluster Cluster
	log     *slog.Logger

	mu      sync.Mutex
	users   map[string]*user
	seen    uint64 // index of our last command: an older copy of the state may mislead
	stopped bool
	pending func() // stops the timer of Reconcile
	lost    int    // users given up by Reconcile
	lostAt  time.Time
}

// user is a user between the first Hold and the end of its Unassign.
type user struct {
	want    bool          // held
	busy    bool          // a command is in flight
	known   bool          // group is what the state says
	group   state.GroupID // 0: not assigned
	waiting []func(state.GroupID, error)
	stop    func() // of the pending retry
}

// New returns the table of a group of that kind.
func New(kind state.Kind, group state.GroupID, cluster Cluster, log *slog.Logger) *Table {
	return &Table{kind: kind, group: group, cluster: cluster, log: log, users: make(map[string]*user)}
}

// Stop ends retries. Commands in flight still call back.
func (t *Table) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	if t.pending != nil {
		t.pending()
	}
	for _, u := range t.users {
		if u.stop != nil {
			u.stop()
			u.stop = nil
		}
	}
}

// Hold makes sure that the user is assigned and calls done with the group that
// has it, which need not be this one. done runs at once where that is known,
// otherwise on any goroutine.
func (t *Table) Hold(name string, done func(state.GroupID, error)) {
	t.mu.Lock()
	u := t.users[name]
	if u == nil {
		u = &user{}
		t.look(name, u)
		t.users[name] = u
	}
	u.want = true
	if !u.busy && u.known {
		t.doubt(name, u)
	}
	if !u.busy && u.known && u.group != 0 {
		g := u.group
		t.mu.Unlock()
		done(g, nil)
		return
	}
	u.waiting = append(u.waiting, done)
	t.next(name, u)
}

// doubt forgets what is known of a user if it may have changed without us:
// another group may have let go of the user, or the subscriber was removed and
// is there again.
func (t *Table) doubt(name string, u *user) {
	s := t.cluster.State()
	if g, ok := s.Assignment(t.kind, name); u.group == t.group && (s.Index() < t.seen || ok && g == u.group) {
		return
	}
	u.known, u.group = false, 0
	t.look(name, u)
}

// look learns from the copy of the state what was assigned before our time. A
// copy that has not heard of our own last commands says nothing.
func (t *Table) look(name string, u *user) {
	s := t.cluster.State()
	if s.Index() < t.seen {
		return
	}
	if g, ok := s.Assignment(t.kind, name); ok {
		u.known, u.group = true, g
	}
}

// Release ends the assignment of a user, if it is this group's.
func (t *Table) Release(name string) {
	t.mu.Lock()
	u := t.users[name]
	if u == nil {
		if g, ok := t.cluster.State().Assignment(t.kind, name); !ok || g != t.group {
			t.mu.Unlock()
			return
		}
		u = &user{known: true, group: t.group}
		t.users[name] = u
	}
	u.want = false
	t.next(name, u)
}

// next starts the command that a user needs, with mu held; it unlocks.
func (t *Table) next(name string, u *user) {
	if u.busy || t.stopped {
		t.mu.Unlock()
		return
	}
	if u.stop != nil {
		u.stop()
		u.stop = nil
	}
	var cmd state.Command
	switch {
	case u.want && !(u.known && u.group != 0):
		cmd.Assign = &state.Assign{Kind: t.kind, User: name, Hint: t.group}
	case !u.want && (!u.known || u.group == t.group):
		cmd.Unassign = &state.Unassign{Kind: t.kind, User: name, Group: t.group}
	default: // as it should be
		waiting, g, want := u.waiting, u.group, u.want
		u.waiting = nil
		if !want {
			delete(t.users, name)
		}
		t.mu.Unlock()
		for _, done := range waiting {
			if want {
				done(g, nil)
			} else {
				done(0, ErrReleased)
			}
		}
		return
	}
	u.busy = true
	t.mu.Unlock()
	t.cluster.Propose(cmd, func(r state.Result, err error) { t.done(name, u, cmd, r, err) })
}

func (t *Table) done(name string, u *user, cmd state.Command, r state.Result, err error) {
	if err == nil {
		err = r.Check()
	}
	t.mu.Lock()
	u.busy = false
	var failed []func(state.GroupID, error)
	if refusal := new(state.Error); cmd.Unassign != nil && errors.As(err, &refusal) {
		err = nil // what the state refuses to end is not there
	}
	switch {
	case err != nil:
		u.known = false
		failed, u.waiting = u.waiting, nil
	case cmd.Assign != nil:
		u.known, u.group = true, r.Group
		t.seen = max(t.seen, r.Index)
	default:
		u.known, u.group = true, 0
		t.seen = max(t.seen, r.Index)
	}
	switch {
	case err == nil:
		t.next(name, u)
	case u.want:
		t.mu.Unlock() // the next Hold asks again
	default:
		t.log.Warn("end an assignment", "kind", t.kind, "user", name, "err", err)
		if !t.stopped {
			u.stop = t.cluster.After(retryAfter, func() {
				t.mu.Lock()
				if t.users[name] != u { // stopped too late: the user came back and went again
					t.mu.Unlock()
					return
				}
				t.next(name, u)
			})
		}
		t.mu.Unlock()
	}
	for _, done := range failed {
		done(0, err)
	}
}

// Both joins the two promises that a 200 to REGISTER waits for, that the
// registration is durable and that the user is assigned: each calls the
// function returned once, with its error or nil, and done then gets the first
// error, when both are kept or broken.
func Both(done func(error)) func(error) {
	var mu sync.Mutex
	left, first := 2, error(nil)
	return func(err error) {
		mu.Lock()
		if first == nil {
			first = err
		}
		left--
		last := left == 0
		mu.Unlock()
		if last {
			done(first)
		}
	}
}
