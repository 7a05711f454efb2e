package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"bellwether/controller/state"
)

func node(name string, host byte) state.Command {
	return state.Command{PutNode: &state.Node{
		Name: name, ClusterAddr: fmt.Sprintf("10.0.0.%d:7000", host), Service: netip.AddrFrom4([4]byte{192, 0, 2, host}),
		P: 5060, I: 4060, S: 6060, Controller: true, Version: "1.0",
	}}
}

func worker(id string, k state.Kind, node string) state.Command {
	return state.Command{PutWorker: &state.Worker{ID: id, Kind: k, Node: node}}
}

func assign(user string, hint state.GroupID) state.Command {
	return state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: user, Hint: hint}}
}

func unassign(user string, g state.GroupID) state.Command {
	return state.Command{Unassign: &state.Unassign{Kind: state.SCSCF, User: user, Group: g}}
}

func subscriber(impi string, identities ...string) state.Subscriber {
	s := state.Subscriber{IMPI: impi, Realm: "example.org", HA1: map[string]string{"MD5": strings.Repeat("0f", 16)}}
	for _, uri := range identities {
		s.Identities = append(s.Identities, state.Identity{URI: uri})
	}
	return s
}

func put(subs ...state.Subscriber) state.Command {
	return state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: subs}}
}

// apply applies commands as one batch after s and fails if one is refused.
func apply(t testing.TB, s *state.State, cmds ...state.Command) *state.State {
	t.Helper()
	next, results := s.Apply(s.Index()+1, cmds)
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("%v: %v", cmds[i], r.Err)
		}
	}
	return next
}

// one applies a single command and returns its result.
func one(s *state.State, cmd state.Command) (*state.State, state.Result) {
	next, results := s.Apply(s.Index()+1, []state.Command{cmd})
	return next, results[0]
}

// small is a cluster of two nodes with a P, an I and two S-CSCFs, groups 1 to 4.
func small(t testing.TB) *state.State {
	t.Helper()
	return apply(t, state.New(),
		state.Command{Init: &state.Init{ClusterID: "c1", Name: "lab", Secret: bytes.Repeat([]byte{7}, 32)}},
		node("a", 1), node("b", 2),
		worker("p1", state.PCSCF, "a"), worker("i1", state.ICSCF, "a"), worker("s1", state.SCSCF, "a"), worker("s2", state.SCSCF, "b"),
		put(subscriber("alice@d", "sip:alice@d", "tel:+491"), subscriber("bob@d", "sip:bob@d")),
		assign("alice@d", 0),
		state.Command{Set: &state.Set{Name: "routing", Value: "one"}})
}

