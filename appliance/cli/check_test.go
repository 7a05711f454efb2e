package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAConfigurationIsCheckedWithoutStarting(t *testing.T) {
	dir := t.TempDir()
	n1 := configFile(t, dir, "n1", dir)
	run(t, Hooks{}, "", "config", "check", "-c", n1).is(t, n1+` is ok
Node          n1, isolation process
Data          `+dir+`/n1
Admin socket  `+dir+`/admin.sock
Cluster       10.0.0.1:7400, controllers n1 n2 n3
Domain        example.test
SIP           P-CSCF 10.0.0.1:5060, I-CSCF 10.0.0.1:4060, S-CSCF 10.0.0.1:6060
Workers       n1-p (p-cscf) n1-i (i-cscf) n1-s (s-cscf)
Metrics       127.0.0.1:9090
Log           info text
`, "", OK)
	r := run(t, Hooks{}, "", "config", "check", "-c", n1, "--json")
	var got configSummary
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || !got.OK || got.Node != "n1" || len(got.Workers) != 3 || r.code != OK {
		t.Errorf("check --json = %+v, %v", r, err)
	}
	if there, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(there) != 1 {
		t.Errorf("the check made %v, %v", there, err)
	}
	two := filepath.Join(dir, "two.yaml")
	text, err := os.ReadFile(n1)
	if err != nil {
		t.Fatal(err)
	}
	write(t, two, strings.Replace(string(text), "address: 10.0.0.1}", `address: 10.0.0.1, address6: "2001:db8::1"}`, 1))
	r = run(t, Hooks{}, "", "config", "check", "-c", two)
	if want := "\nSIP           P-CSCF [2001:db8::1]:5060, I-CSCF [2001:db8::1]:4060, S-CSCF [2001:db8::1]:6060\n"; !strings.Contains(r.out, want) {
		t.Errorf("check with a second address = %+v, want %q in it", r, want)
	}
	broken := filepath.Join(dir, "broken.yaml")
	write(t, broken, "node: {name: n1}\nlog: debug\n")
	r = run(t, Hooks{}, "", "config", "check", "-c", broken)
	if lines := strings.Split(r.err, "\n"); r.code != Failed || r.out != "" || len(lines) != 4 || !strings.HasPrefix(r.err, broken+":1: cluster is missing") || !strings.Contains(r.err, broken+":2: log is") {
		t.Errorf("check of a broken file = %+v", r)
	}
}
