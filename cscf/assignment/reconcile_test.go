package assignment

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/controller/state"
)

// now is a cluster where commands take effect at once.
type now struct {
	*cluster
	mu *sync.Mutex
}

func (n now) State() *state.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cluster.State()
}

func (n now) Propose(cmd state.Command, done func(state.Result, error)) {
	n.mu.Lock()
	r := n.apply(cmd)
	n.mu.Unlock()
	done(r, nil)
}

func (n now) assigned(user string) state.GroupID {
	g, _ := n.State().Assignment(state.SCSCF, user)
	return g
}

func TestUsersOfWhomNothingIsHeldAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const group, lost = 2, 250
		c := now{newCluster(t), new(sync.Mutex)}
		table := New(state.SCSCF, group, c, slog.New(slog.DiscardHandler))
		assign := func(user string, g state.GroupID) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: user, Hint: g}})
		}
		for i := range lost {
			assign(fmt.Sprint("lost", i), group)
		}
		assign("held", group)
		assign("elsewhere", 1)
		held := map[string]bool{"held": true}
		table.Reconcile(func(user string) bool { return held[user] }, func(user string) {
			if user == "lost7" { // it registers just now
				held[user] = true
				table.Hold(user, func(state.GroupID, error) {})
			}
			if !held[user] {
				table.Lose(user)
			}
		})
		time.Sleep(settle - time.Millisecond)
		synctest.Wait()
		if g := c.assigned("lost0"); g != group {
			t.Errorf("a user is given up at once")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for user, want := range map[string]state.GroupID{"held": group, "elsewhere": 1, "lost7": group, "lost0": 0, "lost249": 0} {
			if got := c.assigned(user); got != want {
				t.Errorf("%s is assigned to %d, want %d", user, got, want)
			}
		}
		if n, at := table.Lost(); n != lost-1 || time.Since(at) > time.Second {
			t.Errorf("%d were lost, at %v", n, at)
		}
		assign("later", group)
		time.Sleep(reconcileEvery)
		synctest.Wait()
		if g := c.assigned("later"); g != 0 {
			t.Errorf("what nobody holds is assigned to %d", g)
		}
		table.Stop()
		assign("afterwards", group)
		time.Sleep(time.Hour)
		if g := c.assigned("afterwards"); g != group {
			t.Errorf("a table that was stopped assigned to %d", g)
		}
	})
}

func TestASubscriberWhoIsThereAgainIsAssignedAgain(t *testing.T) {
	c := now{newCluster(t), new(sync.Mutex)}
	table := New(state.SCSCF, 2, c, slog.New(slog.DiscardHandler))
	table.Hold("u", func(state.GroupID, error) {})
	c.apply(state.Command{Unassign: &state.Unassign{Kind: state.SCSCF, User: "u", Group: 2}}) // by RemoveSubscriber
	var got state.GroupID
	table.Hold("u", func(g state.GroupID, _ error) { got = g })
	if got != 2 || c.assigned("u") != 2 {
		t.Errorf("held by %d, assigned to %d", got, c.assigned("u"))
	}
}
