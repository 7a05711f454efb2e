package policy_test

import (
	"math"
	"testing"

	"bellwether/controller/policy"
	"bellwether/controller/state"
)

func TestChoose(t *testing.T) {
	local := func(ids ...state.GroupID) func(state.GroupID) bool {
		return func(g state.GroupID) bool {
			for _, id := range ids {
				if id == g {
					return true
				}
			}
			return false
		}
	}
	for _, tt := range []struct {
		name      string
		reports   map[state.GroupID]float64
		among     []state.GroupID
		preferred func(state.GroupID) bool
		want      []state.GroupID // one after the other
	}{
		{"nobody reported: in turn by id", nil, []state.GroupID{3, 1, 2}, nil, []state.GroupID{1, 2, 3, 1, 2, 3}},
		{"ties go to a local group first", nil, []state.GroupID{1, 2, 3}, local(3), []state.GroupID{3, 1, 2, 3}},
		{"two local groups tie by id", nil, []state.GroupID{1, 2, 3}, local(2, 3), []state.GroupID{2, 3, 1}},
		{"least load wins over local", map[state.GroupID]float64{1: 5, 2: 0.5}, []state.GroupID{1, 2}, local(1), []state.GroupID{2, 2, 2, 2, 2, 1}},
		{"a dispatch counts as one until the next report", map[state.GroupID]float64{1: 2, 2: 0}, []state.GroupID{1, 2}, nil, []state.GroupID{2, 2, 1, 2, 1, 2}},
		{"a load that is no number counts as none", map[state.GroupID]float64{1: math.NaN(), 2: -4}, []state.GroupID{1, 2}, nil, []state.GroupID{1, 2, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var m policy.MinLoad
			for g, load := range tt.reports {
				m.Report(g, load)
			}
			for i, want := range tt.want {
				if got, ok := m.Choose(tt.among, tt.preferred); !ok || got != want {
					t.Errorf("choice %d is %d, %v, want %d", i, got, ok, want)
				}
			}
		})
	}
}

func TestChooseAmongNone(t *testing.T) {
	var m policy.MinLoad
	if g, ok := m.Choose(nil, nil); ok {
		t.Errorf("chose %d among no groups", g)
	}
}

func TestReportForgetsDispatchesAndKeepForgetsGroups(t *testing.T) {
	var m policy.MinLoad
	for range 5 {
		m.Choose([]state.GroupID{1}, nil)
	}
	if got := m.Load(1); got != 5 {
		t.Errorf("load after five dispatches is %v", got)
	}
	m.Report(1, 2)
	m.Report(2, 3)
	m.Keep([]state.GroupID{2, 9})
	if m.Load(1) != 0 || m.Load(2) != 3 {
		t.Errorf("loads are %v and %v, want 0 and 3", m.Load(1), m.Load(2))
	}
}

// A group that is three times slower than the others gets a third of their
// share, if each reports what it has under way (spec: min-load).
func TestASlowGroupGetsItsCapacitysShare(t *testing.T) {
	var m policy.MinLoad
	all := []state.GroupID{1, 2, 3}
	speed := map[state.GroupID]float64{1: 1, 2: 3, 3: 3} // requests done per step
	pending, chosen := map[state.GroupID]float64{}, map[state.GroupID]float64{}
	for range 1000 {
		for range 7 {
			g, _ := m.Choose(all, nil)
			pending[g]++
			chosen[g]++
		}
		for _, g := range all {
			pending[g] = max(0, pending[g]-speed[g])
			m.Report(g, pending[g])
		}
	}
	if share := chosen[1] / chosen[2]; share < 0.30 || share > 0.37 {
		t.Errorf("the slow group got %.2f of a fast one's share, want a third", share)
	}
}

func TestChooseAllocatesNothing(t *testing.T) {
	var m policy.MinLoad
	all := []state.GroupID{1, 2, 3, 4}
	m.Choose(all, nil)
	if n := testing.AllocsPerRun(100, func() {
		for _, g := range all {
			m.Report(g, 0)
		}
		for range all {
			m.Choose(all, nil)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
