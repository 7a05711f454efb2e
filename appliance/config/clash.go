package config

import (
	"fmt"
	"net/netip"
)

// clashes finds ports that two keys want on the same address. SIP uses UDP
// and the others TCP, but an entry point takes both transports of its port.
func (r *reader) clashes(c *Config) {
	sip := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(c.SIP.Address, port) }
	sip6 := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(c.SIP.Address6, port) }
	wants := []struct {
		key string
		at  netip.AddrPort
	}{
		{"cluster.address", c.Cluster.Address},
		{"sip.p_cscf", sip(c.SIP.PCSCF)},
		{"sip.i_cscf", sip(c.SIP.ICSCF)},
		{"sip.s_cscf", sip(c.SIP.SCSCF)},
		{"sip.p_cscf", sip6(c.SIP.PCSCF)},
		{"sip.i_cscf", sip6(c.SIP.ICSCF)},
		{"sip.s_cscf", sip6(c.SIP.SCSCF)},
		{"metrics.listen", c.Metrics.Listen},
	}
	first := map[netip.AddrPort]string{}
	told := map[string]bool{}
	for _, w := range wants {
		if !w.at.IsValid() {
			continue
		}
		other, taken := first[w.at]
		if !taken {
			first[w.at] = w.key
			continue
		}
		if pair := other + " " + w.key; told[pair] {
			continue // the same two ports at the second address
		} else {
			told[pair] = true
		}
		// The later line is the one to change; a default has no line.
		r.problem(max(r.lines[w.key], r.lines[other]), fmt.Sprintf("%s and %s both want %s", other, w.key, w.at), "write a different port for one of them")
	}
}
