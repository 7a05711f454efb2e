package supervisor

import "time"

const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
	healthy    = 30 * time.Second
)

// backoff says how long to wait before a child is started again.
type backoff struct{ next time.Duration }

// pause returns the wait after a child that ran for the given time.
func (b *backoff) pause(ran time.Duration) time.Duration {
	if b.next == 0 || ran >= healthy {
		b.next = firstPause
	}
	p := b.next
	b.next = min(2*b.next, lastPause)
	return p
}
