package assignment

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/controller/state"
)

// cluster applies commands to a real state when the test lets it.
type cluster struct {
	t       *testing.T
	state   *state.State
	stale   *state.State // what State returns while set
	pending []func(error)
	log     []string
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, state: state.New()}
	c.apply(state.Command{PutNode: &state.Node{Name: "a", Service: netip.MustParseAddr("127.0.0.1"), P: 5060, I: 4060, S: 6060}})
	c.apply(state.Command{PutWorker: &state.Worker{ID: "s1", Kind: state.SCSCF, Node: "a"}})
	c.apply(state.Command{PutWorker: &state.Worker{ID: "s2", Kind: state.SCSCF, Node: "a"}})
	return c
}

func (c *cluster) apply(cmd state.Command) state.Result {
	next, r := c.state.Apply(c.state.Index()+1, []state.Command{cmd})
	if err := r[0].Check(); err != nil {
		c.t.Fatalf("apply %v: %v", cmd, err)
	}
	c.state = next
	return r[0]
}

func (c *cluster) State() *state.State {
	if c.stale != nil {
		return c.stale
	}
	return c.state
}

func (c *cluster) After(d time.Duration, fn func()) func() {
	t := time.AfterFunc(d, fn)
	return func() { t.Stop() }
}

func (c *cluster) Propose(cmd state.Command, done func(state.Result, error)) {
	if cmd.Assign != nil {
		c.log = append(c.log, "assign "+cmd.Assign.User)
	} else {
		c.log = append(c.log, "unassign "+cmd.Unassign.User)
	}
	c.pending = append(c.pending, func(err error) {
		if err != nil {
			done(state.Result{}, err)
			return
		}
		done(c.apply(cmd), nil)
	})
}

// settle lets the oldest command in flight end.
func (c *cluster) settle(err error) {
	c.t.Helper()
	if len(c.pending) == 0 {
		c.t.Fatal("no command is in flight")
	}
	p := c.pending[0]
	c.pending = c.pending[1:]
	p(err)
}

func (c *cluster) assigned(user string) state.GroupID {
	g, _ := c.state.Assignment(state.SCSCF, user)
	return g
}

func expect(t *testing.T, c *cluster, want ...string) {
	t.Helper()
	if !slices.Equal(c.log, want) {
		t.Fatalf("commands %q, want %q", c.log, want)
	}
}

