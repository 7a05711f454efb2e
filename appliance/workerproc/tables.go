package workerproc

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"bellwether/controller/dispatch"
	"bellwether/controller/link"
	"bellwether/controller/policy"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

// errUnserved means that nobody serves what the message is for just now; its
// retransmission may find somebody.
var errUnserved = errors.New("next hop is not served")

// maxCallIDs bounds the remembered Call-IDs of one generation.
const maxCallIDs = 200_000

// tables are what this process knows beside the cluster state to dispatch its
// own next hops. It implements dispatch.Tables.
type tables struct {
	p      *Process
	sealer atomic.Pointer[token.Sealer]

	minLoad policy.MinLoad

	mu       sync.Mutex
	reported map[*link.Conn]map[state.GroupID]float64 // I-CSCFs that each front has a link to
	now, old map[string]state.GroupID                 // I-CSCF chosen for a Call-ID, in two generations
	turned   time.Time
}

func newTables(p *Process) *tables {
	return &tables{
		p: p, reported: map[*link.Conn]map[state.GroupID]float64{},
		now: map[string]state.GroupID{}, turned: time.Now(),
	}
}

// route decides where a message goes inside the cluster.
func (t *tables) route(kind state.Kind, m *sipmsg.Message) (state.GroupID, error) {
	d := dispatch.Decide(dispatch.Input{
		Message: m, Entry: entryOf(kind), Flow: sipmsg.Flow{Node: t.p.cfg.Node.Name},
		State: t.p.State(), Sealer: t.sealer.Load(), Tables: t,
	})
	switch d.Verdict {
	case dispatch.To:
		if d.Chosen {
			t.remember(m.CallID(), d.Group)
		}
		return d.Group, nil
	case dispatch.Drop:
		return 0, fmt.Errorf("%w: %s", errUnserved, d.Drop)
	}
	return 0, fmt.Errorf("no next hop of kind %s for this message", kind)
}

// tokened reports whether a request is routed by a token of ours: in its
// topmost Route, or where a strict router puts it (RFC 3261 §16.4).
func (t *tables) tokened(m *sipmsg.Message) bool {
	sealer := t.sealer.Load()
	ours := func(uri string) bool {
		u, err := sipmsg.ParseURI(uri)
		if err != nil || sealer == nil {
			return false
		}
		_, ok := sealer.Open(u.User)
		return ok
	}
	if top, ok := m.TopRoute(); ok && ours(top.URI) {
		return true
	}
	return ours(m.RequestURI())
}

func entryOf(k state.Kind) byte {
	switch k {
	case state.PCSCF:
		return 'p'
	case state.ICSCF:
		return 'i'
	case state.SCSCF:
		return 's'
	}
	return 0
}

// Flow is unknown here: a worker's next hop towards a phone carries a token.
func (t *tables) Flow(sipmsg.Flow) (state.GroupID, bool) { return 0, false }

// Call returns the I-CSCF chosen for a Call-ID within the last 64·T1.
func (t *tables) Call(callID string) (state.GroupID, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn()
	g, ok := t.now[callID]
	if !ok {
		g, ok = t.old[callID]
	}
	return g, ok
}

func (t *tables) remember(callID string, g state.GroupID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turn()
	t.now[string([]byte(callID))] = g // a copy: the message's buffer goes
}

// turn ages the Call-IDs: an entry lives for one to two generations of 64·T1.
func (t *tables) turn() {
	age := time.Since(t.turned)
	keep := 64 * t.p.now().SIP.T1
	if age < keep && len(t.now) < maxCallIDs {
		return
	}
	t.old, t.now, t.turned = t.now, map[string]state.GroupID{}, time.Now()
	if age > 2*keep {
		t.old = nil
	}
}

// LeastLoaded chooses an I-CSCF by min-load; between equals one of this process.
func (t *tables) LeastLoaded() (state.GroupID, bool) {
	var groups []state.GroupID
	for g := range t.p.State().Groups() {
		if g.Kind == state.ICSCF && t.Reachable(g.ID) {
			groups = append(groups, g.ID)
		}
	}
	return t.minLoad.Choose(groups, func(g state.GroupID) bool { return t.p.engine(g) != nil })
}

// Reachable reports whether the group is served here, or may be through a front.
func (t *tables) Reachable(g state.GroupID) bool {
	if t.p.engine(g) != nil {
		return true
	}
	gr, ok := t.p.State().Group(g)
	if !ok || gr.Serving == "" || t.p.links.any() == nil {
		return false
	}
	if gr.Kind != state.ICSCF {
		return true // the front that relays knows better
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, groups := range t.reported {
		if _, ok := groups[g]; ok {
			return true // a front that has just begun may not know all yet
		}
	}
	return false
}

// report takes the loads that a front knows.
func (t *tables) report(from *link.Conn, loads map[uint32]float64) {
	for g, l := range loads {
		t.minLoad.Report(g, l)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reported[from] = loads
}

// forget drops what a front that is gone had reported.
func (t *tables) forget(from *link.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.reported, from)
}
