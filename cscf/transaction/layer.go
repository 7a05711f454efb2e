package transaction

import (
	"hash"
	"strconv"
	"time"

	"bellwether/cscf/sipmsg"
)

// Layer holds the transactions of one engine in one shard. It is not safe for
// concurrent use: everything runs in the shard.
type Layer struct {
	cfg     Config
	env     Env
	user    User
	started time.Time
	servers map[key]*server
	clients map[key]*client
	pending int // servers without a final response
	mac     hash.Hash
	scratch []byte
	busy    bool
	inbox   []arrival
	acking  string // loopPart of the ACK that the role has, as it came
	peak    int    // of len(servers) since it was last empty
}

type arrival struct {
	m    *sipmsg.Message
	from Peer
}

// New returns an empty layer. It costs little until its first message.
func New(cfg Config, env Env, u User) *Layer {
	return &Layer{cfg: cfg.withDefaults(), env: env, user: u, started: env.Now()}
}

// SetT1 changes the round-trip estimate of the timers that start from now on.
func (l *Layer) SetT1(d time.Duration) { l.cfg.T1 = d }

// Env is the layer's environment.
func (l *Layer) Env() Env { return l.env }

// Len is the number of server and client transactions, those included that
// only wait to absorb repeats.
func (l *Layer) Len() (servers, clients int) { return len(l.servers), len(l.clients) }

// Pending is the number of requests that have no final response yet.
func (l *Layer) Pending() int { return l.pending }

// Each calls fn for the requests that have no final response yet, in no
// order, until it returns false. fn may answer or forward them.
func (l *Layer) Each(fn func(*Request) bool) {
	defer l.leave(l.enter())
	for _, s := range l.servers {
		if s.req != nil && !s.req.Finished() && !fn(s.req) {
			return
		}
	}
}

// Receive takes any message of this shard, and owns it from then on. A
// message that Parse refused must not come here.
func (l *Layer) Receive(m *sipmsg.Message, from Peer) {
	if l.busy {
		l.inbox = append(l.inbox, arrival{m, from})
		return
	}
	defer l.leave(l.enter())
	l.receive(m, from)
}

// enter marks the layer busy, so that what a synchronous Env delivers
// meanwhile waits; leave, given enter's result, handles it. They nest.
func (l *Layer) enter() (outermost bool) {
	outermost = !l.busy
	l.busy = true
	return outermost
}

func (l *Layer) leave(outermost bool) {
	if !outermost {
		return
	}
	for i := 0; i < len(l.inbox); i++ {
		a := l.inbox[i]
		l.inbox[i] = arrival{}
		l.receive(a.m, a.from)
	}
	l.inbox = l.inbox[:0]
	l.busy = false
}

func (l *Layer) receive(m *sipmsg.Message, from Peer) {
	via, ok := m.TopVia()
	if !ok {
		return
	}
	if !m.IsRequest() {
		l.response(m, via, from)
		return
	}
	if from.Group == 0 {
		via = stamp(m, via, from)
	}
	k := serverKey(m, via, from)
	switch method := m.Method(); method {
	case "ACK":
		l.ack(k, m, via, from)
	case "CANCEL":
		l.cancel(k, m, via, from)
	default:
		l.request(k, method, m, via, from)
	}
}

// find returns the server transaction of this method.
func (l *Layer) find(k key, method string) *server {
	if s := l.servers[k]; s != nil && s.method == method {
		return s
	}
	return l.servers[k.of(method)]
}

func (l *Layer) request(k key, method string, m *sipmsg.Message, via sipmsg.Via, from Peer) {
	if s := l.find(k, method); s != nil {
		s.repeated()
		return
	}
	if l.cfg.Max > 0 && len(l.servers) >= l.cfg.Max {
		l.answer(m, via, from, 503)
		return
	}
	if l.looped(m) {
		l.answer(m, via, from, 482)
		return
	}
	var place *Budget
	if from.Group == 0 && method == "REGISTER" {
		if place = l.cfg.Registering; !place.begin() {
			l.answer(m, via, from, 503)
			return
		}
	}
	if l.servers[k] != nil {
		k = k.of(method)
	}
	s := &server{layer: l, key: k, method: retained(method), peer: responsePeer(via, from), counted: place}
	r := &Request{Message: m, From: from, layer: l, tx: s, via: via}
	s.req = r
	if l.servers == nil {
		l.servers = make(map[key]*server)
	}
	l.servers[k] = s
	l.peak = max(l.peak, len(l.servers))
	l.pending++
	l.user.Request(r)
	r.handed()
}

// grown is the number of entries from which on a table gives its memory back
// once it is empty: a map keeps what it had at its peak.
const grown = 64

// forget takes a server transaction out of the table.
func (l *Layer) forget(s *server) {
	if l.servers[s.key] != s {
		return
	}
	delete(l.servers, s.key)
	if len(l.servers) == 0 {
		if l.peak >= grown {
			l.servers = nil
		}
		l.peak = 0
	}
}

