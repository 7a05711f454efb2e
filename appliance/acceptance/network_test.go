package acceptance

import (
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/cscf/sipmsg"
)

func overTCP(c *phone.Config) { c.Transport = sipmsg.TCP }

// RFC 3261 §18: a phone over TCP calls, and is called by, phones over UDP and
// TCP at other nodes, and long messages pass both ways.
func TestPhonesOverTCP(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	users := subscribe(t, c, "overtcp", 3)
	heard, texts := make(chan phone.Result, 3), make(chan string, 3)
	answers := func(hz int, change func(*phone.Config)) func(*phone.Config) {
		return func(c *phone.Config) {
			c.ToneHz = hz
			c.OnCall = func(r phone.Result) { heard <- r }
			c.OnMessage = func(_, text string) { texts <- text }
			if change != nil {
				change(c)
			}
		}
	}
	a := newPhone(t, c.Node("n1"), users[0], answers(700, overTCP))
	b := newPhone(t, c.Node("n2"), users[1], answers(900, nil))
	d := newPhone(t, c.Node("n3"), users[2], answers(1100, overTCP))
	register(t, a, b, d)
	talkWith(t, a, users[1], heard)
	talkWith(t, b, users[0], heard)
	talkWith(t, a, users[2], heard)
	long := strings.Repeat("0123456789abcdef", 500)
	for _, to := range []struct {
		from *phone.Phone
		user string
	}{{a, users[1]}, {b, users[2]}, {d, users[0]}} {
		status, err := to.from.Message(within(t, 20*time.Second), "sip:"+to.user+"@"+domain, long)
		if err != nil || status != 200 {
			t.Errorf("a message of %d bytes to %s: %d, %v", len(long), to.user, status, err)
		} else if got := <-texts; got != long {
			t.Errorf("a message of %d bytes came to %s with %d", len(long), to.user, len(got))
		}
	}
	u, err := c.Node("n1").Admin.User(within(t, 5*time.Second), "sip:"+users[2]+"@"+domain)
	if err != nil || len(u.Contacts) != 1 || !strings.HasPrefix(strings.ToLower(u.Contacts[0].Flow), "tcp ") && !strings.Contains(u.Contacts[0].Flow, "TCP") {
		t.Errorf("the flow is %+v, %v", u.Contacts, err)
	}
	if err := d.Unregister(within(t, 20*time.Second)); err != nil {
		t.Error(err)
	}
}

// freePorts makes the ports of a cluster ones that are free at ::1, of which
// there is only one on a machine.
func freePorts(t testing.TB, s *localcluster.Spec) {
	t.Helper()
	for _, port := range []*uint16{&s.PortP, &s.PortI, &s.PortS, &s.PortNode, &s.PortHTTP} {
		l, err := net.Listen("tcp", "[::1]:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // when all are chosen
		*port = l.Addr().(*net.TCPAddr).AddrPort().Port()
	}
}

// TestPhonesOverIPv6 has phones of both address families, over UDP and TCP, at
// a node of both and at one that has IPv6 only.
func TestPhonesOverIPv6(t *testing.T) {
	t.Parallel()
	loopback6 := netip.IPv6Loopback()
	for _, tt := range []struct {
		name string
		dual bool
	}{{"a node of both families", true}, {"a node of IPv6 only", false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := start(t, alone, func(s *localcluster.Spec) {
				freePorts(t, s)
				if tt.dual {
					s.Nodes[0].Address6 = loopback6
				} else {
					s.Nodes[0].Address = loopback6
				}
			})
			n := c.Nodes[0]
			users := subscribe(t, c, "six", 4)
			var phones []*phone.Phone
			for i, u := range users {
				phones = append(phones, newPhone(t, n, u, func(cfg *phone.Config) {
					if i%2 == 1 {
						cfg.Transport = sipmsg.TCP
					}
					if tt.dual && i < 2 {
						cfg.Proxy, cfg.LocalIP = n.P6(), loopback6
					}
				}))
			}
			register(t, phones...)
			// No audio between the families: nothing here relays it.
			for _, pair := range [][2]int{{0, 1}, {1, 0}, {2, 3}, {3, 2}} {
				talk(t, phones[pair[0]], users[pair[1]])
			}
			for _, pair := range [][2]int{{0, 2}, {3, 1}} {
				status, err := phones[pair[0]].Message(within(t, 10*time.Second), "sip:"+users[pair[1]]+"@"+domain, "hello")
				if err != nil || status != 200 {
					t.Errorf("a message from phone %d to %d: %d, %v", pair[0], pair[1], status, err)
				}
			}
			out, _ := cli(t, n, "node", "list")
			if want := map[bool]string{true: n.Address.String() + " ::1", false: "::1"}[tt.dual]; !strings.Contains(out, want) {
				t.Errorf("node list does not show %s:\n%s", want, out)
			}
		})
	}
}

