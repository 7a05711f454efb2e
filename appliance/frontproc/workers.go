package frontproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"bellwether/appliance/pki"
	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/controller/mesh"
	"bellwether/controller/state"
)

const (
	proposeWithin = 4 * time.Second // an election fits in; the caller's own deadline is shorter
	askWithin     = 2 * time.Second // a worker's answer for the admin API
	takeWithin    = 5 * time.Second // a worker's taking a part of a snapshot
	restartFollow = 50 * time.Millisecond
	acceptAgain   = 100 * time.Millisecond
	doubledAfter  = 5 * time.Second
)

// workers are the links to worker processes, to the fronts of other nodes and
// to the own supervisor. It is the link.Handler of all of them.
//
// None of its locks is held while another one is taken, but for those of a
// link's queue.
type workers struct {
	p *Process

	mu    sync.Mutex
	conns map[*link.Conn]*peer
}

// peer is a process at the other end of a link.
type peer struct {
	node   string // proved by its certificate; the own node on the unix socket
	local  bool   // it came by the unix socket
	since  time.Time
	cert   pki.Certificate      // that it was proved by
	hello  *workerlink.HelloMsg // nil before it said hello, as the supervisor never does
	load   workerlink.LoadMsg   // its last report
	groups []uint32

	unfeed context.CancelFunc // ends the state feed; nil: there is none
	feeds  sync.WaitGroup
}

// worker reports whether it is a worker process.
func (pr *peer) worker() bool { return pr.hello != nil && !pr.hello.Front }

// accept serves links until ctx ends. An empty node means that the peer's
// certificate tells it.
func (w *workers) accept(ctx context.Context, l net.Listener, node string) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		nc, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				nc.Close()
			}
			return
		case errors.Is(err, net.ErrClosed):
			w.p.log.Error("accept links", "err", err)
			return
		case err != nil: // out of file descriptors, most likely
			w.p.log.Warn("accept a link", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptAgain):
			}
			continue
		}
		pr := &peer{node: node, local: node != "", since: time.Now()}
		if !pr.local {
			pr.node, pr.cert = mesh.PeerNode(nc), pki.PeerCertificate(nc)
		}
		wg.Go(func() { w.serve(ctx, nc, pr) })
	}
}

func (w *workers) serve(ctx context.Context, nc net.Conn, pr *peer) {
	c := link.New(nc, w, link.Options{})
	w.mu.Lock()
	w.conns[c] = pr
	w.mu.Unlock()
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	err := c.Run()
	w.p.front.Detach(c)
	w.mu.Lock()
	delete(w.conns, c)
	if pr.unfeed != nil {
		pr.unfeed()
	}
	w.mu.Unlock()
	pr.feeds.Wait()
	if ctx.Err() == nil && pr.worker() {
		w.p.log.Warn("link to a worker process ended", "node", pr.node, "err", err)
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
	w.mu.Lock()
	pr := w.conns[c]
	worker := pr.worker()
	front := pr.hello != nil && pr.hello.Front
	w.mu.Unlock()
	if method == workerlink.Hello {
		var m workerlink.HelloMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return err
		}
		if m.Node != pr.node {
			return fmt.Errorf("node %q calls itself %q", pr.node, m.Node)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		pr.hello = &m
		return nil
	}
	if front && method == workerlink.ChildExit {
		var m workerlink.ChildExitMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return err
		}
		w.p.childExit(pr.node, m)
		return nil
	}
	if !worker {
		return errors.New("it is no worker process, or did not say hello")
	}
	switch method {
	case workerlink.Groups:
		var m workerlink.GroupsMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return err
		}
		w.mu.Lock()
		pr.groups = m.Groups
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
		// What it does not serve is not its to report.
		m.Groups = slices.DeleteFunc(m.Groups, func(g workerlink.GroupLoad) bool { return !slices.Contains(pr.groups, g.Group) })
		pr.load = m
		w.mu.Unlock()
		for _, g := range m.Groups {
			w.p.front.Load(g.Group, g.Load)
		}
	case workerlink.Follow:
		var m workerlink.FollowMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return err
		}
		w.feed(c, pr, m.Feed)
	}
	return nil
}

// feed sends the cluster state over a link as the feed of a number, in place
// of the feed that there is; 0 ends that.
func (w *workers) feed(c *link.Conn, pr *peer, number uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pr.unfeed != nil {
		pr.unfeed()
		pr.unfeed = nil
	}
	if number == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	pr.unfeed = cancel
	f := feed{conn: c, number: number}
	pr.feeds.Go(func() {
		for ctx.Err() == nil {
			_ = w.p.ctl.Follow(ctx, func(u state.Update) error { return f.send(ctx, u) })
			// The link was full: begin again with a snapshot, unless it is gone.
			select {
			case <-ctx.Done():
			case <-c.Done():
				return
			case <-time.After(restartFollow):
			}
		}
	})
}