// answer responds without state: every repeat of the request gets the same
// answer, and ack knows the ACK of an INVITE's by its To tag.
func (l *Layer) answer(m *sipmsg.Message, via sipmsg.Via, from Peer, status int) {
	resp := m.Response(status, "", l.digest(forTag, m, via, 0))
	l.env.Send(responsePeer(via, from), resp.Bytes())
}

// ack ends the INVITE transaction whose non-2xx it acknowledges, on any
// transport (RFC 3261 §17.2.1). Others belong to a 2xx and go end to end,
// except those of our own answers whose transaction is over or never was.
func (l *Layer) ack(k key, m *sipmsg.Message, via sipmsg.Via, from Peer) {
	if s := l.find(k, "INVITE"); s != nil && s.acknowledged() {
		return
	}
	if tag := m.ToTag(); tag != "" && tag == l.digest(forTag, m, via, 0) {
		return
	}
	l.acking = loopPart(m)
	l.user.Ack(l, m, from)
	l.acking = ""
}

// cancel answers a CANCEL and passes it to the response context of the
// transaction it names, of whatever method; only for INVITE it has an effect
// (RFC 3261 §9.2, §16.10).
func (l *Layer) cancel(k key, m *sipmsg.Message, via sipmsg.Via, from Peer) {
	s := l.find(k, "INVITE")
	if s == nil {
		s = l.servers[k]
	}
	if s == nil {
		l.answer(m, via, from, 481)
		return
	}
	s.cancelled = true
	l.answer(m, via, from, 200)
	if s.invite() && s.req != nil {
		reason, _ := m.Value(sipmsg.ReasonHeader)
		s.req.cancel(reason)
	}
}

// response gives a response to its client transaction (RFC 3261 §17.1.3,
// §18.1.2).
func (l *Layer) response(m *sipmsg.Message, via sipmsg.Via, from Peer) {
	if !l.ours(via, from) {
		return
	}
	_, method := m.CSeq()
	c := l.clients[clientKey(via.Branch(), method)]
	m.Pop(sipmsg.ViaHeader)
	// Without a further Via it can only answer a request that began here,
	// a CANCEL (RFC 3261 §16.7 step 3).
	if _, forwardable := m.TopVia(); !forwardable && (c == nil || c.branch != nil) {
		return
	}
	if c != nil {
		// The called phone knows all our branches: from it, past the engines
		// that check what it says, an engine's answer is not taken. Nor is a
		// phone's from another host; its port may be another one.
		if c.to.Group == from.Group && (from.Group != 0 || from.Flow.Remote.Addr().Unmap() == c.to.Flow.Remote.Addr().Unmap()) {
			c.receive(m)
		}
		return
	}
	success := method == "INVITE" && m.Status()/100 == 2
	if !success && l.cfg.Recovery >= 0 && l.env.Now().Sub(l.started) > l.cfg.Recovery {
		return
	}
	l.user.Stray(l, m, from)
}

// Relay forwards m, an ACK, from within User.Ack to a peer without state
// (RFC 3261 §16.11): it
// counts Max-Forwards, dropping an ACK that has none left, and adds our Via.
// The branch is that of the request's first target, had it been forwarded
// with state, so the ACK of a non-2xx finds its transaction downstream even
// after a takeover.
func (l *Layer) Relay(m *sipmsg.Message, to Peer) {
	defer l.leave(l.enter())
	via, ok := m.TopVia()
	if !ok || !countHop(m) {
		return
	}
	if to.Group == 0 {
		looseNextHop(m)
	}
	m.Push(sipmsg.ViaHeader, l.newVia(to, l.branch(m, via, 0, l.acking, m, to)))
	l.env.Send(to, m.Bytes())
}

// RelayResponse sends m, whose top Via is the receiver's, without state.
func (l *Layer) RelayResponse(m *sipmsg.Message, to Peer) {
	defer l.leave(l.enter())
	l.env.Send(to, m.Bytes())
}

// Unreachable ends the branches that wait for their first response from a
// peer to which nothing can be sent any more, as if it had answered 503
// (RFC 3261 §8.1.3.1, §16.9).
func (l *Layer) Unreachable(to Peer) {
	defer l.leave(l.enter())
	var gone []*client
	for _, c := range l.clients {
		if c.to == to {
			gone = append(gone, c)
		}
	}
	for _, c := range gone {
		if c.state == trying {
			c.fail(503)
		}
	}
}

// countHop counts Max-Forwards down, or adds it (RFC 3261 §16.6 step 3); false
// if none is left.
func countHop(m *sipmsg.Message) bool {
	n, present := m.MaxForwards()
	switch {
	case !present:
		m.Set(sipmsg.MaxForwards, "70")
	case n <= 0:
		return false
	default:
		m.Set(sipmsg.MaxForwards, strconv.Itoa(n-1))
	}
	return true
}

func (l *Layer) newVia(to Peer, branch string) string {
	transport := "UDP"
	if to.Group == 0 && to.Flow.Transport != 0 {
		transport = to.Flow.Transport.String()
	}
	return "SIP/2.0/" + transport + " " + l.cfg.SentBy(to) + ";branch=" + branch
}
