package pki

import (
	"archive/tar"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"bellwether/controller/mesh"
)

// ClusterFile tells which cluster a bundle is for.
const ClusterFile = "cluster.json"

// Cluster is the identity of a cluster.
type Cluster struct {
	ID   string `json:"cluster_id"`
	Name string `json:"name"`
}

func (c Cluster) validate() error {
	if err := checkName("cluster id", c.ID); err != nil {
		return err
	}
	// X.520 allows 64 characters in an organization name.
	if c.Name == "" || len(c.Name) > 64 || strings.TrimSpace(c.Name) != c.Name ||
		strings.ContainsFunc(c.Name, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return fmt.Errorf("cluster name %q is not 1 to 64 bytes of printable text", c.Name)
	}
	return nil
}

// Bundle is all that another machine needs to become a node: the cluster, the
// CA's certificate, its own certificate and key. It holds a secret.
type Bundle struct {
	Cluster Cluster
	Node    string // name in the certificate
	CA      []byte // PEM
	Cert    []byte
	key     []byte
}

// IssueBundle issues a certificate for a node, as IssueNode does, and packs it.
func IssueBundle(ca *CA, node string, ips []netip.Addr) (*Bundle, error) {
	cert, key, err := IssueNode(ca, node, ips)
	if err != nil {
		return nil, err
	}
	return &Bundle{Cluster: ca.Cluster, Node: node, CA: ca.CertPEM(), Cert: cert, key: key}, nil
}

// String shows everything but the key.
func (b Bundle) String() string {
	return fmt.Sprintf("{node %s of cluster %s (%s)}", b.Node, b.Cluster.Name, b.Cluster.ID)
}

func (b *Bundle) files() ([]file, error) {
	cluster, err := json.MarshalIndent(b.Cluster, "", "  ")
	if err != nil {
		return nil, err
	}
	return []file{
		{NodeKeyFile, b.key, 0o600},
		{NodeFile, b.Cert, 0o644},
		{ClusterFile, append(cluster, '\n'), 0o644},
		{CAFile, b.CA, 0o644}, // the last: it makes the directory a node's
	}, nil
}

// WriteDir writes the bundle's files into a directory.
func (b *Bundle) WriteDir(dir string) error {
	files, err := b.files()
	if err == nil {
		err = writeNew(dir, files...)
	}
	if err != nil {
		return fmt.Errorf("write bundle for node %s: %w", b.Node, err)
	}
	return nil
}

// Vacant says why WriteDir would refuse a directory. One that is not there yet
// is vacant.
func Vacant(dir string) error {
	files, err := new(Bundle).files()
	if err != nil {
		return err
	}
	return makeRoom(dir, files, false)
}

// WriteTar writes the bundle as a tar archive.
func (b *Bundle) WriteTar(w io.Writer) error {
	files, err := b.files()
	if err != nil {
		return fmt.Errorf("write bundle for node %s: %w", b.Node, err)
	}
	out := tar.NewWriter(w)
	for _, f := range files {
		if err := out.WriteHeader(&tar.Header{Name: f.name, Mode: int64(f.mode), Size: int64(len(f.content)), Format: tar.FormatUSTAR}); err != nil {
			return fmt.Errorf("write bundle for node %s: %w", b.Node, err)
		}
		if _, err := out.Write(f.content); err != nil {
			return fmt.Errorf("write bundle for node %s: %w", b.Node, err)
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write bundle for node %s: %w", b.Node, err)
	}
	return nil
}

var bundleFiles = []string{CAFile, NodeFile, NodeKeyFile, ClusterFile}

// ReadDir reads a bundle that WriteDir wrote, and checks that its parts belong
// together.
func ReadDir(dir string) (*Bundle, error) {
	parts := make(map[string][]byte)
	for _, name := range bundleFiles {
		text, err := readSmall(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("read bundle: %w", err)
		}
		parts[name] = text
	}
	b, err := assemble(parts)
	if err != nil {
		return nil, fmt.Errorf("read bundle %s: %w", dir, err)
	}
	return b, nil
}

// ReadTar reads a bundle that WriteTar wrote, and checks that its parts belong
// together. Other files in it are refused.
func ReadTar(r io.Reader) (*Bundle, error) {
	parts := make(map[string][]byte)
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read bundle: %w", err)
		}
		if parts[h.Name] != nil || !slices.Contains(bundleFiles, h.Name) {
			return nil, fmt.Errorf("read bundle: unexpected file %q", h.Name)
		}
		if h.Size > maxFile {
			return nil, fmt.Errorf("read bundle: %q is larger than %d bytes", h.Name, maxFile)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("read bundle: %w", err)
		}
		parts[h.Name] = append([]byte{}, text...)
	}
	b, err := assemble(parts)
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	return b, nil
}

// assemble makes a bundle of files, and believes none of them by itself.
func assemble(parts map[string][]byte) (*Bundle, error) {
	for _, name := range bundleFiles {
		if _, ok := parts[name]; !ok {
			return nil, fmt.Errorf("%s is missing", name)
		}
	}
	b := &Bundle{CA: parts[CAFile], Cert: parts[NodeFile], key: parts[NodeKeyFile]}
	dec := json.NewDecoder(bytes.NewReader(parts[ClusterFile]))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b.Cluster); err != nil {
		return nil, fmt.Errorf("%s: %w", ClusterFile, err)
	}
	if err := b.Cluster.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", ClusterFile, err)
	}
	return b, b.check()
}

// check verifies that key, certificate, CA and cluster belong together.
func (b *Bundle) check() error {
	block, _ := pem.Decode(b.CA)
	if block == nil {
		return fmt.Errorf("%s: not a certificate in PEM", CAFile)
	}
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("%s: %w", CAFile, err)
	}
	cluster, err := clusterOf(root)
	if err != nil {
		return fmt.Errorf("%s: %w", CAFile, err)
	}
	if cluster != b.Cluster {
		return fmt.Errorf("%s is of cluster %s (%s), %s of cluster %s (%s)", CAFile, cluster.Name, cluster.ID, ClusterFile, b.Cluster.Name, b.Cluster.ID)
	}
	pair, err := tls.X509KeyPair(b.Cert, b.key)
	if err != nil {
		return fmt.Errorf("%s and %s: %w", NodeFile, NodeKeyFile, err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool}); err != nil {
		return fmt.Errorf("%s is not a valid certificate of this CA: %w", NodeFile, err)
	}
	b.Node = mesh.NodeOf(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{pair.Leaf}})
	if b.Node == "" || len(pair.Leaf.URIs) != 1 || pair.Leaf.URIs[0].String() != mesh.NodeURI(b.Cluster.ID, b.Node).String() {
		return fmt.Errorf("%s is not the certificate of a node of cluster %s", NodeFile, b.Cluster.ID)
	}
	return nil
}
