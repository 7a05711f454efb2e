package workerproc

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/appliance/workerlink"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/ha"
)

func TestAProcessIntroducesItselfAndServes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		groups := w.served(p)
		st := w.state()
		if n, ok := st.Node("n1"); !ok || n.Service != service || n.ClusterAddr != "192.0.2.10:7400" || !n.Controller {
			t.Errorf("the state has the node as %+v", n)
		}
		for _, id := range []string{"p1", "i1", "s1"} {
			if wk, ok := st.Worker(id); !ok || wk.Node != "n1" || groups[wk.Kind] != wk.Group {
				t.Errorf("the state has %s as %+v; groups %v", id, wk, groups)
			}
		}
		if len(w.requests) != 4 {
			t.Errorf("it took the proposals %v", w.requests)
		}
		for n := range w.fronts {
			if got := w.groups(n); len(got) != 3 {
				t.Errorf("front %s knows the groups %v", n, got)
			}
			if hello := heard[workerlink.HelloMsg](w, n, workerlink.Hello); len(hello) != 1 || hello[0].Node != "n1" || hello[0].Front || w.fronts[n].said[0].method != workerlink.Hello {
				t.Errorf("front %s was greeted with %+v", n, hello)
			}
			if loads := heard[workerlink.LoadMsg](w, n, workerlink.Load); len(loads) == 0 || len(loads[len(loads)-1].Groups) != 3 {
				t.Errorf("front %s heard the loads %+v", n, loads)
			}
		}
		if got := w.feeding(); !slices.Equal(got, []string{"n1"}) {
			t.Errorf("the state comes from %v, want the own front", got)
		}
	})
}

// TestALinkBreaksAtEachMoment breaks the link to the only front at each thing
// that is said at its beginning, and in the middle of a snapshot.
func TestALinkBreaksAtEachMoment(t *testing.T) {
	cuts := map[string]func(*fakeFront){
		"at the hello":                  func(f *fakeFront) { f.breakAt = 1 },
		"when the state is asked for":   func(f *fakeFront) { f.breakAt = 2 },
		"when groups are told":          func(f *fakeFront) { f.breakAt = 3 },
		"when a flow is told":           func(f *fakeFront) { f.breakAt = 4 },
		"in the middle of a snapshot":   func(f *fakeFront) { f.breakMid = true },
		"in a snapshot and then at all": func(f *fakeFront) { f.breakMid, f.breakAt = true, 3 },
	}
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				for _, n := range []string{"n2", "n3"} {
					w.at(n, func(f *fakeFront) { f.down = true })
				}
				p := w.begin(configuration(w.dir))
				groups := w.served(p)
				core{p.engine(groups[state.PCSCF])}.Bind(flowAt("n1", 1), time.Now().Add(time.Hour))
				w.at("n1", func(f *fakeFront) {
					f.links = 0
					cut(f)
					f.conn.Close()
				})
				w.apply(state.Command{Set: &state.Set{Name: "k", Value: "v"}}) // while the link is down
				sleep(5 * time.Second)
				if w.fronts["n1"].links < 2 {
					t.Errorf("%d links, want the cut one and another", w.fronts["n1"].links)
				}
				if got, want := p.State().Index(), w.state().Index(); got != want {
					t.Errorf("the copy is at %d, the state at %d", got, want)
				}
				if got := w.groups("n1"); len(got) != 3 {
					t.Errorf("the front knows the groups %v", got)
				}
				if got := heard[workerlink.BindMsg](w, "n1", workerlink.Bind); len(got) != 1 || got[0].Group != groups[state.PCSCF] {
					t.Errorf("the front knows the flows %+v", got)
				}
			})
		})
	}
}

func flowAt(node string, port uint16) sipmsg.Flow {
	return sipmsg.Flow{Node: node, Transport: sipmsg.UDP, Local: addrPort(service, 5060), Remote: addrPort(phone, port)}
}

