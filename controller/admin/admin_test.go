package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"bellwether/controller/admin"
	"bellwether/controller/admin/admintest"
	"bellwether/controller/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ admin.Source = (*admintest.Source)(nil)

// serve runs the API on a unix socket until the test ends.
func serve(t *testing.T, src admin.Source) *api.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := admin.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- admin.Serve(ctx, l, admin.Handler(src), slog.New(slog.DiscardHandler)) }()
	c := api.New(path)
	t.Cleanup(func() {
		c.Close()
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return c
}

func cluster() *admintest.Source {
	return &admintest.Source{
		State: api.Status{
			Cluster: "c1", Domain: "example.test", Node: "n1", Leader: "n2", Term: 7, Quorum: true,
			Nodes:   []api.Node{{Name: "n1", Connected: true}, {Name: "n2", Leader: true}},
			Workers: []api.Worker{{ID: "p1", Kind: "p-cscf", Node: "n1", Users: 3}},
			Alarms:  []api.Alarm{{Code: "child_crashed", Severity: "warning", Node: "n2"}},
		},
		Registered: []api.User{{Identity: "sip:alice@example.test", Identities: []string{"sip:alice@example.test", "tel:+491"}, IMPI: "alice@example.test"}},
		CallList:   []api.Call{{CallID: "x@y", From: "sip:alice@example.test", To: "sip:bob@example.test", State: "ringing"}},
		Release:    api.Version{Version: "1.2", Node: "n1"},
		Reloaded:   api.Reload{Applied: []api.Change{{Key: "log.level", Old: "INFO", New: "DEBUG"}}},
	}
}

func subscriber(name string, identities ...string) api.NewSubscriber {
	s := api.NewSubscriber{
		IMPI: name + "@example.test", Realm: "example.test",
		HA1: api.Credentials{MD5: strings.Repeat("0a", 16), SHA256: strings.Repeat("0b", 32)},
	}
	for _, id := range append([]string{"sip:" + name + "@example.test"}, identities...) {
		s.Identities = append(s.Identities, api.Identity{URI: id})
	}
	return s
}

func TestClientReadsWhatTheSourceHas(t *testing.T) {
	src := cluster()
	c := serve(t, src)
	ctx := t.Context()
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if d := cmp.Diff(got, want); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	st, err := c.Status(ctx)
	want := src.State
	want.Users, want.Calls = 1, 1
	check("status", st, err, want)
	nodes, err := c.Nodes(ctx)
	check("nodes", nodes, err, src.State.Nodes)
	workers, err := c.Workers(ctx)
	check("workers", workers, err, src.State.Workers)
	worker, err := c.Worker(ctx, "p1")
	check("worker", worker, err, src.State.Workers[0])
	u, err := c.User(ctx, "tel:+491")
	check("user", u, err, src.Registered[0])
	calls, err := c.Calls(ctx)
	check("calls", calls, err, src.CallList)
	v, err := c.Version(ctx)
	check("version", v, err, src.Release)
	r, err := c.Reload(ctx)
	check("reload", r, err, src.Reloaded)
}

func TestEmptyListsAreLists(t *testing.T) {
	h := admin.Handler(&admintest.Source{})
	for path, want := range map[string]string{api.PathSubscribers: `{"subscribers":[]}`, api.PathUsers: `{"users":[]}`} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if got := strings.TrimSpace(w.Body.String()); got != want {
			t.Errorf("GET %s = %s, want %s", path, got, want)
		}
	}
	for _, path := range []string{api.PathNodes, api.PathWorkers, api.PathCalls} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if got := strings.TrimSpace(w.Body.String()); got != "[]" {
			t.Errorf("GET %s = %s, want []", path, got)
		}
	}
}

