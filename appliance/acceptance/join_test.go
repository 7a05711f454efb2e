package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bellwether/appliance/identity"
	"bellwether/appliance/localcluster"
	"bellwether/appliance/pki"
	"bellwether/controller/api"
)

// bare is a cluster of which only the configurations are written.
func bare(t testing.TB, w workersOf) *localcluster.Cluster {
	t.Helper()
	spec := specOf(shortDir(t), w)
	spec.Bare = true
	c, err := localcluster.Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	logsMu.Lock()
	for _, n := range c.Nodes {
		logs = append(logs, n.LogFile())
	}
	logsMu.Unlock()
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		for _, n := range c.Nodes {
			if t.Failed() {
				t.Logf("end of the log of %s:\n%s", n.Name, n.LogTail(40))
			}
		}
	})
	return c
}

// does runs a command line that must work, and returns what it prints.
func does(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	r := bellwether(t, stdin, args...)
	if r.code != 0 {
		t.Fatalf("bellwether %s: code %d, %s", args[:2], r.code, r.err)
	}
	return r.out
}

// tokenFor makes a token on the first node.
func tokenFor(t testing.TB, c *localcluster.Cluster, node string, more ...string) string {
	t.Helper()
	return strings.TrimSpace(does(t, "", append([]string{"cluster", "token", node, "-c", c.Nodes[0].ConfigFile()}, more...)...))
}

