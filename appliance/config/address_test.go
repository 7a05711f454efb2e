package config

import (
	"net/netip"
	"strings"
	"testing"
)

func TestServiceAddressesOfBothFamilies(t *testing.T) {
	for name, tc := range map[string]struct{ sip, first, second string }{
		"one IPv6 address":         {"address: 2001:db8::1", "2001:db8::1", ""},
		"an address written long":  {"address: 2001:0DB8:0:0:0:0:0:1", "2001:db8::1", ""},
		"IPv4 and IPv6":            {"address: 10.0.0.1, address6: 2001:db8::1", "10.0.0.1", "2001:db8::1"},
		"IPv4 in the form of IPv6": {`address: "::ffff:10.0.0.1"`, "10.0.0.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Parse("f", []byte(strings.Replace(minimal, "address: 10.0.0.1}\n", tc.sip+"}\n", 1)))
			if err != nil {
				t.Fatal(err)
			}
			second := ""
			if c.SIP.Address6.IsValid() {
				second = c.SIP.Address6.String()
			}
			if c.SIP.Address.String() != tc.first || second != tc.second {
				t.Errorf("got %s and %q, want %s and %q", c.SIP.Address, second, tc.first, tc.second)
			}
		})
	}
}

func TestMetricsMayListenAtIPv6Loopback(t *testing.T) {
	c, err := Parse("f", []byte(minimal+"metrics: {listen: \"[::1]:9090\"}\n"))
	if err != nil || c.Metrics.Listen != netip.MustParseAddrPort("[::1]:9090") {
		t.Errorf("got %v, %v", c, err)
	}
}

func TestPortsClashAtTheSecondAddress(t *testing.T) {
	text := strings.ReplaceAll(minimal, "10.0.0.1:7400", `"[2001:db8::1]:5060"`)
	_, err := Parse("f", []byte(strings.Replace(text, "address: 10.0.0.1}", "address: 10.0.0.1, address6: 2001:db8::1}", 1)))
	if err == nil || !strings.Contains(err.Error(), "cluster.address and sip.p_cscf both want [2001:db8::1]:5060") {
		t.Errorf("got %v", err)
	}
}
