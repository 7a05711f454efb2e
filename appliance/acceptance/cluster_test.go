package acceptance

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/controller/api"
	"bellwether/cscf/digest"
)

const (
	domain   = "acceptance.test"
	password = "pa55word" // of every subscriber
	upWithin = 30 * time.Second
)

var (
	binary string // the program under test, built with the race detector
	tmp    string

	logsMu sync.Mutex
	logs   []string // of every node that ran

	secretsMu sync.Mutex
	secrets   = map[string]bool{} // HA1, K and OPc of every subscriber, in lower-case hex
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	var err error
	if tmp, err = os.MkdirTemp("", "bw-acceptance-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(tmp)
	// Else each process with the race detector waits for a second when it ends.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	binary = filepath.Join(tmp, "bellwether")
	args := []string{"build", "-race", "-o", binary, "bellwether/appliance/cmd/bellwether"}
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() != "" {
		args = slices.Delete(args, 1, 2) // figures are those of the real program
	}
	build := exec.Command("go", args...)
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program under test:", err)
		return 1
	}
	code = m.Run()
	for _, c := range []*localcluster.Cluster{shared.c, quick.c, besieged.c, stormed.c} {
		if c == nil {
			continue
		}
		if err := c.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	for _, f := range logs {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the test's own directory is gone; it was searched then
		}
		if complain(os.Stderr.WriteString, f, string(b)) {
			code = 1
		}
	}
	return code
}

var digits = regexp.MustCompile(`[0-9a-fA-F]{32,}`)

// complain reports a data race, a panic or a secret in a node's log or in what
// a command printed.
func complain(say func(string) (int, error), file, log string) bool {
	at, bad := -1, ""
	for _, bad = range []string{"DATA RACE", "panic:", "fatal error:", password} {
		if at = strings.Index(log, bad); at >= 0 {
			break
		}
	}
	secretsMu.Lock()
	defer secretsMu.Unlock()
	for _, i := range digits.FindAllStringIndex(log, -1) {
		if at < 0 && secrets[strings.ToLower(log[i[0]:i[1]])] {
			at, bad = i[0], "HA1 or key of a subscriber"
		}
	}
	if at < 0 {
		return false
	}
	_, _ = say(fmt.Sprintf("%s in %s:\n%.4000s\n", bad, file, log[max(0, at-200):]))
	return true
}

var networks atomic.Int32

var loopbackClaim net.Listener // keeps other runs of these tests off the addresses of this one

// loopback is the second byte of all addresses of this process.
var loopback = sync.OnceValue(func() byte {
	for b := byte(78); ; b++ {
		l, err := net.Listen("tcp4", fmt.Sprintf("127.%d.255.254:7400", b))
		if err == nil || b == 255 {
			loopbackClaim = l
			return b
		}
	}
})

// freshNet returns a loopback network of its own for a cluster or for phones:
// addr(n) is its host n. Nothing else in the tests uses it.
func freshNet() (addr func(host int) netip.Addr) {
	n := networks.Add(1)
	return func(host int) netip.Addr {
		return netip.AddrFrom4([4]byte{127, loopback(), byte(n), byte(host)})
	}
}

// workersOf is which workers run on which node.
type workersOf map[string][]string

// usual is two P-, I- and S-CSCFs on two nodes and a third controller.
var usual = workersOf{"n1": {"p1", "i1", "s1"}, "n2": {"p2", "i2", "s2"}, "n3": nil}

// start runs a cluster of its own for a test and stops it at its end.
func start(t testing.TB, w workersOf, change func(*localcluster.Spec)) *localcluster.Cluster {
	t.Helper()
	dir, err := os.MkdirTemp(tmp, "cluster-")
	if err != nil {
		t.Fatal(err)
	}
	c, err := launch(dir, w, change)
	if c != nil {
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
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// specOf describes a cluster on addresses of its own.
func specOf(dir string, w workersOf) localcluster.Spec {
	addr := freshNet()
	spec := localcluster.Spec{
		Dir: dir, Binary: binary, Domain: domain,
		PortP: 5060, PortI: 4060, PortS: 6060, PortNode: 7400, PortHTTP: 9090,
		SIP: []string{"min_expires: 1"},
	}
	for i := range len(w) {
		name := fmt.Sprintf("n%d", i+1)
		spec.Nodes = append(spec.Nodes, localcluster.NodeSpec{Name: name, Address: addr(i + 1), Workers: w[name]})
	}
	return spec
}

func launch(dir string, w workersOf, change func(*localcluster.Spec)) (*localcluster.Cluster, error) {
	spec := specOf(dir, w)
	if change != nil {
		change(&spec)
	}
	c, err := localcluster.Create(spec)
	if err != nil {
		return nil, err
	}
	logsMu.Lock()
	for _, n := range c.Nodes {
		logs = append(logs, n.LogFile())
	}
	logsMu.Unlock()
	if err := c.Start(); err != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), upWithin)
	defer cancel()
	return c, c.WaitReady(ctx)
}

var shared, quick, besieged struct {
	once sync.Once
	c    *localcluster.Cluster
	err  error
}

// quickCluster is one that tests share for what takes long: its timers run
// ten times as fast (T1 is 50 ms), and it wants registrations of at least a
// minute. All its subscribers have an MD5 and a SHA-256 secret: see subscribe.
func quickCluster(t testing.TB) *localcluster.Cluster {
	t.Helper()
	quick.once.Do(func() {
		dir := filepath.Join(tmp, "quick")
		quick.c, quick.err = launch(dir, usual, func(s *localcluster.Spec) {
			s.SIP = []string{"t1_ms: 50", "min_expires: 60", "default_expires: 600", "max_expires: 7200"}
		})
	})
	if quick.err != nil {
		t.Fatal(quick.err)
	}
	return quick.c
}

// sharedCluster is the cluster of the usual shape that all tests share which
// break nothing. Tests use subscribers of their own: see subscribe.
func sharedCluster(t testing.TB) *localcluster.Cluster {
	t.Helper()
	shared.once.Do(func() {
		dir := filepath.Join(tmp, "shared")
		shared.c, shared.err = launch(dir, usual, nil)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.c
}

// subscribe stores n subscribers PREFIX0000.. with the common password and
// returns their user parts. Their IMPI is user@domain, their IMPU sip:user@domain.
func subscribe(t testing.TB, c *localcluster.Cluster, prefix string, n int) []string {
	t.Helper()
	var users []string
	var all []api.NewSubscriber
	for i := range n {
		u := fmt.Sprintf("%s%04d", prefix, i)
		users = append(users, u)
		all = append(all, subscriber(u))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := c.Nodes[0].Admin.ImportSubscribers(ctx, all); err != nil {
		t.Fatal(err)
	}
	return users
}

func subscriber(user string, more ...api.Identity) api.NewSubscriber {
	impi := user + "@" + domain
	ha1 := api.Credentials{
		MD5:    digest.HA1(digest.MD5, impi, domain, password),
		SHA256: digest.HA1(digest.SHA256, impi, domain, password),
	}
	secretsMu.Lock()
	secrets[ha1.MD5], secrets[ha1.SHA256] = true, true
	secretsMu.Unlock()
	return api.NewSubscriber{
		IMPI: impi, Realm: domain, HA1: ha1,
		Identities: append([]api.Identity{{URI: "sip:" + impi}}, more...),
	}
}

// eventually waits for a condition, which says what is still missing.
func eventually(t testing.TB, within time.Duration, missing func() string) {
	t.Helper()
	end := time.Now().Add(within)
	for {
		m := missing()
		if m == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %v: %s", within, m)
		}
		<-time.After(20 * time.Millisecond)
	}
}
