// Package localcluster runs a whole cluster on one machine: real nodes as
// processes of their own, each on a loopback address of its own. The demo and
// the acceptance tests stand on it.
//
// It writes a CA, certificates and a configuration per node into a directory,
// starts `bellwether node` for each, and can stop, kill and start them again.
// It knows nothing of SIP.
//
// Failure modes: an address in use or a node that does not start is an error
// with the last lines that the node logged. The nodes die with this process
// unless they are detached.
package localcluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bellwether/appliance/identity"
	"bellwether/appliance/pki"
	"bellwether/controller/api"
)

// NodeSpec is one node.
type NodeSpec struct {
	Name     string
	Address  netip.Addr // for everything: SIP, cluster port, metrics
	Address6 netip.Addr // for SIP over IPv6 beside IPv4; may be left out
	Workers  []string   // worker ids; the first letter tells the kind: p, i, s
}

// Spec is a cluster. Isolation, Detached, SIP and Flood may be left out.
type Spec struct {
	Dir       string // created if it is not there; nothing in it is replaced
	Binary    string // the bellwether program
	Domain    string
	Nodes     []NodeSpec // all are controllers: 1, 3 or 5
	PortP     uint16     // SIP entries, the same on every node
	PortI     uint16
	PortS     uint16
	PortNode  uint16   // cluster port
	PortHTTP  uint16   // metrics
	Isolation string   // process or none; empty: process
	Detached  bool     // the nodes outlive this process
	SIP       []string // further lines of the sip section, such as "min_expires: 2"
	Bare      bool     // write no CA and no certificates: the nodes cannot start before they get some
	Flood     []string // lines of the flood section, such as "per_source: 100"
}

// Cluster is a running cluster.
type Cluster struct {
	Spec  Spec
	ID    string
	Nodes []*Node
}

// Create writes the files of a cluster, and starts nothing.
func Create(spec Spec) (*Cluster, error) {
	if err := checkPorts(spec); err != nil {
		return nil, err
	}
	c := &Cluster{Spec: spec, ID: strings.ToLower(rand.Text()[:12])}
	ca, err := pki.CreateCA(c.ID, spec.Domain)
	if err != nil {
		return nil, fmt.Errorf("create the cluster: %w", err)
	}
	for i, ns := range spec.Nodes {
		n := &Node{spec: spec, NodeSpec: ns, dir: filepath.Join(spec.Dir, ns.Name)}
		n.Admin = api.New(n.AdminSocket())
		if spec.Bare {
			err = n.configure()
		} else {
			err = n.create(ca, i == 0)
		}
		if err != nil {
			return nil, fmt.Errorf("create the cluster: %w", err)
		}
		c.Nodes = append(c.Nodes, n)
	}
	if spec.Bare {
		c.ID = "" // who makes the certificates gives one
	}
	return c, nil
}

// create writes the files of a node; the first one keeps the CA.
func (n *Node) create(ca *pki.CA, first bool) error {
	dir := identity.Dir(n.DataDir())
	if first {
		if err := ca.Save(identity.CADir(n.DataDir())); err != nil {
			return err
		}
	}
	b, err := pki.IssueBundle(ca, n.Name, []netip.Addr{n.Address})
	if err != nil {
		return err
	}
	if err := b.WriteDir(dir); err != nil {
		return err
	}
	return n.configure()
}

// configure writes the configuration of a node.
func (n *Node) configure() error {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(n.ConfigFile(), []byte(n.config()), 0o600)
}

// checkPorts says which address is in use before anything is written.
func checkPorts(spec Spec) error {
	for _, n := range spec.Nodes {
		tcp := []netip.AddrPort{netip.AddrPortFrom(n.Address, spec.PortNode), netip.AddrPortFrom(n.Address, spec.PortHTTP)}
		for _, a := range n.sip(spec) {
			l, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
			if err != nil {
				return inUse("UDP", a, err)
			}
			l.Close()
			tcp = append(tcp, a)
		}
		for _, a := range tcp {
			l, err := net.Listen("tcp", a.String())
			if err != nil {
				return inUse("TCP", a, err)
			}
			l.Close()
		}
	}
	return nil
}

// sip are the addresses of a node's SIP entries.
func (n NodeSpec) sip(spec Spec) (out []netip.AddrPort) {
	for _, a := range []netip.Addr{n.Address, n.Address6} {
		for _, port := range []uint16{spec.PortP, spec.PortI, spec.PortS} {
			if a.IsValid() {
				out = append(out, netip.AddrPortFrom(a, port))
			}
		}
	}
	return out
}

func inUse(network string, a netip.AddrPort, err error) error {
	if op := new(net.OpError); errors.As(err, &op) {
		err = op.Err // it names network and address once more
	}
	return fmt.Errorf("%s %s cannot be used: %w; stop what uses it (ss -ulntp shows it), or is another demo running?", network, a, err)
}

// Start starts every node. Where one fails, those before it run: see Stop.
func (c *Cluster) Start() error {
	for _, n := range c.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Node returns a node by name, nil if there is none.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// WaitReady returns when every node serves: a leader is known, every worker is
// connected to every node, and SIP is answered. It is an error if one ends.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for _, n := range c.Nodes {
		for {
			err := c.ready(ctx, n)
			if err == nil {
				break
			}
			for _, n := range c.Nodes {
				if !n.running() {
					return fmt.Errorf("node %s ended; its last log lines:\n%s", n.Name, n.LogTail(8))
				}
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("node %s is not ready: %w; its last log lines:\n%s", n.Name, err, n.LogTail(8))
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

func (c *Cluster) ready(ctx context.Context, n *Node) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	st, err := n.Admin.Status(ctx)
	if err != nil {
		return err
	}
	want := 0
	for _, s := range c.Spec.Nodes {
		want += len(s.Workers)
	}
	up := slices.DeleteFunc(slices.Clone(st.Workers), func(w api.Worker) bool { return !w.Connected })
	switch {
	case st.Leader == "":
		return errors.New("no leader yet")
	case len(up) < want:
		return fmt.Errorf("%d of %d workers are connected", len(up), want)
	}
	return n.readyz(ctx)
}

// Leader asks the nodes who leads; "" if none knows.
func (c *Cluster) Leader(ctx context.Context) string {
	for _, n := range c.Nodes {
		if st, err := n.Admin.Status(ctx); err == nil && st.Leader != "" {
			return st.Leader
		}
	}
	return ""
}

// Stop stops every node and returns when all have ended.
func (c *Cluster) Stop() error {
	var errs []error
	for _, n := range c.Nodes {
		n.terminate()
	}
	for _, n := range c.Nodes {
		errs = append(errs, n.Stop())
	}
	return errors.Join(errs...)
}