// gather founds a cluster on its first node and lets the others join by token,
// one by standard input, one by a file.
func gather(t testing.TB, c *localcluster.Cluster, lifetime string) {
	t.Helper()
	first := c.Nodes[0]
	does(t, "", "cluster", "init", "-c", first.ConfigFile())
	if lifetime != "" {
		if err := os.WriteFile(filepath.Join(identity.CADir(first.DataDir()), pki.LifetimeFile), []byte(lifetime), 0o600); err != nil {
			t.Fatal(err)
		}
		does(t, "", "cluster", "renew", "-c", first.ConfigFile())
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	answers(t, first)
	for i, n := range c.Nodes[1:] {
		token := tokenFor(t, c, n.Name)
		if i == 0 {
			does(t, token+"\n", "cluster", "join", "-", "-c", n.ConfigFile())
		} else {
			file := filepath.Join(shortDir(t), "token")
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
			does(t, "", "cluster", "join", file, "-c", n.ConfigFile())
		}
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	ready(t, c)
}

// answers waits until the admin API of a node does.
func answers(t testing.TB, n *localcluster.Node) {
	t.Helper()
	eventually(t, upWithin, func() string {
		if _, err := n.Admin.Status(within(t, time.Second)); err != nil {
			return err.Error()
		}
		return ""
	})
}

// alarmed waits until a node shows an alarm whose code begins so.
func alarmed(t testing.TB, n *localcluster.Node, code string) (alarm api.Alarm) {
	t.Helper()
	eventually(t, upWithin, func() string {
		st, err := n.Admin.Status(within(t, 2*time.Second))
		if err != nil {
			return err.Error()
		}
		for _, a := range st.Alarms {
			if strings.HasPrefix(a.Code, code) {
				alarm = a
				return ""
			}
		}
		return fmt.Sprintf("no alarm %s of %s among %+v", code, n.Name, st.Alarms)
	})
	return alarm
}

// TestAClusterIsBuiltByTokens: three machines become a cluster by nothing but
// tokens; what is wrong is refused in words; a machine that lost its whole disk
// joins again the same way, and its vote counts.
func TestAClusterIsBuiltByTokens(t *testing.T) {
	t.Parallel()
	c := bare(t, usual)
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	if r := bellwether(t, "", "cluster", "token", "n2", "-c", n1.ConfigFile()); r.code != 1 || !strings.Contains(r.err, "this node did not found the cluster") {
		t.Errorf("a token before the cluster is founded: %+v", r)
	}
	gather(t, c, "")
	users := subscribe(t, c, "token", 4)
	phones := phonesAt(t, users, n1, n2, n3)
	register(t, phones...)
	talkInARing(t, phones, users)

	// The whole disk of n3 is lost.
	cutPower(t, n3)
	if err := os.RemoveAll(n3.DataDir()); err != nil {
		t.Fatal(err)
	}
	more := subscribe(t, c, "after", 1)
	does(t, tokenFor(t, c, "n3"), "cluster", "join", "-", "-c", n3.ConfigFile())
	if err := n3.Start(); err != nil {
		t.Fatal(err)
	}
	ready(t, c)
	eventually(t, upWithin, func() string {
		st, err := n3.Admin.Status(within(t, 2*time.Second))
		switch {
		case err != nil:
			return err.Error()
		case st.Subscribers != len(users)+len(more) || slices.ContainsFunc(st.Alarms, func(a api.Alarm) bool { return a.Severity == "critical" }):
			return fmt.Sprintf("n3 says %+v", st)
		case !strings.Contains(n3.LogTail(1000), "this controller has caught up and votes"):
			return "n3 does not vote"
		}
		return ""
	})
	cutPower(t, n2)
	eventually(t, upWithin, func() string {
		if r := bellwether(t, password, "subscriber", "add", "late@"+domain, "--password-stdin", "--replace", "--socket", n3.AdminSocket()); r.code != 0 {
			return r.err
		}
		return ""
	})
	for _, n := range c.Nodes {
		if strings.Contains(n.LogTail(1e6), "bwjoin1-") {
			t.Errorf("the log of %s holds a token", n.Name)
		}
	}
}

// TestJoiningIsRefusedInWords: what can be wrong with a token, a founder or a
// machine is said, with what to do, and leaves nothing behind.
func TestJoiningIsRefusedInWords(t *testing.T) {
	t.Parallel()
	c := bare(t, workersOf{"n1": {"p1", "i1", "s1"}, "n2": nil, "n3": nil})
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	refused := func(token, file string, says ...string) {
		t.Helper()
		r := bellwether(t, token, "cluster", "join", "-", "-c", file)
		if r.code != 1 || strings.Count(r.err, "\n") != 1 {
			t.Errorf("code %d, %q", r.code, r.err)
		}
		for _, s := range says {
			if !strings.Contains(r.err, s) {
				t.Errorf("it says %q, want %q in it", r.err, s)
			}
		}
	}
	does(t, "", "cluster", "init", "-c", n1.ConfigFile())
	token := tokenFor(t, c, "n2")
	refused(token, n2.ConfigFile(), "nothing answers at the founder's address "+n1.Address.String()+":7400; start 'bellwether node' there first")

	// Another cluster was founded on a machine that says it has this address.
	impostor := configured(t, n1, n1.DataDir(), filepath.Join(shortDir(t), "data"))
	does(t, "", "cluster", "init", "-c", impostor)
	foreign := strings.TrimSpace(does(t, "", "cluster", "token", "n2", "-c", impostor))

	if err := n1.Start(); err != nil { // alone it has no quorum; joining needs none
		t.Fatal(err)
	}
	answers(t, n1)
	refused(foreign, n2.ConfigFile(), "shows another certificate authority than the token names", "nothing was sent")
	refused(token, n3.ConfigFile(), "this token is for node n2, but this machine is configured as node n3")
	refused(tokenFor(t, c, "n3", "--for", "1ms"), n3.ConfigFile(), "this token was good until", "cluster token n3")
	refused(token[:len(token)-4], n2.ConfigFile(), "this is not a join token: a part of it is missing or changed; copy the whole line")
	forged := []byte(token)
	forged[len(forged)-12] ^= 1
	refused(string(forged), n2.ConfigFile(), "a part of it is missing or changed")
	refused("hello", n2.ConfigFile(), "it does not begin with bwjoin1-")
	newer := tokenFor(t, c, "n2")
	refused(token, n2.ConfigFile(), "the founder does not know this token", "replaced by a newer one")
	moved := configured(t, n2, n3.Address.String()+":7400", n3.Address.String()+":7401")
	refused(newer, moved, "node n1 lists the controllers [n1 "+n1.Address.String()+":7400", "node n2 lists", n3.Address.String()+":7401", "write the same cluster.controllers on every node")
	even := configured(t, n2, fmt.Sprintf("    - {name: n3, address: %s}\n", n3.Address.String()+":7400"), "")
	refused(newer, even, "there are 2 controllers; write 1, 3 or 5 of them")
	if _, err := os.Stat(filepath.Join(identity.Dir(n2.DataDir()), "node.key")); err == nil {
		t.Error("a refusal left a key behind")
	}
	does(t, newer, "cluster", "join", "-", "-c", n2.ConfigFile())
	refused(newer, n2.ConfigFile(), "this node belongs to cluster", "already")
	again := configured(t, n2, n2.DataDir(), filepath.Join(shortDir(t), "data"))
	refused(newer, again, "this token was used at", "cluster token n2")

	if out := does(t, "", "cluster", "token", "--list", "-c", n1.ConfigFile()); strings.Count(out, "n2 ") != 1 || !strings.Contains(out, "used") || !strings.Contains(out, "expired") {
		t.Errorf("the list of tokens is\n%s", out)
	}
	last := tokenFor(t, c, "n3")
	does(t, "", "cluster", "token", "--revoke", "n3", "-c", n1.ConfigFile())
	refused(last, n3.ConfigFile(), "the founder does not know this token: it was revoked")
	for _, args := range [][]string{{"n9"}, {"n1"}} {
		if r := bellwether(t, "", append([]string{"cluster", "token", "-c", n1.ConfigFile()}, args...)...); r.code != 1 {
			t.Errorf("token for %v: %+v", args, r)
		}
	}
	if r := bellwether(t, "", "cluster", "token", "n3", "--role", "king", "-c", n1.ConfigFile()); r.code != 2 || !strings.Contains(r.err, `there is no role "king"`) {
		t.Errorf("token for another role: %+v", r)
	}
}

// TestSplitListsDoNotBegin: nodes that do not list the same controllers found
// nothing, say which lists differ, and go on once they agree.
func TestSplitListsDoNotBegin(t *testing.T) {
	t.Parallel()
	c := bare(t, workersOf{"n1": {"p1", "i1", "s1"}, "n2": nil, "n3": nil})
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	does(t, "", "cluster", "init", "-c", n1.ConfigFile())
	for _, n := range []*localcluster.Node{n2, n3} {
		file := filepath.Join(shortDir(t), n.Name+".tar")
		does(t, "", "cluster", "issue", n.Name, "-o", file, "-c", n1.ConfigFile())
		does(t, "", "cluster", "join", file, "-c", n.ConfigFile())
	}
	right, err := os.ReadFile(n2.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := os.ReadFile(configured(t, n2, fmt.Sprintf("{name: n3, address: %s}", n3.Address.String()+":7400"), fmt.Sprintf("{name: n4, address: %s}", freshNet()(4).String()+":7400")))
	if err == nil {
		err = os.WriteFile(n2.ConfigFile(), wrong, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	// The two that differ meet before there is a majority; then the third one comes.
	for _, n := range []*localcluster.Node{n1, n2} {
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []*localcluster.Node{n1, n2, n3} {
		if n == n3 {
			if err := n.Start(); err != nil {
				t.Fatal(err)
			}
		}
		a := alarmed(t, n, "controllers_differs")
		if a.Severity != "critical" || !strings.Contains(a.Text, "n3 "+n3.Address.String()) || !strings.Contains(a.Text, "n4 127.") || !strings.Contains(a.WhatToDo, "write the same cluster.controllers on every node") {
			t.Errorf("%s says %+v", n.Name, a)
		}
		if st, err := n.Admin.Status(within(t, 2*time.Second)); err != nil || st.Quorum {
			t.Errorf("%s has a quorum: %+v, %v", n.Name, st, err)
		}
		eventually(t, upWithin, func() string {
			if !strings.Contains(n.LogTail(1000), "lists the controllers") {
				return "the log says nothing"
			}
			return ""
		})
	}
	if err := os.WriteFile(n2.ConfigFile(), right, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n2.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := n2.Start(); err != nil {
		t.Fatal(err)
	}
	ready(t, c)
}

// TestCertificatesRotateUnderTraffic: with certificates that live for seconds,
// phones register and call for longer than that, and nothing fails. When the
// founder is gone for long, a node says what is about to happen.
func TestCertificatesRotateUnderTraffic(t *testing.T) {
	t.Parallel()
	const lifetime = 12 * time.Second
	c := bare(t, usual)
	gather(t, c, lifetime.String())
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	users := subscribe(t, c, "rotate", 6)
	phones := phonesAt(t, users, n1, n2, n3)
	register(t, phones...)
	first := map[string]pki.Certificate{}
	for _, n := range c.Nodes {
		cert, err := pki.ReadNode(identity.Dir(n.DataDir()))
		if err != nil {
			t.Fatal(err)
		}
		first[n.Name] = cert
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i := range phones {
		wg.Go(func() {
			for calls := 0; !t.Failed(); calls++ {
				select {
				case <-done:
					return
				default:
				}
				if i%2 == 1 { // the others are called, and register again
					if err := phones[i].Register(within(t, 15*time.Second)); err != nil {
						t.Errorf("%s registers again: %v", users[i], err)
					}
					select {
					case <-done:
					case <-time.After(500 * time.Millisecond):
					}
					continue
				}
				talk(t, phones[i], users[i+1])
			}
		})
	}
	// Every certificate that the cluster began with has run out, and so has
	// every connection that was made with it.
	eventually(t, 6*lifetime, func() string {
		for _, n := range c.Nodes {
			cert, err := pki.ReadNode(identity.Dir(n.DataDir()))
			if err != nil {
				return err.Error()
			}
			if old := first[n.Name]; !old.Expired(time.Now()) || !cert.NotAfter.After(old.NotAfter) || t.Failed() {
				return n.Name + " has its first certificate"
			}
		}
		return ""
	})
	close(done)
	wg.Wait()
	st, err := n2.Admin.Status(within(t, 5*time.Second))
	if err != nil || !st.Quorum {
		t.Fatalf("status %+v, %v", st, err)
	}
	for _, a := range st.Alarms {
		if strings.HasPrefix(a.Code, "certificate") {
			t.Errorf("alarm %+v", a)
		}
	}

	// The founder's front is held up: nobody renews.
	for _, pid := range append(children(t, n1, "front"), n1.PID()) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	}
	a := alarmed(t, n3, "certificate_")
	if a.Node != "n3" || !strings.Contains(a.Text+a.WhatToDo, "bellwether cluster") {
		t.Errorf("alarm %+v", a)
	}
	alarmed(t, n3, "certificate_expired")
	n3.Kill()
	refuses(t, n3.ConfigFile(), "the certificate of node n3 ran out on")
	for _, pid := range append(children(t, n1, "front"), n1.PID()) {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	// As it says, a token makes the node good again, with what it has on disk.
	eventually(t, upWithin, func() string {
		if r := bellwether(t, tokenFor(t, c, "n3"), "cluster", "join", "-", "-c", n3.ConfigFile()); r.code != 0 {
			return r.err
		}
		return ""
	})
	n2.Kill() // its certificate may have run out as well, so it goes the same way
	eventually(t, upWithin, func() string {
		if cert, err := pki.ReadNode(identity.Dir(n2.DataDir())); err == nil && !cert.Expired(time.Now()) {
			return ""
		}
		if r := bellwether(t, tokenFor(t, c, "n2"), "cluster", "join", "-", "-c", n2.ConfigFile()); r.code != 0 {
			return r.err
		}
		return ""
	})
	for _, n := range []*localcluster.Node{n2, n3} {
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	ready(t, c)
	talk(t, phones[0], users[1])
}
