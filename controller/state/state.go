package state

import (
	"encoding/binary"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// State is one immutable version of the cluster state. All methods may be
// called from any goroutine, without locks. Iterators go in key order.
type State struct {
	index     uint64
	clusterID string
	name      string
	secret    Secret
	lastGroup GroupID
	schemes   [allSchemes + 1]int // subscribers by what they can be authenticated with

	settings    *iradix.Tree[string]
	nodes       *iradix.Tree[Node]
	workers     *iradix.Tree[Worker]
	groups      *iradix.Tree[Group] // by big-endian id
	assignments *iradix.Tree[GroupID]
	subscribers *iradix.Tree[Subscriber]
	identities  *iradix.Tree[string] // AOR to IMPI
	bans        *iradix.Tree[Ban]    // by banKey

	// Results of recent requests, in two generations: when recent is full it
	// becomes older, so at least the last maxRequests are remembered.
	recent, older *iradix.Tree[Result]
}

// New returns the empty state, index 0.
func New() *State {
	return &State{
		settings: iradix.New[string](), nodes: iradix.New[Node](), workers: iradix.New[Worker](),
		groups: iradix.New[Group](), assignments: iradix.New[GroupID](),
		subscribers: iradix.New[Subscriber](), identities: iradix.New[string](), bans: iradix.New[Ban](),
		recent: iradix.New[Result](), older: iradix.New[Result](),
	}
}

// Index is the log index of the last batch applied.
func (s *State) Index() uint64 { return s.index }

// ClusterID is "" until Init was applied.
func (s *State) ClusterID() string { return s.clusterID }

// Name is the cluster's name.
func (s *State) Name() string { return s.name }

// Secret returns a copy of the cluster's 32-byte secret, nil before Init.
func (s *State) Secret() []byte { return slices.Clone([]byte(s.secret)) }

// String describes the state without its content.
func (s *State) String() string {
	return fmt.Sprintf("{cluster %s index %d nodes %d workers %d subscribers %d}",
		s.clusterID, s.index, s.nodes.Len(), s.workers.Len(), s.subscribers.Len())
}

// GoString is String.
func (s *State) GoString() string { return s.String() }

// LogValue is String.
func (s *State) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Setting returns the value of a setting.
func (s *State) Setting(name string) (string, bool) { return s.settings.Get([]byte(name)) }

// Settings goes through all settings.
func (s *State) Settings() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for k, v := range all(s.settings) {
			if !yield(string(k), v) {
				return
			}
		}
	}
}

// Nodes goes through all nodes by name.
func (s *State) Nodes() iter.Seq[Node] { return values(s.nodes) }

// Node returns the node of that name.
func (s *State) Node(name string) (Node, bool) { return s.nodes.Get([]byte(name)) }

// Workers goes through all workers by id.
func (s *State) Workers() iter.Seq[Worker] { return values(s.workers) }

// Worker returns the worker of that id.
func (s *State) Worker(id string) (Worker, bool) { return s.workers.Get([]byte(id)) }

// Groups goes through all groups by id.
func (s *State) Groups() iter.Seq[Group] { return values(s.groups) }

// Group returns the group of that id.
func (s *State) Group(id GroupID) (Group, bool) { return s.groups.Get([]byte(groupKey(id))) }

// Assignment returns the group that user is assigned to. At the P-CSCF a user
// is a canonical AOR, at the S-CSCF an IMPI.
func (s *State) Assignment(k Kind, user string) (GroupID, bool) {
	return s.assignments.Get([]byte(assignmentKey(k, user)))
}

// Assignments goes through the users of a kind and their groups.
func (s *State) Assignments(k Kind) iter.Seq2[string, GroupID] {
	prefix := assignmentKey(k, "")
	return func(yield func(string, GroupID) bool) {
		it := s.assignments.Root().Iterator()
		it.SeekPrefix([]byte(prefix))
		for key, g, ok := it.Next(); ok; key, g, ok = it.Next() {
			if !yield(string(key[len(prefix):]), g) {
				return
			}
		}
	}
}

