package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bellwether/controller/mesh/meshtest"
	"bellwether/controller/state"
)

func TestAnyMemberCarriesOutCommandsAndThenShowsThem(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	for i, m := range []*member{c.leader(), c.followers()[0], c.followers()[1]} {
		name := fmt.Sprintf("setting%d", i)
		r := c.propose(m, state.Command{Set: &state.Set{Name: name, Value: "on"}})
		if v, ok := m.State().Setting(name); !ok || v != "on" || m.State().Index() < r.Index {
			t.Errorf("%s: the local copy shows %q after Propose", m.cfg.Node, v)
		}
	}
	secret := c.leader().State().Secret()
	if len(secret) != 32 || bytes.Equal(secret, make([]byte, 32)) {
		t.Errorf("the cluster's secret has %d bytes", len(secret))
	}
	f := c.followers()[0]
	r, err := f.Propose(c.ctx(), state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "nobody"}})
	if !errors.Is(err, &state.Error{Code: state.NotFound}) || r.Err == nil {
		t.Errorf("refused command: %v, %v", r, err)
	}
	if r, err = f.Propose(c.ctx(), state.Command{}); !errors.Is(err, &state.Error{Code: state.Unsupported}) || r.Err == nil {
		t.Errorf("empty command: %v, %v", r, err)
	}
	s := f.Status()
	if s.State != "follower" || s.Leader != c.leader().cfg.Node || len(s.Members) != 3 || s.Term == 0 || s.LastContact < 0 {
		t.Errorf("status of a follower: %+v", s)
	}
	if s := c.leader().Status(); s.State != "leader" || s.LastContact != 0 || s.AppliedIndex == 0 {
		t.Errorf("status of the leader: %+v", s)
	}
}

func TestOneMemberIsACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	c.populate(1)
	before := c.running["n1"].State()
	c.kill("n1")
	c.start("n1")
	s := c.await(c.running["n1"], func(s *state.State) bool { return s.Index() >= before.Index() })
	if !bytes.Equal(s.Secret(), before.Secret()) || s.ClusterID() != "c1" {
		t.Error("the restart made a new cluster")
	}
	c.leader()
	if _, err := c.running["n1"].Reserve(c.ctx(), state.SCSCF, "u@d"); err != nil {
		t.Error(err)
	}
}

// 1,000 proposals by 50 clients of the followers, the leader killed in between:
// every acknowledged command is there, and each took effect once, for a second
// effect would have been refused as Exists.
func TestTheLeadersDeathLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) { cfg.electionTimeout = electionTimeout })
	leader, followers := c.leader(), c.followers()
	const clients, each = 50, 20
	var wg sync.WaitGroup
	var acknowledged atomic.Int64
	killed := make(chan struct{})
	for i := range clients {
		wg.Go(func() {
			f := followers[i%len(followers)]
			for j := range each {
				impi := fmt.Sprintf("u%d-%d@d", i, j)
				sub := state.Subscriber{IMPI: impi, Identities: []state.Identity{{URI: "sip:" + impi}}}
				_, err := f.Propose(c.ctx(), state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{sub}, New: true}})
				if err != nil {
					t.Errorf("%s: %v", impi, err)
					return
				}
				if _, ok := f.State().Subscriber(impi); !ok {
					t.Errorf("%s is acknowledged but not in the local copy", impi)
				}
				if acknowledged.Add(1) == clients*each/3 {
					close(killed)
				}
			}
		})
	}
	<-killed
	c.kill(leader.cfg.Node)
	wg.Wait()
	if got := acknowledged.Load(); got != clients*each {
		t.Errorf("%d of %d proposals were acknowledged", got, clients*each)
	}
	back := c.start(leader.cfg.Node)
	want := c.leader().State().Index()
	c.await(back, func(s *state.State) bool { return s.Index() >= want })
	for _, m := range c.running {
		if got := m.State().SubscriberCount(); got != clients*each {
			t.Errorf("%s has %d subscribers, want %d", m.cfg.Node, got, clients*each)
		}
	}
}

