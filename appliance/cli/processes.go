package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) node() *cobra.Command {
	run := a.process("node", a.hooks.Node)
	c := &cobra.Command{
		Use:        "node",
		Short:      "Run a node in the foreground, or list the nodes",
		Long:       "Run a node in the foreground, as its configuration says. It tells systemd when it is ready,\nreads the configuration again at SIGHUP and ends at SIGTERM.",
		Example:    "  bellwether node -c n1.yaml\n  bellwether node list",
		SuggestFor: []string{"run", "serve", "daemon"},
		Args:       noSuchCommand,
		RunE:       func(c *cobra.Command, _ []string) error { return run(c) },
	}
	return plural(c, "nodes", a.nodeList())
}

// hiddenProcess is one that the supervisor of a node starts, and nobody else.
func (a *app) hiddenProcess(name string, hook func(context.Context, string) error) *cobra.Command {
	run := a.process(name, hook)
	return &cobra.Command{Use: name, Hidden: true, Args: exactly(),
		RunE: func(c *cobra.Command, _ []string) error { return run(c) }}
}

// worker shows workers.
func (a *app) worker() *cobra.Command {
	return plural(group("worker", "Look at the workers", nil, a.workerShow()), "workers", a.workerList())
}

// process makes the function of a command that is a long-running process.
func (a *app) process(name string, run func(context.Context, string) error) func(*cobra.Command) error {
	return func(c *cobra.Command) error {
		if run == nil {
			return fmt.Errorf("this program has no %s; use a complete build of bellwether", name)
		}
		err := run(c.Context(), a.config)
		if c.Context().Err() != nil && errors.Is(err, context.Canceled) {
			return nil // it was asked to end
		}
		return err
	}
}

func (a *app) demo() *cobra.Command {
	var o DemoOptions
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run three nodes here, with phones that call each other",
		Long: "Run a cluster of three nodes on 127.0.0.1, 127.0.0.2 and 127.0.0.3, with subscribers and\n" +
			"built-in phones that register and call each other, until it is interrupted.",
		Example: "  bellwether demo\n  bellwether demo --no-tui --for 20s --json",
		Args:    exactly(),
		RunE: func(c *cobra.Command, _ []string) error {
			if a.hooks.Demo == nil {
				return errors.New("this program has no demo; use a complete build of bellwether")
			}
			if o.For < 0 {
				return usagef("--for is %v; write how long to run, such as 20s", o.For)
			}
			o.JSON, o.Out, o.Err = a.json, a.direct, a.err
			return a.hooks.Demo(c.Context(), o)
		},
	}
	c.Flags().BoolVar(&o.NoTUI, "no-tui", false, "print plain lines instead of a live display")
	c.Flags().DurationVar(&o.For, "for", 0, "run for this `TIME`, such as 20s (default: until interrupted)")
	c.Flags().BoolVar(&o.Keep, "keep", false, "leave the cluster running and print how to register a phone")
	return c
}