// Subscriber returns the subscriber with that private identity.
func (s *State) Subscriber(impi string) (Subscriber, bool) { return s.subscribers.Get([]byte(impi)) }

// SubscriberByIdentity returns the subscriber that has a public identity,
// given in canonical form.
func (s *State) SubscriberByIdentity(aor string) (Subscriber, bool) {
	impi, ok := s.identities.Get([]byte(aor))
	if !ok {
		return Subscriber{}, false
	}
	return s.Subscriber(impi)
}

// Subscribers goes through all subscribers by IMPI.
func (s *State) Subscribers() iter.Seq[Subscriber] { return values(s.subscribers) }

// SubscribersAfter gives, in order of IMPI, the subscribers that come after one.
func (s *State) SubscribersAfter(impi string) iter.Seq[Subscriber] {
	return func(yield func(Subscriber) bool) {
		it := s.subscribers.Root().Iterator()
		it.SeekLowerBound([]byte(impi))
		for k, sub, ok := it.Next(); ok; k, sub, ok = it.Next() {
			if string(k) != impi && !yield(sub) {
				return
			}
		}
	}
}

// SubscriberCount is the number of subscribers.
func (s *State) SubscriberCount() int { return s.subscribers.Len() }

// ServiceAddr is the public address of a group: its home node's service
// address and the entry port of the group's kind. Where the node has two, it is
// the first.
func (s *State) ServiceAddr(g GroupID) (netip.AddrPort, bool) {
	n, port, ok := s.home(g)
	return netip.AddrPortFrom(n.Service, port), ok
}

// ServiceAddrFor is the public address of a group that a remote host can
// reach: the one of its address family if the home node has one, else the first.
func (s *State) ServiceAddrFor(g GroupID, remote netip.Addr) (netip.AddrPort, bool) {
	n, port, ok := s.home(g)
	addr := n.Service
	if remote.Unmap().Is6() && n.Service6.IsValid() {
		addr = n.Service6
	}
	return netip.AddrPortFrom(addr, port), ok
}

// home is the home node of a group and its entry port for the group's kind.
func (s *State) home(g GroupID) (Node, uint16, bool) {
	group, ok := s.Group(g)
	if !ok {
		return Node{}, 0, false
	}
	w, ok := s.Worker(group.Home)
	if !ok {
		return Node{}, 0, false
	}
	n, ok := s.Node(w.Node)
	port := n.Port(group.Kind)
	return n, port, ok && port != 0
}

// MinUser returns the group of kind k with the fewest users, ties by the
// lowest id; false if the kind has no group. extra, if not nil, gives users to
// count on top of the assigned ones.
func (s *State) MinUser(k Kind, extra func(GroupID) int) (GroupID, bool) {
	return minUser(values(s.groups), k, extra)
}

func minUser(groups iter.Seq[Group], k Kind, extra func(GroupID) int) (GroupID, bool) {
	best, fewest := GroupID(0), 0
	for g := range groups {
		if g.Kind != k {
			continue
		}
		n := g.Users
		if extra != nil {
			n += extra(g.ID)
		}
		if best == 0 || n < fewest {
			best, fewest = g.ID, n
		}
	}
	return best, best != 0
}

func all[T any](t *iradix.Tree[T]) iter.Seq2[[]byte, T] { return walk(t.Root()) }

func walk[T any](root *iradix.Node[T]) iter.Seq2[[]byte, T] {
	return func(yield func([]byte, T) bool) {
		it := root.Iterator()
		for k, v, ok := it.Next(); ok; k, v, ok = it.Next() {
			if !yield(k, v) {
				return
			}
		}
	}
}

func values[T any](t *iradix.Tree[T]) iter.Seq[T] { return walkValues(t.Root()) }

func walkValues[T any](root *iradix.Node[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, v := range walk(root) {
			if !yield(v) {
				return
			}
		}
	}
}

func groupKey(id GroupID) string { return string(binary.BigEndian.AppendUint32(nil, id)) }

func assignmentKey(k Kind, user string) string { return string(k) + "\x00" + user }