func TestEverythingComesBackFromDisk(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.populate(2)
	for i := range 20 {
		c.propose(c.leader(), state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: fmt.Sprintf("u%d", i)}})
		if i == 10 {
			if err := c.leader().raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := c.leader().State()
	c.stop()
	for _, m := range c.members {
		c.start(m.Name)
	}
	for _, m := range c.running {
		s := c.await(m, func(s *state.State) bool { return s.Index() >= want.Index() })
		if !bytes.Equal(s.Secret(), want.Secret()) {
			t.Errorf("%s has another secret", m.cfg.Node)
		}
		for g := range want.Groups() {
			if got, _ := s.Group(g.ID); got != g {
				t.Errorf("%s: group is %+v, want %+v", m.cfg.Node, got, g)
			}
		}
	}
}

func TestALaggardGetsASnapshotAndItsFollowersToo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.populate(2)
	lag := c.followers()[0].cfg.Node
	c.kill(lag)
	leader := c.leader()
	rc := leader.raft.ReloadableConfig()
	rc.TrailingLogs = 1
	if err := leader.raft.ReloadConfig(rc); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		c.propose(leader, state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: fmt.Sprintf("u%d", i)}})
	}
	if err := leader.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	c.propose(leader, state.Command{Set: &state.Set{Name: "last", Value: "1"}})
	back := c.start(lag)
	mirror := follow(t, back)
	_, err := mirror.Wait(c.ctx(), func(s *state.State) bool { v, _ := s.Setting("last"); return v == "1" })
	if err != nil {
		t.Fatal(err)
	}
	if g, _ := mirror.State().Group(1); g.Users != 10 {
		t.Errorf("group 1 has %d users in the mirror, want 10", g.Users)
	}
}

// follow keeps a mirror of a member's copy for the length of the test.
func follow(t *testing.T, m *member) *state.Mirror {
	mirror := new(state.Mirror)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Follow(ctx, mirror.Apply) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) && !errors.Is(err, ErrClosed) {
			t.Errorf("follow: %v", err)
		}
	})
	return mirror
}

func TestAMirrorOfAnyMemberEqualsTheLeadersState(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.populate(3)
	mirrors := []*state.Mirror{follow(t, c.leader()), follow(t, c.followers()[0])}
	var wg sync.WaitGroup
	for i, m := range c.running {
		wg.Go(func() {
			for j := range 15 {
				c.propose(m, state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: fmt.Sprintf("u%s-%d", i, j)}})
			}
		})
	}
	wg.Wait()
	// A late one begins with a snapshot that has the assignments in it.
	mirrors = append(mirrors, follow(t, c.followers()[1]))
	last := c.propose(c.leader(), state.Command{Set: &state.Set{Name: "last", Value: "1"}})
	var want []byte
	for _, m := range mirrors {
		// The watchdog's empty batches move the index on, so the states at the
		// same index are compared.
		if _, err := m.Wait(c.ctx(), func(s *state.State) bool { return s.Index() >= last.Index }); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool {
		leader := c.leader().State()
		want = encoded(t, leader)
		for _, m := range mirrors {
			if m.State().Index() != leader.Index() {
				return false
			}
		}
		for i, m := range mirrors {
			if s := m.State(); s.Index() == leader.Index() && !bytes.Equal(encoded(t, s), want) {
				t.Fatalf("mirror %d differs from the leader's state at index %d", i, s.Index())
			}
		}
		return true
	})
}

