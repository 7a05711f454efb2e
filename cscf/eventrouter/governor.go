package eventrouter

import "time"

// When the number of executors changes.
const (
	growAt     = 40 // percent occupancy
	growEvery  = 100 * time.Millisecond
	shrinkAt   = 10 // percent occupancy
	shrinkWait = 30 * time.Second
)

// govern adjusts the executors every growEvery while there is a reason to.
func (r *Router[E]) govern() {
	tick := time.NewTicker(growEvery)
	tick.Stop()
	for {
		select {
		case <-r.poke:
		case <-r.quit:
			return
		}
		tick.Reset(growEvery)
		for r.adjust() {
			select {
			case <-tick.C:
			case <-r.quit:
				tick.Stop()
				return
			}
		}
		tick.Stop()
	}
}

// adjust takes at most one step and reports whether to look again.
func (r *Router[E]) adjust() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	peak := r.peak
	r.peak = r.runnable
	switch {
	case r.closed:
		return false
	case r.crowded() && r.target < r.cfg.Cap:
		r.resize(min(2*r.target, r.cfg.Cap))
		r.stats.Grown++
		r.lowSince = now
	case !r.low(peak, r.target):
		r.lowSince = now
	case now-r.lowSince >= shrinkWait && r.target > r.cfg.Floor:
		if n := r.smaller(peak); n < r.target {
			r.resize(n)
			r.stats.Shrunk++
		}
		r.lowSince = now
	}
	r.governed = r.target > r.cfg.Floor || r.crowded()
	return r.governed
}

// smaller returns how many executors are enough: half, and half again while
// that too would be low now, but not fewer than are busy.
func (r *Router[E]) smaller(peak int) int {
	n := r.target
	for n > r.cfg.Floor && r.low(peak, n) {
		n /= 2
	}
	return max(n, r.cfg.Floor, min(r.busy, r.target))
}

// low reports whether so many runnable events are little for n executors.
func (r *Router[E]) low(runnable, n int) bool {
	return runnable*100 < shrinkAt*n*r.cfg.Queue
}

// crowded reports whether more executors would help.
func (r *Router[E]) crowded() bool {
	return r.runnable*100 >= growAt*r.target*r.cfg.Queue
}

// resize sets how many executors there should be. Those that are too many end
// when they are next idle.
func (r *Router[E]) resize(n int) {
	r.target = n
	for ; r.executors < n; r.executors++ {
		r.workers.Go(r.execute)
	}
	if r.executors > n {
		r.idle = 0
		r.work.Broadcast()
	}
}
