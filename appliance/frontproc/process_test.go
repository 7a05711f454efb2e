package frontproc

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/api"
	"bellwether/controller/state"
)

// TestWhatCannotStartSaysWhy, leaves nothing running, and starts when the
// reason is gone.
func TestWhatCannotStartSaysWhy(t *testing.T) {
	n := prepare(t)
	udp := func(port uint16) func() (func() error, error) {
		return func() (func() error, error) {
			c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.cfg.SIP.Address, port)))
			return c.Close, err
		}
	}
	listen := func(network, addr string) func() (func() error, error) {
		return func() (func() error, error) {
			l, err := net.Listen(network, addr)
			if err != nil {
				return nil, err
			}
			return l.Close, nil
		}
	}
	plain := func(path string) func() (func() error, error) {
		return func() (func() error, error) {
			return func() error { return os.Remove(path) }, os.WriteFile(path, nil, 0o600)
		}
	}
	for _, tt := range []struct {
		name string
		take func() (func() error, error)
		says string
	}{
		{"the cluster port is taken", listen("tcp", n.cfg.Cluster.Address.String()), "cluster port"},
		{"a SIP port is taken", udp(n.cfg.SIP.SCSCF), "SIP ports"},
		{"a SIP port is taken over TCP", listen("tcp", netip.AddrPortFrom(n.cfg.SIP.Address, n.cfg.SIP.ICSCF).String()), "SIP ports"},
		{"the metrics port is taken", listen("tcp", n.cfg.Metrics.Listen.String()), "metrics"},
		{"another node has the admin socket", listen("unix", n.cfg.AdminSocket()), "another node answers"},
		{"another node has the link socket", listen("unix", n.cfg.Node.RunDir+"/link.sock"), "another node answers"},
		{"a file is where the admin socket should be", plain(n.cfg.AdminSocket()), "not a socket"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			free, err := tt.take()
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := free(); err != nil {
					t.Error(err)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			err = n.run(ctx, Options{Ready: func() { t.Error("it says that it is ready") }})
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want one with %q", err, tt.says)
			}
		})
	}
	n.begin(Options{})
}

// TestItComesBackAsItWas: stopped in the middle of everything, and started
// again on the same directories.
func TestItComesBackAsItWas(t *testing.T) {
	n := start(t, Options{})
	w, groups := n.serving()
	n.add(subscriber("alice"))
	w.answers(never)
	w.tell(workerlink.Follow, workerlink.FollowMsg{Feed: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watching, ended := make(chan struct{}, 9), make(chan struct{})
	go func() {
		defer close(ended)
		_ = n.admin.Watch(ctx, func(api.Event) error { watching <- struct{}{}; return nil })
	}()
	<-watching
	asking := make(chan error, 1)
	go func() { _, err := n.admin.Calls(ctx); asking <- err }()
	began := time.Now()
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v to stop", took)
	}
	<-ended
	<-asking
	w.ends("the front ended")
	for _, f := range []string{n.cfg.AdminSocket(), n.cfg.Node.RunDir + "/link.sock"} {
		if _, err := os.Lstat(f); err == nil {
			t.Errorf("%s is left", f)
		}
	}
	n.begin(Options{})
	w, again := n.serving()
	if again[state.PCSCF] != groups[state.PCSCF] {
		t.Errorf("the groups were %v and are %v", groups, again)
	}
	if _, err := n.admin.Subscriber(t.Context(), "alice"); err != nil {
		t.Error(err)
	}
	_ = w
}

func TestADirectoryOfAnotherNodeIsRefused(t *testing.T) {
	n := start(t, Options{})
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.cfg.Node.Name = "n2"
	err := n.run(t.Context(), Options{})
	if err == nil || !strings.Contains(err.Error(), "node n1's, not node n2's") {
		t.Errorf("error %v", err)
	}
	n.cfg.Node.Name = "n1"
}

func TestStateDirectoriesAreTheOwnersAlone(t *testing.T) {
	n := start(t, Options{})
	for _, d := range []string{n.cfg.Node.DataDir + "/raft", n.cfg.Node.DataDir + "/pki"} {
		info, err := os.Stat(d)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, info.Mode(), err)
		}
	}
	if info, err := os.Stat(n.cfg.Node.RunDir + "/link.sock"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("link.sock: %v, %v", info.Mode(), err)
	}
}

func TestADomainThatIsNotTheClustersIsRefused(t *testing.T) {
	n := start(t, Options{})
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.cfg.SIP.Domain, n.cfg.File = "other.test", "bellwether.yaml"
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	err := n.run(ctx, Options{})
	if err == nil || !strings.Contains(err.Error(), "the cluster's SIP domain is ims.test, not other.test; correct bellwether.yaml") {
		t.Errorf("it ended with %v", err)
	}
}
