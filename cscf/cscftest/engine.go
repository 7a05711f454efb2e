package cscftest

import (
	"sync"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

// shards of an engine.
const shards = 2

// Engine serves a group: with a role, or, without one, played by the test.
// It is the Core of its role.
type Engine struct {
	c     *Cluster
	Group state.GroupID
	node  string
	cfg   transaction.Config
	user  transaction.User

	queues [shards]*queue

	mu       sync.Mutex
	received []*sipmsg.Message // without a role
}

// queue runs events of one shard in order.
type queue struct {
	e      *Engine
	mu     sync.Mutex
	wake   sync.Cond
	events []func()
	closed bool
	done   chan struct{}
	layer  *transaction.Layer
}

// NewEngine makes an engine for a group. Start gives it its role.
func (c *Cluster) NewEngine(g state.GroupID) *Engine {
	c.t.Helper()
	group, ok := c.State().Group(g)
	if !ok {
		c.t.Fatalf("there is no group %d", g)
	}
	home, _ := c.State().Worker(group.Home)
	e := &Engine{c: c, Group: g, node: home.Node, cfg: transaction.Config{
		SentBy: c.sentBy(g), Secret: Secret,
		Token: c.Sealer.Seal(token.Token{Mode: token.Via, Group: g}),
	}}
	for i := range e.queues {
		q := &queue{e: e, done: make(chan struct{})}
		q.wake.L = &q.mu
		e.queues[i] = q
	}
	return e
}

// Start lets the engine serve its group, in the place of any before it.
func (e *Engine) Start(user transaction.User) {
	e.user = user
	for _, q := range e.queues {
		if user != nil {
			q.layer = transaction.New(e.cfg, q, user)
		}
		go q.run()
	}
	e.c.mu.Lock()
	old := e.c.engines[e.Group]
	e.c.engines[e.Group] = e
	e.c.mu.Unlock()
	if old != nil {
		old.close()
	}
}

func (e *Engine) close() {
	for _, q := range e.queues {
		q.mu.Lock()
		q.closed = true
		q.wake.Broadcast()
		q.mu.Unlock()
		<-q.done
	}
	if s, ok := e.user.(interface{ Stop() }); ok {
		s.Stop()
	}
}

func (q *queue) run() {
	defer close(q.done)
	for {
		q.mu.Lock()
		for len(q.events) == 0 && !q.closed {
			q.wake.Wait()
		}
		if q.closed {
			q.mu.Unlock()
			return
		}
		fn := q.events[0]
		q.events = q.events[1:]
		q.mu.Unlock()
		fn()
	}
}

// Post, Now, After and Send make a queue the Env of its layer.
func (q *queue) Post(fn func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = append(q.events, fn)
	q.wake.Signal()
}

func (q *queue) Now() time.Time { return time.Now() }

func (q *queue) After(d time.Duration, fn func()) func() {
	off := false
	run := func() {
		if !off {
			fn()
		}
	}
	t := time.AfterFunc(d, func() { q.Post(run) })
	return func() { off = true; t.Stop() }
}

func (q *queue) Send(to transaction.Peer, raw []byte) { q.e.send(to, raw) }

// send carries a message to a phone or to another engine.
func (e *Engine) send(to transaction.Peer, raw []byte) {
	m, err := sipmsg.Parse(raw)
	if err != nil {
		e.c.t.Errorf("group %d sends a malformed message: %v\n%s", e.Group, err, raw)
		return
	}
	e.c.mu.Lock()
	drop := e.c.drop
	target, phone := e.c.engines[to.Group], e.c.phones[to.Flow.Remote]
	e.c.mu.Unlock()
	switch {
	case drop != nil && drop(to, m):
	case to.Group != 0 && target != nil && target.node == e.node:
		target.Deliver(transaction.Peer{Group: e.Group, InProcess: true}, m)
	case to.Group != 0 && target != nil:
		e.c.carry(m, func(m *sipmsg.Message) { target.Deliver(transaction.Peer{Group: e.Group}, m) })
	case to.Group == 0 && phone != nil:
		e.c.carry(m, phone.take)
	}
}

// Deliver hands a message to the engine as if it came from a peer. Without a
// role it waits for Next.
func (e *Engine) Deliver(from transaction.Peer, m *sipmsg.Message) {
	if e.user == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.received = append(e.received, m)
		return
	}
	q := e.queues[shard(m)]
	q.Post(func() { q.layer.Receive(m, from) })
}

