package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bellwether/controller/api"
)

func TestAWatchPrintsALineForEachChange(t *testing.T) {
	src := cluster()
	changed := src.State
	changed.Leader, changed.Quorum, changed.Calls, changed.Alarms = "", false, 2, nil
	again := changed
	again.Term = 7
	src.WatchFrom = func(send func(api.Event) bool) {
		for _, s := range []*api.Status{&changed, nil, &again} {
			send(api.Event{Type: "status", Time: at(5), Status: s})
		}
	}
	socket := node(t, src)
	r := watchOf(t, "status", "--watch", "--socket", socket)
	lines := strings.Split(r.out, "\n")
	want := []string{
		"UTC: n2, term 7, quorum held, nodes 1 of 2, workers 1 of 2, users 1, calls 1, alarms 1",
		alarmText(src.State.Alarms[0]),
		"2026-11-30 12:00:05 UTC: no leader, term 7, NO QUORUM, nodes 1 of 2, workers 1 of 2, users 0, calls 2, alarms 0",
		"2026-11-30 12:00:05 UTC: over: " + src.State.Alarms[0].Text,
	}
	if len(lines) < len(want) {
		t.Fatalf("printed %q", r.out)
	}
	for i, w := range want {
		if !strings.HasSuffix(lines[i], w) {
			t.Errorf("line %d is %q, want %q at its end", i, lines[i], w)
		}
	}
	if r.err != "bellwether: the node ended, or was restarted; waiting for it\n" || r.code != OK {
		t.Errorf("ended as %+v", r)
	}

	r = watchOf(t, "status", "-w", "--json", "--socket", socket)
	var got []api.Status
	for dec := json.NewDecoder(strings.NewReader(r.out)); dec.More(); {
		var s api.Status
		if err := dec.Decode(&s); err != nil {
			t.Fatalf("%q: %v", r.out, err)
		}
		got = append(got, s)
	}
	if len(got) < 3 || got[0].Leader != "n2" || got[2].Calls != 2 {
		t.Errorf("printed %q", r.out)
	}
}

// watchOf interrupts a watch once it has lost its node.
func watchOf(t *testing.T, args ...string) result {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out, said strings.Builder
	code := Run(ctx, args, IO{strings.NewReader(""), &out, writerFunc(func(b []byte) (int, error) {
		interrupt()
		return said.Write(b)
	})}, Hooks{})
	return result{out.String(), said.String(), code}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestAWatchGoesOnWhenItsNodeIsRestarted(t *testing.T) {
	src := cluster()
	src.WatchFrom = func(func(api.Event) bool) {} // it ends after the first status
	ctx, interrupt := context.WithCancel(t.Context())
	shown := 0
	out := writerFunc(func(b []byte) (int, error) {
		if shown++; shown == 2 {
			interrupt()
		}
		return len(b), nil
	})
	if code := Run(ctx, []string{"status", "-w", "--json", "--socket", node(t, src)}, IO{strings.NewReader(""), out, io.Discard}, Hooks{}); code != OK || shown != 2 {
		t.Errorf("code %d after %d states", code, shown)
	}
}

func TestAWatchFitsItsTerminal(t *testing.T) {
	_, tty := terminal(t)
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 60, Row: 12}); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	a := &app{out: bufio.NewWriter(&out)}
	s := cluster().State
	if err := a.redraw(tty, api.Event{Time: at(5), Status: &s}); err != nil {
		t.Fatal(err)
	}
	_ = a.out.Flush()
	lines := strings.Split(strings.TrimPrefix(out.String(), "\x1b[H\x1b[2J"), "\n")
	if len(lines) != 12 || !strings.HasPrefix(lines[2], "Cluster ") || !strings.Contains(lines[10], "more lines") {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	for _, l := range lines {
		if len(l) > 60 {
			t.Errorf("%q is wider than 60 columns", l)
		}
	}
}

func TestAStatusBeforeTheClusterBegan(t *testing.T) {
	src := cluster()
	src.State.Cluster, src.State.Name = "", ""
	r := run(t, Hooks{}, "", "status", "--socket", node(t, src))
	if !strings.HasPrefix(r.out, "Cluster      not begun yet, domain example.test\n") {
		t.Errorf("printed %q", r.out)
	}
}

func TestAWatchRedrawsATerminalUntilItIsInterrupted(t *testing.T) {
	user, tty := terminal(t)
	socket := node(t, cluster())
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		done <- Run(ctx, []string{"status", "-w", "--socket", socket}, IO{strings.NewReader(""), tty, io.Discard}, Hooks{})
	}()
	in := bufio.NewReader(user)
	var screen strings.Builder
	for !strings.Contains(screen.String(), "see its log") {
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		screen.WriteString(line)
	}
	interrupt()
	if code := <-done; code != OK {
		t.Errorf("code %d, want %d", code, OK)
	}
	if s := screen.String(); !strings.HasPrefix(s, "\x1b[H\x1b[2J") || !strings.Contains(s, "(Ctrl+C ends)\r\n\r\nCluster      lab (k7), domain example.test\r\n") {
		t.Errorf("the screen is %q", s)
	}
}

func TestANodeThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", socket) // connections wait to be accepted
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	commands := []string{"status", "status --watch", "subscriber list"}
	results := make(chan result, len(commands))
	for _, c := range commands {
		go func() { results <- run(t, Hooks{}, "", append(strings.Fields(c), "--socket", socket)...) }()
	}
	for range commands {
		r := <-results
		r.is(t, "", "bellwether: the node did not answer within 3s; see its log, then try again\n", Failed)
	}
}
