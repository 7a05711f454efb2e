package transaction

import (
	"sync/atomic"
	"time"

	"bellwether/cscf/sipmsg"
)

// Peer is where a message came from or goes to: a wire flow through a front,
// or, if Group is not 0, another engine. It is comparable.
type Peer struct {
	Group     uint32
	InProcess bool // the engine runs in this process: nothing is lost on the way
	Flow      sipmsg.Flow
}

// Reliable reports whether what is sent to p arrives or is known not to:
// stream transports and engines of this process. The layer repeats nothing
// towards such a peer.
func (p Peer) Reliable() bool {
	if p.Group != 0 {
		return p.InProcess
	}
	return p.Flow.Transport.Reliable()
}

// carries reports whether a message of n bytes can be sent to p: over UDP what
// the length fields of IPv4 and UDP leave.
func (p Peer) carries(n int) bool {
	return p.Group != 0 || p.Flow.Transport != sipmsg.UDP || n <= 65507
}

// Env is what the layer does to the world. Each layer has its own.
type Env interface {
	Now() time.Time
	// Send sends raw without waiting. The layer never touches raw again,
	// except to send it once more.
	Send(to Peer, raw []byte)
	// After runs fn in the layer's shard once d has passed, unless stop was
	// called before. A callback already queued when stop is called may run.
	After(d time.Duration, fn func()) (stop func())
	// Post runs fn in the layer's shard. It is safe from any goroutine.
	Post(fn func())
}

// Config is the layer's settings. The zero value of a duration means the
// RFC's.
type Config struct {
	T1 time.Duration // round-trip estimate, 500 ms (RFC 3261 §17.1.1.1)
	T2 time.Duration // longest interval between repeats, 4 s
	T4 time.Duration // longest life of a message in the network, 5 s
	// TimerC bounds the silence of a ringing branch, 181 s; RFC 3261 §16.6
	// wants more than three minutes.
	TimerC time.Duration
	// Recovery is how long after New a response without transaction that is
	// no 2xx to an INVITE goes to User.Stray, since a predecessor's
	// transaction may wait for it; later it is dropped (RFC 6026 §1). 0 means
	// TimerC + 64*T1, negative for ever (engines that carry on for others).
	Recovery time.Duration
	// SentBy is the host:port of our Via towards a peer, of the peer's address
	// family; an IPv6 host stands in brackets.
	SentBy func(to Peer) string
	Token  string // of our Via's branch, see package token
	Secret []byte // keys branches and To tags; equal in the whole cluster
	Max    int    // server transactions, beyond them 503; 0 means no limit
	// Registering bounds, for all layers that share it, the REGISTER requests
	// from the wire that have no final response yet: what a stranger can make
	// wait. Beyond it they are answered 503 without state. nil means no limit.
	Registering *Budget
	// Refusals bounds, in the same way, the transactions other than INVITE that
	// wait only to answer repeats of a request that was not granted.
	Refusals *Budget
}

// Budget is a number of transactions that layers share. It is safe for
// concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a budget of n transactions.
func NewBudget(n int) *Budget { return &Budget{limit: int64(n)} }

// Used is the number of transactions that there are now.
func (b *Budget) Used() int { return int(b.used.Load()) }

// begin takes a place; nil has any number.
func (b *Budget) begin() bool {
	if b == nil {
		return true
	}
	if b.used.Add(1) > b.limit {
		b.used.Add(-1)
		return false
	}
	return true
}

func (b *Budget) end() {
	if b != nil {
		b.used.Add(-1)
	}
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&c.T1, 500*time.Millisecond)
	set(&c.T2, 4*time.Second)
	set(&c.T4, 5*time.Second)
	set(&c.TimerC, 181*time.Second)
	set(&c.Recovery, c.TimerC+64*c.T1)
	return c
}

// User is the role above the layer. Its methods run in the layer's shard.
type User interface {
	// Request is called for each new request except ACK and CANCEL, which
	// are the layer's. It may answer or forward at once or later, in the
	// shard.
	Request(r *Request)
	// Ack is called for an ACK that ends no INVITE transaction of ours: an
	// end-to-end ACK of a 2xx, to be relayed or dropped. m is the role's.
	Ack(l *Layer, m *sipmsg.Message, from Peer)
	// Stray is called for a response with our Via, which is popped, but
	// without a transaction; see Config.Recovery. m is the role's.
	Stray(l *Layer, m *sipmsg.Message, from Peer)
}

// Target is one next hop of a forwarded request.
type Target struct {
	// Message is the request as it shall leave, apart from Max-Forwards and
	// our Via, which the layer adds. The layer owns it once forwarded.
	Message *sipmsg.Message
	To      Peer
	Any     any // the role's
}

// Forward is where a request goes and what the role wants to see of it.
type Forward struct {
	// Groups are tried one after the other, the targets of each in parallel
	// (RFC 3261 §16.6). The layer keeps them.
	Groups [][]Target
	// Response sees every response that would go upstream, also those that
	// the layer made (408, 500 for a 503), and every repeat of a 2xx to an
	// INVITE. It may edit m in place. nil means Pass.
	Response func(r *Request, t *Target, m *sipmsg.Message) Verdict
	// Failed hears that a branch ended without a final response while the
	// request was still open: 408 by a timer, 503 if its peer is unreachable,
	// 487 if upstream had cancelled before. It may Reply; otherwise the status
	// counts as the branch's response. nil is allowed.
	Failed func(r *Request, t *Target, status int)
}

// Verdict says what becomes of a response.
type Verdict int

const (
	// Pass sends it upstream.
	Pass Verdict = iota
	// Hold leaves it with the role, which calls Request.Pass later.
	Hold
	// Drop forgets it. After the last final response was dropped the role
	// must Forward again or Reply.
	Drop
)
