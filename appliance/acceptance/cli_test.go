package acceptance

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/controller/api"
	"bellwether/cscf/digest"
)

// ran is what a command line did.
type ran struct {
	out, err string
	code     int
}

// bellwether runs the program under test to its end.
func bellwether(t testing.TB, stdin string, args ...string) ran {
	t.Helper()
	cmd := exec.CommandContext(within(t, 30*time.Second), binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("bellwether %s: %v", strings.Join(args, " "), err)
	}
	r := ran{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	if r.code < 0 {
		t.Fatalf("bellwether %s was still running after 30 s:\n%s%s", strings.Join(args, " "), r.out, r.err)
	}
	complain(func(s string) (int, error) { t.Error(s); return 0, nil }, "the output of bellwether "+strings.Join(args, " "), r.out+r.err)
	return r
}

// cli runs a command line against a node, in text and with --json, wants both
// to work and returns the text and the JSON.
func cli(t testing.TB, n *localcluster.Node, args ...string) (text, asJSON string) {
	t.Helper()
	args = append(args, "--socket", n.AdminSocket())
	plain := bellwether(t, "", args...)
	structured := bellwether(t, "", append(args, "--json")...)
	for _, r := range []ran{plain, structured} {
		if r.code != 0 || r.err != "" || r.out == "" {
			t.Errorf("bellwether %s: code %d, %q, %q", strings.Join(args, " "), r.code, r.out, r.err)
		}
	}
	return plain.out, structured.out
}

// read decodes what a command printed as JSON, as strictly as can be.
func read[T any](t testing.TB, text string) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Errorf("%q: %v", text, err)
	}
	return v
}

func TestCommandLineOverARunningCluster(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	n := c.Node("n3")
	users := subscribe(t, c, "cli", 2)
	phones := phonesAt(t, users, c.Node("n1"), c.Node("n2"))
	register(t, phones...)

	text, out := cli(t, n, "status")
	st := read[api.Status](t, out)
	if st.Cluster != c.ID || st.Domain != domain || st.Node != "n3" || st.Leader == "" || !st.Quorum || len(st.Nodes) != 3 || len(st.Workers) != 6 || st.Users < 2 {
		t.Errorf("status: %+v", st)
	}
	if !strings.Contains(text, c.ID) || !strings.Contains(text, "p-cscf") {
		t.Errorf("status: %s", text)
	}
	_, out = cli(t, n, "node", "list")
	for _, l := range read[[]api.Node](t, out) {
		if !l.Connected || !l.Controller || c.Node(l.Name) == nil || l.Service != c.Node(l.Name).Address.String() || l.Leader != (l.Name == st.Leader) {
			t.Errorf("node: %+v", l)
		}
	}
	_, out = cli(t, n, "worker", "list")
	all := read[[]api.Worker](t, out)
	for _, w := range all {
		if (w.Calls != nil) != (w.Kind == "s-cscf") {
			t.Errorf("%s says of its calls %v", w.ID, w.Calls)
		}
	}
	if len(all) != 6 {
		t.Errorf("workers: %+v", all)
	}
	_, out = cli(t, n, "worker", "show", "s2")
	if w := read[api.Worker](t, out); w.ID != "s2" || w.Node != "n2" || w.Kind != "s-cscf" || !w.Connected || w.Serving != "s2" {
		t.Errorf("worker: %+v", w)
	}
	text, out = cli(t, n, "user", "show", "sip:"+users[0]+"@"+domain)
	u := read[api.User](t, out)
	if u.IMPI != users[0]+"@"+domain || len(u.Contacts) != 1 || len(u.Path) != 1 || len(u.ServiceRoute) == 0 || !strings.Contains(u.Contacts[0].URI, phones[0].Addr().String()) {
		t.Errorf("user: %+v", u)
	}
	if !strings.Contains(text, phones[0].Addr().String()) {
		t.Errorf("user show: %s", text)
	}
	text, out = cli(t, n, "users")
	listed := 0
	for _, r := range read[[]api.Registration](t, out) {
		if r.IMPI == u.IMPI && r.Identity == u.Identity && r.PCSCF == u.PCSCF && r.SCSCF == u.SCSCF {
			listed++
		}
	}
	if listed != 1 || !strings.Contains(text, u.IMPI) {
		t.Errorf("user list: %s", text)
	}
	if _, out := cli(t, n, "version"); !json.Valid([]byte(out)) {
		t.Errorf("version: %q", out)
	}
	if r := bellwether(t, "", "completion", "bash"); r.code != 0 || !strings.Contains(r.out, "bellwether") {
		t.Errorf("completion: %+v", r)
	}

	// A call is listed while it lasts.
	called := make(chan error, 1)
	go func() {
		_, err := phones[0].Call(within(t, time.Minute), "sip:"+users[1]+"@"+domain, phone.CallOptions{Hold: 3 * time.Second})
		called <- err
	}()
	eventually(t, 10*time.Second, func() string {
		list, err := n.Admin.Calls(within(t, 2*time.Second))
		if err != nil {
			return err.Error()
		}
		for _, k := range list {
			if k.From == "sip:"+users[0]+"@"+domain && k.State == "confirmed" {
				return ""
			}
		}
		return "the call is not listed"
	})
	r := bellwether(t, "", "call", "list", "--json", "--socket", n.AdminSocket())
	found := false
	for _, k := range read[[]api.Call](t, r.out) {
		found = found || k.To == "sip:"+users[1]+"@"+domain && k.POrig != "" && k.SOrig != "" && k.STerm != "" && k.PTerm != ""
	}
	if !found || r.code != 0 {
		t.Errorf("call list: %+v", r)
	}
	if err := <-called; err != nil {
		t.Error(err)
	}
	cli(t, n, "call", "list")
}

