package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bellwether/appliance/config"
	"bellwether/appliance/identity"
	"bellwether/appliance/joining"
	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

const (
	tokenGood = 30 * time.Minute
	maxJoined = 1 << 20 // bytes of a bundle
)

func (a *app) clusterToken() *cobra.Command {
	var good time.Duration
	var role, revoke string
	var list bool
	c := &cobra.Command{
		Use:   "token NODE",
		Short: "Make a token with which another machine joins the cluster",
		Long: "Make a token with which another machine becomes a node of the cluster, on the node that founded\n" +
			"it. The token is good once, for this node and role, for the given time, at this node while it runs;\n" +
			"it ends an earlier one of the same node.\n" +
			"It tells the new machine which certificate authority to trust, so bring it there by a way that\n" +
			"nobody can change or read.",
		Example:           "  bellwether cluster token n2 -c n1.yaml\n  bellwether cluster token n2 --for 2h\n  bellwether cluster token --list\n  bellwether cluster token --revoke n2",
		Args:              between(0, "the name of a NODE"),
		ValidArgsFunction: a.otherNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if n := len(args); (list || revoke != "") != (n == 0) || list && revoke != "" {
				return usagef("%s needs the name of a NODE, --list, or --revoke NODE; see %s --help", cmd.CommandPath(), cmd.CommandPath())
			}
			cfg, err := config.Load(a.config)
			if err != nil {
				return err
			}
			if _, err := os.Stat(filepath.Join(caDir(cfg), pki.CAKeyFile)); errors.Is(err, fs.ErrNotExist) {
				return notFounder(cfg)
			} else if err != nil {
				return fmt.Errorf("look for the certificate authority: %w", err)
			}
			book := joining.Book{Dir: caDir(cfg)}
			switch {
			case list:
				return a.listTokens(book)
			case revoke != "":
				return a.revokeToken(book, revoke)
			}
			return a.makeToken(cfg, book, args[0], role, good)
		},
	}
	c.Flags().DurationVar(&good, "for", tokenGood, "how long the token is good, such as 30m or 2h, at most 168h")
	c.Flags().StringVar(&role, "role", pki.Controller, "`ROLE` of the node; every node is a controller")
	c.Flags().BoolVar(&list, "list", false, "list the tokens, without their secrets")
	c.Flags().StringVar(&revoke, "revoke", "", "make the tokens of a `NODE` useless")
	return c
}

func (a *app) makeToken(cfg *config.Config, book joining.Book, node, role string, good time.Duration) error {
	if role != pki.Controller {
		return usagef("there is no role %q; write --role controller", role)
	}
	if good <= 0 || good > joining.Longest {
		return usagef("a token cannot be good for %v; write --for with at most %v", good, joining.Longest)
	}
	_, ca, err := founded(cfg, node)
	if err != nil {
		return err
	}
	if node == cfg.Node.Name {
		return fmt.Errorf("node %s is this one, and is in the cluster; name another of cluster.controllers", node)
	}
	before, err := book.List()
	if err != nil {
		return err
	}
	replaced := slices.ContainsFunc(before, func(e joining.Entry) bool { return e.Node == node && e.State(time.Now()) == "open" })
	text, expires, err := joining.Issue(book, ca, []netip.AddrPort{cfg.Cluster.Address}, node, role, good, time.Now())
	if err != nil {
		return err
	}
	if a.json {
		return a.print(struct {
			Token   string    `json:"token"`
			Node    string    `json:"node"`
			Role    string    `json:"role"`
			Expires time.Time `json:"expires"`
			// Replaced says that another token of the node ended with this.
			Replaced bool `json:"replaced"`
		}{text, node, role, expires, replaced})
	}
	fmt.Fprintln(a.out, text)
	if replaced {
		fmt.Fprintf(a.err, "the token that node %s had is useless now; this one takes its place\n", node)
	}
	fmt.Fprintf(a.err, "good once, for node %s, until %s, while this node runs\nnext, on %s: bellwether cluster join - -c FILE\n(it reads the token from standard input)\n", node, stamp(expires), node)
	return nil
}

