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

// freePort finds a port that is free at ::1 for UDP and TCP.
func freePort(t testing.TB) uint16 {
	t.Helper()
	for range 20 {
		l, err := net.Listen("tcp6", "[::1]:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		u, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback, Port: port})
		l.Close()
		if err == nil {
			u.Close()
			return uint16(port)
		}
	}
	t.Fatal("no port is free at ::1")
	return 0
}

// dualStack is a node with an IPv4 and an IPv6 address.
func dualStack(t testing.TB) (c *localcluster.Cluster, v6 netip.AddrPort) {
	t.Helper()
	c = start(t, alone, func(s *localcluster.Spec) {
		s.PortP, s.PortI, s.PortS = freePort(t), freePort(t), freePort(t)
		s.SIP = append(s.SIP, `address6: "::1"`)
	})
	return c, netip.AddrPortFrom(netip.IPv6Loopback(), c.Spec.PortP)
}

// TestDualStackNode: phones over IPv4 and IPv6, UDP and TCP, call each other in
// every combination; those over TCP are back by themselves when the front
// process has died.
func TestDualStackNode(t *testing.T) {
	t.Parallel()
	c, v6 := dualStack(t)
	n := c.Nodes[0]
	users := subscribe(t, c, "dual", 4)
	heard := make(chan phone.Result, 4)
	var phones []*phone.Phone
	for i, change := range []func(*phone.Config){
		nil,
		overTCP,
		// Nothing relays audio from one family to the other: these have both.
		func(c *phone.Config) { c.Proxy, c.LocalIP, c.AudioIP = v6, v6.Addr(), n.Address },
		func(c *phone.Config) {
			c.Proxy, c.LocalIP, c.AudioIP = v6, v6.Addr(), n.Address
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

// TestPhonesTalkOverIPv6: audio and all.
func TestPhonesTalkOverIPv6(t *testing.T) {
	t.Parallel()
	c, v6 := dualStack(t)
	users := subscribe(t, c, "six", 2)
	heard := make(chan phone.Result, 1)
	var phones []*phone.Phone
	for i, change := range []func(*phone.Config){func(*phone.Config) {}, overTCP} {
		phones = append(phones, newPhone(t, c.Nodes[0], users[i], func(c *phone.Config) {
			c.Proxy, c.LocalIP, c.ToneHz = v6, v6.Addr(), 700+200*i
			c.OnCall = func(r phone.Result) { heard <- r }
			change(c)
		}))
	}
	register(t, phones...)
	talkWith(t, phones[0], users[1], heard)
	talkWith(t, phones[1], users[0], heard)
}
