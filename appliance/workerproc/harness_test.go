package workerproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/appliance/config"
	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/digest"
)

const clusterID = "c1"

var service = netip.MustParseAddr("192.0.2.10")

// world is everything around a worker process: the controllers with the
// cluster state, and a front on each node n1, n2, n3. It runs in a synctest
// bubble, over pipes.
type world struct {
	t   *testing.T
	dir string // for the data of the process

	mu       sync.Mutex
	st       *state.State
	fronts   map[string]*fakeFront // by node
	requests []state.Command       // that were proposed, repetitions included
}

// fakeFront is a front process. Its fields are guarded by world.mu.
type fakeFront struct {
	w    *world
	node string

	down     bool   // refuses links
	hang     bool   // links are neither refused nor accepted
	breakAt  int    // ends a link at the notification of this number; 0: never
	breakMid bool   // ends a link in the middle of a snapshot
	cut      bool   // knows no leader, and applies nothing
	answer   string // "": as the state says; else an error; "never": none

	conn  *link.Conn // of the process, the last one
	links int        // that there were
	said  []said     // on the present link
	wire  []*link.SIP
	asked int // proposals and reservations
	feed  uint64
	fed   uint64 // index up to which
}

type said struct {
	method  string
	payload []byte
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, st: state.New(), fronts: map[string]*fakeFront{}}
	for _, n := range []string{"n1", "n2", "n3"} {
		w.fronts[n] = &fakeFront{w: w, node: n}
	}
	w.apply(state.Command{Init: &state.Init{ClusterID: clusterID, Name: "test", Secret: bytes.Repeat([]byte{7}, 32)}})
	return w
}

// apply changes the cluster state and tells it on.
func (w *world) apply(cmds ...state.Command) []state.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	next, res := w.st.Apply(w.st.Index()+1, cmds)
	var encoded [][]byte
	for _, c := range cmds {
		b, err := c.Encode()
		if err != nil {
			w.t.Error(err)
			return res
		}
		encoded = append(encoded, b)
	}
	data, err := state.JoinBatch(encoded)
	if err != nil {
		w.t.Error(err)
	}
	w.st = next
	for _, f := range w.fronts {
		if f.feed == 0 || f.cut {
			continue
		}
		f.notify(workerlink.StateUpdate, workerlink.UpdateMsg{Feed: f.feed, Update: state.Update{Index: next.Index(), Prev: f.fed, Data: data}})
		f.fed = next.Index()
	}
	return res
}

func (w *world) state() *state.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.st
}

// at changes a front.
func (w *world) at(node string, change func(*fakeFront)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w.fronts[node])
}

// report lets every front say what it says each second.
func (w *world) report() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.fronts {
		f.notify(workerlink.Loads, workerlink.LoadsMsg{Leader: !f.cut})
	}
}

// dial is the process's way to a front.
func (w *world) dial(ctx context.Context, node string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.fronts[node]
	if f.hang {
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
		return nil, ctx.Err()
	}
	if f.down {
		return nil, errors.New("connection refused")
	}
	near, far := net.Pipe()
	c := link.New(far, f, link.Options{})
	f.conn, f.said, f.feed = c, nil, 0
	f.links++
	go c.Run()
	return near, nil
}

// notify says something to the process. mu is held.
func (f *fakeFront) notify(method string, msg any) {
	if f.conn != nil {
		_ = f.conn.Notify(method, workerlink.Encode(msg))
	}
}

func (f *fakeFront) SIP(_ *link.Conn, s *link.SIP) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	kept := *s
	f.wire = append(f.wire, &kept)
}

func (f *fakeFront) Notify(c *link.Conn, method string, payload []byte) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if c != f.conn {
		return
	}
	f.said = append(f.said, said{method, payload})
	if f.breakAt > 0 && len(f.said) == f.breakAt {
		f.breakAt = 0
		c.Close()
		return
	}
	if method != workerlink.Follow {
		return
	}
	m := decoded[workerlink.FollowMsg](f.w.t, payload)
	f.feed, f.fed = m.Feed, f.w.st.Index()
	if m.Feed == 0 || f.cut {
		return
	}
	for u, err := range state.SnapshotUpdates(f.w.st) {
		if err != nil {
			f.w.t.Error(err)
		}
		if f.breakMid {
			f.breakMid = false
			u.More, u.Data = true, u.Data[:4+be32(u.Data)] // its first record
			f.notify(workerlink.StateUpdate, workerlink.UpdateMsg{Feed: m.Feed, Update: u})
			time.AfterFunc(time.Millisecond, c.Close)
			return
		}
		f.notify(workerlink.StateUpdate, workerlink.UpdateMsg{Feed: m.Feed, Update: u})
	}
}

func be32(b []byte) int { return int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3]) }

func (f *fakeFront) Call(c *link.Conn, method string, payload []byte) ([]byte, error) {
	return f.CallContext(context.Background(), c, method, payload)
}

