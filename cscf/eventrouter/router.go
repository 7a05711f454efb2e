package eventrouter

import (
	"hash/maphash"
	"sync"
	"time"
)

var seed = maphash.MakeSeed()

// Key is the key of a Call-ID, AOR or other name. It differs from process to
// process, so that nobody outside can aim many names at one shard.
func Key(s string) uint64 { return maphash.String(seed, s) }

// Router runs events of type E. It is safe for concurrent use.
type Router[E any] struct {
	cfg    Config
	limits [NumClasses]int
	handle func(shard int, e E)
	start  time.Time
	shards [Shards]shard[E]

	poke    chan struct{} // capacity 1: the governor has something to do
	quit    chan struct{}
	workers sync.WaitGroup
	closing sync.Once

	mu       sync.Mutex
	lists    [NumClasses]readyList[E]
	ready    int   // shards in the lists
	turn     Class // class whose turn it is
	deficit  int   // events it may still run in this turn
	work     sync.Cond
	drained  sync.Cond
	draining bool // Close was called
	closed   bool // and everything has run

	offers  []*offer[E] // waiting for room, the most important first
	waiting int         // callers of Submit that wait

	queued    int // events in mailboxes
	runnable  int // of them, in shards that are not running
	active    int // running shards
	executors int
	target    int // executors there should be
	idle      int // executors that wait and are not yet called
	busy      int // executors inside a handler

	governed bool          // the governor is at work
	peak     int           // most runnable events since its last look
	lowSince time.Duration // since when occupancy is low
	delay    time.Duration // smoothed queue delay
	stats    Stats         // its counters
}

// New returns a running router that calls handle for every event. handle may
// use the router, but neither call Close nor hold a lock over Submit, which
// may run other handlers, nor end its goroutine.
func New[E any](cfg Config, handle func(shard int, e E)) *Router[E] {
	r := &Router[E]{
		cfg:    cfg.withDefaults(),
		handle: handle,
		start:  time.Now(),
		poke:   make(chan struct{}, 1),
		quit:   make(chan struct{}),
	}
	r.limits = r.cfg.limits()
	r.work.L, r.drained.L = &r.mu, &r.mu
	for i := range r.shards {
		r.shards[i].id = i
		r.shards[i].room.L = &r.mu
	}
	r.mu.Lock()
	r.resize(r.cfg.Floor)
	r.mu.Unlock()
	r.workers.Go(r.govern)
	return r
}

// Shard returns the shard of a key, at least 0 and below Shards.
func (r *Router[E]) Shard(key uint64) int { return int(key % Shards) }

// Submit hands an event in and never refuses it. If its shard or the router
// is full, the caller pays first by running the shard's head, and waits while
// another goroutine runs it. Inside a handler, of this router or any other,
// it does not wait but takes the event beyond the limit: two handlers that
// wait for each other's shard would wait for ever.
func (r *Router[E]) Submit(key uint64, c Class, e E) {
	s, c := &r.shards[r.Shard(key)], c.valid()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Offered[c]++
	for r.full(s) {
		if !s.running {
			if s.box.n == 0 {
				r.push(s, c, e)
				r.runHead(s)
				return
			}
			r.runHead(s)
			break // one taken out for one put in
		}
		if inHandler() {
			r.stats.Overflows++
			break
		}
		r.waiting++
		s.room.Wait()
		r.waiting--
	}
	r.push(s, c, e)
}

// full reports whether Submit has to pay.
func (r *Router[E]) full(s *shard[E]) bool {
	return s.box.n >= r.cfg.Mailbox || r.queued >= r.executors*r.cfg.Queue
}

// Post hands an event to a shard, for handlers, timers and callbacks on any
// goroutine. It never waits and never refuses.
func (r *Router[E]) Post(shard int, e E) {
	s := &r.shards[shard]
	r.mu.Lock()
	r.stats.Offered[Dialog]++
	if s.box.n >= r.cfg.Mailbox || r.queued >= r.limits[Dialog] {
		r.stats.Overflows++
	}
	r.push(s, Dialog, e)
	r.mu.Unlock()
}

// push puts an event into a mailbox.
func (r *Router[E]) push(s *shard[E], c Class, e E) {
	if r.closed {
		r.stats.Dropped++
		return
	}
	s.box.push(item[E]{event: e, at: int64(r.now()), class: c})
	s.classes[c]++
	r.queued++
	if s.running {
		return
	}
	r.runnable++
	switch {
	case s.list == nil:
		r.lists[c].add(s, c)
		r.ready++
		r.call1()
	case c < s.class:
		s.list.remove(s)
		r.lists[c].add(s, c)
	}
	r.peak = max(r.peak, r.runnable)
	if !r.governed && r.crowded() && r.target < r.cfg.Cap {
		r.governed = true
		r.poke <- struct{}{}
	}
}

// now is the router's clock: since New.
func (r *Router[E]) now() time.Duration { return time.Since(r.start) }

// Stats returns the figures of now.
func (r *Router[E]) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.stats
	st.Executors, st.Busy, st.Floor, st.Cap = r.executors, r.busy, r.cfg.Floor, r.cfg.Cap
	st.Queued = r.queued
	st.Occupancy = float64(r.runnable) / float64(max(1, r.target*r.cfg.Queue))
	if r.queued > 0 {
		st.QueueDelay = r.delay
	}
	for i := range r.lists {
		if s := r.lists[i].first; s != nil {
			oldest := time.Duration(s.box.ring[s.box.head].at)
			st.QueueDelay = max(st.QueueDelay, r.now()-oldest)
		}
	}
	return st
}

// Close refuses new offers, runs everything that waits, including what its
// handlers still submit and post, and ends the executors. Later events are
// counted as dropped.
func (r *Router[E]) Close() {
	r.closing.Do(func() {
		r.mu.Lock()
		r.draining = true
		for _, o := range r.offers {
			o.settle(ErrClosed)
		}
		r.offers = nil
		for r.queued+r.active+r.waiting > 0 {
			r.drained.Wait()
		}
		r.closed = true
		r.resize(0)
		r.mu.Unlock()
		close(r.quit)
		r.workers.Wait()
	})
}
