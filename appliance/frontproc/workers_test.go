package frontproc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/api"
	"bellwether/controller/front"
	"bellwether/controller/link"
	"bellwether/controller/state"
)

func TestWhatAWorkerProcessSays(t *testing.T) {
	n := start(t, Options{})
	w, groups := n.serving()
	p := groups[state.PCSCF]
	w.tell(workerlink.Load, workerlink.LoadMsg{
		CPU: 0.5, Dropped: map[string]uint64{"shed": 3},
		Groups: []workerlink.GroupLoad{{Group: p, Load: 4, Messages: 9}, {Group: groups[state.ICSCF], Load: 2}, {Group: 77, Load: 1}},
	})
	st := n.status("the load is known", func(st api.Status) bool { return st.Workers[1].Load == 4 })
	if len(st.Workers) != 3 || len(st.Alarms) != 0 || !st.Quorum {
		t.Errorf("status %+v", st)
	}
	eventually(t, "the load of the I-CSCF is told on", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, m := range w.loads {
			if len(m.Loads) == 1 && m.Loads[groups[state.ICSCF]] == 2 && m.Leader {
				return true
			}
		}
		return false
	}, func() any { return w.loads })

	// Fewer groups, and then none at all.
	w.tell(workerlink.Groups, workerlink.GroupsMsg{Groups: []uint32{p}})
	n.status("one worker is connected", func(st api.Status) bool { return connected(st) == 1 })
	w.c.Close()
	st = n.status("no worker is connected", func(st api.Status) bool { return connected(st) == 0 })
	if len(st.Alarms) != 3 || st.Alarms[0].Code != "worker_down:i1" || st.Alarms[0].Severity != "critical" {
		t.Errorf("alarms %+v", st.Alarms)
	}
}

func TestLoadOfWhatIsNotAttachedDoesNotCount(t *testing.T) {
	n := start(t, Options{})
	w, groups := n.serving()
	other := n.local()
	other.hello("n1")
	other.tell(workerlink.Load, workerlink.LoadMsg{Groups: []workerlink.GroupLoad{{Group: groups[state.SCSCF], Load: 99, Calls: 99}}})
	w.tell(workerlink.Load, workerlink.LoadMsg{Groups: []workerlink.GroupLoad{{Group: groups[state.PCSCF], Load: 1}}})
	st := n.status("the load is known", func(st api.Status) bool { return st.Workers[1].Load == 1 })
	if st.Workers[2].Load != 0 || st.Calls != 0 {
		t.Errorf("a process reported what it does not serve, and it counts: %+v", st.Workers[2])
	}
}

// TestNonsenseEndsTheLink, and harms no other.
func TestNonsenseEndsTheLink(t *testing.T) {
	n := start(t, Options{})
	good, _ := n.serving()
	remote := n.remote("n2", 2)
	for _, tt := range []struct {
		name string
		link func() *worker
		say  func(w *worker)
	}{
		{"groups before hello", n.local, func(w *worker) { w.tell(workerlink.Groups, workerlink.GroupsMsg{Groups: []uint32{1}}) }},
		{"a hello as another node", n.local, func(w *worker) { w.hello("n2") }},
		{"a hello as another node than the certificate's", func() *worker { return n.over(remote) }, func(w *worker) { w.hello("n1") }},
		{"a hello that is none", n.local, func(w *worker) { _ = w.c.Notify(workerlink.Hello, []byte("x")) }},
		{"groups from a front", n.local, func(w *worker) {
			w.tell(workerlink.Hello, workerlink.HelloMsg{Node: "n1", Front: true})
			w.tell(workerlink.Groups, workerlink.GroupsMsg{Groups: []uint32{1}})
		}},
		{"groups that are none", n.local, func(w *worker) { w.hello("n1"); _ = w.c.Notify(workerlink.Groups, []byte{0xff}) }},
		{"a flow that is none", n.local, func(w *worker) { w.hello("n1"); _ = w.c.Notify(workerlink.Bind, []byte{0xff}) }},
		{"a load that is none", n.local, func(w *worker) { w.hello("n1"); _ = w.c.Notify(workerlink.Load, []byte{0xff}) }},
		{"a wish to follow that is none", n.local, func(w *worker) { w.hello("n1"); _ = w.c.Notify(workerlink.Follow, []byte{0xff}) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := tt.link()
			tt.say(w)
			w.ends(tt.name)
		})
	}
	if good.c.Err() != nil {
		t.Errorf("the good link ended: %v", good.c.Err())
	}
	n.status("three workers are connected", func(st api.Status) bool { return connected(st) == 3 })
}