func TestTheStateShowsWhatWasPut(t *testing.T) {
	s := small(t)
	if s.ClusterID() != "c1" || s.Name() != "lab" || !bytes.Equal(s.Secret(), bytes.Repeat([]byte{7}, 32)) || s.Index() != 1 {
		t.Errorf("identity: %v", s)
	}
	if v, ok := s.Setting("routing"); !ok || v != "one" {
		t.Errorf("setting: %q, %v", v, ok)
	}
	if g, ok := s.Assignment(state.SCSCF, "alice@d"); !ok || g != 3 {
		t.Errorf("assignment: %d, %v", g, ok)
	}
	if _, ok := s.Assignment(state.PCSCF, "alice@d"); ok {
		t.Error("an assignment of one kind shows at another")
	}
	want := state.Group{ID: 3, Kind: state.SCSCF, Home: "s1", Serving: "s1", Epoch: 1, Users: 1}
	if g, ok := s.Group(3); !ok || g != want {
		t.Errorf("group: %+v, %v, want %+v", g, ok, want)
	}
	for g, want := range map[state.GroupID]string{1: "192.0.2.1:5060", 2: "192.0.2.1:4060", 3: "192.0.2.1:6060", 4: "192.0.2.2:6060"} {
		if got, ok := s.ServiceAddr(g); !ok || got.String() != want {
			t.Errorf("service address of group %d: %v, %v, want %s", g, got, ok, want)
		}
	}
	if got, ok := s.ServiceAddr(9); ok {
		t.Errorf("unknown group has service address %v", got)
	}
	if sub, ok := s.SubscriberByIdentity("tel:+491"); !ok || sub.IMPI != "alice@d" || s.SubscriberCount() != 2 {
		t.Errorf("by identity: %v, %v of %d", sub, ok, s.SubscriberCount())
	}
	var names []string
	for n := range s.Nodes() {
		names = append(names, n.Name)
	}
	for w := range s.Workers() {
		names = append(names, fmt.Sprint(w.ID, w.Group))
	}
	for u, g := range s.Assignments(state.SCSCF) {
		names = append(names, fmt.Sprint(u, g))
	}
	for sub := range s.Subscribers() {
		names = append(names, sub.IMPI)
	}
	for k, v := range s.Settings() {
		names = append(names, k+"="+v)
	}
	if got, want := strings.Join(names, " "), "a b i12 p11 s13 s24 alice@d3 alice@d bob@d routing=one"; got != want {
		t.Errorf("iterators give %q, want %q", got, want)
	}
	for range s.Groups() {
		break // an iterator can be left early
	}
}

