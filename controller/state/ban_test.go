package state_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bellwether/controller/state"
)

func ban(prefix string, since, until int64) state.Command {
	return state.Command{PutBan: &state.Ban{Prefix: netip.MustParsePrefix(prefix), Since: since, Until: until}}
}

func unban(prefix string) state.Command {
	return state.Command{RemoveBan: &state.RemoveBan{Prefix: netip.MustParsePrefix(prefix)}}
}

func bans(s *state.State) string {
	var out []string
	for b := range s.Bans() {
		out = append(out, b.Prefix.String())
	}
	return strings.Join(out, " ")
}

func TestBansComeAndGo(t *testing.T) {
	s := small(t)
	for _, tt := range []struct {
		name string
		cmd  state.Command
		code state.Code // "" is done
		want string     // prefixes afterwards
	}{
		{"a ban of a network", ban("192.0.2.0/24", 100, 200), "", "192.0.2.0/24"},
		{"a ban within it", ban("192.0.2.7/32", 100, 0), "", "192.0.2.0/24 192.0.2.7/32"},
		{"IPv6 comes after IPv4", ban("2001:db8::/32", 100, 150), "", "192.0.2.0/24 192.0.2.7/32 2001:db8::/32"},
		{"the same prefix again takes its place", ban("192.0.2.0/24", 120, 300), "", "192.0.2.0/24 192.0.2.7/32 2001:db8::/32"},
		{"what has ended goes at the next ban", ban("10.0.0.0/8", 150, 0), "", "10.0.0.0/8 192.0.2.0/24 192.0.2.7/32"},
		{"a ban ends early", unban("192.0.2.7/32"), "", "10.0.0.0/8 192.0.2.0/24"},
		{"a ban that is not there", unban("192.0.2.7/32"), state.NotFound, "10.0.0.0/8 192.0.2.0/24"},
		{"bits beyond the prefix", ban("192.0.2.1/24", 100, 0), state.Invalid, "10.0.0.0/8 192.0.2.0/24"},
		{"IPv4 inside IPv6", ban("::ffff:192.0.2.0/120", 100, 0), state.Invalid, "10.0.0.0/8 192.0.2.0/24"},
		{"an end before its begin", ban("192.0.3.0/24", 100, 100), state.Invalid, "10.0.0.0/8 192.0.2.0/24"},
		{"no prefix", state.Command{PutBan: &state.Ban{Since: 1}}, state.Invalid, "10.0.0.0/8 192.0.2.0/24"},
		{"a reason that is no text", state.Command{PutBan: &state.Ban{Prefix: netip.MustParsePrefix("::/0"), Since: 1, Reason: "a\nb"}}, state.Invalid, "10.0.0.0/8 192.0.2.0/24"},
	} {
		next, r := one(s, tt.cmd)
		code := state.Code("")
		if r.Err != nil {
			code = r.Err.Code
		}
		if got := bans(next); code != tt.code || got != tt.want {
			t.Errorf("%s: %q, bans are %s; want %q, %s", tt.name, code, got, tt.code, tt.want)
		}
		if same := next.SameBans(s); same && bans(s) != bans(next) {
			t.Errorf("%s: the bans are said to be the same", tt.name)
		}
		s = next
	}
	if b, ok := s.Ban(netip.MustParsePrefix("192.0.2.0/24")); !ok || b.Until != 300 || b.Ended(time.Unix(299, 0)) || !b.Ended(time.Unix(300, 0)) {
		t.Errorf("the ban is %+v, %v", b, ok)
	}
	if other := apply(t, s, assign("someone", 0)); !other.SameBans(s) {
		t.Error("the bans change by an assignment")
	}
	if !bytes.Equal(snapshot(t, s), snapshot(t, restored(t, s))) || bans(restored(t, s)) != bans(s) {
		t.Error("bans do not survive a snapshot")
	}
}

func TestBansAreBounded(t *testing.T) {
	s := state.New()
	var cmds []state.Command
	for i := range 4096 {
		cmds = append(cmds, ban(fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255), 1, 0))
	}
	s = apply(t, s, cmds...)
	if _, r := one(s, ban("192.0.2.0/24", 1, 0)); r.Err == nil || r.Err.Code != state.Limit {
		t.Errorf("one more: %v", r.Err)
	}
	if _, r := one(s, ban("10.0.0.0/24", 2, 5)); r.Err != nil {
		t.Errorf("one that is there: %v", r.Err)
	}
}
