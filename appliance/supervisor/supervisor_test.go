package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// The test binary is its own child: role says what it is to be.
const (
	role   = "SUPERVISOR_TEST_ROLE"
	socket = "SUPERVISOR_TEST_SOCKET" // where a child says what happens to it
	quick  = "GORACE=atexit_sleep_ms=0"
)

func init() {
	// PR_SET_PDEATHSIG belongs to a thread, here to the first one: child must
	// run on it to take it back.
	runtime.LockOSThread()
}

func TestMain(m *testing.M) {
	if r := os.Getenv(role); r != "" {
		os.Exit(child(r))
	}
	goleak.VerifyTestMain(m)
}

// child is what a started process does.
func child(r string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if r == "supervisor" {
		c := Child{Name: "inner", Env: []string{role + "=" + os.Getenv(role+"_INNER")}}
		if err := Run(ctx, Config{Children: []Child{c}, Log: slog.New(slog.DiscardHandler)}); err != nil {
			return 1
		}
		return 0
	}
	parent := &Parent{}
	if r != "deaf" { // one that does not hear the end of its supervisor
		ctx, parent = Attach(ctx)
	}
	if r == "immortal" { // as if the kernel did not kill it with its supervisor
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
			return 9
		}
	}
	conn, err := net.Dial("unix", os.Getenv(socket))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	say := func(format string, args ...any) { fmt.Fprintf(conn, format+"\n", args...) }
	say("start %d", os.Getpid())
	hup := Reloads(context.Background())
	switch r {
	case "refuses":
		fmt.Fprintln(os.Stderr, "the data directory is of another cluster")
		return 3
	case "crashes":
		if err := parent.Ready(); err != nil {
			return 9
		}
		for i := range 30 {
			fmt.Fprintln(os.Stderr, "line", i)
		}
		fmt.Fprint(os.Stderr, "no end of line")
		return 5
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		ctx = context.Background()
	case "environment":
		say("NOTIFY_SOCKET=%s WATCHDOG_USEC=%s", os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"))
	}
	if err := parent.Ready(); err != nil {
		return 9
	}
	if r == "immortal" {
		say("serving")
	}
	for {
		select {
		case <-hup:
			say("reload")
		case <-ctx.Done():
			say("stop")
			return 0
		}
	}
}

// stage is where children say what happens to them.
type stage struct {
	t     *testing.T
	env   string
	lines chan string // "start PID", "stop", ..., and "end" when a child's connection closed
}

func newStage(t *testing.T) *stage {
	path := filepath.Join(t.TempDir(), "stage.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, env: socket + "=" + path, lines: make(chan string, 100)}
	var readers sync.WaitGroup
	readers.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			readers.Go(func() {
				defer c.Close()
				for in := bufio.NewScanner(c); in.Scan(); {
					s.lines <- in.Text()
				}
				s.lines <- "end"
			})
		}
	})
	t.Cleanup(func() { l.Close(); readers.Wait() })
	return s
}

// expect waits for the next line and returns what follows the wanted beginning.
func (s *stage) expect(want string) string {
	s.t.Helper()
	select {
	case got := <-s.lines:
		rest, ok := strings.CutPrefix(got, want)
		if !ok {
			s.t.Fatalf("a child said %q, want %q", got, want)
		}
		return strings.TrimSpace(rest)
	case <-time.After(20 * time.Second):
		s.t.Fatalf("no child said %q", want)
		return ""
	}
}

func (s *stage) pid() (pid int) {
	s.t.Helper()
	if _, err := fmt.Sscan(s.expect("start"), &pid); err != nil {
		s.t.Fatal(err)
	}
	return pid
}

func (s *stage) child(name, r string) Child {
	return Child{Name: name, Env: []string{s.env, role + "=" + r, quick}}
}

