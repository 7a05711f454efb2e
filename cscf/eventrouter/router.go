// Package eventrouter runs events on executors, those of one key in order
// and one at a time.
package eventrouter

import (
	"hash/maphash"
	"time"
)

var seed = maphash.MakeSeed()

// Key is the key of a Call-ID, AOR or other name. It differs from process to
// process, so nobody outside can aim at one shard.
func Key(s string) uint64 { return maphash.String(seed, s) }

// Router runs events of type E.
type Router[E any] struct{ handle func(shard int, e E) }

// New returns a running router. handle is called for every event.
func New[E any](cfg Config, handle func(shard int, e E)) *Router[E] {
	return &Router[E]{handle: handle}
}

// Shard returns the shard of a key, in [0, Shards).
func (r *Router[E]) Shard(key uint64) int { return int(key % Shards) }

// Offer hands an event in, waiting at most wait for room.
func (r *Router[E]) Offer(key uint64, c Class, e E, wait time.Duration) error {
	return nil
}

// Submit hands an event in; when full the caller runs the shard's head.
func (r *Router[E]) Submit(key uint64, c Class, e E) {}

// Post hands an event to a shard without ever waiting.
func (r *Router[E]) Post(shard int, e E) {}

// Stats returns the figures of now.
func (r *Router[E]) Stats() Stats { return Stats{} }

// Close stops taking events, runs those that wait and returns.
func (r *Router[E]) Close() {}
