package config

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// full has every key, in flow and in block style.
const full = `node: {name: n2, data_dir: /srv/bw, run_dir: /run/bw, isolation: none}
cluster:
  address: 10.0.0.2:7400
  controllers:
    - name: n1
      address: 10.0.0.1:7400
    - {name: n2, address: 10.0.0.2:7400}
    - {name: n3, address: "10.0.0.3:7400"}
sip:
  domain: IMS.Example.test
  address: 10.0.0.2
  p_cscf: 5070
  i_cscf: 4070
  s_cscf: 6070
  t1_ms: 2000
  min_expires: 30
  max_expires: 7200
  default_expires: 1800
  digest_without_qop: true
workers:
  - {id: p1, kind: p-cscf}
  - {id: s1, kind: s-cscf}
metrics: {listen: 127.0.0.2:9100}
log: {level: debug, format: json}
flood: {per_source: 1, per_phone: 2, failures: 3, connections: 4, strangers: 5, ban: 6}
`

const minimal = `node: {name: n1}
cluster: {address: 10.0.0.1:7400, controllers: [{name: n1, address: 10.0.0.1:7400}]}
sip: {domain: example.test, address: 10.0.0.1}
`

var comparers = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})}

func TestEveryKeyIsRead(t *testing.T) {
	got, err := Parse("n2.yaml", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		File: "n2.yaml",
		Node: Node{Name: "n2", DataDir: "/srv/bw", RunDir: "/run/bw", Isolation: None},
		Cluster: Cluster{
			Address: netip.MustParseAddrPort("10.0.0.2:7400"),
			Controllers: []Controller{
				{"n1", netip.MustParseAddrPort("10.0.0.1:7400")},
				{"n2", netip.MustParseAddrPort("10.0.0.2:7400")},
				{"n3", netip.MustParseAddrPort("10.0.0.3:7400")},
			},
		},
		SIP: SIP{
			Domain: "ims.example.test", Address: netip.MustParseAddr("10.0.0.2"),
			PCSCF: 5070, ICSCF: 4070, SCSCF: 6070,
			T1: 2 * time.Second, MinExpires: 30 * time.Second, MaxExpires: 2 * time.Hour, DefaultExpires: 30 * time.Minute, DigestWithoutQOP: true,
		},
		Workers: []Worker{{"p1", PCSCF}, {"s1", SCSCF}},
		Metrics: Metrics{Listen: netip.MustParseAddrPort("127.0.0.2:9100")},
		Log:     Log{Level: slog.LevelDebug, Format: "json"},
		Flood:   Flood{PerSource: 1, PerPhone: 2, Failures: 3, Connections: 4, Strangers: 5, Ban: 6 * time.Second},
	}
	if d := cmp.Diff(got, want, comparers); d != "" {
		t.Error(d)
	}
	if got, want := got.AdminSocket(), "/run/bw/admin.sock"; got != want {
		t.Errorf("AdminSocket() = %q, want %q", got, want)
	}
}

