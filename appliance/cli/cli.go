// Package cli is the command line of bellwether.
//
// Commands that look at or change a running node use its admin API and nothing
// else; the processes of a node and the demo are hooks that the program gives,
// so this package starts nothing itself. Passwords become HA1 here, before they
// leave the process, and no command prints a secret.
//
// The exit code is 0 when all went well, 1 when something failed and 2 when
// the command line makes no sense. An error is one line on standard error
// that says what is wrong and what to do (a configuration file or an import
// has one line for each fault). Results go to standard output: tables, whose
// cells hold no control characters, or with --json the API's own structs.
package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"bellwether/appliance/config"
	"bellwether/controller/api"
)

// Exit codes.
const (
	OK     = 0
	Failed = 1
	Usage  = 2
)

// DefaultConfig is the configuration that is used when none is named.
const DefaultConfig = "/etc/bellwether/bellwether.yaml"

const defaultSocket = "/run/bellwether/admin.sock"

// How long a command waits for the node: one that looks, one that changes
// something, and one that moves all subscribers.
const (
	lookIn   = 3 * time.Second
	changeIn = 30 * time.Second
	moveIn   = 10 * time.Minute
)

// Hooks are what the program does beside talking to a node.
// file is the path of a configuration.
type Hooks struct {
	Version string
	Node    func(ctx context.Context, file string) error
	Front   func(ctx context.Context, file string) error
	Worker  func(ctx context.Context, file string) error
	Demo    func(ctx context.Context, o DemoOptions) error
}

// DemoOptions are the flags of bellwether demo.
type DemoOptions struct {
	NoTUI bool
	For   time.Duration // 0: until it is interrupted
	JSON  bool
	Keep  bool
	Out   io.Writer // results
	Err   io.Writer // progress and logs
}

// IO is what a command reads and writes.
type IO struct {
	In       io.Reader // a password is prompted for only if this is a terminal's *os.File
	Out, Err io.Writer
}

// Main runs the command line of this process and returns its exit code.
// The first SIGINT or SIGTERM ends the context of what runs, the next one the process.
func Main(h Hooks) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return Run(ctx, os.Args[1:], IO{os.Stdin, os.Stdout, os.Stderr}, h)
}

// Run runs one command line and returns its exit code.
func Run(ctx context.Context, args []string, stdio IO, h Hooks) int {
	out := bufio.NewWriter(stdio.Out)
	a := &app{hooks: h, in: stdio.In, out: out, err: stdio.Err, direct: stdio.Out}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdio.In)
	err := root.ExecuteContext(ctx)
	if flushed := out.Flush(); err == nil && flushed != nil {
		err = fmt.Errorf("write the result: %w", flushed)
	}
	return report(stdio.Err, err)
}

// app is one run of the command line.
type app struct {
	hooks  Hooks
	in     io.Reader
	out    *bufio.Writer
	err    io.Writer
	direct io.Writer // standard output without buffer, for what runs long

	config string
	socket string
	json   bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "bellwether",
		Short: "A SIP/IMS core that runs as a cluster of small machines",
		Long: "Bellwether is a SIP/IMS core (P-, I- and S-CSCF) that runs as a cluster of small machines.\n\n" +
			"See it work with bellwether demo; run a node with bellwether node -c FILE.",
		Version:       a.hooks.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noSuchCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(a.out) // before cobra makes its own commands, which remember it
	root.SetErr(a.err)
	root.SetVersionTemplate("bellwether {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVarP(&a.config, "config", "c", DefaultConfig, "the node's configuration `FILE`")
	f.StringVar(&a.socket, "socket", "", "`PATH` of the node's admin socket (default: as the configuration says)")
	f.BoolVar(&a.json, "json", false, "print JSON")
	root.AddCommand(
		a.node(), a.hiddenProcess("front-process", a.hooks.Front), a.hiddenProcess("worker-process", a.hooks.Worker),
		a.worker(), a.demo(), a.reload(),
		a.status(), a.users(), a.calls(), a.subscribers(), a.bans(), a.cluster(), a.configs(), a.version(),
	)
	root.SetHelpCommand(help(root))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	tidy(root)
	narrow(root)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", columns)))
	return root
}

// client returns a client of the node that the flags name.
func (a *app) client(c *cobra.Command) (*api.Client, error) {
	switch {
	case a.socket != "":
		return api.New(a.socket), nil
	case c.Flags().Changed("config"):
		cfg, err := config.Load(a.config)
		if err != nil {
			return nil, err
		}
		return api.New(cfg.AdminSocket()), nil
	}
	// A file that is absent, unreadable or just being edited says nothing of
	// where the running node is.
	if cfg, err := config.Load(a.config); err == nil {
		return api.New(cfg.AdminSocket()), nil
	}
	return api.New(defaultSocket), nil
}

// askWithin makes a command's function of one that asks the node.
func (a *app) askWithin(limit time.Duration, f func(ctx context.Context, c *api.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), limit)
		defer cancel()
		return late(f(ctx, c, args), limit)
	}
}

