package scscf_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bellwether/controller/state"
	. "bellwether/cscf/cscftest"
	"bellwether/cscf/digest"
	"bellwether/cscf/hss"
	"bellwether/cscf/scscf"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/ha"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faulty is an HSS that may fail.
type faulty struct {
	*hss.Embedded
	auth, assignment error
}

func (f *faulty) MultimediaAuth(q hss.MultimediaAuth, reply func(hss.MultimediaAuthAnswer, error)) {
	if f.auth != nil {
		reply(hss.MultimediaAuthAnswer{}, f.auth)
		return
	}
	f.Embedded.MultimediaAuth(q, reply)
}

func (f *faulty) ServerAssignment(q hss.ServerAssignment, reply func(hss.ServerAssignmentAnswer, error)) {
	if f.assignment != nil {
		reply(hss.ServerAssignmentAnswer{}, f.assignment)
		return
	}
	f.Embedded.ServerAssignment(q, reply)
}

// bench is an S-CSCF between a P- and an I-CSCF that the test plays.
type bench struct {
	*Cluster
	t       *testing.T
	hss     *faulty
	cfg     scscf.Config
	r       *scscf.CSCF
	e, i, p *Engine
	serial  int
	cseq    int
	call    string
	nonce   string
	count   int
}

func run(t *testing.T, name string, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &bench{Cluster: New(t), t: t, call: "one"}
			b.hss = &faulty{Embedded: hss.NewEmbedded(hss.Config{
				State: b.State, Realm: Domain, Node: "a",
				Propose: func(cmd state.Command, done func(state.Result, error)) { b.e.Propose(cmd, done) },
			})}
			g := b.AddGroup(state.SCSCF, "a")
			b.i = b.NewEngine(b.AddGroup(state.ICSCF, "a"))
			b.p = b.NewEngine(b.AddGroup(state.PCSCF, "b"))
			b.i.Start(nil)
			b.p.Start(nil)
			b.cfg = scscf.Config{Group: g, Sealer: b.Sealer, ServiceAddr: b.ServiceAddr(g), Domain: Domain, HSS: b.hss}
			b.start()
			b.Subscriber("alice", "sip:alice@ims.test", "tel:+4930111")
			b.Subscriber("bob", "sip:bob@ims.test", "!sip:mute@ims.test", "", "sip:bob.work@ims.test")
			test(t, b)
			b.Sleep(5 * time.Minute)
			if !b.e.Idle() {
				t.Error("transactions are left")
			}
		})
	})
}

// start starts the S-CSCF, or starts it anew.
func (b *bench) start() {
	b.e = b.NewEngine(b.cfg.Group)
	b.r = scscf.New(b.cfg, b.e, b.Store)
	b.r.Load()
	b.e.Start(b.r)
}

func (b *bench) route(mode token.Mode) string {
	return b.Route(token.Token{Mode: mode, Group: b.cfg.Group})
}

// path is a Path of the P-CSCF's.
func (b *bench) path(binding uint64) string {
	return b.Route(token.Token{Mode: token.Binding, Group: b.p.Group, Binding: binding})
}

// request is one as an engine sends it to the S-CSCF.
func (b *bench) request(from *Engine, mode token.Mode, method, uri string, headers ...string) *sipmsg.Message {
	b.serial++
	id := strconv.Itoa(b.serial)
	m := sipmsg.NewRequest(method, uri)
	for _, h := range append([]string{
		"Via: SIP/2.0/UDP " + b.ServiceAddr(from.Group).String() + ";branch=z9hG4bK" + b.Sealer.Seal(token.Token{Mode: token.Via, Group: from.Group}) + "." + id,
		"Max-Forwards: 60", "Route: " + b.route(mode), "From: <sip:x@ims.test>;tag=x", "To: <" + uri + ">", "Call-ID: c" + id, "CSeq: 1 " + method,
		"P-Charging-Vector: icid-value=1",
	}, headers...) {
		name, value, _ := strings.Cut(h, ": ")
		if name != "Contact" && name != "Authorization" {
			m.RemoveNamed(name)
		}
		m.AddNamed(name, value)
	}
	return m
}

// ask sends a request from an engine and returns the answer.
func (b *bench) ask(from *Engine, m *sipmsg.Message) *sipmsg.Message {
	b.t.Helper()
	from.Send(b.e, m)
	return from.Next()
}

