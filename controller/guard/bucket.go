package guard

import (
	"sync/atomic"
	"time"
)

// bucket is a token bucket. What it remembers of one who draws on it is a
// single time: when it will be full again for him. All times are nanoseconds.
type bucket struct {
	every  int64 // a token comes
	window int64 // to fill it from empty; 0: it limits nothing
}

func newBucket(r Rate) bucket {
	if r.PerSecond <= 0 {
		return bucket{}
	}
	every := int64(time.Second) / int64(r.PerSecond)
	return bucket{every: every, window: every * int64(max(r.Burst, 1))}
}

// take takes a token, if there is one.
func (b bucket) take(full *int64, at int64) bool {
	if !b.has(*full, at) {
		return false
	}
	*full = max(*full, at) + b.every
	return true
}

// has reports whether there is a token.
func (b bucket) has(full, at int64) bool {
	return b.window == 0 || max(full, at)+b.every-at <= b.window
}

// takeShared is take for many at once.
func (b bucket) takeShared(full *atomic.Int64, at int64) bool {
	for {
		old := full.Load()
		next := old
		if !b.take(&next, at) {
			return false
		}
		if full.CompareAndSwap(old, next) {
			return true
		}
	}
}

// owed is the part of the bucket that is taken, 0 to 1.
func (b bucket) owed(full, at int64) float64 {
	if b.window == 0 || full <= at {
		return 0
	}
	return float64(full-at) / float64(b.window)
}
