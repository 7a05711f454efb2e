package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bellwether/appliance/config"
	"bellwether/controller/api"
)

// completer asks for names that may begin as a word does.
type completer func(ctx context.Context, c *api.Client, begun string) ([]string, error)

// completed completes the only argument of a command with what the node knows.
// Who waits at a prompt gets nothing rather than an error.
func (a *app) completed(ask completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := a.client(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		names, err := ask(ctx, c, begun)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return beginning(names, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

func beginning(names []string, begun string) []string {
	var out []string
	for _, n := range names {
		if strings.HasPrefix(n, begun) && clean(n) == n {
			out = append(out, n)
		}
	}
	return out
}

func workerIDs(ctx context.Context, c *api.Client, _ string) ([]string, error) {
	list, err := c.Workers(ctx)
	var ids []string
	for _, w := range list {
		ids = append(ids, w.ID)
	}
	return ids, err
}

// enough is how many names are worth offering.
const enough = 100

func impis(ctx context.Context, c *api.Client, begun string) ([]string, error) {
	page, err := c.Subscribers(ctx, begun, enough)
	var names []string
	for _, s := range page.Subscribers {
		names = append(names, s.IMPI)
	}
	return names, err
}

// registered offers identities without their scheme, which shells split at.
func registered(ctx context.Context, c *api.Client, begun string) ([]string, error) {
	page, err := c.Users(ctx, begun, enough)
	var names []string
	for _, u := range page.Users {
		_, name, _ := strings.Cut(u.Identity, ":")
		names = append(names, name)
	}
	return names, err
}

// otherNodes completes with the other nodes of the configuration.
func (a *app) otherNodes(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	cfg, err := config.Load(a.config)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, m := range cfg.Cluster.Controllers {
		if m.Name != cfg.Node.Name {
			names = append(names, m.Name)
		}
	}
	return beginning(names, begun), cobra.ShellCompDirectiveNoFileComp
}
