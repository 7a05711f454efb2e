// Package front owns the SIP sockets of a node, UDP and TCP at the same
// addresses. It reads messages, checks them, hands each one to the worker
// process that serves it, and sends out what workers want sent.
//
// It keeps no transaction, dialog or registration and changes no byte of what
// it passes on. It does not decide who serves what (package dispatch, from the
// cluster state) and does not accept or dial workers (its owner attaches their
// links). Only requests that nobody can serve are answered here, statelessly.
//
// Invariants: a reader of a UDP socket never waits for anything but the
// socket; datagrams of one source, and messages of one connection, reach a
// worker in their order; everything that outsiders can make grow is bounded,
// and what exceeds a bound is dropped and counted; nothing leaves in the name
// of a group whose epoch is past.
//
// Failure modes: a worker that is not connected, a full link, an unfinished
// reservation lose the datagram; its sender repeats it. Nobody repeats what
// came over TCP, so its connection waits a while, then a request is answered
// 503. A front that dies loses its connections and the table of known flows;
// workers tell it again, and it tells them which of those are gone.
//
// Lock order: none of the locks is held while another one is taken.
package front

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"bellwether/controller/dispatch"
	"bellwether/controller/guard"
	"bellwether/controller/link"
	"bellwether/controller/policy"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

// Limits of a front.
const (
	maxFlows    = 1_000_000 // known flows of phones
	maxCalls    = 1 << 18   // Call-IDs at I-CSCFs
	maxClaims   = 1 << 14   // new flows
	maxReserves = 1024      // reservations under way
	reserveWait = 2 * time.Second

	// claimKept is how long the first REGISTER over a flow decides where
	// others go, unless its 200 binds the flow.
	claimKept = 8 * time.Second

	// callKept is 64·T1 (RFC 3261 §17.1.1.1). An INVITE may be cancelled
	// as long as it can be pending, until Timer C (§16.6: above 3 minutes).
	callKept   = 32 * time.Second
	inviteKept = callKept + 181*time.Second
)

// Entry is an address at which a front listens.
type Entry struct {
	Kind byte           // 'p', 'i' or 's'
	Addr netip.AddrPort // of this node, not unspecified; port 0: any, see Front.Addr
}

// Config says what a front is.
type Config struct {
	Node    string
	Entries []Entry // of each kind at most one IPv4 and one IPv6 address; the first is the main one
	// Sockets per entry that share its port, each with a reader of its own.
	// 0: GOMAXPROCS for 'p', 1 for others.
	Sockets int
	Guard   *guard.Guard // nil: one of guard.Default()
	Streams Streams      // limits of TCP; zero fields mean the defaults
	Log     *slog.Logger // nil: slog.Default()
	// Gone tells a worker process that nothing can be sent over a flow any
	// more: one that was bound to a group of that process when its connection
	// ended, or one over which a request of that process could not be sent. It
	// must not wait. nil: nobody is told.
	Gone func(to *link.Conn, flow sipmsg.Flow)
}

// Cluster is what a front needs of its controller.
type Cluster interface {
	State() *state.State // never nil
	// Reserve reserves a group for a user that has none (see the consensus
	// controller). It may take long; the front gives it 2 s.
	Reserve(ctx context.Context, kind state.Kind, user string) (state.GroupID, error)
}

// Front is the SIP front of a node. Its methods may be called from any
// goroutine.
type Front struct {
	node    string
	cluster Cluster
	log     *slog.Logger
	entries map[byte][]*listener         // immutable after New
	local   map[netip.AddrPort]*listener // the same, by address
	gone    func(to *link.Conn, flow sipmsg.Flow)
	sealer  atomic.Pointer[sealer]
	seed    maphash.Seed

	workers workers
	flows   table[flowKey]
	claims  table[flowKey] // flows that are not bound yet
	calls   table[uint64]  // by hash of Call-ID: two that collide share an I-CSCF
	waiting reservations
	limit   limiter
	guard   *guard.Guard
	rules   ruled
	count   counters
	streams streams

	load policy.MinLoad

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	startMu sync.Mutex // guards closed, and wg against Close
	closed  bool
}