// credentials answer the last challenge for a user.
func (b *bench) credentials(impi, password, uri, realm string) string {
	b.count++
	c := digest.Credentials{
		Username: impi, Realm: realm, Nonce: b.nonce, URI: uri, Algorithm: digest.MD5,
		QOP: "auth", CNonce: "c", NC: fmt.Sprintf("%08x", b.count),
	}
	c.Response = c.Expected("REGISTER", digest.HA1(c.Algorithm, impi, realm, password))
	return fmt.Sprintf(`Digest username="%s", realm="%s", nonce="%s", uri="%s", qop=auth, cnonce="c", nc=%s, response="%s", algorithm=MD5`,
		c.Username, c.Realm, c.Nonce, c.URI, c.NC, c.Response)
}

func (b *bench) registerRequest(impi, impu string, headers ...string) *sipmsg.Message {
	b.cseq++
	h := []string{"To: <" + impu + ">", "From: <" + impu + ">;tag=f", "Path: " + b.path(1),
		"Call-ID: " + b.call, fmt.Sprintf("CSeq: %d REGISTER", b.cseq)}
	if b.nonce != "" {
		h = append(h, "Authorization: "+b.credentials(impi, impi, "sip:ims.test", Domain))
	}
	return b.request(b.i, token.Term, "REGISTER", "sip:ims.test", append(h, headers...)...)
}

// register sends a REGISTER, authenticated, and returns the answer.
func (b *bench) register(impi, impu string, headers ...string) *sipmsg.Message {
	b.t.Helper()
	if b.nonce == "" {
		b.challenged(b.ask(b.i, b.registerRequest(impi, impu)))
	}
	return b.ask(b.i, b.registerRequest(impi, impu, headers...))
}

func (b *bench) challenged(resp *sipmsg.Message) {
	b.t.Helper()
	for v := range resp.Values(sipmsg.WWWAuthenticate) {
		_, params, err := sipmsg.ParseAuth(v)
		if err != nil {
			b.t.Fatal(err)
		}
		b.nonce, _ = params.Value("nonce")
		b.count = 0
	}
	if resp.Status() != 401 || b.nonce == "" {
		b.t.Fatalf("no challenge:\n%s", resp.Bytes())
	}
}

func contacts(m *sipmsg.Message) []string { return slices.Sorted(m.Elements(sipmsg.Contact)) }

const (
	alice = "sip:alice@ims.test"
	bob   = "sip:bob@ims.test"
)

