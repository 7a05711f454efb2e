package mesh

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

const (
	uriScheme = "bellwether"
	nodeRole  = "node"
)

// NodeURI is the URI name that the certificate of a cluster's node carries.
func NodeURI(clusterID, node string) *url.URL {
	return &url.URL{Scheme: uriScheme, Host: clusterID, Path: "/" + nodeRole + "/" + node}
}

// identity is what a certificate says about its holder.
type identity struct {
	cluster, role, name string
}

// identify reads the certificate's URI name; there must be exactly one of ours.
func identify(cert *x509.Certificate) (identity, error) {
	var id identity
	found := 0
	for _, u := range cert.URIs {
		if u.Scheme != uriScheme {
			continue
		}
		role, name, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
		id = identity{cluster: u.Host, role: role, name: name}
		found++
	}
	if found != 1 {
		return identity{}, fmt.Errorf("certificate of %s has %d %s:// names, not one", cert.Subject, found, uriScheme)
	}
	return id, nil
}

func (m *Mesh) verifyPeer(chain []*x509.Certificate, node string, usage x509.ExtKeyUsage) error {
	if err := m.verify(chain, node, usage); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

// verify checks a certificate's chain, cluster and role and, if node is not "",
// that it is that node's. The cluster comes first: "another cluster" helps more
// than "unknown authority".
func (m *Mesh) verify(chain []*x509.Certificate, node string, usage x509.ExtKeyUsage) error {
	if len(chain) == 0 {
		return errors.New("there is no certificate")
	}
	id, err := identify(chain[0])
	if err != nil {
		return err
	}
	if id.cluster != m.cfg.ClusterID {
		return fmt.Errorf("%s %s is of cluster %s, this is cluster %s", id.role, id.name, id.cluster, m.cfg.ClusterID)
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{
		Roots: m.cfg.CA, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage},
	}); err != nil {
		return fmt.Errorf("%s %s: %w", id.role, id.name, err)
	}
	if id.role != nodeRole || id.name == "" {
		return fmt.Errorf("the role of %s is %q, not %q", id.name, id.role, nodeRole)
	}
	if node != "" && id.name != node {
		return fmt.Errorf("it is node %s, not node %s", id.name, node)
	}
	return nil
}

// PeerNode is the name of the node at the other end of a mesh connection, ""
// if c is none.
func PeerNode(c net.Conn) string {
	tc, ok := c.(*tls.Conn)
	if !ok {
		return ""
	}
	state := tc.ConnectionState()
	return NodeOf(&state)
}

// NodeOf is PeerNode for a connection's TLS state, such as http.Request.TLS.
func NodeOf(state *tls.ConnectionState) string {
	if state == nil || len(state.PeerCertificates) == 0 {
		return ""
	}
	id, err := identify(state.PeerCertificates[0])
	if err != nil || id.role != nodeRole {
		return ""
	}
	return id.name
}
