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
	r := run(t, Hooks{}, "", "status", "--watch", "--socket", node(t, src))
	lines := strings.Split(r.out, "\n")
	first := "UTC: n2, term 7, quorum held, nodes 1 of 2, workers 1 of 2, users 1, calls 1, alarms 1"
	second := "2026-11-30 12:00:05 UTC: no leader, term 7, NO QUORUM, nodes 1 of 2, workers 1 of 2, users 0, calls 2, alarms 0"
	if len(lines) != 3 || !strings.HasSuffix(lines[0], first) || lines[1] != second {
		t.Errorf("printed %q", r.out)
	}
	if r.err != "bellwether: the node ended; see its log\n" || r.code != Failed {
		t.Errorf("ended as %+v", r)
	}

	r = run(t, Hooks{}, "", "status", "-w", "--json", "--socket", node(t, src))
	var got []api.Status
	for dec := json.NewDecoder(strings.NewReader(r.out)); dec.More(); {
		var s api.Status
		if err := dec.Decode(&s); err != nil {
			t.Fatalf("%q: %v", r.out, err)
		}
		got = append(got, s)
	}
	if len(got) != 3 || got[0].Leader != "n2" || got[2].Calls != 2 {
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
	if s := screen.String(); !strings.HasPrefix(s, "\x1b[H\x1b[2J") || !strings.Contains(s, "(Ctrl+C ends)\r\n\r\nCluster      k7, domain example.test\r\n") {
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
