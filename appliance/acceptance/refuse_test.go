package acceptance

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bellwether/appliance/identity"
	"bellwether/appliance/localcluster"
)

// alone is a cluster of one node with every kind of worker.
var alone = workersOf{"n1": {"p1", "i1", "s1"}}

// shortDir is a temporary directory whose path is short enough for sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(tmp, "d-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// written is a cluster whose files are written, and which never ran.
func written(t testing.TB, w workersOf) *localcluster.Cluster {
	t.Helper()
	c, err := localcluster.Create(specOf(shortDir(t), w))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// configured returns a copy of a node's configuration file with replacements,
// pairs of old and new.
func configured(t testing.TB, n *localcluster.Node, replacements ...string) (file string) {
	t.Helper()
	b, err := os.ReadFile(n.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	s := string(b)
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(s, replacements[i]) {
			t.Fatalf("the configuration has no %q:\n%s", replacements[i], s)
		}
		s = strings.Replace(s, replacements[i], replacements[i+1], 1)
	}
	file = filepath.Join(shortDir(t), "changed.yaml")
	if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// refuses runs a node that must not start: it ends with code 1 and says why.
// Two processes start at once, so it may be one reason or the other.
func refuses(t testing.TB, file string, says ...string) {
	t.Helper()
	r := bellwether(t, "", "node", "-c", file)
	if r.code != 1 || !slices.ContainsFunc(says, func(s string) bool { return strings.Contains(r.err, s) }) {
		t.Errorf("exit code %d, want 1; and one of %q on standard error:\n%s", r.code, says, r.err)
	}
}

// lineOf is the number of the line of a file that holds a text.
func lineOf(t testing.TB, file, text string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(b), text)
	return 1 + strings.Count(before, "\n")
}

// contents is a hash of every file under a directory, by name, and of what
// kind everything else is. Sockets come and go.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() == fs.ModeSocket {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		out[path] = info.Mode().String()
		if d.Type().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out[path] += fmt.Sprintf(" %x", sha256.Sum256(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unchanged wants a directory to be as it was.
func unchanged(t testing.TB, dir string, before map[string]string) {
	t.Helper()
	after := contents(t, dir)
	for path, was := range before {
		if after[path] != was {
			t.Errorf("%s is now %q, was %q", path, after[path], was)
		}
	}
	for path := range after {
		if before[path] == "" {
			t.Errorf("%s is new", path)
		}
	}
}

// copyDir copies a directory of plain files.
func copyDir(t testing.TB, to, from string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	c := written(t, usual)
	n := c.Node("n1")
	a := n.Address.String()
	for _, tt := range []struct{ name, old, new, wrong, says string }{
		{"an unknown key", "  domain:", "  domian: x.test\n  domain:", "domian", `unknown key "sip.domian"; write domain`},
		{"an address that is none", "  address: " + a + "\n", "  address: 10.0.0\n", "10.0.0\n", `sip.address "10.0.0"`},
		{"two entries on one port", "i_cscf: 4060", "i_cscf: 5060", "i_cscf", "sip.p_cscf and sip.i_cscf both want " + a + ":5060; write a different port"},
		{"metrics on the cluster's port", "listen: " + a + ":9090", "listen: " + a + ":7400", "listen", "cluster.address and metrics.listen both want " + a + ":7400"},
		{"not YAML", "  p_cscf: 5060", "  p_cscf: [5060", "p_cscf", "this is not YAML"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := configured(t, n, tt.old, tt.new)
			before := contents(t, c.Spec.Dir)
			refuses(t, file, fmt.Sprintf("%s:%d: %s", file, lineOf(t, file, tt.wrong), tt.says))
			unchanged(t, c.Spec.Dir, before)
		})
	}
	t.Run("no file", func(t *testing.T) { refuses(t, "/nowhere/at/all.yaml", "/nowhere/at/all.yaml") })
}

func TestMissingCertificatesAreNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		remove []string
		says   string
	}{
		{"none at all", []string{"ca.pem", "node.pem", "node.key", "cluster.json"}, "belongs to no cluster yet"},
		{"no certificate of the cluster", []string{"ca.pem"}, "ca.pem: no such file or directory; it is the same on every node"},
		{"no certificate of the node", []string{"node.pem"}, "node.pem"},
		{"no key of the node", []string{"node.key"}, "node.key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := written(t, alone)
			n := c.Nodes[0]
			for _, f := range tt.remove {
				if err := os.Remove(filepath.Join(identity.Dir(n.DataDir()), f)); err != nil {
					t.Fatal(err)
				}
			}
			before := contents(t, n.DataDir())
			refuses(t, n.ConfigFile(), tt.says)
			unchanged(t, n.DataDir(), before)
		})
	}
}