func TestSubscribersByCommandLine(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	n := c.Node("n2")
	impi := "ada@" + domain
	socket := []string{"--socket", n.AdminSocket()}
	run := func(stdin string, args ...string) ran {
		t.Helper()
		return bellwether(t, stdin, append(args, socket...)...)
	}
	expect := func(r ran, code int, says string) {
		t.Helper()
		if r.code != code || !strings.Contains(r.out+r.err, says) || (code == 0) != (r.err == "") {
			t.Errorf("%+v, want code %d and %q", r, code, says)
		}
	}
	for _, user := range []string{"ada", "bea", "eve"} {
		subscriber(user) // from now on nobody may print its HA1
	}
	expect(run(password+"\n", "subscriber", "add", impi, "--password-stdin"), 0, impi)
	expect(run(password+"\n", "subscriber", "add", impi, "--password-stdin"), 1, "ada")
	expect(run(password+"\n", "subscriber", "add", impi, "sip:"+impi, "tel:+49301234567", "--replace", "--password-stdin", "--json"), 0, `"tel:+49301234567"`)
	text, out := cli(t, n, "subscriber", "show", "tel:+49301234567")
	if s := read[api.Subscriber](t, out); s.IMPI != impi || len(s.Identities) != 2 || len(s.Algorithms) != 2 || !strings.Contains(text, impi) {
		t.Errorf("subscriber show: %s %+v", text, s)
	}
	// Who was added by hand can register at once, anywhere.
	register(t, newPhone(t, c.Node("n1"), "ada", nil))

	file := filepath.Join(t.TempDir(), "import.csv")
	write := func(lines ...string) {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ha1 := digest.HA1(digest.MD5, "bea@"+domain, domain, password)
	write("impi,impus,password,ha1_md5", "eve@"+domain+",sip:eve@"+domain+","+password+",", "bea@"+domain+",sip:bea@"+domain+",,"+ha1)
	expect(run("", "subscriber", "import", file, "--json"), 0, `"added": 2`)
	register(t, newPhone(t, c.Node("n3"), "eve", nil), newPhone(t, c.Node("n3"), "bea", nil))
	write("impi,impus,password", "new@"+domain+",sip:new@"+domain+","+password, "eve@"+domain+",sip:bea@"+domain+","+password)
	expect(run("", "subscriber", "import", file), 1, "nothing was imported: line 3: sip:bea@"+domain+" belongs to subscriber bea@"+domain)
	expect(run(password+"\n", "subscriber", "add", "new@"+domain, "sip:bea@"+domain, "--password-stdin"), 1, "see 'bellwether subscriber show bea@"+domain+"'")
	expect(run(password+"\n", "subscriber", "add", "bea@"+domain, "--password-stdin"), 1, "see 'bellwether subscriber show bea@"+domain+"', or give --replace")
	expect(run(password+"\n", "subscriber", "add", "new@"+domain, "sip:new@"+domain, "tel:7;phone-context="+domain, "--password-stdin", "--algorithm", "MD5"), 0, "tel:7;phone-context="+domain)
	expect(run("", "subscriber", "remove", "tel:7;phone-context="+domain), 0, "new@"+domain)
	write("impi,impus,pasword", "new@"+domain+",sip:new@"+domain+","+password)
	expect(run("", "subscriber", "import", file), 1, file+":1: ")
	expect(run("", "subscriber", "show", "new@"+domain), 1, "new@"+domain)

	_, out = cli(t, n, "subscriber", "list")
	listed := 0
	for _, s := range read[[]api.Subscriber](t, out) {
		if s.IMPI == impi || s.IMPI == "eve@"+domain || s.IMPI == "bea@"+domain {
			listed++
		}
	}
	text, out = cli(t, n, "subscriber", "export")
	exported := 0
	for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
		if s := read[api.Subscriber](t, l); s.IMPI == impi || s.IMPI == "eve@"+domain || s.IMPI == "bea@"+domain {
			exported++
		}
	}
	if listed != 3 || exported != 3 || !strings.HasPrefix(text, "impi,impus,realm\n") || !strings.Contains(text, "\n"+impi+",") {
		t.Errorf("%d subscribers listed, %d exported, %q", listed, exported, text)
	}
	expect(run("", "subscriber", "remove", "ada", "--json"), 0, impi)
	expect(run("", "subscriber", "remove", impi), 1, impi)
	expect(run("", "subscriber", "show", impi), 1, impi)

	// No file of any node holds the password.
	err := filepath.WalkDir(c.Spec.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // what is being removed just now
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(password)) {
			t.Errorf("%s holds the password", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAChangeWithoutAMajority(t *testing.T) {
	t.Parallel()
	n := written(t, usual).Node("n1")
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	defer n.Kill()
	eventually(t, upWithin, func() string {
		st, err := n.Admin.Status(within(t, 2*time.Second))
		switch {
		case err != nil:
			return err.Error()
		case st.Quorum:
			t.Fatal("one of three controllers is a majority")
		}
		return ""
	})
	subscriber("solo")
	r := bellwether(t, password, "subscriber", "add", "solo@"+domain, "--password-stdin", "--socket", n.AdminSocket())
	want := ran{err: "bellwether: the controllers did not commit the change within 4s, and it is not known whether it took effect; " +
		"wait until 'bellwether status' shows a leader, then see whether the change is there\n", code: 1}
	if r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	n := sharedCluster(t).Node("n2")
	before, err := os.ReadFile(n.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(n.ConfigFile(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	defer write(string(before))
	reload := func() ran { return bellwether(t, "", "reload", "--json", "--socket", n.AdminSocket()) }

	write(strings.Replace(string(before), "p_cscf: 5060", "p_cscf: 5070", 1) + "log: {level: debug}\n")
	r := reload()
	got := read[api.Reload](t, r.out)
	want := api.Reload{
		Applied: []api.Change{{Key: "log.level", Old: "INFO", New: "DEBUG"}},
		Pending: []api.Change{{Key: "sip.p_cscf", Old: "5060", New: "5070"}},
	}
	if d := cmp.Diff(got, want); d != "" || r.code != 0 {
		t.Errorf("reload: %+v %s", r, d)
	}
	write(string(before) + "metrics: {}\nbeer: true\n")
	if r := reload(); r.code != 1 || !strings.Contains(r.err, n.ConfigFile()+":") || !strings.Contains(r.err, `unknown key "beer"`) {
		t.Errorf("reload of a wrong file: %+v", r)
	}
	ping(t, freshNet()(1), n)
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	n := sharedCluster(t).Node("n1")
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"worker show p9", 1, "p9"},
		{"user show sip:nobody@" + domain, 1, "nobody"},
		{"subscriber show nobody@" + domain, 1, "nobody"},
		{"subscriber remove nobody@" + domain, 1, "nobody"},
		{"subscriber import /nowhere/at/all.csv", 1, "/nowhere/at/all.csv"},
		{"status --socket /nowhere/admin.sock", 1, "/nowhere/admin.sock"},
		{"status -c /nowhere/bellwether.yaml", 1, "/nowhere/bellwether.yaml"},
		{"worker show", 2, "ID"},
		{"user show sip:", 2, "sip:"},
		{"subscriber add " + n.Name + "@" + domain, 2, "--password-stdin"},
		{"frobnicate", 2, "frobnicate"},
		{"worker -c " + n.ConfigFile(), 2, "needs a command"},
		{"config check -c /nowhere/bellwether.yaml", 1, "/nowhere/bellwether.yaml"},
		{"status --frobnicate", 2, "--frobnicate"},
		{"demo --for soon", 2, "soon"},
	} {
		args := strings.Fields(tt.args)
		if !strings.Contains(tt.args, "--socket") && !strings.Contains(tt.args, " -c ") && args[0] != "demo" {
			args = append(args, "--socket", n.AdminSocket())
		}
		r := bellwether(t, "", args...)
		if r.code != tt.code || !strings.Contains(r.err, tt.says) || strings.Count(r.err, "\n") != 1 || r.out != "" {
			t.Errorf("bellwether %s: %+v, want code %d and a line with %q on standard error", tt.args, r, tt.code, tt.says)
		}
	}
}