func TestTheStateComesFromAFrontThatKnowsALeader(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		w.served(p)
		set := func(v string) { w.apply(state.Command{Set: &state.Set{Name: "k", Value: v}}) }
		fed := func(when string, want ...string) {
			t.Helper()
			sleep(2 * time.Second)
			if got := w.feeding(); !slices.Equal(got, want) {
				t.Errorf("%s: the state comes from %v, want %v", when, got, want)
			}
			if got, _ := p.State().Setting("k"); len(want) > 0 && got != when {
				t.Errorf("%s: the copy is of %q", when, got)
			}
		}
		// The own front can no longer be reached by the other controllers.
		w.at("n1", func(f *fakeFront) { f.cut = true })
		w.report()
		sleep(0)
		if got := w.feeding(); !slices.Equal(got, []string{"n1"}) {
			t.Errorf("an election moves the feed to %v", got)
		}
		w.report()
		set("own front without a leader")
		fed("own front without a leader", "n2")

		asked := w.fronts["n1"].asked
		if _, err := p.propose(t.Context(), state.Command{Set: &state.Set{Name: "x", Value: "y"}}); err != nil {
			t.Error(err)
		}
		if w.fronts["n1"].asked != asked {
			t.Error("it asked the front that knows no leader")
		}

		// Nobody knows one: stay.
		for _, n := range []string{"n2", "n3"} {
			w.at(n, func(f *fakeFront) { f.cut = true })
		}
		lost := func() []string {
			for range 3 {
				w.report()
				sleep(time.Second)
			}
			return w.feeding()
		}
		if a, b := lost(), lost(); len(a) != 1 || !slices.Equal(a, b) {
			t.Errorf("without any leader the feed moved from %v to %v", a, b)
		}
		for _, n := range []string{"n1", "n2", "n3"} {
			w.at(n, func(f *fakeFront) { f.cut = false })
		}
		w.report()
		set("all is well again")
		fed("all is well again", "n1")

		// The feeding front goes, and comes back.
		w.at("n1", func(f *fakeFront) { f.down = true; f.conn.Close() })
		sleep(time.Second)
		w.at("n1", func(f *fakeFront) { f.feed = 0 })
		set("own front is down")
		fed("own front is down", "n2")
		w.at("n1", func(f *fakeFront) { f.down = false })
		set("own front is back")
		fed("own front is back", "n1")
	})
}

func TestAFrontThatComesLaterHearsOfAllFlows(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for _, n := range []string{"n2", "n3"} {
			w.at(n, func(f *fakeFront) { f.down = true })
		}
		p := w.begin(configuration(w.dir))
		g := w.served(p)[state.PCSCF]
		c := core{p.engine(g)}
		until := time.Now().Add(time.Hour)
		c.Bind(flowAt("n2", 1), until)
		c.Bind(flowAt("n2", 2), until)
		c.Bind(flowAt("n3", 3), until)
		c.Bind(flowAt("n2", 4), until)
		c.Unbind(flowAt("n2", 4))
		w.at("n2", func(f *fakeFront) { f.down = false })
		sleep(5 * time.Second)
		got := heard[workerlink.BindMsg](w, "n2", workerlink.Bind)
		slices.SortFunc(got, func(a, b workerlink.BindMsg) int { return int(a.Flow.Remote.Port()) - int(b.Flow.Remote.Port()) })
		want := []workerlink.BindMsg{{Flow: flowAt("n2", 1), Group: g, Until: until.UnixMilli()}, {Flow: flowAt("n2", 2), Group: g, Until: until.UnixMilli()}}
		if !slices.Equal(got, want) {
			t.Errorf("the front heard %+v, want %+v", got, want)
		}
		c.Unbind(flowAt("n2", 1))
		c.Bind(flowAt("n2", 5), until)
		sleep(0)
		if got := heard[workerlink.BindMsg](w, "n2", workerlink.Bind); len(got) != 4 || got[2].Until != 0 || got[3].Flow != flowAt("n2", 5) {
			t.Errorf("the front heard %+v", got)
		}
	})
}

