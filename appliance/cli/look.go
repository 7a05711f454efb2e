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
	return a.askWithin(lookIn, func(ctx context.Context, c *api.Client, args []string) error {
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

// list makes the function of a command that gets a list page by page and prints it.
func list[T any](a *app, page func(ctx context.Context, c *api.Client, after string) (part []T, next string, err error), print func([]T) error) func(*cobra.Command, []string) error {
	return a.askWithin(moveIn, func(ctx context.Context, c *api.Client, _ []string) error {
		v, err := all(ctx, func(ctx context.Context, after string) ([]T, string, error) { return page(ctx, c, after) })
		if err != nil {
			return err
		}
		if a.json {
			return a.print(v)
		}
		return print(v)
	})
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
		service := n.Service
		if n.Service6 != "" {
			service += " " + n.Service6
		}
		t.add(n.Name, n.Address, service, role, yes(n.Connected), n.Version)
	}
	return t.end()
}

func (a *app) workerList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the workers", Args: exactly(),
		Long: "List the workers. USERS are those assigned to it, CALLS those in progress (- where its kind keeps\n" +
			"none), LOAD its requests in flight plus the CPU cores that its process uses, by which min-load\n" +
			"chooses an I-CSCF, and CONNECTED says whether this node has a link to it.",
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
		ValidArgsFunction: a.completed(workerIDs),
	}
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

func (a *app) calls() *cobra.Command {
	return plural(group("call", "Look at calls", []string{"dialog"}), "calls", &cobra.Command{
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
		RunE: a.askWithin(changeIn, func(ctx context.Context, c *api.Client, _ []string) error {
			r, err := c.Reload(ctx)
			if err != nil {
				return err
			}
			return a.printReload(r)
		}),
	}
}

func (a *app) printReload(r api.Reload) error {
	if a.json {
		return a.print(r)
	}
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

// stamp is a time for people, with its zone.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05 MST")
}
