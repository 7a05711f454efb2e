package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"bellwether/appliance/config"
	"bellwether/controller/admin"
	"bellwether/controller/admin/admintest"
	"bellwether/controller/api"
)

// result is what a command line did.
type result struct {
	out, err string
	code     int
}

// run runs a command line; stdin is not a terminal.
func run(t *testing.T, h Hooks, stdin string, args ...string) result {
	t.Helper()
	var out, err strings.Builder
	code := Run(t.Context(), args, IO{strings.NewReader(stdin), &out, &err}, h)
	return result{out.String(), err.String(), code}
}

func (r result) is(t *testing.T, out, err string, code int) {
	t.Helper()
	if d := cmp.Diff(r, result{out, err, code}, cmp.AllowUnexported(result{})); d != "" {
		t.Error(d)
	}
}

// node serves the admin API from src and returns its socket.
func node(t *testing.T, src admin.Source) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := admin.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- admin.Serve(ctx, l, admin.Handler(src), slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return path
}

// Times are shown in the zone of the machine.
func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Exit(m.Run())
}

func at(d int) time.Time { return time.Date(2026, 11, 30, 12, 0, d, 0, time.Local) }

func cluster() *admintest.Source {
	return &admintest.Source{
		State: api.Status{
			Cluster: "k7", Name: "lab", Domain: "example.test", Node: "n1", Version: "1.2", Leader: "n2", Term: 7, Quorum: true,
			Nodes: []api.Node{
				{Name: "n1", Address: "10.0.0.1:7400", Service: "10.0.0.1", Controller: true, Connected: true, Version: "1.2"},
				{Name: "n2", Address: "10.0.0.2:7400", Service: "10.0.0.2", Controller: true, Leader: true, Version: "1.2"},
			},
			Workers: []api.Worker{
				{ID: "p1", Kind: "p-cscf", Node: "n1", Group: 1, Serving: "p1", Users: 3, Load: 0.25, Connected: true},
				{ID: "s1", Kind: "s-cscf", Node: "n2", Group: 2, Serving: "s1", Calls: new(int)},
			},
			Refused: map[string]uint64{"malformed": 5, "source-limited": 12, "banned": 0}, Received: 99, Bans: 1,
			Alarms: []api.Alarm{{Code: "child_crashed", Severity: "warning", Node: "n2", Since: at(0), Text: "the worker process ended with signal SIGKILL", WhatToDo: "see its log"}},
		},
		Registered: []api.User{{
			Identity: "sip:alice@example.test", IMPI: "alice@example.test", Identities: []string{"sip:alice@example.test", "tel:+491"},
			PCSCF: api.Serving{Home: "p1", Serving: "p1"}, SCSCF: api.Serving{Home: "s1", Serving: "s2"},
			Contacts: []api.Contact{{URI: "sip:alice@192.0.2.7:5060", Flow: "udp 10.0.0.1:5060 192.0.2.7:5060", Q: 0.5, Expires: at(2)}},
			Path:     []string{"<sip:t@10.0.0.1;lr>"}, ServiceRoute: []string{"<sip:u@10.0.0.2:6060;lr>"}, Expires: at(2),
		}},
		CallList: []api.Call{{CallID: "x@\x1b[31my", From: "sip:alice@example.test", To: "sip:bob@example.test", State: "ringing", Started: at(1), POrig: "p1", SOrig: "s1", I: "i1", STerm: "s1", PTerm: "p1"}},
		Release:  api.Version{Version: "1.2", Go: "go1.26", Node: "n1"},
		Reloaded: api.Reload{
			Applied: []api.Change{{Key: "log.level", Old: "INFO", New: "DEBUG"}},
			Pending: []api.Change{{Key: "sip.p_cscf", Old: "5060", New: "5070"}},
		},
	}
}

