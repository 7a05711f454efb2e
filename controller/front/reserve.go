package front

import (
	"bytes"
	"context"
	"strings"
	"sync"

	"bellwether/controller/link"
	"bellwether/controller/state"
)

const (
	maxWaiting      = 8        // datagrams that wait for one reservation
	maxWaitingBytes = 16 << 20 // that wait for all of them
)

// user is who a reservation is for.
type user struct {
	kind state.Kind
	name string
}

// reservations are those under way.
type reservations struct {
	mu      sync.Mutex
	waiting map[user]*reservation
	flows   map[flowKey]*reservation // that decides to which P-CSCF a new flow goes
	bytes   int
}

// reservation is what waits for one.
type reservation struct {
	queue []*link.SIP
	flows []flowKey // its entries in the map of that name
}

func (rs *reservations) init() {
	rs.waiting, rs.flows = make(map[user]*reservation), make(map[flowKey]*reservation)
}

// reserve asks for a group for a user, and delivers s, and what comes for the
// user or registers over the same flow meanwhile, to it in order. s and name
// are copied.
func (f *Front) reserve(kind state.Kind, name string, s link.SIP) loss {
	if kind == state.PCSCF {
		if waits, l := f.follow(s); waits {
			return l
		}
	}
	rs := &f.waiting
	rs.mu.Lock()
	defer rs.mu.Unlock()
	u := user{kind, name}
	r := rs.waiting[u]
	known := r != nil
	if !known {
		if len(rs.waiting) >= maxReserves {
			return loss{lost: true, cause: ReserveFull}
		}
		r = &reservation{}
	}
	if !f.wait(r, s) {
		return loss{lost: true, cause: ReserveFull}
	}
	if k, ok := f.flowKey(s.Flow); ok && kind == state.PCSCF && rs.flows[k] == nil {
		rs.flows[k], r.flows = r, append(r.flows, k)
	}
	if !known {
		u.name = strings.Clone(name) // it may point into the datagram
		rs.waiting[u] = r
		f.wg.Go(func() { f.resolve(u, r) })
	}
	return loss{}
}

// follow lets a REGISTER wait for the reservation that decides where its flow
// goes; false if none is under way. s is copied.
func (f *Front) follow(s link.SIP) (waits bool, l loss) {
	k, ok := f.flowKey(s.Flow)
	if !ok {
		return false, loss{}
	}
	f.waiting.mu.Lock()
	defer f.waiting.mu.Unlock()
	r := f.waiting.flows[k]
	if r != nil && !f.wait(r, s) {
		l = loss{lost: true, cause: ReserveFull}
	}
	return r != nil, l
}

// wait queues a copy of s, with mu held; false if there is no room.
func (f *Front) wait(r *reservation, s link.SIP) bool {
	rs := &f.waiting
	if len(r.queue) >= maxWaiting || rs.bytes+len(s.Raw) > maxWaitingBytes {
		return false
	}
	s.Raw = bytes.Clone(s.Raw)
	rs.bytes += len(s.Raw)
	r.queue = append(r.queue, &s)
	return true
}

// resolve makes one reservation and delivers what waits for it.
func (f *Front) resolve(u user, r *reservation) {
	ctx, cancel := context.WithTimeout(f.ctx, reserveWait)
	group, err := f.cluster.Reserve(ctx, u.kind, u.name)
	cancel()
	rs := &f.waiting
	for {
		rs.mu.Lock()
		if err == nil {
			for _, k := range r.flows {
				f.claim(k, group)
			}
		}
		queue := r.queue
		if len(queue) == 0 {
			delete(rs.waiting, u)
			for _, k := range r.flows {
				delete(rs.flows, k)
			}
			rs.mu.Unlock()
			return
		}
		r.queue = nil
		for _, s := range queue {
			rs.bytes -= len(s.Raw)
		}
		rs.mu.Unlock()
		for _, s := range queue {
			l := loss{lost: true, cause: ReserveFailed}
			if err == nil {
				s.To = group
				l = f.deliver(s)
			}
			f.count.lose(l)
			if l.lost {
				f.unavailable(s)
			}
		}
	}
}
