// Package meshtest makes certificates for tests that run real meshes.
//
// It is for tests only; the cluster's CA is package pki's.
package meshtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net/url"
	"testing"
	"time"

	"bellwether/controller/mesh"
)

// CA signs the certificates of one test cluster.
type CA struct {
	ClusterID string
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
}

// NewCA makes a CA.
func NewCA(t testing.TB, clusterID string) *CA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &CA{ClusterID: clusterID, cert: cert, key: key}
}

// Pool holds the CA.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Issue signs a certificate with a URI name, valid for an hour from notBefore.
func (ca *CA) Issue(t testing.TB, uri *url.URL, notBefore time.Time) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "test"}, URIs: []*url.URL{uri},
		NotBefore: notBefore, NotAfter: notBefore.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Config is the mesh configuration of a node of the test cluster, with a
// certificate of its own. It logs nothing.
func (ca *CA) Config(t testing.TB, node, addr string) mesh.Config {
	t.Helper()
	cert := ca.Issue(t, mesh.NodeURI(ca.ClusterID, node), time.Now().Add(-time.Minute))
	return mesh.Config{
		Addr: addr, ClusterID: ca.ClusterID, NodeName: node, CA: ca.Pool(),
		Certificate: func() (*tls.Certificate, error) { return cert, nil },
		Log:         slog.New(slog.DiscardHandler),
	}
}

// Listen opens a mesh that is closed with the test.
func (ca *CA) Listen(t testing.TB, node, addr string) *mesh.Mesh {
	t.Helper()
	m, err := mesh.Listen(ca.Config(t, node, addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// DER is the CA's certificate.
func (ca *CA) DER() []byte { return ca.cert.Raw }
