package hss

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

func embedded(t *testing.T, cmds ...state.Command) *Embedded {
	t.Helper()
	s := state.New()
	cmds = append([]state.Command{
		{PutNode: &state.Node{Name: "a", Service: netip.MustParseAddr("127.0.0.1"), S: 6060}},
		{PutWorker: &state.Worker{ID: "s1", Kind: state.SCSCF, Node: "a"}},
		{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{
			{IMPI: "alice@ims.test", Identities: []state.Identity{
				{URI: "sip:barred@ims.test", Barred: true}, {URI: "sip:alice@ims.test"}, {URI: "tel:+491"}, {URI: "sip:alice.work@ims.test", Set: 1},
			}, HA1: state.HA1{"MD5": "0123456789abcdef0123456789abcdef"}},
			{IMPI: "mute@ims.test", Realm: "other.test", Identities: []state.Identity{{URI: "sip:mute@ims.test", Barred: true}}},
		}}},
	}, cmds...)
	s, results := s.Apply(1, cmds)
	for i, r := range results {
		if err := r.Check(); err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	return NewEmbedded(Config{State: func() *state.State { return s }, Realm: "ims.test"})
}

// now takes an answer that the embedded HSS must give before it returns.
func now[Q, A any](t *testing.T, ask func(Q, func(A, error)), q Q) (A, error) {
	t.Helper()
	var answer A
	var failed error
	n := 0
	ask(q, func(a A, err error) { answer, failed, n = a, err, n+1 })
	if n != 1 {
		t.Fatalf("replied %d times", n)
	}
	return answer, failed
}

func TestUserAuthorization(t *testing.T) {
	h := embedded(t)
	assigned := embedded(t, state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice@ims.test", Hint: 1}})
	for _, c := range []struct {
		name   string
		h      *Embedded
		q      UserAuthorization
		err    error
		server state.GroupID
	}{
		{"a user without an S-CSCF may register", h, UserAuthorization{"alice@ims.test", "sip:alice@ims.test"}, nil, 0},
		{"the private identity is found by the public one", h, UserAuthorization{"", "tel:+491"}, nil, 0},
		{"an assigned S-CSCF is named", assigned, UserAuthorization{"", "sip:alice@ims.test"}, nil, 1},
		{"a barred identity may register its set", h, UserAuthorization{"", "sip:barred@ims.test"}, nil, 0},
		{"a set that is barred as a whole may not register", h, UserAuthorization{"", "sip:mute@ims.test"}, ErrAuthorizationRejected, 0},
		{"somebody else's identity is refused", h, UserAuthorization{"mute@ims.test", "sip:alice@ims.test"}, ErrIdentitiesDontMatch, 0},
		{"an unknown identity is refused", h, UserAuthorization{"alice@ims.test", "sip:nobody@ims.test"}, ErrUserUnknown, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := now(t, c.h.UserAuthorization, c.q)
			if !errors.Is(err, c.err) || a.Server != c.server || (err == nil && a.IMPI != "alice@ims.test") {
				t.Fatalf("got %+v, %v", a, err)
			}
		})
	}
}

