package frontproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/controller/mesh"
	"bellwether/controller/state"
)

const (
	proposeWithin = 4 * time.Second // an election fits in; the caller's own deadline is shorter
	askWithin     = 2 * time.Second // a worker's answer for the admin API
	restartFollow = 50 * time.Millisecond
)

// workers are the links to worker processes and to the own supervisor. It is
// the link.Handler of all of them.
type workers struct {
	p *Process

	mu    sync.Mutex
	conns map[*link.Conn]*peer
}

// peer is one worker process.
type peer struct {
	node    string // proved by its certificate; the own node on the unix socket
	greeted bool
	front   bool // another node's front, not a worker process
	load    workerlink.LoadMsg
	unfeed  context.CancelFunc // stops the state feed
	groups  []uint32
}

// accept serves links until ctx ends. An empty node means that the peer's
// certificate tells it.
func (w *workers) accept(ctx context.Context, l net.Listener, node string) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		nc, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				w.p.log.Error("accept a worker's link", "err", err)
			}
			return
		}
		name := node
		if name == "" {
			name = mesh.PeerNode(nc)
		}
		wg.Go(func() { w.serve(ctx, nc, name) })
	}
}

func (w *workers) serve(ctx context.Context, nc net.Conn, node string) {
	c := link.New(nc, w, link.Options{})
	w.mu.Lock()
	w.conns[c] = &peer{node: node}
	w.mu.Unlock()
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	err := c.Run()
	w.p.front.Detach(c)
	w.mu.Lock()
	pr := w.conns[c]
	delete(w.conns, c)
	if pr.unfeed != nil {
		pr.unfeed()
	}
	w.mu.Unlock()
	if ctx.Err() == nil && len(pr.groups) > 0 {
		w.p.log.Warn("link to a worker process ended", "node", node, "err", err)
	}
}

// SIP takes a message of a worker, for the wire or for another worker.
func (w *workers) SIP(c *link.Conn, f *link.SIP) { w.p.front.FromWorker(f) }

// Notify takes what a worker process says on its own.
func (w *workers) Notify(c *link.Conn, method string, payload []byte) {
	if err := w.notify(c, method, payload); err != nil {
		w.p.log.Warn("a worker process sent nonsense", "method", method, "err", err)
		c.Close()
	}
}

func (w *workers) notify(c *link.Conn, method string, payload []byte) error {
	switch method {
	case workerlink.Hello:
		var m workerlink.HelloMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		pr := w.conns[c]
		if m.Node != pr.node {
			return fmt.Errorf("node %q calls itself %q", pr.node, m.Node)
		}
		pr.greeted, pr.front = true, m.Front
	case workerlink.Groups:
		var m workerlink.GroupsMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return err
		}
		w.mu.Lock()
		w.conns[c].groups = m.Groups
		w.mu.Unlock()
		w.p.front.Attach(c, m.Groups)
	case workerlink.Bind:
		var m workerlink.BindMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return err
		}
		if m.Until == 0 {
			w.p.front.Unbind(m.Flow)
		} else {
			w.p.front.Bind(m.Flow, m.Group, time.UnixMilli(m.Until))
		}
	case workerlink.Load:
		var m workerlink.LoadMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return err
		}
		w.mu.Lock()
		w.conns[c].load = m
		node := w.conns[c].node
		w.mu.Unlock()
		if m.StoreError != "" {
			w.p.alarms.raise(node, "store_failed:"+node, time.Now(), "the journal of node "+node+" failed: "+m.StoreError,
				"registrations through its workers are refused; mend the disk or free space, then restart the node")
		}
		for _, g := range m.Groups {
			w.p.front.Load(g.Group, g.Load)
		}
	case workerlink.Follow:
		var m workerlink.FollowMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return err
		}
		w.feed(c, m.On)
	}
	return nil
}

