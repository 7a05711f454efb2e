package workerproc

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/eventrouter"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// maxPerShard bounds the server transactions of one engine in one shard; one
// more is answered 503 by the transaction layer.
const maxPerShard = 256

// role is what an engine runs: the P-, I- or S-CSCF logic of one group.
type role interface {
	transaction.User
	Stop()
}

// engine serves one group. Its layers, one a shard, are touched only by the
// shard's runner.
type engine struct {
	p        *Process
	group    state.Group
	workerID string
	entry    byte // 'p', 'i', 's'
	role     role
	figures  func() figures
	bindings func(workerlink.UserMsg) []workerlink.Binding // nil for a role without users
	calls    func() []workerlink.Call                      // nil for a role without calls
	layerCfg transaction.Config
	layers   []*transaction.Layer // by shard; nil until first used
	pending  []int                // requests in flight by shard, as counted in inFlight
	messages atomic.Uint64        // SIP messages received
	inFlight atomic.Int64
	stopped  atomic.Bool

	awaited awaited

	flowMu sync.Mutex
	flows  map[sipmsg.Flow]time.Time // flows bound at fronts, for a front that comes back
}

// figures is what a role reports for the load message.
type figures struct {
	users, calls, lost int
	lostAt             time.Time
	rejected           uint64
}

// event is what the router orders: a message or a callback of an engine.
type event struct {
	eng  *engine
	msg  *sipmsg.Message
	from transaction.Peer
	fn   func()
}

// handle runs one event in its shard.
func handle(shard int, e event) {
	switch {
	case e.fn != nil:
		e.fn()
	case e.eng.stopped.Load():
		return // the group is served elsewhere now: the retransmission goes there
	default:
		e.eng.messages.Add(1)
		e.eng.layer(shard).Receive(e.msg, e.from)
	}
	e.eng.count(shard)
}

// count brings the number of requests in flight up to date.
func (e *engine) count(shard int) {
	if l := e.layers[shard]; l != nil {
		n := l.Pending()
		e.inFlight.Add(int64(n - e.pending[shard]))
		e.pending[shard] = n
	}
}

func (e *engine) layer(shard int) *transaction.Layer {
	l := e.layers[shard]
	if l == nil {
		l = transaction.New(e.layerCfg, &shardEnv{e, shard}, e.role)
		e.layers[shard] = l
	}
	l.SetT1(e.p.now().SIP.T1)
	return l
}

// shardEnv gives the layers of one shard their effects.
type shardEnv struct {
	e     *engine
	shard int
}

func (v *shardEnv) Now() time.Time { return time.Now() }

// Send sends a message out. A request over a connection is not repeated, so one
// that cannot even leave fails at once.
func (v *shardEnv) Send(to transaction.Peer, raw []byte) {
	connected := to.Group == 0 && to.Flow.Transport.Reliable() && isRequest(raw)
	if connected {
		v.e.awaited.note(to.Flow, v.shard, time.Now(), 64*v.e.p.now().SIP.T1)
	}
	if !v.e.p.send(v.e, to, raw) && connected {
		v.e.unreachable(v.shard, to)
	}
}

func (v *shardEnv) After(d time.Duration, fn func()) (stop func()) {
	// A timer may have posted its event when it is stopped; fn is read and
	// written in the shard only, so a stopped timer never runs. The runtime may
	// keep a stopped timer for long: it shall not keep the transaction.
	run := func() {
		if fn != nil {
			fn()
		}
	}
	t := time.AfterFunc(d, func() { v.Post(run) })
	return func() { fn = nil; t.Stop() }
}

func (v *shardEnv) Post(fn func()) { v.e.p.router.Post(v.shard, event{eng: v.e, fn: fn}) }

// send carries a message of engine e out: to the wire through the front that
// owns the flow, to an engine of this process, or over a link to another one.
// It is false if the message did not leave.
func (p *Process) send(e *engine, to transaction.Peer, raw []byte) bool {
	frame := &link.SIP{To: to.Group, From: e.group.ID, Epoch: e.group.Epoch, Entry: e.entry, Raw: raw}
	if to.Group == 0 {
		frame.Flow = to.Flow
		return p.frame(p.links.front(to.Flow.Node), frame)
	}
	from := transaction.Peer{Group: e.group.ID, InProcess: true}
	if target := p.engine(to.Group); target != nil {
		p.deliver(target, raw, from, true)
		return true
	}
	return p.frame(p.links.toward(to.Group), frame)
}

// frame gives a frame to a front; nil: none is reachable.
func (p *Process) frame(f *front, s *link.SIP) bool {
	switch {
	case f == nil:
		p.count("front_unreachable")
	case f.SendSIP(s) != nil:
		p.count("link_full")
	default:
		return true
	}
	return false
}

// deliver parses a message and puts it into its shard. Messages from a link
// are offered and may be shed; those from a hop of this process, which the
// shard has already admitted, are not.
func (p *Process) deliver(e *engine, raw []byte, from transaction.Peer, internal bool) {
	m, err := sipmsg.Parse(raw)
	if err != nil {
		p.count("malformed")
		p.log.Debug("drop a malformed message", "group", e.group.ID, "err", err)
		return
	}
	key := eventrouter.Key(orderKey(m))
	ev := event{eng: e, msg: m, from: from}
	if internal {
		p.router.Post(p.router.Shard(key), ev)
		return
	}
	if err := p.router.Offer(key, e.class(m, from), ev, offerWait); err != nil {
		p.count("shed")
	}
}

// orderKey is the activity of a message: its Call-ID; for REGISTER and its
// answers the AOR.
func orderKey(m *sipmsg.Message) string {
	if _, method := m.CSeq(); method == "REGISTER" {
		if to, err := m.To(); err == nil {
			if u, err := sipmsg.ParseURI(to.URI); err == nil {
				return u.AOR()
			}
		}
	}
	return m.CallID()
}

// class says what may be shed first under overload. What looks like part of a
// call is never shed, unless it comes from somebody unknown: anybody can write
// a To tag.
func (e *engine) class(m *sipmsg.Message, from transaction.Peer) eventrouter.Class {
	if !m.IsRequest() {
		return eventrouter.Dialog // the front let it pass for the token in its Via
	}
	switch method := m.Method(); method {
	case "ACK", "BYE", "CANCEL", "PRACK", "UPDATE":
		if e.trusts(m, from) {
			return eventrouter.Dialog
		}
		return eventrouter.Message
	default:
		if m.ToTag() != "" && e.trusts(m, from) {
			return eventrouter.Dialog
		}
		return classOf(method)
	}
}

// classOf is the class of a request that begins something.
func classOf(method string) eventrouter.Class {
	switch method {
	case "INVITE":
		return eventrouter.Invite
	case "REGISTER":
		return eventrouter.Register
	case "SUBSCRIBE", "PUBLISH":
		return eventrouter.Subscribe
	}
	return eventrouter.Message
}

// trusts reports whether a request comes from an engine or over the flow of a
// registered phone, or shows a token of ours, which only what was registered
// once can know.
func (e *engine) trusts(m *sipmsg.Message, from transaction.Peer) bool {
	if from.Group != 0 {
		return true
	}
	e.flowMu.Lock()
	_, bound := e.flows[from.Flow]
	e.flowMu.Unlock()
	return bound || e.p.tables.tokened(m)
}

func (e *engine) stop(log *slog.Logger) {
	if e.stopped.Swap(true) {
		return
	}
	e.role.Stop()
	log.Info("group released", "group", e.group.ID, "worker", e.workerID)
}
