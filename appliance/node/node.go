// Package node runs a node from its configuration file: the supervisor with a
// front and a worker process under it, or all in one process where the file
// says isolation: none.
//
// It holds no logic of its own beyond starting, reloading and stopping: see
// packages supervisor, frontproc and workerproc.
//
// Failure modes: what cannot start says why in one line and ends the node; a
// process that dies later is started again, and the front shows an alarm.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"bellwether/appliance/config"
	"bellwether/appliance/frontproc"
	"bellwether/appliance/identity"
	"bellwether/appliance/joining"
	"bellwether/appliance/supervisor"
	"bellwether/appliance/workerproc"
	"bellwether/controller/mesh"
)

// inUse names, in the environment of a child process, the file with the
// configuration that the node runs with. A child that is started again must
// not take up what was edited since: half of the node would have it.
const inUse = "BELLWETHER_CONFIG_IN_USE"

// Node is a node, or one process of it, that is about to run.
type Node struct {
	Version string
	File    string    // configuration
	Log     io.Writer // where log lines go

	level     slog.LevelVar
	log       *slog.Logger
	reloading sync.Mutex
	current   atomic.Pointer[config.Config] // what applies now: the start's, with what reloads changed
}

// load reads the configuration, the identity and makes the logger.
func (n *Node) load(process string) (*config.Config, *identity.Identity, error) {
	// A reload that comes too early or too late does nothing. Without anybody
	// who listens the signal would end the process.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	cfg, err := n.config(process)
	if err != nil {
		return nil, nil, err
	}
	if process == "" {
		joining.RenewHere(identity.Dir(cfg.Node.DataDir), identity.CADir(cfg.Node.DataDir), cfg.Node.Name, cfg.Cluster.Address.Addr())
	}
	id, err := identity.Load(cfg.Node.DataDir, cfg.Node.Name)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(cfg.Node.RunDir, 0o750); err != nil {
		return nil, nil, fmt.Errorf("create node.run_dir: %w", err)
	}
	n.current.Store(cfg)
	n.level.Set(cfg.Log.Level)
	n.log = slog.New(cfg.Log.Handler(n.Log, &n.level)).With("node", cfg.Node.Name)
	if process != "" {
		n.log = n.log.With("process", process)
	}
	return cfg, id, nil
}

func (n *Node) config(process string) (*config.Config, error) {
	if file := os.Getenv(inUse); file != "" && process != "" {
		return readConfig(file)
	}
	return config.Load(n.File)
}

// Run runs the whole node until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	cfg, id, err := n.load("")
	if err != nil {
		return err
	}
	release, err := once(cfg)
	if err != nil {
		return err
	}
	defer release()
	if cfg.Node.Isolation == config.None {
		return n.alone(ctx, cfg, id)
	}
	file := filepath.Join(cfg.Node.RunDir, "config.json")
	if err := writeConfig(file, cfg); err != nil {
		return err
	}
	env := []string{inUse + "=" + file}
	var children []supervisor.Child
	if isController(cfg) {
		children = append(children, supervisor.Child{Name: "front", Args: []string{"front-process", "-c", n.File}, Env: env})
	}
	if len(cfg.Workers) > 0 {
		children = append(children, supervisor.Child{Name: "worker", Args: []string{"worker-process", "-c", n.File}, Env: env})
	}
	reports := newExits(filepath.Join(cfg.Node.RunDir, workerproc.SocketName), n.log)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { reports.run(ctx) })
	return supervisor.Run(ctx, supervisor.Config{
		Children: children, Log: n.log, Output: n.Log,
		Exited: reports.add,
		Reload: func() error {
			if _, _, err := n.reload(); err != nil {
				return err
			}
			return writeConfig(file, n.current.Load())
		},
		Ready: func() { n.log.Info("node is up", "version", n.Version) },
	})
}

// Front runs the front process.
func (n *Node) Front(ctx context.Context) error {
	reload := n.reload
	if os.Getenv(inUse) != "" {
		supervisor := os.Getppid()
		reload = func() (applied, pending []config.Change, err error) {
			if applied, pending, err = n.reload(); err != nil {
				return nil, nil, err
			}
			// The supervisor passes the signal on to every process.
			if os.Getppid() != supervisor {
				return nil, nil, errors.New("the supervisor is gone")
			}
			if err := syscall.Kill(supervisor, syscall.SIGHUP); err != nil {
				return nil, nil, fmt.Errorf("signal the supervisor: %w", err)
			}
			return applied, pending, nil
		}
	}
	ctx, parent := supervisor.Attach(ctx)
	cfg, id, err := n.load("front")
	if err != nil {
		return err
	}
	defer n.reloads(ctx)()
	return frontproc.Run(ctx, cfg, id, frontproc.Options{Version: n.Version, Log: n.log, Ready: n.readier(parent), Reload: reload})
}

