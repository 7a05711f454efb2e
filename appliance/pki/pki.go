// Package pki is the cluster's own certificate authority and the files that it
// leaves on disk.
//
// `ca.pem` and `ca.key` make a directory the CA's; `ca.pem`, `node.pem` and
// `node.key` make it a node's. Keys have mode 0600. Nothing that exists is ever
// overwritten, but for a node's own certificate and key, which Replace changes
// together. A certificate names its holder by URI, as package mesh reads it,
// and its role by organizational unit.
//
// The package does not hand out certificates over a network (package joining
// does), revokes none, and does not encrypt keys: the directory is what
// protects them.
//
// Failure modes: files that are missing, not PEM, or do not belong together
// are refused when loaded, with the file's name. A Replace that is cut short
// leaves the old pair or the new one; what is written anew and cut short is not
// taken for a CA or a node, and the next attempt begins again.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// The files of a CA's and a node's directory.
const (
	CAFile      = "ca.pem"
	CAKeyFile   = "ca.key"
	NodeFile    = "node.pem"
	NodeKeyFile = "node.key"
)

// How long certificates are valid. They begin an hour early, for machines
// whose clocks are behind.
const (
	caValidity   = 10 * 365 * 24 * time.Hour
	nodeValidity = 365 * 24 * time.Hour
	clockSkew    = time.Hour
)

// Controller is the only role that a node has so far.
const Controller = "controller"

// LifetimeFile, beside the CA's key, holds another lifetime for the
// certificates that it issues, such as 30s. Tests use it.
const LifetimeFile = "lifetime"

// CA signs the certificates of one cluster's nodes.
type CA struct {
	Cluster
	cert     *x509.Certificate
	key      *ecdsa.PrivateKey
	lifetime time.Duration // of the certificates that it issues
}

// nameRule is what can stand in a URI, a file name and a label alike.
var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func checkName(what, s string) error {
	if !nameRule.MatchString(s) {
		return fmt.Errorf("%s %q is not 1 to 63 letters, digits, dots, dashes or underscores that begin with a letter or digit", what, s)
	}
	return nil
}

// CreateCA makes a CA for a new cluster, valid for ten years. The id must be
// unique in the world, the name is for people.
func CreateCA(clusterID, name string) (*CA, error) {
	cluster := Cluster{ID: clusterID, Name: name}
	if err := cluster.validate(); err != nil {
		return nil, fmt.Errorf("create CA: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create CA: %w", err)
	}
	template, err := template("Bellwether CA "+name, caURI(clusterID), caValidity)
	if err != nil {
		return nil, fmt.Errorf("create CA: %w", err)
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	template.Subject.Organization = []string{name}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("create CA: %w", err)
	}
	return &CA{Cluster: cluster, cert: cert, key: key, lifetime: nodeValidity}, nil
}

func caURI(clusterID string) *url.URL {
	return &url.URL{Scheme: "bellwether", Host: clusterID, Path: "/ca"}
}

func template(commonName string, name *url.URL, validity time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), // RFC 5280 §4.1.2.2: positive
		Subject:      pkix.Name{CommonName: commonName},
		URIs:         []*url.URL{name},
		NotBefore:    now.Add(-min(clockSkew, validity/10)),
		NotAfter:     now.Add(validity),
	}, nil
}

// IssueNode signs a certificate for a node that is a controller, valid for a
// year, and gives it and its new key in PEM. Addresses are informative: nodes
// know each other by name.
func IssueNode(ca *CA, node string, ips []netip.Addr) (certPEM, keyPEM []byte, err error) {
	r, err := NewRequest(node)
	if err != nil {
		return nil, nil, err
	}
	certPEM, err = ca.Certify(r.DER, node, Controller, ips)
	return certPEM, r.key, err
}

// CertPEM is the CA's certificate, which every node holds.
func (ca *CA) CertPEM() []byte { return encodeCert(ca.cert.Raw) }

// Save writes ca.pem and ca.key into dir.
func (ca *CA) Save(dir string) error {
	key, err := encodeKey(ca.key)
	if err != nil {
		return fmt.Errorf("save CA: %w", err)
	}
	if err := writeNew(dir, file{CAKeyFile, key, 0o600}, file{CAFile, ca.CertPEM(), 0o644}); err != nil {
		return fmt.Errorf("save CA: %w", err)
	}
	return nil
}

// LoadCA reads ca.pem and ca.key from dir.
func LoadCA(dir string) (*CA, error) {
	cert, err := LoadCACert(dir)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, CAFile), filepath.Join(dir, CAKeyFile))
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", explain(err, dir, CAFile, CAKeyFile))
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("load CA: %s: not an ECDSA key", filepath.Join(dir, CAKeyFile))
	}
	cluster, err := clusterOf(cert)
	if err != nil {
		return nil, fmt.Errorf("load CA: %s: %w", filepath.Join(dir, CAFile), err)
	}
	ca := &CA{Cluster: cluster, cert: cert, key: key, lifetime: nodeValidity}
	if text, err := os.ReadFile(filepath.Join(dir, LifetimeFile)); err == nil {
		if ca.lifetime, err = time.ParseDuration(strings.TrimSpace(string(text))); err != nil || ca.lifetime <= 0 {
			return nil, fmt.Errorf("load CA: %s does not hold a duration such as 30s", filepath.Join(dir, LifetimeFile))
		}
	}
	return ca, nil
}

// clusterOf reads the cluster from a CA certificate that CreateCA made.
func clusterOf(cert *x509.Certificate) (Cluster, error) {
	if len(cert.URIs) != 1 || len(cert.Subject.Organization) != 1 {
		return Cluster{}, errors.New("not the certificate of a cluster's CA")
	}
	c := Cluster{ID: cert.URIs[0].Host, Name: cert.Subject.Organization[0]}
	if cert.URIs[0].String() != caURI(c.ID).String() {
		return Cluster{}, errors.New("not the certificate of a cluster's CA")
	}
	return c, c.validate()
}

// LoadCACert reads ca.pem from dir.
func LoadCACert(dir string) (*x509.Certificate, error) {
	path := filepath.Join(dir, CAFile)
	text, err := readSmall(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s: not a certificate in PEM", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("%s: not the certificate of a CA", path)
	}
	return cert, nil
}

// LoadCluster reads from ca.pem in dir which cluster the directory belongs to.
func LoadCluster(dir string) (Cluster, error) {
	cert, err := LoadCACert(dir)
	if err != nil {
		return Cluster{}, fmt.Errorf("load cluster: %w", err)
	}
	c, err := clusterOf(cert)
	if err != nil {
		return Cluster{}, fmt.Errorf("load cluster: %s: %w", filepath.Join(dir, CAFile), err)
	}
	return c, nil
}

// SaveNode writes node.pem and node.key into dir.
func SaveNode(dir string, certPEM, keyPEM []byte) error {
	if err := writeNew(dir, file{NodeKeyFile, keyPEM, 0o600}, file{NodeFile, certPEM, 0o644}); err != nil {
		return fmt.Errorf("save node certificate: %w", err)
	}
	return nil
}

// explain adds the files to errors of crypto/tls that do not name them.
func explain(err error, dir string, names ...string) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return err
	}
	return fmt.Errorf("%s in %s: %w", strings.Join(names, " and "), dir, err)
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
