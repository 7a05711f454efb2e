package front

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// Streams limits TCP. Zero fields mean the defaults.
type Streams struct {
	// Connections is how many there may be; three quarters of the file
	// descriptors that the process may have, at most 65,536.
	Connections int
	// Unbound is how many of them may belong to no registered phone; half of
	// Connections, at most 8,192. Beyond it the oldest one is closed.
	Unbound int
	// PerSource is how many unbound ones an IPv4 address or an IPv6 /64 may
	// have; an eighth of Unbound, at least 16. Beyond it new ones are refused.
	PerSource int
	// First is how long the first message may take; 10 s.
	First time.Duration
	// Message is how long a message may take that has begun; 20 s.
	Message time.Duration
	// Idle is how long an unbound connection lasts without a message; 240 s,
	// more than a call may ring (RFC 3261 §16.6, Timer C).
	Idle time.Duration
	// Stall is how long the peer may take none of what is sent; 10 s.
	Stall time.Duration
	// Dial is how long opening a connection may take; 5 s.
	Dial time.Duration
}

// Limits of TCP that nobody needs to change.
const (
	maxHeld        = 32 << 20  // bytes of incomplete messages, in all
	maxStreamQueue = 256 << 10 // bytes that wait to leave by one connection
	maxQueued      = 64 << 20  // and by all of them
	maxDials       = 64        // connections being opened
	maxDialsTo     = 4         // and of them to one address
)

func (s *Streams) complete() {
	pick := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	pick(&s.First, 10*time.Second)
	pick(&s.Message, 20*time.Second)
	pick(&s.Idle, 240*time.Second)
	pick(&s.Stall, 10*time.Second)
	pick(&s.Dial, 5*time.Second)
	if s.Connections <= 0 {
		s.Connections = 768
		var r syscall.Rlimit
		if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) == nil {
			s.Connections = int(min(r.Cur/4*3, 1<<16))
		}
	}
	if s.Unbound <= 0 {
		s.Unbound = min(s.Connections/2, 8192)
	}
	if s.PerSource <= 0 {
		s.PerSource = max(s.Unbound/8, 16)
	}
}

// Ending says why a connection ended or was not taken.
type Ending uint8

// The endings.
const (
	ByPeer      Ending = iota // the peer closed it, or its host is gone
	ByShutdown                // the front closes
	Mute                      // no first message in time
	SlowMessage               // a message that has begun did not end in time
	IdleUnbound               // belongs to no registered phone and carried nothing for long
	BadFraming                // nobody can tell where the next message begins
	TooLarge                  // a message above 64 kB
	NotReading                // the peer does not take what is sent
	QueueFull                 // more waits to be sent than may
	HeldFull                  // too much memory is held by incomplete messages
	Evicted                   // the oldest one made room for another
	SourceFull                // refused: its source has too many
	TableFull                 // refused: there are too many
	DialFailed                // could not be opened
	Refused                   // by the guard
	endings
)

var endingNames = [endings]string{
	"peer", "shutdown", "no-first-message", "slow-message", "idle", "bad-framing", "too-large", "not-reading",
	"queue-full", "held-full", "evicted", "source-full", "table-full", "dial-failed", "refused",
}

// String is the ending as a metric's label.
func (e Ending) String() string {
	if e < endings {
		return endingNames[e]
	}
	return "unknown"
}

// streams are the TCP connections of a front.
type streams struct {
	Streams
	held     atomic.Int64  // bytes of incomplete messages
	queued   atomic.Int64  // bytes that wait to be sent
	reads    sync.Pool     // of *reading
	patience chan struct{} // capacity: connections whose message may wait for its worker at a time

	accepted, dialled atomic.Uint64
	ended             [endings]atomic.Uint64

	mu      sync.Mutex // guards the rest
	last    uint64
	byID    map[uint64]*stream
	byAddr  map[streamAddr]*stream // the newest one of each
	sources map[netip.Addr]int     // unbound ones
	dials   map[netip.Addr]int
	dialing int
	unbound int
	ring    stream // anchor of the unbound ones: next is the oldest
}

// streamAddr is what a connection is found by that has no number yet.
type streamAddr struct {
	entry  uint16
	remote netip.AddrPort
}

