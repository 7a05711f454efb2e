package identity

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
