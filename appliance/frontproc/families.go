package frontproc

import (
	"net/netip"
	"slices"

	"bellwether/controller/api"
	"bellwether/controller/state"
)

// familyAlarms tells of nodes with P-CSCFs that lack an address family that
// others have. A phone of that family whose P-CSCF is there is shown an address
// that it cannot reach.
func familyAlarms(st *state.State) []api.Alarm {
	serving := map[string]bool{}
	for w := range st.Workers() {
		if w.Kind == state.PCSCF {
			serving[w.Node] = true
		}
	}
	var out []api.Alarm
	for _, f := range []struct {
		name string
		of   func(netip.Addr) bool
	}{{"IPv4", netip.Addr.Is4}, {"IPv6", netip.Addr.Is6}} {
		var with, without []string
		for n := range st.Nodes() {
			switch {
			case !serving[n.Name]:
			case f.of(n.Service) || f.of(n.Service6):
				with = append(with, n.Name)
			default:
				without = append(without, n.Name)
			}
		}
		slices.Sort(without)
		for _, n := range without {
			if len(with) > 0 {
				out = append(out, api.Alarm{
					Code: "address_family:" + n, Severity: "warning", Node: n,
					Text:     "node " + n + " serves phones and has no " + f.name + " address, as node " + with[0] + " has",
					WhatToDo: "give every node with a P-CSCF an address of both families (sip.address, sip.address6), or none",
				})
			}
		}
	}
	return out
}