func TestCallsOfAWorkerProcess(t *testing.T) {
	n := start(t, Options{})
	w, groups := n.serving()
	t.Run("a refused command is a result", func(t *testing.T) {
		r := w.propose(state.Command{PutWorker: &state.Worker{ID: "p1", Kind: state.SCSCF, Node: "n1"}})
		if !errors.Is(r.Check(), &state.Error{Code: state.Conflict}) {
			t.Errorf("result %+v", r)
		}
	})
	t.Run("so is an invalid one", func(t *testing.T) {
		r := w.propose(state.Command{PutWorker: &state.Worker{ID: "", Kind: "odd"}})
		if !errors.Is(r.Check(), &state.Error{Code: state.Invalid}) {
			t.Errorf("result %+v", r)
		}
	})
	t.Run("reservations", func(t *testing.T) {
		var r workerlink.ReserveReply
		w.call(workerlink.Reserve, workerlink.Encode(workerlink.ReserveMsg{Kind: "s-cscf", User: "u@ims.test"}), &r)
		if r.Group != groups[state.SCSCF] || r.Err != nil {
			t.Errorf("reserved %+v", r)
		}
	})
	t.Run("a refused reservation is a result", func(t *testing.T) {
		if r := w.propose(state.Command{RemoveWorker: &state.RemoveWorker{ID: "s1"}}); r.Err != nil {
			t.Fatal(r.Err)
		}
		var r workerlink.ReserveReply
		w.call(workerlink.Reserve, workerlink.Encode(workerlink.ReserveMsg{Kind: "s-cscf", User: "v@ims.test"}), &r)
		if r.Err == nil || r.Err.Code != state.NoWorker {
			t.Errorf("reserved %+v", r)
		}
	})
	for _, tt := range []struct{ name, method, says string }{
		{"an unknown method", "odd", "unknown method"},
		{"a proposal that is none", workerlink.Propose, "decode"},
		{"a reservation that is none", workerlink.Reserve, "malformed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := w.c.Call(t.Context(), tt.method, []byte{0xff}); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("answered %v", err)
			}
		})
	}
}

func TestOnlyTheOwnSupervisorReportsProcesses(t *testing.T) {
	n := start(t, Options{})
	exit := workerlink.Encode(workerlink.ChildExitMsg{Child: "worker", Reason: "signal SIGKILL", Restarts: 2, At: time.Now()})
	far := n.over(n.remote("n2", 2))
	if _, err := far.c.Call(t.Context(), workerlink.ChildExit, exit); err == nil {
		t.Error("another node's report is taken as one of this node")
	}
	w := n.local()
	w.call(workerlink.ChildExit, exit, nil)
	st, err := n.admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Alarms) != 1 || st.Alarms[0].Code != "child_crashed:worker" || st.Alarms[0].Node != "n1" || !strings.Contains(st.Alarms[0].Text, "SIGKILL") {
		t.Errorf("alarms %+v", st.Alarms)
	}
}

func TestTheStateIsFed(t *testing.T) {
	n := start(t, Options{})
	w, _ := n.serving()
	set := func(v string) uint64 {
		return w.propose(state.Command{Set: &state.Set{Name: "k", Value: v}}).Index
	}
	reaches := func(index uint64) {
		t.Helper()
		eventually(t, "the copy is up to date", func() bool { return w.state().Index() >= index }, func() any { return w.state() })
	}
	set("before")
	w.tell(workerlink.Follow, workerlink.FollowMsg{Feed: 1})
	reaches(set("one"))
	// Feeds that begin while others run: every update has its feed's number,
	// and no feed has a gap.
	for i := range uint64(20) {
		w.tell(workerlink.Follow, workerlink.FollowMsg{Feed: 2 + i})
		set("more")
	}
	reaches(set("most"))
	w.tell(workerlink.Follow, workerlink.FollowMsg{})
	w.propose(state.Command{Set: &state.Set{Name: "k", Value: "not told"}})
	// Another call has the same way: what was sent before it is here after it.
	last := w.propose(state.Command{Set: &state.Set{Name: "k", Value: "not told either"}})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		t.Error(w.broken)
	}
	if w.feed != 21 {
		t.Errorf("the last update is of feed %d", w.feed)
	}
	if got := w.mirror.State().Index(); got >= last.Index {
		t.Errorf("the copy is at %d after feeding was ended before %d", got, last.Index)
	}
}

// taker is a worker process that takes parts of a snapshot when it is told to.
type taker struct {
	parts chan uint64 // index of each update that came
	take  chan bool   // true: taken
}

func (tk *taker) SIP(*link.Conn, *link.SIP) {}
func (tk *taker) Notify(_ *link.Conn, _ string, payload []byte) {
	var m workerlink.UpdateMsg
	if workerlink.Decode(payload, &m) == nil {
		tk.parts <- m.Update.Index
	}
}
func (tk *taker) Call(*link.Conn, string, []byte) ([]byte, error) {
	if <-tk.take {
		return nil, nil
	}
	return nil, errors.New("not taken")
}

