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
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"bellwether/appliance/config"
	"bellwether/appliance/frontproc"
	"bellwether/appliance/identity"
	"bellwether/appliance/supervisor"
	"bellwether/appliance/workerlink"
	"bellwether/appliance/workerproc"
	"bellwether/controller/link"
	"bellwether/controller/mesh"
)

// Node is a node, or one process of it, that is about to run.
type Node struct {
	Version string
	File    string    // configuration
	Log     io.Writer // where log lines go

	level   slog.LevelVar
	current atomic.Pointer[config.Config] // what applies now: the start's, with what reloads changed
}

// load reads the configuration, the identity and makes the logger.
func (n *Node) load(process string) (*config.Config, *identity.Identity, *slog.Logger, error) {
	cfg, err := config.Load(n.File)
	if err != nil {
		return nil, nil, nil, err
	}
	id, err := identity.Load(cfg.Node.DataDir, cfg.Node.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := os.MkdirAll(cfg.Node.RunDir, 0o750); err != nil {
		return nil, nil, nil, fmt.Errorf("create node.run_dir: %w", err)
	}
	n.current.Store(cfg)
	n.level.Set(cfg.Log.Level)
	log := slog.New(cfg.Log.Handler(n.Log, &n.level)).With("node", cfg.Node.Name)
	if process != "" {
		log = log.With("process", process)
	}
	return cfg, id, log, nil
}

// Run runs the whole node until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	cfg, id, log, err := n.load("")
	if err != nil {
		return err
	}
	if cfg.Node.Isolation == config.None {
		return n.alone(ctx, cfg, id, log)
	}
	var children []supervisor.Child
	if isController(cfg) {
		children = append(children, supervisor.Child{Name: "front", Args: []string{"front", "-c", n.File}})
	}
	if len(cfg.Workers) > 0 {
		children = append(children, supervisor.Child{Name: "worker", Args: []string{"worker", "-c", n.File}})
	}
	reports := &exits{socket: filepath.Join(cfg.Node.RunDir, workerproc.SocketName), log: log}
	var wg sync.WaitGroup
	defer wg.Wait()
	return supervisor.Run(ctx, supervisor.Config{
		Children: children, Log: log, Output: n.Log,
		Exited: func(e supervisor.Exit) { wg.Go(func() { reports.tell(ctx, e) }) },
		Reload: func() error { _, _, err := n.reload(); return err },
		Ready:  func() { log.Info("node is up", "version", n.Version) },
	})
}

// Front runs the front process.
func (n *Node) Front(ctx context.Context) error {
	ctx, parent := supervisor.Attach(ctx)
	cfg, id, log, err := n.load("front")
	if err != nil {
		return err
	}
	go n.reloads(ctx, log)
	return frontproc.Run(ctx, cfg, id, frontproc.Options{
		Version: n.Version, Log: log, Ready: readier(parent, log),
		Reload: func() (applied, pending []config.Change, err error) {
			old := n.current.Load()
			next, err := config.Load(n.File)
			if err != nil {
				return nil, nil, err
			}
			// The supervisor passes the signal on to every process.
			if err := syscall.Kill(os.Getppid(), syscall.SIGHUP); err != nil {
				return nil, nil, fmt.Errorf("signal the supervisor: %w", err)
			}
			applied, pending = split(config.Diff(old, next))
			return applied, pending, nil
		},
	})
}

// Worker runs the worker process.
func (n *Node) Worker(ctx context.Context) error {
	ctx, parent := supervisor.Attach(ctx)
	cfg, id, log, err := n.load("worker")
	if err != nil {
		return err
	}
	m, err := mesh.Dialer(id.Mesh(cfg.Cluster.Address.String(), log))
	if err != nil {
		return err
	}
	defer m.Close()
	go n.reloads(ctx, log)
	return workerproc.Run(ctx, cfg, workerproc.Options{
		Version: n.Version, ClusterID: id.ClusterID, Dialer: m, Current: n.current.Load, Log: log, Ready: readier(parent, log),
	})
}

// alone runs everything in this process.
func (n *Node) alone(ctx context.Context, cfg *config.Config, id *identity.Identity, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m, err := mesh.Dialer(id.Mesh(cfg.Cluster.Address.String(), log))
	if err != nil {
		return err
	}
	defer m.Close()
	go n.reloads(ctx, log)

	waiting := 0
	up := make(chan struct{}, 2)
	failed := make(chan error, 2)
	start := func(run func() error) {
		waiting++
		go func() { failed <- run() }()
	}
	ready := func() { up <- struct{}{} }
	if isController(cfg) {
		start(func() error {
			return frontproc.Run(ctx, cfg, id, frontproc.Options{Version: n.Version, Log: log, Ready: ready, Reload: n.reload})
		})
	}
	if len(cfg.Workers) > 0 {
		start(func() error {
			return workerproc.Run(ctx, cfg, workerproc.Options{Version: n.Version, ClusterID: id.ClusterID, Dialer: m, Current: n.current.Load, Log: log, Ready: ready})
		})
	}
	for range waiting {
		select {
		case <-up:
		case err := <-failed:
			cancel()
			if waiting == 2 {
				<-failed
			}
			return err
		}
	}
	supervisor.Notify(log, daemon.SdNotifyReady)
	log.Info("node is up", "version", n.Version)
	go supervisor.Watchdog(ctx, log, func() bool { return true })
	var first error
	for range waiting {
		if err := <-failed; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	supervisor.Notify(log, daemon.SdNotifyStopping)
	return first
}

func isController(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Cluster.Controllers, func(c config.Controller) bool { return c.Name == cfg.Node.Name })
}

func readier(p *supervisor.Parent, log *slog.Logger) func() {
	return func() {
		if err := p.Ready(); err != nil {
			log.Error("report readiness", "err", err)
		}
	}
}

// reload reads the file again and applies what can be applied here.
func (n *Node) reload() (applied, pending []config.Change, err error) {
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

// reloads applies the file again at each SIGHUP.
func (n *Node) reloads(ctx context.Context, log *slog.Logger) {
	for range supervisor.Reloads(ctx) {
		applied, pending, err := n.reload()
		if err != nil {
			log.Error("reload the configuration; nothing was changed", "err", err)
			continue
		}
		log.Info("configuration reloaded", "applied", len(applied), "need_restart", len(pending))
	}
}

// exits reports the ends of child processes to the node's front.
type exits struct {
	socket string
	log    *slog.Logger
	mu     sync.Mutex // one report at a time, in order
}

// nobody ignores what a front says to the supervisor.
type nobody struct{}

func (nobody) SIP(*link.Conn, *link.SIP)         {}
func (nobody) Notify(*link.Conn, string, []byte) {}
func (nobody) Call(*link.Conn, string, []byte) ([]byte, error) {
	return nil, fmt.Errorf("a supervisor answers no calls")
}

// tell says it to the front, which may itself be on its way back up.
func (x *exits) tell(ctx context.Context, e supervisor.Exit) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	msg := workerlink.Encode(workerlink.ChildExitMsg{Child: e.Child, Reason: e.Cause(), Restarts: e.Restarts, At: e.At})
	for {
		if x.send(ctx, msg) == nil || ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (x *exits) send(ctx context.Context, msg []byte) error {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", x.socket)
	if err != nil {
		return err
	}
	c := link.New(nc, nobody{}, link.Options{})
	done := make(chan error, 1)
	go func() { done <- c.Run() }()
	defer func() { c.Close(); <-done }()
	// A call, not a notification: its answer proves that the front has it.
	_, err = c.Call(ctx, workerlink.ChildExit, msg)
	return err
}