// late says that the node took too long, where that is the error.
func late(err error, limit time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the node did not answer within %v; see its log, then try again", limit)
	}
	return err
}

// all reads a list page by page; each page must come in time.
func all[T any](ctx context.Context, page func(ctx context.Context, after string) (part []T, next string, err error)) ([]T, error) {
	list := []T{}
	for after := ""; ; {
		pctx, cancel := context.WithTimeout(ctx, lookIn)
		part, next, err := page(pctx, after)
		cancel()
		if err != nil {
			return nil, late(err, lookIn)
		}
		list = append(list, part...)
		if after = next; after == "" {
			return list, nil
		}
	}
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program and of the running node",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Program api.Version  `json:"program"`
				Node    *api.Version `json:"node"` // null: none answers
			}{Program: api.Version{Version: a.hooks.Version, Go: runtime.Version()}}
			if c, err := a.client(cmd); err == nil {
				defer c.Close()
				ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
				defer cancel()
				if n, err := c.Version(ctx); err == nil {
					v.Node = &n
				}
			}
			if a.json {
				return a.print(v)
			}
			fmt.Fprintf(a.out, "bellwether %s (%s)\n", v.Program.Version, v.Program.Go)
			if v.Node != nil {
				fmt.Fprintf(a.out, "node %s runs %s (%s)\n", clean(v.Node.Node), clean(v.Node.Version), clean(v.Node.Go))
			}
			return nil
		},
	}
}

// report prints an error and returns the exit code that it means.
func report(w io.Writer, err error) int {
	var usage *usageError
	var problems config.Problems
	var lines importErrors
	var file *fs.PathError
	switch {
	case err == nil:
		return OK
	case errors.As(err, &problems):
		for _, p := range problems {
			fmt.Fprintln(w, clean(p.Error()))
		}
		return Failed
	case errors.As(err, &lines):
		for _, l := range lines {
			fmt.Fprintln(w, clean(l))
		}
		return Failed
	case errors.As(err, &usage):
		fmt.Fprintln(w, "bellwether: "+clean(usage.Error()))
		return Usage
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(w, "bellwether: interrupted")
		return Failed
	case errors.As(err, &file) && file.Path == DefaultConfig && errors.Is(err, fs.ErrNotExist):
		fmt.Fprintln(w, "bellwether: there is no "+DefaultConfig+"; name a configuration with -c FILE, or write that file as the README shows")
		return Failed
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	switch denied := file != nil && errors.Is(err, fs.ErrPermission); {
	case denied && file.Op == "mkdir":
		text += "; run this as root, or name a directory of your own in the configuration"
	case denied:
		text += "; run this as root, or as a user who may"
	}
	fmt.Fprintln(w, "bellwether: "+clean(text))
	return Failed
}
