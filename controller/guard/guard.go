// Package guard limits what outsiders may cost a front: by source address, by
// flow of a registered phone, and for all strangers together. It applies the
// operator's bans and allowances, and bans by itself, for a short time, who
// goes on after being limited.
//
// It reads no packets and holds no sockets or goroutines; the front asks it
// about each message before anything is parsed, and tells it afterwards what
// was wrong with one. It knows no SIP.
//
// What always holds: memory is fixed, whatever the number of sources. A source
// is an IPv4 address or an IPv6 /64. What comes over the flow of a registered
// phone is measured by that flow alone: neither a neighbour behind the same
// address, nor somebody who sends in its name from another port, nor an
// automatic ban of its address keeps it out; only an operator's ban does. What
// an operator allows is never limited or banned, also where a ban overlaps.
// The cluster's own addresses are never banned by itself.
//
// Failure modes: more sources that misbehave at once than the table has places
// for make it forget the mildest; the limit for all strangers holds then. UDP
// sources can be forged, so an automatic ban can hit an innocent address: it
// costs that address new registrations until it ends, not those it has.
package guard

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Sizes of the tables.
const (
	sets     = 1 << 13 // of ways sources each
	ways     = 4
	flows    = 1 << 16 // limits of flows; those whose hashes meet share one
	maxBans  = 4096    // automatic
	banAfter = 500     // how many more messages are refused than let in when their source is banned
)

// Rate is how much is let through: PerSecond on average, Burst at once.
type Rate struct{ PerSecond, Burst int }

// Config says what is let through. A Rate of 0 per second limits nothing.
type Config struct {
	Messages    Rate          // of one source, outside the flows of registered phones
	Failures    Rate          // of one source: messages that were refused, see Offence
	Connections Rate          // of one source: attempts
	Flow        Rate          // of the flow of one registered phone
	Strangers   Rate          // of all sources: requests outside known flows that cost a worker something
	Ban         time.Duration // how long the first automatic ban lasts; each further one is twice as long; 0: none
}

// maxBanFactor bounds the growth of bans.
const maxBanFactor = 16

// Verdict says whether something is let in, and if not, why.
type Verdict uint8

// The verdicts.
const (
	Pass            Verdict = iota
	Allowed                 // passes, and its source is on the allow list: no limit applies
	Banned                  // by an operator
	AutoBanned              // by the guard itself
	SourceLimited           // more messages than a source may send
	FailureLimited          // more refused messages than a source may send
	ConnLimited             // more connections than a source may try
	FlowLimited             // more messages than a registered phone may send
	StrangerLimited         // more requests of strangers than the node takes
	verdicts
)

var verdictNames = [verdicts]string{
	"pass", "allowed", "banned", "auto-banned", "source-limited", "failure-limited", "connection-limited",
	"flow-limited", "stranger-limited",
}

// String is the verdict as a metric's label.
func (v Verdict) String() string {
	if v < verdicts {
		return verdictNames[v]
	}
	return "unknown"
}

// Passes reports whether the message or connection is let in.
func (v Verdict) Passes() bool { return v <= Allowed }

// Offence is what a source did that costs it more than a message.
type Offence uint8

// The offences.
const (
	Malformed Offence = iota // not SIP, or wrong
	Stray                    // a response nobody waits for, or a token that is not genuine
	Refused                  // a registration that was answered with 403, or any request with 404
	offences
)

var offenceNames = [offences]string{"malformed messages", "stray or forged messages", "refused requests"}

// String names the offence for an operator.
func (o Offence) String() string {
	if o < offences {
		return offenceNames[o]
	}
	return "offences"
}

// Source is who sends: its address and, where it is the flow of a registered
// phone, a number of that flow other than 0.
type Source struct {
	Addr netip.Addr
	Flow uint64
}

// Guard decides who is let in. It is safe for concurrent use.
type Guard struct {
	start  time.Time
	seed   maphash.Seed
	limits atomic.Pointer[limits]
	rules  atomic.Pointer[rules]

	sets      [sets]set
	flows     [flows]atomic.Int64
	strangers atomic.Int64

	banned atomic.Int64 // entries of bans, for a look without lock
	mu     sync.Mutex   // guards bans
	bans   map[key]*ban

	refused [verdicts]atomic.Uint64
	charged [offences]atomic.Uint64
}

// limits is Config in the form that is needed.
type limits struct {
	messages, failures, connections, flow, strangers bucket
	ban                                              time.Duration
}

// key is a source: an address as 16 bytes, those of an IPv6 host cleared.
type key [16]byte

func keyOf(a netip.Addr) key {
	k := key(a.As16())
	if a.Is6() && !a.Is4In6() {
		clear(k[8:])
	}
	return k
}

// prefix is the source as a prefix.
func (k key) prefix() netip.Prefix {
	a := netip.AddrFrom16(k)
	if a.Is4In6() {
		return netip.PrefixFrom(a.Unmap(), 32)
	}
	return netip.PrefixFrom(a, 64)
}

