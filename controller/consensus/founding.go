package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"
)

// A member whose log is empty takes no part in Raft before it knows that the
// members agree on who they are, and which of two it is:
//
//   - One of a cluster that has not begun. When a majority of the members,
//     itself among them, lists the same members, nobody who answers lists
//     others, and nobody has begun, it begins the log. All begin it alike, so
//     it does not matter which of them do.
//   - One of a cluster that has begun: it comes late, or it lost its log, and
//     with it its votes. It must not vote before it knows all that it may have
//     agreed to. The leader takes it out of the voters and in again as a
//     follower without a vote; when it has caught up, it gets its vote.
const (
	foundingPath = "/v1/founding"
	rejoinPath   = "/v1/rejoin"
	votePath     = "/v1/vote"

	askAgain     = 20 * time.Millisecond // after a round that decided nothing; doubles
	askAtMost    = 500 * time.Millisecond
	roundTimeout = time.Second // for the answers of a round
	compareEvery = 10 * time.Second
	standEvery   = time.Second
	quickStand   = 20 * time.Millisecond // while this member catches up
	patience     = 2 * time.Second       // before a wait is worth a line
)

// Phases of a Standing.
const (
	PhaseMember    = "member"    // takes part
	PhaseWaiting   = "waiting"   // for a majority of members to begin with
	PhaseDiffers   = "differs"   // others list other members
	PhaseReturning = "returning" // into a cluster that has begun
)

// Standing is how far this member is on its way into the cluster.
type Standing struct {
	Phase    string
	Text     string // one line, "" for a member that nothing is wrong with
	WhatToDo string
}

// foundingMsg is what a member says about itself, asked or asking.
type foundingMsg struct {
	Node    string   `cbor:"n"`
	Members []Member `cbor:"m"` // by name
	Begun   bool     `cbor:"b"` // its log holds more than the beginning
	Leader  string   `cbor:"l"`
}

type rejoinRequest struct {
	Members []Member `cbor:"m"`
}

type voteRequest struct {
	// Applied is an index that a leader named before and that is applied here,
	// 0 if none was.
	Applied uint64 `cbor:"a"`
}

type voteReply struct {
	Index uint64 `cbor:"i"` // to apply before the next request
}

// founding is the way of this member into the cluster.
type founding struct {
	took atomic.Bool // this member takes part in Raft

	mu       sync.Mutex // nothing is called with it held
	standing Standing
	heard    map[string]heard // members that asked, by node; at most maxHeard

	rejoin sync.Mutex // one change of the members at a time
}

type heard struct {
	msg foundingMsg
	at  time.Time
}

const (
	maxHeard  = 16
	heardGood = 5 * time.Second
)

// Standing tells how far this member is on its way into the cluster.
func (c *Controller) Standing() Standing {
	c.founding.mu.Lock()
	defer c.founding.mu.Unlock()
	return c.founding.standing
}

// stand says how this member stands, and logs what is new and wrong.
func (c *Controller) stand(s Standing) {
	c.founding.mu.Lock()
	news := c.founding.standing != s
	c.founding.standing = s
	c.founding.mu.Unlock()
	switch {
	case !news || s.Text == "":
	case s.Phase == PhaseDiffers:
		c.log.Error(s.Text, "what_to_do", s.WhatToDo)
	default:
		c.log.Warn(s.Text, "what_to_do", s.WhatToDo)
	}
}

// says is what this member tells others about itself.
func (c *Controller) says() foundingMsg {
	leader, _ := c.Leader()
	return foundingMsg{Node: c.cfg.Node, Members: c.members, Begun: c.raft.LastIndex() > 1, Leader: leader}
}

// answerFounding serves any node of the cluster, since a list in which this
// member is not is what must be found out.
func (c *Controller) answerFounding(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<10))
	var msg foundingMsg
	if err == nil {
		err = replyMode.Unmarshal(body, &msg)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if msg.Node = PeerNode(r); msg.Node != "" {
		c.founding.hear(msg, time.Now())
	}
	answer(w, c.says(), nil)
}

func (f *founding) hear(msg foundingMsg, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.heard == nil {
		f.heard = make(map[string]heard)
	}
	if _, ok := f.heard[msg.Node]; !ok && len(f.heard) >= maxHeard {
		return
	}
	f.heard[msg.Node] = heard{msg, now}
}