func TestRefusedCommandsSayWhyAndChangeNothing(t *testing.T) {
	s := small(t)
	long := strings.Repeat("x", 1000)
	for _, tt := range []struct {
		name string
		cmd  state.Command
		code state.Code
		text string
	}{
		{"no operation", state.Command{}, state.Unsupported, "no single known operation"},
		{"two operations", state.Command{Set: &state.Set{Name: "a", Value: "b"}, RemoveWorker: &state.RemoveWorker{ID: "s2"}}, state.Unsupported, "no single known operation"},
		{"a later version", state.Command{V: 99, Set: &state.Set{Name: "a", Value: "b"}}, state.Unsupported, "version 99"},
		{"a second init", state.Command{Init: &state.Init{ClusterID: "c2", Name: "x", Secret: make([]byte, 32)}}, state.Exists, "initialised already, as lab (c1)"},
		{"a short secret", state.Command{Init: &state.Init{ClusterID: "c2", Name: "x", Secret: make([]byte, 31)}}, state.Invalid, "31 bytes, not 32"},
		{"a node without an address", state.Command{PutNode: &state.Node{Name: "c"}}, state.Invalid, "not a plain unicast IP address"},
		{"a node with a zone", state.Command{PutNode: &state.Node{Name: "c", Service: netip.MustParseAddr("fe80::1%eth0")}}, state.Invalid, "not a plain unicast IP address"},
		{"a node with a bad name", state.Command{PutNode: &state.Node{Name: "../c", Service: netip.MustParseAddr("192.0.2.9")}}, state.Invalid, "letters, digits"},
		{"a node with a bad cluster address", state.Command{PutNode: &state.Node{Name: "c", ClusterAddr: "here", Service: netip.MustParseAddr("192.0.2.9")}}, state.Invalid, "not host:port"},
		{"a worker of unknown kind", worker("x1", "x-cscf", "a"), state.Invalid, `kind "x-cscf" is unknown`},
		{"a worker on an unknown node", worker("s9", state.SCSCF, "z"), state.NotFound, "node z is unknown"},
		{"a worker that changes its kind", worker("s1", state.PCSCF, "a"), state.Conflict, "exists as s-cscf on node a"},
		{"a worker that changes its node", worker("s1", state.SCSCF, "b"), state.Conflict, "exists as s-cscf on node a"},
		{"removal of a worker with users", state.Command{RemoveWorker: &state.RemoveWorker{ID: "s1"}}, state.Conflict, "still has 1 user"},
		{"removal of an unknown worker", state.Command{RemoveWorker: &state.RemoveWorker{ID: "s9"}}, state.NotFound, "worker s9 is unknown"},
		{"a user at an I-CSCF", state.Command{Assign: &state.Assign{Kind: state.ICSCF, User: "u"}}, state.Invalid, "cannot be assigned"},
		{"a user without a name", assign("", 0), state.Invalid, "user is empty"},
		{"a user with a line break", assign("a\r\nb", 0), state.Invalid, "not plain printable text"},
		{"a user that is too long", assign(long, 0), state.Invalid, "1000 bytes, more than 512"},
		{"an identity of another", put(subscriber("eve@d", "sip:eve@d", "sip:bob@d")), state.Conflict, "identity sip:bob@d of subscriber eve@d belongs to subscriber bob@d"},
		{"an identity given twice in a command", put(subscriber("x@d", "sip:x@d"), subscriber("y@d", "sip:x@d")), state.Conflict, "identity sip:x@d of subscriber y@d is also given to subscriber x@d"},
		{"a subscriber given twice", put(subscriber("x@d", "sip:x@d"), subscriber("x@d", "sip:y@d")), state.Conflict, "x@d is given twice"},
		{"an identity twice at one subscriber", put(subscriber("x@d", "sip:x@d", "sip:x@d")), state.Invalid, "has identity sip:x@d twice"},
		{"a subscriber without identities", put(subscriber("x@d")), state.Invalid, "no public identity"},
		{"an identity that is no URI", put(subscriber("x@d", "x@d")), state.Invalid, "not a canonical sip: or tel: identity"},
		{"an identity with parameters", put(subscriber("x@d", "sip:x@d;user=phone")), state.Invalid, "not a canonical"},
		{"a new subscriber who exists", state.Command{PutSubscribers: &state.PutSubscribers{New: true, Subscribers: []state.Subscriber{subscriber("bob@d", "sip:bob@d")}}}, state.Exists, "bob@d exists already"},
		{"an unknown subscriber", state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "x@d"}}, state.NotFound, "subscriber x@d is unknown"},
		{"a setting with a bad name", state.Command{Set: &state.Set{Name: "a b", Value: "x"}}, state.Invalid, "letters, digits"},
		{"a setting that is too long", state.Command{Set: &state.Set{Name: "a", Value: strings.Repeat("x", 5000)}}, state.Invalid, "4096"},
		{"a request id that is too long", state.Command{RequestID: long, Set: &state.Set{Name: "a", Value: "x"}}, state.Invalid, "request id"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next, r := one(s, tt.cmd)
			if r.Err == nil || r.Err.Code != tt.code || !strings.Contains(r.Err.Text, tt.text) {
				t.Fatalf("result %+v, want %s with %q", r.Err, tt.code, tt.text)
			}
			if !errors.Is(r.Check(), &state.Error{Code: tt.code}) {
				t.Errorf("%v is not %s", r.Check(), tt.code)
			}
			// Nothing but the index differs.
			same := apply(t, s)
			if !bytes.Equal(snapshot(t, next), snapshot(t, same)) {
				t.Error("the refused command changed the state")
			}
		})
	}
}

