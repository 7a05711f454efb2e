package state

import (
	"errors"
	"fmt"
	"slices"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// maxRequests is how many request ids are remembered at least.
const maxRequests = 4096

// change is a state in the making.
type change struct {
	s           State // scalars
	settings    table[string]
	nodes       table[Node]
	workers     table[Worker]
	groups      table[Group]
	assignments table[GroupID]
	subscribers table[Subscriber]
	identities  table[string]
	bans        table[Ban]
	recent      table[Result]
}

func (s *State) change() *change {
	return &change{
		s: *s, settings: open(s.settings), nodes: open(s.nodes), workers: open(s.workers),
		groups: open(s.groups), assignments: open(s.assignments), subscribers: open(s.subscribers),
		identities: open(s.identities), bans: open(s.bans), recent: open(s.recent),
	}
}

// table is a tree in the making that knows its size.
type table[T any] struct {
	txn *iradix.Txn[T]
	n   int
}

func open[T any](t *iradix.Tree[T]) table[T] { return table[T]{txn: t.Txn(), n: t.Len()} }

func (t *table[T]) get(k string) (T, bool) { return t.txn.Get([]byte(k)) }

func (t *table[T]) put(k string, v T) {
	if _, updated := t.txn.Insert([]byte(k), v); !updated {
		t.n++
	}
}

func (t *table[T]) remove(k string) (T, bool) {
	old, ok := t.txn.Delete([]byte(k))
	if ok {
		t.n--
	}
	return old, ok
}

func (c *change) commit() *State {
	s := c.s
	s.settings, s.nodes, s.workers = c.settings.txn.Commit(), c.nodes.txn.Commit(), c.workers.txn.Commit()
	s.groups, s.assignments = c.groups.txn.Commit(), c.assignments.txn.Commit()
	s.subscribers, s.identities = c.subscribers.txn.Commit(), c.identities.txn.Commit()
	s.bans, s.recent = c.bans.txn.Commit(), c.recent.txn.Commit()
	return &s
}

// Apply returns the state after the commands of the log entry at index, and
// one result per command. s itself does not change. A command whose RequestID
// was carried out before (among at least the last 4096) is not carried out
// again; its first result is returned.
func (s *State) Apply(index uint64, cmds []Command) (*State, []Result) {
	c := s.change()
	c.s.index = index
	results := make([]Result, len(cmds))
	for i := range cmds {
		results[i] = c.once(&cmds[i])
	}
	return c.commit(), results
}

// once carries a command out unless its request id is known.
func (c *change) once(cmd *Command) Result {
	if err := cmd.Validate(); err != nil {
		var refusal *Error
		if !errors.As(err, &refusal) {
			refusal = &Error{Code: Invalid, Text: err.Error()}
		}
		return Result{Index: c.s.index, Err: refusal}
	}
	if cmd.RequestID == "" {
		return c.run(cmd)
	}
	id := cmd.RequestID
	if r, ok := c.recent.get(id); ok {
		return r
	}
	if r, ok := c.s.older.Get([]byte(id)); ok {
		return r
	}
	r := c.run(cmd)
	if c.recent.n == maxRequests {
		c.s.older, c.recent = c.recent.txn.Commit(), open(iradix.New[Result]())
	}
	c.recent.put(id, r)
	return r
}

// run carries out a valid command.
func (c *change) run(cmd *Command) Result {
	var r Result
	switch {
	case cmd.Init != nil:
		r = c.init(cmd.Init)
	case cmd.PutNode != nil:
		r = c.putNode(*cmd.PutNode)
	case cmd.PutWorker != nil:
		r = c.putWorker(*cmd.PutWorker)
	case cmd.RemoveWorker != nil:
		r = c.removeWorker(cmd.RemoveWorker.ID)
	case cmd.Assign != nil:
		r = c.assign(cmd.Assign)
	case cmd.Unassign != nil:
		r = c.unassign(cmd.Unassign)
	case cmd.PutSubscribers != nil:
		r = c.putSubscribers(cmd.PutSubscribers)
	case cmd.RemoveSubscriber != nil:
		r = c.removeSubscriber(cmd.RemoveSubscriber.IMPI)
	case cmd.ResyncAKA != nil:
		r = c.resyncAKA(cmd.ResyncAKA)
	case cmd.Set != nil:
		r = c.set(cmd.Set)
	case cmd.PutBan != nil:
		r = c.putBan(*cmd.PutBan)
	case cmd.RemoveBan != nil:
		r = c.removeBan(cmd.RemoveBan.Prefix)
	}
	r.Index = c.s.index
	return r
}

func refused(code Code, format string, args ...any) Result {
	return Result{Err: refuse(code, format, args...)}
}

func (c *change) init(i *Init) Result {
	if c.s.clusterID != "" {
		return refused(Exists, "the cluster is initialised already, as %s (%s)", c.s.name, c.s.clusterID)
	}
	c.s.clusterID, c.s.name, c.s.secret = i.ClusterID, i.Name, slices.Clone(i.Secret)
	return Result{N: 1}
}

func (c *change) putNode(n Node) Result {
	key := n.Name
	if old, ok := c.nodes.get(key); ok && old == n {
		return Result{}
	} else if !ok && c.nodes.n >= maxNodes {
		return refused(Limit, "the cluster has %d nodes, the most it can have", maxNodes)
	}
	if domain, ok := c.settings.get(DomainSetting); n.Domain != "" && domain != n.Domain {
		if ok {
			return refused(Conflict, "the cluster's SIP domain is %s, not %s", domain, n.Domain)
		}
		if r := c.set(&Set{Name: DomainSetting, Value: n.Domain}); r.Err != nil {
			return r
		}
	}
	c.nodes.put(key, n)
	return Result{N: 1}
}

// putWorker is done once per worker: a worker that comes again, after a
// restart of its process, gets the group that it had.
func (c *change) putWorker(w Worker) Result {
	key := w.ID
	if old, ok := c.workers.get(key); ok {
		if old.Kind != w.Kind || old.Node != w.Node {
			return refused(Conflict, "worker %s exists as %s on node %s", w.ID, old.Kind, old.Node)
		}
		return Result{Group: old.Group}
	}
	if _, ok := c.nodes.get(w.Node); !ok {
		return refused(NotFound, "worker %s: node %s is unknown", w.ID, w.Node)
	}
	if c.workers.n >= maxWorkers {
		return refused(Limit, "the cluster has %d workers, the most it can have", maxWorkers)
	}
	if c.s.lastGroup == ^GroupID(0) {
		return refused(Limit, "all group ids are used up")
	}
	c.s.lastGroup++
	w.Group = c.s.lastGroup
	c.workers.put(key, w)
	c.groups.put(groupKey(w.Group), Group{ID: w.Group, Kind: w.Kind, Home: w.ID, Serving: w.ID, Epoch: 1})
	return Result{Group: w.Group, N: 1}
}

func (c *change) removeWorker(id string) Result {
	w, ok := c.workers.get(id)
	if !ok {
		return refused(NotFound, "worker %s is unknown", id)
	}
	if g, ok := c.groups.get(groupKey(w.Group)); ok && g.Users > 0 {
		return refused(Conflict, "worker %s still has %s", id, users(g.Users))
	}
	c.workers.remove(id)
	c.groups.remove(groupKey(w.Group))
	return Result{Group: w.Group, N: 1}
}

func users(n int) string {
	if n == 1 {
		return "1 user"
	}
	return fmt.Sprintf("%d users", n)
}

func (c *change) assign(a *Assign) Result {
	key := assignmentKey(a.Kind, a.User)
	if g, ok := c.assignments.get(key); ok {
		return Result{Group: g}
	}
	id := a.Hint
	if g, ok := c.groups.get(groupKey(id)); !ok || g.Kind != a.Kind {
		if id, ok = minUser(walkValues(c.groups.txn.Root()), a.Kind, nil); !ok {
			return refused(NoWorker, "no %s worker is there to take user %s", a.Kind, a.User)
		}
	}
	if c.assignments.n >= maxAssignments {
		return refused(Limit, "the cluster has %d assignments, the most it can have", maxAssignments)
	}
	c.assignments.put(key, id)
	c.countUser(id, 1)
	return Result{Group: id, N: 1}
}

func (c *change) unassign(u *Unassign) Result {
	key := assignmentKey(u.Kind, u.User)
	g, ok := c.assignments.get(key)
	if !ok || g != u.Group {
		return Result{Group: g}
	}
	c.endAssignment(u.Kind, u.User)
	return Result{Group: g, N: 1}
}

func (c *change) endAssignment(k Kind, user string) {
	if g, ok := c.assignments.remove(assignmentKey(k, user)); ok {
		c.countUser(g, -1)
	}
}

func (c *change) countUser(id GroupID, by int) {
	if g, ok := c.groups.get(groupKey(id)); ok {
		g.Users += by
		c.groups.put(groupKey(id), g)
	}
}

// putSubscribers checks everything before it changes anything. Identities may
// move between subscribers of the same command.
func (c *change) putSubscribers(p *PutSubscribers) Result {
	replaced := make(map[string]bool, len(p.Subscribers))
	owner := make(map[string]string)
	added := 0
	for i := range p.Subscribers {
		sub := &p.Subscribers[i]
		if replaced[sub.IMPI] {
			return refused(Conflict, "subscriber %s is given twice", sub.IMPI)
		}
		replaced[sub.IMPI] = true
		if _, ok := c.subscribers.get(sub.IMPI); !ok {
			added++
		} else if p.New {
			return refused(Exists, "subscriber %s exists already", sub.IMPI)
		}
		for _, id := range sub.Identities {
			if other, ok := owner[id.URI]; ok {
				return refused(Conflict, "identity %s of subscriber %s is also given to subscriber %s", id.URI, sub.IMPI, other)
			}
			owner[id.URI] = sub.IMPI
		}
	}
	for i := range p.Subscribers {
		for _, id := range p.Subscribers[i].Identities {
			if other, ok := c.identities.get(id.URI); ok && !replaced[other] {
				return refused(Conflict, "identity %s of subscriber %s belongs to subscriber %s", id.URI, p.Subscribers[i].IMPI, other)
			}
		}
	}
	if c.subscribers.n+added > maxStored {
		return refused(Limit, "the cluster cannot have more than %d subscribers", maxStored)
	}
	subs := make([]Subscriber, len(p.Subscribers))
	for i := range p.Subscribers {
		subs[i] = p.Subscribers[i].clone()
		subs[i].Since = c.s.index
		old, ok := c.subscribers.get(subs[i].IMPI)
		if !ok {
			continue
		}
		subs[i].Since = old.Since
		if subs[i].AKA.sameSIM(old.AKA) && subs[i].AKA.Offset == 0 {
			subs[i].AKA.Offset = old.AKA.Offset
		}
	}
	for i := range subs {
		c.dropSubscriber(subs[i].IMPI)
	}
	for i := range subs {
		c.addSubscriber(subs[i])
	}
	return Result{N: len(p.Subscribers)}
}

func (c *change) addSubscriber(sub Subscriber) {
	c.subscribers.put(sub.IMPI, sub)
	c.s.schemes[sub.Schemes()]++
	for _, id := range sub.Identities {
		c.identities.put(id.URI, sub.IMPI)
	}
}

func (c *change) dropSubscriber(impi string) bool {
	old, ok := c.subscribers.remove(impi)
	if ok {
		c.s.schemes[old.Schemes()]--
	}
	for _, id := range old.Identities {
		c.identities.remove(id.URI)
	}
	return ok
}

// removeSubscriber also ends the assignments: nobody is registered any more.
func (c *change) removeSubscriber(impi string) Result {
	sub, ok := c.subscribers.get(impi)
	if !ok {
		return refused(NotFound, "subscriber %s is unknown", impi)
	}
	c.dropSubscriber(impi)
	c.endAssignment(SCSCF, impi)
	for _, id := range sub.Identities {
		c.endAssignment(PCSCF, id.URI)
	}
	return Result{N: 1}
}

func (c *change) set(s *Set) Result {
	key := s.Name
	old, ok := c.settings.get(key)
	switch {
	case s.Value == "":
		if !ok {
			return Result{}
		}
		c.settings.remove(key)
	case old == s.Value:
		return Result{}
	case !ok && c.settings.n >= maxSettings:
		return refused(Limit, "the cluster has %d settings, the most it can have", maxSettings)
	default:
		c.settings.put(key, s.Value)
	}
	return Result{N: 1}
}