func (a *app) listTokens(book joining.Book) error {
	all, err := book.List()
	if err != nil {
		return err
	}
	now := time.Now()
	if a.json {
		type entry struct {
			joining.Entry
			State string `json:"state"` // open, used or expired
		}
		list := []entry{}
		for _, e := range all {
			list = append(list, entry{e, e.State(now)})
		}
		return a.print(list)
	}
	t := newTable(a.out, "NODE", "ROLE", "STATE", "MADE", "EXPIRES")
	for _, e := range all {
		t.add(e.Node, e.Role, e.State(now), stamp(e.Made), stamp(e.Expires))
	}
	return t.end()
}

func (a *app) revokeToken(book joining.Book, node string) error {
	n, err := book.Revoke(node, time.Now())
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("node %s has no token that is still good; 'bellwether cluster token --list' shows all", node)
	}
	if a.json {
		return a.print(struct {
			Node    string `json:"node"`
			Revoked int    `json:"revoked"`
		}{node, n})
	}
	fmt.Fprintf(a.out, "the token of node %s is useless now\n", node)
	return nil
}

func (a *app) clusterJoin() *cobra.Command {
	return &cobra.Command{
		Use:   "join TOKEN|FILE|-",
		Short: "Make this machine a node of a cluster",
		Long: "Make this machine a node of a cluster, with a token that bellwether cluster token printed on the\n" +
			"founder, or with a file that bellwether cluster issue wrote there. With a token, the founder must\n" +
			"run; its identity and this machine's clock are checked first, and the key is made here.\n" +
			"The list of processes shows the command line: give - to read the token from standard input, or the\n" +
			"name of a file that holds it.",
		Example: "  bellwether cluster join - -c n2.yaml < token\n  bellwether cluster join n2.tar -c n2.yaml",
		Args:    exactly("a TOKEN, a FILE that holds one or that bellwether cluster issue wrote, or -"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(a.config)
			if err != nil {
				return err
			}
			from, err := a.joinFrom(args[0])
			if err != nil {
				return err
			}
			old, err := present(cfg)
			if err != nil {
				return err
			}
			var b *pki.Bundle
			if from.byToken {
				b, err = joinByToken(cmd.Context(), cfg, string(from.text), old)
			} else {
				b, err = joinByFile(cfg, args[0], from.text, old)
			}
			if err != nil {
				return err
			}
			if a.json {
				return a.print(struct {
					Cluster pki.Cluster `json:"cluster"`
					Node    string      `json:"node"`
				}{b.Cluster, b.Node})
			}
			then := ""
			if !from.byToken {
				then = "; delete " + clean(args[0])
			}
			fmt.Fprintf(a.out, "this is now node %s of cluster %s (%s)%s\nnext: bellwether node -c %s\n", b.Node, clean(b.Cluster.Name), b.Cluster.ID, then, clean(a.config))
			return nil
		},
	}
}

// joinSource is what join was given: the text of a token, or a bundle.
type joinSource struct {
	byToken bool
	text    []byte
}

