package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bellwether/controller/api"
)

func (a *app) status() *cobra.Command {
	var watch bool
	once := show(a, func(ctx context.Context, c *api.Client, _ []string) (api.Status, error) { return c.Status(ctx) }, a.printStatus)
	c := &cobra.Command{
		Use: "status", Short: "Show the state of the cluster and its alarms", Args: exactly(),
		Long: "Show the state of the cluster and its alarms, as the node that answers sees them. With --watch it\n" +
			"goes on until it is interrupted: on a terminal it is drawn anew at each change, elsewhere a change\n" +
			"is one line, with --json one object. For what the columns of workers mean see\n" +
			"bellwether worker list --help.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch {
				return a.watch(cmd)
			}
			return once(cmd, args)
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on showing it, until interrupted")
	return c
}

// watch shows each status that the node tells.
func (a *app) watch(cmd *cobra.Command) error {
	c, err := a.client(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	patience := time.AfterFunc(lookIn, func() { cancel(context.DeadlineExceeded) })
	defer patience.Stop()
	tty, ok := a.direct.(*os.File)
	draw := a.line()
	switch {
	case a.json:
		draw = func(e api.Event) error { return json.NewEncoder(a.out).Encode(e.Status) }
	case ok && isTerminal(tty):
		draw = a.redraw
	}
	err = c.Watch(ctx, func(e api.Event) error {
		patience.Stop()
		if e.Status == nil {
			return nil
		}
		if err := draw(e); err != nil {
			return err
		}
		return a.out.Flush()
	})
	switch {
	case cmd.Context().Err() != nil:
		return nil // it was asked to end
	case ctx.Err() != nil:
		return late(context.Cause(ctx), lookIn)
	case err == nil:
		return errors.New("the node ended; see its log")
	}
	return err
}

// redraw fills a terminal with the status.
func (a *app) redraw(e api.Event) error {
	fmt.Fprintf(a.out, "\x1b[H\x1b[2J%s (Ctrl+C ends)\n\n", stamp(e.Time))
	return a.printStatus(*e.Status)
}

// line prints a status in a line, unless it would be the same as the last.
func (a *app) line() func(api.Event) error {
	last := ""
	return func(e api.Event) error {
		s := e.Status
		nodes, workers := 0, 0
		for _, n := range s.Nodes {
			if n.Connected {
				nodes++
			}
		}
		for _, w := range s.Workers {
			if w.Connected {
				workers++
			}
		}
		text := fmt.Sprintf("%s, nodes %d of %d, workers %d of %d, users %d, calls %d, alarms %d",
			leader(*s), nodes, len(s.Nodes), workers, len(s.Workers), s.Users, s.Calls, len(s.Alarms))
		if text == last {
			return nil
		}
		last = text
		_, err := fmt.Fprintf(a.out, "%s: %s\n", stamp(e.Time), text)
		return err
	}
}

// leader says who leads, and whether that counts.
func leader(s api.Status) string {
	who, quorum := "no leader", "quorum held"
	if s.Leader != "" {
		who = clean(s.Leader)
	}
	if !s.Quorum {
		quorum = "NO QUORUM"
	}
	return fmt.Sprintf("%s, term %d, %s", who, s.Term, quorum)
}

// refused says what the answering node did not let in, the most frequent
// reason first.
func refused(s api.Status) string {
	var total uint64
	var why []string
	for _, reason := range slices.SortedFunc(maps.Keys(s.Refused), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Refused[b], s.Refused[a]), cmp.Compare(a, b))
	}) {
		if n := s.Refused[reason]; n > 0 {
			total += n
			why = append(why, fmt.Sprintf("%s %d", reason, n))
		}
	}
	text := fmt.Sprintf("%d of %d messages since %s began", total, s.Received, s.Node)
	if total > 0 {
		text += ": " + strings.Join(why, ", ")
	}
	if s.Bans > 0 {
		text += fmt.Sprintf("; %d source%s banned, see bellwether ban list", s.Bans, ending(s.Bans))
	}
	return text
}

func (a *app) printStatus(s api.Status) error {
	fmt.Fprintf(a.out, "Cluster      %s, domain %s\n", clean(s.Cluster), clean(s.Domain))
	fmt.Fprintf(a.out, "Leader       %s\n", leader(s))
	fmt.Fprintf(a.out, "Answered by  %s, version %s\n", clean(s.Node), clean(s.Version))
	fmt.Fprintf(a.out, "Users        %d registered, %d subscribers\n", s.Users, s.Subscribers)
	fmt.Fprintf(a.out, "Calls        %d\n", s.Calls)
	fmt.Fprintf(a.out, "Refused      %s\n\n", clean(refused(s)))
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
