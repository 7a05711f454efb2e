package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bellwether/appliance/localcluster/loopback"
	"bellwether/appliance/node"
)

// TestMain is also the program that the demo and its nodes start.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[2] == "-c" {
		n := &node.Node{Version: "v1", File: os.Args[3], Log: os.Stderr}
		run := map[string]func(context.Context) error{"node": n.Run, "front-process": n.Front, "worker-process": n.Worker}[os.Args[1]]
		ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		if err := run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestGuestIsChallengedWithMD5Only(t *testing.T) {
	g := guest("alice", "secret")
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	if g.HA1.MD5 == "" || g.HA1.SHA256 != "" {
		t.Error("a phone that knows only MD5 cannot register as the guest")
	}
}

// progress is what the demo says; at a word it calls a function.
type progress struct {
	mu   sync.Mutex
	b    bytes.Buffer
	word string
	do   func()
}

func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.b.Write(b)
	if p.word != "" && strings.Contains(p.b.String(), p.word) {
		p.word = ""
		p.do()
	}
	return len(b), nil
}

func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// options are those of a demo beside which others may run, and the directory
// where it puts its own.
func options(t *testing.T) (o Options, tmp string, out *bytes.Buffer, said *progress) {
	t.Helper()
	t.Parallel()
	tmp, err := os.MkdirTemp("", "bw-demo-") // short: it holds unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, said = new(bytes.Buffer), new(progress)
	return Options{Binary: self, Plain: true, Out: out, Err: said, host: loopback.Network(), tmp: tmp, phones: 12}, tmp, out, said
}

// left lists what a demo left: files, and processes that were started with a
// file in its directory.
func left(t *testing.T, tmp string) []string {
	t.Helper()
	var out []string
	files, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		out = append(out, f.Name())
	}
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(tmp)) {
			out = append(out, string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
		}
	}
	return out
}

func TestAnInterruptedDemoLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		name, word string
		keep       bool
		ran        bool // far enough for a result
	}{
		{"while nodes start", "Starting three nodes", false, false},
		{"while nodes start, of a demo that was to be kept", "Starting three nodes", true, false},
		{"while phones register", "registering their phones", false, false},
		{"while phones call", "Calling", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, tmp, out, said := options(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			said.word, said.do, o.Keep, o.JSON = tt.word, cancel, tt.keep, true
			err := Run(ctx, o)
			if got := left(t, tmp); len(got) > 0 {
				t.Errorf("left are %q", got)
			}
			if !tt.ran {
				if !errors.Is(err, context.Canceled) || out.Len() > 0 {
					t.Errorf("error %v, output %q; it said:\n%s", err, out, said)
				}
				return
			}
			var res Result
			if jerr := json.Unmarshal(out.Bytes(), &res); jerr != nil || res.Registered != o.phones || res.Nodes != 3 || res.Leader == "" || res.UpMS == 0 {
				t.Errorf("result %q, %v; Run: %v", out, jerr, err)
			}
		})
	}
}

func TestADemoThatCannotBeginLeavesNothing(t *testing.T) {
	o, tmp, _, _ := options(t)
	o.Keep = true
	taken := netip.AddrPortFrom(o.host(2), 7400)
	l, err := net.Listen("tcp", taken.String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), taken.String()) {
		t.Errorf("error %v", err)
	}
	if got := left(t, tmp); len(got) > 0 {
		t.Errorf("left are %q", got)
	}
	l.Close()
	o.Binary = filepath.Join(tmp, "nothing")
	if err := Run(t.Context(), o); err == nil {
		t.Error("without a program it runs")
	}
	if got := left(t, tmp); len(got) > 0 {
		t.Errorf("left are %q", got)
	}
}

// TestAKeptDemoGoesOnAndCanBeStopped as it says.
func TestAKeptDemoGoesOnAndCanBeStopped(t *testing.T) {
	o, tmp, out, said := options(t)
	o.Keep, o.For = true, 100*time.Millisecond
	err := Run(t.Context(), o)
	if err != nil && !errors.Is(err, ErrFailed) { // calls are judged elsewhere
		t.Fatal(err)
	}
	for _, part := range []string{"3 nodes, n", "12 phones registered (6 with AKA, 3 over TCP)", "audio packets"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in the result:\n%s", part, out)
		}
	}
	stop := regexp.MustCompile(`kill ([0-9 ]+); rm -r (\S+)`).FindStringSubmatch(said.String())
	if stop == nil || filepath.Dir(stop[2]) != tmp {
		t.Fatalf("it does not say how to stop it:\n%s", said)
	}
	for _, pid := range strings.Fields(stop[1]) {
		n, err := strconv.Atoi(pid)
		if err == nil {
			err = syscall.Kill(n, syscall.SIGTERM)
		}
		if err != nil {
			t.Error(err)
		}
	}
	end := time.After(15 * time.Second)
	for len(left(t, tmp)) > 1 { // the directory
		select {
		case <-end:
			t.Fatalf("left are %q", left(t, tmp))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestVerdict(t *testing.T) {
	good := Result{Nodes: 3, Registered: 12, CallsOK: 9, AudioOK: true}
	if err := good.verdict(3, 12); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(r *Result){
		"a failed call":        func(r *Result) { r.CallsFailed = 1 },
		"a missing phone":      func(r *Result) { r.Registered-- },
		"a call without audio": func(r *Result) { r.AudioOK = false },
		"a missing node":       func(r *Result) { r.Nodes-- },
	} {
		r := good
		r.Failures = []string{"1 × why"}
		spoil(&r)
		if err := r.verdict(3, 12); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "why") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
