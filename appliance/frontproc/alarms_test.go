package frontproc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/api"
	"bellwether/controller/state"
)

func codes(list []api.Alarm) string {
	var out []string
	for _, a := range list {
		out = append(out, a.Code)
	}
	return strings.Join(out, " ")
}

func TestAlarms(t *testing.T) {
	at := func(m int) time.Time { return time.Unix(0, 0).Add(time.Duration(m) * time.Minute) }
	al := func(code string) api.Alarm { return api.Alarm{Code: code} }
	a := newAlarms()
	a.raise(al("crash"), at(0))
	a.hold([]api.Alarm{al("down")}, at(1))
	a.raise(al("crash"), at(2))
	a.hold([]api.Alarm{al("down"), al("disk")}, at(3))
	got := a.current(at(4))
	if codes(got) != "crash down disk" || !got[0].Since.Equal(at(0)) || !got[1].Since.Equal(at(1)) || !got[2].Since.Equal(at(3)) {
		t.Errorf("alarms %+v", got)
	}
	a.hold([]api.Alarm{al("disk")}, at(5))
	if got := codes(a.current(at(12))); got != "crash disk" {
		t.Errorf("ten minutes after the last crash: %s", got)
	}
	if got := codes(a.current(at(13))); got != "disk" {
		t.Errorf("more than ten minutes after the last crash: %s", got)
	}
	a.hold([]api.Alarm{al("down"), al("disk")}, at(64))
	if got := a.current(at(64)); codes(got) != "disk down" || !got[1].Since.Equal(at(64)) {
		t.Errorf("what holds again is new: %+v", got)
	}
	a.hold(nil, at(65))
	if got := a.current(at(65)); len(got) != 0 {
		t.Errorf("nothing holds, but: %+v", got)
	}
	for i := range 2 * maxEvents {
		a.raise(al(fmt.Sprint(i)), at(100).Add(time.Duration(i)*time.Second))
	}
	if got := a.current(at(101)); len(got) != maxEvents || got[0].Code != fmt.Sprint(maxEvents) {
		t.Errorf("%d events are kept, the oldest %s", len(got), got[0].Code)
	}
}

func TestAlarmsFollowFromHowThingsAre(t *testing.T) {
	n := start(t, Options{})
	w, _ := n.serving()
	w.tell(workerlink.Load, workerlink.LoadMsg{StoreError: "no space left", Refused: map[string]string{"x1": "worker x1 exists on node n9"}})
	st := n.status("two things are wrong", func(st api.Status) bool { return len(st.Alarms) == 2 })
	if got := codes(st.Alarms); got != "store_failed:n1 worker_refused:n1/x1" {
		t.Errorf("alarms %s", got)
	}
	first := st.Alarms[0].Since
	w.tell(workerlink.Load, workerlink.LoadMsg{StoreError: "no space left"})
	st = n.status("one thing is wrong", func(st api.Status) bool { return len(st.Alarms) == 1 })
	if !st.Alarms[0].Since.Equal(first) {
		t.Errorf("the alarm began at %v and now says %v", first, st.Alarms[0].Since)
	}
	w.tell(workerlink.Load, workerlink.LoadMsg{})
	n.status("nothing is wrong", func(st api.Status) bool { return len(st.Alarms) == 0 })
	far := n.over(n.remote("n2", 2))
	far.tell(workerlink.Hello, workerlink.HelloMsg{Node: "n2", Front: true})
	far.propose(state.Command{PutNode: &state.Node{Name: "n2", Service: n.host(2)}})
	far.tell(workerlink.ChildExit, workerlink.ChildExitMsg{Child: "worker", Reason: "signal SIGKILL", At: time.Now()})
	st = n.status("another node's process ended", func(st api.Status) bool { return len(st.Alarms) == 1 })
	if a := st.Alarms[0]; a.Code != "child_crashed:worker" || a.Node != "n2" {
		t.Errorf("alarm %+v", a)
	}
	far.c.Close()
	st = n.status("a node is down", func(st api.Status) bool { return len(st.Alarms) == 2 })
	if got := codes(st.Alarms); !strings.Contains(got, "node_down:n2") {
		t.Errorf("alarms %s", got)
	}
	w.propose(state.Command{PutWorker: &state.Worker{ID: "x9", Kind: state.PCSCF, Node: "n2"}})
	w.c.Close()
	n.status("its workers are not told beside it", func(st api.Status) bool { return len(st.Alarms) == 5 })
	back := n.over(n.remote("n2", 3))
	back.tell(workerlink.Hello, workerlink.HelloMsg{Node: "n2", Front: true})
	n.status("the node is back, its worker is not", func(st api.Status) bool {
		return len(st.Alarms) == 5 && strings.Contains(codes(st.Alarms), "worker_down:x9")
	})
	since := n.status("all workers are down", func(st api.Status) bool { return len(st.Alarms) == 5 }).Alarms[0].Since
	if st, err := n.admin.Status(t.Context()); err != nil || !st.Alarms[0].Since.Equal(since) {
		t.Errorf("the alarm of %v is now of %v, %v", since, st.Alarms[0].Since, err)
	}
}

func TestTheWorstAlarmComesFirst(t *testing.T) {
	at := func(m int) time.Time { return time.Unix(0, 0).Add(time.Duration(m) * time.Minute) }
	a := newAlarms()
	a.raise(api.Alarm{Code: "crash", Severity: "warning"}, at(0))
	a.hold([]api.Alarm{{Code: "down", Severity: "critical"}}, at(1))
	a.hold([]api.Alarm{{Code: "down", Severity: "critical"}, {Code: "disk", Severity: "critical"}, {Code: "late", Severity: "warning"}}, at(2))
	if got := codes(a.current(at(3))); got != "down disk crash late" {
		t.Errorf("alarms %s", got)
	}
}

func TestLeadersThatChangeOftenAreCounted(t *testing.T) {
	var e elections
	at := func(s int) time.Time { return time.Unix(0, 0).Add(time.Duration(s) * time.Second) }
	for i, tt := range []struct {
		leader string
		second int
		want   int
	}{
		{"", 0, 0}, {"n1", 1, 0}, {"n1", 2, 0}, {"", 3, 0}, {"n1", 4, 0}, {"n2", 5, 1}, {"n1", 6, 2}, {"n3", 60, 3}, {"n3", 66, 2}, {"n3", 121, 0},
	} {
		if got := e.see(tt.leader, at(tt.second)); got != tt.want {
			t.Errorf("step %d: %d leaders within a minute, want %d", i, got, tt.want)
		}
	}
}

func TestLostRegistrationsAreTold(t *testing.T) {
	n := start(t, Options{})
	w, groups := n.serving()
	w.tell(workerlink.Load, workerlink.LoadMsg{Groups: []workerlink.GroupLoad{{Group: groups[state.SCSCF], Lost: 3, LostAgo: time.Minute}}})
	st := n.status("they are told", func(st api.Status) bool { return len(st.Alarms) == 1 })
	if a := st.Alarms[0]; !strings.HasPrefix(a.Code, "registrations_lost:") || a.Severity != "warning" || !strings.Contains(a.Text, "3 users") {
		t.Errorf("alarm %+v", a)
	}
	w.tell(workerlink.Load, workerlink.LoadMsg{Groups: []workerlink.GroupLoad{{Group: groups[state.SCSCF], Lost: 3, LostAgo: lostFor}}})
	n.status("after an hour they are not", func(st api.Status) bool { return len(st.Alarms) == 0 })
}
