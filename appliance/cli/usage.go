package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"bellwether/appliance/config"
)

// usageError is a command line that makes no sense.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// group makes a command that only holds others.
func group(use, short string, also []string, children ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, SuggestFor: also, Args: noSuchCommand}
	g.RunE = func(c *cobra.Command, _ []string) error {
		return usagef("%s needs a command; write one of %s", c.CommandPath(), names(c))
	}
	g.AddCommand(children...)
	return g
}

// plural gives a command a list, and the plural of its name, which lists as well.
func plural(c *cobra.Command, name string, list *cobra.Command) *cobra.Command {
	c.Aliases = append(c.Aliases, name)
	alone := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.CalledAs() == name {
			return list.RunE(cmd, args)
		}
		return alone(cmd, args)
	}
	c.AddCommand(list)
	return c
}

func names(c *cobra.Command) string {
	var all []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			all = append(all, sub.Name())
		}
	}
	return strings.Join(all, ", ")
}

// noSuchCommand refuses arguments of a command that has subcommands.
func noSuchCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	what := strings.TrimPrefix(c.CommandPath()+" "+args[0], "bellwether ")
	if hint, ok := meant[what]; ok {
		return usagef("there is no command %q; %s", what, hint)
	}
	if args[0] == "help" {
		return usagef("there is no command %q; write %s --help", what, c.CommandPath())
	}
	if near, ok := nearest(c, args[0]); ok {
		return usagef("there is no command %q; did you mean %s?", what, near)
	}
	for _, sub := range c.Commands() {
		if sub.Name() == "show" {
			return usagef("there is no command %q; write one of %s, such as %s show %s", what, names(c), c.CommandPath(), args[0])
		}
	}
	return usagef("there is no command %q; see %s --help", what, c.CommandPath())
}

// nearest finds the subcommand that a word means: one that names it as a guess
// to expect, one that begins so, or one that is spelt nearly so.
func nearest(c *cobra.Command, word string) (string, bool) {
	var known []string
	for _, sub := range c.Commands() {
		if slices.Contains(sub.SuggestFor, word) {
			return sub.Name(), true
		}
		if sub.IsAvailableCommand() {
			known = append(known, sub.Name())
		}
	}
	for _, name := range known {
		if len(word) > 1 && strings.HasPrefix(name, word) {
			return name, true
		}
	}
	return config.Nearest(word, known)
}

// exactly takes one argument for each name.
func exactly(names ...string) cobra.PositionalArgs { return between(len(names), names...) }

// between takes at least min arguments, at most one for each name.
func between(min int, names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < min:
			return usagef("%s needs %s; see %s --help", c.CommandPath(), names[len(args)], c.CommandPath())
		case len(args) > len(names):
			return usagef("%s takes no %q; see %s --help", c.CommandPath(), args[len(names)], c.CommandPath())
		}
		return nil
	}
}

var shorthand = regexp.MustCompile(`^unknown shorthand flag: '(.)'`)

// flagError says which flag was probably meant.
func flagError(c *cobra.Command, err error) error {
	text := err.Error()
	if name, unknown := strings.CutPrefix(text, "unknown flag: --"); unknown {
		var all []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				all = append(all, f.Name)
			}
		})
		if flag, ok := meantFlag[name]; ok && slices.Contains(all, flag) {
			return usagef("%s has no flag --%s; write --%s", c.CommandPath(), name, flag)
		}
		if near, ok := config.Nearest(name, all); ok {
			return usagef("%s has no flag --%s; did you mean --%s?", c.CommandPath(), name, near)
		}
		return usagef("%s has no flag --%s; see %s --help", c.CommandPath(), name, c.CommandPath())
	}
	if short := shorthand.FindStringSubmatch(text); short != nil {
		if flag, ok := meantFlag[short[1]]; ok && c.Flags().Lookup(flag) != nil {
			return usagef("%s has no flag -%s; write --%s", c.CommandPath(), short[1], flag)
		}
		return usagef("%s has no flag -%s; see %s --help", c.CommandPath(), short[1], c.CommandPath())
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.GetFlag().Value.Type() == "duration" {
		write := "a time with its unit, such as 20s"
		if _, err := strconv.ParseUint(invalid.GetValue(), 10, 32); err == nil {
			write = invalid.GetValue() + "s"
		}
		return usagef("--%s is %q; write %s", invalid.GetFlag().Name, invalid.GetValue(), write)
	}
	return usagef("%s; see %s --help", text, c.CommandPath())
}

// help is bellwether help, which refuses what does not exist.
func help(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about a command",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return noSuchCommand(c, rest)
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}

// tidy makes the commands that cobra brings refuse as ours do.
func tidy(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Args, c.RunE = noSuchCommand, func(c *cobra.Command, _ []string) error {
			return usagef("%s needs a shell; write one of %s", c.CommandPath(), names(c))
		}
		for _, shell := range c.Commands() {
			shell.Args = exactly()
		}
	}
}
