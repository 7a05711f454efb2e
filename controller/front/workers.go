package front

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// workers knows the links to worker processes and which groups they host.
type workers struct {
	routes atomic.Pointer[routes]

	mu     sync.Mutex // guards the rest, and the making of routes
	claims map[*link.Conn]map[state.GroupID]uint64
	last   uint64
}

// routes is an immutable extract of claims.
type routes struct {
	conns  map[state.GroupID]*link.Conn
	groups []state.GroupID // keys of conns, sorted
}

func (w *workers) init() {
	w.claims = make(map[*link.Conn]map[state.GroupID]uint64)
	w.routes.Store(&routes{})
}

// Attach adds the link of a worker process that hosts groups. What it hosted
// before by the same link is replaced.
func (f *Front) Attach(c *link.Conn, groups []uint32) {
	f.workers.mu.Lock()
	defer f.workers.mu.Unlock()
	f.workers.claim(c, groups)
}

// SetGroups changes which groups a worker process hosts. A link that is not
// attached is ignored. If several links claim a group, the one that came to it
// last has it: a process that reconnected or took over, not the one that it
// replaces.
func (f *Front) SetGroups(c *link.Conn, groups []uint32) {
	f.workers.mu.Lock()
	defer f.workers.mu.Unlock()
	if f.workers.claims[c] != nil {
		f.workers.claim(c, groups)
	}
}

// Detach removes a link.
func (f *Front) Detach(c *link.Conn) {
	f.workers.mu.Lock()
	defer f.workers.mu.Unlock()
	if f.workers.claims[c] != nil {
		delete(f.workers.claims, c)
		f.workers.extract()
	}
}

// claim replaces the groups of a link. The caller holds mu.
func (w *workers) claim(c *link.Conn, groups []state.GroupID) {
	old, claims := w.claims[c], make(map[state.GroupID]uint64, len(groups))
	w.last++
	for _, g := range groups {
		claims[g] = w.last
		if since, ok := old[g]; ok {
			claims[g] = since
		}
	}
	w.claims[c] = claims
	w.extract()
}

// extract makes routes of the newest claim to each group. The caller holds mu.
func (w *workers) extract() {
	r := &routes{conns: make(map[state.GroupID]*link.Conn)}
	newest := make(map[state.GroupID]uint64)
	for c, claims := range w.claims {
		for g, since := range claims {
			if since > newest[g] {
				newest[g], r.conns[g] = since, c
			}
		}
	}
	r.groups = slices.Sorted(maps.Keys(r.conns))
	w.routes.Store(r)
}

// deliver sends a frame from the wire to the worker that serves its group.
func (f *Front) deliver(s *link.SIP) {
	g, ok := f.cluster.State().Group(s.To)
	if !ok {
		f.count.drop(UnknownGroup)
		return
	}
	s.Epoch = g.Epoch
	if f.toWorker(s) {
		f.count.delivered.Add(1)
	}
}

// toWorker sends a frame to the worker process that hosts its group.
func (f *Front) toWorker(s *link.SIP) bool {
	c := f.workers.routes.Load().conns[s.To]
	if c == nil {
		f.count.drop(NotConnected)
		return false
	}
	switch err := c.SendSIP(s); {
	case err == nil:
		return true
	case errors.Is(err, link.ErrClosed):
		f.count.drop(NotConnected)
	default:
		f.count.drop(LinkFull)
	}
	return false
}

// FromWorker takes a frame of a worker: for the wire (To 0) or for another
// worker. It keeps s.Raw, nothing else. Frames of a group's former worker,
// which show a lower epoch than the cluster state, are dropped.
func (f *Front) FromWorker(s *link.SIP) {
	g, ok := f.cluster.State().Group(s.From)
	switch {
	case !ok:
		f.count.drop(UnknownGroup)
		return
	case s.Epoch < g.Epoch:
		f.count.drop(StaleEpoch)
		return
	case s.To != 0:
		if f.toWorker(s) {
			f.count.relayed.Add(1)
		}
		return
	}
	l := f.local[s.Flow.Local]
	if l == nil && !s.Flow.Local.IsValid() {
		l = f.entries[s.Entry]
	}
	if l == nil || s.Flow.Transport != sipmsg.UDP {
		f.count.drop(NoSocket)
		return
	}
	if l.reachable(s.Flow.Remote) != nil || len(s.Raw) == 0 || len(s.Raw) > maxPayload {
		f.count.drop(Unsendable)
		return
	}
	if !f.answerable(s) {
		return
	}
	if err := l.toward(s.Flow.Remote).send(s.Raw, s.Flow.Remote); err != nil {
		f.count.drop(SocketFull)
	}
}

// maxPayload is what a UDP datagram over IPv4 can carry.
const maxPayload = 65507