func TestAssignment(t *testing.T) {
	const group = 2
	begin := func(t *testing.T) (*cluster, *Table) {
		c := newCluster(t)
		return c, New(state.SCSCF, group, c, slog.New(slog.DiscardHandler))
	}
	var got []state.GroupID
	var errs []error
	note := func(g state.GroupID, err error) { got, errs = append(got, g), append(errs, err) }

	run := func(name string, test func(t *testing.T, c *cluster, table *Table)) {
		t.Run(name, func(t *testing.T) {
			got, errs = nil, nil
			c, table := begin(t)
			test(t, c, table)
			if len(c.pending) != 0 {
				t.Fatalf("%d commands still in flight", len(c.pending))
			}
		})
	}

	run("the first hold assigns, the next one knows", func(t *testing.T, c *cluster, table *Table) {
		table.Hold("u", note)
		if len(got) != 0 {
			t.Fatal("done ran before the commit")
		}
		c.settle(nil)
		table.Hold("u", note)
		expect(t, c, "assign u")
		if !slices.Equal(got, []state.GroupID{group, group}) {
			t.Fatalf("groups %v", got)
		}
	})
	run("what the state knows is not proposed again", func(t *testing.T, c *cluster, table *Table) {
		c.apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "u", Hint: group}})
		table.Hold("u", note)
		expect(t, c)
		table.Release("u")
		c.settle(nil)
		expect(t, c, "unassign u")
		if c.assigned("u") != 0 {
			t.Fatal("still assigned")
		}
	})
	run("a user of another group is named and left there", func(t *testing.T, c *cluster, table *Table) {
		c.apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "u", Hint: 1}})
		table.Hold("u", note)
		table.Release("u")
		table.Release("u")
		expect(t, c)
		if !slices.Equal(got, []state.GroupID{1}) || c.assigned("u") != 1 {
			t.Fatalf("got %v, assigned %d", got, c.assigned("u"))
		}
	})
	run("a registration behind a de-registration ends assigned", func(t *testing.T, c *cluster, table *Table) {
		table.Hold("u", note)
		c.settle(nil)
		table.Release("u")
		table.Hold("u", note)
		if len(got) != 1 {
			t.Fatal("the second hold was answered while an Unassign was in flight")
		}
		c.settle(nil)
		c.settle(nil)
		expect(t, c, "assign u", "unassign u", "assign u")
		if len(got) != 2 || c.assigned("u") != group {
			t.Fatalf("got %v, assigned %d", got, c.assigned("u"))
		}
	})
	run("a de-registration behind a registration ends unassigned", func(t *testing.T, c *cluster, table *Table) {
		table.Hold("u", note)
		table.Release("u")
		c.settle(nil)
		c.settle(nil)
		expect(t, c, "assign u", "unassign u")
		if c.assigned("u") != 0 || !errors.Is(errs[0], ErrReleased) || len(table.users) != 0 {
			t.Fatalf("assigned %d, %v, %d left", c.assigned("u"), errs, len(table.users))
		}
	})
	run("a copy of the state that lags behind our own Unassign does not mislead", func(t *testing.T, c *cluster, table *Table) {
		table.Hold("u", note)
		c.settle(nil)
		c.stale = c.state
		table.Release("u")
		c.settle(nil)
		table.Hold("u", note)
		c.settle(nil)
		expect(t, c, "assign u", "unassign u", "assign u")
	})
	run("a failed assign is reported and asked for again", func(t *testing.T, c *cluster, table *Table) {
		down := errors.New("no leader")
		table.Hold("u", note)
		c.settle(down)
		table.Hold("u", note)
		c.settle(nil)
		if !errors.Is(errs[0], down) || errs[1] != nil || c.assigned("u") != group {
			t.Fatalf("errs %v, assigned %d", errs, c.assigned("u"))
		}
	})
	run("a user whom another group let go is taken", func(t *testing.T, c *cluster, table *Table) {
		c.apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "u", Hint: 1}})
		table.Hold("u", note)
		c.apply(state.Command{Unassign: &state.Unassign{Kind: state.SCSCF, User: "u", Group: 1}})
		table.Hold("u", note)
		c.settle(nil)
		if !slices.Equal(got, []state.GroupID{1, group}) {
			t.Fatalf("groups %v", got)
		}
	})
	run("what the state refuses to end is not asked for again", func(t *testing.T, c *cluster, table *Table) {
		table.Hold("u", note)
		c.settle(errors.New("timeout"))
		table.Release("u")
		c.settle(&state.Error{Code: state.Invalid})
		if len(table.users) != 0 {
			t.Fatal("the user is still in the table")
		}
	})
	run("an assign of unknown outcome is undone", func(t *testing.T, c *cluster, table *Table) {
		table.Hold("u", note)
		c.apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "u", Hint: group}})
		c.settle(errors.New("timeout"))
		table.Release("u")
		c.settle(nil)
		if c.assigned("u") != 0 {
			t.Fatal("still assigned")
		}
	})
}

func TestAFailedReleaseIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "u", Hint: 2}})
		table := New(state.SCSCF, 2, c, slog.New(slog.DiscardHandler))
		table.Release("u")
		c.settle(errors.New("no leader"))
		time.Sleep(retryAfter)
		synctest.Wait()
		c.settle(nil)
		expect(t, c, "unassign u", "unassign u")
		if c.assigned("u") != 0 || len(table.users) != 0 {
			t.Fatalf("assigned %d, %d left", c.assigned("u"), len(table.users))
		}

		c.apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "v", Hint: 2}})
		table.Release("v")
		c.settle(errors.New("no leader"))
		table.Stop()
		time.Sleep(2 * retryAfter)
		synctest.Wait()
		if len(c.pending) != 0 {
			t.Fatal("a stopped table proposed something")
		}
	})
}

func TestBothWaitsForTwoAndGivesTheFirstError(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	for _, tt := range []struct{ a, b, want error }{
		{nil, nil, nil}, {first, nil, first}, {nil, second, second}, {first, second, first},
	} {
		calls := 0
		var got error
		both := Both(func(err error) { calls, got = calls+1, err })
		both(tt.a)
		if calls != 0 {
			t.Errorf("%v: done after one promise", tt)
		}
		both(tt.b)
		if calls != 1 || got != tt.want {
			t.Errorf("%v: done %d times with %v", tt, calls, got)
		}
	}
}
