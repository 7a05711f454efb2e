package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/identity"
)

func TestAClusterIsFoundedAndJoined(t *testing.T) {
	dir := t.TempDir()
	n1, n2 := configFile(t, dir, "n1", dir), configFile(t, dir, "n2", dir)
	bundle := filepath.Join(dir, "n2.tar")

	r := run(t, Hooks{}, "", "cluster", "issue", "n2", "-c", n1, "-o", bundle)
	r.is(t, "", "bellwether: this node did not found the cluster: there is no "+filepath.Join(dir, "n1", "ca")+"; run this on the node where you ran bellwether cluster init\n", Failed)

	r = run(t, Hooks{}, "", "cluster", "init", "-c", n1)
	m := regexp.MustCompile(`^cluster example\.test \(([a-z0-9]+)\) is founded; its key is in (\S+), keep a copy in a safe place\n` +
		`next: bellwether cluster token n2 -c \S+\nnext: bellwether cluster token n3 -c \S+\nthen: bellwether node -c \S+\n$`).FindStringSubmatch(r.out)
	if m == nil || r.code != OK {
		t.Fatalf("init = %+v", r)
	}
	id := m[1]
	run(t, Hooks{}, "", "cluster", "init", "-c", n1).is(t, "", "bellwether: cluster example.test ("+id+") is founded already; certify other nodes with bellwether cluster token NODE\n", Failed)

	run(t, Hooks{}, "", "cluster", "issue", "n9", "-c", n1).is(t, "", `bellwether: "n9" is not among cluster.controllers of `+n1+"; add it there first\n", Failed)
	r = run(t, Hooks{}, "", "cluster", "issue", "n2", "-c", n1, "-o", bundle, "--json")
	var issued struct{ Node, File string }
	if err := json.Unmarshal([]byte(r.out), &issued); err != nil || issued.Node != "n2" || issued.File != bundle {
		t.Fatalf("issue = %+v, %v", r, err)
	}
	if info, err := os.Stat(bundle); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the bundle is %v, %v", info, err)
	}
	run(t, Hooks{}, "", "cluster", "issue", "n2", "-c", n1, "-o", bundle).is(t, "", "bellwether: "+bundle+" exists; remove it or name another file with --output\n", Failed)

	n3 := configFile(t, dir, "n3", dir)
	run(t, Hooks{}, "", "cluster", "join", bundle, "-c", n3).is(t, "", "bellwether: "+bundle+" is for node n2, but "+n3+" is for node n3; run this on n2\n", Failed)
	if r := run(t, Hooks{}, "", "cluster", "join", n1, "-c", n2); r.code != Failed || !strings.HasSuffix(r.err, n1+" is not a file that bellwether cluster issue wrote\n") {
		t.Errorf("join with a wrong file = %+v", r)
	}
	run(t, Hooks{}, "", "cluster", "join", bundle, "-c", n2).is(t, "this is now node n2 of cluster example.test ("+id+"); delete "+bundle+"\nnext: bellwether node -c "+n2+"\n", "", OK)
	for _, node := range []string{"n1", "n2"} {
		if got, err := identity.Load(filepath.Join(dir, node), node); err != nil || got.ClusterID != id {
			t.Errorf("%s is %+v, %v", node, got, err)
		}
	}
	for _, args := range [][]string{{"init"}, {"join", bundle}} {
		r := run(t, Hooks{}, "", append(append([]string{"cluster"}, args...), "-c", n2)...)
		if r.code != Failed || !strings.HasPrefix(r.err, "bellwether: this node belongs to cluster example.test ("+id+") already; ") {
			t.Errorf("%v on a node of the cluster = %+v", args, r)
		}
	}
}

