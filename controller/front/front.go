// Package front owns the SIP sockets of a node. It reads datagrams, checks
// them, hands each one to the worker process that serves it, and sends out what
// workers want sent.
//
// It keeps no transaction, dialog or registration and changes no byte of what
// it passes on. It does not decide who serves what (package dispatch, from the
// cluster state) and does not accept or dial workers (its owner attaches their
// links). Only requests that nobody can serve are answered here, statelessly.
//
// Invariants: a reader of a socket never waits for anything but the socket;
// datagrams of one source reach a worker in their order; everything that
// outsiders can make grow is bounded, and what exceeds a bound is dropped and
// counted; nothing leaves in the name of a group whose epoch is past.
//
// Failure modes: a worker that is not connected, a full link, an unfinished
// reservation lose the datagram; its sender repeats it. A front that dies loses
// the table of known flows; workers tell it again.
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
	Entries []Entry // one of a kind at most
	// Sockets per entry that share its port, each with a reader of its own.
	// 0: GOMAXPROCS for 'p', 1 for others.
	Sockets int
	Guard   *guard.Guard // nil: one of guard.Default()
	Log     *slog.Logger // nil: slog.Default()
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
	entries map[byte]*listener           // immutable after New
	local   map[netip.AddrPort]*listener // the same, by address
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

	load policy.MinLoad

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New opens the sockets and starts to serve; before workers are attached every
// message is dropped.
func New(cfg Config, cl Cluster) (*Front, error) {
	f := &Front{
		node: cfg.Node, cluster: cl, log: cfg.Log,
		entries: make(map[byte]*listener), local: make(map[netip.AddrPort]*listener),
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
	for i, e := range cfg.Entries {
		if err := f.listen(e, uint16(i), cfg.Sockets); err != nil {
			f.Close()
			return nil, fmt.Errorf("listen at entry %c: %w", e.Kind, err)
		}
	}
	for _, l := range f.entries {
		for _, s := range l.sockets {
			f.wg.Go(func() { f.read(s) })
			f.wg.Go(func() { s.write(&f.count) })
		}
	}
	return f, nil
}

func (f *Front) listen(e Entry, id uint16, sockets int) error {
	if _, ok := dispatch.KindOf(e.Kind); !ok {
		return fmt.Errorf("no such kind of entry")
	}
	if f.entries[e.Kind] != nil {
		return fmt.Errorf("second address %s", e.Addr)
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
	l, err := listenUDP(e, id, sockets)
	if err != nil {
		return err
	}
	f.entries[e.Kind], f.local[l.addr] = l, l
	return nil
}

// Close closes the sockets and waits for the front's goroutines.
func (f *Front) Close() {
	f.cancel()
	for _, l := range f.entries {
		l.close()
	}
	f.wg.Wait()
}

// Addr returns the address of an entry, the zero value if there is none.
func (f *Front) Addr(kind byte) netip.AddrPort {
	if l := f.entries[kind]; l != nil {
		return l.addr
	}
	return netip.AddrPort{}
}

// flowKey is a flow without its node, which may change when an address moves.
type flowKey struct {
	ip        [16]byte
	conn      uint64
	port      uint16
	entry     uint16
	transport sipmsg.Transport
}

func (f *Front) flowKey(flow sipmsg.Flow) (flowKey, bool) {
	l := f.local[flow.Local]
	if l == nil {
		return flowKey{}, false
	}
	return flowKey{
		ip: flow.Remote.Addr().As16(), port: flow.Remote.Port(), entry: l.id,
		transport: flow.Transport, conn: flow.Conn,
	}, true
}

// Bind tells that a flow belongs to a phone of group until a time. A flow of
// another front is ignored. If a million flows are known, the one that was used
// least recently is forgotten.
func (f *Front) Bind(flow sipmsg.Flow, group state.GroupID, until time.Time) {
	if k, ok := f.flowKey(flow); ok {
		f.flows.put(k, group, time.Now(), until)
	}
}

// Unbind forgets a flow.
func (f *Front) Unbind(flow sipmsg.Flow) {
	if k, ok := f.flowKey(flow); ok {
		f.flows.remove(k)
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
