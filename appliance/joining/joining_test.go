package joining

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bellwether/appliance/identity"
	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var list = []Member{{"n1", "127.0.0.1:7400"}, {"n2", "127.0.0.2:7400"}, {"n3", "127.0.0.3:7400"}}

// founder is a node that holds the CA and answers.
type founder struct {
	ca     *pki.CA
	book   Book
	server *Server
	mesh   *mesh.Mesh
	addr   netip.AddrPort
}

func found(t testing.TB) *founder {
	t.Helper()
	data := t.TempDir()
	ca, err := pki.CreateCA("c1", "Lab")
	if err == nil {
		err = ca.Save(identity.CADir(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	f := &founder{ca: ca, book: Book{Dir: identity.CADir(data)}}
	f.mesh = f.node(t, data, "n1")
	f.addr = f.mesh.Addr().(*net.TCPAddr).AddrPort()
	f.server = &Server{Book: f.book, Node: "n1", Known: list, Begun: func() bool { return true }, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	l := f.mesh.HandleOpen(Protocol)
	go func() { defer close(done); f.server.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

// node certifies a node by hand and opens its mesh.
func (f *founder) node(t testing.TB, data, name string) *mesh.Mesh {
	t.Helper()
	b, err := pki.IssueBundle(f.ca, name, nil)
	if err == nil {
		err = b.WriteDir(identity.Dir(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	id, err := identity.Load(data, name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := mesh.Listen(id.Mesh("127.0.0.1:0", slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// token makes a token for n2 and reads it back.
func (f *founder) token(t testing.TB, good time.Duration, now time.Time) Token {
	t.Helper()
	text, _, err := Issue(f.book, f.ca, []netip.AddrPort{f.addr}, "n2", pki.Controller, good, now)
	if err != nil {
		t.Fatal(err)
	}
	token, err := ParseToken(" " + text + "\n")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func machine() Machine { return Machine{Node: "n2", Role: pki.Controller, Controllers: list} }

func TestAMachineJoinsOnce(t *testing.T) {
	f := found(t)
	token := f.token(t, time.Minute, time.Now())
	j, err := Join(t.Context(), token, machine())
	if err != nil {
		t.Fatal(err)
	}
	if j.Node != "n2" || j.Cluster != f.ca.Cluster || !j.Begun || j.Offset.Abs() > time.Second {
		t.Errorf("joined %+v", j)
	}
	dir := filepath.Join(t.TempDir(), "pki")
	if err := j.WriteDir(dir); err != nil {
		t.Fatal(err)
	}
	if c, err := pki.ReadNode(dir); err != nil || c.Node != "n2" || c.Role != pki.Controller {
		t.Errorf("certificate %+v, %v", c, err)
	}
	_, err = Join(t.Context(), token, machine())
	refused(t, err, usedToken, "was used at", "cluster token n2")
	if got := f.server.Results(); got["joined"] != 1 || got[usedToken] != 1 {
		t.Errorf("counted %v", got)
	}
}

// refused checks the code of a refusal and what it says.
func refused(t *testing.T, err error, code string, says ...string) {
	t.Helper()
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.Code != code {
		t.Fatalf("error %v, want a refusal %q", err, code)
	}
	for _, s := range says {
		if !strings.Contains(refusal.Text, s) {
			t.Errorf("it says %q, want %q in it", refusal.Text, s)
		}
	}
}

func TestJoiningIsRefused(t *testing.T) {
	now := time.Now()
	other := []Member{list[0], list[1], {"n4", "127.0.0.4:7400"}}
	for _, tt := range []struct {
		name   string
		change func(f *founder, token *Token, m *Machine)
		code   string
		says   string
		spent  bool // the token is not good after that
	}{
		{"with a token that is too old", func(f *founder, token *Token, _ *Machine) {
			*token = f.token(t, time.Minute, now.Add(-2*time.Minute))
		}, expiredToken, "was good until", true},
		{"with a token that a newer one replaced", func(f *founder, _ *Token, _ *Machine) { f.token(t, time.Minute, now) }, unknownToken, "replaced by a newer one", true},
		{"with a token that was revoked", func(f *founder, _ *Token, _ *Machine) {
			if n, err := f.book.Revoke("n2", now); n != 1 || err != nil {
				t.Error(n, err)
			}
		}, unknownToken, "it was revoked", true},
		{"with a forged secret", func(_ *founder, token *Token, _ *Machine) { token.secret[0] ^= 1 }, unknownToken, "none of its tokens", false},
		{"as another node", func(_ *founder, _ *Token, m *Machine) { m.Node = "n3" }, otherNode, "is for node n2, but this machine is configured as node n3", false},
		{"as another node, with a token that was changed to it", func(_ *founder, token *Token, m *Machine) { token.Node, m.Node = "n3", "n3" }, otherNode, "is for node n2, not for node n3", false},
		{"in another role", func(_ *founder, _ *Token, m *Machine) { m.Role = "worker" }, otherRole, "is for a controller", false},
		{"in another role, with a token that was changed to it", func(_ *founder, token *Token, m *Machine) { token.Role, m.Role = "worker", "worker" }, otherRole, "for a controller, not for a worker", false},
		{"with another list of controllers", func(_ *founder, _ *Token, m *Machine) { m.Controllers = other }, "controllers_differ",
			"node n1 lists the controllers [n1 127.0.0.1:7400, n2 127.0.0.2:7400, n3 127.0.0.3:7400], node n2 lists [n1 127.0.0.1:7400, n2 127.0.0.2:7400, n4 127.0.0.4:7400]", false},
		{"with two controllers", func(_ *founder, _ *Token, m *Machine) { m.Controllers = list[:2] }, "controllers_differ", "write the same cluster.controllers on every node", false},
		{"with another controller's address", func(_ *founder, _ *Token, m *Machine) {
			m.Controllers = []Member{list[0], list[1], {"n3", "127.0.0.3:7401"}}
		}, "controllers_differ", "n3 127.0.0.3:7401", false},
		{"where another cluster answers", func(_ *founder, token *Token, _ *Machine) { token.Fingerprint[0] ^= 1 }, "fingerprint", "somebody is in between", false},
		{"with a clock that is behind", func(_ *founder, _ *Token, m *Machine) {
			m.Now = func() time.Time { return time.Now().Add(-90 * time.Second) }
		}, "clock", "1m30s behind the founder's, and at most 1s is allowed; set it ('timedatectl", false},
		{"with a clock that is ahead", func(_ *founder, _ *Token, m *Machine) {
			m.Now = func() time.Time { return time.Now().Add(1500 * time.Millisecond) }
		}, "clock", "1.5s ahead of the founder's", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := found(t)
			token, m := f.token(t, time.Minute, now), machine()
			good := token
			tt.change(f, &token, &m)
			_, err := Join(t.Context(), token, m)
			refused(t, err, tt.code, tt.says)
			if tt.spent {
				return
			}
			// A refusal uses no token up.
			if _, err := Join(t.Context(), good, machine()); err != nil {
				t.Errorf("afterwards the right machine is refused: %v", err)
			}
		})
	}
}

func TestAFounderThatIsNotThere(t *testing.T) {
	f := found(t)
	token := f.token(t, time.Minute, time.Now())
	_ = f.mesh.Close()
	if _, err := Join(t.Context(), token, machine()); err == nil || !strings.Contains(err.Error(), "nothing answers at the founder's address "+f.addr.String()+"; start 'bellwether node' there first") {
		t.Errorf("error %v", err)
	}
	// A node without the CA is no founder.
	plain := f.node(t, t.TempDir(), "n3")
	token.Founders = []netip.AddrPort{plain.Addr().(*net.TCPAddr).AddrPort()}
	if _, err := Join(t.Context(), token, machine()); err == nil || !strings.Contains(err.Error(), "does not hold the cluster's certificate authority") {
		t.Errorf("error %v", err)
	}
}

func TestGuessingIsSlow(t *testing.T) {
	f := found(t)
	token := f.token(t, time.Minute, time.Now())
	good := token
	for i := range maxFailures {
		token.secret[1] = byte(i) ^ good.secret[1] ^ 0x80
		_, err := Join(t.Context(), token, machine())
		refused(t, err, unknownToken)
	}
	_, err := Join(t.Context(), good, machine())
	refused(t, err, "too_many", "wait for a minute")
	f.server.mu.Lock()
	f.server.failures = failures{}
	f.server.mu.Unlock()
	if _, err := Join(t.Context(), good, machine()); err != nil {
		t.Error(err)
	}
}

func TestFailuresAreCountedInFixedMemory(t *testing.T) {
	var f failures
	now := time.Now()
	for i := range 3 * maxSources {
		f.add(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), now)
	}
	if len(f.by) > maxSources {
		t.Errorf("%d sources are kept", len(f.by))
	}
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	for range maxFailures {
		f.add(a, now)
	}
	if f.allowed(b, now) {
		t.Error("another address of the same /64 may go on")
	}
	if !f.allowed(b, now.Add(2*failureTime)) {
		t.Error("a minute later it is still refused")
	}
}

func TestTheBookHoldsNoSecret(t *testing.T) {
	f := found(t)
	token := f.token(t, time.Minute, time.Now())
	path := filepath.Join(f.book.Dir, bookFile)
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), string(token.secret[:])) {
		t.Errorf("book %q, %v", text, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("book %v, %v", info, err)
	}
	all, err := f.book.List()
	if err != nil || len(all) != 1 || all[0].Node != "n2" || all[0].Hash != "" || all[0].State(time.Now()) != "open" {
		t.Errorf("list %+v, %v", all, err)
	}
}

// Bad input (forged tokens): whatever comes in a token is refused in words, or
// is a token that says the same when it is written again.
func FuzzParseToken(f *testing.F) {
	t := Token{ClusterID: "c1", Node: "n2", Role: "controller", Founders: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7400")}}
	text, err := t.Text()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)-3])
	f.Add(Prefix)
	f.Add(Prefix + "////")
	f.Fuzz(func(t *testing.T, in string) {
		token, err := ParseToken(in)
		if err != nil {
			if !errors.Is(err, ErrNoToken) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q", err)
			}
			return
		}
		again, err := token.Text()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseToken(again); err != nil || back.String() != token.String() || back.secret != token.secret {
			t.Errorf("%v became %v, %v", token, back, err)
		}
	})
}

// Bad input (forged tokens): what a stranger sends to the founder's port is
// answered with a refusal or with the end of the connection, and certifies nobody.
func FuzzServer(f *testing.F) {
	for _, seed := range []request{
		{Ask: askClock}, {Ask: askRenew, CSR: []byte("x")}, {Ask: askJoin, Node: "n2", Role: "controller", Secret: make([]byte, secretSize)},
	} {
		var b strings.Builder
		if err := send(&b, seed); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(b.String()))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	data := f.TempDir()
	ca, err := pki.CreateCA("c1", "Lab")
	if err == nil {
		err = ca.Save(data)
	}
	if err != nil {
		f.Fatal(err)
	}
	s := &Server{Book: Book{Dir: data}, Node: "n1", Known: list, Begun: func() bool { return false }, Log: slog.New(slog.DiscardHandler)}
	if _, err := s.Book.issue("n2", "controller", time.Hour, time.Now()); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var req request
		if err := receive(strings.NewReader(string(in)), &req); err != nil {
			return
		}
		rep, err := s.answer(req, "", netip.MustParseAddr("192.0.2.9"), time.Now())
		if rep.Cert != nil || err == nil && req.Ask != askClock {
			t.Errorf("%+v is answered with %+v", req, rep)
		}
	})
}

// TestATokenIsGoodForOneOfManyAtOnce: whoever else uses the book of tokens at
// the same moment, a token is used once, and no other is lost.
func TestATokenIsGoodForOneOfManyAtOnce(t *testing.T) {
	b := Book{Dir: t.TempDir()}
	now := time.Now()
	secret, err := b.issue("n2", pki.Controller, time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	const many = 16
	var used atomic.Int32
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			_ = b.redeem(secret[:], "n2", pki.Controller, now, func() error {
				used.Add(1)
				return nil
			})
		})
		wg.Go(func() {
			if _, err := b.issue(fmt.Sprint("m", i), pki.Controller, time.Hour, now); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	all, err := b.List()
	if err != nil || len(all) != many+1 || used.Load() != 1 {
		t.Errorf("used %d times, %d tokens in the book, %v", used.Load(), len(all), err)
	}
}
