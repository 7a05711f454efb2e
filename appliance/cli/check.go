package cli

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bellwether/appliance/config"
)

func (a *app) configs() *cobra.Command {
	return group("config", "Check a configuration", nil, a.configCheck())
}

func (a *app) configCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check a configuration without starting anything",
		Long: "Check a configuration without starting anything: say what it means, or what is wrong in which\n" +
			"line and what to write instead. Whether addresses are this machine's shows when the node starts.",
		Example:    "  bellwether config check -c n1.yaml",
		SuggestFor: []string{"test", "validate", "lint", "verify", "show"},
		Args:       exactly(),
		RunE: func(*cobra.Command, []string) error {
			cfg, err := config.Load(a.config)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(summary(cfg))
			}
			return a.printSummary(summary(cfg))
		},
	}
}

// configSummary is what a configuration means.
type configSummary struct {
	File        string          `json:"file"`
	OK          bool            `json:"ok"` // always: what is wrong is an error
	Node        string          `json:"node"`
	Isolation   string          `json:"isolation"`
	DataDir     string          `json:"data_dir"`
	AdminSocket string          `json:"admin_socket"`
	Cluster     string          `json:"cluster_address"`
	Controllers []string        `json:"controllers"`
	Domain      string          `json:"domain"`
	Entries     []string        `json:"entries"` // of the P-, I- and S-CSCF; with a second address, of them again
	Workers     []workerSummary `json:"workers"`
	Metrics     string          `json:"metrics"`
	Log         string          `json:"log"`
}

type workerSummary struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
}

func summary(c *config.Config) configSummary {
	s := configSummary{
		File: c.File, OK: true, Node: c.Node.Name, Isolation: string(c.Node.Isolation), DataDir: c.Node.DataDir, AdminSocket: c.AdminSocket(),
		Cluster: c.Cluster.Address.String(), Domain: c.SIP.Domain, Workers: []workerSummary{},
		Metrics: c.Metrics.Listen.String(), Log: strings.ToLower(c.Log.Level.String()) + " " + c.Log.Format,
	}
	for _, m := range c.Cluster.Controllers {
		s.Controllers = append(s.Controllers, m.Name)
	}
	for _, addr := range []netip.Addr{c.SIP.Address, c.SIP.Address6} {
		if !addr.IsValid() {
			continue
		}
		for _, port := range []uint16{c.SIP.PCSCF, c.SIP.ICSCF, c.SIP.SCSCF} {
			s.Entries = append(s.Entries, netip.AddrPortFrom(addr, port).String())
		}
	}
	for _, w := range c.Workers {
		s.Workers = append(s.Workers, workerSummary{w.ID, string(w.Kind)})
	}
	return s
}

func (a *app) printSummary(s configSummary) error {
	var workers []string
	for _, w := range s.Workers {
		workers = append(workers, w.ID+" ("+w.Kind+")")
	}
	fmt.Fprintf(a.out, "%s is ok\n", clean(s.File))
	t := newTable(a.out, "Node", s.Node+", isolation "+s.Isolation)
	t.add("Data", s.DataDir)
	t.add("Admin socket", s.AdminSocket)
	t.add("Cluster", s.Cluster+", controllers "+strings.Join(s.Controllers, " "))
	t.add("Domain", s.Domain)
	for e := range slices.Chunk(s.Entries, 3) {
		t.add("SIP", "P-CSCF "+e[0]+", I-CSCF "+e[1]+", S-CSCF "+e[2])
	}
	t.add("Workers", strings.Join(workers, " "))
	t.add("Metrics", s.Metrics)
	t.add("Log", s.Log)
	return t.end()
}