func TestTablesShowWhatTheNodeSays(t *testing.T) {
	socket := node(t, cluster())
	for _, tt := range []struct{ command, want string }{
		{"status", `Cluster      lab (k7), domain example.test
Leader       n2, term 7, quorum held
Answered by  n1, version 1.2
Users        1 registered, 0 subscribers
Calls        1
Refused      17 of 99 messages since n1 began: source-limited 12, malformed 5; 1 source banned, see bellwether ban list

NODE  CLUSTER ADDRESS  SERVICE ADDRESS  ROLE        CONNECTED  VERSION
n1    10.0.0.1:7400    10.0.0.1         controller  yes        1.2
n2    10.0.0.2:7400    10.0.0.2         leader      no         1.2

WORKER  KIND    NODE  GROUP  SERVED BY  USERS  CALLS  LOAD  CONNECTED
p1      p-cscf  n1    1      p1         3      -      0.25  yes
s1      s-cscf  n2    2      s1         0      0      0.00  no

WARNING: the worker process ended with signal SIGKILL (node n2, since 2026-11-30 12:00:00 UTC); see its log
`},
		{"node list", `NODE  CLUSTER ADDRESS  SERVICE ADDRESS  ROLE        CONNECTED  VERSION
n1    10.0.0.1:7400    10.0.0.1         controller  yes        1.2
n2    10.0.0.2:7400    10.0.0.2         leader      no         1.2
`},
		{"worker list", `WORKER  KIND    NODE  GROUP  SERVED BY  USERS  CALLS  LOAD  CONNECTED
p1      p-cscf  n1    1      p1         3      -      0.25  yes
s1      s-cscf  n2    2      s1         0      0      0.00  no
`},
		{"worker show p1", `WORKER  KIND    NODE  GROUP  SERVED BY  USERS  CALLS  LOAD  CONNECTED
p1      p-cscf  n1    1      p1         3      -      0.25  yes
`},
		{"user list", `IDENTITY                IMPI                P-CSCF  S-CSCF
sip:alice@example.test  alice@example.test  p1      s1, served by s2
`},
		{"user show +491", `Identity             sip:alice@example.test
IMPI                 alice@example.test
Registered together  sip:alice@example.test tel:+491
P-CSCF               p1
S-CSCF               s1, served by s2
Path                 <sip:t@10.0.0.1;lr>
Service-Route        <sip:u@10.0.0.2:6060;lr>
Expires              2026-11-30 12:00:02 UTC
Contact              sip:alice@192.0.2.7:5060 via udp 10.0.0.1:5060 192.0.2.7:5060, q=0.5, until 2026-11-30 12:00:02 UTC
`},
		{"call list", `CALL-ID      FROM                    TO                    STATE    STARTED                  WORKERS
x@\x1b[31my  sip:alice@example.test  sip:bob@example.test  ringing  2026-11-30 12:00:01 UTC  p1 > s1 > i1 > s1 > p1
`},
		{"reload", `KEY         WAS   IS     EFFECT
log.level   INFO  DEBUG  now
sip.p_cscf  5060  5070   after a restart
`},
	} {
		t.Run(tt.command, func(t *testing.T) {
			run(t, Hooks{}, "", append(strings.Fields(tt.command), "--socket", socket)...).is(t, tt.want, "", OK)
		})
	}
}

func TestAPluralListsAndStandsForItsCommand(t *testing.T) {
	socket := node(t, cluster())
	for plural, command := range map[string]string{
		"nodes": "node list", "workers": "worker list", "users": "user list", "calls": "call list", "subscribers": "subscriber list",
		"workers show p1": "worker show p1", "cluster status": "status",
	} {
		want := run(t, Hooks{}, "", append(strings.Fields(command), "--socket", socket)...)
		if want.code != OK || want.out == "" {
			t.Errorf("%s = %+v", command, want)
		}
		run(t, Hooks{}, "", append(strings.Fields(plural), "--socket", socket)...).is(t, want.out, "", OK)
	}
}

func TestAListLongerThanAPageIsWhole(t *testing.T) {
	src := &admintest.Source{}
	for i := range api.MaxPage + 1 {
		src.Registered = append(src.Registered, api.User{Identity: "sip:x", IMPI: fmt.Sprintf("u%04d@x", i)})
	}
	r := run(t, Hooks{}, "", "user", "list", "--socket", node(t, src))
	if n := strings.Count(r.out, "\n"); n != api.MaxPage+2 || !strings.Contains(r.out, "u1000@x") {
		t.Errorf("%d lines", n)
	}
}

