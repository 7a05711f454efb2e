package pki_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

func newCA(t testing.TB, id string) *pki.CA {
	t.Helper()
	ca, err := pki.CreateCA(id, "Lab 1")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t testing.TB, ca *pki.CA, node string) *pki.Bundle {
	t.Helper()
	b, err := pki.IssueBundle(ca, node, []netip.Addr{netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Two nodes with nothing but what the CA gave them talk over the mesh.
func TestIssuedNodesMeet(t *testing.T) {
	ca := newCA(t, "c1")
	meshes := make(map[string]*mesh.Mesh)
	for _, node := range []string{"a", "b"} {
		dir := filepath.Join(t.TempDir(), "pki")
		if err := issue(t, ca, node).WriteDir(dir); err != nil {
			t.Fatal(err)
		}
		root, err := pki.LoadCACert(dir)
		if err != nil {
			t.Fatal(err)
		}
		cluster, err := pki.LoadCluster(dir)
		if err != nil || cluster != (pki.Cluster{ID: "c1", Name: "Lab 1"}) {
			t.Fatalf("cluster %+v, %v", cluster, err)
		}
		if name, err := pki.NodeName(dir); err != nil || name != node {
			t.Fatalf("node name %q, %v", name, err)
		}
		m, err := mesh.Listen(mesh.Config{
			Addr: "127.0.0.1:0", ClusterID: cluster.ID, NodeName: node, CA: poolOf(root), Log: slog.New(slog.DiscardHandler),
			Certificate: func() (*tls.Certificate, error) { return pki.LoadNode(dir) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		meshes[node] = m
	}
	l := meshes["a"].Handle("bw-api/1")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	c, err := meshes["b"].Dial(ctx, meshes["a"].Addr().String(), "a", "bw-api/1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := l.Accept()
	if err != nil || mesh.PeerNode(in) != "b" {
		t.Errorf("peer is %q, %v", mesh.PeerNode(in), err)
	}
}

func TestTheFilesOfACA(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "ca")
	ca := newCA(t, "c1")
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{pki.CAFile: 0o644, pki.CAKeyFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %v", name, info, err, mode)
		}
	}
	back, err := pki.LoadCA(dir)
	if err != nil || back.Cluster != ca.Cluster || !bytes.Equal(back.CertPEM(), ca.CertPEM()) {
		t.Fatalf("load: %v, %v", back, err)
	}
	// What it issues is of the same CA.
	if err := issue(t, back, "a").WriteDir(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.ReadDir(filepath.Join(dir, "a")); err != nil {
		t.Error(err)
	}
}

func TestNothingIsOverwritten(t *testing.T) {
	for _, existing := range []string{pki.CAFile, pki.CAKeyFile, pki.NodeFile, pki.NodeKeyFile, pki.ClusterFile} {
		dir := t.TempDir()
		path := filepath.Join(dir, existing)
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		ca := newCA(t, "c1")
		cert, key, err := pki.IssueNode(ca, "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		var errs []error
		switch existing {
		case pki.CAKeyFile:
			errs = append(errs, ca.Save(dir))
		case pki.CAFile:
			errs = append(errs, ca.Save(dir), issue(t, ca, "a").WriteDir(dir))
		case pki.ClusterFile:
			errs = append(errs, issue(t, ca, "a").WriteDir(dir))
		default:
			errs = append(errs, pki.SaveNode(dir, cert, key), issue(t, ca, "a").WriteDir(dir))
		}
		for _, err := range errs {
			if err == nil || !strings.Contains(err.Error(), path+" exists and is not overwritten") {
				t.Errorf("%s exists: %v", existing, err)
			}
		}
		entries, _ := os.ReadDir(dir)
		content, _ := os.ReadFile(path)
		if len(entries) != 1 || string(content) != "precious" {
			t.Errorf("%s exists: afterwards there are %v, and it holds %q", existing, entries, content)
		}
	}
}

func TestCertificatesSayWhoAndHowLong(t *testing.T) {
	ca := newCA(t, "c1")
	text, _, err := pki.IssueNode(ca, "a", []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")})
	if err != nil {
		t.Fatal(err)
	}
	parse := func(text []byte) *x509.Certificate {
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	root, node := parse(ca.CertPEM()), parse(text)
	if node.URIs[0].String() != "bellwether://c1/node/a" || len(node.IPAddresses) != 2 || node.IsCA {
		t.Errorf("node certificate names %v, %v", node.URIs, node.IPAddresses)
	}
	year := 365 * 24 * time.Hour
	for name, tt := range map[string]struct {
		cert *x509.Certificate
		want time.Duration
	}{"CA": {root, 10 * year}, "node": {node, year}} {
		if left := time.Until(tt.cert.NotAfter); left > tt.want || left < tt.want-time.Minute || time.Since(tt.cert.NotBefore) < 59*time.Minute {
			t.Errorf("%s is valid from %v to %v", name, tt.cert.NotBefore, tt.cert.NotAfter)
		}
	}
	if !root.IsCA || !root.MaxPathLenZero || root.PublicKeyAlgorithm != x509.ECDSA {
		t.Errorf("CA certificate: %+v", root)
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	for _, id := range []string{"", "a b", "../x", "c/1", "-c", strings.Repeat("x", 64)} {
		if _, err := pki.CreateCA(id, "Lab"); err == nil {
			t.Errorf("cluster id %q is accepted", id)
		}
		if _, _, err := pki.IssueNode(newCA(t, "c1"), id, nil); err == nil {
			t.Errorf("node name %q is accepted", id)
		}
	}
	for _, name := range []string{"", " x", "a\nb", "a\xff", strings.Repeat("x", 65)} {
		if _, err := pki.CreateCA("c1", name); err == nil {
			t.Errorf("cluster name %q is accepted", name)
		}
	}
	if _, _, err := pki.IssueNode(newCA(t, "c1"), "a", []netip.Addr{{}}); err == nil {
		t.Error("an invalid address is accepted")
	}
}

func TestBundlesAsTar(t *testing.T) {
	b := issue(t, newCA(t, "c1"), "a")
	var archive bytes.Buffer
	if err := b.WriteTar(&archive); err != nil {
		t.Fatal(err)
	}
	back, err := pki.ReadTar(&archive)
	if err != nil || back.Node != "a" || back.Cluster != b.Cluster {
		t.Fatalf("%v, %v", back, err)
	}
	dir := t.TempDir()
	if err := back.WriteDir(dir); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, pki.NodeKeyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, pki.ClusterFile)); err != nil || string(text) != "{\n  \"cluster_id\": \"c1\",\n  \"name\": \"Lab 1\"\n}\n" {
		t.Errorf("cluster.json: %q, %v", text, err)
	}
	if s := fmt.Sprintf("%v %+v", b, *b); strings.Contains(s, "PRIVATE") || strings.Contains(s, "45 45 45") {
		t.Errorf("the bundle prints its key: %s", s)
	}
}

// files is a bundle's content by name.
func files(t testing.TB, b *pki.Bundle) map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	if err := b.WriteDir(dir); err != nil {
		t.Fatal(err)
	}
	parts := make(map[string][]byte)
	for _, name := range []string{pki.CAFile, pki.NodeFile, pki.NodeKeyFile, pki.ClusterFile} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		parts[name] = text
	}
	return parts
}

func archive(t testing.TB, parts map[string][]byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, text := range parts {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestBundlesWhosePartsDoNotBelongTogetherAreRefused(t *testing.T) {
	ca, twin := newCA(t, "c1"), newCA(t, "c1")
	a, b := files(t, issue(t, ca, "a")), files(t, issue(t, ca, "b"))
	foreign, other := files(t, issue(t, twin, "a")), files(t, issue(t, newCA(t, "c2"), "a"))
	for _, tt := range []struct {
		name string
		part string
		text []byte // nil: the part is missing
		want string
	}{
		{"no key", pki.NodeKeyFile, nil, "node.key is missing"},
		{"no cluster", pki.ClusterFile, nil, "cluster.json is missing"},
		{"another node's key", pki.NodeKeyFile, b[pki.NodeKeyFile], "node.pem and node.key: tls: private key does not match"},
		{"another CA of the same name", pki.CAFile, foreign[pki.CAFile], "not a valid certificate of this CA"},
		{"another cluster's CA", pki.CAFile, other[pki.CAFile], "ca.pem is of cluster Lab 1 (c2), cluster.json of cluster Lab 1 (c1)"},
		{"a node certificate as the CA", pki.CAFile, a[pki.NodeFile], "not the certificate of a cluster's CA"},
		{"no PEM", pki.CAFile, []byte("hello"), "ca.pem: not a certificate in PEM"},
		{"no JSON", pki.ClusterFile, []byte("hello"), "cluster.json: invalid character"},
		{"an unknown key in the JSON", pki.ClusterFile, []byte(`{"cluster_id":"c1","name":"Lab 1","x":1}`), `unknown field "x"`},
		{"a stranger's file", "../../etc/passwd", []byte("x"), "unexpected file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parts := make(map[string][]byte)
			for name, text := range a {
				parts[name] = text
			}
			parts[tt.part] = tt.text
			if tt.text == nil {
				delete(parts, tt.part)
			}
			_, err := pki.ReadTar(bytes.NewReader(archive(t, parts)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("read: %v, want %q", err, tt.want)
			}
		})
	}
}

func TestUnreadableFilesAreNamed(t *testing.T) {
	dir := t.TempDir()
	ca := newCA(t, "c1")
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.LoadNode(dir); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "node.pem")) {
		t.Errorf("load node without one: %v", err)
	}
	other := t.TempDir()
	if err := newCA(t, "c1").Save(other); err != nil {
		t.Fatal(err)
	}
	key, _ := os.ReadFile(filepath.Join(other, pki.CAKeyFile))
	if err := os.WriteFile(filepath.Join(dir, pki.CAKeyFile), key, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.LoadCA(dir); err == nil || !strings.Contains(err.Error(), "ca.pem and ca.key in "+dir) {
		t.Errorf("load CA with another's key: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, pki.CAFile), make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.LoadCACert(dir); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("load a huge file: %v", err)
	}
	if _, err := pki.LoadCACert(t.TempDir()); err == nil || !strings.Contains(err.Error(), "ca.pem") {
		t.Errorf("load from an empty directory: %v", err)
	}
	if _, err := pki.ReadDir(t.TempDir()); err == nil || !strings.Contains(err.Error(), "ca.pem") {
		t.Errorf("read an empty directory: %v", err)
	}
}

func FuzzReadTar(f *testing.F) {
	ca := newCA(f, "c1")
	f.Add(archive(f, files(f, issue(f, ca, "a"))))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := pki.ReadTar(bytes.NewReader(data))
		if err == nil && (b.Node == "" || b.Cluster.ID == "") {
			t.Errorf("accepted %v", b)
		}
	})
}

func poolOf(root *x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(root)
	return pool
}