// recent is what was heard lately.
func (f *founding) recent(now time.Time) []foundingMsg {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []foundingMsg
	for node, h := range f.heard {
		if now.Sub(h.at) > heardGood {
			delete(f.heard, node)
			continue
		}
		out = append(out, h.msg)
	}
	return out
}

// step is what a member with an empty log does next.
type step int

const (
	stepWait step = iota
	stepBegin
	stepReturn
)

// decide is the rule for a member with an empty log. mayBegin is false where
// the cluster is known to have begun.
func decide(self string, members []Member, mayBegin bool, answers []foundingMsg) (step, Standing) {
	agree, begun := 1, false
	for _, a := range answers {
		if !slices.Equal(a.Members, members) {
			return stepWait, differs(self, members, a)
		}
		agree++
		begun = begun || a.Begun
	}
	missing := missing(self, members, answers)
	switch {
	case begun && lost(members, answers):
		return stepReturn, Standing{Phase: PhaseReturning,
			Text:     fmt.Sprintf("the log of controller %s is empty, as are those of so many others that no leader can be chosen: all controllers answer, and only %s kept its log", self, keepers(answers)),
			WhatToDo: "stop one of those that lost its log, restore its node.data_dir from a copy, and start it; the cluster cannot go on without a majority of the logs"}
	case begun:
		return stepReturn, Standing{Phase: PhaseReturning,
			Text:     fmt.Sprintf("the log of controller %s is empty, but the cluster has begun: it waits for a leader to let it in again", self),
			WhatToDo: "nothing, while a majority of the other controllers runs; else start " + missing}
	case !mayBegin:
		return stepWait, Standing{Phase: PhaseReturning,
			Text:     fmt.Sprintf("the log of controller %s is empty, but the cluster has begun, and no controller that answers has its state", self),
			WhatToDo: fmt.Sprintf("start %s; if all of them lost their disks, restore a backup, or remove the file pki/begun in every node.data_dir to begin with nothing", missing)}
	case agree <= len(members)/2:
		return stepWait, Standing{Phase: PhaseWaiting,
			Text:     fmt.Sprintf("controller %s waits for a majority: there are %d of %d, %s", self, agree, len(members), listing(members)),
			WhatToDo: "start " + missing + ", or mend the network to them"}
	}
	return stepBegin, Standing{Phase: PhaseMember}
}

func differs(self string, members []Member, other foundingMsg) Standing {
	return Standing{Phase: PhaseDiffers,
		Text:     fmt.Sprintf("controller %s lists the controllers %s, but %s lists %s", self, listing(members), other.Node, listing(other.Members)),
		WhatToDo: "write the same cluster.controllers on every node, then restart those that were changed; until then this node does not begin"}
}