func TestJSONIsTheAPIsStructs(t *testing.T) {
	src := cluster()
	socket := node(t, src)
	status, _ := src.Status(t.Context())
	for _, tt := range []struct {
		command string
		want    any
	}{
		{"status", status},
		{"node list", src.State.Nodes},
		{"worker list", src.State.Workers},
		{"worker show p1", src.State.Workers[0]},
		{"user show alice@EXAMPLE.test", src.Registered[0]},
		{"user list", []api.Registration{{Identity: "sip:alice@example.test", IMPI: "alice@example.test", PCSCF: api.Serving{Home: "p1", Serving: "p1"}, SCSCF: api.Serving{Home: "s1", Serving: "s2"}}}},
		{"call list", src.CallList},
		{"reload", src.Reloaded},
		{"subscriber list", []any{}},
	} {
		t.Run(tt.command, func(t *testing.T) {
			r := run(t, Hooks{}, "", append(strings.Fields(tt.command), "--json", "--socket", socket)...)
			want, err := json.Marshal(tt.want)
			if err != nil {
				t.Fatal(err)
			}
			var got, expected any
			if err := json.Unmarshal([]byte(r.out), &got); err != nil {
				t.Fatalf("%q: %v", r.out, err)
			}
			if err := json.Unmarshal(want, &expected); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(got, expected); d != "" || r.err != "" || r.code != OK {
				t.Errorf("code %d, stderr %q, %s", r.code, r.err, d)
			}
		})
	}
}

func TestVersionNeedsNoNode(t *testing.T) {
	h := Hooks{Version: "1.3"}
	r := run(t, h, "", "version", "--json", "--socket", filepath.Join(t.TempDir(), "absent.sock"))
	if !strings.Contains(r.out, `"version": "1.3"`) || !strings.Contains(r.out, `"node": null`) || r.code != OK {
		t.Errorf("version = %+v", r)
	}
	r = run(t, h, "", "version", "--socket", node(t, cluster()))
	if !strings.HasSuffix(r.out, "\nnode n1 runs 1.2 (go1.26)\n") || r.code != OK {
		t.Errorf("version = %+v", r)
	}
	run(t, h, "", "--version").is(t, "bellwether 1.3\n", "", OK)
}

