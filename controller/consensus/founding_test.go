package consensus

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"bellwether/controller/mesh"
	"bellwether/controller/state"
)

func TestWhatAMemberWithAnEmptyLogDoes(t *testing.T) {
	three := []Member{{"n1", "127.0.0.1:1"}, {"n2", "127.0.0.2:1"}, {"n3", "127.0.0.3:1"}}
	five := append(three[:3:3], Member{"n4", "127.0.0.4:1"}, Member{"n5", "127.0.0.5:1"})
	moved := []Member{{"n1", "127.0.0.1:1"}, {"n2", "127.0.0.2:2"}, {"n3", "127.0.0.3:1"}}
	fresh := func(node string, members []Member) foundingMsg { return foundingMsg{Node: node, Members: members} }
	begun := func(node string, members []Member) foundingMsg {
		return foundingMsg{Node: node, Members: members, Begun: true, Leader: node}
	}
	leaderless := func(node string, members []Member) foundingMsg {
		return foundingMsg{Node: node, Members: members, Begun: true}
	}
	for _, tt := range []struct {
		name     string
		members  []Member
		returns  bool // it knows that the cluster has begun
		answers  []foundingMsg
		want     step
		phase    string
		says, do string
	}{
		{"alone of three it waits", three, false, nil, stepWait, PhaseWaiting, "there are 1 of 3, [n1 127.0.0.1:1, n2 127.0.0.2:1, n3 127.0.0.3:1]", "start n2 and n3"},
		{"with one of two others it begins", three, false, []foundingMsg{fresh("n3", three)}, stepBegin, PhaseMember, "", ""},
		{"with one of four others it waits", five, false, []foundingMsg{fresh("n3", five)}, stepWait, PhaseWaiting, "there are 2", "start n2 and n4 and n5"},
		{"with two of four others it begins", five, false, []foundingMsg{fresh("n3", five), fresh("n5", five)}, stepBegin, PhaseMember, "", ""},
		{"with one other of another list it waits, whatever the rest says", three, false, []foundingMsg{fresh("n2", three), fresh("n3", five)}, stepWait, PhaseDiffers,
			"n1 lists the controllers [n1 127.0.0.1:1, n2 127.0.0.2:1, n3 127.0.0.3:1], but n3 lists [n1 127.0.0.1:1, n2 127.0.0.2:1, n3 127.0.0.3:1, n4", "write the same cluster.controllers on every node"},
		{"with one other that knows another address it waits", three, false, []foundingMsg{fresh("n3", moved)}, stepWait, PhaseDiffers, "n3 lists [n1 127.0.0.1:1, n2 127.0.0.2:2", "restart"},
		{"when another has begun it comes back", three, false, []foundingMsg{fresh("n2", three), begun("n3", three)}, stepReturn, PhaseReturning, "the cluster has begun", "start a majority"},
		{"when all answer and too few have their logs it says that no wait helps", three, true, []foundingMsg{fresh("n2", three), leaderless("n3", three)}, stepReturn, PhaseReturning, "only n3 kept its log", "restore its node.data_dir"},
		{"when one does not answer it may have its log", three, true, []foundingMsg{leaderless("n3", three)}, stepReturn, PhaseReturning, "waits for a leader", "start n2"},
		{"when two others have their logs they will choose a leader", three, true, []foundingMsg{leaderless("n2", three), leaderless("n3", three)}, stepReturn, PhaseReturning, "waits for a leader", "nothing"},
		{"when it knows that the cluster has begun it waits for who knows more", three, true, []foundingMsg{fresh("n2", three), fresh("n3", three)}, stepWait, PhaseReturning, "no controller that answers has its state", "restore a backup"},
		{"when another has begun with other members it waits", three, true, []foundingMsg{begun("n2", moved)}, stepWait, PhaseDiffers, "n2 lists", "write the same"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, s := decide("n1", tt.members, !tt.returns, tt.answers)
			if got != tt.want || s.Phase != tt.phase || !strings.Contains(s.Text, tt.says) || !strings.Contains(s.WhatToDo, tt.do) {
				t.Errorf("step %v, %+v", got, s)
			}
		})
	}
}

// wipe removes what a member that is not running has on disk.
func (c *cluster) wipe(name string) {
	c.t.Helper()
	if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
		c.t.Fatal(err)
	}
}

// votes waits until a member has its vote.
func (c *cluster) votes(m *member) {
	c.t.Helper()
	eventually(c.t, func() bool {
		s, listed, err := m.suffrage(c.ctx(), m.cfg.Node)
		return err == nil && listed && s == raft.Voter && m.Standing() == Standing{Phase: PhaseMember}
	})
}

func TestAMemberThatLostItsDiskComesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.populate(1)
	leader, lost := c.leader(), c.followers()[0].cfg.Node
	c.kill(lost)
	c.wipe(lost)
	for i := range 10 {
		c.propose(leader, state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: fmt.Sprintf("u%d", i)}})
	}
	back := c.start(lost)
	want := c.leader().State().Index()
	c.await(back, func(s *state.State) bool { return s.Index() >= want })
	c.votes(back)
	// Its vote counts: with it there is a majority without one of the others.
	for _, f := range c.followers() {
		if f != back {
			c.kill(f.cfg.Node)
		}
	}
	c.propose(c.leader(), state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "last"}})
	c.await(back, func(s *state.State) bool { _, ok := s.Assignment(state.SCSCF, "last"); return ok })
}

