package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bellwether/controller/api"
)

func (a *app) status() *cobra.Command {
	var watch bool
	once := show(a, func(ctx context.Context, c *api.Client, _ []string) (api.Status, error) { return c.Status(ctx) }, a.printStatus)
	c := &cobra.Command{
		Use: "status", Short: "Show the state of the cluster and its alarms", Args: exactly(),
		Long: "Show the state of the cluster and its alarms, as the node that answers sees them. With --watch it\n" +
			"goes on until it is interrupted, also when the node is restarted: on a terminal it is drawn anew at\n" +
			"each change, elsewhere a change is one line, with --json one object. For what the columns of workers mean see\n" +
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
	head(a.out, s)
	fmt.Fprintln(a.out)
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
	printAlarms(a.out, s.Alarms)
	return nil
}

// head says how the cluster is as a whole.
func head(w io.Writer, s api.Status) {
	cluster := "not begun yet"
	switch {
	case s.Cluster != "" && s.Name != "":
		cluster = fmt.Sprintf("%s (%s)", clean(s.Name), clean(s.Cluster))
	case s.Cluster != "":
		cluster = clean(s.Cluster)
	}
	fmt.Fprintf(w, "Cluster      %s, domain %s\n", cluster, clean(s.Domain))
	fmt.Fprintf(w, "Leader       %s\n", leader(s))
	fmt.Fprintf(w, "Answered by  %s, version %s\n", clean(s.Node), clean(s.Version))
	fmt.Fprintf(w, "Users        %d registered, %d subscribers\n", s.Users, s.Subscribers)
	fmt.Fprintf(w, "Calls        %d\n", s.Calls)
	fmt.Fprintf(w, "Refused      %s\n", clean(refused(s)))
}

func printAlarms(w io.Writer, list []api.Alarm) {
	for _, al := range list {
		fmt.Fprintln(w, alarmText(al))
	}
}

func alarmText(al api.Alarm) string {
	return fmt.Sprintf("%s: %s (node %s, since %s); %s", strings.ToUpper(clean(al.Severity)), clean(al.Text), clean(al.Node), stamp(al.Since), clean(al.WhatToDo))
}

func sortedAlarms(all map[string]api.Alarm) []api.Alarm {
	return slices.SortedFunc(maps.Values(all), func(a, b api.Alarm) int { return cmp.Compare(a.Code, b.Code) })
}
