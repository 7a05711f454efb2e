package cli

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"bellwether/controller/api"
)

func TestBanCommands(t *testing.T) {
	src := cluster()
	src.Silent = []string{"n3"}
	src.Banned = []api.Ban{
		{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Since: at(0), Until: at(59), Reason: "guesses\x1b[2J", Hits: 7},
		{Prefix: netip.MustParsePrefix("198.51.100.7/32"), Allow: true, Since: at(1)},
		{Prefix: netip.MustParsePrefix("2001:db8::/64"), Automatic: true, Node: "n2", Since: at(2), Until: at(62), Reason: "source-limited", Hits: 1200},
	}
	socket := node(t, src)
	for _, tt := range []struct {
		command  string
		out, err string // err: a prefix of it
		code     int
	}{
		{"ban list", `ADDRESS        WHAT     BY        SINCE                    UNTIL                    HITS  REASON
192.0.2.0/24   banned   operator  2026-11-30 12:00:00 UTC  2026-11-30 12:00:59 UTC  7     guesses\x1b[2J
198.51.100.7   allowed  operator  2026-11-30 12:00:01 UTC  -                        -     -
2001:db8::/64  banned   node n2   2026-11-30 12:00:02 UTC  2026-11-30 12:01:02 UTC  1200  source-limited

Not known is what is banned by itself, and the hits, of: n3
`, "", OK},
		{"ban add 203.0.113.7", "203.0.113.7 is banned on all nodes until it is removed\n", "", OK},
		{"ban add 203.0.113.0/24 --allow --reason trunk", "203.0.113.0/24 is allowed on all nodes until it is removed\n", "", OK},
		{"ban remove 203.0.113.7", "203.0.113.7: the operator's entry is removed\n", "", OK},
		{"ban remove 203.0.113.7", "", "bellwether: 203.0.113.7/32 is neither banned nor allowed", Failed},
		{"ban remove 2001:db8::/64", "2001:db8::/64: 1 automatic ban ended\n", "", OK},
		{"ban add 0.0.0.0/0", "", "bellwether: 0.0.0.0/0 is everybody", Failed},
		{"ban add 0.0.0.0/0 --force", "0.0.0.0/0 is banned on all nodes until it is removed\n", "", OK},
		{"ban add", "", "bellwether: bellwether ban add needs an address or a network, such as 192.0.2.7 or 2001:db8::/32; see", Usage},
		{"ban add 1.2.3", "", `bellwether: "1.2.3" is neither an address nor a network; write an address or a network, such as`, Usage},
		{"ban add 1.2.3.4 --for 1", "", `bellwether: --for is "1"; write 1s`, Usage},
		{"ban add 1.2.3.4 --for -1s", "", "bellwether: --for is -1s; write whole seconds", Usage},
		{"ban add 1.2.3.4 --for 1000000h", "", "bellwether: 3600000000 seconds are no time to ban for; give at most ten years", Usage},
		{"ban", "", "bellwether: bellwether ban needs a command; write one of add, list, remove", Usage},
		{"ban show", "", `bellwether: there is no command "ban show"; write bellwether ban list`, Usage},
		{"ban delete 1.2.3.4", "", `bellwether: there is no command "ban delete"; did you mean remove?`, Usage},
		{"ban 1.2.3.4", "", `bellwether: there is no command "ban 1.2.3.4"; write bellwether ban add 1.2.3.4`, Usage},
		{"unban 1.2.3.4", "", `bellwether: there is no command "unban"; write bellwether ban remove ADDRESS`, Usage},
		{"bans extra", "", `bellwether: there is no command "ban extra"`, Usage},
	} {
		r := run(t, Hooks{}, "", append(strings.Fields(tt.command), "--socket", socket)...)
		if r.code != tt.code || r.out != tt.out || !strings.HasPrefix(r.err, tt.err) || (tt.err == "") != (r.err == "") {
			t.Errorf("%s: %+v", tt.command, r)
		}
	}
	r := run(t, Hooks{}, "", "ban", "add", "203.0.113.9", "--for", "1h", "--reason", "a b", "--json", "--socket", socket)
	var b api.Ban
	if err := json.Unmarshal([]byte(r.out), &b); err != nil || b.Reason != "a b" || b.Until.Sub(b.Since).Hours() != 1 {
		t.Errorf("%+v: %v, %+v", r, err, b)
	}
	r = run(t, Hooks{}, "", "bans", "--json", "--socket", socket)
	var l api.BanList
	if err := json.Unmarshal([]byte(r.out), &l); err != nil || len(l.Bans) != 5 || len(l.Silent) != 1 {
		t.Errorf("%+v: %v, %+v", r, err, l)
	}
	if r := run(t, Hooks{}, "", "__complete", "ban", "remove", "--socket", socket, "203.0.113.9"); !strings.HasPrefix(r.out, "203.0.113.9\n:4\n") {
		t.Errorf("completion: %+v", r)
	}
}