func listing(members []Member) string {
	var out []string
	for _, m := range members {
		out = append(out, m.Name+" "+m.Addr)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// lost reports whether every member answers, and too few of them have their log
// to choose a leader, so that no wait helps.
func lost(members []Member, answers []foundingMsg) bool {
	kept := 0
	for _, a := range answers {
		if a.Leader != "" {
			return false
		}
		if a.Begun {
			kept++
		}
	}
	return len(answers) == len(members)-1 && kept <= len(members)/2
}

// keepers names those who answer and have their log.
func keepers(answers []foundingMsg) string {
	var out []string
	for _, a := range answers {
		if a.Begun {
			out = append(out, a.Node)
		}
	}
	return strings.Join(out, " and ")
}

// missing names the members that did not answer.
func missing(self string, members []Member, answers []foundingMsg) string {
	var out []string
	for _, m := range members {
		if m.Name != self && !slices.ContainsFunc(answers, func(a foundingMsg) bool { return a.Node == m.Name }) {
			out = append(out, m.Name)
		}
	}
	if len(out) == 0 {
		return "a majority of the others"
	}
	return strings.Join(out, " and ")
}

// round asks every other member, and adds who asked here lately.
func (c *Controller) round() []foundingMsg {
	ctx, cancel := context.WithTimeout(c.ctx, roundTimeout)
	defer cancel()
	body, err := cbor.Marshal(c.says())
	if err != nil {
		return nil
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var answers []foundingMsg
	for _, m := range c.members {
		if m.Name == c.cfg.Node {
			continue
		}
		wg.Go(func() {
			var a foundingMsg
			if err := c.ask(ctx, m.Name, foundingPath, body, &a); err != nil {
				return // not there
			}
			a.Node = m.Name
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, a)
		})
	}
	wg.Wait()
	for _, h := range c.founding.recent(time.Now()) {
		if !slices.ContainsFunc(answers, func(a foundingMsg) bool { return a.Node == h.Node }) && !slices.Equal(h.Members, c.members) {
			answers = append(answers, h) // who agrees must be reachable to count
		}
	}
	slices.SortFunc(answers, func(a, b foundingMsg) int { return strings.Compare(a.Node, b.Node) })
	return answers
}

// found brings a member with an empty log into the cluster.
func (c *Controller) found() {
	began, pause := time.Now(), askAgain
	for c.ctx.Err() == nil {
		answers := c.round()
		next, standing := decide(c.cfg.Node, c.members, !c.cfg.Begun, answers)
		if standing.Phase == PhaseDiffers || time.Since(began) > patience {
			c.stand(standing)
		}
		var err error
		switch next {
		case stepBegin:
			if err = c.begin(); err == nil {
				return
			}
		case stepReturn:
			if err = c.comeBack(answers); err == nil {
				return
			}
		}
		if err != nil && c.ctx.Err() == nil {
			c.log.Debug("come into the cluster", "err", err)
		}
		select {
		case <-c.ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, askAtMost)
	}
}

// begin begins the log, as every other member does.
func (c *Controller) begin() error {
	if err := settle(c.cfg.DataDir); err != nil {
		return err
	}
	err := await(c.ctx, c.raft.BootstrapCluster(c.configuration()))
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("begin log: %w", err)
	}
	c.takePart()
	return nil
}

// comeBack has the leader make this member a follower without a vote.
func (c *Controller) comeBack(answers []foundingMsg) error {
	if err := settle(c.cfg.DataDir); err != nil {
		return err
	}
	body, err := cbor.Marshal(rejoinRequest{Members: c.members})
	if err != nil {
		return err
	}
	err = ErrNoLeader
	for _, a := range answers {
		if a.Leader == "" || a.Leader == c.cfg.Node {
			continue
		}
		ctx, cancel := context.WithTimeout(c.ctx, attemptTimeout)
		err = c.ask(ctx, a.Leader, rejoinPath, body, &struct{}{})
		cancel()
		if err == nil {
			c.stand(Standing{Phase: PhaseReturning})
			c.log.Info("this controller had no log; it is let in, and catches up", "node", c.cfg.Node)
			c.takePart()
			return nil
		}
	}
	return err
}

// takePart opens Raft to the others.
func (c *Controller) takePart() {
	c.founding.took.Store(true)
	c.door.open()
	if s := c.Standing(); s.Phase != PhaseReturning {
		c.stand(Standing{Phase: PhaseMember})
	}
}

// keepStanding asks for this member's vote while it has none, and compares the
// lists of members now and then.
func (c *Controller) keepStanding() {
	var compared time.Time
	target := uint64(0)
	for c.ctx.Err() == nil {
		pause := standEvery
		if c.founding.took.Load() {
			if time.Since(compared) > compareEvery {
				c.compare()
				compared = time.Now()
			}
			if s, listed, err := c.suffrage(c.ctx, c.cfg.Node); err == nil && (c.Standing().Phase == PhaseReturning || listed && s != raft.Voter) {
				pause = quickStand
				if listed && s == raft.Voter && target != 0 && c.raft.AppliedIndex() >= target {
					c.stand(Standing{Phase: PhaseMember})
					c.log.Info("this controller has caught up and votes", "node", c.cfg.Node)
					target = 0
				} else if err := c.seekVote(&target); err != nil {
					pause = askAtMost
				}
			}
		}
		select {
		case <-c.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// compare tells, of a member that takes part, whether others list other members.
func (c *Controller) compare() {
	if len(c.members) == 1 || c.Standing().Phase == PhaseReturning {
		return
	}
	for _, a := range c.round() {
		if !slices.Equal(a.Members, c.members) {
			s := differs(c.cfg.Node, c.members, a)
			s.WhatToDo = "write the same cluster.controllers on every node, then restart those that were changed"
			c.stand(s)
			return
		}
	}
	c.stand(Standing{Phase: PhaseMember})
}
