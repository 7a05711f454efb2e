package joining

import (
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/appliance/identity"
	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

// renewer is a node n2 of the founder's cluster that can renew.
func renewer(t *testing.T, f *founder) *Renewer {
	t.Helper()
	data := t.TempDir()
	m := f.node(t, data, "n2")
	return &Renewer{
		Dir: identity.Dir(data), CADir: identity.CADir(data), Node: "n2",
		Others: []Member{{"n1", f.addr.String()}}, Dial: m.Dial, Log: slog.New(slog.DiscardHandler),
	}
}

func TestACertificateIsRenewedByTheFounder(t *testing.T) {
	f := found(t)
	r := renewer(t, f)
	before, err := pki.LoadNode(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := r.Renew(t.Context()); err != nil || c.Node != "n2" {
		t.Fatalf("%+v, %v", c, err)
	}
	after, err := pki.LoadNode(r.Dir)
	if err != nil || string(after.Certificate[0]) == string(before.Certificate[0]) {
		t.Errorf("the certificate is the same, %v", err)
	}
	if got := f.server.Results(); got["renewed"] != 1 {
		t.Errorf("counted %v", got)
	}

	_ = f.mesh.Close()
	if _, err := r.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "no controller that answers holds the certificate authority (n1 does not answer); start the one where") {
		t.Errorf("without the founder: %v", err)
	}
	if _, last, err := r.Status(); last == nil || err != nil {
		t.Errorf("status %v, %v", last, err)
	}
}

func TestTheFounderRenewsItself(t *testing.T) {
	f := found(t)
	data := filepath.Dir(f.book.Dir)
	r := &Renewer{Dir: identity.Dir(data), CADir: f.book.Dir, Node: "n1"}
	if c, err := r.Renew(t.Context()); err != nil || c.Node != "n1" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestOnlyNodesOfTheClusterRenew(t *testing.T) {
	f := found(t)
	csr, err := pki.NewRequest("n2")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(f.ca.CertPEM())
	stranger, err := mesh.Stranger(t.Context(), f.addr.String(), "c1", sha256.Sum256(block.Bytes), Protocol)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	_, err = ask(stranger, request{Ask: askRenew, Node: "n2", CSR: csr.DER})
	refused(t, err, "no_certificate")

	// A node that the founder does not list is certified by the CA, but no controller.
	m := f.node(t, t.TempDir(), "n9")
	c, err := m.Dial(t.Context(), f.addr.String(), "n1", Protocol)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = ask(c, request{Ask: askRenew, CSR: csr.DER})
	refused(t, err, "not_listed", "n9 is not among cluster.controllers")
}

// With certificates that live for seconds, a node renews before each runs out.
func TestANodeRenewsByItself(t *testing.T) {
	f := found(t)
	if err := os.WriteFile(filepath.Join(f.book.Dir, pki.LifetimeFile), []byte("4s"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := renewer(t, f)
	if _, err := r.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(30 * time.Second); f.server.Results()["renewed"] < 3; {
		select {
		case <-tick.C:
			if c, err := pki.ReadNode(r.Dir); err != nil || c.Expired(time.Now()) {
				t.Fatalf("certificate %+v, %v", c, err)
			}
		case <-end:
			t.Fatalf("counted %v", f.server.Results())
		}
	}
	cancel()
	<-done
}

// Bad input (forged tokens): strangers who hold connections to the founder
// keep neither its nodes nor strangers from elsewhere out.
func TestSilentStrangersDoNotKeepOthersOut(t *testing.T) {
	f := found(t)
	token := f.token(t, time.Minute, time.Now())
	var held []net.Conn
	for len(held) < 3*maxOfSource {
		c, err := mesh.Stranger(t.Context(), f.addr.String(), "c1", token.Fingerprint, Protocol)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	r := renewer(t, f)
	if _, err := r.Renew(t.Context()); err != nil {
		t.Errorf("a node does not get through: %v", err)
	}
	if !f.server.enter(netip.MustParseAddr("192.0.2.9"), false) {
		t.Error("a stranger from elsewhere does not get through")
	}
	for _, c := range held {
		_ = c.Close()
	}
}

// TestACertificateFromTheFutureIsRenewed: the founder's clock was years ahead
// when it started, and renewed its certificate; now the clock is right.
func TestACertificateFromTheFutureIsRenewed(t *testing.T) {
	data := t.TempDir()
	dir, caDir := identity.Dir(data), identity.CADir(data)
	synctest.Test(t, func(t *testing.T) {
		ca, err := pki.CreateCA("c1", "test")
		if err != nil {
			t.Fatal(err)
		}
		b, err := pki.IssueBundle(ca, "n1", nil)
		if err := errors.Join(err, ca.Save(caDir), b.WriteDir(dir)); err != nil {
			t.Fatal(err)
		}
		<-time.After(3 * 365 * 24 * time.Hour)
		RenewHere(dir, caDir, "n1", netip.MustParseAddr("127.0.0.1"))
		if _, err := identity.Load(data, "n1"); err != nil {
			t.Fatal(err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // begins with the same time again
		if _, err := identity.Load(data, "n1"); err == nil || !strings.Contains(err.Error(), "set the clock") {
			t.Errorf("a certificate that is not good yet: %v", err)
		}
		RenewHere(dir, caDir, "n1", netip.MustParseAddr("127.0.0.1"))
		if _, err := identity.Load(data, "n1"); err != nil {
			t.Error(err)
		}
	})
}
