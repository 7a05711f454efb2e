// Package cscftest is a cluster in memory for tests of the CSCF roles: real
// transaction layers, a real cluster state and store, phones that a test plays
// by hand. It is meant for testing/synctest, whose clock it runs by: after
// [Cluster.Settle] everything that can happen without time passing has
// happened.
//
// It dispatches what phones send like a front would, in its simplest form, and
// loses nothing unless told to. It is no part of the product.
package cscftest

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
	"bellwether/ha"
)

// Domain is the home network's.
const Domain = "ims.test"

// Secret is the cluster's.
var Secret = []byte("0123456789abcdef0123456789abcdef")

// Cluster is a cluster state, engines and phones.
type Cluster struct {
	t      testing.TB
	Sealer *token.Sealer
	Store  *ha.MemoryStore

	mu       sync.Mutex
	state    *state.State
	engines  map[state.GroupID]*Engine
	phones   map[netip.AddrPort]*Phone
	flows    map[sipmsg.Flow]bound
	reserved map[string]bound // by kind and user
	propose  error            // what every proposal fails with
	gate     chan struct{}    // proposals wait for it to be closed
	unrouted map[state.GroupID]bool
	drop     func(to transaction.Peer, m *sipmsg.Message) bool
	network  func(m *sipmsg.Message, deliver func())
	conn     uint64
}

// bound is a group until a time: that of a flow at a front, or a reservation.
type bound struct {
	group state.GroupID
	until time.Time
}

// New returns a cluster with nodes a and b, at 127.0.0.1 and 127.0.0.2 and at
// 2001:db8::1 and 2001:db8::2.
func New(t testing.TB) *Cluster {
	t.Helper()
	sealer, err := token.NewSealer("test", Secret)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{
		t: t, Sealer: sealer, Store: ha.Memory(), state: state.New(), engines: make(map[state.GroupID]*Engine),
		phones: make(map[netip.AddrPort]*Phone), flows: make(map[sipmsg.Flow]bound), reserved: make(map[string]bound), unrouted: make(map[state.GroupID]bool),
	}
	t.Cleanup(c.close)
	c.Apply(state.Command{Init: &state.Init{ClusterID: "test", Name: "test", Secret: Secret}})
	for i, name := range []string{"a", "b"} {
		c.Apply(state.Command{PutNode: &state.Node{
			Name: name, Service: netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)}), P: 5060, I: 4060, S: 6060,
			Service6: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(1 + i)}),
		}})
	}
	return c
}

func (c *Cluster) close() {
	c.mu.Lock()
	engines := c.engines
	c.engines = nil
	c.mu.Unlock()
	for _, e := range engines {
		e.close()
	}
	if err := c.Store.Close(); err != nil {
		c.t.Errorf("close the store: %v", err)
	}
}

// Settle waits until nothing can happen any more without time passing.
func (c *Cluster) Settle() { synctest.Wait() }

// Sleep lets time pass.
func (c *Cluster) Sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Apply changes the cluster state and fails the test if it refuses.
func (c *Cluster) Apply(cmd state.Command) state.Result {
	c.t.Helper()
	r := c.apply(cmd)
	if err := r.Check(); err != nil {
		c.t.Fatalf("apply %v: %v", cmd, err)
	}
	return r
}

func (c *Cluster) apply(cmd state.Command) state.Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := cmd.Assign; a != nil {
		delete(c.reserved, string(a.Kind)+" "+a.User)
	}
	next, r := c.state.Apply(c.state.Index()+1, []state.Command{cmd})
	c.state = next
	return r[0]
}

// State is the current state.
func (c *Cluster) State() *state.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// FailProposals makes every proposal fail with err, nil: none.
func (c *Cluster) FailProposals(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.propose = err
}

// HoldProposals makes proposals wait until the function that it returns is
// called.
func (c *Cluster) HoldProposals() (release func()) {
	gate := make(chan struct{})
	set := func(g chan struct{}) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gate = g
	}
	set(gate)
	return func() {
		set(nil)
		close(gate)
		c.Settle()
	}
}

