package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/controller/api"
	"bellwether/media/rtp"
)

// children returns the process ids of a node's processes of a name, such as
// "front", or of all of them for "".
func children(t testing.TB, n *localcluster.Node, name string) []int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended meanwhile
		}
		// "pid (name) state ppid ..."; the name may hold anything.
		_, rest, _ := strings.Cut(string(b[max(0, bytes.LastIndexByte(b, ')')):]), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[0] == "Z" || fields[1] != strconv.Itoa(n.PID()) {
			continue
		}
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline"))
		if word := strings.Split(string(args), "\x00"); name != "" && (len(word) < 2 || word[1] != name+"-process") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// gone reports whether a process has ended, reaped or not.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(b, []byte(") Z "))
}

// end ends one process of a node with a signal.
func end(t testing.TB, n *localcluster.Node, name string, how syscall.Signal) (pid int) {
	t.Helper()
	pids := children(t, n, name)
	if len(pids) != 1 {
		t.Fatalf("node %s has the processes %v called %s, want one", n.Name, pids, name)
	}
	if err := syscall.Kill(pids[0], how); err != nil {
		t.Fatal(err)
	}
	return pids[0]
}

// cutPower ends every process of the nodes at once, and returns when all are gone.
func cutPower(t testing.TB, nodes ...*localcluster.Node) {
	t.Helper()
	var pids []int
	var wg sync.WaitGroup
	for _, n := range nodes {
		pids = append(pids, children(t, n, "")...)
	}
	for _, n := range nodes {
		wg.Go(n.Kill)
	}
	wg.Wait()
	eventually(t, 5*time.Second, func() string {
		if i := slices.IndexFunc(pids, func(pid int) bool { return !gone(pid) }); i >= 0 {
			return fmt.Sprintf("process %d outlives its node", pids[i])
		}
		return ""
	})
}

func ready(t testing.TB, c *localcluster.Cluster) {
	t.Helper()
	if err := c.WaitReady(within(t, upWithin)); err != nil {
		t.Fatal(err)
	}
}

// phonesAt opens a phone for each user, at the nodes in turn.
func phonesAt(t testing.TB, users []string, nodes ...*localcluster.Node) []*phone.Phone {
	t.Helper()
	clock := new(rtp.Clock)
	var all []*phone.Phone
	for i, u := range users {
		all = append(all, newPhone(t, nodes[i%len(nodes)], u, func(cfg *phone.Config) {
			cfg.ToneHz, cfg.Clock = 500+100*(i%8), clock
		}))
	}
	return all
}

