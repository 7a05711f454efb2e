package localcluster

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"bellwether/appliance/config"
)

func TestNodesHaveTheWorkersThatWereAskedFor(t *testing.T) {
	spec := Spec{Dir: t.TempDir(), Domain: "example.test", PortP: 5060, PortI: 4060, PortS: 6060, PortNode: 7400, PortHTTP: 9090}
	want := [][]string{{"p1", "i1", "s1"}, {"s2"}, nil}
	for i, w := range want {
		spec.Nodes = append(spec.Nodes, NodeSpec{Name: fmt.Sprintf("n%d", i+1), Address: netip.AddrFrom4([4]byte{127, 79, 0, byte(i + 1)}), Workers: w})
	}
	c, err := Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range c.Nodes {
		cfg, err := config.Load(n.ConfigFile())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range cfg.Workers {
			got = append(got, w.ID)
		}
		if !slices.Equal(got, want[i]) {
			t.Errorf("%s has the workers %v, want %v", n.Name, got, want[i])
		}
	}
}