// ForgetReservations is what a new leader does.
func (c *Cluster) ForgetReservations() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.reserved)
}

// Isolate makes a group unreachable for Route, or reachable again.
func (c *Cluster) Isolate(g state.GroupID, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unrouted[g] = on
}

// Lose drops what fn is true for, nil: nothing.
func (c *Cluster) Lose(fn func(to transaction.Peer, m *sipmsg.Message) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop = fn
}

// Network puts fn in the place of the network between phones and nodes and
// between nodes, nil: a network that does nothing but deliver. fn may call
// deliver any number of times, also later.
func (c *Cluster) Network(fn func(m *sipmsg.Message, deliver func())) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.network = fn
}

// carry delivers a message through the network.
func (c *Cluster) carry(m *sipmsg.Message, deliver func(m *sipmsg.Message)) {
	c.mu.Lock()
	network := c.network
	c.mu.Unlock()
	if network == nil {
		deliver(m)
		return
	}
	raw := m.Bytes()
	network(m, func() {
		if m, err := sipmsg.Parse(raw); err == nil {
			deliver(m)
		}
	})
}

// Bound lists the flows that are bound to a group.
func (c *Cluster) Bound(g state.GroupID) []sipmsg.Flow {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []sipmsg.Flow
	for f, b := range c.flows {
		if b.group == g && time.Now().Before(b.until) {
			out = append(out, f)
		}
	}
	return out
}

// AddGroup makes a worker with its group, which nobody serves yet.
func (c *Cluster) AddGroup(kind state.Kind, node string) state.GroupID {
	c.t.Helper()
	n := len(slices.Collect(c.State().Workers())) + 1
	return c.Apply(state.Command{PutWorker: &state.Worker{ID: fmt.Sprintf("%s%d", kind[:1], n), Kind: kind, Node: node}}).Group
}

// ServiceAddr is a group's.
func (c *Cluster) ServiceAddr(g state.GroupID) netip.AddrPort {
	c.t.Helper()
	addr, ok := c.State().ServiceAddr(g)
	if !ok {
		c.t.Fatalf("group %d has no service address", g)
	}
	return addr
}

// ServiceAddrs is what a P-CSCF knows of its group's addresses.
func (c *Cluster) ServiceAddrs(g state.GroupID) func(remote netip.Addr) netip.AddrPort {
	return func(remote netip.Addr) netip.AddrPort {
		addr, _ := c.State().ServiceAddrFor(g, remote)
		return addr
	}
}

func (c *Cluster) sentBy(g state.GroupID) func(transaction.Peer) string {
	at := c.ServiceAddrs(g)
	return func(to transaction.Peer) string { return at(to.Flow.Remote.Addr()).String() }
}

// Route is a Route entry with a token.
func (c *Cluster) Route(t token.Token) string {
	c.t.Helper()
	return "<sip:" + c.Sealer.Seal(t) + "@" + c.ServiceAddr(t.Group).String() + ";lr>"
}

// pick finds the group that a message belongs to by its token, else the first
// of the kind.
func (c *Cluster) pick(kind state.Kind, m *sipmsg.Message) (state.GroupID, error) {
	text := ""
	if !m.IsRequest() {
		via, _ := m.TopVia()
		text, _ = token.FromBranch(via.Branch())
	} else if top, ok := m.TopRoute(); ok {
		if u, err := sipmsg.ParseURI(top.URI); err == nil {
			text = u.User
		}
	}
	if t, ok := c.Sealer.Open(text); ok {
		return t.Group, nil
	}
	if m.IsRequest() {
		for g := range c.State().Groups() {
			if g.Kind == kind {
				return g.ID, nil
			}
		}
	}
	return 0, fmt.Errorf("no %s for this message", kind)
}

// Subscriber provisions a subscriber whose password is its IMPI; the first
// identity is the default. Identities beginning with ! are barred; those behind
// an empty one belong to the next implicit registration set.
func (c *Cluster) Subscriber(impi string, identities ...string) {
	c.t.Helper()
	c.Apply(state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{subscriber(impi, identities)}}})
}
