package state

import (
	"net/netip"
	"testing"
)

func TestServiceAddressFollowsTheRemoteFamily(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for name, tc := range map[string]struct {
		first, second netip.Addr
		remote, want  string
	}{
		"IPv4 of a dual stack":       {v4, v6, "198.51.100.1", "192.0.2.1:5060"},
		"IPv6 of a dual stack":       {v4, v6, "2001:db8::9", "[2001:db8::1]:5060"},
		"mapped IPv4 of dual stack":  {v4, v6, "::ffff:198.51.100.1", "192.0.2.1:5060"},
		"IPv6 towards an IPv4 node":  {v4, netip.Addr{}, "2001:db8::9", "192.0.2.1:5060"},
		"IPv4 towards an IPv6 node":  {v6, netip.Addr{}, "198.51.100.1", "[2001:db8::1]:5060"},
		"no address is asked about":  {v4, v6, "", "192.0.2.1:5060"},
		"IPv6 from a link-local one": {v4, v6, "fe80::1%eth0", "[2001:db8::1]:5060"},
	} {
		t.Run(name, func(t *testing.T) {
			st, results := New().Apply(1, []Command{
				{Init: &Init{ClusterID: "c", Name: "c", Secret: make([]byte, 32)}},
				{PutNode: &Node{Name: "n1", Service: tc.first, Service6: tc.second, P: 5060, I: 4060, S: 6060}},
				{PutWorker: &Worker{ID: "p1", Kind: PCSCF, Node: "n1"}},
			})
			for _, r := range results {
				if err := r.Check(); err != nil {
					t.Fatal(err)
				}
			}
			var remote netip.Addr
			if tc.remote != "" {
				remote = netip.MustParseAddr(tc.remote)
			}
			if got, ok := st.ServiceAddrFor(1, remote); !ok || got.String() != tc.want {
				t.Errorf("got %s, %v, want %s", got, ok, tc.want)
			}
		})
	}
}

func TestSecondServiceAddressIsIPv6BesideIPv4(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for name, n := range map[string]Node{
		"an IPv4 one":          {Name: "n1", Service: v4, Service6: v4},
		"beside IPv6":          {Name: "n1", Service: v6, Service6: v6},
		"with a zone":          {Name: "n1", Service: v4, Service6: netip.MustParseAddr("fe80::1%eth0")},
		"a multicast one":      {Name: "n1", Service: v4, Service6: netip.MustParseAddr("ff02::1")},
		"IPv4 written as IPv6": {Name: "n1", Service: netip.MustParseAddr("::ffff:192.0.2.1")},
	} {
		_, results := New().Apply(1, []Command{
			{Init: &Init{ClusterID: "c", Name: "c", Secret: make([]byte, 32)}},
			{PutNode: &n},
		})
		if results[1].Check() == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
}
