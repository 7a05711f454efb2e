package api

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestParsePrefix(t *testing.T) {
	for _, tt := range []struct{ in, want string }{ // want: a prefix or the begin of an error
		{"192.0.2.7", "192.0.2.7/32"},
		{"192.0.2.0/24", "192.0.2.0/24"},
		{"0.0.0.0/0", "0.0.0.0/0"},
		{"2001:db8::1", "2001:db8::1/128"},
		{"[2001:db8::1]", "2001:db8::1/128"},
		{"2001:DB8::/32", "2001:db8::/32"},
		{"::/0", "::/0"},
		{"::ffff:192.0.2.7", "192.0.2.7/32"},
		{"::ffff:192.0.2.0/120", "192.0.2.0/24"},
		{"::ffff:0.0.0.0/90", `"::ffff:0.0.0.0/90" mixes IPv4 and IPv6; write an address`},
		{"192.0.2.7/24", "192.0.2.7/24 has bits beyond its length; write 192.0.2.0/24 for the network, or 192.0.2.7 for the address"},
		{"192.0.2.7:5060", `"192.0.2.7:5060" has a port, and bans hold for all ports; write 192.0.2.7`},
		{"fe80::1%eth0", `"fe80::1%eth0" has a zone; write`},
		{"192.0.2.0/33", `"192.0.2.0/33" is not a network; write`},
		{"192.0.2", `"192.0.2" is neither an address nor a network; write`},
		{"phone.example.org", `"phone.example.org" is neither`},
		{"", `"" is neither`},
	} {
		p, err := ParsePrefix(tt.in)
		got := p.String()
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.HasPrefix(got, tt.want)) {
			t.Errorf("%q: %s, want %s", tt.in, got, tt.want)
		}
	}
}

func FuzzParsePrefix(f *testing.F) {
	for _, s := range []string{"192.0.2.7", "192.0.2.0/24", "[2001:db8::1]", "::ffff:192.0.2.0/120", "fe80::1%e", "1.2.3.4:5", "/", "]["} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePrefix(s)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != Invalid || e.WhatToDo == "" || len(err.Error()) > 1000 {
				t.Errorf("error %v", err)
			}
			return
		}
		if p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			t.Errorf("%q became %v", s, p)
		}
		if q, err := ParsePrefix(p.String()); err != nil || q != p {
			t.Errorf("%v became %v, %v", p, q, err)
		}
		if err := (NewBan{Prefix: p}).Check(); err != nil {
			t.Errorf("%v cannot be stored: %v", p, err)
		}
	})
}

func TestNewBansAreChecked(t *testing.T) {
	p := netip.MustParsePrefix("192.0.2.0/24")
	for name, tt := range map[string]struct {
		b    NewBan
		want string
	}{
		"a ban":                 {NewBan{Prefix: p, Reason: "floods", Seconds: 60}, ""},
		"no prefix":             {NewBan{}, "there is no prefix"},
		"bits beyond its end":   {NewBan{Prefix: netip.MustParsePrefix("192.0.2.1/24")}, "192.0.2.1/24 has bits beyond"},
		"IPv4 inside IPv6":      {NewBan{Prefix: netip.MustParsePrefix("::ffff:1.2.3.4/128")}, "::ffff:1.2.3.4/128 mixes"},
		"a time that is none":   {NewBan{Prefix: p, Seconds: -1}, "-1 seconds are no time"},
		"a time that overflows": {NewBan{Prefix: p, Seconds: 1 << 60}, "1152921504606846976 seconds"},
		"a reason of two lines": {NewBan{Prefix: p, Reason: "a\nb"}, "the reason is not a line"},
		"a reason too long":     {NewBan{Prefix: p, Reason: strings.Repeat("x", 201)}, "the reason is not a line"},
	} {
		err := tt.b.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
