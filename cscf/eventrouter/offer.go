package eventrouter

import (
	"slices"
	"time"
)

// offer is an event that waits outside for room.
type offer[E any] struct {
	shard *shard[E]
	class Class
	event E
	done  chan error // capacity 1: how it ended
}

func (o *offer[E]) settle(err error) { o.done <- err }

// Offer hands an event in, for readers of sockets and links: it never runs a
// handler. If the event's class has no room, it waits for some, at most wait,
// and then returns ErrShed. Heartbeat and Dialog never wait; they are refused
// only at the hard limit, with ErrHardLimit. Once Close has begun it returns
// ErrClosed.
func (r *Router[E]) Offer(key uint64, c Class, e E, wait time.Duration) error {
	s, c := &r.shards[r.Shard(key)], c.valid()
	r.mu.Lock()
	if r.draining {
		r.mu.Unlock()
		return ErrClosed
	}
	r.stats.Offered[c]++
	switch {
	case r.admits(s, c):
		if s.box.n >= r.cfg.Mailbox || r.queued >= r.limits[Emergency] {
			r.stats.Overflows++
		}
		r.push(s, c, e)
		r.mu.Unlock()
		return nil
	case c.neverShed():
		r.stats.Shed[c]++
		r.mu.Unlock()
		return ErrHardLimit
	case wait <= 0:
		r.stats.Shed[c]++
		r.mu.Unlock()
		return ErrShed
	}
	o := &offer[E]{shard: s, class: c, event: e, done: make(chan error, 1)}
	r.enqueue(o)
	r.mu.Unlock()

	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-o.done:
		return err
	case <-timer.C:
		return r.withdraw(o)
	}
}

// admits reports whether one more event of a class may wait in a shard.
func (r *Router[E]) admits(s *shard[E], c Class) bool {
	return r.queued < r.limits[c] && (c.neverShed() || s.box.n < r.cfg.Mailbox)
}

// enqueue keeps the offers in the order in which they are to be served.
func (r *Router[E]) enqueue(o *offer[E]) {
	i := len(r.offers)
	for i > 0 && r.offers[i-1].class > o.class {
		i--
	}
	r.offers = slices.Insert(r.offers, i, o)
}

// withdraw ends an offer whose time is over, unless it was just served.
func (r *Router[E]) withdraw(o *offer[E]) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.offers, o)
	if i < 0 {
		return <-o.done
	}
	r.offers = slices.Delete(r.offers, i, i+1)
	r.stats.Shed[o.class]++
	return ErrShed
}

// serveOffers gives room that has come free to those who wait for it.
func (r *Router[E]) serveOffers() {
	for i := 0; i < len(r.offers); {
		o := r.offers[i]
		if !r.admits(o.shard, o.class) {
			i++
			continue
		}
		r.offers = slices.Delete(r.offers, i, i+1)
		r.push(o.shard, o.class, o.event)
		o.settle(nil)
	}
}
