package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bellwether/appliance/config"
	"bellwether/appliance/localcluster"
	"bellwether/appliance/localcluster/loopback"
	"bellwether/appliance/supervisor"
	"bellwether/appliance/workerlink"
	"bellwether/controller/api"
	"bellwether/controller/link"
)

const within = 15 * time.Second // for anything that must happen

// TestMain is also the program that the supervisor starts.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[2] == "-c" {
		n := &Node{Version: "v1", File: os.Args[3], Log: os.Stderr}
		run := map[string]func(context.Context) error{"front-process": n.Front, "worker-process": n.Worker}[os.Args[1]]
		if err := run(untilTold()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// untilTold is the context of a process that ends at SIGTERM.
func untilTold() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	return ctx
}

// text is a log that may be read while it is written.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// single is a cluster of one node, with a worker of each kind.
type single struct {
	*localcluster.Node
	t    *testing.T
	log  *text
	stop func() error
}

func prepare(t *testing.T, isolation config.Isolation) *single {
	t.Helper()
	dir, err := os.MkdirTemp("", "bw-node-") // short: it holds unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, err := localcluster.Create(localcluster.Spec{
		Dir: dir, Domain: "ims.test", Isolation: string(isolation),
		Nodes: []localcluster.NodeSpec{{Name: "n1", Address: loopback.Network()(1), Workers: []string{"p1", "i1", "s1"}}},
		PortP: 5060, PortI: 4060, PortS: 6060, PortNode: 7400, PortHTTP: 9090,
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &single{Node: c.Nodes[0], t: t, log: new(text)}
	t.Cleanup(n.Admin.Close)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", n.log)
		}
	})
	return n
}

func (n *single) node() *Node { return &Node{Version: "v1", File: n.ConfigFile(), Log: n.log} }

// begin runs the node until the test's end, and returns when it serves.
func (n *single) begin() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.node().Run(ctx) }()
	n.stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(within):
			return errors.New("it does not stop")
		}
	})
	n.t.Cleanup(func() {
		if err := n.stop(); err != nil {
			n.t.Error(err)
		}
	})
	n.status("all workers are connected", func(st api.Status) bool {
		up := 0
		for _, w := range st.Workers {
			if w.Connected {
				up++
			}
		}
		return up == 3 && strings.Contains(n.log.String(), "node is up")
	})
}

func (n *single) status(what string, ok func(api.Status) bool) {
	n.t.Helper()
	var st api.Status
	n.eventually(what, func() bool {
		var err error
		st, err = n.Admin.Status(n.t.Context())
		return err == nil && ok(st)
	})
}

