// Package pki is the cluster's own certificate authority and the files that it
// leaves on disk.
//
// `ca.pem` and `ca.key` make a directory the CA's; `ca.pem`, `node.pem` and
// `node.key` make it a node's. Keys have mode 0600. Nothing that exists is ever
// overwritten. A certificate names its holder by URI, as package mesh reads it.
//
// The package does not renew, revoke or hand out certificates over a network,
// and does not encrypt keys: the directory is what protects them.
//
// Failure modes: files that are missing, not PEM, or do not belong together
// are refused when loaded, with the file's name.
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
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"bellwether/controller/mesh"
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

// CA signs the certificates of one cluster's nodes.
type CA struct {
	Cluster
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
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
	return &CA{Cluster: cluster, cert: cert, key: key}, nil
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
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(validity),
	}, nil
}

// IssueNode signs a certificate for a node, valid for a year, and gives it and
// its new key in PEM. Addresses are informative: nodes know each other by name.
func IssueNode(ca *CA, node string, ips []netip.Addr) (certPEM, keyPEM []byte, err error) {
	if err := checkName("node name", node); err != nil {
		return nil, nil, fmt.Errorf("issue certificate: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate for node %s: %w", node, err)
	}
	template, err := template(node, mesh.NodeURI(ca.ID, node), nodeValidity)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate for node %s: %w", node, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, ip := range ips {
		if !ip.IsValid() || ip.Zone() != "" {
			return nil, nil, fmt.Errorf("issue certificate for node %s: %q is not an IP address", node, ip)
		}
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate for node %s: %w", node, err)
	}
	keyPEM, err = encodeKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate for node %s: %w", node, err)
	}
	return encodeCert(der), keyPEM, nil
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
	cert, err := loadCACert(dir)
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
	return &CA{Cluster: cluster, cert: cert, key: key}, nil
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

func loadCACert(dir string) (*x509.Certificate, error) {
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

// LoadPool reads ca.pem from dir.
func LoadPool(dir string) (*x509.CertPool, error) {
	cert, err := loadCACert(dir)
	if err != nil {
		return nil, fmt.Errorf("load CA certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool, nil
}

// LoadCluster reads from ca.pem in dir which cluster the directory belongs to.
func LoadCluster(dir string) (Cluster, error) {
	cert, err := loadCACert(dir)
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

// LoadNode reads node.pem and node.key from dir. Called for every handshake,
// it makes a renewed certificate take effect without a restart.
func LoadNode(dir string) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, NodeFile), filepath.Join(dir, NodeKeyFile))
	if err != nil {
		return nil, fmt.Errorf("load node certificate: %w", explain(err, dir, NodeFile, NodeKeyFile))
	}
	return &pair, nil
}

// NodeName reads from node.pem in dir whose certificate it is.
func NodeName(dir string) (string, error) {
	pair, err := LoadNode(dir)
	if err != nil {
		return "", err
	}
	name := mesh.NodeOf(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{pair.Leaf}})
	if name == "" {
		return "", fmt.Errorf("load node certificate: %s: not a node's certificate", filepath.Join(dir, NodeFile))
	}
	return name, nil
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
