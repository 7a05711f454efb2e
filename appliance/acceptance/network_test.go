package acceptance

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/cscf/sipmsg"
)

// TestPhonesOverTCP has phones over TCP call each other and one over UDP,
// through P-CSCFs of both nodes.
func TestPhonesOverTCP(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	users := subscribe(t, c, "stream", 4)
	var phones []*phone.Phone
	for i, u := range users {
		phones = append(phones, newPhone(t, c.Node(fmt.Sprint("n", 1+i%2)), u, func(cfg *phone.Config) {
			if i != 3 {
				cfg.Transport = sipmsg.TCP
			}
		}))
	}
	register(t, phones...)
	talkInARing(t, phones, users)
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