func TestLocationInfo(t *testing.T) {
	h := embedded(t, state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice@ims.test", Hint: 1}})
	if a, err := now(t, h.LocationInfo, LocationInfo{"tel:+491"}); err != nil || a != (LocationInfoAnswer{"alice@ims.test", 1}) {
		t.Errorf("assigned: %+v, %v", a, err)
	}
	if _, err := now(t, h.LocationInfo, LocationInfo{"sip:mute@ims.test"}); !errors.Is(err, ErrIdentityNotRegistered) {
		t.Errorf("not assigned: %v", err)
	}
	if _, err := now(t, h.LocationInfo, LocationInfo{"sip:nobody@ims.test"}); !errors.Is(err, ErrUserUnknown) {
		t.Errorf("unknown: %v", err)
	}
}

func TestMultimediaAuthNamesTheRealm(t *testing.T) {
	h := embedded(t)
	a, err := now(t, h.MultimediaAuth, MultimediaAuth{IMPI: "", IMPU: "sip:alice@ims.test"})
	if err != nil || a.Realm != "ims.test" || a.IMPI != "alice@ims.test" || len(a.HA1) != 1 {
		t.Errorf("default realm: %+v, %v", a, err)
	}
	if a, err = now(t, h.MultimediaAuth, MultimediaAuth{IMPI: "mute@ims.test", IMPU: "sip:mute@ims.test"}); err != nil || a.Realm != "other.test" {
		t.Errorf("own realm: %+v, %v", a, err)
	}
	if _, err = now(t, h.MultimediaAuth, MultimediaAuth{IMPI: "alice@ims.test", IMPU: "sip:mute@ims.test"}); !errors.Is(err, ErrIdentitiesDontMatch) {
		t.Errorf("foreign identity: %v", err)
	}
}

func TestProfile(t *testing.T) {
	h := embedded(t)
	a, err := now(t, h.ServerAssignment, ServerAssignment{IMPI: "alice@ims.test", IMPU: "tel:+491", Type: Registration})
	if err != nil {
		t.Fatal(err)
	}
	live, ok := h.Profile("alice@ims.test")
	if !ok || !live.Equal(a.Profile) {
		t.Errorf("live profile %+v, assigned %+v", live, a.Profile)
	}
	if got := live.Associated(0); len(got) != 2 || got[0] != "sip:alice@ims.test" || got[1] != "tel:+491" {
		t.Errorf("associated %q", got)
	}
	if id, ok := live.Identity("sip:alice.work@ims.test"); !ok || id.Set != 1 {
		t.Errorf("identity %+v, %t", id, ok)
	}
	if _, ok := h.Profile("nobody@ims.test"); ok {
		t.Error("an unknown user has a profile")
	}
	if _, err := now(t, h.ServerAssignment, ServerAssignment{IMPU: "sip:nobody@ims.test"}); !errors.Is(err, ErrUserUnknown) {
		t.Errorf("unknown: %v", err)
	}
}

func TestAwait(t *testing.T) {
	failed := errors.New("no answer")
	t.Run("an answer at once needs no post", func(t *testing.T) {
		got := 0
		Await(func(func()) { t.Error("posted") }, func(reply func(int, error)) { reply(7, nil) }, func(a int, _ error) { got = a })
		if got != 7 {
			t.Fatalf("got %d", got)
		}
	})
	t.Run("a later answer is posted", func(t *testing.T) {
		posts := make(chan func(), 1)
		release := make(chan struct{})
		var got error
		Await(func(fn func()) { posts <- fn }, func(reply func(int, error)) {
			go func() { <-release; reply(0, failed) }()
		}, func(_ int, err error) { got = err })
		if got != nil {
			t.Fatal("ran before the answer")
		}
		close(release)
		(<-posts)()
		if !errors.Is(got, failed) {
			t.Fatalf("got %v", got)
		}
	})
}

func TestIdentities(t *testing.T) {
	for uri, want := range map[string][]string{
		"sip:alice@IMS.test:5070;x=y":            {"sip:alice@ims.test"},
		"sips:%61lice@ims.test":                  {"sip:alice@ims.test"},
		"tel:+49-30-111":                         {"tel:+4930111"},
		"tel:111;phone-context=ims.test":         {"tel:111;phone-context=ims.test"},
		"sip:+49-30-111@ims.test;user=phone":     {"sip:+49-30-111@ims.test", "tel:+4930111"},
		"sip:+4930111;isub=1@ims.test":           {"sip:+4930111;isub=1@ims.test", "tel:+4930111"},
		"sip:+alice@ims.test":                    {"sip:+alice@ims.test"},
		"sip:111@ims.test;user=phone":            {"sip:111@ims.test"},
		"sip:ims.test":                           nil,
		"urn:service:sos":                        nil,
		"sip:" + strings.Repeat("a", 600) + "@x": nil,
	} {
		u, err := sipmsg.ParseURI(uri)
		if err != nil {
			t.Fatalf("%s: %v", uri, err)
		}
		if got := Identities(u); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", uri, got, want)
		}
	}
	if id, ok := Identity("tel:+49-30-111"); !ok || id != "tel:+4930111" {
		t.Errorf("identity %q, %t", id, ok)
	}
	for _, uri := range []string{"", "sip:ims.test", "nonsense"} {
		if id, ok := Identity(uri); ok {
			t.Errorf("%q names %q", uri, id)
		}
	}
}