func register(t testing.TB, phones ...*phone.Phone) {
	t.Helper()
	var wg sync.WaitGroup
	for _, p := range phones {
		wg.Go(func() {
			if err := p.Register(within(t, 15*time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// talk lets a phone call a user, who must answer and be heard.
func talk(t testing.TB, from *phone.Phone, user string) {
	t.Helper()
	r, err := from.Call(within(t, 20*time.Second), "sip:"+user+"@"+domain, phone.CallOptions{Hold: 400 * time.Millisecond})
	if err != nil || r.Status != 200 || !r.ToneHeard {
		t.Errorf("call to %s: %+v, %v", user, r, err)
	}
}

// talkInARing lets each phone call the next one.
func talkInARing(t testing.TB, phones []*phone.Phone, users []string) {
	t.Helper()
	var wg sync.WaitGroup
	for i, p := range phones {
		wg.Go(func() { talk(t, p, users[(i+1)%len(users)]) })
	}
	wg.Wait()
}

// whereabouts is where every user is registered and who serves it, as a node sees it.
func whereabouts(t testing.TB, n *localcluster.Node, users []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, u := range users {
		eventually(t, 10*time.Second, func() string {
			got, err := n.Admin.User(within(t, 5*time.Second), "sip:"+u+"@"+domain)
			if err != nil {
				return fmt.Sprintf("node %s about %s: %v", n.Name, u, err)
			}
			if len(got.Contacts) != 1 || got.PCSCF.Serving == "" || got.SCSCF.Serving == "" || got.Contacts[0].Flow == "" {
				return fmt.Sprintf("node %s about %s: %+v", n.Name, u, got)
			}
			out[u] = fmt.Sprintf("%s %s %s %s %s", got.PCSCF.Home, got.SCSCF.Home, got.Contacts[0].URI, got.Contacts[0].Flow, got.Expires.Round(time.Second))
			return ""
		})
	}
	return out
}

func sameWhereabouts(t testing.TB, got, want map[string]string) {
	t.Helper()
	for u, w := range want {
		if got[u] != w {
			t.Errorf("%s: %s, before it was %s", u, got[u], w)
		}
	}
}

// lead makes the first node the leader: a front that is told to end hands the
// lead over, to the first of those that know as much as it does.
func lead(t *testing.T, c *localcluster.Cluster) {
	t.Helper()
	n := c.Nodes[0]
	for range 10 {
		st, err := n.Admin.Status(within(t, 5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if st.Leader == n.Name {
			return
		}
		end(t, c.Node(st.Leader), "front", syscall.SIGTERM)
		term := st.Term
		eventually(t, 10*time.Second, func() string {
			st, err := n.Admin.Status(within(t, 2*time.Second))
			switch {
			case err != nil:
				return err.Error()
			case st.Term == term || st.Leader == "":
				return "no new leader"
			}
			return ""
		})
		ready(t, c)
	}
	t.Fatalf("%s never became leader", n.Name)
}

// TestLeaderKilledDuringRegistrations: the first node leads and serves no
// user; its death costs a new user nothing but some of the time that its
// phone's own retransmissions bridge.
func TestLeaderKilledDuringRegistrations(t *testing.T) {
	const (
		phones = 120
		pace   = 40 * time.Millisecond
		limit  = 3500 * time.Millisecond
	)
	// It measures time, so it is not parallel to others.
	c := start(t, workersOf{"n1": nil, "n2": usual["n1"], "n3": usual["n2"]}, nil)
	users := subscribe(t, c, "steady", phones)
	lead(t, c)

	type outcome struct {
		began time.Time
		took  time.Duration
		err   error
	}
	outcomes := make([]outcome, phones)
	all := phonesAt(t, users, c.Node("n2"), c.Node("n3"))
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var killed time.Time
	var wg sync.WaitGroup
	for i, p := range all {
		<-tick.C
		if i == phones/3 {
			killed = time.Now()
			cutPower(t, c.Node("n1"))
		}
		wg.Go(func() {
			began := time.Now()
			err := p.Register(within(t, 20*time.Second))
			outcomes[i] = outcome{began, time.Since(began), err}
		})
	}
	wg.Wait()
	var before, after time.Duration
	for i, o := range outcomes {
		if o.err != nil || o.took > limit {
			t.Errorf("registration %d, begun %v after the leader's death: took %v, %v", i, o.began.Sub(killed), o.took, o.err)
		}
		if o.began.Add(o.took).Before(killed) {
			before = max(before, o.took)
		} else {
			after = max(after, o.took)
		}
	}
	t.Logf("longest registration: %v before the leader was killed, %v from then on", before, after)
	if leader := c.Leader(within(t, 5*time.Second)); leader != "n2" && leader != "n3" {
		t.Errorf("%q leads", leader)
	}
	talk(t, all[0], users[phones-1])
}

func TestWorkerProcessKilled(t *testing.T) {
	t.Parallel()
	c := start(t, usual, nil)
	users := subscribe(t, c, "worker", 6)
	phones := phonesAt(t, users, c.Node("n1"), c.Node("n2"), c.Node("n3"))
	register(t, phones...)
	before := whereabouts(t, c.Node("n2"), users)

	n1 := c.Node("n1")
	old := end(t, n1, "worker", syscall.SIGKILL)
	eventually(t, 10*time.Second, func() string {
		st, err := n1.Admin.Status(within(t, 2*time.Second))
		if err != nil {
			return err.Error()
		}
		i := slices.IndexFunc(st.Alarms, func(a api.Alarm) bool { return a.Code == "child_crashed:worker" })
		if i < 0 || st.Alarms[i].Node != "n1" || !strings.Contains(st.Alarms[i].Text, "SIGKILL") {
			return fmt.Sprintf("the alarms are %+v", st.Alarms)
		}
		return ""
	})
	eventually(t, 10*time.Second, func() string {
		if pids := children(t, n1, "worker"); len(pids) != 1 || pids[0] == old {
			return fmt.Sprintf("worker processes of n1: %v", pids)
		}
		return ""
	})
	ready(t, c)
	sameWhereabouts(t, whereabouts(t, c.Node("n2"), users), before)
	// Nobody registers again before being called.
	talkInARing(t, phones, users)
}

func TestFrontProcessKilled(t *testing.T) {
	t.Parallel()
	c := start(t, usual, nil)
	users := subscribe(t, c, "front", 6)
	phones := phonesAt(t, users, c.Node("n1"), c.Node("n2"), c.Node("n3"))
	register(t, phones...)
	before := whereabouts(t, c.Node("n2"), users)

	// A call between phones at n1 lasts from before the crash until after it.
	ctx, hangUp := context.WithCancel(within(t, time.Minute))
	defer hangUp()
	lasting := make(chan error, 1)
	go func() {
		r, err := phones[0].Call(ctx, "sip:"+users[3]+"@"+domain, phone.CallOptions{Hold: time.Minute})
		if !errors.Is(err, context.Canceled) || r.Status != 200 || !r.ToneHeard {
			lasting <- fmt.Errorf("%+v, %w", r, err)
		}
		close(lasting)
	}()
	confirmed := func() string {
		list, err := c.Node("n2").Admin.Calls(within(t, 2*time.Second))
		if err != nil {
			return err.Error()
		}
		if len(list) != 1 || list[0].State != "confirmed" {
			return fmt.Sprintf("calls: %+v", list)
		}
		return ""
	}
	eventually(t, 10*time.Second, confirmed)

	n1 := c.Node("n1")
	old := end(t, n1, "front", syscall.SIGKILL)
	eventually(t, 10*time.Second, func() string {
		if pids := children(t, n1, "front"); len(pids) != 1 || pids[0] == old {
			return fmt.Sprintf("front processes of n1: %v", pids)
		}
		return ""
	})
	ready(t, c)
	eventually(t, 5*time.Second, func() string {
		st, err := n1.Admin.Status(within(t, 2*time.Second))
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(st.Alarms, func(a api.Alarm) bool { return a.Code == "child_crashed:front" }) {
			return fmt.Sprintf("the alarms are %+v", st.Alarms)
		}
		return ""
	})
	sameWhereabouts(t, whereabouts(t, n1, users), before)
	if m := confirmed(); m != "" {
		t.Error(m)
	}
	hangUp()
	if err := <-lasting; err != nil {
		t.Errorf("the call that was in progress: %v", err)
	}
	eventually(t, 5*time.Second, func() string {
		if list, err := n1.Admin.Calls(within(t, 2*time.Second)); err != nil || len(list) > 0 {
			return fmt.Sprintf("calls: %+v, %v", list, err)
		}
		return ""
	})
	talkInARing(t, phones, users)
}

// TestWholeClusterRestarts stops every node, in order and by a power cut, and
// finds everything where it was.
func TestWholeClusterRestarts(t *testing.T) {
	t.Parallel()
	c := start(t, usual, nil)
	users := subscribe(t, c, "restart", 6)
	phones := phonesAt(t, users, c.Node("n1"), c.Node("n2"), c.Node("n3"))
	register(t, phones...)
	for _, way := range []struct {
		name string
		end  func(t *testing.T)
	}{
		{"stopped", func(t *testing.T) {
			if err := c.Stop(); err != nil {
				t.Fatal(err)
			}
		}},
		{"cut from power", func(t *testing.T) { cutPower(t, c.Nodes...) }},
	} {
		before := whereabouts(t, c.Node("n1"), users)
		way.end(t)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ready(t, c)
		st, err := c.Node("n3").Admin.Status(within(t, 5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if st.Subscribers != len(users) || st.Users != len(users) || st.Cluster != c.ID {
			t.Errorf("%s: %d subscribers, %d users, cluster %s", way.name, st.Subscribers, st.Users, st.Cluster)
		}
		for _, n := range c.Nodes {
			sameWhereabouts(t, whereabouts(t, n, users), before)
		}
		talkInARing(t, phones, users)
		// And the next power cut must not find what this one wrote half.
		register(t, phones[0])
	}
}

func TestFollowerCatchesUp(t *testing.T) {
	t.Parallel()
	c := start(t, usual, nil)
	lead(t, c)
	n3 := c.Node("n3")
	if err := n3.Stop(); err != nil {
		t.Fatal(err)
	}
	users := subscribe(t, c, "absent", 4)
	phones := phonesAt(t, users, c.Node("n1"), c.Node("n2"))
	register(t, phones...)
	before := whereabouts(t, c.Node("n1"), users)
	if err := n3.Start(); err != nil {
		t.Fatal(err)
	}
	ready(t, c)
	sameWhereabouts(t, whereabouts(t, n3, users), before)
	late := subscribe(t, c, "late", 1)
	p := phonesAt(t, late, n3)[0]
	register(t, p)
	talk(t, p, users[0])
	talk(t, phones[1], late[0])
}