func TestOnlyCanonicalIdentitiesAreStored(t *testing.T) {
	for uri, ok := range map[string]bool{
		"tel:12;phone-context=example.test":     true,
		"tel:12;phone-context=example.test;x=y": false,
		"sip:12@d;phone-context=example.test":   false,
		"sip:user;par=u?%40@d":                  true, // all of it is the user, RFC 3261 §25.1
		"sip:user@d;user=phone":                 false,
	} {
		if err := subscriber("x@d", uri).Validate(); (err == nil) != ok {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

func TestHA1IsCheckedAndNeverShownInErrors(t *testing.T) {
	for _, tt := range []struct {
		name, alg, hex, want string
	}{
		{"MD5 of the right length", "MD5", strings.Repeat("a0", 16), ""},
		{"SHA-256 of the right length", "SHA-256", strings.Repeat("a0", 32), ""},
		{"MD5 too long", "MD5", strings.Repeat("a0", 32), "64 characters, not 32"},
		{"SHA-256 too short", "SHA-256", strings.Repeat("a0", 16), "32 characters, not 64"},
		{"upper case would hash to something else", "MD5", strings.Repeat("A0", 16), "not lower-case hex"},
		{"no hex", "MD5", strings.Repeat("zz", 16), "not lower-case hex"},
		{"another algorithm", "SHA-512", strings.Repeat("a0", 32), "neither MD5 nor SHA-256"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sub := subscriber("x@d", "sip:x@d")
			sub.HA1 = map[string]string{tt.alg: tt.hex}
			err := sub.Validate()
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), tt.hex) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestAWorkerThatComesAgainKeepsItsGroup(t *testing.T) {
	s := small(t)
	before := snapshot(t, apply(t, s))
	next, r := one(s, worker("s2", state.SCSCF, "b"))
	if r.Err != nil || r.Group != 4 || r.N != 0 || !bytes.Equal(snapshot(t, next), before) {
		t.Errorf("result %+v", r)
	}
}

func TestGroupIDsAreNeverReused(t *testing.T) {
	s := apply(t, small(t), state.Command{RemoveWorker: &state.RemoveWorker{ID: "s2"}})
	if _, ok := s.Group(4); ok {
		t.Error("the removed worker's group is still there")
	}
	s, r := one(s, worker("s2", state.SCSCF, "b"))
	if r.Group != 5 {
		t.Errorf("the worker's second life has group %d, want 5", r.Group)
	}
	// Nor after a snapshot.
	s = apply(t, restored(t, s), state.Command{RemoveWorker: &state.RemoveWorker{ID: "s2"}})
	if _, r = one(restored(t, s), worker("s3", state.SCSCF, "b")); r.Group != 6 {
		t.Errorf("after a snapshot the next group is %d, want 6", r.Group)
	}
}

func TestAssign(t *testing.T) {
	s := small(t) // alice at 3, 4 is empty
	for _, tt := range []struct {
		name string
		cmd  state.Command
		want state.GroupID
		n    int
	}{
		{"the group with the fewest users", assign("u", 0), 4, 1},
		{"a hint wins over fewer users", assign("u", 3), 3, 1},
		{"a hint of another kind does not count", assign("u", 1), 4, 1},
		{"a hint that is no group does not count", assign("u", 99), 4, 1},
		{"who is assigned stays", assign("alice@d", 4), 3, 0},
		{"unassign from the right group", unassign("alice@d", 3), 3, 1},
		{"unassign from another group does nothing", unassign("alice@d", 4), 3, 0},
		{"unassign of who is not assigned does nothing", unassign("u", 3), 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next, r := one(s, tt.cmd)
			if r.Err != nil || r.Group != tt.want || r.N != tt.n {
				t.Errorf("result %+v, want group %d, n %d", r, tt.want, tt.n)
			}
			checkCounts(t, next)
		})
	}
	none := apply(t, state.New(), node("a", 1))
	if _, r := one(none, assign("u", 0)); r.Err == nil || r.Err.Code != state.NoWorker {
		t.Errorf("without workers: %+v", r)
	}
}

// checkCounts compares each group's count with the assignments.
func checkCounts(t *testing.T, s *state.State) {
	t.Helper()
	count := make(map[state.GroupID]int)
	for _, k := range state.Kinds {
		for _, g := range s.Assignments(k) {
			count[g]++
		}
	}
	for g := range s.Groups() {
		if g.Users != count[g.ID] {
			t.Errorf("group %d counts %d users, %d are assigned", g.ID, g.Users, count[g.ID])
		}
	}
}

func TestSubscribersAreReplacedAsAWhole(t *testing.T) {
	s := small(t)
	// alice gives tel:+491 away and bob takes it, in one command.
	s = apply(t, s, put(subscriber("bob@d", "sip:bob@d", "tel:+491"), subscriber("alice@d", "sip:alice@d")))
	if sub, _ := s.SubscriberByIdentity("tel:+491"); sub.IMPI != "bob@d" {
		t.Errorf("the number is %v's", sub)
	}
	s = apply(t, s, state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "bob@d"}})
	if sub, ok := s.SubscriberByIdentity("tel:+491"); ok {
		t.Errorf("the removed subscriber's number is %v's", sub)
	}
	s = apply(t, s, put(subscriber("carol@d", "tel:+491")))
	if s.SubscriberCount() != 2 {
		t.Errorf("%d subscribers", s.SubscriberCount())
	}
	// A command is carried out as a whole or not at all.
	next, r := one(s, put(subscriber("dave@d", "sip:dave@d"), subscriber("eve@d", "tel:+491")))
	if _, ok := next.Subscriber("dave@d"); ok || r.Err == nil {
		t.Error("half of a refused command took effect")
	}
}

func TestARemovedSubscriberIsNoUser(t *testing.T) {
	s := small(t)
	s = apply(t, s, put(subscriber("eve@d", "sip:eve@d", "tel:+499")))
	before := map[state.GroupID]int{}
	for g := range s.Groups() {
		before[g.ID] = g.Users
	}
	assigned := []state.Assign{{Kind: state.SCSCF, User: "eve@d"}, {Kind: state.PCSCF, User: "sip:eve@d"}, {Kind: state.PCSCF, User: "tel:+499"}}
	for i := range assigned {
		s = apply(t, s, state.Command{Assign: &assigned[i]})
	}
	s = apply(t, s, state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "eve@d"}})
	for _, a := range assigned {
		if g, ok := s.Assignment(a.Kind, a.User); ok {
			t.Errorf("%s is still assigned to group %d", a.User, g)
		}
	}
	for g := range s.Groups() {
		if g.Users != before[g.ID] {
			t.Errorf("group %d counts %d users, before %d", g.ID, g.Users, before[g.ID])
		}
	}
}

