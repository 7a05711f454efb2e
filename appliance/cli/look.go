package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bellwether/controller/api"
)

// show makes the function of a command that gets something and prints it.
func show[T any](a *app, get func(context.Context, *api.Client, []string) (T, error), print func(T) error) func(*cobra.Command, []string) error {
	return a.ask(func(ctx context.Context, c *api.Client, args []string) error {
		v, err := get(ctx, c, args)
		if err != nil {
			return err
		}
		if a.json {
			return a.print(v)
		}
		return print(v)
	})
}

func (a *app) status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the state of the cluster", Args: exactly(),
		RunE: show(a, func(ctx context.Context, c *api.Client, _ []string) (api.Status, error) { return c.Status(ctx) }, a.printStatus),
	}
}

func (a *app) printStatus(s api.Status) error {
	quorum := "quorum held"
	if !s.Quorum {
		quorum = "NO QUORUM"
	}
	leader := "no leader"
	if s.Leader != "" {
		leader = s.Leader
	}
	fmt.Fprintf(a.out, "Cluster      %s, domain %s\n", clean(s.Cluster), clean(s.Domain))
	fmt.Fprintf(a.out, "Leader       %s, term %d, %s\n", clean(leader), s.Term, quorum)
	fmt.Fprintf(a.out, "Answered by  %s, version %s\n", clean(s.Node), clean(s.Version))
	fmt.Fprintf(a.out, "Users        %d registered, %d subscribers\n", s.Users, s.Subscribers)
	fmt.Fprintf(a.out, "Calls        %d\n\n", s.Calls)
	if err := printNodes(a.out, s.Nodes); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	if err := printWorkers(a.out, s.Workers); err != nil {
		return err
	}
	if len(s.Alarms) > 0 {
		fmt.Fprintln(a.out)
	}
	for _, al := range s.Alarms {
		fmt.Fprintf(a.out, "%s: %s (node %s, since %s); %s\n", strings.ToUpper(clean(al.Severity)), clean(al.Text), clean(al.Node), stamp(al.Since), clean(al.WhatToDo))
	}
	return nil
}

func (a *app) nodeList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the nodes", Args: exactly(),
		RunE: show(a, func(ctx context.Context, c *api.Client, _ []string) ([]api.Node, error) { return c.Nodes(ctx) },
			func(l []api.Node) error { return printNodes(a.out, l) }),
	}
}

func printNodes(w io.Writer, list []api.Node) error {
	t := newTable(w, "NODE", "CLUSTER ADDRESS", "SERVICE ADDRESS", "ROLE", "CONNECTED", "VERSION")
	for _, n := range list {
		role := ""
		switch {
		case n.Leader:
			role = "leader"
		case n.Controller:
			role = "controller"
		}
		t.add(n.Name, n.Address, n.Service, role, yes(n.Connected), n.Version)
	}
	return t.end()
}

func (a *app) workerList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the workers", Args: exactly(),
		RunE: show(a, func(ctx context.Context, c *api.Client, _ []string) ([]api.Worker, error) { return c.Workers(ctx) },
			func(l []api.Worker) error { return printWorkers(a.out, l) }),
	}
}

func (a *app) workerShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a worker", Args: exactly("the ID of a worker"),
		RunE: show(a, func(ctx context.Context, c *api.Client, args []string) (api.Worker, error) {
			return c.Worker(ctx, args[0])
		},
			func(w api.Worker) error { return printWorkers(a.out, []api.Worker{w}) }),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.workerIDs(cmd), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// workerIDs completes; who waits at a prompt gets nothing rather than an error.
func (a *app) workerIDs(cmd *cobra.Command) []string {
	c, err := a.client(cmd)
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	list, err := c.Workers(ctx)
	if err != nil {
		return nil
	}
	var ids []string
	for _, w := range list {
		ids = append(ids, w.ID)
	}
	return ids
}

