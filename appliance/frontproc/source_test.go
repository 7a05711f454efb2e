package frontproc

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bellwether/appliance/config"
	"bellwether/appliance/workerlink"
	"bellwether/controller/api"
	"bellwether/controller/state"
)

const hash = "0123456789abcdef0123456789abcdef"

func subscriber(user string, identities ...string) api.NewSubscriber {
	s := api.NewSubscriber{IMPI: user + "@ims.test", Realm: "ims.test", HA1: api.Credentials{MD5: hash}}
	for _, id := range append([]string{"sip:" + user + "@ims.test"}, identities...) {
		s.Identities = append(s.Identities, api.Identity{URI: id})
	}
	return s
}

func (n *node) add(subs ...api.NewSubscriber) {
	n.t.Helper()
	for _, s := range subs {
		if err := n.admin.AddSubscriber(n.t.Context(), s, false); err != nil {
			n.t.Fatal(err)
		}
	}
}

// refusedWith checks the code of an error, and a part of what it says.
func refusedWith(t *testing.T, err error, code api.Code, part string) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Error(), part) {
		t.Errorf("error %v, want %s with %q", err, code, part)
	}
}

func TestTheNodeTellsWhatItIs(t *testing.T) {
	n := start(t, Options{})
	ctx := t.Context()
	if v, err := n.admin.Version(ctx); err != nil || v.Version != "v1" || v.Node != "n1" || v.Go == "" {
		t.Errorf("version %+v, %v", v, err)
	}
	want := api.Node{
		Name: "n1", Address: n.cfg.Cluster.Address.String(), Service: n.cfg.SIP.Address.String(),
		Controller: true, Leader: true, Connected: true, Version: "v1",
	}
	if got, err := n.admin.Nodes(ctx); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("nodes %+v, %v", got, err)
	}
	n.serving()
	other := n.over(n.remote("n2", 2))
	other.hello("n2")
	known := state.Node{Name: "n2", ClusterAddr: "127.0.0.9:7400", Service: n.host(2), P: 5060, I: 4060, S: 6060}
	if r := other.propose(state.Command{PutNode: &known}); r.Err != nil {
		t.Fatal(r.Err)
	}
	n.status("n2 is connected", func(st api.Status) bool { return len(st.Nodes) == 2 && st.Nodes[1].Connected })
	other.c.Close()
	n.status("n2 is gone", func(st api.Status) bool { return !st.Nodes[1].Connected })
	if w, err := n.admin.Worker(ctx, "p1"); err != nil || w.Kind != "p-cscf" || w.Node != "n1" || !w.Connected {
		t.Errorf("worker %+v, %v", w, err)
	}
	_, err := n.admin.Worker(ctx, "p9")
	refusedWith(t, err, api.NotFound, "worker list")
}