// TestASnapshotLargerThanTheLink waits for each part to be taken, and does not
// go on after half of one.
func TestASnapshotLargerThanTheLink(t *testing.T) {
	begin := func(t *testing.T) (*feed, *taker) {
		near, far := net.Pipe()
		tk := &taker{parts: make(chan uint64, 9), take: make(chan bool)}
		front, w := link.New(near, &taker{}, link.Options{}), link.New(far, tk, link.Options{})
		done := make(chan struct{}, 2)
		for _, c := range []*link.Conn{front, w} {
			go func() { c.Run(); done <- struct{}{} }()
		}
		t.Cleanup(func() {
			front.Close()
			<-done
			<-done
		})
		return &feed{conn: front, number: 1}, tk
	}
	part := func(i uint64) state.Update {
		return state.Update{Index: i, Snapshot: true, More: i < 3, Data: make([]byte, 1<<20)}
	}
	send := func(f *feed, u state.Update) chan error {
		sent := make(chan error, 1)
		go func() { sent <- f.send(context.Background(), u) }()
		return sent
	}
	t.Run("each part waits for the one before", func(t *testing.T) {
		f, tk := begin(t)
		for i := uint64(1); i <= 3; i++ {
			sent := send(f, part(i))
			if got := <-tk.parts; got != i {
				t.Fatalf("part %d came, want %d", got, i)
			}
			select {
			case err := <-sent:
				t.Fatalf("part %d counts as taken: %v", i, err)
			default:
			}
			tk.take <- true
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
		if err := f.send(t.Context(), state.Update{Index: 4}); err != nil { // a batch does not wait
			t.Error(err)
		}
	})
	t.Run("half a snapshot ends the link", func(t *testing.T) {
		f, tk := begin(t)
		sent := send(f, part(1))
		tk.take <- false
		if err := <-sent; err == nil {
			t.Error("a part that was not taken is no error")
		}
		<-f.conn.Done()
	})
	t.Run("a whole one that was not confirmed does not", func(t *testing.T) {
		f, tk := begin(t)
		sent := send(f, part(3))
		tk.take <- false
		if err := <-sent; err == nil {
			t.Error("a part that was not taken is no error")
		}
		sent = send(f, part(3))
		tk.take <- true
		if err := <-sent; err != nil {
			t.Error(err)
		}
	})
	t.Run("nor does a feed that was ended in the middle", func(t *testing.T) {
		f, tk := begin(t)
		ctx, cancel := context.WithCancel(t.Context())
		sent := make(chan error, 1)
		go func() { sent <- f.send(ctx, part(1)) }()
		<-tk.parts
		cancel()
		if err := <-sent; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		tk.take <- true
		if f.conn.Err() != nil || f.send(t.Context(), state.Update{Index: 4}) != nil {
			t.Error("the link is gone")
		}
	})
}

// rarely is a listener whose first Accept fails as it does without file
// descriptors.
type rarely struct {
	net.Listener
	failed bool
}

func (r *rarely) Accept() (net.Conn, error) {
	if !r.failed {
		r.failed = true
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return r.Listener.Accept()
}

// nobody is a cluster without anybody.
type nobody struct{}

func (nobody) State() *state.State { return state.New() }
func (nobody) Reserve(context.Context, state.Kind, string) (state.GroupID, error) {
	return 0, errors.New("nobody")
}

func TestAcceptingGoesOnAfterAnError(t *testing.T) {
	f, err := front.New(front.Config{Node: "n1"}, nobody{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := &Process{log: slog.New(slog.DiscardHandler), front: f}
	w := &workers{p: p, conns: map[*link.Conn]*peer{}}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.accept(ctx, &rarely{Listener: l}, "n1") }()
	nc, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetReadDeadline(time.Now().Add(within))
	if _, err := nc.Read(make([]byte, 1)); err != nil { // the hello of the link
		t.Errorf("nobody serves the link: %v", err)
	}
	cancel()
	<-done
}

func TestANodeThatIsThereTwice(t *testing.T) {
	now := time.Now()
	hello := func(pid int, front bool) *workerlink.HelloMsg { return &workerlink.HelloMsg{PID: pid, Front: front} }
	old, young := now.Add(-time.Minute), now.Add(-time.Second)
	for _, tt := range []struct {
		name  string
		peers []peer
		want  string
	}{
		{"one process of each node", []peer{{node: "n1", since: old, hello: hello(1, false)}, {node: "n2", since: old, hello: hello(2, false)}}, ""},
		{"a process and its front", []peer{{node: "n1", since: old, hello: hello(1, false)}, {node: "n1", since: old, hello: hello(2, true)}}, ""},
		{"a process and a supervisor's report", []peer{{node: "n1", since: old, hello: hello(1, false)}, {node: "n1", since: old}}, ""},
		{"a process that was restarted just now", []peer{{node: "n1", since: old, hello: hello(1, false)}, {node: "n1", since: young, hello: hello(2, false)}}, ""},
		{"two links of one process", []peer{{node: "n1", since: old, hello: hello(1, false)}, {node: "n1", since: old, hello: hello(1, false)}}, ""},
		{"two processes for long", []peer{{node: "n1", since: old, hello: hello(1, false)}, {node: "n1", since: old, hello: hello(2, false)}}, "n1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &workers{conns: map[*link.Conn]*peer{}}
			for i := range tt.peers {
				w.conns[new(link.Conn)] = &tt.peers[i]
			}
			if got := strings.Join(w.doubled(now), " "); got != tt.want {
				t.Errorf("doubled are %q, want %q", got, tt.want)
			}
		})
	}
}