func TestDefaultsFillWhatIsNotWritten(t *testing.T) {
	got, err := Parse("n1.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.File = "n1.yaml"
	want.Node.Name = "n1"
	want.Cluster = Cluster{
		Address:     netip.MustParseAddrPort("10.0.0.1:7400"),
		Controllers: []Controller{{"n1", netip.MustParseAddrPort("10.0.0.1:7400")}},
	}
	want.SIP.Domain, want.SIP.Address = "example.test", netip.MustParseAddr("10.0.0.1")
	want.Workers = []Worker{{"n1-p", PCSCF}, {"n1-i", ICSCF}, {"n1-s", SCSCF}}
	if d := cmp.Diff(got, want, comparers); d != "" {
		t.Error(d)
	}
}

func TestProblemsNameLineFaultAndRemedy(t *testing.T) {
	// edit replaces text of the full configuration.
	edit := func(old, new string) string {
		if !strings.Contains(full, old) {
			t.Fatalf("the full configuration has no %q", old)
		}
		return strings.Replace(full, old, new, 1)
	}
	tests := []struct{ name, data, want string }{
		{"an empty file", "", "f:1: the file is empty; write at least node.name, cluster, sip.domain and sip.address"},
		{"only a comment", "# nothing\n", "f:1: the file is empty; write at least node.name, cluster, sip.domain and sip.address"},
		{"not YAML", edit("p_cscf: 5070", "p_cscf: [5070"), "f:12: this is not YAML: did not find expected ',' or ']'; check the indentation and the colons around this line"},
		{"a key that is indented too little", edit("  p_cscf: 5070", " p_cscf: 5070"), "f:12: this is not YAML: did not find expected key; check the indentation and the colons around this line"},
		{"a tab as indentation", "node:\n\tname: n1\n", "f:2: this is not YAML: found character that cannot start any token; check the indentation and the colons around this line"},
		{"a second document", full + "---\nnode: {}\n", "f:26: a second document begins here; write one document, without ---"},
		{"a list at the top", "- a\n", "f:1: the file is a list; write keys with values, such as name: n1"},
		{"a misspelt section", edit("metrics:", "metric:"), `f:23: unknown key "metric"; write metrics`},
		{"a misspelt key", edit("p_cscf:", "p_cscff:"), `f:12: unknown key "sip.p_cscff"; write p_cscf`},
		{"a key of another kind", edit("p_cscf: 5070", "colour: red"), `f:12: unknown key "sip.colour"; remove it, or write one of address, address6, default_expires, digest_without_qop, domain, i_cscf, max_expires, min_expires, p_cscf, s_cscf, t1_ms`},
		{"a mapping as key", edit("p_cscf: 5070", "{a: b}: 5070"), `f:12: unknown key (a mapping); remove it, or write one of address, address6, default_expires, digest_without_qop, domain, i_cscf, max_expires, min_expires, p_cscf, s_cscf, t1_ms`},
		{"a key written twice", edit("p_cscf: 5070", "domain: other.test"), "f:12: sip.domain is written twice, first on line 10; write it once"},
		{"an anchor", edit("IMS.Example.test", "&d IMS.Example.test"), "f:10: sip.domain uses a YAML anchor or alias; write the value itself"},
		{"an alias", edit("node: {name: n2,", "node: {name: &n n2,") + "x: *n\n", "f:1: node.name uses a YAML anchor or alias; write the value itself\nf:26: unknown key \"x\"; remove it, or write one of cluster, flood, log, metrics, node, sip, workers"},
		{"a list for a scalar", edit("p_cscf: 5070", "p_cscf: [5070]"), "f:12: sip.p_cscf is a list; write one value"},
		{"a scalar for a list", edit("metrics:", "log: {}\nmetrics:"), "f:25: log is written twice, first on line 23; write it once"},
		{"a scalar for a mapping", edit("{listen: 127.0.0.2:9100}", "here"), `f:23: metrics is the value "here"; write metrics: {listen: 127.0.0.1:9090}`},
		{"an empty section", edit("{listen: 127.0.0.2:9100}", ""), `f:23: metrics is empty; write metrics: {listen: 127.0.0.1:9090}`},
		{"a level for the log section", edit("log: {level: debug, format: json}", "log: debug"), `f:24: log is the value "debug"; write log: {level: debug}`},
		{"a mapping for the workers", edit("workers:\n  - {id: p1, kind: p-cscf}\n  - {id: s1, kind: s-cscf}\n", "workers: {id: p1}\n"), "f:20: workers is a mapping; write workers: [{id: p1, kind: p-cscf}]"},
		{"an empty value", edit("IMS.Example.test", ""), "f:10: sip.domain is empty; write the home domain, such as ims.example.org"},
		{"a name in capitals", edit("name: n2,", "name: N2,"), `f:1: node.name "N2" is not a name; write 1 to 32 lower-case letters, digits and hyphens, such as n1`},
		{"a relative directory", edit("/srv/bw", "srv/bw"), `f:1: node.data_dir "srv/bw" is not an absolute path; write a path such as /var/lib/bellwether`},
		{"a run directory too long for a socket", edit("/run/bw", "/run/"+strings.Repeat("x", 90)), `f:1: node.run_dir "/run/` + strings.Repeat("x", 55) + `..." is longer than 80 characters; write a short path such as /run/bellwether`},
		{"an isolation that does not exist", edit("isolation: none", "isolation: full"), `f:1: node.isolation "full" does not exist; write process or none`},
		{"an address without port", edit("address: 10.0.0.2:7400", "address: 10.0.0.2"), `f:3: cluster.address "10.0.0.2" is not an address with a port; write address and port, such as 10.0.0.1:7400`},
		{"a host name for an address", edit("address: 10.0.0.2:7400", "address: n2:7400"), `f:3: cluster.address "n2:7400" is a name with a port, and names are not looked up; write address and port, such as 10.0.0.1:7400`},
		{"a cluster address that means all", edit("address: 10.0.0.2:7400", "address: 0.0.0.0:7400"), `f:3: cluster.address "0.0.0.0:7400" means every address, and others must reach this one; write address and port, such as 10.0.0.1:7400`},
		{"port 0", edit("address: 10.0.0.2:7400", "address: 10.0.0.2:0"), `f:3: cluster.address "10.0.0.2:0" has port 0; write address and port, such as 10.0.0.1:7400`},
		{"two addresses for this node", edit("address: 10.0.0.2:7400", "address: 10.0.0.9:7400"), "f:3: cluster.address is 10.0.0.9:7400, but the controllers list has 10.0.0.2:7400 for n2; write the same address in both"},
		{"two controllers", edit("    - {name: n3, address: \"10.0.0.3:7400\"}\n", ""), "f:5: there are 2 controllers; write 1, 3 or 5 of them"},
		{"a controller named twice", edit("{name: n3,", "{name: n1,"), "f:8: controller n1 is named twice, first on line 5; write each controller once"},
		{"a controller address given twice", edit("10.0.0.3:7400", "10.0.0.1:7400"), "f:8: address 10.0.0.1:7400 is given twice, first on line 5; write each node's own address"},
		{"a controller without address", edit("{name: n3, address: \"10.0.0.3:7400\"}", "{name: n3}"), "f:8: cluster.controllers[2] needs a name and an address; write {name: n1, address: 10.0.0.1:7400}"},
		{"this node is no controller", edit("node: {name: n2,", "node: {name: n7,"), "f:1: this node, n7, is not among cluster.controllers; add {name: n7, address: 10.0.0.2:7400} or mend node.name"},
		{"a service address that means all", edit("address: 10.0.0.2\n", "address: 0.0.0.0\n"), `f:11: sip.address "0.0.0.0" means every address, and phones need this one; write this node's own IP address, such as 10.0.0.1`},
		{"a service address with port", edit("address: 10.0.0.2\n", "address: 10.0.0.2:5060\n"), `f:11: sip.address "10.0.0.2:5060" is not an IP address; write this node's own IP address, such as 10.0.0.1`},
		{"a multicast service address", edit("address: 10.0.0.2\n", "address: 224.0.1.75\n"), `f:11: sip.address "224.0.1.75" is not the address of one machine; write this node's own IP address, such as 10.0.0.1`},
		{"a link-local service address", edit("address: 10.0.0.2\n", "address: fe80::2\n"), `f:11: sip.address "fe80::2" is a link-local address, which is good for one link only; write this node's own IP address, such as 10.0.0.1`},
		{"a service address with a zone", edit("address: 10.0.0.2\n", "address: fe80::2%eth0\n"), `f:11: sip.address "fe80::2%eth0" has a zone, which no SIP message can carry; write this node's own IP address, such as 10.0.0.1`},
		{"a mapped address that means all", edit("address: 10.0.0.2\n", "address: ::ffff:0.0.0.0\n"), `f:11: sip.address "::ffff:0.0.0.0" means every address, and phones need this one; write this node's own IP address, such as 10.0.0.1`},
		{"a second service address that is IPv4", edit("address: 10.0.0.2\n", "address: 10.0.0.2\n  address6: 10.0.0.3\n"), `f:12: sip.address6 10.0.0.3 is not an IPv6 address; write an IPv4 address at sip.address`},
		{"two IPv6 service addresses", edit("address: 10.0.0.2\n", "address: 2001:db8::2\n  address6: 2001:db8::3\n"), `f:12: sip.address is an IPv6 address already; write the node's IPv4 address at sip.address, or leave sip.address6 out`},
		{"a second service address with a zone", edit("address: 10.0.0.2\n", "address: 10.0.0.2\n  address6: fe80::1%lo\n"), `f:12: sip.address6 "fe80::1%lo" has a zone, which no SIP message can carry; write this node's own IPv6 address, such as 2001:db8::1, or leave it out`},
		{"an address for a domain", edit("IMS.Example.test", "10.0.0.1"), `f:10: sip.domain "10.0.0.1" is an address; write the home domain, such as ims.example.org`},
		{"a domain with an underscore", edit("IMS.Example.test", "a_b.test"), `f:10: sip.domain "a_b.test" is not a domain name; write the home domain, such as ims.example.org`},
		{"a port that is a word", edit("p_cscf: 5070", "p_cscf: sip"), `f:12: sip.p_cscf "sip" is not a whole number; write a port from 1 to 65535`},
		{"a port too high", edit("p_cscf: 5070", "p_cscf: 65536"), `f:12: sip.p_cscf "65536" is not between 1 and 65535; write a port from 1 to 65535`},
		{"a port that overflows", edit("p_cscf: 5070", "p_cscf: 99999999999999999999"), `f:12: sip.p_cscf "99999999999999999999" is not between 1 and 65535; write a port from 1 to 65535`},
		{"a negative timer", edit("t1_ms: 2000", "t1_ms: -1"), `f:15: sip.t1_ms "-1" is not between 50 and 4000; write a whole number from 50 to 4000`},
		{"intervals out of order", edit("min_expires: 30", "min_expires: 3600"), "f:10: registration intervals are out of order: min_expires 3600, default_expires 1800, max_expires 7200; write min_expires <= default_expires <= max_expires"},
		{"two entries on one port", edit("i_cscf: 4070", "i_cscf: 5070"), "f:13: sip.p_cscf and sip.i_cscf both want 10.0.0.2:5070; write a different port for one of them"},
		{"an entry on the cluster's port", edit("s_cscf: 6070", "s_cscf: 7400"), "f:14: cluster.address and sip.s_cscf both want 10.0.0.2:7400; write a different port for one of them"},
		{"a worker kind that does not exist", edit("kind: s-cscf", "kind: x-cscf"), `f:22: workers[1].kind "x-cscf" does not exist; write p-cscf, i-cscf or s-cscf`},
		{"a worker id used twice", edit("id: s1", "id: p1"), "f:22: worker id p1 is used twice, first on line 21; give each worker an id of its own, unique in the cluster"},
		{"a worker without kind", edit("{id: p1, kind: p-cscf}", "{id: p1}"), "f:21: workers[0] needs an id and a kind; write {id: p1, kind: p-cscf}"},
		{"metrics for everyone", edit("127.0.0.2:9100", "10.0.0.2:9100"), `f:23: metrics.listen "10.0.0.2:9100" is not a loopback address, and metrics are for this machine only; write a loopback address and port, such as 127.0.0.1:9090`},
		{"a log level that does not exist", edit("level: debug", "level: loud"), `f:24: log.level "loud" does not exist; write debug, info, warn or error`},
		{"a log format that does not exist", edit("format: json", "format: xml"), `f:24: log.format "xml" does not exist; write text or json`},
		{"sections that are missing", "log: {}\n", "f:1: node is missing; write node: {name: n1}\n" +
			"f:1: cluster is missing; write cluster: {address: 10.0.0.1:7400, controllers: [{name: n1, address: 10.0.0.1:7400}]}\n" +
			"f:1: sip is missing; write sip: {domain: ims.example.org, address: 10.0.0.1}"},
		{"keys that are missing", "node: {}\ncluster: {}\nsip: {}\n", "f:1: node.name is missing; write 1 to 32 lower-case letters, digits and hyphens, such as n1\n" +
			"f:2: cluster.address is missing; write address and port, such as 10.0.0.1:7400\n" +
			"f:2: cluster.controllers is missing; write a list of 1, 3 or 5, such as [{name: n1, address: 10.0.0.1:7400}]\n" +
			"f:3: sip.domain is missing; write the home domain, such as ims.example.org\n" +
			"f:3: sip.address is missing; write this node's own IP address, such as 10.0.0.1"},
		{"a limit that is none", edit("per_source: 1", "per_source: -1"), `f:25: flood.per_source "-1" is not between 0 and 1000000; write how many a second, or 0 for no limit`},
		{"a ban for a week", edit("ban: 6", "ban: 604800"), `f:25: flood.ban "604800" is not between 0 and 86400; write a whole number from 0 to 86400`},
		{"a limit for the flood section", edit("flood: {per_source: 1, per_phone: 2, failures: 3, connections: 4, strangers: 5, ban: 6}", "flood: 5"), `f:25: flood is the value "5"; write flood: {per_source: 2000}`},
		{"a name for the service address", edit("  address: 10.0.0.2\n", "  address: n2.example.org\n"),
			`f:11: sip.address "n2.example.org" is a name, and names are not looked up; write this node's own IP address, such as 10.0.0.1`},
		{"an IPv6 address that YAML takes for a colon", "node: {name: n1}\nsip: {address: 10.0.0.1, address6: ::1}\n",
			`f:2: this is not YAML: did not find expected node content; put an IPv6 address that begins with a colon in quotes, such as "::1"`},
		{"several at once", strings.NewReplacer("p_cscf: 5070", "p_cscf: x", "level: debug", "level: loud").Replace(full),
			"f:12: sip.p_cscf \"x\" is not a whole number; write a port from 1 to 65535\n" +
				`f:24: log.level "loud" does not exist; write debug, info, warn or error`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("f", []byte(tt.data))
			if err == nil {
				t.Fatalf("Parse accepted it: %+v", c)
			}
			var ps Problems
			if !errors.As(err, &ps) {
				t.Fatalf("error is a %T, want Problems", err)
			}
			if d := cmp.Diff(err.Error(), tt.want); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestAnEmptyWorkerListMeansNoWorkers(t *testing.T) {
	c, err := Parse("f", []byte(minimal+"workers: []\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Workers) != 0 {
		t.Errorf("workers = %v, want none", c.Workers)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "n1.yaml")
	if err := os.WriteFile(file, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(file); err != nil || c.Node.Name != "n1" || c.File != file {
		t.Errorf("Load = %+v, %v", c, err)
	}
	if _, err := Load(filepath.Join(dir, "absent.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load of an absent file = %v, want not exist", err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("Load of a directory succeeded")
	}
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, []byte(minimal+"#"+strings.Repeat("x", MaxSize)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(big); err == nil || !strings.Contains(err.Error(), "larger than 1 MB") {
		t.Errorf("Load of a large file = %v", err)
	}
}

func TestDiffTellsWhatNeedsARestart(t *testing.T) {
	parse := func(s string) *Config {
		c, err := Parse("f", []byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if d := Diff(parse(full), parse(full)); d != nil {
		t.Errorf("Diff of equals = %v", d)
	}
	changed := strings.NewReplacer("t1_ms: 2000", "t1_ms: 500", "level: debug", "level: warn",
		"p_cscf: 5070", "p_cscf: 5080", "id: s1", "id: s2").Replace(full)
	got := Diff(parse(full), parse(changed))
	want := []Change{
		{"sip.p_cscf", "5070", "5080", true},
		{"sip.t1_ms", "2000", "500", false},
		{"workers", "p1=p-cscf s1=s-cscf", "p1=p-cscf s2=s-cscf", true},
		{"log.level", "DEBUG", "WARN", false},
	}
	if d := cmp.Diff(got, want); d != "" {
		t.Error(d)
	}
}

func TestLogHandlerFollowsFormatAndLevel(t *testing.T) {
	var level slog.LevelVar
	var b strings.Builder
	log := slog.New(Log{Format: "json"}.Handler(&b, &level))
	log.Debug("hidden")
	level.Set(slog.LevelDebug)
	log.Debug("shown")
	if got := b.String(); strings.Contains(got, "hidden") || !strings.Contains(got, `"msg":"shown"`) {
		t.Errorf("log = %q", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{full, minimal, "", "- a", "a: &b [*b]", "? [a]\n: b", "<<: {a: b}", "!!binary a: b", "node: !x {name: n1}", "{{{{", "a: |\n b\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("Parse = %v, %v", c, err)
		}
		if err != nil {
			var ps Problems
			if !errors.As(err, &ps) || len(ps) == 0 {
				t.Fatalf("error %T %v, want Problems", err, err)
			}
			for _, p := range ps {
				if p.Line < 1 || p.What == "" || p.Write == "" || strings.ContainsRune(p.Error(), '\n') {
					t.Errorf("problem %+v is not a line with a remedy", p)
				}
			}
			return
		}
		if c.Node.Name == "" || !c.SIP.Address.Is4() || !c.Cluster.Address.IsValid() {
			t.Errorf("accepted an incomplete configuration: %+v", c)
		}
	})
}
