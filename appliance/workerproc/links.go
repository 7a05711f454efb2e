package workerproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"bellwether/appliance/config"
	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/controller/mesh"
	"bellwether/cscf/transaction"
)

const (
	dialAtLeast = 50 * time.Millisecond // pause after a first failed dial; doubles
	dialAtMost  = time.Second
	dialTimeout = 2 * time.Second
	tellAfter   = 2 * time.Second
	offerWait   = 2 * time.Millisecond // how long a link's reader waits for room in a shard

	// leaderlessAfter is how many reports in a row, one a second, make a front
	// that knows no leader the last choice. An election is over before.
	leaderlessAfter = 2
)

// ALPN is the protocol name of links between nodes.
const ALPN = "bw-link/1"

// SocketName is the link socket of a front process in its run directory.
const SocketName = "link.sock"

// errNoFront means that no front process is reachable from here.
var errNoFront = errors.New("no front process is reachable")

// links holds the connections to the front processes of the cluster.
type links struct {
	p     *Process
	dial  func(ctx context.Context, node string) (net.Conn, error)
	order []string // nodes with a front, the own one first

	mu   sync.Mutex
	up   map[string]*front // by node
	feed *front            // feeds the copy of the state; nil: nobody does
}

// front is a front process that is linked.
type front struct {
	*link.Conn
	node       string
	leaderless int // reports in a row that said it knows no leader
}

// front returns the front of a node, or nil.
func (l *links) front(node string) *front {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up[node]
}

// any returns the front to be asked first, or nil: see fronts.
func (l *links) any() *front {
	if all := l.fronts(); len(all) > 0 {
		return all[0]
	}
	return nil
}

// fronts lists the fronts that are linked, the one to be asked first at the head.
func (l *links) fronts() []*front {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ranked()
}

// ranked is fronts with mu held: those that know a leader come first, among
// them that of the own node. A front that is cut off from the others can
// neither commit nor keep its copy of the state up to date.
func (l *links) ranked() []*front {
	all := make([]*front, 0, len(l.order))
	for _, n := range l.order {
		if f := l.up[n]; f != nil {
			all = append(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b *front) int { return a.rank() - b.rank() })
	return all
}

func (f *front) rank() int {
	if f.leaderless >= leaderlessAfter {
		return 1
	}
	return 0
}

// refeed makes the best front feed the copy of the state. mu is held. Without
// any leader it stays with the front that does.
func (l *links) refeed() {
	var best *front
	if all := l.ranked(); len(all) > 0 {
		best = all[0]
	}
	current := l.feed
	if current != nil && l.up[current.node] != current {
		current = nil // its link is gone
	}
	if current != nil && best.rank() == current.rank() && best.rank() > 0 {
		return
	}
	if best == current {
		l.feed = current
		return
	}
	if current != nil {
		current.tell(workerlink.Follow, workerlink.FollowMsg{})
	}
	if l.feed = best; best != nil {
		best.tell(workerlink.Follow, workerlink.FollowMsg{Feed: l.p.state.begin()})
	}
}

// tell says what must not get lost: a link that cannot take it ends, and the
// next one says everything again.
func (f *front) tell(method string, msg any) {
	if f.Notify(method, workerlink.Encode(msg)) != nil {
		f.Close()
	}
}

// heard takes what a front says about itself each second.
func (l *links) heard(c *link.Conn, leader bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.up {
		if f.Conn != c {
			continue
		}
		if f.leaderless++; leader {
			f.leaderless = 0
		}
	}
	l.refeed()
}

// toward returns the front that is nearest to the worker that serves a group.
func (l *links) toward(group uint32) *front {
	st := l.p.State()
	if g, ok := st.Group(group); ok {
		if w, ok := st.Worker(g.Serving); ok {
			if f := l.front(w.Node); f != nil {
				return f
			}
		}
	}
	return l.any()
}

// keep holds the link to one node's front until ctx ends.
func (l *links) keep(ctx context.Context, node string) {
	pause := dialAtLeast
	log := l.p.log.With("front", node)
	down, told := time.Now(), false
	for ctx.Err() == nil {
		began := time.Now()
		linked, err := l.session(ctx, node)
		if ctx.Err() != nil {
			return
		}
		if linked {
			down, told = time.Now(), false
			if time.Since(began) > dialAtMost {
				pause = dialAtLeast
			}
		}
		// Processes start in any order: only what lasts is worth a line.
		if !told && time.Since(down) > tellAfter {
			log.Warn("no link to the front", "err", err)
			told = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, dialAtMost)
	}
}

// session dials one link and serves it until it breaks. It tells whether there
// was a link.
func (l *links) session(ctx context.Context, node string) (linked bool, err error) {
	dctx, cancel := context.WithTimeout(ctx, dialTimeout)
	nc, err := l.dial(dctx, node)
	cancel()
	if err != nil {
		return false, err
	}
	f := &front{Conn: link.New(nc, l.p, link.Options{}), node: node}
	stop := context.AfterFunc(ctx, f.Close)
	defer stop()
	f.tell(workerlink.Hello, workerlink.HelloMsg{Node: l.p.cfg.Node.Name, Version: l.p.version, PID: os.Getpid()})
	done := make(chan error, 1)
	go func() { done <- f.Run() }()
	l.greet(f)
	err = <-done
	l.lost(f)
	return true, err
}

// dialer dials the own front by its socket and the others over the mesh.
func dialer(cfg *config.Config, m *mesh.Mesh) func(ctx context.Context, node string) (net.Conn, error) {
	return func(ctx context.Context, node string) (net.Conn, error) {
		if node == cfg.Node.Name {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(cfg.Node.RunDir, SocketName))
		}
		i := slices.IndexFunc(cfg.Cluster.Controllers, func(c config.Controller) bool { return c.Name == node })
		return m.Dial(ctx, cfg.Cluster.Controllers[i].Address.String(), node, ALPN)
	}
}

