package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

// issue writes the identity of a node of a cluster into a data directory.
func issue(t *testing.T, ca *pki.CA, dataDir, node string) {
	t.Helper()
	b, err := pki.IssueBundle(ca, node, []netip.Addr{netip.MustParseAddr("127.0.0.1")})
	if err == nil {
		err = b.WriteDir(Dir(dataDir))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func authority(t *testing.T, cluster string) *pki.CA {
	t.Helper()
	ca, err := pki.CreateCA(cluster, "test")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// authorityIn writes an authority whose certificates live for a time.
func authorityIn(dir, lifetime string) error {
	ca, err := pki.CreateCA("c1", "test")
	if err == nil {
		err = ca.Save(dir)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, pki.LifetimeFile), []byte(lifetime), 0o600)
	}
	return err
}

// asKing writes an identity of a role that there is not (yet).
func asKing(ca *pki.CA, dataDir string) error {
	dir, caDir := Dir(dataDir), filepath.Join(dataDir, "ca")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := ca.Save(caDir); err != nil {
		return err
	}
	signer, err := tls.LoadX509KeyPair(filepath.Join(caDir, pki.CAFile), filepath.Join(caDir, pki.CAKeyFile))
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "n1", OrganizationalUnit: []string{"king"}},
		URIs: []*url.URL{mesh.NodeURI("c1", "n1")}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, signer.Leaf, key.Public(), signer.PrivateKey)
	if err != nil {
		return err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, pki.CAFile), ca.CertPEM(), 0o600),
		os.WriteFile(filepath.Join(dir, pki.NodeFile), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(filepath.Join(dir, pki.NodeKeyFile), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
}

func TestTheBeginningIsRemembered(t *testing.T) {
	ca, dir := authority(t, "c1"), t.TempDir()
	issue(t, ca, dir, "n1")
	for _, want := range []bool{false, true, true} {
		if got := Begun(dir); got != want {
			t.Errorf("begun is %v, want %v", got, want)
		}
		if err := MarkBegun(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnIdentityAndItsMesh(t *testing.T) {
	ca, dir := authority(t, "c1"), t.TempDir()
	issue(t, ca, dir, "n1")
	id, err := Load(dir, "n1")
	if err != nil || id.ClusterID != "c1" || id.ClusterName != "test" || id.Node != "n1" {
		t.Fatalf("identity %+v, %v", id, err)
	}
	m, err := mesh.Dialer(id.Mesh("127.0.0.1:7400", slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	// The certificate is read at each handshake: what is wrong now shows now.
	if err := os.Remove(filepath.Join(Dir(dir), pki.NodeFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := id.Mesh("", nil).Certificate(); err == nil {
		t.Error("a certificate that is gone is still used")
	}
}

func TestWhatIsNoIdentity(t *testing.T) {
	ca := authority(t, "c1")
	for _, tt := range []struct {
		name string
		make func(dir string) error
		says string
	}{
		{"nothing", func(string) error { return nil }, "run 'bellwether cluster init' on the first node"},
		{"another node's", func(dir string) error { issue(t, ca, dir, "n2"); return nil }, "is node n2's, not node n1's"},
		{"a cluster without a certificate", func(dir string) error {
			issue(t, ca, dir, "n1")
			return os.Remove(filepath.Join(Dir(dir), pki.NodeFile))
		}, "bellwether cluster issue n1"},
		{"a certificate that has run out", func(dir string) error {
			ca := t.TempDir()
			if err := authorityIn(ca, "1ns"); err != nil {
				return err
			}
			brief, err := pki.LoadCA(ca)
			if err == nil {
				issue(t, brief, dir, "n1")
			}
			return err
		}, "run 'bellwether cluster token n1' on the first node and here 'bellwether cluster join'"},
		{"another role's", func(dir string) error { return asKing(ca, dir) }, "makes this node a king, but cluster.controllers lists it as a controller"},
		{"a damaged certificate", func(dir string) error {
			issue(t, ca, dir, "n1")
			return os.WriteFile(filepath.Join(Dir(dir), pki.NodeFile), []byte("damaged"), 0o600)
		}, "read the node's certificate"},
		{"a damaged authority", func(dir string) error {
			issue(t, ca, dir, "n1")
			return os.WriteFile(filepath.Join(Dir(dir), pki.CAFile), []byte("damaged"), 0o600)
		}, "read the cluster's certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := tt.make(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(dir, "n1"); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want one with %q", err, tt.says)
			}
		})
	}
}