func TestCommandLinesThatMakeNoSense(t *testing.T) {
	for _, tt := range []struct{ command, want string }{
		{"statsu", `there is no command "statsu"; did you mean status?`},
		{"wrkr list", `there is no command "wrkr"; did you mean worker?`},
		{"frobnicate", `there is no command "frobnicate"; see bellwether --help`},
		{"stop", `there is no command "stop"; end bellwether node with SIGTERM, or stop its service`},
		{"subscribers ad", `there is no command "subscriber ad"; did you mean add?`},
		{"worker lst", `there is no command "worker lst"; did you mean list?`},
		{"logs", `there is no command "logs"; a node logs to standard error; as a service: journalctl -u bellwether`},
		{"alarms", `there is no command "alarms"; bellwether status shows the alarms`},
		{"node show n1", `there is no command "node show"; write bellwether node list`},
		{"worker fail p1", `there is no command "worker fail"; moving users away from a worker comes with a later release`},
		{"worker failover p1", `there is no command "worker failover"; moving users away from a worker comes with a later release`},
		{"config", "bellwether config needs a command; write one of check"},
		{"config test", `there is no command "config test"; did you mean check?`},
		{"completion ksh", `there is no command "completion ksh"; write one of bash, fish, powershell, zsh`},
		{"worker", "bellwether worker needs a command; write one of list, show"},
		{"user", "bellwether user needs a command; write one of list, show"},
		{"worker -c n1.yaml", "bellwether worker needs a command; write one of list, show"},
		{"front -c n1.yaml", `there is no command "front"; see bellwether --help`},
		{"subscriber", "bellwether subscriber needs a command; write one of add, export, import, list, remove, show"},
		{"worker show", "bellwether worker show needs the ID of a worker; see bellwether worker show --help"},
		{"worker show a b", `bellwether worker show takes no "b"; see bellwether worker show --help`},
		{"status now", `bellwether status takes no "now"; see bellwether status --help`},
		{"status --jsn", "bellwether status has no flag --jsn; did you mean --json?"},
		{"status --colour", "bellwether status has no flag --colour; see bellwether status --help"},
		{"status -x", "bellwether status has no flag -x; see bellwether status --help"},
		{"status -j", "bellwether status has no flag -j; write --json"},
		{"status --josn", "bellwether status has no flag --josn; did you mean --json?"},
		{"subscriber add a@b.test --sim", "bellwether subscriber add has no flag --sim; write --aka"},
		{"deny 192.0.2.1", `there is no command "deny"; write bellwether ban add ADDRESS`},
		{"run", `there is no command "run"; write bellwether node -c FILE`},
		{"man", `there is no command "man"; write bellwether help COMMAND`},
		{"token n2", `there is no command "token"; write bellwether cluster token NODE`},
		{"node remove n2", `there is no command "node remove"; the members of a cluster are fixed when it begins; a lost machine joins again under its name with bellwether cluster token NODE`},
		{"subscriber passwd a@b.test", `there is no command "subscriber passwd"; write bellwether subscriber add --replace, with all identities and the password or keys`},
		{"user alice", `there is no command "user alice"; write one of list, show, such as bellwether user show alice`},
		{"ban help", `there is no command "ban help"; write bellwether ban --help`},
		{"ab", `there is no command "ab"; see bellwether --help`},
		{"status --socket", "flag needs an argument: --socket; see bellwether status --help"},
		{"demo --for soon", `--for is "soon"; write a time with its unit, such as 20s`},
		{"demo --for 20", `--for is "20"; write 20s`},
		{"demo --for -1s", "--for is -1s; write how long to run, such as 20s"},
		{"user show a@b@c;x", `"sip:a@b@c;x" is not a public identity; write it as sip:user@domain or tel:+number`},
		{"help frobnicate", `there is no command "frobnicate"; see bellwether --help`},
		{"completion", "bellwether completion needs a shell; write one of bash, fish, powershell, zsh"},
		{"completion nushell", `there is no command "completion nushell"; see bellwether completion --help`},
		{"node --now", "bellwether node has no flag --now; see bellwether node --help"},
		{"subscriber add", "bellwether subscriber add needs the IMPI of a subscriber, such as alice@example.org; see bellwether subscriber add --help"},
		{"subscriber add alice", `"alice" is not an IMPI; write it as user@realm, without spaces`},
		{"subscriber add a@b.test sip:a@b.test | ", "a registration set is empty; write | only between identities"},
		{"subscriber add a@b.test ! sip:a@b.test", "! stands alone; write it right before the identity that it bars, such as '!sip:desk@example.org'"},
		{"subscriber add a@b.test tel:555", `"tel:555" is not a telephone number; write it as tel:+4930123456, or a local one as tel:12;phone-context=example.org`},
		{"subscriber add a@b.test --algorithm MD4", `invalid argument "MD4" for "--algorithm" flag: write MD5, SHA-256 or both; see bellwether subscriber add --help`},
		{"subscriber add a@b.test --ha1-stdin --algorithm MD5", "--algorithm is for a password; with --ha1-stdin, give only the HA1 to store"},
		{"subscriber add a@b.test", "there is no terminal to ask for a password at; give --password-stdin or --ha1-stdin"},
		{"subscriber add a@b.test --password-stdin --ha1-stdin", "--password-stdin and --ha1-stdin exclude each other; give one of them"},
	} {
		t.Run(tt.command, func(t *testing.T) {
			h := Hooks{Demo: func(context.Context, DemoOptions) error { t.Error("the demo ran"); return nil }}
			run(t, h, "", strings.Fields(tt.command)...).is(t, "", "bellwether: "+tt.want+"\n", Usage)
		})
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	for _, command := range []string{"", "node", "worker", "worker show", "subscriber import", "cluster", "cluster issue", "demo", "completion bash", "status", "user list", "config check"} {
		for _, args := range [][]string{append(strings.Fields(command), "--help"), append([]string{"help"}, strings.Fields(command)...)} {
			r := run(t, Hooks{}, "", args...)
			if r.code != OK || r.err != "" || !strings.Contains(r.out, "Usage:\n  bellwether") {
				t.Errorf("%v: code %d, stderr %q, stdout %q", args, r.code, r.err, r.out)
			}
			if strings.Contains(r.out, "front-process") {
				t.Errorf("%v shows a hidden command", args)
			}
		}
	}
	if r := run(t, Hooks{}, ""); r.code != OK || !strings.Contains(r.out, "Available Commands:") {
		t.Errorf("bellwether alone = %+v", r)
	}
}

func TestHelpFitsATerminal(t *testing.T) {
	root := (&app{out: bufio.NewWriter(io.Discard)}).root()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "completion" {
			return // cobra's own
		}
		c.InitDefaultHelpFlag()
		for line := range strings.Lines(c.Long + "\n" + c.UsageString()) {
			if strings.HasPrefix(line, "Use \"") {
				continue // cobra's own
			}
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > columns {
				t.Errorf("help of %s has a line of %d columns: %q", c.CommandPath(), n, line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

func TestFailuresAreOneLineAndTellWhatToDo(t *testing.T) {
	dir := t.TempDir()
	absent := filepath.Join(dir, "absent.sock")
	run(t, Hooks{}, "", "status", "--socket", absent).is(t, "",
		"bellwether: no node runs here: there is no "+absent+"; start it with bellwether node -c FILE, or name its socket with --socket\n", Failed)
	run(t, Hooks{}, "", "worker", "show", "p9", "--socket", node(t, cluster())).is(t, "",
		`bellwether: there is no worker "p9"; see bellwether worker list`+"\n", Failed)
	run(t, Hooks{}, "", "status", "--socket", node(t, &admintest.Source{Err: errors.New("disk\n\x1b[2Jfull")})).is(t, "",
		"bellwether: disk; \\x1b[2Jfull\n", Failed)
	h := Hooks{Node: func(_ context.Context, file string) error {
		return fmt.Errorf("read configuration: %w", &fs.PathError{Op: "open", Path: file, Err: fs.ErrNotExist})
	}}
	run(t, h, "", "node").is(t, "",
		"bellwether: there is no /etc/bellwether/bellwether.yaml; name a configuration with -c FILE, or write that file as the README shows\n", Failed)
	for op, want := range map[string]string{"open": "as a user who may", "mkdir": "name a directory of your own in the configuration"} {
		h.Node = func(context.Context, string) error {
			return fmt.Errorf("save it: %w", &fs.PathError{Op: op, Path: "/var/lib/x", Err: fs.ErrPermission})
		}
		run(t, h, "", "node").is(t, "", "bellwether: save it: "+op+" /var/lib/x: permission denied; run this as root, or "+want+"\n", Failed)
	}
	broken := filepath.Join(dir, "broken.yaml")
	write(t, broken, "node: {nam: n1}\n")
	r := run(t, Hooks{}, "", "status", "-c", broken)
	if lines := strings.Split(strings.TrimSpace(r.err), "\n"); r.code != Failed || len(lines) != 4 || lines[0] != broken+`:1: unknown key "node.nam"; write name` {
		t.Errorf("broken configuration: %+v", r)
	}
}

func TestTheSocketComesFromTheConfiguration(t *testing.T) {
	socket := node(t, cluster())
	file := configFile(t, t.TempDir(), "n1", filepath.Dir(socket))
	if r := run(t, Hooks{}, "", "call", "list", "-c", file); r.code != OK || !strings.Contains(r.out, "sip:bob@example.test") {
		t.Errorf("call list = %+v", r)
	}
}

func TestCompletionOffersWhatThereIs(t *testing.T) {
	src := cluster()
	socket := node(t, src)
	for _, name := range []string{"alice", "bob"} {
		if r := run(t, Hooks{}, "secret", "subscriber", "add", name+"@example.test", "--password-stdin", "--socket", socket); r.code != OK {
			t.Fatalf("add %s = %+v", name, r)
		}
	}
	n1 := configFile(t, t.TempDir(), "n1", filepath.Dir(socket))
	for _, tt := range []struct{ command, begun, want string }{
		{"worker show", "", "p1\ns1\n:4\n"},
		{"worker show", "s", "s1\n:4\n"},
		{"worker show p1", "", ":4\n"},
		{"subscriber show", "", "alice@example.test\nbob@example.test\n:4\n"},
		{"subscriber remove", "b", "bob@example.test\n:4\n"},
		{"user show", "al", "alice@example.test\n:4\n"},
		{"cluster issue", "", "n2\nn3\n:4\n"},
	} {
		if r := run(t, Hooks{}, "", append(append([]string{"__complete", "-c", n1}, strings.Fields(tt.command)...), tt.begun)...); r.out != tt.want || r.code != OK {
			t.Errorf("completion of %s %q = %+v", tt.command, tt.begun, r)
		}
	}
	if r := run(t, Hooks{}, "", "__complete", "worker", "show", "--socket", socket+"x", ""); r.out != ":4\n" || r.code != OK {
		t.Errorf("completion without a node = %+v", r)
	}
	if r := run(t, Hooks{}, "", "completion", "bash"); r.code != OK || !strings.Contains(r.out, "bash completion V2 for bellwether") {
		t.Errorf("completion bash: code %d, stderr %q", r.code, r.err)
	}
}

func TestHooksGetWhatTheFlagsSay(t *testing.T) {
	var got []string
	note := func(what string) func(context.Context, string) error {
		return func(_ context.Context, file string) error { got = append(got, what+" "+file); return nil }
	}
	var demo DemoOptions
	h := Hooks{
		Node: note("node"), Front: note("front"), Worker: note("worker"),
		Demo: func(_ context.Context, o DemoOptions) error { demo = o; fmt.Fprintln(o.Out, "{}"); return nil },
	}
	for _, command := range []string{"node", "node -c a.yaml", "front-process -c b.yaml", "worker-process --config c.yaml"} {
		if r := run(t, h, "", strings.Fields(command)...); r != (result{}) {
			t.Errorf("%s = %+v", command, r)
		}
	}
	if d := cmp.Diff(got, []string{"node " + DefaultConfig, "node a.yaml", "front b.yaml", "worker c.yaml"}); d != "" {
		t.Error(d)
	}
	run(t, h, "", "demo", "--no-tui", "--for", "20s", "--json", "--keep").is(t, "{}\n", "", OK)
	if demo.For != 20*time.Second || !demo.NoTUI || !demo.JSON || !demo.Keep {
		t.Errorf("demo options = %+v", demo)
	}
	h.Demo = func(context.Context, DemoOptions) error { return errors.New("3 calls failed; see the log") }
	run(t, h, "", "demo").is(t, "", "bellwether: 3 calls failed; see the log\n", Failed)
	h.Node = func(context.Context, string) error {
		return config.Problems{{File: "f", Line: 3, What: "a", Write: "b"}}
	}
	run(t, h, "", "node").is(t, "", "f:3: a; b\n", Failed)
	run(t, Hooks{}, "", "node").is(t, "", "bellwether: this program has no node; use a complete build of bellwether\n", Failed)
}

func TestANodeThatIsAskedToEndEndsWell(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := Hooks{Node: func(ctx context.Context, _ string) error {
		cancel()
		<-ctx.Done()
		return fmt.Errorf("serve: %w", ctx.Err())
	}}
	var out, err strings.Builder
	if code := Run(ctx, []string{"node"}, IO{strings.NewReader(""), &out, &err}, h); code != OK || err.Len() > 0 {
		t.Errorf("code %d, stderr %q", code, err.String())
	}
}

func TestCleanLeavesTextAndShowsWhatControls(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"Grüße 日本 <sip:a@b>", "Grüße 日本 <sip:a@b>"},
		{"a\x1b[2Jb\r\n\t\x00", `a\x1b[2Jb\r\n\t\x00`},
		{"c1 \u009b31m del \x7f", `c1 \u009b31m del \x7f`},
		{"bidi \u202e over", `bidi \u202e over`},
		{"not utf-8 \xff", `not utf-8 \ufffd`},
	} {
		if got := clean(tt.in); got != tt.want {
			t.Errorf("clean(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// configFile writes the configuration of one of three nodes.
func configFile(t *testing.T, dir, name, runDir string) string {
	t.Helper()
	path := filepath.Join(dir, name+".yaml")
	address := "10.0.0." + name[1:]
	write(t, path, fmt.Sprintf(`node: {name: %s, data_dir: %s, run_dir: %s}
cluster:
  address: %s:7400
  controllers: [{name: n1, address: 10.0.0.1:7400}, {name: n2, address: 10.0.0.2:7400}, {name: n3, address: 10.0.0.3:7400}]
sip: {domain: example.test, address: %s}
`, name, filepath.Join(dir, name), runDir, address, address))
	return path
}
