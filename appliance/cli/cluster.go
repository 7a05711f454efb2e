package cli

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bellwether/appliance/config"
	"bellwether/appliance/identity"
	"bellwether/appliance/pki"
)

func (a *app) cluster() *cobra.Command {
	status := a.status() // where some look for it first
	status.Hidden = true
	return group("cluster", "Found a cluster and certify its nodes", nil, a.clusterInit(), a.clusterToken(), a.clusterJoin(), a.clusterRenew(), a.clusterIssue(), status)
}

// caDir holds the cluster's own certificate authority, on the node that founded it.
func caDir(c *config.Config) string { return identity.CADir(c.Node.DataDir) }

func (a *app) clusterInit() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "init",
		Short: "Found a cluster on its first node",
		Long: "Found a cluster on its first node: make the cluster's certificate authority and this node's\n" +
			"certificate, in the data directory that the configuration names. Nothing that exists is overwritten.",
		Example: "  bellwether cluster init -c n1.yaml",
		Args:    exactly(),
		RunE: func(*cobra.Command, []string) error {
			cfg, err := config.Load(a.config)
			if err != nil {
				return err
			}
			if name == "" {
				name = cfg.SIP.Domain
				name = name[:min(len(name), 64)]
			}
			ca, err := found(cfg, name)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(struct {
					Cluster pki.Cluster `json:"cluster"`
					Node    string      `json:"node"`
					CA      string      `json:"ca_dir"`
					PKI     string      `json:"pki_dir"`
				}{ca.Cluster, cfg.Node.Name, caDir(cfg), identity.Dir(cfg.Node.DataDir)})
			}
			fmt.Fprintf(a.out, "cluster %s (%s) is founded; its key is in %s, keep a copy in a safe place\n", clean(ca.Name), ca.ID, caDir(cfg))
			for _, m := range cfg.Cluster.Controllers {
				if m.Name != cfg.Node.Name {
					fmt.Fprintf(a.out, "next: bellwether cluster token %s -c %s\n", m.Name, a.config)
				}
			}
			fmt.Fprintf(a.out, "then: bellwether node -c %s\n", a.config)
			return nil
		},
	}
	c.Flags().StringVar(&name, "name", "", "`NAME` of the cluster, for people (default: the SIP domain)")
	return c
}

// found makes what is not there yet, so that an attempt that was cut short can
// be repeated.
func found(cfg *config.Config, name string) (*pki.CA, error) {
	dir := identity.Dir(cfg.Node.DataDir)
	ca, err := pki.LoadCA(caDir(cfg))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if there, err := pki.LoadCluster(dir); err == nil {
			return nil, fmt.Errorf("this node belongs to cluster %s (%s) already; give it another node.data_dir, or remove %s, to found a new one", there.Name, there.ID, dir)
		}
		if ca, err = pki.CreateCA(strings.ToLower(rand.Text()), name); err != nil {
			return nil, err
		}
		if err := ca.Save(caDir(cfg)); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		if _, err := pki.LoadCluster(dir); err == nil {
			return nil, fmt.Errorf("cluster %s (%s) is founded already; certify other nodes with bellwether cluster token NODE", ca.Name, ca.ID)
		}
	}
	b, err := pki.IssueBundle(ca, cfg.Node.Name, addresses(cfg.Cluster.Address.Addr(), cfg.SIP.Address))
	if err != nil {
		return nil, err
	}
	return ca, b.WriteDir(dir)
}

// addresses drops doubles.
func addresses(all ...netip.Addr) []netip.Addr {
	var list []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, a := range all {
		if !seen[a] {
			list = append(list, a)
		}
		seen[a] = true
	}
	return list
}

func (a *app) clusterIssue() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "issue NODE",
		Short: "Certify another node without a network",
		Long: "Certify another node of the configuration's cluster.controllers, on the node that founded the\n" +
			"cluster, where the machines cannot reach each other yet; else use bellwether cluster token. The\n" +
			"file that it writes holds the node's key: bring it there by a safe way, run\n" +
			"bellwether cluster join FILE there, and delete it.",
		Example:           "  bellwether cluster issue n2 -c n1.yaml\n  scp n2.tar n2:\n  ssh n2 bellwether cluster join n2.tar",
		Args:              exactly("the name of a NODE"),
		ValidArgsFunction: a.otherNodes,
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := config.Load(a.config)
			if err != nil {
				return err
			}
			b, err := issue(cfg, args[0])
			if err != nil {
				return err
			}
			if out == "" {
				out = args[0] + ".tar"
			}
			if err := writeBundle(b, out); err != nil {
				return err
			}
			if a.json {
				return a.print(struct {
					Cluster pki.Cluster `json:"cluster"`
					Node    string      `json:"node"`
					File    string      `json:"file"`
				}{b.Cluster, b.Node, out})
			}
			fmt.Fprintf(a.out, "%s holds the certificate and key of %s\nnext: bring it to %s and run there: bellwether cluster join %s\n", clean(out), args[0], args[0], clean(filepath.Base(out)))
			return nil
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "write to this `FILE` (default: NODE.tar)")
	return c
}

func issue(cfg *config.Config, node string) (*pki.Bundle, error) {
	m, ca, err := founded(cfg, node)
	if err != nil {
		return nil, err
	}
	return pki.IssueBundle(ca, node, []netip.Addr{m.Address.Addr()})
}

// founded loads the CA, and finds the node that is to be certified.
func founded(cfg *config.Config, node string) (config.Controller, *pki.CA, error) {
	i := slices.IndexFunc(cfg.Cluster.Controllers, func(m config.Controller) bool { return m.Name == node })
	if i < 0 {
		return config.Controller{}, nil, fmt.Errorf("%q is not among cluster.controllers of %s; add it there first", node, cfg.File)
	}
	ca, err := pki.LoadCA(caDir(cfg))
	if errors.Is(err, fs.ErrNotExist) {
		return config.Controller{}, nil, notFounder(cfg)
	}
	return cfg.Cluster.Controllers[i], ca, err
}

func notFounder(cfg *config.Config) error {
	return fmt.Errorf("this node did not found the cluster: there is no %s; run this on the node where you ran bellwether cluster init", caDir(cfg))
}

func writeBundle(b *pki.Bundle, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists; remove it or name another file with --output", path)
	}
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	err = errors.Join(b.WriteTar(f), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