func shard(m *sipmsg.Message) int {
	key := m.CallID()
	if _, method := m.CSeq(); method == "REGISTER" {
		to, _ := m.To()
		key = to.URI
	}
	sum := 0
	for i := range len(key) {
		sum += int(key[i])
	}
	return sum % shards
}

// Next takes the oldest message that an engine without a role received.
func (e *Engine) Next() *sipmsg.Message {
	e.c.t.Helper()
	e.c.Settle()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.received) == 0 {
		e.c.t.Fatalf("group %d received nothing", e.Group)
	}
	m := e.received[0]
	e.received = e.received[1:]
	return m
}

// Pending is the number of messages that wait for Next.
func (e *Engine) Pending() int {
	e.c.Settle()
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.received)
}

// Send sends a message of an engine without a role to another group.
func (e *Engine) Send(to *Engine, m *sipmsg.Message) {
	e.c.t.Helper()
	e.send(transaction.Peer{Group: to.Group}, m.Bytes())
	e.c.Settle()
}

// State, Propose, Reserve, Route, After, Bind and Unbind make an Engine the
// Core of any role.

// State is the current state.
func (e *Engine) State() *state.State { return e.c.State() }

// Propose applies a command on a goroutine of its own.
func (e *Engine) Propose(cmd state.Command, done func(state.Result, error)) {
	go func() {
		e.c.mu.Lock()
		err, gate := e.c.propose, e.c.gate
		e.c.mu.Unlock()
		if gate != nil {
			<-gate
		}
		if err != nil {
			done(state.Result{}, err)
			return
		}
		r := e.c.apply(cmd)
		done(r, r.Check())
	}()
}

// Reserve chooses by min-user and holds the place for 40 s, but does not count
// it.
func (e *Engine) Reserve(kind state.Kind, user string, done func(state.GroupID, error)) {
	go func() {
		if g, ok := e.c.reserve(kind, user); ok {
			done(g, nil)
		} else {
			done(0, &state.Error{Code: state.NoWorker})
		}
	}()
}

func (c *Cluster) reserve(kind state.Kind, user string) (state.GroupID, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g, ok := c.state.Assignment(kind, user); ok {
		return g, true
	}
	key := string(kind) + " " + user
	if r := c.reserved[key]; time.Now().Before(r.until) {
		return r.group, true
	}
	g, ok := c.state.MinUser(kind, nil)
	if ok {
		c.reserved[key] = bound{g, time.Now().Add(40 * time.Second)}
	}
	return g, ok
}

// Route goes by the message's token, else to the first group of the kind.
func (e *Engine) Route(kind state.Kind, m *sipmsg.Message) (transaction.Peer, error) {
	g, err := e.c.pick(kind, m)
	if err != nil {
		return transaction.Peer{}, err
	}
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	target := e.c.engines[g]
	if target == nil || e.c.unrouted[g] {
		return transaction.Peer{}, &state.Error{Code: state.NotFound, Text: "group is not served"}
	}
	return transaction.Peer{Group: g, InProcess: target.node == e.node}, nil
}

// After is time.AfterFunc.
func (e *Engine) After(d time.Duration, fn func()) (stop func()) {
	t := time.AfterFunc(d, fn)
	return func() { t.Stop() }
}

// Bind notes the flow.
func (e *Engine) Bind(flow sipmsg.Flow, until time.Time) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.c.flows[flow] = bound{e.Group, until}
}

// Unbind forgets it.
func (e *Engine) Unbind(flow sipmsg.Flow) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	delete(e.c.flows, flow)
}

// Unreachable tells the engine's layers that a peer is gone.
func (e *Engine) Unreachable(peer transaction.Peer) {
	for _, q := range e.queues {
		q.Post(func() { q.layer.Unreachable(peer) })
	}
	e.c.Settle()
}

// Idle reports whether the engine has no transaction left.
func (e *Engine) Idle() bool {
	e.c.Settle()
	for _, q := range e.queues {
		servers, clients := q.layer.Len()
		if servers+clients != 0 {
			return false
		}
	}
	return true
}