func TestAFoundingThatWasCutShortGoesOn(t *testing.T) {
	dir := t.TempDir()
	n1 := configFile(t, dir, "n1", dir)
	if r := run(t, Hooks{}, "", "cluster", "init", "-c", n1, "--name", "First"); r.code != OK {
		t.Fatalf("init = %+v", r)
	}
	before, err := identity.Load(filepath.Join(dir, "n1"), "n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(identity.Dir(filepath.Join(dir, "n1"))); err != nil {
		t.Fatal(err)
	}
	if r := run(t, Hooks{}, "", "cluster", "init", "-c", n1); r.code != OK {
		t.Fatalf("second init = %+v", r)
	}
	after, err := identity.Load(filepath.Join(dir, "n1"), "n1")
	if err != nil || after.ClusterID != before.ClusterID || after.ClusterName != "First" {
		t.Errorf("the cluster became %+v, %v; it was %+v", after, err, before)
	}
}

func TestTokensAreMadeListedAndRevoked(t *testing.T) {
	dir := t.TempDir()
	n1 := configFile(t, dir, "n1", dir)
	run(t, Hooks{}, "", "cluster", "token", "n2", "-c", n1).is(t, "", "bellwether: this node did not found the cluster: there is no "+filepath.Join(dir, "n1", "ca")+"; run this on the node where you ran bellwether cluster init\n", Failed)
	if r := run(t, Hooks{}, "", "cluster", "init", "-c", n1); r.code != OK {
		t.Fatalf("init = %+v", r)
	}
	r := run(t, Hooks{}, "", "cluster", "token", "n2", "--for", "2h", "-c", n1)
	if r.code != OK || !regexp.MustCompile(`^bwjoin1-\S+\n$`).MatchString(r.out) || !strings.Contains(r.err, "good once, for node n2, until ") {
		t.Errorf("token = %+v", r)
	}
	r = run(t, Hooks{}, "", "cluster", "token", "n3", "--json", "-c", n1)
	var made struct {
		Token, Node, Role string
		Expires           time.Time
	}
	if err := json.Unmarshal([]byte(r.out), &made); err != nil || !strings.HasPrefix(made.Token, "bwjoin1-") || made.Node != "n3" || made.Role != "controller" || time.Until(made.Expires) > 30*time.Minute {
		t.Errorf("token --json = %+v, %v", r, err)
	}
	r = run(t, Hooks{}, "", "cluster", "token", "n3", "-c", n1)
	if !strings.HasPrefix(r.err, "the token that node n3 had is useless now; this one takes its place\n") {
		t.Errorf("a second token = %+v", r)
	}
	r = run(t, Hooks{}, "", "cluster", "token", "--list", "--json", "-c", n1)
	if strings.Count(r.out, `"state": "open"`) != 2 || r.code != OK || strings.Contains(r.out, "hash") || strings.Count(r.out, `"node"`) != 2 {
		t.Errorf("list = %+v", r)
	}
	run(t, Hooks{}, "", "cluster", "token", "--revoke", "n3", "-c", n1).is(t, "the token of node n3 is useless now\n", "", OK)
	run(t, Hooks{}, "", "cluster", "token", "--revoke", "n3", "-c", n1).is(t, "", "bellwether: node n3 has no token that is still good; 'bellwether cluster token --list' shows all\n", Failed)
	for _, args := range [][]string{{}, {"n2", "--list"}, {"--list", "--revoke", "n2"}, {"n2", "--for", "0s"}, {"n2", "--for", "999h"}, {"n2", "--role", "king"}} {
		if r := run(t, Hooks{}, "", append([]string{"cluster", "token", "-c", n1}, args...)...); r.code != Usage {
			t.Errorf("token %v = %+v", args, r)
		}
	}
	n2 := configFile(t, dir, "n2", dir)
	for text, says := range map[string]string{"": "standard input is empty; give it the token", "x": "this is not a join token", made.Token: "this token is for node n3, but this machine is configured as node n2"} {
		if r := run(t, Hooks{}, text, "cluster", "join", "-", "-c", n2); r.code != Failed || !strings.Contains(r.err, says) {
			t.Errorf("join with %q = %+v", text, r)
		}
	}
	run(t, Hooks{}, "", "cluster", "join", "nothing", "-c", n2).is(t, "", `bellwether: "nothing" is neither a token, which begins with bwjoin1-, nor a file`+"\n", Failed)
}
