package acceptance

import (
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/controller/api"
)

// TestShapesOfClusters registers, calls and cuts the power in every shape that a
// cluster may have besides the usual one.
func TestShapesOfClusters(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		workers   workersOf
		isolation string
		children  []string // processes of each node below its first
	}{
		{"one node in one process", alone, "none", nil},
		{"one node, a front and a worker process", alone, "process", []string{"front", "worker"}},
		{"five controllers, roles apart", workersOf{"n1": {"p1"}, "n2": {"i1"}, "n3": {"s1"}, "n4": nil, "n5": {"p2", "s2"}}, "process", []string{"front"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, tt.workers, func(s *localcluster.Spec) { s.Isolation = tt.isolation })
			users := subscribe(t, c, "shape", 4)
			phones := phonesAt(t, users, c.Nodes...)
			register(t, phones...)
			talkInARing(t, phones, users)
			for _, n := range c.Nodes {
				st, err := n.Admin.Status(within(t, 5*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if len(st.Nodes) != len(c.Nodes) || st.Users != len(users) || !st.Quorum || len(st.Alarms) > 0 {
					t.Errorf("node %s: %+v", n.Name, st)
				}
				if all := children(t, n, ""); len(tt.children) == 0 && len(all) > 0 {
					t.Errorf("node %s has the child processes %v", n.Name, all)
				}
				for _, name := range tt.children {
					if len(children(t, n, name)) != 1 {
						t.Errorf("node %s has no %s process of its own", n.Name, name)
					}
				}
			}
			spread(t, c, "p-cscf", len(users))
			spread(t, c, "s-cscf", len(users))

			before := whereabouts(t, c.Nodes[0], users)
			cutPower(t, c.Nodes...)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			ready(t, c)
			sameWhereabouts(t, whereabouts(t, c.Nodes[0], users), before)
			talk(t, phones[0], users[1])
		})
	}
}

// spread wants every worker of a kind to have as many users as the others.
func spread(t testing.TB, c *localcluster.Cluster, kind string, users int) {
	t.Helper()
	all, err := c.Nodes[0].Admin.Workers(within(t, 5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var workers []api.Worker
	for _, w := range all {
		if w.Kind == kind {
			workers = append(workers, w)
		}
	}
	for _, w := range workers {
		if w.Users != users/len(workers) {
			t.Errorf("%s has %d of the %d users of %d workers", w.ID, w.Users, users, len(workers))
		}
	}
}
