// Package identity is who a node is: the cluster that it belongs to and its
// certificate, read from the pki folder of its data directory.
//
// It creates nothing and changes nothing, but for the mark that the cluster has
// begun. A directory that is not there, holds the certificate of another node
// or role, or one that has run out, is an error that names the command which
// makes it right.
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
	"time"

	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

// Identity is a node's proof of who it is.
type Identity struct {
	ClusterID   string
	ClusterName string
	Node        string

	dir    string
	ca     *x509.CertPool
	caCert []byte // DER
}

// Dir is the pki folder in a data directory.
func Dir(dataDir string) string { return filepath.Join(dataDir, "pki") }

// CADir is the folder of the cluster's certificate authority in the data
// directory of the node that founded it.
func CADir(dataDir string) string { return filepath.Join(dataDir, "ca") }

// Load reads the identity of a node and checks that it is that node's.
func Load(dataDir, node string) (*Identity, error) {
	dir := Dir(dataDir)
	c, err := pki.LoadCluster(dir)
	_, certified := os.Stat(filepath.Join(dir, pki.NodeFile))
	if errors.Is(err, fs.ErrNotExist) && (errors.Is(certified, fs.ErrNotExist) || pki.Vacant(dir) == nil) {
		return nil, fmt.Errorf("node %s belongs to no cluster yet: %s has no certificates; run 'bellwether cluster init' on the first node, or here 'bellwether cluster join' with what 'bellwether cluster token %s' prints there", node, dir, node)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("read the cluster's certificate: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate: %w; it is the same on every node, so copy it from another", err)
	}
	cert, err := pki.ReadNode(dir)
	name := cert.Node
	if err != nil {
		return nil, fmt.Errorf("read the node's certificate: %w; issue one with 'bellwether cluster issue %s' on the first node", err, node)
	}
	if name != node {
		return nil, fmt.Errorf("the certificate in %s is node %s's, not node %s's; write node.name: %s, or issue one for %s", dir, name, node, name, node)
	}
	if cert.Role != pki.Controller {
		return nil, fmt.Errorf("the certificate in %s makes this node a %s, but cluster.controllers lists it as a controller; get one with 'bellwether cluster token %s --role controller' on the first node", dir, cert.Role, node)
	}
	if now := time.Now(); cert.Expired(now) {
		return nil, fmt.Errorf("the certificate of node %s ran out on %s; run 'bellwether cluster token %s' on the first node and here 'bellwether cluster join' with what it prints (is the clock right? it is %s)",
			node, cert.NotAfter.UTC().Format(time.DateTime), node, now.UTC().Format(time.DateTime))
	}
	if now := time.Now(); cert.Early(now) {
		return nil, fmt.Errorf("the certificate of node %s is good only from %s, and this machine's clock says %s; set the clock, or, if it is right, run 'bellwether cluster renew' where the cluster was founded, elsewhere 'bellwether cluster join' with what 'bellwether cluster token %s' prints there",
			node, cert.NotBefore.UTC().Format(time.DateTime), now.UTC().Format(time.DateTime), node)
	}
	root, err := pki.LoadCACert(dir)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	return &Identity{ClusterID: c.ID, ClusterName: c.Name, Node: node, dir: dir, ca: pool, caCert: root.Raw}, nil
}

// Dir is where the certificate is read from.
func (id *Identity) Dir() string { return id.dir }

// begunFile marks a node whose cluster has begun.
const begunFile = "begun"

// Begun reports whether this node's cluster is known to have begun: with an
// empty log the node may then only come back to it, never begin it again.
func Begun(dataDir string) bool {
	_, err := os.Stat(filepath.Join(Dir(dataDir), begunFile))
	return err == nil
}

// MarkBegun remembers that this node's cluster has begun.
func MarkBegun(dataDir string) error {
	if Begun(dataDir) {
		return nil
	}
	err := os.WriteFile(filepath.Join(Dir(dataDir), begunFile), nil, 0o600)
	if err == nil {
		err = syncDir(Dir(dataDir))
	}
	if err != nil {
		return fmt.Errorf("mark the cluster as begun: %w", err)
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Mesh is the mesh's configuration for this node at an address. The
// certificate is read anew for each handshake, so that a new one takes effect.
func (id *Identity) Mesh(addr string, log *slog.Logger) mesh.Config {
	return mesh.Config{
		Addr: addr, CA: id.ca, CACert: id.caCert, ClusterID: id.ClusterID, NodeName: id.Node, Log: log,
		Certificate: func() (*tls.Certificate, error) { return pki.LoadNode(id.dir) },
	}
}
