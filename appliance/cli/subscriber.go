package cli

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"bellwether/controller/api"
)

func (a *app) subscribers() *cobra.Command {
	return group("subscriber", "Provision subscribers", []string{"subscribers", "hss"},
		a.subscriberAdd(), a.subscriberList(), a.subscriberShow(), a.subscriberRemove(), a.subscriberImport(), a.subscriberExport())
}

func (a *app) subscriberAdd() *cobra.Command {
	var secret secretFlags
	var realm string
	var replace bool
	c := &cobra.Command{
		Use:   "add IMPI [IMPU...]",
		Short: "Add a subscriber",
		Long: "Add a subscriber: its private identity (IMPI) and its public ones (IMPU), by default sip:IMPI.\n" +
			"All public identities are registered together; | between them begins another registration set,\n" +
			"! before one bars it. The password is asked for, and only hashes of it leave this command.",
		Example: "  bellwether subscriber add alice@example.org\n" +
			"  bellwether subscriber add alice@example.org sip:alice@example.org tel:+4930123456 '|' sip:desk@example.org\n" +
			"  pass show alice | bellwether subscriber add alice@example.org --password-stdin",
		Args: atLeastIMPI,
		RunE: a.ask(func(ctx context.Context, c *api.Client, args []string) error {
			s := api.NewSubscriber{IMPI: args[0], Realm: realm}
			if s.Realm == "" {
				s.Realm = realmOf(s.IMPI)
			}
			impus := strings.Join(args[1:], " ")
			if impus == "" {
				impus = "sip:" + s.IMPI
			}
			var err error
			if s.Identities, err = identities(impus); err != nil {
				return &usageError{err.Error()}
			}
			// Nobody should type a password for what is refused anyway.
			probe := s
			probe.HA1 = credentials(s.IMPI, s.Realm, "")
			if err := probe.Check(); err != nil {
				return &usageError{err.Error()}
			}
			if s.HA1, err = a.secret(ctx, secret, s.IMPI, s.Realm); err != nil {
				return err
			}
			if err := s.Check(); err != nil {
				return err
			}
			if err := c.AddSubscriber(ctx, s, replace); err != nil {
				return err
			}
			if a.json {
				return a.print(struct {
					IMPI       string         `json:"impi"`
					Realm      string         `json:"realm"`
					Identities []api.Identity `json:"identities"`
				}{s.IMPI, s.Realm, s.Identities})
			}
			fmt.Fprintf(a.out, "%s is stored with %s\n", clean(s.IMPI), clean(notation(s.Identities)))
			return nil
		}),
	}
	f := c.Flags()
	f.BoolVar(&secret.password, "password-stdin", false, "read the password from standard input")
	f.BoolVar(&secret.ha1, "ha1-stdin", false, "read HA1 values from standard input, as MD5=HEX and SHA-256=HEX")
	f.StringVar(&realm, "realm", "", "digest `REALM` (default: the realm of the IMPI)")
	f.BoolVar(&replace, "replace", false, "overwrite a subscriber that exists")
	return c
}

func atLeastIMPI(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("%s needs the IMPI of a subscriber, such as alice@example.org; see %s --help", c.CommandPath(), c.CommandPath())
	}
	return nil
}

func (a *app) subscriberList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the subscribers", Args: exactly(),
		RunE: a.askWithin(moveIn, func(ctx context.Context, c *api.Client, _ []string) error {
			all := []api.Subscriber{}
			for after := ""; ; {
				page, err := c.Subscribers(ctx, after, api.MaxPage)
				if err != nil {
					return err
				}
				all = append(all, page.Subscribers...)
				if after = page.Next; after == "" {
					break
				}
			}
			if a.json {
				return a.print(all)
			}
			return a.printSubscribers(all)
		}),
	}
}

func (a *app) printSubscribers(all []api.Subscriber) error {
	t := newTable(a.out, "IMPI", "REALM", "SECRET", "IDENTITIES")
	for _, s := range all {
		t.add(s.IMPI, s.Realm, strings.Join(s.Algorithms, " "), notation(s.Identities))
	}
	return t.end()
}

func (a *app) subscriberShow() *cobra.Command {
	return &cobra.Command{
		Use: "show IMPI", Short: "Show a subscriber, named by its IMPI or a public identity", Args: exactly("the IMPI or a public identity of a subscriber"),
		RunE: show(a, func(ctx context.Context, c *api.Client, args []string) (api.Subscriber, error) {
			name := args[0]
			if strings.HasPrefix(name, "+") || strings.Contains(name, ":") {
				var err error
				if name, err = canonical(withScheme(name)); err != nil {
					return api.Subscriber{}, &usageError{err.Error()}
				}
			}
			return c.Subscriber(ctx, name)
		}, func(s api.Subscriber) error { return a.printSubscribers([]api.Subscriber{s}) }),
	}
}

func (a *app) subscriberRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove IMPI", Short: "Remove a subscriber", Args: exactly("the IMPI of a subscriber"), SuggestFor: []string{"delete", "rm"},
		RunE: a.ask(func(ctx context.Context, c *api.Client, args []string) error {
			if err := c.RemoveSubscriber(ctx, args[0]); err != nil {
				return err
			}
			if a.json {
				return a.print(struct {
					Removed string `json:"removed"`
				}{args[0]})
			}
			fmt.Fprintf(a.out, "%s is removed\n", clean(args[0]))
			return nil
		}),
	}
}

func (a *app) subscriberImport() *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE.csv",
		Short: "Import subscribers, all or none",
		Long: "Import subscribers from a CSV file (- for standard input). Its first line names the columns:\n\n" +
			"  impi        alice@example.org\n" +
			"  impus       public identities, a space between them; | begins another registration set, ! bars one\n" +
			"  password    or one of ha1_md5 and ha1_sha256, or both: hex digits\n" +
			"  realm       may be left out: the realm of the IMPI\n\n" +
			"If any line is wrong, nothing is imported. Subscribers that exist are replaced.",
		Args: exactly("a FILE.csv"),
		RunE: a.askWithin(moveIn, func(ctx context.Context, c *api.Client, args []string) error {
			all, err := a.readImport(args[0])
			if err != nil {
				return err
			}
			res, err := c.ImportSubscribers(ctx, all)
			var e *api.Error
			switch {
			case errors.As(err, &e) && e.Code != api.Unreachable:
				return api.Errorf(e.Code, "%s: nothing was imported: %s", args[0], e.Message).Advise(e.WhatToDo)
			case err != nil:
				return err
			case a.json:
				return a.print(res)
			}
			fmt.Fprintf(a.out, "%d subscribers added, %d replaced\n", res.Added, res.Replaced)
			return nil
		}),
	}
}

func (a *app) subscriberExport() *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Print all subscribers as CSV, without their secrets",
		Long:  "Print all subscribers as CSV with the columns impi, impus and realm, or with --json one object\na line. Secrets never leave the cluster: add a password or HA1 column before you import the file.",
		Args:  exactly(),
		RunE: a.askWithin(moveIn, func(ctx context.Context, c *api.Client, _ []string) error {
			if a.json {
				enc := json.NewEncoder(a.out)
				return c.ExportSubscribers(ctx, func(s api.Subscriber) error { return enc.Encode(s) })
			}
			w := csv.NewWriter(a.out)
			w.Write([]string{"impi", "impus", "realm"})
			if err := c.ExportSubscribers(ctx, func(s api.Subscriber) error {
				return w.Write([]string{s.IMPI, notation(s.Identities), s.Realm})
			}); err != nil {
				return err
			}
			w.Flush()
			return w.Error()
		}),
	}
}