// New opens the sockets and starts to serve; before workers are attached every
// message is dropped.
func New(cfg Config, cl Cluster) (*Front, error) {
	f := &Front{
		node: cfg.Node, cluster: cl, log: cfg.Log, gone: cfg.Gone,
		entries: make(map[byte][]*listener), local: make(map[netip.AddrPort]*listener),
		seed: maphash.MakeSeed(), guard: cfg.Guard,
	}
	if f.guard == nil {
		f.guard = guard.New(guard.Default())
	}
	if f.log == nil {
		f.log = slog.Default()
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.workers.init()
	f.flows.init(maxFlows)
	f.claims.init(maxClaims)
	f.calls.init(maxCalls)
	f.waiting.init()
	f.limit.init()
	f.streams.init(cfg.Streams)
	for i, e := range cfg.Entries {
		if err := f.listen(e, uint16(i), cfg.Sockets); err != nil {
			f.Close()
			return nil, fmt.Errorf("listen at entry %c: %w", e.Kind, err)
		}
	}
	for _, l := range f.local {
		for _, s := range l.sockets {
			f.wg.Go(func() { f.read(s) })
			f.wg.Go(func() { s.write(&f.count) })
		}
		f.wg.Go(func() { f.accept(l) })
	}
	return f, nil
}

func (f *Front) listen(e Entry, id uint16, sockets int) error {
	if _, ok := dispatch.KindOf(e.Kind); !ok {
		return fmt.Errorf("no such kind of entry")
	}
	for _, l := range f.entries[e.Kind] {
		if l.addr.Addr().Is4() == e.Addr.Addr().Is4() {
			return fmt.Errorf("second address %s", e.Addr)
		}
	}
	if !e.Addr.IsValid() || e.Addr.Addr().IsUnspecified() {
		return fmt.Errorf("address %s is not one that messages can show", e.Addr)
	}
	if sockets <= 0 {
		sockets = 1
		if e.Kind == 'p' {
			sockets = runtime.GOMAXPROCS(0)
		}
	}
	l, err := listen(e, id, sockets)
	if err != nil {
		return err
	}
	f.entries[e.Kind], f.local[l.addr] = append(f.entries[e.Kind], l), l
	return nil
}

// Close closes the sockets and connections and waits for the front's
// goroutines.
func (f *Front) Close() {
	f.cancel()
	for _, l := range f.local {
		l.close()
	}
	f.startMu.Lock()
	f.closed = true
	f.startMu.Unlock()
	f.streams.closeAll()
	f.wg.Wait()
}

// start runs fn on a goroutine that Close waits for; false after Close.
func (f *Front) start(fn func()) bool {
	f.startMu.Lock()
	defer f.startMu.Unlock()
	if !f.closed {
		f.wg.Go(fn)
	}
	return !f.closed
}

// Addr returns the main address of an entry, the zero value if there is none.
func (f *Front) Addr(kind byte) netip.AddrPort {
	for _, l := range f.entries[kind] {
		return l.addr
	}
	return netip.AddrPort{}
}

// Addrs returns the addresses of an entry, the main one first.
func (f *Front) Addrs(kind byte) []netip.AddrPort {
	var out []netip.AddrPort
	for _, l := range f.entries[kind] {
		out = append(out, l.addr)
	}
	return out
}

// flowKey is a flow without its node, which may change when an address moves.
type flowKey struct {
	ip        [16]byte
	conn      uint64
	zone      uint32 // hash of the link that a link-local address is on, 0 for others
	port      uint16
	entry     uint16
	transport sipmsg.Transport
}

func (f *Front) flowKey(flow sipmsg.Flow) (flowKey, bool) {
	l := f.local[flow.Local]
	if l == nil {
		return flowKey{}, false
	}
	k := flowKey{
		ip: flow.Remote.Addr().As16(), port: flow.Remote.Port(), entry: l.id,
		transport: flow.Transport, conn: flow.Conn,
	}
	if zone := flow.Remote.Addr().Zone(); zone != "" {
		k.zone = uint32(maphash.String(f.seed, zone)) | 1
	}
	return k, true
}

// Bind tells that a flow belongs to a phone of group until a time. A flow of
// another front is ignored. If a million flows are known, the one that was used
// least recently is forgotten. A flow whose connection has ended is told to be
// gone.
func (f *Front) Bind(flow sipmsg.Flow, group state.GroupID, until time.Time) {
	k, ok := f.flowKey(flow)
	if !ok {
		return
	}
	f.flows.put(k, group, time.Now(), until)
	// The flow is known before the connection is looked for, so that one that
	// ends meanwhile finds it.
	if flow.Transport == sipmsg.TCP && !f.streams.bind(flow.Conn, until) {
		f.flows.remove(k)
		f.tellGone(group, flow)
	}
}

// Unbind forgets a flow.
func (f *Front) Unbind(flow sipmsg.Flow) {
	if k, ok := f.flowKey(flow); ok {
		f.flows.remove(k)
		if flow.Transport == sipmsg.TCP {
			f.streams.bind(flow.Conn, time.Time{})
		}
	}
}

// tellGone tells the worker process of a group that a flow is gone.
func (f *Front) tellGone(group state.GroupID, flow sipmsg.Flow) {
	if c := f.workers.routes.Load().conns[group]; c != nil && f.gone != nil {
		f.gone(c, flow)
	}
}

// Load reports the load of a group's worker, which replaces what was counted
// for it since the last report.
func (f *Front) Load(group state.GroupID, load float64) {
	f.load.Report(group, load)
}

// sealer is the token sealer of a cluster.
type sealer struct {
	cluster string
	*token.Sealer
}

// tokens returns the sealer for a state, nil while it has no cluster.
func (f *Front) tokens(st *state.State) *token.Sealer {
	if s := f.sealer.Load(); s != nil && s.cluster == st.ClusterID() {
		return s.Sealer
	}
	if st.ClusterID() == "" {
		return nil
	}
	s, err := token.NewSealer(st.ClusterID(), st.Secret())
	if err != nil {
		return nil // no message is routed, and NotReady counts them
	}
	f.sealer.Store(&sealer{st.ClusterID(), s})
	return s
}