func (f *fakeFront) CallContext(ctx context.Context, _ *link.Conn, method string, payload []byte) ([]byte, error) {
	w := f.w
	w.mu.Lock()
	f.asked++
	answer := f.answer
	if f.cut {
		answer = "never"
	}
	w.mu.Unlock()
	switch {
	case answer == "never":
		<-ctx.Done()
		return nil, ctx.Err()
	case answer != "":
		return nil, errors.New(answer)
	case method == workerlink.Propose:
		cmd, err := state.DecodeCommand(payload)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		w.requests = append(w.requests, cmd)
		w.mu.Unlock()
		return workerlink.Encode(w.apply(cmd)[0]), nil
	case method == workerlink.Reserve:
		m := decoded[workerlink.ReserveMsg](w.t, payload)
		g, ok := w.state().MinUser(state.Kind(m.Kind), nil)
		if !ok {
			return workerlink.Encode(workerlink.ReserveReply{Err: &state.Error{Code: state.NoWorker}}), nil
		}
		return workerlink.Encode(workerlink.ReserveReply{Group: g}), nil
	}
	return nil, fmt.Errorf("unknown method %q", method)
}

func decoded[M any](t *testing.T, payload []byte) M {
	var m M
	if err := workerlink.Decode(payload, &m); err != nil {
		t.Error(err)
	}
	return m
}

// heard returns what a front was told on its present link by a method.
func heard[M any](w *world, node, method string) []M {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []M
	for _, s := range w.fronts[node].said {
		if s.method == method {
			out = append(out, decoded[M](w.t, s.payload))
		}
	}
	return out
}

// groups returns the groups that a front heard of last.
func (w *world) groups(node string) []uint32 {
	all := heard[workerlink.GroupsMsg](w, node, workerlink.Groups)
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1].Groups
}

// feeding returns the fronts that have been asked to feed the state.
func (w *world) feeding() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for n, f := range w.fronts {
		if f.feed != 0 {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// configuration is that of node n1, with three controllers and a worker of
// each kind.
func configuration(dir string) *config.Config {
	c := &config.Config{
		Node:    config.Node{Name: "n1", DataDir: dir, RunDir: dir},
		Cluster: config.Cluster{Address: netip.MustParseAddrPort("192.0.2.10:7400")},
		SIP: config.SIP{
			Domain: "ims.test", Address: service, PCSCF: 5060, ICSCF: 4060, SCSCF: 6060, T1: 500 * time.Millisecond,
			MinExpires: time.Minute, MaxExpires: 24 * time.Hour, DefaultExpires: time.Hour,
		},
		Workers: []config.Worker{{ID: "p1", Kind: config.PCSCF}, {ID: "i1", Kind: config.ICSCF}, {ID: "s1", Kind: config.SCSCF}},
	}
	for i, n := range []string{"n2", "n1", "n3"} { // the own node is not the first
		c.Cluster.Controllers = append(c.Cluster.Controllers, config.Controller{
			Name: n, Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), 7400),
		})
	}
	return c
}

// process is a worker process that runs.
type process struct {
	*Process
	log   *bytes.Buffer
	stop  func()
	ended chan struct{} // closed at the end
	err   error         // what serve returned then

}

// begin starts the worker process of a configuration; the test's end stops it.
func (w *world) begin(cfg *config.Config) *process {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := new(bytes.Buffer)
	p, err := open(ctx, cfg, Options{Version: "v1", ClusterID: clusterID, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		w.t.Fatal(err)
	}
	p.links.dial = w.dial
	done := make(chan struct{})
	run := &process{Process: p, log: log, ended: done}
	go func() { defer close(done); run.err = p.serve(ctx, nil) }()
	run.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	w.t.Cleanup(run.stop)
	return run
}

// in runs a story in a bubble.
func in(t *testing.T, story func(t *testing.T, w *world)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.dir = dir
		story(t, w)
	})
}

// sleep lets time pass, and everything that it brings about happen.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// served waits until the process has its three engines, and returns the group
// of each kind.
func (w *world) served(p *process) map[state.Kind]uint32 {
	w.t.Helper()
	sleep(2 * time.Second)
	out := map[state.Kind]uint32{}
	for id, e := range *p.engines.Load() {
		out[e.group.Kind] = id
	}
	if len(out) != 3 {
		w.t.Fatalf("engines of the kinds %v run; log:\n%s", out, p.log)
	}
	return out
}

func contains(t *testing.T, text fmt.Stringer, part string, times int) {
	t.Helper()
	if n := strings.Count(text.String(), part); n != times {
		t.Errorf("%q is there %d times, want %d, in:\n%s", part, n, times, text)
	}
}

func ha1(a digest.Algorithm, impi, password string) string {
	return digest.HA1(a, impi, "ims.test", password)
}