// A member forgot that it agreed to something. If it voted, those who know
// less than it did would lose that.
func TestAForgottenVoteIsNotGivenAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.populate(1)
	leader, followers := c.leader(), c.followers()
	lost, stale := followers[0].cfg.Node, followers[1].cfg.Node
	c.kill(stale)
	c.propose(leader, state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "precious"}})
	first := leader.cfg.Node
	c.kill(lost)
	c.kill(first)
	c.wipe(lost)
	behind, forgot := c.start(stale), c.start(lost)
	eventually(t, func() bool { return forgot.Standing().Text != "" }) // many elections later
	if node, ok := behind.Leader(); ok {
		t.Fatalf("%s leads without what was acknowledged", node)
	}
	if s := forgot.Standing(); s.Phase != PhaseReturning || !strings.Contains(s.WhatToDo, "start "+first) {
		t.Errorf("it says %+v", s)
	}
	c.start(first)
	for _, m := range []*member{behind, forgot} {
		c.await(m, func(s *state.State) bool { _, ok := s.Assignment(state.SCSCF, "precious"); return ok })
	}
	c.votes(forgot)
}

func TestAMemberThatComesLateJoins(t *testing.T) {
	t.Parallel()
	c, meshes := unfounded(t, 3, nil)
	c.startOn("n1", meshes[0])
	n1 := c.running["n1"]
	eventually(t, func() bool { return n1.Standing().Phase == PhaseWaiting })
	if s := n1.Standing(); !strings.Contains(s.WhatToDo, "start n2 and n3") {
		t.Errorf("alone it says %+v", s)
	}
	c.startOn("n2", meshes[1])
	c.await(n1, func(s *state.State) bool { return s.ClusterID() == "c1" })
	c.populate(1)
	c.startOn("n3", meshes[2])
	late, want := c.running["n3"], n1.State().Index()
	c.await(late, func(s *state.State) bool { return s.Index() >= want })
	c.votes(late)
}

func TestMembersWithDifferentListsDoNotBegin(t *testing.T) {
	t.Parallel()
	c, meshes := unfounded(t, 4, nil)
	all := c.members
	right, wrong := all[:3:3], []Member{all[0], all[1], all[3]}
	c.members = right
	c.startOn("n1", meshes[0])
	c.members = wrong
	c.startOn("n2", meshes[1])
	for _, node := range []string{"n1", "n2"} {
		m := c.running[node]
		eventually(t, func() bool { return m.Standing().Phase == PhaseDiffers })
		s := m.Standing()
		if !strings.Contains(s.Text, listing(right)) || !strings.Contains(s.Text, listing(wrong)) || m.raft.LastIndex() != 0 {
			t.Errorf("%s says %+v, log at %d", node, s, m.raft.LastIndex())
		}
	}
	// The list is corrected, and the one that had it wrong is started again.
	c.kill("n2")
	c.members = right
	back := c.start("n2")
	c.await(back, func(s *state.State) bool { return s.ClusterID() == "c1" })
	c.votes(c.running["n1"])
	_ = meshes[2].Close()
	_ = meshes[3].Close()
}

func TestAClusterThatHasBegunIsNotBegunAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	c.stop()
	for _, m := range c.members {
		c.wipe(m.Name)
	}
	c.tweak = func(cfg *Config) { cfg.Begun = true }
	for _, m := range c.members {
		c.start(m.Name)
	}
	// The only controller of a cluster has nobody to ask.
	m := c.listen("n1", "127.0.0.1:0")
	defer m.Close()
	cfg := c.config("n1", m)
	cfg.Members, cfg.DataDir = []Member{{"n1", m.Addr().String()}}, t.TempDir()
	if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "restore a backup") {
		t.Errorf("alone: %v", err)
	}
	for _, m := range c.running {
		eventually(t, func() bool { return m.Standing().Text != "" })
		if s := m.Standing(); s.Phase != PhaseReturning || !strings.Contains(s.WhatToDo, "restore a backup") || m.raft.LastIndex() != 0 {
			t.Errorf("%s says %+v", m.cfg.Node, s)
		}
	}
}

// With certificates that are about to run out, connections last for a second.
// Through a dozen changes of connections nothing that is proposed fails.
func TestTheMembersGoOnWhileConnectionsChangeOver(t *testing.T) {
	t.Parallel()
	const left = 2500 * time.Millisecond
	c := &cluster{}
	c.certificates = func(node string) func() (*tls.Certificate, error) {
		return func() (*tls.Certificate, error) {
			return c.ca.Issue(t, mesh.NodeURI(c.ca.ClusterID, node), time.Now().Add(left-time.Hour)), nil
		}
	}
	c.begin(t, 3)
	c.populate(1)
	began := time.Now()
	for i := 0; time.Since(began) < 2*left; i++ {
		c.propose(c.followers()[i%2], state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: fmt.Sprintf("u%d", i)}})
	}
	for _, m := range c.running {
		if s := m.Standing(); s != (Standing{Phase: PhaseMember}) {
			t.Errorf("%s says %+v", m.cfg.Node, s)
		}
	}
}
