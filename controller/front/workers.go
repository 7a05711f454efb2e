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
func (f *Front) deliver(s *link.SIP) loss {
	g, ok := f.cluster.State().Group(s.To)
	if !ok {
		return loss{lost: true, cause: UnknownGroup}
	}
	s.Epoch = g.Epoch
	l := f.toWorker(s)
	if !l.lost {
		f.count.delivered.Add(1)
	}
	return l
}

// toWorker sends a frame to the worker process that hosts its group.
func (f *Front) toWorker(s *link.SIP) loss {
	c := f.workers.routes.Load().conns[s.To]
	if c == nil {
		return loss{lost: true, cause: NotConnected}
	}
	switch err := c.SendSIP(s); {
	case err == nil:
		return loss{}
	case errors.Is(err, link.ErrClosed):
		return loss{lost: true, cause: NotConnected}
	}
	return loss{lost: true, cause: LinkFull}
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
		if l := f.toWorker(s); l.lost {
			f.count.lose(l)
		} else {
			f.count.relayed.Add(1)
		}
		return
	}
	l := f.from(s)
	if l == nil {
		f.count.drop(NoSocket)
		return
	}
	if l.reachable(s.Flow.Remote) != nil || len(s.Raw) == 0 || len(s.Raw) > l.carries(s.Flow.Transport) {
		f.count.drop(Unsendable)
		return
	}
	if !f.answerable(s) {
		return
	}
	switch s.Flow.Transport {
	case sipmsg.UDP:
		if err := l.toward(s.Flow.Remote).send(s.Raw, s.Flow.Remote); err != nil {
			f.count.drop(SocketFull)
		}
	case sipmsg.TCP:
		f.toStream(l, s)
	default:
		f.count.drop(NoSocket)
	}
}

// from returns the listener whose address a frame for the wire leaves by, nil
// if it is not of this front. A flow without a local address leaves by the
// frame's entry, in the address family of the remote one.
func (f *Front) from(s *link.SIP) *listener {
	if s.Flow.Local.IsValid() {
		return f.local[s.Flow.Local]
	}
	for _, l := range f.entries[s.Entry] {
		if l.addr.Addr().Is4() == s.Flow.Remote.Addr().Is4() {
			return l
		}
	}
	return nil
}

// What one message may have, in bytes: over UDP what the length fields of IPv4
// and of UDP leave, over TCP what a peer sent and what our hops add to it.
const (
	maxPayload  = 65507
	maxPayload6 = 65527
	maxStreamed = 2 * sipmsg.MaxSize
)

// carries returns how large a message over a transport may be.
func (l *listener) carries(t sipmsg.Transport) int {
	switch {
	case t != sipmsg.UDP:
		return maxStreamed
	case l.addr.Addr().Is4():
		return maxPayload
	}
	return maxPayload6
}
