package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"bellwether/controller/mesh"
)

// maxRequest is far above any request of ours, in bytes.
const maxRequest = 4096

// Request asks a CA for a certificate for a key that stays in the Request.
type Request struct {
	Node string
	DER  []byte // PKCS #10 (RFC 2986)
	key  []byte // PEM
}

// String shows everything but the key.
func (r Request) String() string { return fmt.Sprintf("{request of node %s}", r.Node) }

// NewRequest makes a key and a request for it.
func NewRequest(node string) (*Request, error) {
	if err := checkName("node name", node); err != nil {
		return nil, fmt.Errorf("request certificate: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("request certificate for node %s: %w", node, err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: node}}, key)
	if err != nil {
		return nil, fmt.Errorf("request certificate for node %s: %w", node, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("request certificate for node %s: %w", node, err)
	}
	return &Request{Node: node, DER: der, key: keyPEM}, nil
}

// Bundle puts the answer to a request together with its key, and checks that
// the parts belong together.
func (r *Request) Bundle(caPEM, certPEM []byte) (*Bundle, error) {
	b := &Bundle{CA: caPEM, Cert: certPEM, key: r.key}
	block, _ := pem.Decode(caPEM)
	if block == nil {
		return nil, errors.New("the answer holds no CA certificate")
	}
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the answer's CA certificate: %w", err)
	}
	if b.Cluster, err = clusterOf(root); err != nil {
		return nil, err
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	if b.Node != r.Node {
		return nil, fmt.Errorf("the certificate is for node %s, not for node %s", b.Node, r.Node)
	}
	return b, nil
}

// Certify signs a certificate for the key of a request, valid for a year but
// not beyond the CA's own. What the request says beside its key does not
// count: the caller knows whose it is.
func (ca *CA) Certify(request []byte, node, role string, ips []netip.Addr) (certPEM []byte, err error) {
	if err := checkName("node name", node); err != nil {
		return nil, fmt.Errorf("issue certificate: %w", err)
	}
	if role != Controller {
		return nil, fmt.Errorf("issue certificate for node %s: there is no role %q", node, role)
	}
	key, err := requestedKey(request)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for node %s: %w", node, err)
	}
	template, err := template(node, mesh.NodeURI(ca.ID, node), ca.lifetime)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for node %s: %w", node, err)
	}
	template.Subject.OrganizationalUnit = []string{role}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, ip := range ips {
		if !ip.IsValid() || ip.Zone() != "" {
			return nil, fmt.Errorf("issue certificate for node %s: %q is not an IP address", node, ip)
		}
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key, ca.key)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for node %s: %w", node, err)
	}
	return encodeCert(der), nil
}

// requestedKey is the key of a request whose maker holds its private half.
func requestedKey(request []byte) (*ecdsa.PublicKey, error) {
	if len(request) > maxRequest {
		return nil, fmt.Errorf("the request is larger than %d bytes", maxRequest)
	}
	csr, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the request's key is not an ECDSA key on P-256")
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("check the request: %w", err)
	}
	return key, nil
}

// Fingerprint is the SHA-256 of the CA's certificate.
func (ca *CA) Fingerprint() [sha256.Size]byte { return sha256.Sum256(ca.cert.Raw) }

// Fingerprint is the SHA-256 of the CA's certificate in the bundle.
func (b *Bundle) Fingerprint() ([sha256.Size]byte, error) {
	block, _ := pem.Decode(b.CA)
	if block == nil {
		return [sha256.Size]byte{}, errors.New("the bundle holds no CA certificate")
	}
	return sha256.Sum256(block.Bytes), nil
}
