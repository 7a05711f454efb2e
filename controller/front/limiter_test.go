package front

import (
	"net/netip"
	"testing"
	"time"
)

func TestLimiterAllowsABurstThenARate(t *testing.T) {
	var l limiter
	l.init()
	now := time.Unix(1000, 0)
	count := func(a string, at time.Time) (n int) {
		for l.allow(netip.MustParseAddr(a), at) {
			n++
		}
		return n
	}
	if n := count("192.0.2.1", now); n != replyBurst {
		t.Errorf("burst of %d, want %d", n, replyBurst)
	}
	if n := count("192.0.2.1", now.Add(10*replyEvery)); n != 10 {
		t.Errorf("%d more after ten intervals, want 10", n)
	}
	if n := count("192.0.2.1", now.Add(time.Hour)); n != replyBurst {
		t.Errorf("%d after an hour, want %d", n, replyBurst)
	}
	if n := count("192.0.2.200", now); n != replyBurst {
		t.Errorf("another source got %d, want %d", n, replyBurst)
	}
	count("2001:db8::1", now)
	if n := count("2001:db8::2", now); n != 0 {
		t.Errorf("%d for the neighbour in the same /64, want 0", n)
	}
}
