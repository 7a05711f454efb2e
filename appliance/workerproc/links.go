package workerproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/transaction"
)

const (
	dialAtLeast = 50 * time.Millisecond // pause after a first failed dial; doubles
	dialAtMost  = time.Second
	dialTimeout = 2 * time.Second
	tellAfter   = 2 * time.Second
	offerWait   = 2 * time.Millisecond // how long a link's reader waits for room in a shard
)

// ALPN is the protocol name of links between nodes.
const ALPN = "bw-link/1"

// SocketName is the link socket of a front process in its run directory.
const SocketName = "link.sock"

// errNoFront means that no front process is reachable from here.
var errNoFront = errors.New("no front process is reachable")

// links holds the connections to the front processes of the cluster, by node.
type links struct {
	p *Process

	mu    sync.Mutex
	up    map[string]*link.Conn
	feed  string // node whose front feeds the state mirror
	order []string
}

// front returns the connection to a node's front, or nil.
func (l *links) front(node string) *link.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up[node]
}

// any returns the own node's front, or another, or nil.
func (l *links) any() *link.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.up[l.p.cfg.Node.Name]; c != nil {
		return c
	}
	for _, n := range l.order {
		if c := l.up[n]; c != nil {
			return c
		}
	}
	return nil
}

// toward returns the front that is nearest to the worker that serves a group.
func (l *links) toward(group uint32) *link.Conn {
	st := l.p.State()
	if g, ok := st.Group(group); ok {
		if w, ok := st.Worker(g.Serving); ok {
			if c := l.front(w.Node); c != nil {
				return c
			}
		}
	}
	return l.any()
}

// all returns every connection.
func (l *links) all() []*link.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*link.Conn, 0, len(l.up))
	for _, c := range l.up {
		out = append(out, c)
	}
	return out
}

func (l *links) broadcast(method string, payload []byte) {
	for _, c := range l.all() {
		_ = c.Notify(method, payload) // a broken link says everything again when it is back
	}
}

// keep holds the link to one node's front until ctx ends.
func (l *links) keep(ctx context.Context, node, addr string) {
	pause := dialAtLeast
	log := l.p.log.With("front", node)
	down, told := time.Now(), false
	for ctx.Err() == nil {
		began := time.Now()
		err := l.session(ctx, node, addr)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > dialAtMost {
			pause, down, told = dialAtLeast, time.Now(), false
		}
		// Processes start in any order: only what lasts is worth a line.
		if !told && time.Since(down) > tellAfter {
			log.Warn("no link to the front", "addr", addr, "err", err)
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

// session dials one link and serves it until it breaks.
func (l *links) session(ctx context.Context, node, addr string) error {
	dctx, cancel := context.WithTimeout(ctx, dialTimeout)
	nc, err := l.dial(dctx, node, addr)
	cancel()
	if err != nil {
		return err
	}
	c := link.New(nc, l.p, link.Options{})
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- c.Run() }()

	hello := workerlink.HelloMsg{Node: l.p.cfg.Node.Name, Version: l.p.version, PID: os.Getpid()}
	if err := c.Notify(workerlink.Hello, workerlink.Encode(hello)); err != nil {
		c.Close()
		<-done
		return fmt.Errorf("greet the front: %w", err)
	}
	l.greet(node, c)
	err = <-done
	l.lost(node, c)
	return err
}

func (l *links) dial(ctx context.Context, node, addr string) (net.Conn, error) {
	if node == l.p.cfg.Node.Name {
		var d net.Dialer
		return d.DialContext(ctx, "unix", addr)
	}
	return l.p.mesh.Dial(ctx, addr, node, ALPN)
}

// greet makes a new link useful: groups and flows are told, and the state is
// asked for where it has no better source.
func (l *links) greet(node string, c *link.Conn) {
	l.p.sendGroups(c)
	l.mu.Lock()
	l.up[node] = c
	old := l.feed
	take := old == "" || (node == l.p.cfg.Node.Name && old != node)
	if take {
		l.feed = node
		if o := l.up[old]; old != "" && o != nil {
			_ = o.Notify(workerlink.Follow, workerlink.Encode(workerlink.FollowMsg{}))
		}
	}
	l.mu.Unlock()
	if take {
		_ = c.Notify(workerlink.Follow, workerlink.Encode(workerlink.FollowMsg{On: true}))
	}
	l.p.sendFlows(node, c)
	l.p.log.Info("link to the front is up", "front", node)
}

// lost forgets a link and finds the state another source.
func (l *links) lost(node string, c *link.Conn) {
	l.p.state.forget(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.up[node] == c {
		delete(l.up, node)
	}
	if l.feed != node {
		return
	}
	l.feed = ""
	for _, n := range l.order {
		if o := l.up[n]; o != nil {
			l.feed = n
			_ = o.Notify(workerlink.Follow, workerlink.Encode(workerlink.FollowMsg{On: true}))
			return
		}
	}
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

// Notify takes the state feed and the loads of the I-CSCFs.
func (p *Process) Notify(c *link.Conn, method string, payload []byte) {
	switch method {
	case workerlink.StateUpdate:
		u, err := state.DecodeUpdate(payload)
		if err == nil {
			err = p.state.apply(c, u)
		}
		if err != nil {
			p.log.Error("follow the cluster state", "index", u.Index, "err", err)
			c.Close() // a fresh link begins with a snapshot
		}
	case workerlink.Loads:
		var m workerlink.LoadsMsg
		if err := workerlink.Decode(payload, &m); err == nil {
			p.tables.report(m.Loads)
		}
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
		return []byte{}, p.state.await(ctx, m.Index)
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
