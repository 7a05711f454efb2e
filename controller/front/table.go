package front

import (
	"sync"
	"time"

	"bellwether/controller/state"
)

// table remembers a group for each key until a time, for at most max keys; the
// least recently used one makes room.
type table[K comparable] struct {
	mu    sync.Mutex
	max   int
	index map[K]int32
	slots []slot[K] // slots[0] is the ring's anchor: next is the newest, prev the oldest
	free  []int32
}

type slot[K comparable] struct {
	key        K
	until      int64 // Unix milliseconds
	group      state.GroupID
	prev, next int32
}

func (t *table[K]) init(max int) {
	t.max = max
	t.index = make(map[K]int32)
	t.slots = make([]slot[K], 1)
}

// get returns the group of a key. If until is later than the entry's time, the
// entry is kept until then.
func (t *table[K]) get(k K, now, until time.Time) (state.GroupID, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.index[k]
	if !ok {
		return 0, false
	}
	s := &t.slots[i]
	if s.until <= now.UnixMilli() {
		t.drop(i)
		return 0, false
	}
	if !until.IsZero() {
		s.until = max(s.until, until.UnixMilli())
	}
	t.unlink(i)
	t.link(i)
	return s.group, true
}

// put remembers a group for a key until a time.
func (t *table[K]) put(k K, group state.GroupID, now, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// What nobody asks for goes to the end, where its time is noticed.
	for range 2 {
		if oldest := t.slots[0].prev; oldest != 0 && t.slots[oldest].until <= now.UnixMilli() {
			t.drop(oldest)
		}
	}
	i, ok := t.index[k]
	if ok {
		t.unlink(i)
	} else {
		if len(t.index) >= t.max {
			t.drop(t.slots[0].prev)
		}
		if n := len(t.free); n > 0 {
			i, t.free = t.free[n-1], t.free[:n-1]
		} else {
			t.slots = append(t.slots, slot[K]{})
			i = int32(len(t.slots) - 1)
		}
		t.index[k] = i
	}
	s := &t.slots[i]
	s.key, s.group, s.until = k, group, until.UnixMilli()
	t.link(i)
}

func (t *table[K]) remove(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.index[k]; ok {
		t.drop(i)
	}
}

func (t *table[K]) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.index)
}

// link makes a slot the newest. The caller holds mu, as for those below.
func (t *table[K]) link(i int32) {
	head := &t.slots[0]
	t.slots[i].prev, t.slots[i].next = 0, head.next
	t.slots[head.next].prev = i
	head.next = i
}

func (t *table[K]) unlink(i int32) {
	s := &t.slots[i]
	t.slots[s.prev].next = s.next
	t.slots[s.next].prev = s.prev
}

func (t *table[K]) drop(i int32) {
	t.unlink(i)
	delete(t.index, t.slots[i].key)
	t.slots[i] = slot[K]{}
	t.free = append(t.free, i)
}
