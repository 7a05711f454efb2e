package workerproc

import (
	"strconv"
	"testing"
	"time"

	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// twoNodes starts n1, and makes the state know a node n2 with an I-CSCF i2.
func twoNodes(w *world) (p *process, i1, i2 uint32) {
	n2 := NodeOf(configuration(w.dir), "v1")
	n2.Name = "n2"
	res := w.apply(state.Command{PutNode: &n2}, state.Command{PutWorker: &state.Worker{ID: "i2", Kind: state.ICSCF, Node: "n2"}})
	p = w.begin(configuration(w.dir))
	sleep(2 * time.Second)
	for id, e := range *p.engines.Load() {
		if e.group.Kind == state.ICSCF {
			i1 = id
		}
	}
	if i1 == 0 {
		w.t.Fatalf("no I-CSCF runs; log:\n%s", p.log)
	}
	return p, i1, res[1].Group
}

func TestICSCFsAreChosenByLoad(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p, i1, i2 := twoNodes(w)
		tb := p.tables
		least := func(want uint32) {
			t.Helper()
			if got, ok := tb.LeastLoaded(); !ok || got != want {
				t.Errorf("chose %d, %t, want %d", got, ok, want)
			}
		}
		least(i1) // nobody has reported the other one: it may not be there
		a, b := w.conn("n1"), w.conn("n2")
		tb.report(a, map[uint32]float64{i1: 0, i2: 0})
		least(i1) // between equals the own one
		least(i2) // which now has one more
		tb.report(a, map[uint32]float64{i1: 5, i2: 1})
		least(i2)
		tb.report(a, nil) // a front that has just begun knows nobody yet
		tb.report(b, map[uint32]float64{i2: 0})
		least(i2)
		if !tb.Reachable(i2) {
			t.Error("one front knows the other I-CSCF, but it counts as gone")
		}
		tb.forget(b)
		if tb.Reachable(i2) {
			t.Error("it counts as there although no front that is linked knows it")
		}
		least(i1)
	})
}

// conn is any value that stands for the link to a front.
func (w *world) conn(node string) *link.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fronts[node].conn
}

func TestReachable(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p, i1, _ := twoNodes(w)
		n2 := NodeOf(configuration(w.dir), "v1")
		n2.Name = "n2"
		s2 := w.apply(state.Command{PutWorker: &state.Worker{ID: "s2", Kind: state.SCSCF, Node: "n2"}})[0].Group
		sleep(0)
		check := func(what string, g uint32, want bool) {
			t.Helper()
			if got := p.tables.Reachable(g); got != want {
				t.Errorf("%s: %t, want %t", what, got, want)
			}
		}
		check("the own I-CSCF", i1, true)
		check("an S-CSCF elsewhere, through a front", s2, true)
		check("a group that there is not", 99, false)
		for n := range w.fronts {
			w.at(n, func(f *fakeFront) { f.down = true; f.conn.Close() })
		}
		sleep(time.Second)
		check("an S-CSCF elsewhere without any front", s2, false)
		check("the own I-CSCF without any front", i1, true)
	})
}

func TestACallStaysAtItsICSCF(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p, i1, i2 := twoNodes(w)
		tb := p.tables
		m, err := sipmsg.Parse(request(flowAt("n1", 1), "INVITE", "call"))
		if err != nil {
			t.Fatal(err)
		}
		report := func() { tb.report(w.conn("n1"), map[uint32]float64{i1: 0, i2: 0}) }
		report()
		for range 9 {
			if g, err := tb.route(state.ICSCF, m); err != nil || g != i1 {
				t.Fatalf("the call goes to %d, %v, want %d", g, err, i1)
			}
		}
		kept := 64 * 500 * time.Millisecond
		for _, tt := range []struct {
			after time.Duration
			want  bool
		}{{kept - time.Second, true}, {kept + time.Second, true}, {2*kept + time.Second, false}} {
			began := time.Now()
			tb.remember("other", i2)
			time.Sleep(tt.after)
			tb.remember("another", i2) // traffic ages the entries
			if _, ok := tb.Call("other"); ok != tt.want {
				t.Errorf("after %v it is known: %t, want %t", time.Since(began), ok, tt.want)
			}
		}
		sleep(time.Hour)
		if _, ok := tb.Call("another"); ok {
			t.Error("an hour without calls does not age the entries")
		}
	})
}

func TestRememberedCallsAreBounded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		tb := w.begin(configuration(w.dir)).tables
		for range 3 {
			for i := range maxCallIDs - 1 {
				tb.now[strconv.Itoa(i)] = 1
			}
			tb.remember("last but one", 1)
			tb.remember("last", 1)
			if n := len(tb.now) + len(tb.old); n > 2*maxCallIDs {
				t.Errorf("%d Call-IDs are remembered", n)
			}
			for _, id := range []string{"last but one", "last"} {
				if _, ok := tb.Call(id); !ok {
					t.Errorf("%s is forgotten", id)
				}
			}
		}
	})
}
