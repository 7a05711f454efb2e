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

// reservations are those under way, each with the datagrams that wait for it.
type reservations struct {
	mu      sync.Mutex
	waiting map[user][]*link.SIP
	bytes   int
}

func (rs *reservations) init() { rs.waiting = make(map[user][]*link.SIP) }

// reserve asks for a group for a user, and delivers s, and what comes for the
// user meanwhile, to it in order. s and name are copied.
func (f *Front) reserve(kind state.Kind, name string, s *link.SIP) {
	rs := &f.waiting
	rs.mu.Lock()
	defer rs.mu.Unlock()
	u := user{kind, strings.Clone(name)} // name may point into the datagram
	queue, known := rs.waiting[u]
	if !known && len(rs.waiting) >= maxReserves || len(queue) >= maxWaiting || rs.bytes+len(s.Raw) > maxWaitingBytes {
		f.count.drop(ReserveFull)
		return
	}
	s.Raw = bytes.Clone(s.Raw)
	rs.bytes += len(s.Raw)
	if !known {
		f.wg.Go(func() { f.resolve(u) })
	}
	rs.waiting[u] = append(queue, s)
}

// resolve makes one reservation and delivers what waits for it.
func (f *Front) resolve(u user) {
	ctx, cancel := context.WithTimeout(f.ctx, reserveWait)
	group, err := f.cluster.Reserve(ctx, u.kind, u.name)
	cancel()
	rs := &f.waiting
	for {
		rs.mu.Lock()
		queue := rs.waiting[u]
		if len(queue) == 0 {
			delete(rs.waiting, u)
			rs.mu.Unlock()
			return
		}
		rs.waiting[u] = nil
		for _, s := range queue {
			rs.bytes -= len(s.Raw)
		}
		rs.mu.Unlock()
		for _, s := range queue {
			if err != nil {
				f.count.drop(ReserveFailed)
				continue
			}
			s.To = group
			f.deliver(s)
		}
	}
}