func TestReservationsSpreadUsersAsAssignmentsDo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	groups := c.populate(4)
	reserved := make(map[string]state.GroupID)
	perGroup := make(map[state.GroupID]int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for name, m := range c.running {
		wg.Go(func() {
			for i := range 20 {
				user := fmt.Sprintf("%s-%d@d", name, i)
				g, err := m.Reserve(c.ctx(), state.SCSCF, user)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				reserved[user] = g
				perGroup[g]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, g := range groups {
		if perGroup[g] != 15 {
			t.Errorf("group %d got %d of 60 reservations, want 15", g, perGroup[g])
		}
	}
	f := c.followers()[0]
	for user, want := range reserved {
		if got, err := f.Reserve(c.ctx(), state.SCSCF, user); err != nil || got != want {
			t.Errorf("second reservation of %s: %d, %v, want %d", user, got, err, want)
		}
	}
	for user, want := range reserved {
		wg.Go(func() {
			if r := c.propose(f, state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: user, Hint: want}}); r.Group != want {
				t.Errorf("%s is assigned to %d, want the reserved %d", user, r.Group, want)
			}
		})
	}
	wg.Wait()
	if got, err := f.Reserve(c.ctx(), state.SCSCF, "new@d"); err != nil || got != groups[0] {
		t.Errorf("after all are assigned, a new user gets %d, %v, want %d: reservations no longer count", got, err, groups[0])
	}
	if _, err := f.Reserve(c.ctx(), state.PCSCF, "sip:a@d"); !errors.Is(err, &state.Error{Code: state.NoWorker}) {
		t.Errorf("reservation without a worker: %v", err)
	}
	if _, err := f.Reserve(c.ctx(), state.ICSCF, "sip:a@d"); !errors.Is(err, &state.Error{Code: state.Invalid}) {
		t.Errorf("reservation at an I-CSCF: %v", err)
	}
}

func TestANewLeaderHasNoReservations(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	groups := c.populate(2)
	old := c.leader()
	if g, err := old.Reserve(c.ctx(), state.SCSCF, "a"); err != nil || g != groups[0] {
		t.Fatalf("first reservation: %d, %v", g, err)
	}
	to := c.followers()[0]
	// Asked of the member that is neither.
	if err := c.followers()[1].TransferLeadership(c.ctx(), to.cfg.Node); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return to.leader.serving.Load() })
	if g, err := old.Reserve(c.ctx(), state.SCSCF, "b"); err != nil || g != groups[0] {
		t.Errorf("first reservation of the new leader: %d, %v, want %d", g, err, groups[0])
	}
	if err := old.TransferLeadership(c.ctx(), "n9"); err == nil {
		t.Error("leadership went to a stranger")
	}
}

func TestWithoutAMajorityTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	for _, f := range c.followers() {
		c.kill(f.cfg.Node)
	}
	var alone *member
	for _, m := range c.running {
		alone = m
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := alone.Propose(ctx, state.Command{Set: &state.Set{Name: "a", Value: "b"}})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "outcome unknown") {
		t.Errorf("propose: %v", err)
	}
	if _, err := alone.Reserve(ctx, state.SCSCF, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reserve: %v", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := alone.Propose(t.Context(), state.Command{Set: &state.Set{Name: "c", Value: "d"}})
		waiting <- err
	}()
	eventually(t, func() bool { return len(alone.slots) > 0 })
	c.kill(alone.cfg.Node)
	if err := <-waiting; !errors.Is(err, ErrClosed) {
		t.Errorf("propose on a member that closes: %v", err)
	}
	if _, err := alone.Propose(t.Context(), state.Command{Set: &state.Set{Name: "e", Value: "f"}}); !errors.Is(err, ErrClosed) {
		t.Errorf("propose on a closed member: %v", err)
	}
}

func TestADataDirectoryIsRefusedToOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	members := []Member{{"n1", "127.0.0.1:1"}, {"n2", "127.0.0.2:1"}, {"n3", "127.0.0.3:1"}}
	if err := claim(dir, "c1", "n1", members[:1]); err != nil {
		t.Fatal(err)
	}
	// Before the log has begun, the members may still change.
	if err := claim(dir, "c1", "n1", members); err != nil {
		t.Fatal(err)
	}
	if err := settle(dir); err != nil {
		t.Fatal(err)
	}
	stray := t.TempDir()
	if err := os.WriteFile(filepath.Join(stray, "raft.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, ownerFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, dir, cluster, node string
		members                  []Member
		want                     string // "" for accepted
		foreign                  bool
	}{
		{"the owner comes back", dir, "c1", "n1", members, "", false},
		{"another cluster", dir, "c2", "n1", members, "is of cluster c1, this is cluster c2", true},
		{"another node", dir, "c1", "n2", members, "is node n1's, this is node n2", true},
		{"other controllers", dir, "c1", "n1", members[:1], "begun with the controllers [n1 n2 n3]", false},
		{"a log of unknown origin", stray, "c1", "n1", members, "holds raft.db but no member.json", true},
		{"a file that is not JSON", broken, "c1", "n1", members, "unexpected end of JSON", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := claim(tt.dir, tt.cluster, tt.node, tt.members)
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrForeign) != tt.foreign {
				t.Errorf("claim: %v, want %q", err, tt.want)
			}
		})
	}
}