// TestDualStackNode: phones over IPv4 and IPv6, UDP and TCP, call each other in
// every combination; those over TCP are back by themselves when the front
// process has died.
func TestDualStackNode(t *testing.T) {
	t.Parallel()
	c := start(t, alone, func(s *localcluster.Spec) {
		freePorts(t, s)
		s.Nodes[0].Address6 = netip.IPv6Loopback()
	})
	n := c.Nodes[0]
	users := subscribe(t, c, "dual", 4)
	heard := make(chan phone.Result, 4)
	var phones []*phone.Phone
	for i, change := range []func(*phone.Config){
		nil,
		overTCP,
		// Nothing relays audio from one family to the other: these have both.
		func(c *phone.Config) { c.Proxy, c.LocalIP, c.AudioIP = n.P6(), netip.IPv6Loopback(), n.Address },
		func(c *phone.Config) {
			c.Proxy, c.LocalIP, c.AudioIP = n.P6(), netip.IPv6Loopback(), n.Address
			overTCP(c)
		},
	} {
		phones = append(phones, newPhone(t, n, users[i], func(c *phone.Config) {
			c.ToneHz = 500 + 200*i
			c.OnCall = func(r phone.Result) { heard <- r }
			if change != nil {
				change(c)
			}
		}))
	}
	register(t, phones...)
	calls := func() {
		t.Helper()
		for _, i := range []int{0, 1, 2, 3} {
			talkWith(t, phones[i], users[3-i], heard)
		}
		talkWith(t, phones[1], users[2], heard)
	}
	calls()
	end(t, n, "front", syscall.SIGKILL)
	ready(t, c)
	eventually(t, 30*time.Second, func() string {
		// The connection is back, and the P-CSCF knows it.
		for _, i := range []int{1, 3} {
			status, err := phones[0].Message(within(t, 5*time.Second), "sip:"+users[i]+"@"+domain, "hello")
			if err != nil || status != 200 {
				return users[i] + " is not reached"
			}
		}
		return ""
	})
	calls()
}

// TestConnectionsOutliveTheWorkerProcess, which finds the phones by them again.
func TestConnectionsOutliveTheWorkerProcess(t *testing.T) {
	t.Parallel()
	c := start(t, alone, nil)
	n := c.Nodes[0]
	users := subscribe(t, c, "outlive", 2)
	phones := []*phone.Phone{newPhone(t, n, users[0], overTCP), newPhone(t, n, users[1], overTCP)}
	register(t, phones...)
	before := phones[1].Addr()
	killed := end(t, n, "worker", syscall.SIGKILL)
	// What the dying process has taken is lost with it. The next one serves
	// nobody yet when it is started; requests wait for it.
	eventually(t, 5*time.Second, func() string {
		if pids := children(t, n, "worker"); len(pids) != 1 || pids[0] == killed {
			return "no new worker process is there"
		}
		return ""
	})
	talk(t, phones[0], users[1])
	if after := phones[1].Addr(); after != before {
		t.Errorf("the phone was at %s and is at %s", before, after)
	}
}