func TestSubscribersAreStoredListedAndRemoved(t *testing.T) {
	c := serve(t, &admintest.Source{})
	ctx := t.Context()
	for _, name := range []string{"carol", "alice", "bob"} {
		if err := c.AddSubscriber(ctx, subscriber(name), false); err != nil {
			t.Fatal(err)
		}
	}
	err := c.AddSubscriber(ctx, subscriber("bob"), false)
	wantCode(t, err, api.Conflict)
	if err := c.AddSubscriber(ctx, subscriber("bob", "tel:+492"), true); err != nil {
		t.Fatal(err)
	}
	page, err := c.Subscribers(ctx, "", 2)
	if err != nil || len(page.Subscribers) != 2 || page.Next != "bob@example.test" {
		t.Fatalf("first page = %+v, %v", page, err)
	}
	page, err = c.Subscribers(ctx, page.Next, 2)
	if err != nil || len(page.Subscribers) != 1 || page.Subscribers[0].IMPI != "carol@example.test" || page.Next != "" {
		t.Fatalf("second page = %+v, %v", page, err)
	}
	bob, err := c.Subscriber(ctx, "tel:+492")
	if d := cmp.Diff(bob, api.Subscriber{
		IMPI: "bob@example.test", Realm: "example.test", Algorithms: []string{"MD5", "SHA-256"},
		Identities: []api.Identity{{URI: "sip:bob@example.test"}, {URI: "tel:+492"}},
	}); d != "" || err != nil {
		t.Errorf("bob: %v %s", err, d)
	}
	if err := c.RemoveSubscriber(ctx, "bob@example.test"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, c.RemoveSubscriber(ctx, "bob@example.test"), api.NotFound)
	var left []string
	if err := c.ExportSubscribers(ctx, func(s api.Subscriber) error { left = append(left, s.IMPI); return nil }); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(left, []string{"alice@example.test", "carol@example.test"}); d != "" {
		t.Error(d)
	}
}

func TestBansAreCheckedStoredAndRemoved(t *testing.T) {
	c := serve(t, &admintest.Source{})
	ctx := t.Context()
	prefix := netip.MustParsePrefix("2001:db8::/32")
	b, err := c.AddBan(ctx, api.NewBan{Prefix: prefix, Reason: "floods", Seconds: 60})
	if err != nil || b.Prefix != prefix || b.Until.Sub(b.Since) != time.Minute {
		t.Errorf("added %+v, %v", b, err)
	}
	_, err = c.AddBan(ctx, api.NewBan{Prefix: netip.MustParsePrefix("192.0.2.1/24")})
	wantCode(t, err, api.Invalid)
	_, err = c.AddBan(ctx, api.NewBan{})
	wantCode(t, err, api.Invalid)
	if l, err := c.Bans(ctx); err != nil || len(l.Bans) != 1 || l.Bans[0].Reason != "floods" || l.Silent == nil {
		t.Errorf("list %+v, %v", l, err)
	}
	if u, err := c.RemoveBan(ctx, prefix); err != nil || !u.Removed {
		t.Errorf("removed %+v, %v", u, err)
	}
	_, err = c.RemoveBan(ctx, prefix)
	wantCode(t, err, api.NotFound)
	_, err = c.RemoveBan(ctx, netip.Prefix{})
	wantCode(t, err, api.Invalid)
	if l, err := c.Bans(ctx); err != nil || l.Bans == nil || len(l.Bans) != 0 {
		t.Errorf("list %+v, %v", l, err)
	}
}

func TestUsersArePaged(t *testing.T) {
	src := &admintest.Source{}
	for _, name := range []string{"alice", "bob", "carol"} {
		src.Registered = append(src.Registered, api.User{
			Identity: "sip:" + name + "@example.test", IMPI: name + "@example.test",
			PCSCF: api.Serving{Home: "p1", Serving: "p2"}, SCSCF: api.Serving{Home: "s1", Serving: "s1"},
		})
	}
	c := serve(t, src)
	first, err := c.Users(t.Context(), "", 2)
	if err != nil || len(first.Users) != 2 || first.Next != "bob@example.test" {
		t.Fatalf("first page = %+v, %v", first, err)
	}
	last, err := c.Users(t.Context(), first.Next, 2)
	want := api.UserPage{Users: []api.Registration{{
		Identity: "sip:carol@example.test", IMPI: "carol@example.test",
		PCSCF: api.Serving{Home: "p1", Serving: "p2"}, SCSCF: api.Serving{Home: "s1", Serving: "s1"},
	}}}
	if d := cmp.Diff(last, want); d != "" || err != nil {
		t.Errorf("last page: %v %s", err, d)
	}
	_, err = c.Users(t.Context(), "", api.MaxPage+1)
	wantCode(t, err, api.Invalid)
}

