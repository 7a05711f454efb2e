package frontproc

import (
	"net/netip"
	"testing"

	"bellwether/controller/state"
)

func TestNodesThatLackAnAddressFamilyAreTold(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for name, tc := range map[string]struct {
		first, second state.Node
		kind          state.Kind // of n2's worker
		want          string
	}{
		"both have IPv4":                     {state.Node{Service: v4}, state.Node{Service: v4}, state.PCSCF, ""},
		"both have both":                     {state.Node{Service: v4, Service6: v6}, state.Node{Service: v4, Service6: v6}, state.PCSCF, ""},
		"one lacks IPv6":                     {state.Node{Service: v4, Service6: v6}, state.Node{Service: v4}, state.PCSCF, "address_family:n2"},
		"each lacks what the other has":      {state.Node{Service: v4}, state.Node{Service: v6}, state.PCSCF, "address_family:n2 address_family:n1"},
		"the one that lacks it serves calls": {state.Node{Service: v4, Service6: v6}, state.Node{Service: v4}, state.SCSCF, ""},
	} {
		tc.first.Name, tc.second.Name = "n1", "n2"
		st, results := state.New().Apply(1, []state.Command{
			{Init: &state.Init{ClusterID: "c", Name: "c", Secret: make([]byte, 32)}},
			{PutNode: &tc.first}, {PutNode: &tc.second},
			{PutWorker: &state.Worker{ID: "a", Kind: state.PCSCF, Node: "n1"}},
			{PutWorker: &state.Worker{ID: "b", Kind: tc.kind, Node: "n2"}},
		})
		for _, r := range results {
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
		}
		if got := codes(familyAlarms(st)); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