func (n *single) eventually(what string, ok func() bool) {
	n.t.Helper()
	end := time.After(within)
	for !ok() {
		select {
		case <-end:
			n.t.Fatalf("not true: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// says waits for a line of the log that has all parts.
func (n *single) says(from int, parts ...string) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("the log says %q", parts), func() bool {
		for line := range strings.Lines(n.log.String()[from:]) {
			found := 0
			for _, p := range parts {
				if strings.Contains(line, p) {
					found++
				}
			}
			if found == len(parts) {
				return true
			}
		}
		return false
	})
}

// edit replaces text of the configuration file.
func (n *single) edit(old, new string) {
	n.t.Helper()
	b, err := os.ReadFile(n.ConfigFile())
	if err != nil {
		n.t.Fatal(err)
	}
	if !strings.Contains(string(b), old) {
		n.t.Fatalf("no %q in the configuration:\n%s", old, b)
	}
	if err := os.WriteFile(n.ConfigFile(), []byte(strings.Replace(string(b), old, new, 1)), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// child returns the process id of a child process of this one.
func child(t *testing.T, name string) int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lists {
		b, _ := os.ReadFile(l) // a thread may have ended
		for _, pid := range strings.Fields(string(b)) {
			args, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if words := strings.Split(string(args), "\x00"); len(words) > 1 && words[1] == name {
				n, err := strconv.Atoi(pid)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
	}
	return 0
}

func TestANodeServesAndStopsInBothIsolations(t *testing.T) {
	for _, isolation := range []config.Isolation{config.None, config.Process} {
		t.Run(string(isolation), func(t *testing.T) {
			n := prepare(t, isolation)
			n.begin()
			if err := n.node().Run(t.Context()); err == nil || !strings.Contains(err.Error(), "a node runs already in node.data_dir") {
				t.Errorf("a second one on the same data: %v", err)
			}
			if err := n.stop(); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(n.AdminSocket()); err == nil {
				t.Error("the admin socket is left")
			}
			// A reload that comes too late ends nobody.
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Error(err)
			}
			n.begin() // everything it held is free again
		})
	}
}

func TestReload(t *testing.T) {
	for _, isolation := range []config.Isolation{config.None, config.Process} {
		t.Run(string(isolation), func(t *testing.T) {
			n := prepare(t, isolation)
			n.edit("sip:\n", "log:\n  level: info\nsip:\n  t1_ms: 500\n")
			n.begin()
			ctx := t.Context()

			n.edit("t1_ms: 500", "t1_ms: 600")
			n.edit("{id: i1, kind: i-cscf}", "{id: i7, kind: i-cscf}")
			mark := len(n.log.String())
			r, err := n.Admin.Reload(ctx)
			if err != nil || len(r.Applied) != 1 || r.Applied[0] != (api.Change{Key: "sip.t1_ms", Old: "500", New: "600"}) || len(r.Pending) != 1 || r.Pending[0].Key != "workers" {
				t.Errorf("reload %+v, %v", r, err)
			}
			if isolation == config.Process {
				n.says(mark, "configuration reloaded", "process=worker", "sip.t1_ms", "need_restart=[workers]")
			}
			if r, err := n.Admin.Reload(ctx); err != nil || len(r.Applied) != 0 || len(r.Pending) != 1 {
				t.Errorf("once more: %+v, %v", r, err)
			}

			n.edit("level: info", "level: loud")
			_, err = n.Admin.Reload(ctx)
			if err == nil || !strings.Contains(err.Error(), "bellwether.yaml:") {
				t.Errorf("a wrong file: %v", err)
			}
			mark = len(n.log.String())
			n.edit("level: loud", "level: warn")
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			if isolation == config.None {
				// The node logs nothing below a warning from now on.
				n.edit("level: warn", "level: loud")
				n.eventually("a second signal is heard", func() bool {
					_ = syscall.Kill(os.Getpid(), syscall.SIGHUP)
					return strings.Contains(n.log.String()[mark:], "nothing was changed")
				})
				return
			}
			n.eventually("every process has the level", func() bool {
				cfg, err := readConfig(filepath.Join(n.RunDir(), "config.json"))
				return err == nil && cfg.Log.Level == slog.LevelWarn && cfg.SIP.T1 == 600*time.Millisecond
			})

			// A child that is started again runs as the others do, whatever
			// the file says now.
			n.edit("level: warn", "level: loud")
			old := child(t, "worker-process")
			if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			n.status("the end of the worker process is reported", func(st api.Status) bool {
				for _, a := range st.Alarms {
					if a.Code == "child_crashed:worker" && strings.Contains(a.Text, "SIGKILL") {
						return true
					}
				}
				return false
			})
			n.status("all workers are back", func(st api.Status) bool {
				for _, w := range st.Workers {
					if !w.Connected || w.ID == "i7" {
						return false
					}
				}
				return child(t, "worker-process") != old
			})
		})
	}
}

// TestANodeInOneProcessThatCannotStart says why, once, and leaves nothing.
func TestANodeInOneProcessThatCannotStart(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(n *single) (mend func())
		says  string
	}{
		{"the front has no port", func(n *single) func() {
			l, err := net.Listen("tcp", netAddr(n))
			if err != nil {
				n.t.Fatal(err)
			}
			return func() { l.Close() }
		}, "cluster port"},
		{"the worker has no store", func(n *single) func() {
			file := filepath.Join(n.DataDir(), "store")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				n.t.Fatal(err)
			}
			return func() { os.Remove(file) }
		}, "open the store"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := prepare(t, config.None)
			mend := tt.spoil(n)
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			err := n.node().Run(ctx)
			if err == nil || ctx.Err() != nil || strings.Count(err.Error(), tt.says) != 1 {
				t.Errorf("error %v, want one with %q", err, tt.says)
			}
			if strings.Contains(n.log.String(), "node is up") {
				t.Error("it said that it is up")
			}
			mend()
			n.begin()
		})
	}
}

func netAddr(n *single) string { return n.Address.String() + ":7400" }

func TestWhatANodeNeeds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(n *single) error
		says  string
	}{
		{"no file", func(n *single) error { return os.Remove(n.ConfigFile()) }, "read configuration"},
		{"no certificates", func(n *single) error { return os.RemoveAll(filepath.Join(n.DataDir(), "pki")) }, "belongs to no cluster yet"},
		{"no place for sockets", func(n *single) error { return os.WriteFile(n.RunDir(), nil, 0o600) }, "node.run_dir"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := prepare(t, config.None)
			if err := tt.spoil(n); err != nil {
				t.Fatal(err)
			}
			for role, run := range map[string]func(context.Context) error{"node": n.node().Run, "front": n.node().Front, "worker": n.node().Worker} {
				if err := run(t.Context()); err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%s: %v, want an error with %q", role, err, tt.says)
				}
			}
		})
	}
}

func TestTheConfigurationInUseIsKeptWhole(t *testing.T) {
	n := prepare(t, config.Process)
	want, err := config.Load(n.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	want.Log.Level = slog.LevelDebug
	file := filepath.Join(t.TempDir(), "c")
	if err := writeConfig(file, want); err != nil {
		t.Fatal(err)
	}
	got, err := readConfig(file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readConfig(file); err == nil {
		t.Error("half a file is a configuration")
	}
}

// reports is a front that takes reports of ended processes.
type reports struct {
	nobody
	got chan workerlink.ChildExitMsg
}

func (r reports) Call(_ *link.Conn, method string, payload []byte) ([]byte, error) {
	var m workerlink.ChildExitMsg
	if method != workerlink.ChildExit {
		return nil, errors.New(method)
	}
	err := workerlink.Decode(payload, &m)
	r.got <- m
	return nil, err
}

func TestEndsOfProcessesAreReportedWhenTheFrontIsBack(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "link.sock")
	x := newExits(socket, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 3 * maxExits { // a front that is away for long
		x.add(supervisor.Exit{Child: "worker", Signal: syscall.SIGKILL, Restarts: i + 1, At: time.Now()})
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { x.run(ctx) })
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r := reports{got: make(chan workerlink.ChildExitMsg, 3*maxExits)}
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { link.New(nc, r, link.Options{}).Run() })
		}
	})
	defer l.Close()
	for i := range maxExits {
		m := <-r.got
		if want := 2*maxExits + i + 1; m.Restarts != want || m.Reason != "signal SIGKILL" {
			t.Errorf("report %d is %+v, want number %d", i, m, want)
		}
	}
	x.add(supervisor.Exit{Child: "front", Code: 2, Restarts: 99})
	if m := <-r.got; m.Child != "front" || m.Reason != "exit code 2" {
		t.Errorf("report %+v", m)
	}
}