// greet makes a new link useful. From the moment that it is in the list it
// hears of changes, so what it is told after that can miss none.
func (l *links) greet(f *front) {
	l.mu.Lock()
	l.up[f.node] = f
	l.refeed()
	l.mu.Unlock()
	l.p.tellGroups(f)
	for _, e := range *l.p.engines.Load() {
		e.tellFlows(f)
	}
	l.p.log.Info("link to the front is up", "front", f.node)
}

// lost forgets a link and finds the state another source.
func (l *links) lost(f *front) {
	l.p.tables.forget(f.Conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.up, f.node)
	l.refeed()
}

// SIP takes a message from a front: from the wire, or of another worker.
func (p *Process) SIP(c *link.Conn, f *link.SIP) {
	e := p.engine(f.To)
	if e == nil {
		p.count("not_ours")
		return
	}
	from := transaction.Peer{Flow: f.Flow}
	if f.From != 0 {
		from = transaction.Peer{Group: f.From}
	}
	p.deliver(e, f.Raw, from, false)
}

// Notify takes the state feed and what a front says each second.
func (p *Process) Notify(c *link.Conn, method string, payload []byte) {
	var err error
	switch method {
	case workerlink.StateUpdate:
		var m workerlink.UpdateMsg
		if err = workerlink.Decode(payload, &m); err == nil {
			err = p.state.apply(m.Feed, m.Update)
		}
	case workerlink.Loads:
		var m workerlink.LoadsMsg
		if err = workerlink.Decode(payload, &m); err == nil {
			p.tables.report(c, m.Loads)
			p.links.heard(c, m.Leader)
		}
	case workerlink.FlowGone:
		var m workerlink.FlowGoneMsg
		if err = workerlink.Decode(payload, &m); err == nil {
			p.gone(m.Flow)
		}
	}
	if err != nil {
		p.log.Error("a front sent nonsense", "method", method, "err", err)
		c.Close() // a fresh link begins with a snapshot
	}
}

// Call answers the front's questions for the admin API.
func (p *Process) Call(c *link.Conn, method string, payload []byte) ([]byte, error) {
	return p.CallContext(p.ctx, c, method, payload)
}

// CallContext is Call with the caller's deadline.
func (p *Process) CallContext(ctx context.Context, _ *link.Conn, method string, payload []byte) ([]byte, error) {
	switch method {
	case workerlink.Await:
		var m workerlink.AwaitMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return nil, err
		}
		return nil, p.state.await(ctx, m.Index)
	case workerlink.User:
		var m workerlink.UserMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return nil, err
		}
		return workerlink.Encode(workerlink.UserReply{Bindings: p.bindings(m)}), nil
	case workerlink.Calls:
		return workerlink.Encode(workerlink.CallsReply{Calls: p.allCalls()}), nil
	}
	return nil, fmt.Errorf("unknown method %q", method)
}
