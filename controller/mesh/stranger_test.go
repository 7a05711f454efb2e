package mesh_test

import (
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"bellwether/controller/mesh"
	"bellwether/controller/mesh/meshtest"
)

// gateway is a node with an open protocol and a closed one.
func gateway(t *testing.T, ca *meshtest.CA) *mesh.Mesh {
	t.Helper()
	cfg := ca.Config(t, "a", "127.0.0.1:0")
	cfg.CACert = ca.DER()
	m, err := mesh.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestAStrangerSpeaksOpenProtocolsOnly(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	m := gateway(t, ca)
	open, closed := m.HandleOpen("open/1"), m.Handle("closed/1")
	sum := sha256.Sum256(ca.DER())
	addr := m.Addr().String()

	c, err := mesh.Stranger(context5(t), addr, "c1", sum, "open/1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := open.Accept()
	if err != nil || mesh.PeerNode(in) != "" || mesh.PeerNode(c) != "a" {
		t.Errorf("the peers are %q and %q, %v", mesh.PeerNode(in), mesh.PeerNode(c), err)
	}
	// A node shows who it is in an open protocol too.
	b := ca.Listen(t, "b", "127.0.0.1:0")
	if c, err = b.Dial(context5(t), addr, "a", "open/1"); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if in, err = open.Accept(); err != nil || mesh.PeerNode(in) != "b" {
		t.Errorf("the peer is %q, %v", mesh.PeerNode(in), err)
	}

	go func() { // nobody may come
		if c, err := closed.Accept(); err == nil {
			t.Errorf("a stranger speaks a closed protocol: %v", c.RemoteAddr())
		}
	}()
	if _, err := mesh.Stranger(context5(t), addr, "c1", sum, "closed/1"); err == nil {
		t.Error("a stranger gets a closed protocol")
	}
	// Offering an open protocol beside does not open the closed one.
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	tc := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"closed/1", "open/1"}, MinVersion: tls.VersionTLS13})
	_ = raw.SetDeadline(time.Now().Add(5 * time.Second))
	if err := tc.Handshake(); err == nil {
		if _, err = tc.Read(make([]byte, 1)); err == nil {
			t.Error("both protocols offered: a stranger is taken")
		}
	}
	// A certificate that is shown must be good.
	foreign := meshtest.NewCA(t, "c1").Listen(t, "x", "127.0.0.1:0")
	if _, err := foreign.Dial(context5(t), addr, "a", "open/1"); err == nil {
		t.Error("a node of another authority is taken")
	}
}

func TestAStrangerKnowsTheAuthorityByItsFingerprint(t *testing.T) {
	ca, other := meshtest.NewCA(t, "c1"), meshtest.NewCA(t, "c1")
	addr := func(m *mesh.Mesh) string { m.HandleOpen("open/1"); return m.Addr().String() }
	sum := sha256.Sum256(ca.DER())
	if _, err := mesh.Stranger(context5(t), addr(gateway(t, other)), "c1", sum, "open/1"); !errors.Is(err, mesh.ErrFingerprint) {
		t.Errorf("another authority: %v", err)
	}
	// Who shows the right authority must also be certified by it.
	cfg := other.Config(t, "a", "127.0.0.1:0")
	cfg.CACert = ca.DER()
	liar, err := mesh.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer liar.Close()
	if _, err := mesh.Stranger(context5(t), addr(liar), "c1", sum, "open/1"); !errors.Is(err, mesh.ErrRefused) {
		t.Errorf("a node that only shows the authority: %v", err)
	}
	if _, err := mesh.Stranger(context5(t), addr(gateway(t, ca)), "c2", sum, "open/1"); err == nil || !strings.Contains(err.Error(), "is of cluster c1, this is cluster c2") {
		t.Errorf("another cluster of the authority: %v", err)
	}
}

// A connection ends before a certificate that it was made with does; the next
// one is made with the certificate of then.
func TestConnectionsEndBeforeTheirCertificates(t *testing.T) {
	ca := meshtest.NewCA(t, "c1")
	cfg := ca.Config(t, "a", "127.0.0.1:0")
	left := 4 * time.Second
	brief := ca.Issue(t, mesh.NodeURI("c1", "a"), time.Now().Add(left-time.Hour))
	cfg.Certificate = func() (*tls.Certificate, error) { return brief, nil }
	a, err := mesh.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	l := a.Handle("bw-api/1")
	began := time.Now()
	c, err := ca.Listen(t, "b", "127.0.0.1:0").Dial(context5(t), a.Addr().String(), "a", "bw-api/1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{c, in} {
		_ = conn.SetReadDeadline(began.Add(left))
		_, err := conn.Read(make([]byte, 1))
		var timeout net.Error
		if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("the connection is there when the certificate has run out: %v", err)
		}
	}
	if took := time.Since(began); took < left/4 {
		t.Errorf("it ended after %v of %v", took, left)
	}
}
