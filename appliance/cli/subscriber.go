package cli

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bellwether/controller/api"
)

func (a *app) subscribers() *cobra.Command {
	return plural(group("subscriber", "Provision subscribers", []string{"hss"},
		a.subscriberAdd(), a.subscriberShow(), a.subscriberRemove(), a.subscriberImport(), a.subscriberExport()), "subscribers", a.subscriberList())
}

const someKnowOnlyMD5 = "Some phones, such as baresip 1.0 of Debian 12, give up at a challenge with SHA-256 even if one\n" +
	"with MD5 follows it: for those, store only MD5 with --algorithm MD5."

func (a *app) subscriberAdd() *cobra.Command {
	var secret secretFlags
	var realm string
	var replace bool
	c := &cobra.Command{
		Use:   "add IMPI [IMPU...]",
		Short: "Add a subscriber",
		Long: "Add a subscriber: its private identity (IMPI) and its public ones (IMPU), by default sip:IMPI.\n" +
			"All public identities are registered together; | between them begins another registration set,\n" +
			"! before one bars it. The password is asked for, and only hashes of it leave this command.\n\n" + someKnowOnlyMD5 + "\n\n" +
			"With --aka the phone has a USIM instead of a password (AKAv1-MD5, Milenage): its key K is asked for,\n" +
			"and OPc or the operator's OP, each of 32 hex digits.",
		Example: "  bellwether subscriber add alice@example.org\n" +
			"  bellwether subscriber add alice@example.org sip:alice@example.org \\\n    tel:+4930123456 '|' sip:desk@example.org\n" +
			"  pass show alice | bellwether subscriber add alice@example.org --password-stdin\n" +
			"  bellwether subscriber add 26201123456@example.org sip:al@example.org --aka\n" +
			"  bellwether subscriber add 26201123456@example.org --aka-stdin < keys\n                                                            # K=... OPc=...",
		Args: atLeastIMPI,
		RunE: a.askWithin(moveIn, func(ctx context.Context, c *api.Client, args []string) error { // time to type
			if err := secret.check(); err != nil {
				return err
			}
			s := api.NewSubscriber{IMPI: args[0], Realm: realm}
			if s.Realm == "" {
				s.Realm = realmOf(s.IMPI)
			}
			var err error
			if s.Identities, err = identities(orDefault(strings.Join(args[1:], " "), s.IMPI)); err != nil {
				return &usageError{err.Error()}
			}
			// Nobody should type a password for what is refused anyway.
			probe := s
			probe.HA1 = secret.algorithms.credentials(s.IMPI, s.Realm, "")
			if err := probe.Check(); err != nil {
				return &usageError{err.Error()}
			}
			if secret.usim() {
				s.AKA, err = a.usim(ctx, secret, s.IMPI)
			} else {
				s.HA1, err = a.secret(ctx, secret, s.IMPI, s.Realm)
			}
			if err != nil {
				return err
			}
			if err := s.Check(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, changeIn)
			defer cancel()
			var old api.Subscriber // best told before it is gone; empty if there is none
			if replace {
				old, _ = c.Subscriber(ctx, s.IMPI)
			}
			if err := c.AddSubscriber(ctx, s, replace); err != nil {
				return late(err, changeIn)
			}
			a.remarks(ctx, c, s, old)
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
	f.Var(&secret.algorithms, "algorithm", whichAlgorithms)
	f.BoolVar(&secret.aka, "aka", false, "ask for K and OPc of a USIM instead of a password")
	f.BoolVar(&secret.akaIn, "aka-stdin", false, "read K and OPc from standard input, as K=HEX and OPc=HEX (or OP=HEX)")
	f.StringVar(&secret.amf, "amf", "", "authentication management field of the USIM, `HEX` (default: "+defaultAMF+")")
	f.StringVar(&realm, "realm", "", "digest `REALM` (default: the realm of the IMPI)")
	f.BoolVar(&replace, "replace", false, "overwrite a subscriber that exists")
	return c
}

// remarks says what may not have been meant: that no phone can register as a
// subscriber without a SIP identity of the home domain, and which identities
// the one had that it took the place of.
func (a *app) remarks(ctx context.Context, c *api.Client, s api.NewSubscriber, old api.Subscriber) {
	lost := slices.DeleteFunc(slices.Clone(old.Identities), func(had api.Identity) bool {
		return slices.ContainsFunc(s.Identities, func(id api.Identity) bool { return id.URI == had.URI })
	})
	if len(lost) > 0 {
		fmt.Fprintf(a.err, "%s had other identities, which are gone: %s\n", clean(s.IMPI), clean(notation(lost)))
	}
	st, err := c.Status(ctx)
	if err != nil || st.Domain == "" {
		return // it is stored, and that is what counts
	}
	if !slices.ContainsFunc(s.Identities, func(id api.Identity) bool { return strings.HasSuffix(strings.ToLower(id.URI), "@"+st.Domain) }) {
		fmt.Fprintf(a.err, "no phone can register as %s: none of its identities is of the domain %s, which this cluster serves\n", clean(s.IMPI), clean(st.Domain))
	}
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
		Long: "List the subscribers, with the digest algorithms for which a secret is stored, and whether they have a\n" +
			"USIM. No secret is shown. With --json it is one array; bellwether subscriber export --json prints one\n" +
			"object a line, as a stream.",
		RunE: list(a, func(ctx context.Context, c *api.Client, after string) ([]api.Subscriber, string, error) {
			page, err := c.Subscribers(ctx, after, api.MaxPage)
			return page.Subscribers, page.Next, err
		}, a.printSubscribers),
	}
}

func (a *app) printSubscribers(all []api.Subscriber) error {
	t := newTable(a.out, "IMPI", "REALM", "SECRET", "AKA", "IDENTITIES")
	for _, s := range all {
		aka := "no"
		if s.AKA != nil {
			aka = "yes (AMF " + s.AKA.AMF + ")"
		}
		t.add(s.IMPI, s.Realm, cmp.Or(strings.Join(s.Algorithms, " "), "-"), aka, notation(s.Identities))
	}
	return t.end()
}

func (a *app) subscriberShow() *cobra.Command {
	return &cobra.Command{
		Use: "show IMPI", Short: "Show a subscriber, named by its IMPI or a public identity", Args: exactly("the IMPI or a public identity of a subscriber"),
		RunE: show(a, func(ctx context.Context, c *api.Client, args []string) (api.Subscriber, error) {
			return subscriber(ctx, c, args[0])
		}, func(s api.Subscriber) error { return a.printSubscribers([]api.Subscriber{s}) }),
		ValidArgsFunction: a.completed(impis),
	}
}

// subscriber finds who an operator means.
func subscriber(ctx context.Context, c *api.Client, name string) (api.Subscriber, error) {
	if strings.HasPrefix(name, "+") || strings.Contains(name, ":") {
		var err error
		if name, err = canonical(withScheme(name)); err != nil {
			return api.Subscriber{}, &usageError{err.Error()}
		}
	}
	return c.Subscriber(ctx, name)
}

func (a *app) subscriberRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove IMPI", Short: "Remove a subscriber, named by its IMPI or a public identity", Args: exactly("the IMPI or a public identity of a subscriber"), SuggestFor: []string{"delete", "rm"},
		RunE: a.askWithin(changeIn, func(ctx context.Context, c *api.Client, args []string) error {
			s, err := subscriber(ctx, c, args[0])
			if err != nil {
				return err
			}
			if err := c.RemoveSubscriber(ctx, s.IMPI); err != nil {
				return err
			}
			if a.json {
				return a.print(struct {
					Removed string `json:"removed"`
				}{s.IMPI})
			}
			fmt.Fprintf(a.out, "%s is removed, with %s\n", clean(s.IMPI), clean(notation(s.Identities)))
			return nil
		}),
		ValidArgsFunction: a.completed(impis),
	}
}

