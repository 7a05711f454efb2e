package eventrouter

import (
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// execute is the life of one executor. It defers nothing: a handler that
// panics is to end the process right here, without the mutex.
func (r *Router[E]) execute() {
	r.mu.Lock()
	for r.await() {
		s := r.pick()
		e := r.begin(s)
		r.busy++
		r.mu.Unlock()
		r.call(s.id, e)
		r.mu.Lock()
		r.busy--
		r.end(s)
	}
	r.executors--
	if r.ready > 0 {
		r.call1() // the call that woke this one up was meant for work
	}
	r.mu.Unlock()
}

// await waits until a shard is ready. It returns false if the executor is one
// too many.
func (r *Router[E]) await() bool {
	for r.executors <= r.target {
		if r.ready > 0 {
			return true
		}
		r.idle++
		r.work.Wait()
	}
	return false
}

// call1 calls one idle executor, if there is one.
func (r *Router[E]) call1() {
	if r.idle > 0 {
		r.idle--
		r.work.Signal()
	}
}

// pick returns the shard that is next: deficit round-robin over the classes,
// first come first served within one. Some shard has to be ready.
func (r *Router[E]) pick() *shard[E] {
	for r.deficit == 0 || r.lists[r.turn].first == nil {
		r.turn = (r.turn + 1) % NumClasses
		r.deficit = quanta[r.turn]
	}
	r.deficit--
	return r.lists[r.turn].first
}

// begin makes the caller the runner of a shard that is ready and returns the
// event to run.
func (r *Router[E]) begin(s *shard[E]) E {
	s.list.remove(s)
	r.ready--
	s.running = true
	r.active++
	r.runnable -= s.box.n
	it := s.box.pop()
	s.classes[it.class]--
	r.queued--
	r.stats.Handled++
	r.delay += (r.now() - time.Duration(it.at) - r.delay) / 16
	s.room.Signal()
	if len(r.offers) > 0 {
		r.serveOffers()
	}
	return it.event
}

// end gives a shard back. The caller sees to it that somebody runs it on.
func (r *Router[E]) end(s *shard[E]) {
	s.running = false
	r.active--
	switch {
	case s.box.n > 0:
		c := s.best()
		r.lists[c].add(s, c)
		r.ready++
		r.runnable += s.box.n
	case len(s.box.ring) > r.cfg.Mailbox:
		s.box = mailbox[E]{} // what a burst made large is not kept
	}
	s.room.Signal()
	if r.draining && r.queued+r.active+r.waiting == 0 {
		r.drained.Broadcast()
	}
}

// runHead runs the head of a shard on the goroutine of a Submit.
func (r *Router[E]) runHead(s *shard[E]) {
	if s.box.n == 0 {
		return // the router was closed meanwhile
	}
	e := r.begin(s)
	r.stats.CallerRuns++
	defer func() { // also if the handler panics and the caller recovers
		r.mu.Lock()
		r.end(s)
		if s.box.n > 0 {
			r.call1()
		}
	}()
	r.mu.Unlock()
	r.call(s.id, e)
}

// call runs one handler. inHandler knows it by name.
//
//go:noinline
func (r *Router[E]) call(shard int, e E) {
	if r.cfg.OnPanic != nil {
		defer r.recovered(shard)
	}
	r.handle(shard, e)
}

func (r *Router[E]) recovered(shard int) {
	if v := recover(); v != nil {
		stack := debug.Stack()
		r.mu.Lock()
		r.stats.Panics++
		r.mu.Unlock()
		r.cfg.OnPanic(shard, v, stack)
	}
}

// inHandler reports whether the goroutine is running a handler of a router.
// It reads the stack, since a goroutine has no other name; that costs some
// microseconds and is asked only by a Submit that would wait.
func inHandler() bool {
	pcs := make([]uintptr, 64)
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		frames := runtime.CallersFrames(pcs[:n])
		for {
			f, more := frames.Next()
			if strings.HasPrefix(f.Function, handlerPrefix) && strings.HasSuffix(f.Function, ".call") {
				return true
			}
			if !more {
				break
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

const handlerPrefix = "bellwether/cscf/eventrouter.(*Router["