// TestARefusedWorker: another node has the id. What the node proposes costs
// every controller a log entry, so it must not ask again at each change.
func TestARefusedWorker(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		other := NodeOf(configuration(w.dir), "v1")
		other.Name = "n9"
		w.apply(state.Command{PutNode: &other}, state.Command{PutWorker: &state.Worker{ID: "i1", Kind: state.ICSCF, Node: "n9"}})
		p := w.begin(configuration(w.dir))
		for range 60 {
			sleep(time.Second)
			w.apply(state.Command{Set: &state.Set{Name: "k", Value: time.Now().String()}})
		}
		if n := len(*p.engines.Load()); n != 2 {
			t.Errorf("%d engines run, want those of the two other workers", n)
		}
		if n := len(w.requests); n > 10 {
			t.Errorf("it proposed %d times in a minute", n)
		}
		contains(t, p.log, "i1 exists as i-cscf on node n9", 1)
		loads := heard[workerlink.LoadMsg](w, "n1", workerlink.Load)
		if got := loads[len(loads)-1].Refused["i1"]; got != "it does not serve: worker i1 exists as i-cscf on node n9" {
			t.Errorf("the fronts hear %q", got)
		}
		// The operator mends it.
		w.apply(state.Command{RemoveWorker: &state.RemoveWorker{ID: "i1"}})
		sleep(retrySlowest + 2*time.Second)
		w.served(p)
		loads = heard[workerlink.LoadMsg](w, "n1", workerlink.Load)
		if got := loads[len(loads)-1].Refused; len(got) != 0 {
			t.Errorf("the fronts still hear %v", got)
		}
	})
}

// TestAnUnansweredIntroductionHoldsUpNothing: engines follow the state while
// nobody commits what the node proposes.
func TestAnUnansweredIntroductionHoldsUpNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for n := range w.fronts {
			w.at(n, func(f *fakeFront) { f.answer = "never" })
		}
		node := NodeOf(configuration(w.dir), "v1")
		p := w.begin(configuration(w.dir))
		sleep(time.Second)
		w.apply(state.Command{PutNode: &node})
		for _, wk := range []state.Worker{{ID: "p1", Kind: state.PCSCF, Node: "n1"}, {ID: "i1", Kind: state.ICSCF, Node: "n1"}} {
			w.apply(state.Command{PutWorker: &wk})
		}
		sleep(0)
		if n := len(*p.engines.Load()); n != 2 {
			t.Errorf("%d engines run, want 2", n)
		}
	})
}

func TestAGroupThatIsGoneIsReleased(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		groups := w.served(p)
		old := p.engine(groups[state.ICSCF])
		w.apply(state.Command{RemoveWorker: &state.RemoveWorker{ID: "i1"}})
		sleep(0)
		if p.engine(groups[state.ICSCF]) != nil || !old.stopped.Load() {
			t.Error("the engine goes on")
		}
		if again := w.served(p)[state.ICSCF]; again == groups[state.ICSCF] {
			t.Errorf("the worker came back as group %d, which it was before", again)
		}
		for n := range w.fronts {
			if got := w.groups(n); len(got) != 3 || slices.Contains(got, groups[state.ICSCF]) {
				t.Errorf("front %s knows the groups %v", n, got)
			}
		}
	})
}

func TestAnUnreachableFrontIsToldOnce(t *testing.T) {
	for _, tt := range []struct {
		name string
		how  func(*fakeFront)
	}{
		{"that refuses", func(f *fakeFront) { f.down = true }},
		{"that does not answer", func(f *fakeFront) { f.hang = true }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.at("n3", tt.how)
				p := w.begin(configuration(w.dir))
				sleep(time.Minute)
				contains(t, p.log, "no link to the front", 1)
				w.at("n3", func(f *fakeFront) { f.down, f.hang = false, false })
				sleep(10 * time.Second)
				if len(w.groups("n3")) != 3 {
					t.Errorf("it is not linked when it is back")
				}
			})
		})
	}
}