func TestThePutSubscriberIsACopy(t *testing.T) {
	sub := subscriber("x@d", "sip:x@d")
	s := apply(t, state.New(), put(sub))
	sub.Identities[0].Barred = true
	sub.HA1["MD5"] = ""
	if got, _ := s.Subscriber("x@d"); got.Identities[0].Barred || got.HA1["MD5"] == "" {
		t.Error("the state changed with the caller's value")
	}
}

func TestSubscribersAfter(t *testing.T) {
	s := apply(t, state.New(), put(subscriber("a@d", "sip:a@d"), subscriber("ab@d", "sip:ab@d"), subscriber("b@d", "sip:b@d")))
	for after, want := range map[string]string{"": "a@d ab@d b@d", "a@d": "ab@d b@d", "aa": "ab@d b@d", "ab@d": "b@d", "b@d": "", "z": ""} {
		var got []string
		for sub := range s.SubscribersAfter(after) {
			got = append(got, sub.IMPI)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("after %q come %v, want %q", after, got, want)
		}
	}
}

func TestImplicitSets(t *testing.T) {
	sub := state.Subscriber{Identities: []state.Identity{{URI: "sip:a@d", Barred: true}, {URI: "sip:b@d", Set: 1}, {URI: "sip:c@d"}}}
	if got := sub.ImplicitSet(0); len(got) != 2 || got[0].URI != "sip:a@d" || got[1].URI != "sip:c@d" {
		t.Errorf("set 0 is %v", got)
	}
}

