package front

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"
)

// Stateless answers a source may get: replyBurst at once, then one each
// replyEvery.
const (
	replyBurst = 20
	replyEvery = 100 * time.Millisecond
)

// limiter limits answers by source. Its size is fixed, whatever the number of
// sources: those whose hashes meet share a limit.
type limiter struct {
	seed maphash.Seed
	due  [1 << 13]atomic.Int64 // when the next regular answer is due, Unix nanoseconds
}

func (l *limiter) init() { l.seed = maphash.MakeSeed() }

// unit is what counts as one source: an IPv4 address, an IPv6 /64.
func unit(source netip.Addr) netip.Addr {
	if source.Is6() {
		p, _ := source.WithZone("").Prefix(64)
		return p.Addr()
	}
	return source
}

// allow reports whether a source may be answered now, and counts that.
func (l *limiter) allow(source netip.Addr, now time.Time) bool {
	due := &l.due[maphash.Comparable(l.seed, unit(source))%uint64(len(l.due))]
	for {
		old := due.Load()
		t := max(old, now.UnixNano())
		if t-now.UnixNano() > int64((replyBurst-1)*replyEvery) {
			return false
		}
		if due.CompareAndSwap(old, t+int64(replyEvery)) {
			return true
		}
	}
}