func TestAuthentication(t *testing.T) {
	run(t, "a challenge leaves nothing behind", func(t *testing.T, b *bench) {
		for range 3 {
			resp := b.ask(b.i, b.registerRequest("alice", alice, "Contact: <sip:a@192.0.2.1>"))
			got := slices.Collect(resp.Values(sipmsg.WWWAuthenticate))
			if resp.Status() != 401 || len(got) != 2 || !strings.Contains(got[0], "SHA-256") || !strings.Contains(got[1], "MD5") {
				t.Fatalf("%d %q", resp.Status(), got)
			}
		}
		if f := b.r.Figures(); f != (scscf.Figures{}) {
			t.Errorf("figures %+v", f)
		}
		b.Store.Range(b.cfg.Group, func(r ha.Record) bool { t.Errorf("record %s", r.Key); return true })
	})
	run(t, "unknown user, wrong password, foreign user: the same answer", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		for name, m := range map[string]*sipmsg.Message{
			"wrong password": b.registerRequest("alice", alice, "Authorization: "+b.credentials("alice", "guess", "sip:ims.test", Domain)),
			"unknown user":   b.registerRequest("nobody", "sip:nobody@ims.test"),
			"foreign user":   b.registerRequest("bob", alice),
			"empty response": b.registerRequest("alice", alice, `Authorization: Digest username="alice", realm="ims.test", nonce="", uri="sip:ims.test", response=""`),
			"foreign realm":  b.registerRequest("alice", alice, `Authorization: `+b.credentials("alice", "alice", "sip:ims.test", "elsewhere")),
			"other scheme":   b.registerRequest("alice", alice, `Authorization: Bearer abc==`),
		} {
			if values := slices.Collect(m.Values(sipmsg.Authorization)); len(values) > 1 {
				m.Set(sipmsg.Authorization, values[len(values)-1])
			}
			resp := b.ask(b.i, m)
			got := slices.Collect(resp.Values(sipmsg.WWWAuthenticate))
			if resp.Status() != 401 || len(got) != 2 || strings.Contains(got[0], "stale") {
				t.Errorf("%s: %d %q", name, resp.Status(), got)
			}
		}
	})
	run(t, "a user without a secret is challenged like an unknown one", func(t *testing.T, b *bench) {
		b.Apply(state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{
			{IMPI: "eve", Identities: []state.Identity{{URI: "sip:eve@ims.test"}}},
		}}})
		for range 2 {
			resp := b.ask(b.i, b.registerRequest("eve", "sip:eve@ims.test", "Contact: <sip:a@192.0.2.1>"))
			if n := len(slices.Collect(resp.Values(sipmsg.WWWAuthenticate))); resp.Status() != 401 || n != 2 {
				t.Errorf("%d with %d challenges", resp.Status(), n)
			}
			b.challenged(resp)
		}
	})
	run(t, "the right credentials count among foreign ones", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		m := b.registerRequest("alice", alice, "Contact: <sip:a@192.0.2.1>")
		m.Push(sipmsg.Authorization, `Digest username="alice", realm="elsewhere", nonce="n", uri="sip:x", response="r"`)
		if resp := b.ask(b.i, m); resp.Status() != 200 {
			t.Errorf("%s", resp.Bytes())
		}
	})
	run(t, "an old nonce is stale", func(t *testing.T, b *bench) {
		b.register("alice", alice, "Contact: <sip:a@192.0.2.1>")
		b.Sleep(digest.DefaultLifetime + time.Second)
		resp := b.ask(b.i, b.registerRequest("alice", alice, "Contact: <sip:a@192.0.2.1>"))
		if v, _ := resp.Value(sipmsg.WWWAuthenticate); resp.Status() != 401 || !strings.Contains(v, "stale=true") {
			t.Errorf("%s", resp.Bytes())
		}
	})
	run(t, "a de-registration does not open the way for replays, nor does a restart", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		m := b.registerRequest("alice", alice, "Contact: <sip:a@192.0.2.1>")
		b.ask(b.i, m)
		b.register("alice", alice, "Contact: *", "Expires: 0")
		for _, when := range []string{"after the de-registration", "after a restart"} {
			m.ReplaceTop(sipmsg.ViaHeader, "SIP/2.0/UDP 127.0.0.1:4060;branch=z9hG4bK"+strings.ReplaceAll(when, " ", ""))
			if resp := b.ask(b.i, m); resp.Status() != 401 {
				t.Errorf("%s: %d", when, resp.Status())
			}
			b.start()
		}
		b.Sleep(2 * digest.DefaultLifetime)
		b.Store.Range(b.cfg.Group, func(r ha.Record) bool { t.Errorf("record %s is left", r.Key); return true })
	})
	run(t, "the digest-uri must be what the request is for", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		for uri, status := range map[string]int{
			"sip:ims.test": 200, "sip:IMS.test": 200, "sips:ims.test": 200, "sip:ims.test:5060": 200,
			"sip:elsewhere.test": 400, "sip:alice@ims.test": 400, "tel:1": 400, "": 400, "192.0.2.1:5060": 400,
		} {
			m := b.registerRequest("alice", alice)
			m.Set(sipmsg.Authorization, b.credentials("alice", "alice", uri, Domain))
			if resp := b.ask(b.i, m); resp.Status() != status {
				t.Errorf("%q: %d, want %d", uri, resp.Status(), status)
			}
		}
	})
}

