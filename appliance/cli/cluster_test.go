package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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