// feed starts or stops sending the cluster state over a link.
func (w *workers) feed(c *link.Conn, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pr := w.conns[c]
	if pr.unfeed != nil {
		pr.unfeed()
		pr.unfeed = nil
	}
	if !on {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	pr.unfeed = cancel
	go func() {
		for ctx.Err() == nil {
			_ = w.p.ctl.Follow(ctx, func(u state.Update) error {
				return c.Notify(workerlink.StateUpdate, workerlink.Encode(u))
			})
			// The link was full, or the follower too slow: begin again with
			// a snapshot, unless the link is gone.
			select {
			case <-ctx.Done():
			case <-c.Done():
				return
			case <-time.After(restartFollow):
			}
		}
	}()
}

// Call serves a worker process's proposals and reservations.
func (w *workers) Call(c *link.Conn, method string, payload []byte) ([]byte, error) {
	return w.CallContext(context.Background(), c, method, payload)
}

// CallContext is Call with the caller's deadline.
func (w *workers) CallContext(ctx context.Context, c *link.Conn, method string, payload []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeWithin)
	defer cancel()
	switch method {
	case workerlink.Propose:
		cmd, err := state.DecodeCommand(payload)
		if err != nil {
			return nil, err
		}
		res, err := w.p.ctl.Propose(ctx, cmd)
		if err != nil && res.Err == nil { // a refusal is a result
			return nil, err
		}
		return workerlink.Encode(res), nil
	case workerlink.Reserve:
		var m workerlink.ReserveMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return nil, err
		}
		g, err := w.p.ctl.Reserve(ctx, state.Kind(m.Kind), m.User)
		if err != nil {
			return nil, err
		}
		return workerlink.Encode(workerlink.ReserveReply{Group: g}), nil
	case workerlink.ChildExit:
		var m workerlink.ChildExitMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return nil, err
		}
		w.p.childExit(m)
		return nil, nil
	}
	return nil, fmt.Errorf("unknown method %q", method)
}

// spread tells every worker process the load of the I-CSCFs each second.
func (w *workers) spread(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		loads := map[uint32]float64{}
		st := w.p.ctl.State()
		for g, l := range w.loads() {
			if gr, ok := st.Group(g); ok && gr.Kind == state.ICSCF {
				loads[g] = l.Load
			}
		}
		b := workerlink.Encode(workerlink.LoadsMsg{Loads: loads})
		for _, c := range w.all() {
			_ = c.Notify(workerlink.Loads, b) // told again in a second
		}
	}
}

// loads returns the last report of every connected group.
func (w *workers) loads() map[uint32]workerlink.GroupLoad {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[uint32]workerlink.GroupLoad{}
	for _, pr := range w.conns {
		for _, g := range pr.groups {
			out[g] = workerlink.GroupLoad{Group: g}
		}
	}
	for _, pr := range w.conns {
		for _, l := range pr.load.Groups {
			if _, ok := out[l.Group]; ok {
				out[l.Group] = l
			}
		}
	}
	return out
}

// reports returns the last report of each worker process, by node.
func (w *workers) reports() map[string]workerlink.LoadMsg {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]workerlink.LoadMsg{}
	for _, pr := range w.conns {
		if pr.greeted && !pr.front {
			out[pr.node] = pr.load
		}
	}
	return out
}

// nodes returns the nodes of which a process is connected.
func (w *workers) nodes() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]bool{}
	for _, pr := range w.conns {
		out[pr.node] = true
	}
	return out
}

// all returns the links of worker processes.
func (w *workers) all() []*link.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*link.Conn, 0, len(w.conns))
	for c, pr := range w.conns {
		if pr.greeted && !pr.front {
			out = append(out, c)
		}
	}
	return out
}

// askAll calls a method on every worker process at once and hands each answer
// to got, one at a time. It returns how many did not answer in time.
func (w *workers) askAll(ctx context.Context, method string, payload []byte, got func([]byte) error) (missing int) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	conns := w.all()
	answers := make(chan []byte, len(conns))
	for _, c := range conns {
		go func() {
			b, err := c.Call(ctx, method, payload)
			if err != nil {
				b = nil
			}
			answers <- b
		}()
	}
	for range conns {
		b := <-answers
		if b == nil || got(b) != nil {
			missing++
		}
	}
	return missing
}