func TestContacts(t *testing.T) {
	type step struct {
		name    string
		headers []string
		status  int
		want    []string
	}
	is := func(status int, want ...string) func(name string, headers ...string) step {
		return func(name string, headers ...string) step { return step{name, headers, status, want} }
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"the parameter beats the header, the header the default", []step{
			is(200, "<sip:a@192.0.2.1>;expires=600", "<sip:b@192.0.2.1>;expires=900", "<sip:c@192.0.2.1>;expires=3600")(
				"all three", "Expires: 900", "Contact: <sip:a@192.0.2.1>;expires=600, <sip:b@192.0.2.1>, <sip:c@192.0.2.1>;expires=nonsense"),
		}},
		{"too short is refused, too long is shortened", []step{
			is(423)("59 seconds", "Contact: <sip:a@192.0.2.1>;expires=59"),
			is(423)("one of two", "Contact: <sip:a@192.0.2.1>;expires=59, <sip:b@192.0.2.1>"),
			is(200)("and nothing is left of the other"),
			is(200, "<sip:a@192.0.2.1>;expires=60")("60 seconds", "Contact: <sip:a@192.0.2.1>;expires=60"),
			is(200, "<sip:a@192.0.2.1>;expires=600000")("a year", "Contact: <sip:a@192.0.2.1>;expires=31536000"),
			is(200, "<sip:a@192.0.2.1>;expires=600000")("more than fits", "Contact: <sip:a@192.0.2.1>;expires=99999999999999999999, <sip:b@192.0.2.1>;expires=0"),
		}},
		{"equal URIs are one contact", []step{
			is(200, "<sip:a@192.0.2.1>;expires=3600")("first", "Contact: <sip:a@192.0.2.1>"),
			is(200, "<sip:%61@192.0.2.1>;expires=3600")("escaped", "Contact: <sip:%61@192.0.2.1>"),
			is(200, "<sip:%61@192.0.2.1>;expires=3600", "<sip:a@192.0.2.1:5060>;expires=3600")("another port", "Contact: <sip:a@192.0.2.1:5060>"),
			is(200, "<sip:%61@192.0.2.1>;expires=3600")("removed by its equal", "Contact: <sip:%61@192.0.2.1:5060>;expires=0"),
		}},
		{"the same instance and reg-id are one phone", []step{
			is(200, `<sip:a@192.0.2.1>;+sip.instance="<urn:1>";reg-id=1;expires=3600`)("first", `Contact: <sip:a@192.0.2.1>;+sip.instance="<urn:1>";reg-id=1`),
			is(200, `<sip:a@192.0.2.9>;+sip.instance="<urn:1>";reg-id=1;expires=3600`)("moved", `Contact: <sip:a@192.0.2.9>;+sip.instance="<urn:1>";reg-id=1`),
		}},
		{"the same instance without reg-id is one phone that moved", []step{
			is(200, `<sip:a@192.0.2.1>;+sip.instance="<urn:1>";expires=3600`)("first", `Contact: <sip:a@192.0.2.1>;+sip.instance="<urn:1>"`),
			is(200, `<sip:a@192.0.2.9>;+sip.instance="<urn:1>";expires=3600`)("moved", `Contact: <sip:a@192.0.2.9>;+sip.instance="<urn:1>"`),
			is(200, `<sip:a@192.0.2.9>;+sip.instance="<urn:1>";expires=3600`, `<sip:b@192.0.2.9>;+sip.instance="<urn:2>";expires=3600`)(
				"another phone", `Contact: <sip:b@192.0.2.9>;+sip.instance="<urn:2>"`),
		}},
		{"q is kept", []step{
			is(200, "<sip:a@192.0.2.1>;q=0.5;expires=3600")("valid", "Contact: <sip:a@192.0.2.1>;q=0.5"),
			is(400)("malformed", "Contact: <sip:a@192.0.2.1>;q=2"),
		}},
		{"a star comes alone and with Expires 0", []step{
			is(200, "<sip:a@192.0.2.1>;expires=3600", "<sip:b@192.0.2.1>;expires=3600")("two", "Contact: <sip:a@192.0.2.1>", "Contact: <sip:b@192.0.2.1>"),
			is(400)("without Expires", "Contact: *"),
			is(400)("with Expires", "Contact: *", "Expires: 1"),
			is(400)("with another", "Contact: *", "Contact: <sip:c@192.0.2.1>", "Expires: 0"),
			is(400)("twice", "Contact: *", "Contact: *", "Expires: 0"),
			is(400)("with a parameter", "Contact: *;expires=0", "Expires: 0"),
			is(200)("right", "Contact: *", "Expires: 0"),
			is(200)("again", "Contact: *", "Expires: 0"),
		}},
		{"an older REGISTER of the same Call-ID is refused as a whole", []step{
			is(200, "<sip:a@192.0.2.1>;expires=3600")("first", "Contact: <sip:a@192.0.2.1>", "CSeq: 100 REGISTER"),
			is(200, "<sip:a@192.0.2.1>;expires=3600")("repeated", "Contact: <sip:a@192.0.2.1>;expires=0", "CSeq: 100 REGISTER"),
			is(500)("older", "Contact: <sip:b@192.0.2.1>, <sip:a@192.0.2.1>", "CSeq: 99 REGISTER"),
			is(500)("older star", "Contact: *", "Expires: 0", "CSeq: 99 REGISTER"),
			is(200, "<sip:a@192.0.2.1>;expires=3600")("nothing changed"),
			is(200, "<sip:a@192.0.2.1>;expires=60")("another Call-ID", "Contact: <sip:a@192.0.2.1>;expires=60", "CSeq: 1 REGISTER", "Call-ID: two"),
			is(200)("later", "Contact: <sip:a@192.0.2.1>;expires=0", "CSeq: 2 REGISTER", "Call-ID: two"),
		}},
		{"a contact named twice is one", []step{
			is(200, "<sip:a@192.0.2.1>;expires=700")("both at once", "Contact: <sip:a@192.0.2.1>;expires=600, <sip:a@192.0.2.1>;expires=700"),
		}},
		{"what cannot be reached is refused", []step{
			is(400)("a mailbox", "Contact: <mailto:a@x>"),
			is(400)("a number", "Contact: <tel:+49>"),
			is(400)("no URI", "Contact: alice"),
			is(400)("our P entry", "Contact: <sip:a@127.0.0.1>"),
			is(400)("another node's S entry", "Contact: <sip:a@127.0.0.2:6060;transport=tcp>"),
			is(400)("a host that begins with a dot", "Contact: <sip:a@.1>"),
			is(200, "<sip:a@127.0.0.1:5099>;expires=3600")("a phone on the machine of a node", "Contact: <sip:a@127.0.0.1:5099>"),
			is(200)("", "Contact: <sip:a@127.0.0.1:5099>;expires=0"),
			is(400)("a long one", "Contact: <sip:"+strings.Repeat("a", 1100)+"@192.0.2.1>"),
			is(421)("without Path", "Path: ", "Contact: <sip:a@192.0.2.1>"),
			is(420)("an extension nobody knows", "Require: path, foo"),
		}},
		{"contacts are limited", []step{
			is(200, "<sip:1@x>;expires=60", "<sip:2@x>;expires=60", "<sip:3@x>;expires=60")("three",
				"Expires: 60", "Contact: <sip:1@x>, <sip:2@x>, <sip:3@x>"),
			is(403)("a fourth", "Expires: 60", "Contact: <sip:4@x>"),
			is(200, "<sip:2@x>;expires=60", "<sip:3@x>;expires=60", "<sip:4@x>;expires=60")("for another",
				"Expires: 60", "Contact: <sip:1@x>;expires=0, <sip:4@x>"),
			is(403)("more than anybody has, even to be removed", "Expires: 0", "Contact: <sip:9@x>"+strings.Repeat(", <sip:9@x>", 32)),
		}},
	} {
		run(t, c.name, func(t *testing.T, b *bench) {
			b.cfg.MaxContacts = 3
			b.start()
			for _, s := range c.steps {
				resp := b.register("alice", alice, s.headers...)
				if resp.Status() != s.status {
					t.Fatalf("%s: status %d, want %d:\n%s", s.name, resp.Status(), s.status, resp.Bytes())
				}
				if got := contacts(resp); !slices.Equal(got, s.want) {
					t.Errorf("%s: contacts %q, want %q", s.name, got, s.want)
				}
				if v, _ := resp.Value(sipmsg.MinExpires); s.status == 423 && v != "60" {
					t.Errorf("%s: Min-Expires %q", s.name, v)
				}
			}
		})
	}
	run(t, "the 200 tells the rest of what was registered", func(t *testing.T, b *bench) {
		resp := b.register("bob", "sip:mute@ims.test", "Contact: <sip:a@192.0.2.1>")
		for h, want := range map[sipmsg.Header]string{
			sipmsg.Path: b.path(1), sipmsg.ServiceRoute: b.route(token.Orig), sipmsg.PAssociatedURI: "<" + bob + ">",
			sipmsg.PChargingVector: "icid-value=1;term-ioi=ims.test",
		} {
			if v, _ := resp.Value(h); v != want {
				t.Errorf("%s: %q, want %q", h, v, want)
			}
		}
		r, ok := b.r.Registration(bob)
		if !ok || r.IMPI != "bob" || len(r.Contacts) != 1 || r.Contacts[0].Q != 1 || !slices.Equal(r.Contacts[0].Path, []string{b.path(1)}) {
			t.Errorf("registration %+v", r)
		}
	})
	run(t, "contacts end one by one, then the user", func(t *testing.T, b *bench) {
		b.register("alice", alice, "Contact: <sip:a@192.0.2.1>;expires=60, <sip:b@192.0.2.1>;expires=120")
		b.Sleep(60 * time.Second)
		if r, _ := b.r.Registration(alice); len(r.Contacts) != 1 || r.Contacts[0].URI != "sip:b@192.0.2.1" {
			t.Errorf("registration %+v", r)
		}
		b.Sleep(60 * time.Second)
		if _, ok := b.r.Registration(alice); ok {
			t.Error("still registered")
		}
		if _, ok := b.State().Assignment(state.SCSCF, "alice"); ok {
			t.Error("still assigned")
		}
	})
}