func (t *streams) init(limits Streams) {
	t.Streams = limits
	t.complete()
	t.reads.New = func() any { return new(reading) }
	t.patience = make(chan struct{}, 256)
	// Numbers differ from those of the process before, which workers may
	// still know.
	t.last = uint64(time.Now().UnixNano())
	t.byID, t.byAddr = make(map[uint64]*stream), make(map[streamAddr]*stream)
	t.sources, t.dials = make(map[netip.Addr]int), make(map[netip.Addr]int)
	t.ring.next, t.ring.prev = &t.ring, &t.ring
}

// add takes a connection into the table and gives it its number. The oldest
// unbound one makes room for it, if there must be room and is one.
func (t *streams) add(s *stream) (evicted *stream, why Ending, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	src := unit(s.remote.Addr())
	if !s.dialled && t.sources[src] >= t.PerSource {
		return nil, SourceFull, false
	}
	if t.unbound >= t.Unbound || len(t.byID) >= t.Connections {
		if evicted = t.ring.next; evicted == &t.ring {
			return nil, TableFull, false
		}
		t.drop(evicted)
	}
	t.last++
	s.id = t.last
	t.byID[s.id] = s
	t.byAddr[streamAddr{s.at.id, s.remote}] = s
	t.link(s)
	return evicted, 0, true
}

// link makes s the newest unbound one. mu is held, as for those below.
func (t *streams) link(s *stream) {
	s.prev, s.next = t.ring.prev, &t.ring
	s.prev.next, s.next.prev = s, s
	t.unbound++
	t.sources[unit(s.remote.Addr())]++
}

func (t *streams) unlink(s *stream) {
	if s.next == nil {
		return
	}
	s.prev.next, s.next.prev = s.next, s.prev
	s.prev, s.next = nil, nil
	t.unbound--
	decrease(t.sources, unit(s.remote.Addr()))
}

func (t *streams) drop(s *stream) {
	if t.byID[s.id] != s {
		return
	}
	t.unlink(s)
	delete(t.byID, s.id)
	if a := (streamAddr{s.at.id, s.remote}); t.byAddr[a] == s {
		delete(t.byAddr, a)
	}
}

func decrease(m map[netip.Addr]int, k netip.Addr) {
	if m[k]--; m[k] <= 0 {
		delete(m, k)
	}
}

func (t *streams) remove(s *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(s)
}

// get finds a connection by its number, nil if there is none.
func (t *streams) get(id uint64) *stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// to finds a connection by its addresses.
func (t *streams) to(l *listener, remote netip.AddrPort) *stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byAddr[streamAddr{l.id, remote}]
}

// bind says until when a connection belongs to a registered phone; false if
// there is no such connection.
func (t *streams) bind(id uint64, until time.Time) bool {
	freed, ok := t.rebind(id, until)
	if freed != nil {
		freed.wake()
	}
	return ok
}

// rebind is bind; freed is the connection if it has become unbound.
func (t *streams) rebind(id uint64, until time.Time) (freed *stream, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byID[id]
	if s == nil {
		return nil, false
	}
	now := time.Now()
	switch bound := until.After(now); {
	case bound:
		s.bound.Store(until.UnixMilli())
		t.unlink(s)
	case s.next == nil:
		s.bound.Store(0)
		s.active(now) // it has the time of an unbound one from now on
		t.link(s)
		freed = s
	}
	return freed, true
}

// lapse makes a connection unbound whose time as a bound one is over.
func (t *streams) lapse(s *stream, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[s.id] == s && s.next == nil && s.bound.Load() <= now.UnixMilli() {
		s.bound.Store(0)
		t.link(s)
	}
}

// dialTo reserves one of the dials that there may be at a time.
func (t *streams) dialTo(ip netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dialing >= maxDials || t.dials[ip] >= maxDialsTo {
		return false
	}
	t.dialing++
	t.dials[ip]++
	return true
}

func (t *streams) dialEnded(ip netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dialing--
	decrease(t.dials, ip)
}

func (t *streams) closeAll() {
	t.mu.Lock()
	all := make([]*stream, 0, len(t.byID))
	for _, s := range t.byID {
		all = append(all, s)
	}
	t.mu.Unlock()
	for _, s := range all {
		s.close(ByShutdown)
	}
}

// sizes returns how many connections there are, and how many are unbound.
func (t *streams) sizes() (all, unbound int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID), t.unbound
}

// undelivered tells who sent a request over a connection that it did not leave.
func (f *Front) undelivered(items []queued, flow sipmsg.Flow) {
	told := map[state.GroupID]bool{}
	for _, q := range items {
		if q.from != 0 && !told[q.from] {
			told[q.from] = true
			f.tellGone(q.from, flow)
		}
	}
}