// Worker runs the worker process.
func (n *Node) Worker(ctx context.Context) error {
	ctx, parent := supervisor.Attach(ctx)
	cfg, id, err := n.load("worker")
	if err != nil {
		return err
	}
	defer n.reloads(ctx)()
	return n.worker(ctx, cfg, id, n.readier(parent))
}

func (n *Node) worker(ctx context.Context, cfg *config.Config, id *identity.Identity, ready func()) error {
	m, err := mesh.Dialer(id.Mesh(cfg.Cluster.Address.String(), n.log))
	if err != nil {
		return err
	}
	defer m.Close()
	return workerproc.Run(ctx, cfg, workerproc.Options{
		Version: n.Version, ClusterID: id.ClusterID, Dialer: m, Current: n.current.Load, Log: n.log, Ready: ready,
	})
}

// alone runs everything in this process.
func (n *Node) alone(ctx context.Context, cfg *config.Config, id *identity.Identity) error {
	g, ctx := errgroup.WithContext(ctx)
	defer n.reloads(ctx)()
	parts := 0
	up := make(chan struct{}, 2)
	part := func(run func(ready func()) error) {
		parts++
		g.Go(func() error { return run(func() { up <- struct{}{} }) })
	}
	if isController(cfg) {
		part(func(ready func()) error {
			return frontproc.Run(ctx, cfg, id, frontproc.Options{Version: n.Version, Log: n.log, Ready: ready, Reload: n.reload})
		})
	}
	if len(cfg.Workers) > 0 {
		part(func(ready func()) error { return n.worker(ctx, cfg, id, ready) })
	}
	g.Go(func() error {
		for range parts {
			select {
			case <-up:
			case <-ctx.Done():
				return nil
			}
		}
		supervisor.Notify(n.log, daemon.SdNotifyReady)
		n.log.Info("node is up", "version", n.Version)
		supervisor.Watchdog(ctx, n.log, func() bool { return true }) // returns at once without a watchdog
		<-ctx.Done()
		supervisor.Notify(n.log, daemon.SdNotifyStopping)
		return nil
	})
	return g.Wait()
}

func isController(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Cluster.Controllers, func(c config.Controller) bool { return c.Name == cfg.Node.Name })
}

func (n *Node) readier(p *supervisor.Parent) func() {
	return func() {
		if err := p.Ready(); err != nil {
			n.log.Error("report readiness", "err", err)
		}
	}
}

// reload reads the file again and applies what can be applied here.
func (n *Node) reload() (applied, pending []config.Change, err error) {
	n.reloading.Lock()
	defer n.reloading.Unlock()
	next, err := config.Load(n.File)
	if err != nil {
		return nil, nil, err
	}
	now := *n.current.Load()
	applied, pending = split(config.Diff(&now, next))
	now.Log.Level = next.Log.Level
	now.SIP.T1 = next.SIP.T1
	now.SIP.MinExpires, now.SIP.MaxExpires, now.SIP.DefaultExpires = next.SIP.MinExpires, next.SIP.MaxExpires, next.SIP.DefaultExpires
	n.level.Set(now.Log.Level)
	n.current.Store(&now)
	n.log.Info("configuration reloaded", "applied", keys(applied), "need_restart", keys(pending))
	return applied, pending, nil
}

func split(changes []config.Change) (applied, pending []config.Change) {
	for _, c := range changes {
		if c.Restart {
			pending = append(pending, c)
		} else {
			applied = append(applied, c)
		}
	}
	return applied, pending
}

func keys(changes []config.Change) []string {
	out := make([]string, 0, len(changes))
	for _, c := range changes {
		out = append(out, c.Key)
	}
	return out
}

// reloads applies the file again at each SIGHUP until ctx ends. What it
// returns waits for that end.
func (n *Node) reloads(ctx context.Context) (wait func()) {
	ctx, cancel := context.WithCancel(ctx)
	hup := supervisor.Reloads(ctx) // before anybody can know that this process is ready
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range hup {
			if _, _, err := n.reload(); err != nil {
				n.log.Error("reload the configuration; nothing was changed", "err", err)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// writeConfig writes the configuration that the node runs with, all or nothing.
func writeConfig(file string, cfg *config.Config) error {
	b, err := json.Marshal(cfg)
	if err == nil {
		err = os.WriteFile(file+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		return fmt.Errorf("write the configuration in use: %w", err)
	}
	return nil
}

func readConfig(file string) (*config.Config, error) {
	b, err := os.ReadFile(file)
	cfg := new(config.Config)
	if err == nil {
		err = json.Unmarshal(b, cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration in use: %w", err)
	}
	return cfg, nil
}