// TestForeignDataDirectoriesAreLeftAlone: what another node, or a node of
// another cluster, has written is neither used nor touched.
func TestForeignDataDirectoriesAreLeftAlone(t *testing.T) {
	t.Parallel()
	ran := start(t, alone, nil)
	n := ran.Nodes[0]
	users := subscribe(t, ran, "owner", 1)
	register(t, newPhone(t, n, users[0], nil))
	if err := ran.Stop(); err != nil {
		t.Fatal(err)
	}

	t.Run("of another cluster", func(t *testing.T) {
		other := written(t, alone).Nodes[0]
		dir := shortDir(t)
		copyDir(t, dir, n.DataDir())
		copyDir(t, identity.Dir(dir), identity.Dir(other.DataDir()))
		file := configured(t, other, other.DataDir(), dir)
		before := contents(t, dir)
		refuses(t, file, "is of cluster "+ran.ID, `it belongs to "`+ran.ID+`/n1"`)
		unchanged(t, dir, before)
	})
	t.Run("of another node", func(t *testing.T) {
		// The cluster had three nodes; its second gets the directory of the first.
		three := written(t, usual)
		second := three.Node("n2")
		dir := shortDir(t)
		copyDir(t, dir, second.DataDir())
		for _, part := range []string{"raft", "store"} {
			copyDir(t, filepath.Join(dir, part), filepath.Join(n.DataDir(), part))
		}
		owner := filepath.Join(dir, "raft", "member.json")
		b, err := os.ReadFile(owner)
		if err != nil {
			t.Fatal(err)
		}
		b = []byte(strings.NewReplacer(ran.ID, three.ID, `["n1"]`, `["n1","n2","n3"]`).Replace(string(b)))
		if err := os.WriteFile(owner, b, 0o600); err != nil {
			t.Fatal(err)
		}
		before := contents(t, dir)
		refuses(t, configured(t, second, second.DataDir(), dir), "is node n1's, this is node n2", `it belongs to "`+ran.ID+`/n1"`)
		unchanged(t, dir, before)
	})
	t.Run("with the certificate of another node", func(t *testing.T) {
		three := written(t, usual)
		first := three.Node("n1")
		copyDir(t, identity.Dir(first.DataDir()), identity.Dir(three.Node("n2").DataDir()))
		before := contents(t, first.DataDir())
		refuses(t, first.ConfigFile(), "is node n2's, not node n1's")
		unchanged(t, first.DataDir(), before)
	})
	t.Run("with the registrations of another cluster only", func(t *testing.T) {
		other := written(t, alone).Nodes[0]
		store := filepath.Join(other.DataDir(), "store")
		copyDir(t, store, filepath.Join(n.DataDir(), "store"))
		before := contents(t, store)
		refuses(t, other.ConfigFile(), `it belongs to "`+ran.ID+`/n1"`)
		unchanged(t, store, before)
	})
	t.Run("with another set of controllers", func(t *testing.T) {
		dir := shortDir(t)
		copyDir(t, dir, n.DataDir())
		controllers := fmt.Sprintf("{name: n1, address: %s:7400}\n", n.Address)
		file := configured(t, n, n.DataDir(), dir, controllers,
			controllers+"    - {name: n2, address: 127.1.1.2:7400}\n    - {name: n3, address: 127.1.1.3:7400}\n")
		raft := filepath.Join(dir, "raft") // the rest is this node's, whose worker may have been quicker
		before := contents(t, raft)
		refuses(t, file, "was begun with the controllers [n1]")
		unchanged(t, raft, before)
	})
	t.Run("and the owner finds it as it was", func(t *testing.T) {
		if err := ran.Start(); err != nil {
			t.Fatal(err)
		}
		ready(t, ran)
		whereabouts(t, n, users)
	})
}

