package cli

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bellwether/controller/api"
)

func (a *app) bans() *cobra.Command {
	c := plural(group("ban", "Ban and allow addresses", []string{"block", "firewall", "blacklist", "whitelist", "flood"}, a.banAdd(), a.banRemove()), "bans", a.banList())
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			if _, err := api.ParsePrefix(args[0]); err == nil {
				return usagef("there is no command %q; write bellwether ban add %s", "ban "+args[0], args[0])
			}
		}
		return noSuchCommand(c, args)
	}
	return c
}

func (a *app) banList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List what is banned and allowed", Args: exactly(),
		Long: "List what operators banned and allowed on all nodes, then what each node bans by itself because it\n" +
			"exceeded a limit. HITS are the messages and connections that a ban refused.",
		RunE: show(a, func(ctx context.Context, c *api.Client, _ []string) (api.BanList, error) { return c.Bans(ctx) }, a.printBans),
	}
}

func (a *app) printBans(l api.BanList) error {
	t := newTable(a.out, "ADDRESS", "WHAT", "BY", "SINCE", "UNTIL", "HITS", "REASON")
	for _, b := range l.Bans {
		what, by, hits := "banned", "operator", fmt.Sprint(b.Hits)
		if b.Allow {
			what, hits = "allowed", ""
		}
		if b.Automatic {
			by = "node " + b.Node
		}
		t.add(short(b.Prefix), what, by, stamp(b.Since), stamp(b.Until), hits, b.Reason)
	}
	if err := t.end(); err != nil {
		return err
	}
	if len(l.Silent) > 0 {
		fmt.Fprintf(a.out, "\nNot known is what is banned by itself, and the hits, of: %s\n", clean(strings.Join(l.Silent, ", ")))
	}
	return nil
}

// short is a prefix as people write it.
func short(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func (a *app) banAdd() *cobra.Command {
	var b api.NewBan
	var lasts time.Duration
	c := &cobra.Command{
		Use: "add ADDRESS", Short: "Ban an address or a network, or allow it", Args: exactly("an address or a network, such as 192.0.2.7 or 2001:db8::/32"),
		Long: "Ban an address or a network on all nodes, registered phones there included: nothing from it is\n" +
			"looked at any more. With --allow it is never limited nor banned instead, as is right for trunks,\n" +
			"load generators and addresses that many phones share. Where the two overlap, what is allowed wins.\n" +
			"An address that is given again takes the new settings.",
		Example: "  bellwether ban add 192.0.2.7 --for 1h --reason \"guesses passwords\"\n" +
			"  bellwether ban add 2001:db8::/32\n  bellwether ban add --allow 198.51.100.0/24",
		SuggestFor: []string{"put", "set", "create", "allow", "new"},
		RunE: a.askWithin(changeIn, func(ctx context.Context, c *api.Client, args []string) error {
			var err error
			if b.Prefix, err = api.ParsePrefix(args[0]); err != nil {
				return &usageError{err.Error()}
			}
			if lasts < 0 || lasts%time.Second != 0 {
				return usagef("--for is %v; write whole seconds, minutes or hours, such as 1h", lasts)
			}
			b.Seconds = int64(lasts / time.Second)
			if err := b.Check(); err != nil {
				return &usageError{err.Error()}
			}
			stored, err := c.AddBan(ctx, b)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(stored)
			}
			what, until := "banned", "it is removed"
			if stored.Allow {
				what = "allowed"
			}
			if !stored.Until.IsZero() {
				until = stamp(stored.Until)
			}
			fmt.Fprintf(a.out, "%s is %s on all nodes until %s\n", short(stored.Prefix), what, until)
			return nil
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.BoolVar(&b.Allow, "allow", false, "never limit or ban it")
	f.DurationVar(&lasts, "for", 0, "how long it lasts, a `TIME` such as 30m or 24h (default: until it is removed)")
	f.StringVar(&b.Reason, "reason", "", "a `TEXT` that the list shows")
	f.BoolVar(&b.Force, "force", false, "also for everybody, or to ban a node of the cluster")
	return c
}

func (a *app) banRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove ADDRESS", Short: "End a ban or an allowance", Args: exactly("an address or a network, as bellwether ban list shows it"),
		Long: "End what an operator banned or allowed for exactly this address or network, and what nodes banned\n" +
			"within it by themselves.",
		SuggestFor: []string{"delete", "rm", "del", "lift", "clear", "unban"},
		RunE: a.askWithin(changeIn, func(ctx context.Context, c *api.Client, args []string) error {
			p, err := api.ParsePrefix(args[0])
			if err != nil {
				return &usageError{err.Error()}
			}
			u, err := c.RemoveBan(ctx, p)
			if err != nil {
				return err
			}
			if a.json {
				return a.print(u)
			}
			var did []string
			if u.Removed {
				did = append(did, "the operator's entry is removed")
			}
			if u.Automatic > 0 {
				did = append(did, fmt.Sprintf("%d automatic ban%s ended", u.Automatic, ending(u.Automatic)))
			}
			fmt.Fprintf(a.out, "%s: %s\n", short(u.Prefix), strings.Join(did, ", "))
			return nil
		}),
		ValidArgsFunction: a.completed(banned),
	}
}

// banned offers what can be removed.
func banned(ctx context.Context, c *api.Client, _ string) ([]string, error) {
	l, err := c.Bans(ctx)
	var names []string
	for _, b := range l.Bans {
		names = append(names, short(b.Prefix))
	}
	return names, err
}

// ending is what a count adds to its noun.
func ending(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
