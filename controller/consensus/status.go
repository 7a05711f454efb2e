package consensus

import (
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// Status is what a member knows about itself and the others.
type Status struct {
	Node         string         `json:"node"`
	State        string         `json:"state"` // leader, follower, candidate, shutdown
	Leader       string         `json:"leader,omitempty"`
	Term         uint64         `json:"term"`
	CommitIndex  uint64         `json:"commit_index"`
	AppliedIndex uint64         `json:"applied_index"`
	LastContact  time.Duration  `json:"last_contact_ns"` // since the leader was heard; 0 on the leader, -1 if never
	Members      []MemberStatus `json:"members"`
}

// MemberStatus is one controller, by name.
type MemberStatus struct {
	Name   string `json:"name"`
	Addr   string `json:"addr"`
	Leader bool   `json:"leader"`
}

// Status returns what this member knows at this moment.
func (c *Controller) Status() Status {
	leader, _ := c.Leader()
	role := c.raft.State()
	s := Status{
		Node: c.cfg.Node, State: strings.ToLower(role.String()), Leader: leader, Term: c.raft.CurrentTerm(),
		CommitIndex: c.raft.CommitIndex(), AppliedIndex: c.raft.AppliedIndex(),
	}
	if role != raft.Leader {
		s.LastContact = -1
		if at := c.raft.LastContact(); !at.IsZero() {
			s.LastContact = time.Since(at)
		}
	}
	for _, m := range c.members {
		s.Members = append(s.Members, MemberStatus{Name: m.Name, Addr: m.Addr, Leader: m.Name == leader})
	}
	return s
}