// TestSecondNodeIsRefused: whoever comes second, with the directories, sockets
// or ports of a node that runs, says so and goes; the first does not notice.
func TestSecondNodeIsRefused(t *testing.T) {
	t.Parallel()
	c := start(t, alone, nil)
	n := c.Nodes[0]
	users := subscribe(t, c, "first", 2)
	phones := phonesAt(t, users, n)
	register(t, phones...)

	addr := freshNet()
	elsewhere := func(host int, more ...string) []string {
		a := addr(host).String()
		b := n.Address.String()
		return append([]string{b + ":7400", a + ":7400", b + ":7400", a + ":7400", "address: " + b + "\n", "address: " + a + "\n", b + ":9090", a + ":9090"}, more...)
	}
	other := func(t *testing.T) (dataDir string) { // this cluster's certificates, nothing else
		dataDir = shortDir(t)
		copyDir(t, identity.Dir(dataDir), identity.Dir(n.DataDir()))
		// Nor does it know that the cluster has begun.
		if err := os.Remove(filepath.Join(identity.Dir(dataDir), "begun")); err != nil {
			t.Fatal(err)
		}
		return dataDir
	}
	busy := func(t *testing.T, network string, port uint16) string {
		a := netip.AddrPortFrom(addr(200), port)
		if network == "tcp" {
			l, err := net.Listen(network, a.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			return a.String()
		}
		l, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(a))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return a.String()
	}
	for i, tt := range []struct {
		name string
		file func(t *testing.T, host int) string
		says []string
	}{
		{"the same configuration again", func(*testing.T, int) string { return n.ConfigFile() }, []string{"a node runs already in node.data_dir " + n.DataDir()}},
		{"the same data directory", func(t *testing.T, host int) string {
			return configured(t, n, elsewhere(host, n.RunDir(), shortDir(t))...)
		}, []string{"a node runs already in node.data_dir " + n.DataDir()}},
		{"the same run directory", func(t *testing.T, host int) string {
			return configured(t, n, elsewhere(host, n.DataDir(), other(t))...)
		}, []string{"a node runs already in node.run_dir " + n.RunDir()}},
		{"a port for phones that is in use", func(t *testing.T, _ int) string {
			busy(t, "udp", 5060)
			return configured(t, n, elsewhere(200, n.DataDir(), other(t), n.RunDir(), shortDir(t))...)
		}, []string{addr(200).String() + ":5060"}},
		{"a cluster port that is in use", func(t *testing.T, _ int) string {
			busy(t, "tcp", 7400)
			return configured(t, n, elsewhere(200, n.DataDir(), other(t), n.RunDir(), shortDir(t))...)
		}, []string{addr(200).String() + ":7400"}},
		{"a metrics port that is in use", func(t *testing.T, _ int) string {
			busy(t, "tcp", 9090)
			return configured(t, n, elsewhere(200, n.DataDir(), other(t), n.RunDir(), shortDir(t))...)
		}, []string{addr(200).String() + ":9090"}},
		{"an address of another machine", func(t *testing.T, _ int) string {
			return configured(t, n, elsewhere(201, n.DataDir(), other(t), n.RunDir(), shortDir(t),
				"address: "+addr(201).String()+"\n", "address: 192.0.2.1\n")...)
		}, []string{"192.0.2.1"}},
	} {
		t.Run(tt.name, func(t *testing.T) { refuses(t, tt.file(t, 10+i), tt.says...) })
	}
	ready(t, c)
	whereabouts(t, n, users)
	talk(t, phones[0], users[1])
}

func TestFoundingTwiceIsRefused(t *testing.T) {
	t.Parallel()
	n := written(t, alone).Nodes[0]
	dir := shortDir(t)
	file := configured(t, n, n.DataDir(), dir)
	if r := bellwether(t, "", "cluster", "init", "-c", file); r.code != 0 {
		t.Fatalf("cluster init: %+v", r)
	}
	before := contents(t, dir)
	if r := bellwether(t, "", "cluster", "init", "-c", file); r.code != 1 || !strings.Contains(r.err, "is founded already") {
		t.Errorf("second cluster init: %+v", r)
	}
	unchanged(t, dir, before)
}