func TestOutcome(t *testing.T) {
	const contact = "Contact: <sip:a@192.0.2.1>"
	run(t, "the 200 waits for the commit", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		release := b.HoldProposals()
		b.i.Send(b.e, b.registerRequest("alice", alice, contact))
		b.Sleep(time.Second)
		if b.i.Pending() != 0 {
			t.Fatal("answered before the commit")
		}
		release()
		if resp := b.i.Next(); resp.Status() != 200 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "a registration that cannot be committed or stored is answered 500", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		b.FailProposals(errors.New("no leader"))
		if resp := b.register("alice", alice, contact); resp.Status() != 500 {
			t.Errorf("status %d", resp.Status())
		}
		b.FailProposals(nil)
		if resp := b.register("alice", alice, contact); resp.Status() != 200 {
			t.Errorf("status %d", resp.Status())
		}
		b.Store.Close()
		if resp := b.register("alice", alice, contact); resp.Status() != 500 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "an HSS that fails is no refusal", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		b.hss.assignment = errors.New("no connection")
		if resp := b.register("alice", alice, contact); resp.Status() != 504 {
			t.Errorf("status %d", resp.Status())
		}
		b.hss.auth = errors.New("no connection")
		if resp := b.register("alice", alice, contact); resp.Status() != 504 {
			t.Errorf("status %d", resp.Status())
		}
		b.hss.auth, b.hss.assignment = nil, hss.ErrUserUnknown
		if resp := b.register("alice", alice, contact); resp.Status() != 403 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "a user of another group is not served", func(t *testing.T, b *bench) {
		other := b.AddGroup(state.SCSCF, "b")
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		b.Apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice", Hint: other}})
		if resp := b.register("alice", alice, contact); resp.Status() != 504 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "a user who is assigned elsewhere meanwhile is let go", func(t *testing.T, b *bench) {
		other := b.AddGroup(state.SCSCF, "b")
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		release := b.HoldProposals()
		b.i.Send(b.e, b.registerRequest("alice", alice, contact))
		b.Apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice", Hint: other}})
		release()
		if resp := b.i.Next(); resp.Status() != 504 {
			t.Errorf("status %d", resp.Status())
		}
		if f := b.r.Figures(); f.Users != 0 || f.Contacts != 0 {
			t.Errorf("figures %+v", f)
		}
		if g, _ := b.State().Assignment(state.SCSCF, "alice"); g != other {
			t.Errorf("assigned to %d", g)
		}
	})
	run(t, "damaged records do not matter", func(t *testing.T, b *bench) {
		b.register("alice", alice, contact)
		for _, key := range []string{"user/x", "user/", "dialog/zz", "dialog/00112233445566778899aabbccddeeff", "else"} {
			b.Store.Put(b.cfg.Group, key, []byte("\xa1\x00\x01"), time.Time{}, nil)
			b.Store.Put(b.cfg.Group, key+"x", []byte("\xff"), time.Time{}, nil)
		}
		b.start()
		if _, ok := b.r.Registration(alice); !ok {
			t.Error("the registration is lost")
		}
	})
}