func (a *app) subscriberImport() *cobra.Command {
	var keep algorithms
	c := &cobra.Command{
		Use:   "import FILE.csv",
		Short: "Import subscribers, all or none",
		Long: "Import subscribers from a CSV file (- for standard input). Its first line names the columns:\n\n" +
			"  impi        alice@example.org\n" +
			"  impus       public identities, a space between them; | begins another\n" +
			"              registration set, ! bars one; where there is none: sip:IMPI\n" +
			"  password    or one of ha1_md5 and ha1_sha256, or both: hex digits\n" +
			"  k, opc      of a USIM, instead of a password or beside it: 32 hex digits\n" +
			"              each; op in place of opc\n" +
			"  amf         of the USIM: 4 hex digits; may be left out: " + defaultAMF + "\n" +
			"  realm       may be left out: the realm of the IMPI\n\n" +
			"If any line is wrong, nothing is imported. Subscribers that exist are replaced.\n\n" + someKnowOnlyMD5,
		Args: exactly("a FILE.csv"),
		RunE: a.askWithin(moveIn, func(ctx context.Context, c *api.Client, args []string) error {
			all, err := a.readImport(args[0], keep)
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
			s := "s"
			if res.Added == 1 {
				s = ""
			}
			fmt.Fprintf(a.out, "%d subscriber%s added, %d replaced\n", res.Added, s, res.Replaced)
			return nil
		}),
	}
	c.Flags().Var(&keep, "algorithm", whichAlgorithms)
	return c
}

func (a *app) subscriberExport() *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Print all subscribers as CSV, without their secrets",
		Long: "Print all subscribers as CSV with the columns impi, impus and realm, or with --json one object\n" +
			"a line (JSON lines; bellwether subscriber list --json is one array). Secrets never leave the\n" +
			"cluster: add a password or HA1 column, or k and opc, before you import the file.",
		Args: exactly(),
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
