package joining

import (
	"net/netip"
	"time"
)

const (
	maxFailures = 10 // of a source in failureTime
	failureTime = time.Minute
	maxSources  = 1024
)

// failures counts the wrong tokens of each source. A source is an IPv4 address
// or the /64 of an IPv6 address. Its memory is fixed: when there are more
// sources than it can hold, all begin anew, which a secret of 128 bits bears.
type failures struct {
	by map[netip.Addr]failure
}

type failure struct {
	count int
	since time.Time
}

func sourceOf(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// allowed reports whether a source may try.
func (f *failures) allowed(source netip.Addr, now time.Time) bool {
	x, ok := f.by[sourceOf(source)]
	return !ok || now.Sub(x.since) > failureTime || x.count < maxFailures
}

func (f *failures) add(source netip.Addr, now time.Time) {
	source = sourceOf(source)
	x, ok := f.by[source]
	if !ok || now.Sub(x.since) > failureTime {
		x = failure{since: now}
	}
	x.count++
	if f.by == nil || !ok && len(f.by) >= maxSources {
		f.by = make(map[netip.Addr]failure)
	}
	f.by[source] = x
}