func printWorkers(w io.Writer, list []api.Worker) error {
	t := newTable(w, "WORKER", "KIND", "NODE", "GROUP", "SERVED BY", "USERS", "CALLS", "LOAD", "CONNECTED")
	for _, x := range list {
		calls := "" // this kind keeps none
		if x.Calls != nil {
			calls = strconv.Itoa(*x.Calls)
		}
		t.add(x.ID, x.Kind, x.Node, x.Group, x.Serving, x.Users, calls, fmt.Sprintf("%.2f", x.Load), yes(x.Connected))
	}
	return t.end()
}

func (a *app) users() *cobra.Command {
	return group("user", "Look at registered users", []string{"users", "registration"}, &cobra.Command{
		Use: "show IDENTITY", Short: "Show a registered user", Args: exactly("the IDENTITY of a user, such as sip:alice@example.org"),
		Example: "  bellwether user show sip:alice@example.org\n  bellwether user show tel:+4930123456",
		RunE: show(a, func(ctx context.Context, c *api.Client, args []string) (api.User, error) {
			id := withScheme(args[0])
			if strings.Contains(id, ":") {
				var err error
				if id, err = canonical(id); err != nil {
					return api.User{}, &usageError{err.Error()}
				}
			}
			return c.User(ctx, id)
		}, a.printUser),
	})
}

func (a *app) printUser(u api.User) error {
	serving := func(s api.Serving) string {
		if s.Serving != s.Home && s.Serving != "" {
			return fmt.Sprintf("%s, served by %s", s.Home, s.Serving)
		}
		return s.Home
	}
	t := newTable(a.out, "Identity", clean(u.Identity))
	t.add("IMPI", u.IMPI)
	t.add("Registered together", strings.Join(u.Identities, " "))
	t.add("P-CSCF", serving(u.PCSCF))
	t.add("S-CSCF", serving(u.SCSCF))
	t.add("Path", strings.Join(u.Path, " "))
	t.add("Service-Route", strings.Join(u.ServiceRoute, " "))
	t.add("Expires", stamp(u.Expires))
	for _, c := range u.Contacts {
		t.add("Contact", fmt.Sprintf("%s via %s, q=%g, until %s", c.URI, c.Flow, c.Q, stamp(c.Expires)))
	}
	return t.end()
}

func (a *app) calls() *cobra.Command {
	return group("call", "Look at calls", []string{"calls", "dialog"}, &cobra.Command{
		Use: "list", Short: "List the calls in progress", Args: exactly(),
		RunE: show(a, func(ctx context.Context, c *api.Client, _ []string) ([]api.Call, error) { return c.Calls(ctx) }, a.printCalls),
	})
}

func (a *app) printCalls(list []api.Call) error {
	t := newTable(a.out, "CALL-ID", "FROM", "TO", "STATE", "STARTED", "WORKERS")
	for _, c := range list {
		var way []string
		for _, w := range []string{c.POrig, c.SOrig, c.I, c.STerm, c.PTerm} {
			if w != "" {
				way = append(way, w)
			}
		}
		t.add(c.CallID, c.From, c.To, c.State, stamp(c.Started), strings.Join(way, " > "))
	}
	return t.end()
}

func (a *app) reload() *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Make the node read its configuration again", Args: exactly(),
		Long: "Make the node read its configuration again. The log level and the SIP timers are applied;\nwhat needs a restart is named.",
		RunE: show(a, func(ctx context.Context, c *api.Client, _ []string) (api.Reload, error) { return c.Reload(ctx) }, a.printReload),
	}
}

func (a *app) printReload(r api.Reload) error {
	if len(r.Applied)+len(r.Pending) == 0 {
		fmt.Fprintln(a.out, "nothing changed")
		return nil
	}
	t := newTable(a.out, "KEY", "WAS", "IS", "EFFECT")
	for _, c := range r.Applied {
		t.add(c.Key, c.Old, c.New, "now")
	}
	for _, c := range r.Pending {
		t.add(c.Key, c.Old, c.New, "after a restart")
	}
	return t.end()
}

// stamp is a time for people.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}
