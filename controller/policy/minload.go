// Package policy chooses among groups where the cluster state leaves a choice:
// by load.
//
// Min-user, the choice for users, is part of package state, since all members
// must choose alike; min-load is each front's own.
//
// The package holds no clocks, sockets or goroutines, and remembers only what
// it is told. A group that never reported counts as idle: a new worker takes
// its share at once, and its own dispatches keep it from taking everything.
package policy

import (
	"sync"

	"bellwether/controller/state"
)

// MinLoad chooses the group with the least load: what it reported last, plus
// one for each dispatch since. Its zero value is ready. Its methods may be
// called from any goroutine.
type MinLoad struct {
	mu    sync.Mutex
	loads map[state.GroupID]float64
}

// Report takes a group's load, in requests, and forgets the dispatches before
// it, which the report includes.
func (m *MinLoad) Report(g state.GroupID, load float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loads == nil {
		m.loads = make(map[state.GroupID]float64)
	}
	if !(load > 0) { // NaN too
		load = 0
	}
	m.loads[g] = load
}

// Keep forgets all groups but these.
func (m *MinLoad) Keep(groups []state.GroupID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := make(map[state.GroupID]float64, len(groups))
	for _, g := range groups {
		if load, ok := m.loads[g]; ok {
			kept[g] = load
		}
	}
	m.loads = kept
}

// Choose returns the group with the least load among candidates and counts a
// dispatch to it. Ties go to a preferred group (a local one), then to the
// lowest id. preferred may be nil. It returns false if there are no candidates.
func (m *MinLoad) Choose(candidates []state.GroupID, preferred func(state.GroupID) bool) (state.GroupID, bool) {
	if len(candidates) == 0 {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	best, bestPreferred := candidates[0], preferred != nil && preferred(candidates[0])
	for _, g := range candidates[1:] {
		load, least := m.loads[g], m.loads[best]
		if load > least {
			continue
		}
		p := preferred != nil && preferred(g)
		if load < least || p && !bestPreferred || p == bestPreferred && g < best {
			best, bestPreferred = g, p
		}
	}
	if m.loads == nil {
		m.loads = make(map[state.GroupID]float64)
	}
	m.loads[best]++
	return best, true
}

// Load is a group's reported load plus the dispatches since.
func (m *MinLoad) Load(g state.GroupID) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.loads[g]
}