func TestStartRefusesWithoutTouchingAnything(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	before := c.running["n1"].State().Index()
	dir := filepath.Join(c.dir, "n1")

	other := meshtest.NewCA(t, "c2")
	m := other.Listen(t, "n1", "127.0.0.1:0")
	cfg := Config{Node: "n1", ClusterID: "c2", DataDir: dir, Members: []Member{{"n1", m.Addr().String()}}, Mesh: m, Log: slog.New(slog.DiscardHandler)}
	if _, err := Start(t.Context(), cfg); !errors.Is(err, ErrForeign) {
		t.Errorf("start of another cluster: %v", err)
	}
	same := c.listen("n1", "127.0.0.1:0")
	defer same.Close()
	if _, err := Start(t.Context(), c.config("n1", same)); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("second start on the directory in use: %v", err)
	}
	for _, members := range [][]Member{
		nil,
		{{"n1", "127.0.0.1:1"}, {"n2", "127.0.0.2:1"}},
		{{"n2", "127.0.0.2:1"}},
		{{"n1", "127.0.0.1:1"}, {"n1", "127.0.0.2:1"}, {"n3", "127.0.0.3:1"}},
		{{"n1", "127.0.0.1:1"}, {"n2", "127.0.0.1:1"}, {"n3", "127.0.0.3:1"}},
		{{"n1", "nowhere"}},
	} {
		cfg := c.config("n1", same)
		cfg.Members, cfg.DataDir = members, filepath.Join(t.TempDir(), "new")
		if _, err := Start(t.Context(), cfg); err == nil {
			t.Errorf("started with the controllers %v", members)
		}
		if _, err := os.Stat(cfg.DataDir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the refused start left a data directory")
		}
	}
	c.await(c.running["n1"], func(s *state.State) bool { return s.Index() > before })
}

// A node that is no controller may use the caller's handlers, not ours.
func TestTheAPIIsForMembersAndKnowsItsPeers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	ctl := c.running["n1"]
	ctl.Mux().HandleFunc("GET /whoami", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, PeerNode(r)) })
	worker := c.ca.Listen(t, "w1", "127.0.0.9:0")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return worker.Dial(ctx, c.members[0].Addr, "n1", APIProtocol)
	}}}
	resp, err := client.Get("http://n1/whoami")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if string(body) != "w1" {
		t.Errorf("peer is %q, want w1", body)
	}
	for _, tt := range []struct {
		as   string
		path string
		body string
		want int
	}{
		{"w1", proposePath, "\x80", http.StatusForbidden},
		{"n1", proposePath, "\xff", http.StatusBadRequest},
		{"n1", proposePath, "\x80", http.StatusOK}, // an empty batch
		{"n1", reservePath, "{}", http.StatusBadRequest},
		{"n1", transferPath, "\xa1\x61t\x62n9", http.StatusBadRequest},
	} {
		from := worker
		if tt.as == "n1" {
			from = ctl.mesh
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return from.Dial(ctx, c.members[0].Addr, "n1", APIProtocol)
		}}}
		c.leader()
		resp, err := client.Post("http://n1"+tt.path, "application/cbor", strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("POST %s %q as %s: %s, want %d", tt.path, tt.body, tt.as, resp.Status, tt.want)
		}
	}
}