func TestSubscribers(t *testing.T) {
	n := start(t, Options{})
	w, _ := n.serving()
	ctx := t.Context()
	w.tell(workerlink.Follow, workerlink.FollowMsg{Feed: 1})
	var awaited atomic.Uint64
	w.answers(func(ctx context.Context, method string, payload []byte) ([]byte, error) {
		var m workerlink.AwaitMsg
		if method != workerlink.Await || workerlink.Decode(payload, &m) != nil {
			return nil, errors.New("not asked for")
		}
		for w.state().Index() < m.Index {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		awaited.Store(m.Index)
		return nil, nil
	})
	n.add(subscriber("alice", "tel:+4930111"))
	if _, ok := w.state().Subscriber("alice@ims.test"); !ok || awaited.Load() < w.state().Index() {
		t.Errorf("a worker process at %d was not awaited: %d", w.state().Index(), awaited.Load())
	}
	for _, name := range []string{"alice@ims.test", "sip:alice@ims.test", "alice", "tel:+4930111", "+4930111", " alice "} {
		if s, err := n.admin.Subscriber(ctx, name); err != nil || s.IMPI != "alice@ims.test" || !slices.Equal(s.Algorithms, []string{"MD5"}) {
			t.Errorf("%q: %+v, %v", name, s, err)
		}
	}
	_, err := n.admin.Subscriber(ctx, "bob")
	refusedWith(t, err, api.NotFound, "subscriber list")

	refusedWith(t, n.admin.AddSubscriber(ctx, subscriber("alice"), false), api.Conflict, "--replace")
	if err := n.admin.AddSubscriber(ctx, subscriber("alice"), true); err != nil {
		t.Error(err)
	}
	err = n.admin.AddSubscriber(ctx, subscriber("bob", "sip:alice@ims.test"), false)
	refusedWith(t, err, api.Conflict, "alice")
	if strings.Contains(err.Error(), "--replace") {
		t.Errorf("replacing bob does not give him alice's identity: %v", err)
	}
	refusedWith(t, n.admin.RemoveSubscriber(ctx, "bob@ims.test"), api.NotFound, "bob")

	n.add(subscriber("bob"), subscriber("carol"), subscriber("dave"))
	var names []string
	for after, pages := "", 0; ; pages++ {
		page, err := n.admin.Subscribers(ctx, after, 2)
		if err != nil || pages > 2 {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, s := range page.Subscribers {
			names = append(names, strings.TrimSuffix(s.IMPI, "@ims.test"))
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"alice", "bob", "carol", "dave"}) {
		t.Errorf("pages list %v", names)
	}
	if err := n.admin.RemoveSubscriber(ctx, "dave@ims.test"); err != nil {
		t.Error(err)
	}
	names = nil
	if err := n.admin.ExportSubscribers(ctx, func(s api.Subscriber) error { names = append(names, s.IMPI); return nil }); err != nil || len(names) != 3 {
		t.Errorf("exported %v, %v", names, err)
	}
}

func TestImportIsAllOrNothing(t *testing.T) {
	n := start(t, Options{})
	ctx := t.Context()
	n.add(subscriber("alice"), subscriber("old00001"))
	var all []api.NewSubscriber
	for i := range 1200 { // several commands
		all = append(all, subscriber(fmt.Sprintf("old%05d", i)))
	}
	bad := append(slices.Clone(all), subscriber("mallory", "sip:alice@ims.test"))
	_, err := n.admin.ImportSubscribers(ctx, bad)
	refusedWith(t, err, api.Conflict, "alice")
	if st, err := n.admin.Status(ctx); err != nil || st.Subscribers != 2 {
		t.Errorf("a refused import left %d subscribers, %v", st.Subscribers, err)
	}
	if res, err := n.admin.ImportSubscribers(ctx, all); err != nil || res.Added != 1199 || res.Replaced != 1 {
		t.Errorf("imported %+v, %v", res, err)
	}
	if st, err := n.admin.Status(ctx); err != nil || st.Subscribers != 1201 {
		t.Errorf("%d subscribers, %v", st.Subscribers, err)
	}
	// Subscribers of whom a full command would be too large.
	var wide []api.NewSubscriber
	for i := range 500 {
		var ids []string
		for j := range 63 {
			ids = append(ids, fmt.Sprintf("sip:wide%05d.%05d.%s@ims.test", i, j, strings.Repeat("x", 60)))
		}
		wide = append(wide, subscriber(fmt.Sprintf("wide%05d", i), ids...))
	}
	if res, err := n.admin.ImportSubscribers(ctx, wide); err != nil || res.Added != 500 {
		t.Errorf("imported %+v, %v", res, err)
	}
	// What takes several parts reaches a worker process whole.
	w := n.local()
	w.hello("n1")
	w.tell(workerlink.Follow, workerlink.FollowMsg{Feed: 1})
	eventually(t, "the copy is whole", func() bool { return w.state().SubscriberCount() == 1701 }, func() any { return w.state() })
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil || w.updates < 5 {
		t.Errorf("it came in %d parts, %v", w.updates, w.broken)
	}
}

// TestAWorkerThatHangsHoldsUpNobody: what it is asked has an end.
func TestAWorkerThatHangsHoldsUpNobody(t *testing.T) {
	n := start(t, Options{})
	w, groups := n.serving()
	n.add(subscriber("alice"))
	for _, a := range []state.Assign{{Kind: state.SCSCF, User: "alice@ims.test"}, {Kind: state.PCSCF, User: "sip:alice@ims.test"}} {
		if r := w.propose(state.Command{Assign: &a}); r.Err != nil || r.Group != groups[a.Kind] {
			t.Fatalf("assigned %+v", r)
		}
	}
	w.answers(never)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	began := time.Now()
	if err := n.admin.AddSubscriber(ctx, subscriber("bob"), false); err != nil || time.Since(began) > 2*settleWithin {
		t.Errorf("adding took %v, %v", time.Since(began), err)
	}
	both := make(chan struct{})
	go func() {
		defer close(both)
		_, err := n.admin.Calls(ctx)
		refusedWith(t, err, api.Unavailable, "1 worker processes")
	}()
	_, err := n.admin.User(ctx, "alice")
	refusedWith(t, err, api.Unavailable, "1 worker processes")
	<-both
	// The status asks nobody.
	began = time.Now()
	if st, err := n.admin.Status(ctx); err != nil || st.Users != 1 || time.Since(began) > time.Second {
		t.Errorf("status after %v: %+v, %v", time.Since(began), st, err)
	}
}

func TestUsersAndCalls(t *testing.T) {
	n := start(t, Options{})
	w, groups := n.serving()
	ctx := t.Context()
	n.add(subscriber("alice", "tel:+4930111"), subscriber("bob"))
	_, err := n.admin.User(ctx, "nobody")
	refusedWith(t, err, api.NotFound, "nobody has the identity sip:nobody@ims.test")
	_, err = n.admin.User(ctx, "alice")
	refusedWith(t, err, api.NotFound, "not registered")
	_, err = n.admin.User(ctx, "sip:")
	refusedWith(t, err, api.Invalid, "not an identity")

	for _, a := range []state.Assign{{Kind: state.SCSCF, User: "alice@ims.test"}, {Kind: state.PCSCF, User: "sip:alice@ims.test"}} {
		if r := w.propose(state.Command{Assign: &a}); r.Err != nil || r.Group != groups[a.Kind] {
			t.Fatalf("assigned %+v", r)
		}
	}
	soon, later := time.Now().Add(time.Minute).Round(time.Second), time.Now().Add(time.Hour).Round(time.Second)
	// A second process holds the other half of everything.
	second := n.over(n.remote("n2", 2))
	second.hello("n2")
	n2 := state.Node{Name: "n2", ClusterAddr: "127.0.0.9:7400", Service: n.host(2), P: 5060, I: 4060, S: 6060}
	if r := second.propose(state.Command{PutNode: &n2}); r.Err != nil {
		t.Fatal(r.Err)
	}
	contact := "sip:alice@192.0.2.1:5060"
	w.answers(reply(workerlink.UserReply{Bindings: []workerlink.Binding{{
		Worker: "p1", Kind: "p-cscf", Contact: contact, Flow: "udp a b", ServiceRoute: []string{"<sip:s>"}, Expires: soon,
	}}}, workerlink.CallsReply{Calls: []workerlink.Call{
		{CallID: "1", From: "sip:alice@ims.test", To: "tel:+4930222", State: "confirmed", Worker: "s1", Role: "orig", Started: soon, PCSCF: groups[state.PCSCF]},
		{CallID: "2", From: "x", To: "sip:alice@ims.test", State: "ringing", Worker: "s1", Role: "term", Started: soon.Add(-time.Second), PCSCF: groups[state.PCSCF]},
	}}))
	second.answers(reply(workerlink.UserReply{Bindings: []workerlink.Binding{
		{Worker: "s1", Kind: "s-cscf", Contact: contact, Q: 0.5, Path: []string{"<sip:p>"}, Expires: soon},
		{Worker: "s1", Kind: "s-cscf", Contact: "sip:alice@192.0.2.2:5060", Expires: later},
	}}, workerlink.CallsReply{Calls: []workerlink.Call{
		{CallID: "1", From: "sip:alice@ims.test", To: "sip:bob@ims.test", State: "ringing", Worker: "s2", Role: "term", Started: soon.Add(-time.Minute)},
	}}))
	for _, name := range []string{"alice", "tel:+4930111"} {
		u, err := n.admin.User(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(u.Contacts, func(a, b api.Contact) int { return strings.Compare(a.URI, b.URI) })
		if u.IMPI != "alice@ims.test" || u.PCSCF.Serving != "p1" || u.SCSCF.Serving != "s1" || len(u.Identities) != 2 ||
			!u.Expires.Equal(later) || len(u.ServiceRoute) != 1 || len(u.Contacts) != 2 ||
			u.Contacts[0].Flow != "udp a b" || u.Contacts[0].Q != 0.5 || u.Contacts[1].Flow != "" {
			t.Errorf("user %s: %+v", name, u)
		}
	}
	calls, err := n.admin.Calls(ctx)
	if err != nil || len(calls) != 2 {
		t.Fatalf("calls %+v, %v", calls, err)
	}
	one := api.Call{CallID: "1", From: "sip:alice@ims.test", To: "tel:+4930222", State: "confirmed", POrig: "p1", SOrig: "s1", STerm: "s2", Started: calls[0].Started}
	if calls[0] != one || !calls[0].Started.Equal(soon.Add(-time.Minute)) {
		t.Errorf("the call of two halves is %+v", calls[0])
	}
	if calls[1].PTerm != "p1" || calls[1].SOrig != "" || calls[1].STerm != "s1" {
		t.Errorf("the call of one half is %+v", calls[1])
	}
}

func reply(user workerlink.UserReply, calls workerlink.CallsReply) func(context.Context, string, []byte) ([]byte, error) {
	return func(_ context.Context, method string, _ []byte) ([]byte, error) {
		switch method {
		case workerlink.User:
			return workerlink.Encode(user), nil
		case workerlink.Calls:
			return workerlink.Encode(calls), nil
		}
		return nil, nil
	}
}

func TestReloadThroughTheAPI(t *testing.T) {
	outcomes := []func() (applied, pending []config.Change, err error){
		func() (applied, pending []config.Change, err error) {
			return []config.Change{{Key: "log.level", Old: "INFO", New: "DEBUG"}}, []config.Change{{Key: "workers", Old: "a", New: "b"}}, nil
		},
		func() (applied, pending []config.Change, err error) { return nil, nil, errors.New("n1.yaml:3: no") },
		func() (applied, pending []config.Change, err error) { return nil, nil, nil },
	}
	i := -1
	n := start(t, Options{Reload: func() (applied, pending []config.Change, err error) { i++; return outcomes[i]() }})
	ctx := t.Context()
	r, err := n.admin.Reload(ctx)
	if err != nil || len(r.Applied) != 1 || r.Applied[0] != (api.Change{Key: "log.level", Old: "INFO", New: "DEBUG"}) || len(r.Pending) != 1 {
		t.Errorf("reload %+v, %v", r, err)
	}
	_, err = n.admin.Reload(ctx)
	refusedWith(t, err, api.Invalid, "n1.yaml:3: no")
	if r, err := n.admin.Reload(ctx); err != nil || len(r.Applied)+len(r.Pending) != 0 {
		t.Errorf("reload %+v, %v", r, err)
	}
	_, err = source{&Process{}}.Reload(ctx)
	refusedWith(t, err, api.Unavailable, "restart")
}

func TestWatchTellsWhatChanges(t *testing.T) {
	n := start(t, Options{})
	w, _ := n.serving()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	events := make(chan api.Event)
	done := make(chan error, 1)
	go func() {
		done <- n.admin.Watch(ctx, func(e api.Event) error {
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	if e := <-events; e.Type != "status" || len(e.Status.Workers) != 3 {
		t.Errorf("the first event is %+v", e)
	}
	quiet := time.After(3 * watchEvery / 2)
	select {
	case e := <-events:
		t.Errorf("nothing changed, and the watch says %+v", e.Status)
	case <-quiet:
	}
	w.tell(workerlink.Groups, workerlink.GroupsMsg{})
	if e := <-events; len(e.Status.Alarms) != 3 {
		t.Errorf("the second event is %+v", e)
	}
	// The node's end ends the watch.
	go n.stop()
	select {
	case err := <-done:
		if ctx.Err() != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("the watch outlives the node")
	}
}

func TestRefusalsHaveTheirCodes(t *testing.T) {
	for _, tt := range []struct {
		code state.Code
		want api.Code
	}{
		{state.NotFound, api.NotFound}, {state.Exists, api.Conflict}, {state.Conflict, api.Conflict},
		{state.Limit, api.TooLarge}, {state.NoWorker, api.Unavailable}, {state.Invalid, api.Invalid},
	} {
		refusedWith(t, refused(fmt.Errorf("propose: %w", &state.Error{Code: tt.code, Text: "why"})), tt.want, "why")
	}
	if err := refused(nil); err != nil {
		t.Errorf("no refusal is the error %v", err)
	}
}

func TestKeysOfAUSIMAreStoredAndNotShown(t *testing.T) {
	n := start(t, Options{})
	w, _ := n.serving()
	w.tell(workerlink.Follow, workerlink.FollowMsg{Feed: 1})
	s := subscriber("alice")
	s.HA1, s.AKA = api.Credentials{}, &api.AKA{K: hash, OPc: "f" + hash[1:], AMF: "b9b9"}
	n.add(s)
	eventually(t, "the worker has the subscriber", func() bool { return w.state().SubscriberCount() == 1 }, func() any { return w.state() })
	sub, _ := w.state().Subscriber("alice@ims.test")
	if sub.AKA == nil || hex.EncodeToString(sub.AKA.K) != s.AKA.K || hex.EncodeToString(sub.AKA.OPc) != s.AKA.OPc || sub.AKA.AMF != [2]byte{0xb9, 0xb9} {
		t.Errorf("stored %v", sub)
	}
	shown, err := n.admin.Subscriber(t.Context(), "alice@ims.test")
	if err != nil || shown.AKA == nil || *shown.AKA != (api.StoredAKA{AMF: "b9b9"}) || len(shown.Algorithms) != 0 {
		t.Errorf("shown %+v, %v", shown, err)
	}
}

func TestASubscriberWithoutAPasswordHasAnEmptyList(t *testing.T) {
	if got := shown(state.Subscriber{IMPI: "sim@ims.test"}); got.Algorithms == nil {
		t.Error("the list of algorithms is null in JSON")
	}
}
