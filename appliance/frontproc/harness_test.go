package frontproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bellwether/appliance/config"
	"bellwether/appliance/identity"
	"bellwether/appliance/localcluster/loopback"
	"bellwether/appliance/pki"
	"bellwether/appliance/workerlink"
	"bellwether/appliance/workerproc"
	"bellwether/controller/api"
	"bellwether/controller/link"
	"bellwether/controller/mesh"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const within = 10 * time.Second // for anything that must happen

// node is a front process that runs, the only controller of its cluster.
type node struct {
	t     *testing.T
	cfg   *config.Config
	ca    *pki.CA
	host  func(int) netip.Addr
	admin *api.Client
	log   *text
	stop  func() error // ends it, and returns what Run did
}

// text is a log that may be read while it is written.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// prepare makes what a node needs, and starts nothing. The test runs beside
// others: most of them wait for something.
func prepare(t *testing.T) *node {
	t.Helper()
	t.Parallel()
	dir, err := os.MkdirTemp("", "bw-front-") // short: it holds unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, host: loopback.Network(), log: new(text)}
	a := n.host(1)
	n.cfg = &config.Config{
		Node: config.Node{Name: "n1", DataDir: filepath.Join(dir, "data"), RunDir: dir},
		Cluster: config.Cluster{
			Address: netip.AddrPortFrom(a, 7400), Controllers: []config.Controller{{Name: "n1", Address: netip.AddrPortFrom(a, 7400)}},
		},
		SIP:     config.SIP{Domain: "ims.test", Address: a, PCSCF: 5060, ICSCF: 4060, SCSCF: 6060, T1: 500 * time.Millisecond},
		Flood:   config.Flood{PerSource: 2000, Failures: 20, Ban: time.Minute},
		Metrics: config.Metrics{Listen: netip.AddrPortFrom(a, 9090)},
	}
	if n.ca, err = pki.CreateCA("c1", "test"); err != nil {
		t.Fatal(err)
	}
	pkiDir := identity.Dir(n.cfg.Node.DataDir)
	if err := n.ca.Save(pkiDir); err != nil {
		t.Fatal(err)
	}
	cert, key, err := pki.IssueNode(n.ca, "n1", []netip.Addr{a})
	if err == nil {
		err = pki.SaveNode(pkiDir, cert, key)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.admin = api.New(n.cfg.AdminSocket())
	t.Cleanup(n.admin.Close)
	return n
}

// run runs the front process until ctx ends.
func (n *node) run(ctx context.Context, o Options) error {
	id, err := identity.Load(n.cfg.Node.DataDir, n.cfg.Node.Name)
	if err != nil {
		return err
	}
	o.Version, o.Log = "v1", slog.New(slog.NewTextHandler(n.log, nil))
	return Run(ctx, n.cfg, id, o)
}

// start runs a front process, and returns when it leads its cluster and knows
// itself. The test's end stops it.
func start(t *testing.T, o Options) *node {
	t.Helper()
	n := prepare(t)
	n.begin(o)
	return n
}

func (n *node) begin(o Options) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	o.Ready = func() { close(ready) }
	go func() { done <- n.run(ctx, o) }()
	n.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(within):
			return errors.New("it does not stop")
		}
	})
	n.t.Cleanup(func() {
		if err := n.stop(); err != nil {
			n.t.Error(err)
		}
		if n.t.Failed() {
			n.t.Logf("log:\n%s", n.log)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		n.t.Fatalf("it did not start: %v", err)
	case <-time.After(within):
		n.t.Fatal("it does not become ready")
	}
	n.status("it leads and is known", func(st api.Status) bool {
		return st.Leader == "n1" && len(st.Nodes) == 1 && st.Nodes[0].Version != ""
	})
}

// status waits until the status is as wanted, and returns it.
func (n *node) status(what string, ok func(api.Status) bool) api.Status {
	n.t.Helper()
	var st api.Status
	eventually(n.t, what, func() bool {
		var err error
		st, err = n.admin.Status(n.t.Context())
		return err == nil && ok(st)
	}, func() any { return fmt.Sprintf("%+v", st) })
	return st
}

func eventually(t *testing.T, what string, ok func() bool, is func() any) {
	t.Helper()
	end := time.After(within)
	for !ok() {
		select {
		case <-end:
			t.Fatalf("not true: %s; it is %v", what, is())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// remote returns the mesh of another node.
func (n *node) remote(name string, host int) *mesh.Mesh {
	n.t.Helper()
	b, err := pki.IssueBundle(n.ca, name, []netip.Addr{n.host(host)})
	if err != nil {
		n.t.Fatal(err)
	}
	dir := n.t.TempDir()
	if err := b.WriteDir(identity.Dir(dir)); err != nil {
		n.t.Fatal(err)
	}
	id, err := identity.Load(dir, name)
	if err != nil {
		n.t.Fatal(err)
	}
	m, err := mesh.Dialer(id.Mesh(netip.AddrPortFrom(n.host(host), 7400).String(), slog.New(slog.DiscardHandler)))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { m.Close() })
	return m
}

// worker is a worker process of a test: the far end of a link.
type worker struct {
	t *testing.T
	c *link.Conn

	mu      sync.Mutex
	mirror  state.Mirror
	feed    uint64 // the newest that was heard of
	updates int    // that came
	broken  error  // what an update could not be applied for
	loads   []workerlink.LoadsMsg
	sip     func(*link.SIP)
	gone    chan sipmsg.Flow                                                         // capacity 16
	answer  func(ctx context.Context, method string, payload []byte) ([]byte, error) // nil: nothing is known
}

func newWorker(t *testing.T, nc net.Conn) *worker {
	w := &worker{t: t, gone: make(chan sipmsg.Flow, 16)}
	w.c = link.New(nc, w, link.Options{})
	done := make(chan struct{})
	go func() { defer close(done); w.c.Run() }()
	t.Cleanup(func() {
		w.c.Close()
		<-done
	})
	return w
}

// local links a worker process of the own node, which has said nothing.
func (n *node) local() *worker {
	n.t.Helper()
	nc, err := net.Dial("unix", filepath.Join(n.cfg.Node.RunDir, workerproc.SocketName))
	if err != nil {
		n.t.Fatal(err)
	}
	return newWorker(n.t, nc)
}

// over links a process of another node.
func (n *node) over(m *mesh.Mesh) *worker {
	n.t.Helper()
	nc, err := m.Dial(n.t.Context(), n.cfg.Cluster.Address.String(), "n1", workerproc.ALPN)
	if err != nil {
		n.t.Fatal(err)
	}
	return newWorker(n.t, nc)
}

func (w *worker) tell(method string, msg any) {
	w.t.Helper()
	if err := w.c.Notify(method, workerlink.Encode(msg)); err != nil {
		w.t.Error(err)
	}
}

func (w *worker) hello(node string) {
	w.t.Helper()
	w.tell(workerlink.Hello, workerlink.HelloMsg{Node: node, Version: "v1", PID: 1})
}

// propose commits a command as a worker process does.
func (w *worker) propose(c state.Command) state.Result {
	w.t.Helper()
	b, err := c.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	var r state.Result
	w.call(workerlink.Propose, b, &r)
	return r
}

func (w *worker) call(method string, payload []byte, reply any) {
	w.t.Helper()
	out, err := w.c.Call(w.t.Context(), method, payload)
	if err == nil && reply != nil {
		err = workerlink.Decode(out, reply)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// ends waits until the front has ended the link.
func (w *worker) ends(why string) {
	w.t.Helper()
	select {
	case <-w.c.Done():
	case <-time.After(within):
		w.t.Errorf("the link goes on: %s", why)
	}
}

func (w *worker) SIP(_ *link.Conn, s *link.SIP) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sip != nil {
		w.sip(s)
	}
}

func (w *worker) Notify(_ *link.Conn, method string, payload []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch method {
	case workerlink.StateUpdate:
		var m workerlink.UpdateMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			w.t.Error(err)
		}
		if m.Feed < w.feed {
			return // of a feed that was left: it comes late
		}
		if m.Feed > w.feed {
			w.feed, w.mirror = m.Feed, state.Mirror{}
		}
		w.updates++
		w.broken = errors.Join(w.broken, w.mirror.Apply(m.Update))
	case workerlink.Loads:
		var m workerlink.LoadsMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			w.t.Error(err)
		}
		w.loads = append(w.loads, m)
	case workerlink.FlowGone:
		var m workerlink.FlowGoneMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			w.t.Error(err)
		}
		w.gone <- m.Flow
	}
}

func (w *worker) Call(*link.Conn, string, []byte) ([]byte, error) { panic("not used") }

func (w *worker) CallContext(ctx context.Context, _ *link.Conn, method string, payload []byte) ([]byte, error) {
	w.mu.Lock()
	answer := w.answer
	w.mu.Unlock()
	switch {
	case answer != nil:
		return answer(ctx, method, payload)
	case method == workerlink.User:
		return workerlink.Encode(workerlink.UserReply{}), nil
	case method == workerlink.Calls:
		return workerlink.Encode(workerlink.CallsReply{}), nil
	}
	return nil, nil
}

func (w *worker) answers(f func(ctx context.Context, method string, payload []byte) ([]byte, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = f
}

// never answers nothing.
func never(ctx context.Context, _ string, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// state is the worker's copy.
func (w *worker) state() *state.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mirror.State()
}

// serving is a worker process that serves p1, i1 and s1.
func (n *node) serving() (w *worker, groups map[state.Kind]uint32) {
	n.t.Helper()
	w = n.local()
	w.hello("n1")
	groups = map[state.Kind]uint32{}
	var all []uint32
	for _, k := range state.Kinds {
		r := w.propose(state.Command{PutWorker: &state.Worker{ID: string(k[0]) + "1", Kind: k, Node: "n1"}})
		if r.Err != nil {
			n.t.Fatal(r.Err)
		}
		groups[k] = r.Group
		all = append(all, r.Group)
	}
	w.tell(workerlink.Groups, workerlink.GroupsMsg{Groups: all})
	n.status("three workers are connected", func(st api.Status) bool { return connected(st) == 3 })
	return w, groups
}

func connected(st api.Status) (n int) {
	for _, w := range st.Workers {
		if w.Connected {
			n++
		}
	}
	return n
}