// run starts a supervisor and returns how to stop it and to get its error.
func run(t *testing.T, cfg Config) (stop func(), wait func() error) {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Output == nil {
		cfg.Output = io.Discard
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	return stop, func() error {
		select {
		case err := <-done:
			return err
		case <-time.After(20 * time.Second):
			t.Fatal("the supervisor did not end")
			return nil
		}
	}
}

func TestChildrenAreStartedAndStoppedInOrder(t *testing.T) {
	s := newStage(t)
	ready := make(chan struct{})
	stop, wait := run(t, Config{
		Children: []Child{s.child("front", "serves")},
		Exited:   func(e Exit) { t.Errorf("exit reported: %v", e) },
		Ready:    func() { close(ready) },
	})
	s.pid()
	<-ready
	stop()
	s.expect("stop")
	s.expect("end")
	if err := wait(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestAKilledChildIsReportedAtOnceAndStartedAgain(t *testing.T) {
	s := newStage(t)
	exits := make(chan Exit, 10)
	ready := make(chan struct{})
	var log strings.Builder
	stop, wait := run(t, Config{
		Children: []Child{s.child("worker", "serves")},
		Exited:   func(e Exit) { exits <- e },
		Ready:    func() { close(ready) },
		Log:      slog.New(slog.NewJSONHandler(&log, nil)),
	})
	pid := s.pid()
	<-ready
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := <-exits
	if e.Child != "worker" || e.PID != pid || e.Signal != syscall.SIGKILL || e.Code != -1 || e.Restarts != 1 || e.Pause != firstPause {
		t.Errorf("exit = %+v", e)
	}
	if d := e.At.Sub(killed); d > 2*time.Second {
		t.Errorf("reported %v after the kill", d)
	}
	s.expect("end")
	if again := s.pid(); again == pid {
		t.Error("the same process again")
	}
	stop()
	s.expect("stop")
	if err := wait(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if want := `"exit":{"child":"worker","pid":` + fmt.Sprint(pid) + `,"cause":"signal SIGKILL"`; !strings.Contains(log.String(), want) {
		t.Errorf("the log has no %s:\n%s", want, log.String())
	}
}

func TestACrashIsReportedWithTheLastLines(t *testing.T) {
	s := newStage(t)
	exits := make(chan Exit, 10)
	var out strings.Builder
	stop, wait := run(t, Config{
		Children: []Child{s.child("worker", "crashes")},
		Exited:   func(e Exit) { exits <- e },
		Output:   &out,
	})
	for i, pause := range []time.Duration{firstPause, 2 * firstPause} {
		e := <-exits
		var want []string
		for n := 11; n < 30; n++ {
			want = append(want, fmt.Sprint("line ", n))
		}
		if want = append(want, "no end of line"); !slices.Equal(e.Output, want) {
			t.Errorf("output = %q, want %q", e.Output, want)
		}
		if e.Code != 5 || e.Cause() != "exit code 5" || e.Restarts != i+1 || e.Pause != pause {
			t.Errorf("exit = %+v, want code 5, restart %d after %v", e, i+1, pause)
		}
	}
	stop()
	if err := wait(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if !strings.HasPrefix(out.String(), "line 0\nline 1\n") {
		t.Errorf("passed on: %q", out.String())
	}
}

func TestAChildThatRefusesToStartEndsTheNode(t *testing.T) {
	s := newStage(t)
	var out strings.Builder
	_, wait := run(t, Config{
		Children: []Child{s.child("front", "refuses"), s.child("worker", "serves")},
		Exited:   func(e Exit) { t.Errorf("exit reported: %v", e) },
		Ready:    func() { t.Error("the node became ready") },
		Output:   &out,
	})
	err := wait()
	if want := "a process of the node could not start: front ended with exit code 3 before it was ready; its reason is above"; !errors.Is(err, ErrStart) || err.Error() != want {
		t.Errorf("Run = %v, want %s", err, want)
	}
	if out.String() != "the data directory is of another cluster\n" {
		t.Errorf("output = %q", out.String())
	}
}

func TestAStubbornChildIsKilled(t *testing.T) {
	s := newStage(t)
	ready := make(chan struct{})
	stop, wait := run(t, Config{
		Children: []Child{s.child("front", "stubborn")},
		Ready:    func() { close(ready) },
		Stop:     50 * time.Millisecond,
	})
	s.pid()
	<-ready
	stop()
	s.expect("end")
	if err := wait(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestAReloadReachesSystemdAndTheChildren(t *testing.T) {
	s := newStage(t)
	states := systemd(t)
	ready := make(chan struct{})
	answers := make(chan error, 2)
	stop, wait := run(t, Config{
		Children: []Child{s.child("front", "environment")},
		Ready:    func() { close(ready) },
		Reload:   func() error { return <-answers },
	})
	s.pid()
	s.expect("NOTIFY_SOCKET= WATCHDOG_USEC=")
	<-ready
	expect := func(want string) {
		t.Helper()
		if got, _, _ := strings.Cut(<-states, "\n"); got != want {
			t.Errorf("systemd was told %q, want %q", got, want)
		}
	}
	expect("READY=1")
	answers <- errors.New("f:1: wrong")
	hangup(t)
	expect("RELOADING=1")
	expect("READY=1")
	answers <- nil
	hangup(t)
	s.expect("reload") // and only one: the first did not get through
	expect("RELOADING=1")
	expect("READY=1")
	stop()
	s.expect("stop")
	expect("STOPPING=1")
	if err := wait(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if len(answers) != 0 {
		t.Error("Reload was not called for each signal")
	}
}

func hangup(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// systemd stands in for the service manager's socket.
func systemd(t *testing.T) <-chan string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify.sock")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	states := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			states <- string(b[:n])
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return states
}

func TestTheWatchdogIsPingedWhileAlive(t *testing.T) {
	states := systemd(t)
	t.Setenv("WATCHDOG_USEC", "10000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watchdog(ctx, slog.New(slog.DiscardHandler), func() bool {
			if asked++; asked == 5 {
				cancel()
			}
			return asked < 4
		})
	}()
	<-done
	for range 3 {
		if got := <-states; got != "WATCHDOG=1" {
			t.Errorf("systemd was told %q", got)
		}
	}
	if len(states) != 0 {
		t.Errorf("systemd was told %q by a process that is not alive", <-states)
	}
}

func TestChildrenDieWithTheSupervisor(t *testing.T) {
	for _, tt := range []struct {
		name, inner string
		lines       []string // the last one after the supervisor's end
	}{
		{"by the kernel", "deaf", []string{"start", "end"}},
		{"by the pipe, should the kernel fail", "immortal", []string{"start", "serving", "stop"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStage(t)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), s.env, role+"=supervisor", role+"_INNER="+tt.inner)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			last := len(tt.lines) - 1
			for _, line := range tt.lines[:last] {
				s.expect(line)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			cmd.Wait() // it was killed
			s.expect(tt.lines[last])
		})
	}
}

func TestAProcessStartedByHandHasNoSupervisor(t *testing.T) {
	ctx, p := Attach(t.Context())
	if ctx != t.Context() {
		t.Error("the context is not the caller's")
	}
	if err := p.Ready(); err != nil {
		t.Errorf("Ready = %v", err)
	}
}

func TestThePauseDoublesAndBeginsAnew(t *testing.T) {
	var b backoff
	ms := time.Millisecond
	for i, step := range []struct{ ran, want time.Duration }{
		{0, 100 * ms}, {0, 200 * ms}, {29 * time.Second, 400 * ms}, {0, 800 * ms}, {0, 1600 * ms}, {0, 3200 * ms},
		{0, 5 * time.Second}, {0, 5 * time.Second}, {30 * time.Second, 100 * ms}, {0, 200 * ms},
	} {
		if got := b.pause(step.ran); got != step.want {
			t.Errorf("pause %d after %v = %v, want %v", i, step.ran, got, step.want)
		}
	}
}

func TestLongOutputIsCutIntoLines(t *testing.T) {
	var out strings.Builder
	tl := &tail{out: &out}
	long := strings.Repeat("x", 3*maxLine+5)
	for _, part := range []string{"a", "b\nc", "\n", "\n", long, "\nlast"} {
		if n, err := tl.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	full := strings.Repeat("x", maxLine)
	want := []string{"ab", "c", "", full, full, full, "xxxxx", "last"}
	if got := tl.end(); !slices.Equal(got, want) {
		t.Errorf("%d lines, want %d", len(got), len(want))
	}
	if out.String() != "ab\nc\n\n"+long+"\nlast" {
		t.Errorf("passed on %d bytes, not what was written", out.Len())
	}
}
