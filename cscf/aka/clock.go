package aka

import (
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"
)

// ErrExhausted means that a user's sequence numbers have come to their end, or
// the offset leads before their beginning: the SIM needs a new key.
var ErrExhausted = errors.New("make a sequence number: 48 bits are used up")

// Unit is the time in which SEQ grows by one. 43 bits of it last from 1970
// until the year 2248.
const Unit = time.Millisecond

const (
	clockSlots = 4096
	// maxLead is how far, in units, the numbers of a slot may run ahead of the
	// time: so many challenges at once keep their order.
	maxLead = 30_000
)

// Clock generates sequence numbers from the time (TS 33.102 §C.1.1.3, §C.3.3):
// SEQ is the number of milliseconds since 1970 plus the user's offset. No
// number is kept per user, and none is stored: after a restart time has passed.
//
// Its memory is fixed. Users share 4096 slots, in each of which numbers grow
// strictly. Under more than 1000 challenges a second in one slot, for half a
// minute, numbers repeat; a SIM that answers such a challenge asks for
// resynchronisation.
type Clock struct {
	seed maphash.Seed

	mu    sync.Mutex
	last  time.Time
	at    time.Duration // since 1970, never less than before
	slots [clockSlots]uint64
}

// NewClock returns a Clock.
func NewClock() *Clock { return &Clock{seed: maphash.MakeSeed()} }

// now is the time in units; it goes on by the monotonic clock where the wall
// clock steps back. mu is held.
func (c *Clock) now(t time.Time) uint64 {
	if !c.last.IsZero() {
		c.at += max(0, t.Sub(c.last))
	}
	c.last = t
	c.at = max(c.at, time.Duration(t.UnixNano()))
	return uint64(c.at / Unit)
}

// Next gives the SEQ of a new vector for a user. The error is ErrExhausted.
func (c *Clock) Next(user string, offset int64, t time.Time) (uint64, error) {
	slot := maphash.String(c.seed, user) % clockSlots
	c.mu.Lock()
	now := c.now(t)
	n := max(c.slots[slot]+1, now)
	if n > now+maxLead {
		n--
	}
	c.slots[slot] = n
	c.mu.Unlock()
	seq := int64(n) + offset
	if seq <= 0 || seq > MaxSEQ {
		return 0, fmt.Errorf("user %s: %w", user, ErrExhausted)
	}
	return uint64(seq), nil
}

// Age is how long ago a SEQ was generated with that offset, here or by another
// clock of the cluster; negative if the other clock is ahead. The error of the
// clocks is part of it.
func (c *Clock) Age(seq uint64, offset int64, t time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(int64(c.now(t))-(int64(seq)-offset)) * Unit
}

// Resync gives the offset with which numbers go on just above what a SIM has
// accepted (DIF of TS 33.102 §C.1.1.3). margin is how far clocks of the
// cluster may differ.
func (c *Clock) Resync(sqnMS SQN, margin time.Duration, t time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(sqnMS.SEQ()) + int64(margin/Unit) + 1 - int64(c.now(t))
}
