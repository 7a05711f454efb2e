package consensus

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bellwether/controller/mesh"
	"bellwether/controller/mesh/meshtest"
	"bellwether/controller/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is some members in one process, each with its own mesh on
// 127.0.0.x and its own directory.
type cluster struct {
	t       *testing.T
	ca      *meshtest.CA
	dir     string
	members []Member
	running map[string]*member
	tweak   func(*Config)

	certificates func(node string) func() (*tls.Certificate, error) // nil: one for all the time
}

type member struct {
	*Controller
	mesh *mesh.Mesh
}

// newCluster starts n members and waits until they have an identity and agree
// on a leader.
func newCluster(t *testing.T, n int, tweak func(*Config)) *cluster {
	t.Helper()
	c := &cluster{tweak: tweak}
	c.begin(t, n)
	return c
}

// begin starts n members and waits until they have an identity and agree on a
// leader.
func (c *cluster) begin(t *testing.T, n int) {
	t.Helper()
	meshes := c.unfounded(t, n)
	for i, m := range c.members {
		c.startOn(m.Name, meshes[i])
	}
	for _, m := range c.running {
		c.await(m, func(s *state.State) bool { return s.ClusterID() == "c1" })
	}
}

// unfounded is n members that have their ports and nothing else.
func unfounded(t *testing.T, n int, tweak func(*Config)) (*cluster, []*mesh.Mesh) {
	t.Helper()
	c := &cluster{tweak: tweak}
	return c, c.unfounded(t, n)
}

func (c *cluster) unfounded(t *testing.T, n int) []*mesh.Mesh {
	t.Helper()
	c.t, c.ca, c.dir, c.running = t, meshtest.NewCA(t, "c1"), t.TempDir(), make(map[string]*member)
	meshes := make([]*mesh.Mesh, n)
	for i := range n {
		name := fmt.Sprintf("n%d", i+1)
		meshes[i] = c.listen(name, fmt.Sprintf("127.0.0.%d:0", i+1))
		c.members = append(c.members, Member{Name: name, Addr: meshes[i].Addr().String()})
	}
	t.Cleanup(c.stop)
	return meshes
}

func (c *cluster) listen(name, addr string) *mesh.Mesh {
	c.t.Helper()
	cfg := c.ca.Config(c.t, name, addr)
	if c.certificates != nil {
		cfg.Certificate = c.certificates(name)
	}
	m, err := mesh.Listen(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

func (c *cluster) config(name string, m *mesh.Mesh) Config {
	cfg := Config{
		Node: name, ClusterID: c.ca.ClusterID, DataDir: filepath.Join(c.dir, name), Members: c.members, Mesh: m,
		Init:    &state.Init{ClusterID: c.ca.ClusterID, Name: "test"},
		Log:     slog.New(slog.DiscardHandler),
		OnStall: func() { c.t.Errorf("the watchdog of %s bites", name) },
	}
	if len(c.members) > 1 {
		// Most tests are not about elections; on a busy machine none should come in between.
		cfg.electionTimeout = 400 * time.Millisecond
	}
	if c.tweak != nil {
		c.tweak(&cfg)
	}
	return cfg
}

func (c *cluster) startOn(name string, m *mesh.Mesh) {
	c.t.Helper()
	ctl, err := Start(c.t.Context(), c.config(name, m))
	if err != nil {
		_ = m.Close()
		c.t.Fatal(err)
	}
	c.running[name] = &member{ctl, m}
}

// start starts a member again on its address and directory.
func (c *cluster) start(name string) *member {
	c.t.Helper()
	for _, m := range c.members {
		if m.Name == name {
			c.startOn(name, c.listen(name, m.Addr))
		}
	}
	return c.running[name]
}

// kill cuts a member's connections and ends it.
func (c *cluster) kill(name string) {
	c.t.Helper()
	m := c.running[name]
	delete(c.running, name)
	if err := m.mesh.Close(); err != nil {
		c.t.Error(err)
	}
	if err := m.Close(); err != nil {
		c.t.Error(err)
	}
}

func (c *cluster) stop() {
	for _, m := range c.members {
		if c.running[m.Name] != nil {
			c.kill(m.Name)
		}
	}
}

func (c *cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	c.t.Cleanup(cancel)
	return ctx
}

func (c *cluster) await(m *member, ok func(*state.State) bool) *state.State {
	c.t.Helper()
	s, err := m.Wait(c.ctx(), ok)
	if err != nil {
		c.t.Fatalf("%s: %v", m.cfg.Node, err)
	}
	return s
}

// leader waits until a running member serves as the leader.
func (c *cluster) leader() *member {
	c.t.Helper()
	var found *member
	eventually(c.t, func() bool {
		for _, m := range c.running {
			if m.leader.serving.Load() {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

func (c *cluster) followers() []*member {
	c.t.Helper()
	leader := c.leader()
	var followers []*member
	for _, m := range c.members {
		if f := c.running[m.Name]; f != nil && f != leader {
			followers = append(followers, f)
		}
	}
	return followers
}

// eventually polls a condition that raft does not signal.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("condition did not come true")
		}
	}
}

func (c *cluster) propose(m *member, cmd state.Command) state.Result {
	c.t.Helper()
	r, err := m.Propose(c.ctx(), cmd)
	if err != nil {
		c.t.Fatalf("propose %v on %s: %v", cmd, m.cfg.Node, err)
	}
	return r
}

// populate makes a node and n S-CSCF workers.
func (c *cluster) populate(n int) []state.GroupID {
	c.t.Helper()
	m := c.leader()
	c.propose(m, state.Command{PutNode: &state.Node{Name: "n1", Service: netip.MustParseAddr("127.0.0.1"), S: 6060}})
	var groups []state.GroupID
	for i := range n {
		r := c.propose(m, state.Command{PutWorker: &state.Worker{ID: fmt.Sprintf("s%d", i+1), Kind: state.SCSCF, Node: "n1"}})
		groups = append(groups, r.Group)
	}
	return groups
}

func encoded(t *testing.T, s *state.State) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := state.EncodeSnapshot(&buf, s); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
