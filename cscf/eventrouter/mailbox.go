package eventrouter

import "sync"

// item is a waiting event.
type item[E any] struct {
	event E
	at    int64 // when it came, ns on the router's clock
	class Class
}

// mailbox is a FIFO in a ring that grows by doubling.
type mailbox[E any] struct {
	ring []item[E] // its length is a power of two
	head int
	n    int
}

func (m *mailbox[E]) push(it item[E]) {
	if m.n == len(m.ring) {
		ring := make([]item[E], max(8, 2*len(m.ring)))
		k := copy(ring, m.ring[m.head:])
		copy(ring[k:], m.ring[:m.head])
		m.ring, m.head = ring, 0
	}
	m.ring[(m.head+m.n)&(len(m.ring)-1)] = it
	m.n++
}

func (m *mailbox[E]) pop() item[E] {
	p := &m.ring[m.head]
	it := *p
	*p = item[E]{} // lets go of what the event points to
	m.head = (m.head + 1) & (len(m.ring) - 1)
	m.n--
	return it
}

// shard is a mailbox with at most one runner.
type shard[E any] struct {
	id      int
	box     mailbox[E]
	classes [NumClasses]int32 // waiting events by class
	running bool
	room    sync.Cond // one signal for each event taken out and each end of a run

	// While not running and not empty it is in the ready list of a class.
	list       *readyList[E]
	class      Class
	next, prev *shard[E]
}

// best returns the most important class that waits in the shard.
func (s *shard[E]) best() Class {
	for c := range s.classes {
		if s.classes[c] > 0 {
			return Class(c)
		}
	}
	return NumClasses - 1
}

// readyList holds the shards of one class that wait for an executor, the
// longest waiting first.
type readyList[E any] struct{ first, last *shard[E] }

func (l *readyList[E]) add(s *shard[E], c Class) {
	s.list, s.class, s.prev, s.next = l, c, l.last, nil
	if l.last == nil {
		l.first = s
	} else {
		l.last.next = s
	}
	l.last = s
}

func (l *readyList[E]) remove(s *shard[E]) {
	if s.prev == nil {
		l.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		l.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.list, s.prev, s.next = nil, nil, nil
}