// set holds the sources that fall into one place of the table.
type set struct {
	mu      sync.Mutex
	sources [ways]source
}

// source is what one source owes. Once it owes nothing, nothing need be known
// of it.
type source struct {
	key                             key
	messages, failures, connections int64 // when each bucket is full again, nanoseconds since start
	over                            int32 // messages beyond a limit, less those within
}

func (s *source) owes() int64 { return max(s.messages, s.failures, s.connections) }

// ban is an automatic one. It is kept for a while after its end, so that the
// next one lasts longer.
type ban struct {
	since, until time.Time
	lasts        time.Duration
	hits         uint64
	why          string
}

// New returns a guard.
func New(cfg Config) *Guard {
	g := &Guard{start: time.Now(), seed: maphash.MakeSeed(), bans: make(map[key]*ban)}
	g.SetLimits(cfg)
	g.SetRules(nil, nil)
	return g
}

// SetLimits changes the limits.
func (g *Guard) SetLimits(cfg Config) {
	g.limits.Store(&limits{
		messages: newBucket(cfg.Messages), failures: newBucket(cfg.Failures), connections: newBucket(cfg.Connections),
		flow: newBucket(cfg.Flow), strangers: newBucket(cfg.Strangers), ban: cfg.Ban,
	})
}

// Default is the configuration for a node of two cores. One address may hold
// thousands of phones, or a load generator: a limit of a source is what no
// honest one needs, not what one phone needs. A registration with its challenge
// costs two messages and 2 ms of processor time, and each of them some kilobytes
// for 32 s, so strangers are held to half of what such a machine can serve.
func Default() Config {
	return Config{
		Messages: Rate{2000, 4000}, Failures: Rate{20, 200}, Connections: Rate{100, 1000},
		Flow: Rate{2000, 4000}, Strangers: Rate{1000, 4000}, Ban: time.Minute,
	}
}

// Admit says whether a message is let in, and counts it. It is cheap for what
// is not.
func (g *Guard) Admit(s Source, now time.Time) Verdict {
	if v := g.ruled(s.Addr, now); v != Pass {
		return v
	}
	l, at := g.limits.Load(), g.since(now)
	if s.Flow != 0 {
		if !l.flow.takeShared(&g.flows[s.Flow%flows], at) {
			return g.refuse(FlowLimited)
		}
		return Pass
	}
	k := keyOf(s.Addr)
	if g.isBanned(k, now) {
		return g.refuse(AutoBanned)
	}
	return g.spend(k, now, func(e *source) Verdict {
		switch {
		case !l.failures.has(e.failures, at):
			return FailureLimited
		case !l.messages.take(&e.messages, at):
			return SourceLimited
		}
		// Who sends a little too much is limited, not banned: what passes
		// makes good for what did not.
		e.over = max(0, e.over-1)
		return Pass
	})
}

// Connect says whether a connection is accepted, and counts it.
func (g *Guard) Connect(a netip.Addr, now time.Time) Verdict {
	if v := g.ruled(a, now); v != Pass {
		return v
	}
	k := keyOf(a)
	if g.isBanned(k, now) {
		return g.refuse(AutoBanned)
	}
	l, at := g.limits.Load(), g.since(now)
	return g.spend(k, now, func(e *source) Verdict {
		if !l.connections.take(&e.connections, at) {
			return ConnLimited
		}
		return Pass
	})
}

// Stranger says whether a request from outside the known flows may go on to a
// worker. The less is left for all strangers together, the less a source may
// have sent lately to get its share of it, so that a few that send much leave
// room for many that send little.
func (g *Guard) Stranger(s Source, now time.Time) Verdict {
	if s.Flow != 0 || g.rules.Load().allows(s.Addr, now) {
		return Pass
	}
	l, at := g.limits.Load(), g.since(now)
	left := 1 - l.strangers.owed(g.strangers.Load(), at)
	if l.messages.owed(g.look(keyOf(s.Addr))-l.messages.every, at) > left || !l.strangers.takeShared(&g.strangers, at) {
		return g.refuse(StrangerLimited)
	}
	return Pass
}

// Charge tells that a source outside the known flows did something wrong.
// False means that it did so too often and is not to be answered.
func (g *Guard) Charge(s Source, o Offence, now time.Time) bool {
	g.charged[o%offences].Add(1)
	if s.Flow != 0 || g.rules.Load().allows(s.Addr, now) {
		return true
	}
	l, at := g.limits.Load(), g.since(now)
	v := g.spend(keyOf(s.Addr), now, func(e *source) Verdict {
		if !l.failures.take(&e.failures, at) {
			return FailureLimited
		}
		return Pass
	})
	return v == Pass
}

