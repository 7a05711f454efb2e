package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// ErrStart means that a child ended by itself before the node was ever ready.
var ErrStart = errors.New("a process of the node could not start")

// stopLimit is how long a child may take from SIGTERM to its end, by default.
const stopLimit = 10 * time.Second

// Child is a process to keep running.
type Child struct {
	Name string   // in reports
	Args []string // of this program, such as "worker-process", "-c", FILE
	Env  []string // beside the supervisor's own
}

// Config is what Run needs.
type Config struct {
	Children []Child
	Log      *slog.Logger
	Output   io.Writer     // where whole lines of the children go, at the same time; nil: standard error
	Stop     time.Duration // from SIGTERM to SIGKILL; 0: 10 s
	// Exited is told of each exit at once, before the pause. It may be called
	// for several children at the same time. Optional.
	Exited func(Exit)
	// Reload is called at SIGHUP, before the children get one; after an error
	// they get none. Optional.
	Reload func() error
	// Ready is called once, when every child has said that it serves. Optional.
	Ready func()
}

// Run keeps the children running until ctx ends. Then it stops them and
// returns nil. Its only other end is ErrStart.
func Run(ctx context.Context, cfg Config) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	if cfg.Stop == 0 {
		cfg.Stop = stopLimit
	}
	if cfg.Output == nil {
		cfg.Output = os.Stderr
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &supervisor{cfg: cfg, self: self, ready: map[string]bool{}, running: map[string]*os.Process{}}

	hup := Reloads(ctx) // before anybody can know that we run and send one
	var children, others sync.WaitGroup
	for _, c := range cfg.Children {
		children.Go(func() {
			if err := s.keep(ctx, c); err != nil {
				cancel(err)
			}
		})
	}
	others.Go(func() { Watchdog(ctx, cfg.Log, func() bool { return true }) })
	others.Go(func() { s.reloads(hup) })

	<-ctx.Done()
	Notify(cfg.Log, daemon.SdNotifyStopping)
	children.Wait()
	others.Wait()
	if err := context.Cause(ctx); errors.Is(err, ErrStart) {
		return err
	}
	return nil
}

type supervisor struct {
	cfg  Config
	self string

	mu      sync.Mutex
	ready   map[string]bool        // children that have been ready once
	up      bool                   // all have been
	running map[string]*os.Process // those that serve now
}

// keep runs one child again and again.
func (s *supervisor) keep(ctx context.Context, c Child) error {
	// The kernel ties PR_SET_PDEATHSIG to the thread that starts the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var b backoff
	for restarts := 1; ; restarts++ {
		began := time.Now()
		state, output, err := s.run(ctx, c)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("start %s: %w: %w", c.Name, ErrStart, err)
		}
		e := exitOf(c.Name, state)
		e.At, e.Output, e.Restarts = time.Now(), output, restarts
		e.Ran = e.At.Sub(began)
		if e.Signal == 0 && !s.isUp() {
			return fmt.Errorf("%w: %s ended with %s before it was ready; its reason is above", ErrStart, c.Name, e.Cause())
		}
		e.Pause = b.pause(e.Ran)
		if s.cfg.Exited != nil {
			s.cfg.Exited(e)
		}
		s.cfg.Log.Error("a process of the node ended and is started again", "exit", e)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(e.Pause):
		}
	}
}

// run runs one child once, from start to end.
func (s *supervisor) run(ctx context.Context, c Child) (*os.ProcessState, []string, error) {
	said, ready, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer said.Close()
	life, mine, err := os.Pipe()
	if err != nil {
		ready.Close()
		return nil, nil, err
	}
	defer mine.Close()

	out := &tail{out: s.cfg.Output}
	cmd := exec.CommandContext(ctx, s.self, c.Args...)
	cmd.Env = environment(os.Environ(), c.Env)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{ready, life}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = s.cfg.Stop
	// A group of its own: ^C at a terminal is for the supervisor to pass on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	err = cmd.Start()
	ready.Close()
	life.Close()
	if err != nil {
		return nil, nil, err
	}
	s.cfg.Log.Info("a process of the node was started", "child", c.Name, "pid", cmd.Process.Pid)

	heard := make(chan struct{})
	go func() {
		defer close(heard)
		s.listen(c, cmd.Process, said)
	}()
	err = cmd.Wait()
	s.forget(c)
	said.Close() // a descriptor that leaked to a grandchild must not hold us
	<-heard
	if cmd.ProcessState == nil {
		return nil, out.end(), err
	}
	return cmd.ProcessState, out.end(), nil
}

// listen waits for the child's word that it serves.
func (s *supervisor) listen(c Child, p *os.Process, said *os.File) {
	line, err := bufio.NewReader(io.LimitReader(said, 64)).ReadString('\n')
	if err != nil || line != "ready\n" {
		return // it ended first, which is reported as its exit
	}
	s.mu.Lock()
	s.ready[c.Name], s.running[c.Name] = true, p
	first := !s.up && len(s.ready) == len(s.cfg.Children)
	s.up = s.up || first
	s.mu.Unlock()
	s.cfg.Log.Info("a process of the node is ready", "child", c.Name, "pid", p.Pid)
	if first {
		Notify(s.cfg.Log, daemon.SdNotifyReady)
		if s.cfg.Ready != nil {
			s.cfg.Ready()
		}
	}
}

func (s *supervisor) forget(c Child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, c.Name)
}

func (s *supervisor) isUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up
}

// reloads passes each SIGHUP on to the children that are ready. One that is
// not has no handler yet, would die of it, and reads the new file anyway.
func (s *supervisor) reloads(hup <-chan os.Signal) {
	for range hup {
		Notify(s.cfg.Log, reloading())
		if err := s.reload(); err != nil {
			s.cfg.Log.Error("the configuration was not reloaded", "error", err)
		}
		Notify(s.cfg.Log, daemon.SdNotifyReady)
	}
}

func (s *supervisor) reload() error {
	if s.cfg.Reload != nil {
		if err := s.cfg.Reload(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for name, p := range s.running {
		if err := p.Signal(syscall.SIGHUP); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, fmt.Errorf("pass it to %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
