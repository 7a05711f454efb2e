package consensus

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/raft"
)

// answerRejoin takes a member's vote, if it has one, and lets it in without.
func (c *Controller) answerRejoin(w http.ResponseWriter, r *http.Request) {
	var req rejoinRequest
	if !read(w, r, &req) {
		return
	}
	node := PeerNode(r)
	if !slices.Equal(req.Members, c.members) {
		http.Error(w, differs(c.cfg.Node, c.members, foundingMsg{Node: node, Members: req.Members}).Text, http.StatusConflict)
		return
	}
	answer(w, struct{}{}, c.readmit(r.Context(), node))
}

// readmit makes a member a follower without a vote. That it had one, and on
// what, is forgotten with its log.
func (c *Controller) readmit(ctx context.Context, node string) error {
	m, ok := c.member(node)
	if !ok || node == c.cfg.Node {
		return fmt.Errorf("node %s is not one of the other controllers", node)
	}
	c.founding.rejoin.Lock()
	defer c.founding.rejoin.Unlock()
	suffrage, listed, err := c.suffrage(ctx, node)
	if err != nil {
		return err
	}
	id := raft.ServerID(node)
	if listed && suffrage == raft.Voter {
		// Taken out and in again, it is also asked at once, however long it was away.
		if err := await(ctx, c.raft.RemoveServer(id, 0, attemptTimeout)); err != nil {
			return fmt.Errorf("take the vote of controller %s: %w", node, err)
		}
		listed = false
	}
	if !listed {
		if err := await(ctx, c.raft.AddNonvoter(id, raft.ServerAddress(m.Addr), 0, attemptTimeout)); err != nil {
			return fmt.Errorf("let controller %s in: %w", node, err)
		}
	}
	c.log.Info("a controller with an empty log is let in, without a vote until it has caught up", "controller", node)
	return nil
}

// suffrage is how a member stands in the newest configuration of the log.
func (c *Controller) suffrage(ctx context.Context, node string) (s raft.ServerSuffrage, listed bool, err error) {
	f := c.raft.GetConfiguration()
	if err := await(ctx, f); err != nil {
		return 0, false, err
	}
	for _, srv := range f.Configuration().Servers {
		if srv.ID == raft.ServerID(node) {
			return srv.Suffrage, true, nil
		}
	}
	return 0, false, nil
}

// answerVote gives a member that has caught up its vote.
func (c *Controller) answerVote(w http.ResponseWriter, r *http.Request) {
	var req voteRequest
	if !read(w, r, &req) {
		return
	}
	ctx := r.Context()
	if !c.leader.serving.Load() {
		answer(w, nil, errNotServing)
		return
	}
	if req.Applied == 0 {
		answer(w, voteReply{Index: c.raft.CommitIndex()}, nil)
		return
	}
	node := PeerNode(r)
	c.founding.rejoin.Lock()
	defer c.founding.rejoin.Unlock()
	suffrage, listed, err := c.suffrage(ctx, node)
	m, known := c.member(node)
	switch {
	case err != nil:
	case !listed || !known:
		err = fmt.Errorf("controller %s is not in the cluster", node)
	case suffrage != raft.Voter:
		if err = await(ctx, c.raft.AddVoter(raft.ServerID(node), raft.ServerAddress(m.Addr), 0, attemptTimeout)); err == nil {
			c.log.Info("a controller has caught up and votes again", "controller", node)
		}
	}
	answer(w, voteReply{}, err)
}

// seekVote is one step from being let in to a vote.
func (c *Controller) seekVote(target *uint64) error {
	if *target != 0 && c.raft.AppliedIndex() < *target {
		return nil
	}
	leader, _ := c.Leader()
	if leader == "" || leader == c.cfg.Node {
		return ErrNoLeader
	}
	body, err := cbor.Marshal(voteRequest{Applied: *target})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, attemptTimeout)
	defer cancel()
	var reply voteReply
	if err := c.ask(ctx, leader, votePath, body, &reply); err != nil {
		*target = 0 // the next leader may know more
		return err
	}
	if reply.Index != 0 {
		*target = reply.Index
	}
	return nil
}