func TestARepeatedRequestTakesEffectOnce(t *testing.T) {
	s := small(t)
	cmd := worker("s7", state.SCSCF, "a")
	cmd.RequestID = "r1"
	s, first := one(s, cmd)
	refusal := put(subscriber("bob@d", "sip:alice@d"))
	refusal.RequestID = "r2"
	s, firstRefusal := one(s, refusal)
	s = apply(t, s, state.Command{RemoveWorker: &state.RemoveWorker{ID: "s7"}}, state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "alice@d"}})
	for range 2 {
		var again state.Result
		if s, again = one(s, cmd); again != first {
			t.Errorf("repeated: %+v, want %+v", again, first)
		}
		if _, ok := s.Worker("s7"); ok {
			t.Error("the repeated request took effect again")
		}
		if s, again = one(s, refusal); again.Err == nil || *again.Err != *firstRefusal.Err {
			t.Errorf("repeated refusal: %+v, want %+v", again, firstRefusal)
		}
		s = restored(t, s)
	}
}

func TestTheLast4096RequestsAreRemembered(t *testing.T) {
	s := small(t)
	numbered := func(i int) state.Command {
		cmd := state.Command{Set: &state.Set{Name: "n", Value: fmt.Sprint(i)}}
		cmd.RequestID = fmt.Sprint("r", i)
		return cmd
	}
	const requests = 3 * 4096
	var index []uint64
	for batch := range slices.Chunk(seq(requests), 512) {
		var cmds []state.Command
		for _, i := range batch {
			cmds = append(cmds, numbered(i))
		}
		s = apply(t, s, cmds...)
		for range batch {
			index = append(index, s.Index())
		}
	}
	for i := requests - 4096; i < requests; i++ {
		if _, r := one(s, numbered(i)); r.Index != index[i] {
			t.Fatalf("request %d is carried out again", i)
		}
	}
	if _, r := one(s, numbered(0)); r.Index == index[0] {
		t.Error("the first request is still remembered; the table is not bounded")
	}
}

func seq(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func TestApplyLeavesTheOldStateAlone(t *testing.T) {
	s := small(t)
	before := snapshot(t, s)
	apply(t, s, assign("u", 0), unassign("alice@d", 3), put(subscriber("x@d", "sip:x@d")),
		state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "bob@d"}}, worker("s9", state.SCSCF, "a"),
		state.Command{Set: &state.Set{Name: "routing"}}, node("c", 3))
	if !bytes.Equal(before, snapshot(t, s)) {
		t.Error("Apply changed its receiver")
	}
	secret := s.Secret()
	secret[0] = 0
	if s.Secret()[0] == 0 {
		t.Error("the secret can be changed from outside")
	}
}

func TestSettingsCanBeRemoved(t *testing.T) {
	s, r := one(small(t), state.Command{Set: &state.Set{Name: "routing"}})
	if _, ok := s.Setting("routing"); ok || r.N != 1 {
		t.Errorf("removal: %+v", r)
	}
	if _, r = one(s, state.Command{Set: &state.Set{Name: "routing"}}); r.Err != nil || r.N != 0 {
		t.Errorf("second removal: %+v", r)
	}
}

func TestAClusterHasOneDomain(t *testing.T) {
	node := func(name, domain string) state.Command {
		return state.Command{PutNode: &state.Node{Name: name, Service: netip.MustParseAddr("192.0.2.9"), Domain: domain}}
	}
	s := state.New()
	for i, tt := range []struct {
		name string
		cmd  state.Command
		want string
	}{
		{"a node of an earlier version says none", node("a", ""), ""},
		{"the first that says one decides", node("b", "ims.test"), ""},
		{"another agrees", node("c", "ims.test"), ""},
		{"another does not", node("d", "other.test"), "the cluster's SIP domain is ims.test, not other.test"},
		{"one that agreed changes its mind", node("b", "other.test"), "the cluster's SIP domain is ims.test, not other.test"},
	} {
		next, res := s.Apply(uint64(i+1), []state.Command{tt.cmd})
		s = next
		if err := res[0].Check(); tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, ok := s.Node("d"); ok {
		t.Error("the node of another domain is stored")
	}
}