func (a *app) joinFrom(arg string) (joinSource, error) {
	if strings.HasPrefix(arg, joining.Prefix) {
		return joinSource{byToken: true, text: []byte(arg)}, nil
	}
	in := a.in
	if arg != "-" {
		f, err := os.Open(arg)
		if errors.Is(err, fs.ErrNotExist) {
			return joinSource{}, fmt.Errorf("%q is neither a token, which begins with %s, nor a file", arg, joining.Prefix)
		}
		if err != nil {
			return joinSource{}, fmt.Errorf("read what to join with: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxJoined))
	if err != nil {
		return joinSource{}, fmt.Errorf("read what to join with: %w", err)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		if arg == "-" {
			arg = "standard input"
		}
		return joinSource{}, fmt.Errorf("%s is empty; give it the token that bellwether cluster token printed", arg)
	}
	byToken := arg == "-" || bytes.HasPrefix(bytes.TrimSpace(text), []byte(joining.Prefix))
	return joinSource{byToken: byToken, text: text}, nil
}

// present is the cluster of a certificate of this node that is there and has
// run out, or was made while a clock was ahead; nil where there is none. One that is good is an error, as is another cluster's.
func present(cfg *config.Config) (*pki.Cluster, error) {
	dir := identity.Dir(cfg.Node.DataDir)
	there, err := pki.LoadCluster(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for a certificate that is there: %w", err)
	}
	cert, err := pki.ReadNode(dir)
	if now := time.Now(); err == nil && cert.Node == cfg.Node.Name && (cert.Expired(now) || cert.Early(now)) {
		return &there, nil
	}
	return nil, fmt.Errorf("this node belongs to cluster %s (%s) already; give it another node.data_dir to join a new one", clean(there.Name), there.ID)
}

// keep writes a bundle, in the place of an old one of the same cluster.
func keep(cfg *config.Config, b *pki.Bundle, old *pki.Cluster) error {
	dir := identity.Dir(cfg.Node.DataDir)
	if old == nil {
		return b.WriteDir(dir)
	}
	if *old != b.Cluster {
		return fmt.Errorf("this node belongs to cluster %s (%s) already, not to %s (%s); give it another node.data_dir to join a new one", clean(old.Name), old.ID, clean(b.Cluster.Name), b.Cluster.ID)
	}
	return b.Replace(dir)
}

func joinByToken(ctx context.Context, cfg *config.Config, text string, old *pki.Cluster) (*pki.Bundle, error) {
	t, err := joining.ParseToken(text)
	if err != nil {
		return nil, err
	}
	if old != nil && old.ID != t.ClusterID {
		return nil, fmt.Errorf("this node belongs to cluster %s (%s) already; give it another node.data_dir to join a new one", clean(old.Name), old.ID)
	}
	// Found out now, a folder that cannot be used costs no token.
	if old == nil {
		if err := pki.Vacant(identity.Dir(cfg.Node.DataDir)); err != nil {
			return nil, fmt.Errorf("look for room for the certificate: %w; move it away if no node needs it", err)
		}
	}
	if err := os.MkdirAll(identity.Dir(cfg.Node.DataDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for the certificate: %w", err)
	}
	all, _ := joining.Members(cfg)
	j, err := joining.Join(ctx, t, joining.Machine{Node: cfg.Node.Name, Role: pki.Controller, Controllers: all})
	if err != nil {
		return nil, fmt.Errorf("join the cluster: %w", err)
	}
	// The mark comes first: a node without it could begin the cluster anew.
	if j.Begun {
		if err := identity.MarkBegun(cfg.Node.DataDir); err != nil {
			return nil, err
		}
	}
	return j.Bundle, keep(cfg, j.Bundle, old)
}

func joinByFile(cfg *config.Config, path string, file []byte, old *pki.Cluster) (*pki.Bundle, error) {
	b, err := pki.ReadTar(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("%w; %s is not a file that bellwether cluster issue wrote", err, path)
	}
	if b.Node != cfg.Node.Name {
		return nil, fmt.Errorf("%s is for node %s, but %s is for node %s; run this on %s", path, b.Node, cfg.File, cfg.Node.Name, b.Node)
	}
	return b, keep(cfg, b, old)
}

func (a *app) clusterRenew() *cobra.Command {
	return &cobra.Command{
		Use:   "renew",
		Short: "Renew this node's certificate now",
		Long: "Renew this node's certificate now. A node does so by itself when two thirds of its lifetime are\n" +
			"over; the node that founded the cluster must run. Connections change over by themselves.",
		Example: "  bellwether cluster renew -c n2.yaml",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(a.config)
			if err != nil {
				return err
			}
			r := &joining.Renewer{
				Dir: identity.Dir(cfg.Node.DataDir), CADir: caDir(cfg), Node: cfg.Node.Name, Addresses: []netip.Addr{cfg.Cluster.Address.Addr()},
			}
			// Where the CA is, also a certificate that is no longer good will do.
			if !joining.Founder(r.CADir) {
				id, err := identity.Load(cfg.Node.DataDir, cfg.Node.Name)
				if err != nil {
					return err
				}
				m, err := mesh.Dialer(id.Mesh("", slog.New(slog.DiscardHandler)))
				if err != nil {
					return err
				}
				defer m.Close()
				_, r.Others = joining.Members(cfg)
				r.Dial = m.Dial
			}
			cert, err := r.Renew(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.print(struct {
					Node    string    `json:"node"`
					Expires time.Time `json:"expires"`
				}{cert.Node, cert.NotAfter})
			}
			fmt.Fprintf(a.out, "the certificate of node %s is good until %s\n", cert.Node, stamp(cert.NotAfter))
			return nil
		},
	}
}