// spend lets f take from the buckets of a source. One that goes on and on
// beyond a limit is banned.
func (g *Guard) spend(k key, now time.Time, f func(*source) Verdict) Verdict {
	s, at := g.set(k), g.since(now)
	s.mu.Lock()
	e := s.find(k, at)
	v := f(e)
	ban := false
	if v != Pass {
		if e.over++; e.over >= banAfter {
			e.over, ban = 0, true
		}
	}
	s.mu.Unlock()
	if v == Pass {
		return v
	}
	if ban {
		g.ban(k, v, now)
	}
	return g.refuse(v)
}

func (g *Guard) set(k key) *set { return &g.sets[maphash.Comparable(g.seed, k)%sets] }

// find returns the place of a source, with mu held. The one that owes least
// makes room for a new one.
func (s *set) find(k key, at int64) *source {
	least := &s.sources[0]
	for i := range s.sources {
		e := &s.sources[i]
		if e.key == k {
			if e.owes() <= at {
				e.over = 0
			}
			return e
		}
		if e.owes() < least.owes() {
			least = e
		}
	}
	*least = source{key: k}
	return least
}

// look returns what a source owes in messages.
func (g *Guard) look(k key) int64 {
	s := g.set(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.sources {
		if s.sources[i].key == k {
			return s.sources[i].messages
		}
	}
	return 0
}

// since is a time as nanoseconds since the start: by the monotonic clock, so
// that nobody is limited because somebody set the clock back.
func (g *Guard) since(now time.Time) int64 { return int64(now.Sub(g.start)) }

func (g *Guard) refuse(v Verdict) Verdict {
	g.refused[v].Add(1)
	return v
}

// ruled applies the operator's rules.
func (g *Guard) ruled(a netip.Addr, now time.Time) Verdict {
	r := g.rules.Load()
	if r.allows(a, now) {
		return Allowed
	}
	if e := r.ban.find(a, now); e != nil {
		e.hits.Add(1)
		return g.refuse(Banned)
	}
	return Pass
}

// ban bans a source for twice as long as the last time.
func (g *Guard) ban(k key, why Verdict, now time.Time) {
	lasts := g.limits.Load().ban
	if lasts <= 0 || g.rules.Load().exempt(k.prefix()) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.bans[k]; old != nil {
		lasts = min(2*old.lasts, maxBanFactor*lasts)
	} else if len(g.bans) >= maxBans {
		g.makeRoom(now)
	}
	g.bans[k] = &ban{since: now, until: now.Add(lasts), lasts: lasts, why: why.String()}
	g.banned.Store(int64(len(g.bans)))
}

// makeRoom forgets bans that are forgotten anyway, else the one that ends
// first. The caller holds mu.
func (g *Guard) makeRoom(now time.Time) {
	var first key
	var ends time.Time
	for k, b := range g.bans {
		if b.forgotten(now) {
			delete(g.bans, k)
		} else if ends.IsZero() || b.until.Before(ends) {
			first, ends = k, b.until
		}
	}
	if len(g.bans) >= maxBans {
		delete(g.bans, first)
	}
}

// forgotten reports whether a ban is so long over that the next one is a first.
func (b *ban) forgotten(now time.Time) bool { return now.After(b.until.Add(2 * b.lasts)) }

func (g *Guard) isBanned(k key, now time.Time) bool {
	if g.banned.Load() == 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.bans[k]
	switch {
	case b == nil:
		return false
	case now.Before(b.until):
		b.hits++
		return true
	case b.forgotten(now):
		delete(g.bans, k)
		g.banned.Store(int64(len(g.bans)))
	}
	return false
}

// Ban is an automatic ban.
type Ban struct {
	Source       netip.Prefix
	Since, Until time.Time
	Hits         uint64 // messages and connections that it refused
	Reason       string // the limit that was exceeded
}

// Bans lists the automatic bans that there are now, by source.
func (g *Guard) Bans(now time.Time) []Ban {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []Ban
	for k, b := range g.bans {
		if now.Before(b.until) {
			out = append(out, Ban{Source: k.prefix(), Since: b.since, Until: b.until, Hits: b.hits, Reason: b.why})
		}
	}
	slices.SortFunc(out, func(a, b Ban) int { return a.Source.Addr().Compare(b.Source.Addr()) })
	return out
}

// Lift ends the automatic bans of sources within a prefix, or around it, and
// returns how many there were.
func (g *Guard) Lift(p netip.Prefix, now time.Time) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, b := range g.bans {
		if p.Overlaps(k.prefix()) {
			if now.Before(b.until) {
				n++
			}
			delete(g.bans, k)
		}
	}
	g.banned.Store(int64(len(g.bans)))
	return n
}

// Stats are counts since the start.
type Stats struct {
	Refused map[string]uint64 // by Verdict; all labels are there
	Bans    int               // automatic ones, now
}

// Stats returns the counters.
func (g *Guard) Stats(now time.Time) Stats {
	s := Stats{Refused: make(map[string]uint64), Bans: len(g.Bans(now))}
	for v := Banned; v < verdicts; v++ {
		s.Refused[v.String()] = g.refused[v].Load()
	}
	return s
}
