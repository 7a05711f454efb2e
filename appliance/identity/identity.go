// Package identity is who a node is: the cluster that it belongs to and its
// certificate, read from the pki folder of its data directory.
//
// It creates nothing and changes nothing. A directory that is not there, or
// holds the certificate of another node, is an error that names the command
// which makes it right.
package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

// Identity is a node's proof of who it is.
type Identity struct {
	ClusterID   string
	ClusterName string
	Node        string

	dir string
	ca  *x509.CertPool
}

// Dir is the pki folder in a data directory.
func Dir(dataDir string) string { return filepath.Join(dataDir, "pki") }

// Load reads the identity of a node and checks that it is that node's.
func Load(dataDir, node string) (*Identity, error) {
	dir := Dir(dataDir)
	c, err := pki.LoadCluster(dir)
	_, certified := os.Stat(filepath.Join(dir, pki.NodeFile))
	if errors.Is(err, fs.ErrNotExist) && errors.Is(certified, fs.ErrNotExist) {
		return nil, fmt.Errorf("node %s belongs to no cluster yet: %s has no certificates; run 'bellwether cluster init' on the first node, or here 'bellwether cluster join %s.tar' with the file that 'bellwether cluster issue %s' wrote there", node, dir, node, node)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("read the cluster's certificate: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate: %w; it is the same on every node, so copy it from another", err)
	}
	name, err := pki.NodeName(dir)
	if err != nil {
		return nil, fmt.Errorf("read the node's certificate: %w; issue one with 'bellwether cluster issue %s' on the first node", err, node)
	}
	if name != node {
		return nil, fmt.Errorf("the certificate in %s is node %s's, not node %s's; write node.name: %s, or issue one for %s", dir, name, node, name, node)
	}
	ca, err := pki.LoadPool(dir)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate: %w", err)
	}
	return &Identity{ClusterID: c.ID, ClusterName: c.Name, Node: node, dir: dir, ca: ca}, nil
}

// Mesh is the mesh's configuration for this node at an address. The
// certificate is read anew for each handshake, so that a new one takes effect.
func (id *Identity) Mesh(addr string, log *slog.Logger) mesh.Config {
	return mesh.Config{
		Addr: addr, CA: id.ca, ClusterID: id.ClusterID, NodeName: id.Node, Log: log,
		Certificate: func() (*tls.Certificate, error) { return pki.LoadNode(id.dir) },
	}
}
