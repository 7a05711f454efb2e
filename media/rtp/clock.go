package rtp

import (
	"slices"
	"sync"
	"time"
)

// catchUp is how many frames a session sends at once after the process was
// held up. What was missed beyond that is skipped: the timestamp jumps, as it
// does after silence (RFC 3550 §5.1).
const catchUp = 5

// Clock paces sessions: every 20 ms each of them sends a frame, all from one
// goroutine, which runs only while there are sessions. The zero value is ready.
// A Clock may be used by several goroutines.
type Clock struct {
	mu       sync.Mutex // held during a tick; taken before any session's
	sessions []*Session
	stop     chan struct{} // closed to end the goroutine; nil when none runs
	done     chan struct{} // closed when it has ended

	buf frameBuffer
}

func (c *Clock) add(s *Session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions = append(c.sessions, s)
	if c.stop == nil {
		c.stop, c.done = make(chan struct{}), make(chan struct{})
		go c.run(c.stop, c.done)
	}
}

// remove returns when s will send no more and, if it was the last session, when
// the goroutine has ended.
func (c *Clock) remove(s *Session) {
	c.mu.Lock()
	if i := slices.Index(c.sessions, s); i >= 0 {
		last := len(c.sessions) - 1
		c.sessions[i], c.sessions[last] = c.sessions[last], nil
		c.sessions = c.sessions[:last]
	}
	var done chan struct{}
	if len(c.sessions) == 0 && c.stop != nil {
		close(c.stop)
		done, c.stop, c.done = c.done, nil, nil
	}
	c.mu.Unlock()
	if done != nil {
		<-done
	}
}

func (c *Clock) run(stop, done chan struct{}) {
	defer close(done)
	start := time.Now()
	ticker := time.NewTicker(FrameTime)
	defer ticker.Stop()
	var ticks int
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		due := int(time.Since(start)/FrameTime) - ticks
		ticks += due
		c.tick(stop, due)
	}
}

// tick sends the frames that are due. A goroutine that was told to stop must
// not send for the sessions of its successor.
func (c *Clock) tick(stop chan struct{}, due int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != stop {
		return
	}
	for _, s := range c.sessions {
		if due > catchUp {
			s.skip(due - catchUp)
		}
		for range min(due, catchUp) {
			s.send(&c.buf)
		}
	}
}
