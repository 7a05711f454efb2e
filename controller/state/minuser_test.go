package state_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"bellwether/controller/state"
)

// rival is min-user as one would write it on a napkin.
type rival struct {
	groups []state.GroupID // in id order
	user   map[string]state.GroupID
}

func (r *rival) count(g state.GroupID) int {
	n := 0
	for _, at := range r.user {
		if at == g {
			n++
		}
	}
	return n
}

func (r *rival) assign(user string) state.GroupID {
	if g, ok := r.user[user]; ok {
		return g
	}
	best := r.groups[0]
	for _, g := range r.groups[1:] {
		if r.count(g) < r.count(best) {
			best = g
		}
	}
	r.user[user] = best
	return best
}

func fourWorkers(t *testing.T) *state.State {
	s := apply(t, state.New(), node("a", 1))
	for i := range 4 {
		// Workers of the other kinds in between must not matter.
		s = apply(t, s, worker(fmt.Sprint("s", i), state.SCSCF, "a"), worker(fmt.Sprint("p", i), state.PCSCF, "a"))
	}
	return s
}

func spread(s *state.State) (lowest, highest int) {
	lowest = -1
	for g := range s.Groups() {
		if g.Kind == state.SCSCF {
			if lowest < 0 || g.Users < lowest {
				lowest = g.Users
			}
			highest = max(highest, g.Users)
		}
	}
	return lowest, highest
}

// 10,000 registrations over 4 workers, arrivals only: max - min <= 1, always.
func TestMinUserSpreadsArrivalsEvenly(t *testing.T) {
	s := fourWorkers(t)
	next := 0
	for next < 10_000 {
		var batch []state.Command
		for range 1 + next%37 {
			batch = append(batch, assign(fmt.Sprintf("user%d@d", next), 0))
			next++
		}
		s = apply(t, s, batch...)
		if low, high := spread(s); high-low > 1 {
			t.Fatalf("after %d arrivals the groups have %d to %d users", next, low, high)
		}
	}
	checkCounts(t, s)
}

// With churn, and workers that come and go, each choice is one that the rival makes too.
func TestMinUserWithChurnAgreesWithADumbRival(t *testing.T) {
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := fourWorkers(t)
		r := &rival{groups: []state.GroupID{1, 3, 5, 7}, user: make(map[string]state.GroupID)}
		for step := range 1500 {
			user := fmt.Sprintf("u%d", rnd.IntN(300))
			switch at, assigned := r.user[user]; {
			case step == 700:
				var res state.Result
				s, res = one(s, worker("late", state.SCSCF, "a"))
				r.groups = append(r.groups, res.Group)
			case assigned && rnd.IntN(2) == 0:
				s = apply(t, s, unassign(user, at))
				delete(r.user, user)
			default:
				fewest := make(map[state.GroupID]int)
				for g := range s.Groups() {
					fewest[g.ID] = g.Users
				}
				low, _ := spread(s)
				var res state.Result
				s, res = one(s, assign(user, 0))
				if want := r.assign(user); res.Group != want {
					t.Fatalf("seed %d, step %d: %s goes to group %d, the rival says %d", seed, step, user, res.Group, want)
				}
				if !assigned && fewest[res.Group] != low {
					t.Fatalf("seed %d, step %d: the chosen group had %d users, another %d", seed, step, fewest[res.Group], low)
				}
			}
		}
		checkCounts(t, s)
	}
}

func TestMinUserCountsWhatTheCallerAdds(t *testing.T) {
	s := fourWorkers(t)
	extra := map[state.GroupID]int{1: 2, 3: 1, 5: 0, 7: 1}
	if g, ok := s.MinUser(state.SCSCF, func(g state.GroupID) int { return extra[g] }); !ok || g != 5 {
		t.Errorf("chose %d, %v, want 5", g, ok)
	}
	if g, ok := s.MinUser(state.SCSCF, nil); !ok || g != 1 {
		t.Errorf("a tie goes to %d, %v, want 1", g, ok)
	}
	if _, ok := state.New().MinUser(state.SCSCF, nil); ok {
		t.Error("chose among no groups")
	}
}