func TestAnImportIsAllOrNothing(t *testing.T) {
	var last api.NewSubscriber
	src := &admintest.Source{Stored: func(s api.NewSubscriber) { last = s }}
	c := serve(t, src)
	ctx := t.Context()
	many := make([]api.NewSubscriber, 3000)
	for i := range many {
		many[i] = subscriber(fmt.Sprintf("u%04d", i))
		many[i].Line = i + 2
	}
	broken := append(many[:len(many):len(many)], subscriber("bad", "sip:u0001@example.test"))
	broken[len(broken)-1].Line = 3002
	_, err := c.ImportSubscribers(ctx, broken)
	wantCode(t, err, api.Invalid)
	if want := "line 3002: sip:u0001@example.test is on line 3 already; give it once"; err.Error() != want {
		t.Errorf("error = %q, want %q", err, want)
	}
	if st, _ := src.Status(ctx); st.Subscribers != 0 {
		t.Errorf("%d subscribers came in with a broken import", st.Subscribers)
	}
	if err := c.AddSubscriber(ctx, many[5], false); err != nil {
		t.Fatal(err)
	}
	got, err := c.ImportSubscribers(ctx, many)
	if want := (api.ImportResult{Added: 2999, Replaced: 1}); err != nil || got != want {
		t.Errorf("import = %+v, %v, want %+v", got, err, want)
	}
	if last.HA1 != many[2999].HA1 {
		t.Error("the secrets did not arrive as they were sent")
	}
}

func TestWatchStreamsUntilTheClientLeaves(t *testing.T) {
	c := serve(t, cluster())
	ctx, cancel := context.WithCancel(t.Context())
	err := c.Watch(ctx, func(e api.Event) error {
		if e.Type != "status" || e.Status == nil || e.Status.Leader != "n2" {
			t.Errorf("first event = %+v", e)
		}
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Watch = %v, want canceled", err)
	}
	enough := errors.New("enough")
	src := cluster()
	src.WatchFrom = func(send func(api.Event) bool) {
		for send(api.Event{Type: "call", Call: &api.Call{CallID: "1"}}) {
		}
	}
	n := 0
	err = serve(t, src).Watch(t.Context(), func(api.Event) error {
		if n++; n == 1000 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("Watch = %v, want %v", err, enough)
	}
}

func TestAWatchThatBreaksIsNotTakenForComplete(t *testing.T) {
	c := serve(t, breaking{cluster()})
	err := c.Watch(t.Context(), func(api.Event) error { return nil })
	wantCode(t, err, api.Unreachable)
}

// breaking is a source whose watch fails after the first event.
type breaking struct{ *admintest.Source }

func (b breaking) Watch(_ context.Context, send func(api.Event) error) error {
	if err := send(api.Event{Type: "status"}); err != nil {
		return err
	}
	return errors.New("lost the cluster")
}

func TestWatchesAreBounded(t *testing.T) {
	c := serve(t, cluster())
	ctx, cancel := context.WithCancel(t.Context())
	const limit = 64
	begun, ended := make(chan struct{}), make(chan struct{})
	for range limit {
		go func() {
			c.Watch(ctx, func(api.Event) error { begun <- struct{}{}; return nil })
			ended <- struct{}{}
		}()
	}
	for range limit {
		<-begun
	}
	wantCode(t, c.Watch(t.Context(), func(api.Event) error { return nil }), api.Unavailable)
	cancel()
	for range limit {
		<-ended
	}
}

func TestStoppingEndsWatches(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := admin.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- admin.Serve(ctx, l, admin.Handler(cluster()), slog.New(slog.DiscardHandler))
	}()
	c := api.New(path)
	defer c.Close()
	err = c.Watch(t.Context(), func(api.Event) error { stop(); return nil })
	if err != nil {
		t.Errorf("Watch = %v, want an orderly end", err)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve = %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestBadRequestsAreRefusedPlainly(t *testing.T) {
	good := `{"impi":"alice@example.test","realm":"example.test","identities":[{"uri":"sip:alice@example.test"}],"ha1":{"md5":"` + strings.Repeat("0a", 16) + `"}}`
	put := "PUT /v1/subscriber?impi=alice@example.test"
	tests := []struct {
		name, request, body string
		status              int
		code                api.Code
		message             string
	}{
		{"a path that does not exist", "GET /v1/colour", "", 404, api.Unsupported, `the API has no GET "/v1/colour"`},
		{"a method that does not exist", "DELETE /v1/status", "", 404, api.Unsupported, `the API has no DELETE "/v1/status"`},
		{"a worker without id", "GET /v1/worker", "", 400, api.Invalid, "/v1/worker has no id"},
		{"a worker that does not exist", "GET /v1/worker?id=p9", "", 404, api.NotFound, `there is no worker "p9"`},
		{"a limit of nothing", "GET /v1/subscribers?limit=0", "", 400, api.Invalid, `the limit "0" is out of range`},
		{"a limit that is no number", "GET /v1/users?limit=all", "", 400, api.Invalid, `the limit "all" is out of range`},
		{"a limit too large", "GET /v1/subscribers?limit=1001", "", 400, api.Invalid, `the limit "1001" is out of range`},
		{"no body", put, "", 400, api.Invalid, "the request is malformed: EOF"},
		{"not JSON", put, "impi=alice", 400, api.Invalid, "the request is malformed: invalid character 'i' looking for beginning of value"},
		{"an unknown field", put, `{"password":"x"}`, 400, api.Invalid, `the request is malformed: json: unknown field "password"`},
		{"two bodies", put, good + "{}", 400, api.Invalid, "the request is malformed: something follows the subscriber"},
		{"a body over the limit", put, `{"impi":"` + strings.Repeat("x", 70000), 413, api.TooLarge, "the request has more than 65536 bytes"},
		{"another IMPI in the body", "PUT /v1/subscriber?impi=bob@example.test", good, 400, api.Invalid, `the body names "alice@example.test", the address "bob@example.test"`},
		{"replace that is no truth value", put + "&replace=maybe", good, 400, api.Invalid, `replace is "maybe"`},
		{"a number without its context", "PUT /v1/subscriber?impi=alice@example.test", strings.Replace(good, "sip:alice@example.test", "tel:12", 1), 400, api.Invalid, `"tel:12" is not a telephone number`},
		{"an import with a number without its context", "POST /v1/import", strings.Replace(good, "sip:alice@example.test", "tel:12", 1), 400, api.Invalid, `line 1: "tel:12" is not a telephone number`},
		{"a subscriber that Check refuses", put, `{"impi":"alice@example.test","realm":"example.test"}`, 400, api.Invalid, "alice@example.test has no public identity"},
		{"an import with a broken line", "POST /v1/import", good + "\n{", 400, api.Invalid, "the request is malformed: unexpected EOF"},
		{"an import of one twice", "POST /v1/import", good + good, 400, api.Invalid, "line 2: IMPI alice@example.test is on line 1 already"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			src := &admintest.Source{Stored: func(api.NewSubscriber) { t.Error("something was stored") }}
			method, target, _ := strings.Cut(tt.request, " ")
			w := httptest.NewRecorder()
			admin.Handler(src).ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(tt.body)))
			var e api.Error
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
				t.Fatalf("answer %q: %v", w.Body, err)
			}
			if w.Code != tt.status || e.Code != tt.code || e.Message != tt.message {
				t.Errorf("answer %d %+v, want %d %s %s", w.Code, e, tt.status, tt.code, tt.message)
			}
		})
	}
}