func TestStoppingWhileMuchIsUnderWay(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		groups := w.served(p)
		for n := range w.fronts {
			w.at(n, func(f *fakeFront) { f.answer = "never" })
		}
		c := core{p.engine(groups[state.PCSCF])}
		ended := make(chan error, 3)
		c.Propose(state.Command{Set: &state.Set{Name: "k", Value: "v"}}, func(_ state.Result, err error) { ended <- err })
		c.Reserve(state.SCSCF, "u", func(_ uint32, err error) { ended <- err })
		c.After(time.Hour, func() { t.Error("a timer ran after the end") })
		p.store.Put(groups[state.PCSCF], "k", []byte("v"), time.Now().Add(time.Hour), func(err error) { ended <- err })
		p.router.Post(0, event{eng: c.e, fn: func() { (&shardEnv{c.e, 0}).After(time.Minute, func() {}) }})
		began := time.Now()
		p.stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("stopping took %v", took)
		}
		failed := 0
		for range 3 {
			if <-ended != nil {
				failed++
			}
		}
		if failed != 2 {
			t.Errorf("%d of the proposal and the reservation failed, want both and not the record", failed)
		}
		// What comes too late is refused and harms nothing.
		c.Propose(state.Command{Set: &state.Set{Name: "k", Value: "v"}}, func(_ state.Result, err error) { ended <- err })
		p.store.Put(1, "k", nil, time.Now().Add(time.Hour), func(err error) { ended <- err })
		for range 2 {
			if err := <-ended; err == nil {
				t.Error("done after the end")
			}
		}
		p.SIP(nil, frame(groups[state.PCSCF], flowAt("n1", 1), "OPTIONS", "x"))
		time.Sleep(2 * time.Hour)
	})
}

func TestAWorkerThatLeftTheConfigurationGoesWhenItHasNoUsers(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		node := NodeOf(configuration(w.dir), "v1")
		w.apply(state.Command{PutNode: &node},
			state.Command{PutWorker: &state.Worker{ID: "idle", Kind: state.SCSCF, Node: "n1"}},
			state.Command{PutWorker: &state.Worker{ID: "old", Kind: state.SCSCF, Node: "n1"}})
		old, _ := w.state().Worker("old")
		w.apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice", Hint: old.Group}})
		// A registration as package scscf stores it: else the user is given up.
		until := time.Now().Add(time.Hour)
		record, err := cbor.Marshal(map[int]any{0: 1, 1: map[int]any{1: "alice", 3: []any{map[int]any{7: until}}}})
		if err != nil {
			t.Fatal(err)
		}
		store, err := ha.OpenJournal(filepath.Join(configuration(w.dir).Node.DataDir, "store"), ha.Options{Identity: clusterID + "/n1"})
		if err != nil {
			t.Fatal(err)
		}
		store.Put(old.Group, "user/alice", record, until, nil)
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		p := w.begin(configuration(w.dir))
		w.served(p)
		sleep(5 * time.Second)
		if _, ok := w.state().Worker("idle"); ok {
			t.Error("the worker without users is still there")
		}
		if p.engine(old.Group) == nil {
			t.Error("the user of the other one is not served")
		}
		loads := heard[workerlink.LoadMsg](w, "n1", workerlink.Load)
		if got := loads[len(loads)-1].Refused["old"]; !strings.Contains(got, "no longer in the configuration") || !strings.Contains(got, "1 user") {
			t.Errorf("the fronts hear %q", got)
		}
		w.apply(state.Command{Unassign: &state.Unassign{Kind: state.SCSCF, User: "alice", Group: old.Group}})
		sleep(2 * time.Minute)
		if _, ok := w.state().Worker("old"); ok || p.engine(old.Group) != nil {
			t.Error("it is still there after its last user went")
		}
	})
}

func TestANodeOfAnotherDomainServesNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		other := NodeOf(configuration(w.dir), "v1")
		other.Name, other.Domain = "n9", "other.test"
		w.apply(state.Command{PutNode: &other})
		p := w.begin(configuration(w.dir))
		<-p.ended
		if !errors.Is(p.err, ErrDomain) || !strings.Contains(p.err.Error(), "sip.domain: other.test") {
			t.Errorf("it ended with %v", p.err)
		}
		if n := len(*p.engines.Load()); n != 0 {
			t.Errorf("%d engines were started", n)
		}
	})
}
