package localcluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bellwether/appliance/config"
	"bellwether/appliance/identity"
	"bellwether/appliance/localcluster/loopback"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// three is a cluster of three nodes that nothing has been written of.
func three(t *testing.T) Spec {
	t.Helper()
	host := loopback.Network()
	spec := Spec{Dir: t.TempDir(), Domain: "example.test", PortP: 5060, PortI: 4060, PortS: 6060, PortNode: 7400, PortHTTP: 9090}
	for i, w := range [][]string{{"p1", "i1", "s1"}, {"s2"}, nil} {
		spec.Nodes = append(spec.Nodes, NodeSpec{Name: fmt.Sprintf("n%d", i+1), Address: host(i + 1), Workers: w})
	}
	return spec
}

// program is a program that does what a shell script says, whatever it is told.
func program(t *testing.T, script string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

func create(t *testing.T, spec Spec) *Cluster {
	t.Helper()
	c, err := Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestNodesAreAsTheSpecSays(t *testing.T) {
	spec := three(t)
	spec.Dir = filepath.Join(spec.Dir, `odd: "name" #1 'x' \ ü`)
	spec.Isolation, spec.SIP = "none", []string{"min_expires: 2", "t1_ms: 200"}
	c := create(t, spec)
	for i, n := range c.Nodes {
		cfg, err := config.Load(n.ConfigFile())
		if err != nil {
			t.Fatal(err)
		}
		var workers []string
		for _, w := range cfg.Workers {
			workers = append(workers, w.ID)
			if string(w.Kind[0]) != w.ID[:1] {
				t.Errorf("worker %s is a %s", w.ID, w.Kind)
			}
		}
		if !slices.Equal(workers, spec.Nodes[i].Workers) {
			t.Errorf("%s has the workers %v, want %v", n.Name, workers, spec.Nodes[i].Workers)
		}
		a := spec.Nodes[i].Address
		if cfg.Node.Name != n.Name || cfg.Node.DataDir != n.DataDir() || cfg.Node.RunDir != n.RunDir() || cfg.Node.Isolation != config.None ||
			cfg.AdminSocket() != n.AdminSocket() || len(cfg.Cluster.Controllers) != 3 || cfg.Cluster.Address != netip.AddrPortFrom(a, 7400) ||
			cfg.SIP.Domain != spec.Domain || cfg.SIP.Address != a || netip.AddrPortFrom(a, cfg.SIP.PCSCF) != n.P() ||
			cfg.SIP.MinExpires != 2*time.Second || cfg.SIP.T1 != 200*time.Millisecond || "http://"+cfg.Metrics.Listen.String() != n.HTTP() {
			t.Errorf("%s is configured as %+v", n.Name, cfg)
		}
		id, err := identity.Load(cfg.Node.DataDir, n.Name)
		if err != nil || id.ClusterID != c.ID {
			t.Errorf("%s is %+v, %v", n.Name, id, err)
		}
	}
	if c.Node("n2") != c.Nodes[1] || c.Node("n4") != nil {
		t.Error("nodes are not found by their names")
	}
	if _, err := Create(spec); err == nil {
		t.Error("what is there is replaced")
	}
}

func TestAnAddressInUseIsNamed(t *testing.T) {
	spec := three(t)
	udp := netip.AddrPortFrom(spec.Nodes[1].Address, spec.PortI)
	u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(udp))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(spec); err == nil || !strings.Contains(err.Error(), "UDP "+udp.String()+" cannot be used: bind: address already in use; stop") {
		t.Errorf("error %v", err)
	}
	u.Close()
	tcp := netip.AddrPortFrom(spec.Nodes[2].Address, spec.PortHTTP)
	l, err := net.Listen("tcp", tcp.String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Create(spec); err == nil || !strings.Contains(err.Error(), "TCP "+tcp.String()+" cannot be used") {
		t.Errorf("error %v", err)
	}
	if files, err := os.ReadDir(spec.Dir); err != nil || len(files) > 0 {
		t.Errorf("something was written before: %v, %v", files, err)
	}
}

func TestANodeThatEndsIsReported(t *testing.T) {
	spec := three(t)
	// The second one ends; nobody waits for the first.
	spec.Binary = program(t, `case "$3" in */n2/*) echo "no reason"; exit 3;; esac; exec sleep 600`)
	c := create(t, spec)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := c.WaitReady(ctx)
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "node n2 ended") || !strings.Contains(err.Error(), "no reason") {
		t.Errorf("error %v", err)
	}
}

func TestWaitingHasAnEnd(t *testing.T) {
	spec := three(t)
	spec.Binary = program(t, "echo thinking; exec sleep 600")
	c := create(t, spec)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.WaitReady(ctx); err == nil || !strings.Contains(err.Error(), "node n1 is not ready") {
		t.Errorf("error %v", err)
	}
}

func TestStartingAndStopping(t *testing.T) {
	spec := three(t)
	spec.Binary = program(t, "exec sleep 600")
	c := create(t, spec)
	if err := c.Stop(); err != nil { // what never ran
		t.Error(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	n := c.Nodes[0]
	first := n.PID()
	if err := n.Start(); err == nil || !strings.Contains(err.Error(), "it runs") {
		t.Errorf("a second start: %v", err)
	}
	if err := n.Stop(); err != nil {
		t.Error(err)
	}
	if err := n.Start(); err != nil || n.PID() == first {
		t.Errorf("started again: %v, process %d", err, n.PID())
	}
	n.Kill()
	n.Kill()
	if n.running() {
		t.Error("it outlives being killed")
	}
	n.spec.Binary = filepath.Join(spec.Dir, "nothing")
	if err := n.Start(); err == nil {
		t.Error("a program that is not there starts")
	}
	if n.running() {
		t.Error("it runs all the same")
	}
}

func TestTheEndOfALog(t *testing.T) {
	c := create(t, three(t))
	n := c.Nodes[0]
	if got := n.LogTail(2); !strings.Contains(got, "no such file") {
		t.Errorf("without a log: %q", got)
	}
	if err := os.WriteFile(n.LogFile(), []byte("a\nb\nc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for lines, want := range map[int]string{1: "c", 2: "b\nc", 9: "a\nb\nc"} {
		if got := n.LogTail(lines); got != want {
			t.Errorf("%d lines: %q, want %q", lines, got, want)
		}
	}
}