func TestErrorsOfTheSourceKeepTheirCode(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code api.Code
	}{
		{fmt.Errorf("propose: %w", api.Errorf(api.NoLeader, "no leader")), api.NoLeader},
		{fmt.Errorf("propose: %w", context.DeadlineExceeded), api.Unavailable},
		{errors.New("disk on fire"), api.Internal},
	} {
		c := serve(t, &admintest.Source{Err: tt.err})
		_, err := c.Nodes(t.Context())
		wantCode(t, err, tt.code)
		wantCode(t, c.Watch(t.Context(), func(api.Event) error { return nil }), tt.code)
		wantCode(t, c.ExportSubscribers(t.Context(), func(api.Subscriber) error { return nil }), tt.code)
	}
}

func TestTheSocketIsPrivateAndReplacedOnlyWhenDead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "admin.sock")
	l, err := admin.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		t.Errorf("the socket has mode %v, others may not use it", mode)
	}
	if _, err := admin.Listen(path); err == nil || !strings.Contains(err.Error(), "another node answers at "+path) {
		t.Errorf("second Listen = %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	l, err = admin.Listen(path)
	if err != nil {
		t.Fatalf("Listen over a dead socket = %v", err)
	}
	l.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Listen(file); err == nil {
		t.Error("Listen replaced a file")
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file now holds %q", b)
	}
}

func TestHealthTellsWhy(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "bw_calls 1\n") })
	h := admin.Health(metrics, func() error { return nil }, func() error { return errors.New("no quorum") })
	for _, tt := range []struct {
		path, body string
		status     int
	}{
		{"/metrics", "bw_calls 1\n", 200},
		{"/livez", "ok\n", 200},
		{"/readyz", "no quorum\n", 503},
		{"/", "404 page not found\n", 404},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", tt.path, nil))
		if w.Code != tt.status || w.Body.String() != tt.body {
			t.Errorf("GET %s = %d %q, want %d %q", tt.path, w.Code, w.Body, tt.status, tt.body)
		}
	}
}

func wantCode(t *testing.T, err error, code api.Code) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("error = %v, want code %s", err, code)
	}
}
