package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"bellwether/controller/mesh"
)

const (
	newSuffix    = ".new"
	nextKeyFile  = NodeKeyFile + newSuffix // the key of a node.pem that was just replaced
	nextNodeFile = NodeFile + newSuffix
	loadAttempts = 3
)

// LoadNode reads node.pem and node.key from dir. Called for every handshake,
// it makes a renewed certificate take effect without a restart.
func LoadNode(dir string) (*tls.Certificate, error) {
	var err error
	for range loadAttempts { // more than one only beside a Replace
		for _, key := range []string{NodeKeyFile, nextKeyFile} {
			pair, loadErr := tls.LoadX509KeyPair(filepath.Join(dir, NodeFile), filepath.Join(dir, key))
			if loadErr == nil {
				return &pair, nil
			}
			if key == NodeKeyFile {
				err = loadErr
			}
		}
	}
	return nil, fmt.Errorf("load node certificate: %w", explain(err, dir, NodeFile, NodeKeyFile))
}

// Replace puts the bundle's certificate and key in the place of those in dir,
// which must be of the same node and CA. Whoever loads meanwhile gets the old
// pair or the new one.
func (b *Bundle) Replace(dir string) error {
	if err := b.replace(dir); err != nil {
		return fmt.Errorf("replace the certificate of node %s: %w", b.Node, err)
	}
	return nil
}

func (b *Bundle) replace(dir string) error {
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	ca, err := readSmall(filepath.Join(dir, CAFile))
	if err != nil {
		return err
	}
	if !bytes.Equal(ca, b.CA) {
		return fmt.Errorf("%s is of another CA", filepath.Join(dir, CAFile))
	}
	name, err := NodeName(dir)
	if err == nil && name != b.Node {
		return fmt.Errorf("%s is node %s's", filepath.Join(dir, NodeFile), name)
	}
	// If an earlier attempt was cut short, its key belongs to the certificate
	// that is there, and must not be lost before that.
	if _, err := tls.LoadX509KeyPair(filepath.Join(dir, NodeFile), filepath.Join(dir, nextKeyFile)); err == nil {
		if err := os.Rename(filepath.Join(dir, nextKeyFile), filepath.Join(dir, NodeKeyFile)); err != nil {
			return err
		}
	}
	for _, f := range []file{{nextKeyFile, b.key, 0o600}, {nextNodeFile, b.Cert, 0o644}} {
		path := filepath.Join(dir, f.name)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := writeFile(path, f); err != nil {
			return err
		}
	}
	if err := os.Rename(filepath.Join(dir, nextNodeFile), filepath.Join(dir, NodeFile)); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, nextKeyFile), filepath.Join(dir, NodeKeyFile)); err != nil {
		return err
	}
	return lock.Sync()
}

// Certificate is what a node's certificate says.
type Certificate struct {
	Node      string
	Role      string
	NotBefore time.Time
	NotAfter  time.Time
}

// RenewAt is when two thirds of the certificate's lifetime are over.
func (c Certificate) RenewAt() time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) / 3 * 2)
}

// Due reports whether the certificate is to be renewed: two thirds of its
// lifetime are over, or it has not begun.
func (c Certificate) Due(now time.Time) bool { return !now.Before(c.RenewAt()) || c.Early(now) }

// Overdue reports whether the certificate ought to have been renewed for
// longer than a tenth of its lifetime.
func (c Certificate) Overdue(now time.Time) bool {
	return now.After(c.RenewAt().Add(c.NotAfter.Sub(c.NotBefore) / 10))
}

// Stale is Overdue of a certificate that a connection was made with: such a
// connection may live on for a while when its certificate has been renewed.
func (c Certificate) Stale(now time.Time) bool {
	return now.After(c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 10))
}

// Expired reports whether the certificate has run out.
func (c Certificate) Expired(now time.Time) bool { return now.After(c.NotAfter) }

// Early reports whether the certificate is not good yet: the clock was ahead
// when it was made, or is behind now.
func (c Certificate) Early(now time.Time) bool { return now.Before(c.NotBefore) }

// ReadNode reads what the certificate in dir says.
func ReadNode(dir string) (Certificate, error) {
	pair, err := LoadNode(dir)
	if err != nil {
		return Certificate{}, err
	}
	c := certificateOf(pair.Leaf)
	if c.Node == "" {
		return Certificate{}, fmt.Errorf("load node certificate: %s: not a node's certificate", filepath.Join(dir, NodeFile))
	}
	return c, nil
}

func certificateOf(cert *x509.Certificate) Certificate {
	c := Certificate{
		Node: mesh.NodeOf(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}), Role: Controller,
		NotBefore: cert.NotBefore, NotAfter: cert.NotAfter,
	}
	// Certificates that are older than roles say none.
	if units := cert.Subject.OrganizationalUnit; len(units) > 0 {
		c.Role = units[0]
	}
	return c
}

// PeerCertificate is what the certificate at the other end of a mesh
// connection says; its Node is "" where there is none.
func PeerCertificate(conn net.Conn) Certificate {
	if tc, ok := conn.(*tls.Conn); ok {
		if chain := tc.ConnectionState().PeerCertificates; len(chain) > 0 {
			return certificateOf(chain[0])
		}
	}
	return Certificate{}
}

// NodeName reads from node.pem in dir whose certificate it is.
func NodeName(dir string) (string, error) {
	c, err := ReadNode(dir)
	return c.Node, err
}