// feed is the cluster state on its way over a link.
type feed struct {
	conn   *link.Conn
	number uint64
	half   bool // a snapshot was begun and is not complete
}

// send sends the next step. A snapshot may be larger than what a link may
// queue, so each of its parts waits until the one before was taken. Half a
// snapshot cannot be followed by anything but its other half: where that
// fails, the link ends.
func (f *feed) send(ctx context.Context, u state.Update) error {
	err := f.conn.Notify(workerlink.StateUpdate, workerlink.Encode(workerlink.UpdateMsg{Feed: f.number, Update: u}))
	if err == nil && u.Snapshot {
		f.half = u.More
		taken, cancel := context.WithTimeout(ctx, takeWithin)
		defer cancel()
		_, err = f.conn.Call(taken, workerlink.Await, workerlink.Encode(workerlink.AwaitMsg{}))
	}
	if err != nil && f.half && ctx.Err() == nil {
		f.conn.Close()
	}
	return err
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
		r := workerlink.ReserveReply{}
		var err error
		r.Group, err = w.p.ctl.Reserve(ctx, state.Kind(m.Kind), m.User)
		if err != nil && !errors.As(err, &r.Err) { // a refusal is a result
			return nil, err
		}
		return workerlink.Encode(r), nil
	case workerlink.Bans, workerlink.Unban:
		w.mu.Lock()
		pr := w.conns[c]
		other := pr != nil && pr.hello != nil && pr.hello.Front
		w.mu.Unlock()
		if !other {
			return nil, errors.New("only other fronts ask for bans")
		}
		return w.p.bansAsked(method, payload)
	case workerlink.ChildExit:
		w.mu.Lock()
		pr := w.conns[c]
		w.mu.Unlock()
		if pr == nil || !pr.local {
			return nil, errors.New("only the own supervisor reports processes")
		}
		var m workerlink.ChildExitMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return nil, err
		}
		w.p.childExit(pr.node, m)
		w.p.shown.tell(workerlink.ChildExit, payload)
		return nil, nil
	}
	return nil, fmt.Errorf("unknown method %q", method)
}

// tick tells every worker process the load of the I-CSCFs each second, and
// looks at what is wrong.
func (w *workers) tick(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		m := workerlink.LoadsMsg{Loads: map[uint32]float64{}}
		_, m.Leader = w.p.ctl.Leader()
		st := w.p.ctl.State()
		for g, l := range w.loads() {
			if gr, ok := st.Group(g); ok && gr.Kind == state.ICSCF {
				m.Loads[g] = l.Load
			}
		}
		b := workerlink.Encode(m)
		for _, c := range w.all() {
			_ = c.Notify(workerlink.Loads, b) // told again in a second
		}
		now := time.Now()
		w.p.alarms.hold(w.p.conditions(now), now)
	}
}

// loads returns the last report of every connected group.
func (w *workers) loads() map[uint32]workerlink.GroupLoad {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[uint32]workerlink.GroupLoad{}
	for _, pr := range w.conns {
		for _, g := range pr.groups {
			if _, ok := out[g]; !ok {
				out[g] = workerlink.GroupLoad{Group: g}
			}
		}
		for _, l := range pr.load.Groups {
			if slices.Contains(pr.groups, l.Group) {
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
		if pr.worker() {
			out[pr.node] = pr.load
		}
	}
	return out
}

// stale returns the nodes that are connected with a certificate that ought to
// have been renewed long ago.
func (w *workers) stale(now time.Time) map[string]time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]time.Time{}
	for _, pr := range w.conns {
		if pr.cert.Node != "" && pr.cert.Stale(now) {
			out[pr.node] = pr.cert.NotAfter
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
		if pr.hello != nil {
			out[pr.node] = true
		}
	}
	return out
}

// doubled returns the nodes of which two worker processes are linked for
// longer than the link of one that died can last.
func (w *workers) doubled(now time.Time) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	pids := map[string]int{}
	var out []string
	for _, pr := range w.conns {
		if !pr.worker() || now.Sub(pr.since) < doubledAfter {
			continue
		}
		if pid, ok := pids[pr.node]; ok && pid != pr.hello.PID {
			out = append(out, pr.node)
		}
		pids[pr.node] = pr.hello.PID
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// all returns the links of worker processes.
func (w *workers) all() []*link.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*link.Conn, 0, len(w.conns))
	for c, pr := range w.conns {
		if pr.worker() {
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
	type answer struct {
		payload []byte
		err     error
	}
	conns := w.all()
	answers := make(chan answer, len(conns))
	for _, c := range conns {
		go func() {
			b, err := c.Call(ctx, method, payload)
			answers <- answer{b, err}
		}()
	}
	for range conns {
		if a := <-answers; a.err != nil || got(a.payload) != nil {
			missing++
		}
	}
	return missing
}
