package rtp

import (
	"math/bits"
	"time"

	"bellwether/media/g711"
)

const (
	// maxDropout is the jump of sequence numbers beyond which a packet is
	// taken for another stream's, unless the next one confirms it (RFC 3550 §A.1).
	maxDropout = 3000
	// history is how many packets late one may come and still be told from a
	// duplicate. Later ones count as lost.
	history = 64
)

// counter keeps the reception statistics of one source (RFC 3550 §A.1, §A.3, §A.8).
type counter struct {
	started   bool
	base, max uint64 // lowest and highest extended sequence number
	seen      uint64 // bit i: max-i was received
	restart   uint32 // sequence number that would confirm a jump; above 65535: none

	expected uint64 // of streams before a confirmed jump
	received uint64
	repeated uint64

	transit, jitter float64 // in samples
	timed           bool
}

const noRestart = 1 << 16

// add counts a packet and reports whether it is new: neither a duplicate, nor
// later than the history, nor an unconfirmed jump.
func (c *counter) add(seq uint16) bool {
	if !c.started {
		c.start(seq)
		return true
	}
	diff := int64(int16(seq - uint16(c.max)))
	switch {
	case diff > maxDropout || diff < -maxDropout:
		if c.restart != uint32(seq) {
			c.restart = uint32(seq + 1)
			return false
		}
		c.expected += c.max - c.base + 1
		c.start(seq)
		return true
	case diff > 0:
		c.max += uint64(diff)
		c.seen = c.seen<<uint(diff) | 1 // a shift by 64 or more leaves 0
	case -diff >= history:
		return false
	case c.seen&(1<<uint(-diff)) != 0:
		c.repeated++
		return false
	default:
		c.seen |= 1 << uint(-diff)
		c.base = min(c.base, c.max-uint64(-diff))
	}
	c.restart = noRestart
	c.received++
	return true
}

// start begins a stream one cycle up, so that a packet that overtook the first
// one still has a number above zero.
func (c *counter) start(seq uint16) {
	c.started = true
	c.base = 1<<16 | uint64(seq)
	c.max, c.seen, c.restart = c.base, 1, noRestart
	c.timed = false
	c.received++
}

// arrive updates the jitter with a packet of RTP timestamp ts that came at at.
func (c *counter) arrive(ts uint32, at time.Duration) {
	transit := at.Seconds()*g711.Rate - float64(ts)
	if c.timed {
		d := transit - c.transit
		// The timestamp wraps around at 2^32.
		const wrap = 1 << 32
		if d > wrap/2 {
			d -= wrap
		} else if d < -wrap/2 {
			d += wrap
		}
		if d < 0 {
			d = -d
		}
		c.jitter += (d - c.jitter) / 16
	}
	c.transit, c.timed = transit, true
}

func (c *counter) stats() Stats {
	s := Stats{
		Expected:   c.expected,
		Received:   c.received,
		Duplicates: c.repeated,
		Jitter:     time.Duration(c.jitter / g711.Rate * float64(time.Second)),
	}
	if c.started {
		s.Expected += c.max - c.base + 1
	}
	return s
}

// window is the last stretch of received audio, placed by RTP timestamps.
// What did not come is silent, and so is what came before the first packet.
type window struct {
	ring    []int16 // the length is a power of two
	end     int64   // samples since the first packet's first
	ts      uint32  // the timestamp that belongs to end
	started bool
}

func newWindow(samples int) window {
	return window{ring: make([]int16, 1<<bits.Len(uint(samples-1)))}
}

// put stores the samples of a packet with timestamp ts.
func (w *window) put(ts uint32, pcm []int16) {
	if !w.started {
		w.started, w.ts = true, ts
	}
	size := int64(len(w.ring))
	at := w.end + int64(int32(ts-w.ts))
	if last := at + int64(len(pcm)); last > w.end {
		for p := max(w.end, last-size); p < last; p++ {
			w.ring[p&(size-1)] = 0
		}
		w.ts += uint32(last - w.end)
		w.end = last
	}
	oldest := max(0, w.end-size)
	for i, s := range pcm {
		if p := at + int64(i); p >= oldest {
			w.ring[p&(size-1)] = s
		}
	}
}

// pcm returns a copy of the window, oldest sample first.
func (w *window) pcm() []int16 {
	size := int64(len(w.ring))
	oldest := max(0, w.end-size)
	out := make([]int16, 0, w.end-oldest)
	for p := oldest; p < w.end; p++ {
		out = append(out, w.ring[p&(size-1)])
	}
	return out
}
