package pki_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bellwether/appliance/pki"
)

// csr is a request as NewRequest makes it, signed by another kind of key.
func csr(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestRequestsThatAreNotCertified(t *testing.T) {
	ca := newCA(t, "c1")
	good, err := pki.NewRequest("a")
	if err != nil {
		t.Fatal(err)
	}
	tampered := bytes.Clone(good.DER)
	tampered[len(tampered)-1] ^= 1
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	large, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name       string
		der        []byte
		node, role string
		says       string
	}{
		{"without the key that it is for", tampered, "a", pki.Controller, "check the request"},
		{"for an RSA key", csr(t, weak), "a", pki.Controller, "not an ECDSA key on P-256"},
		{"for a key on another curve", csr(t, large), "a", pki.Controller, "not an ECDSA key on P-256"},
		{"that are no requests", []byte("hello"), "a", pki.Controller, "read the request"},
		{"that are huge", make([]byte, 1<<16), "a", pki.Controller, "larger than"},
		{"for a bad name", good.DER, "../a", pki.Controller, "node name"},
		{"for a role that there is not", good.DER, "a", "king", `no role "king"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if cert, err := ca.Certify(tt.der, tt.node, tt.role, nil); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s, %v", cert, err)
			}
		})
	}
	cert, err := ca.Certify(good.DER, "b", pki.Controller, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := good.Bundle(ca.CertPEM(), cert); err == nil || !strings.Contains(err.Error(), "is for node b, not for node a") {
		t.Errorf("a certificate for another node: %v", err)
	}
	if s := fmt.Sprintf("%v %+v %s", *good, *good, good); strings.Contains(s, "PRIVATE") || strings.Contains(s, "45 45 45") {
		t.Errorf("the request prints its key: %s", s)
	}
}

// Handshakes load the certificate at any time, also while it is replaced.
func TestACertificateIsReplacedUnderItsReaders(t *testing.T) {
	ca, dir := newCA(t, "c1"), t.TempDir()
	if err := issue(t, ca, "a").WriteDir(dir); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := pki.LoadNode(dir); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 20 {
		wg.Go(func() {
			if err := issue(t, ca, "a").Replace(dir); err != nil {
				t.Error(err)
			}
		})
	}
	before, err := pki.LoadNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := issue(t, ca, "a").Replace(dir); err != nil {
		t.Fatal(err)
	}
	close(done)
	wg.Wait()
	after, err := pki.LoadNode(dir)
	if err != nil || bytes.Equal(after.Certificate[0], before.Certificate[0]) {
		t.Errorf("the certificate is the old one, %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, pki.NodeKeyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key is %v, %v", info, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); left != nil {
		t.Errorf("%v are left", left)
	}
}

func TestAReplacementThatWasCutShort(t *testing.T) {
	ca, dir := newCA(t, "c1"), t.TempDir()
	if err := issue(t, ca, "a").WriteDir(dir); err != nil {
		t.Fatal(err)
	}
	next := files(t, issue(t, ca, "a"))
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("node.key.new", next[pki.NodeKeyFile])
	if _, err := pki.LoadNode(dir); err != nil {
		t.Errorf("after the key was written: %v", err)
	}
	write(pki.NodeFile, next[pki.NodeFile])
	if _, err := pki.LoadNode(dir); err != nil {
		t.Errorf("after the certificate was replaced: %v", err)
	}
	if err := issue(t, ca, "a").Replace(dir); err != nil {
		t.Errorf("the next replacement: %v", err)
	}
	if _, err := pki.LoadNode(dir); err != nil {
		t.Errorf("after the next replacement: %v", err)
	}
	for name, b := range map[string]*pki.Bundle{"another node's": issue(t, ca, "b"), "another CA's": issue(t, newCA(t, "c1"), "a")} {
		if err := b.Replace(dir); err == nil {
			t.Errorf("%s is put in its place", name)
		}
	}
}

func TestWhenACertificateIsRenewed(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := pki.Certificate{NotBefore: start, NotAfter: start.Add(300 * 24 * time.Hour)}
	if got := c.RenewAt().Sub(start); got != 200*24*time.Hour {
		t.Errorf("it is renewed after %v", got)
	}
	for days, want := range map[int][2]bool{199: {false, false}, 229: {false, false}, 231: {true, false}, 301: {true, true}} {
		now := start.Add(time.Duration(days) * 24 * time.Hour)
		if got := [2]bool{c.Overdue(now), c.Expired(now)}; got != want {
			t.Errorf("after %d days: overdue and expired are %v, want %v", days, got, want)
		}
	}
}

func TestAnotherLifetime(t *testing.T) {
	dir := t.TempDir()
	if err := newCA(t, "c1").Save(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, pki.LifetimeFile), []byte("10m\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, err := pki.LoadCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	node := t.TempDir()
	if err := issue(t, ca, "a").WriteDir(node); err != nil {
		t.Fatal(err)
	}
	if c, err := pki.ReadNode(node); err != nil || c.NotAfter.Sub(c.NotBefore) != 11*time.Minute {
		t.Errorf("%+v, %v", c, err)
	}
	if err := os.WriteFile(filepath.Join(dir, pki.LifetimeFile), []byte("soon"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.LoadCA(dir); err == nil || !strings.Contains(err.Error(), "does not hold a duration") {
		t.Errorf("error %v", err)
	}
}

// TestWhatIsCutShortIsBegunAgain: a process that dies between any two files
// leaves neither a CA nor a node, and nothing that the next attempt trips over.
func TestWhatIsCutShortIsBegunAgain(t *testing.T) {
	ca := newCA(t, "c1")
	bundle := issue(t, ca, "a")
	for _, kind := range []struct {
		name  string
		files []string // in the order in which they are written
		write func(dir string) error
		read  func(dir string) error
	}{
		{"a CA", []string{pki.CAKeyFile, pki.CAFile}, ca.Save, func(dir string) error {
			_, err := pki.LoadCA(dir)
			return err
		}},
		{"a node", []string{pki.NodeKeyFile, pki.NodeFile, pki.ClusterFile, pki.CAFile}, bundle.WriteDir, func(dir string) error {
			_, err := pki.ReadDir(dir)
			return err
		}},
	} {
		for written := range len(kind.files) + 1 {
			t.Run(fmt.Sprintf("%s of which %d files are written", kind.name, written), func(t *testing.T) {
				dir := t.TempDir()
				names := append([]string{"unfinished"}, kind.files[:written]...)
				if written == len(kind.files) {
					names[written] += ".new" // the last one is there only with all its content
				}
				for _, name := range names {
					if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := pki.LoadCluster(dir); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("it is taken for a cluster's: %v", err)
				}
				if kind.name == "a node" {
					if err := pki.Vacant(dir); err != nil {
						t.Error(err)
					}
				}
				if err := kind.write(dir); err != nil {
					t.Fatal(err)
				}
				if err := kind.read(dir); err != nil {
					t.Error(err)
				}
				entries, err := os.ReadDir(dir)
				if err != nil || len(entries) != len(kind.files) {
					t.Errorf("afterwards there are %v, %v", entries, err)
				}
				if err := kind.write(dir); err == nil {
					t.Error("what is complete is overwritten")
				}
			})
		}
	}
}

// TestOfSeveralWritersOneWins: two founders at once do not mix their files.
func TestOfSeveralWritersOneWins(t *testing.T) {
	for range 20 {
		dir := filepath.Join(t.TempDir(), "ca")
		var wg sync.WaitGroup
		var won atomic.Int32
		for i := range 4 {
			ca := newCA(t, fmt.Sprintf("c%d", i))
			wg.Go(func() {
				if ca.Save(dir) == nil {
					won.Add(1)
				}
			})
		}
		wg.Wait()
		if _, err := pki.LoadCA(dir); err != nil || won.Load() != 1 {
			t.Fatalf("%d wrote it, and it reads %v", won.Load(), err)
		}
	}
}
