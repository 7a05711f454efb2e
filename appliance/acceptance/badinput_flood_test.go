package acceptance

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/controller/api"
)

// growth is by how much a flood may make a process grow, in bytes: transactions
// that end after 32 s, several times over because of the race detector.
const growth = 256 << 20

// stormed is the cluster that the floods share, one after the other. What it
// lets in is a tenth of what is usual, as the race detector makes it slow.
var stormed struct {
	sync.Mutex
	once sync.Once
	c    *localcluster.Cluster
	err  error
}

// assault is a flood of node n1, and the phones that must not notice.
type assault struct {
	c              *localcluster.Cluster
	n              *localcluster.Node
	caller, callee *phone.Phone // at n1 and n2
	user           string       // the callee's
	before         map[string]int
	most           int // see growth
}

func beset(t *testing.T, prefix string) *assault {
	t.Helper()
	stormed.Lock()
	t.Cleanup(stormed.Unlock)
	stormed.once.Do(func() {
		stormed.c, stormed.err = launch(filepath.Join(tmp, "stormed"), usual, func(s *localcluster.Spec) {
			s.Flood = []string{"per_source: 200", "per_phone: 200", "strangers: 200"}
			s.Binary = fewFiles(t)
		})
	})
	if stormed.err != nil {
		t.Fatal(stormed.err)
	}
	s := &assault{most: growth, c: stormed.c, n: stormed.c.Node("n1")}
	users := subscribe(t, s.c, prefix, 2)
	addr := freshNet()
	at := func(host int) func(*phone.Config) {
		return func(cfg *phone.Config) { cfg.LocalIP = addr(host) }
	}
	s.caller, s.callee = newPhone(t, s.n, users[0], at(1)), newPhone(t, s.c.Node("n2"), users[1], at(2))
	s.user = users[1]
	register(t, s.caller, s.callee)
	talk(t, s.caller, s.user)
	s.before = rss(t, s.n)
	return s
}

// fewFiles is the program with at most 8,000 file descriptors for each process:
// a front then has 6,000 connections at most, 3,000 of strangers and 375 of one
// of them. The race detector bears no more than 8,128 goroutines.
func fewFiles(t testing.TB) string {
	t.Helper()
	script := filepath.Join(tmp, "few-files")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nulimit -n 8000 && exec '"+binary+"' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return script
}

// stand registers and calls while the flood lasts, then compares the memory of
// n1's processes.
func (s *assault) stand(t *testing.T, flood func()) {
	t.Helper()
	received := figure(t, s.n, "bellwether_front_received_total")
	done := make(chan struct{})
	go func() { defer close(done); flood() }()
	calls := 0
	for flooding := true; flooding; calls++ {
		register(t, s.caller)
		// The sound is not asked for: it does not pass the nodes.
		if r, err := s.caller.Call(within(t, 20*time.Second), "sip:"+s.user+"@"+domain, phone.CallOptions{Hold: 200 * time.Millisecond}); err != nil || r.Status != 200 {
			t.Errorf("call to %s: %+v, %v", s.user, r, err)
		}
		select {
		case <-done:
			flooding = false
		default:
		}
	}
	received = figure(t, s.n, "bellwether_front_received_total") - received
	for name, after := range rss(t, s.n) {
		before := s.before[name]
		t.Logf("memory of %s: %.1f MB before, %.1f MB after %g datagrams and %d calls", name, float64(before)/(1<<20), float64(after)/(1<<20), received, calls)
		if after > before+s.most {
			t.Errorf("the %s process grew from %d to %d MB", name, before>>20, after>>20)
		}
	}
}

// refusals reads how often n1 refused something for a reason.
func (s *assault) refusals(t testing.TB, reason string) float64 {
	t.Helper()
	return s.labelled(t, `bellwether_front_refused_total{reason="`+reason+`"}`)
}

// labelled reads one of n1's metrics, given with its labels.
func (s *assault) labelled(t testing.TB, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(fetch(t, s.n.HTTP()+"/metrics"))
	if m == nil {
		t.Fatalf("node %s does not count %s", s.n.Name, name)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// army sends UDP from any number of loopback addresses.
type army struct {
	s    *assault
	pc   *ipv4.PacketConn
	port uint16
	base float64 // datagrams that n1 had received
	sent int
}

func (s *assault) army(t testing.TB) *army {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &army{s: s, pc: ipv4.NewPacketConn(c), port: c.LocalAddr().(*net.UDPAddr).AddrPort().Port(),
		base: figure(t, s.n, "bellwether_front_received_total")}
}

// soldier is one of 131,072 addresses.
func soldier(i int) [4]byte { return [4]byte{127, byte(2 + i>>16&1), byte(i >> 8), byte(i)} }

// send sends a datagram from a soldier, and now and then waits until the node
// has read what was sent, so that the kernel drops little.
func (a *army) send(t testing.TB, i int, msg string) {
	src := soldier(i)
	to := net.UDPAddrFromAddrPort(a.s.n.P())
	if _, err := a.pc.WriteTo([]byte(msg), &ipv4.ControlMessage{Src: src[:]}, to); err != nil {
		t.Error(err)
	}
	if a.sent++; a.sent%1000 != 0 {
		return
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		st, err := a.s.n.Admin.Status(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		if float64(st.Received)-a.base >= float64(a.sent-1000) {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
}

// message is a request without credentials from a soldier.
func (a *army) message(i int, method, user string) string {
	uri, to := "sip:"+user+"@"+domain, "sip:"+user+"@"+domain
	if method == "REGISTER" {
		uri = "sip:" + domain
	}
	src := netip.AddrPortFrom(netip.AddrFrom4(soldier(i)), a.port)
	return text([]string{
		method + " " + uri + " SIP/2.0",
		fmt.Sprintf("Via: SIP/2.0/UDP %s;branch=z9hG4bK-%d-%d;rport", src, i, a.sent),
		fmt.Sprintf("From: <%s>;tag=%d", to, a.sent), "To: <" + to + ">",
		fmt.Sprintf("Call-ID: %d-%d@%s", i, a.sent, src), "CSeq: 1 " + method, "Max-Forwards: 70",
		fmt.Sprintf("Contact: <sip:%s@%s>", user, src),
	}, "")
}

// Bad input (100,000 junk sources): each with a stranger's call, a guess at a user or plain junk; tables and memory stay as they are, a registered phone registers and calls meanwhile.
func TestBadInputFloodOf100000Sources(t *testing.T) {
	t.Parallel()
	const sources = 100_000
	s := beset(t, "junk")
	a := s.army(t)
	s.stand(t, func() {
		for i := range sources {
			switch i % 3 {
			case 0:
				a.send(t, i, a.message(i, "INVITE", fmt.Sprint("nobody", i)))
			case 1:
				a.send(t, i, a.message(i, "REGISTER", fmt.Sprint("guess", i)))
			default:
				a.send(t, i, fmt.Sprint("junk", i))
			}
		}
	})
	if got := figure(t, s.n, "bellwether_front_received_total") - a.base; got < 0.9*sources {
		t.Errorf("only %g of %d datagrams came in", got, sources)
	}
	if n := figure(t, s.n, "bellwether_front_flows"); n > 100 {
		t.Errorf("the front knows %g flows", n)
	}
	for _, reason := range []string{"stranger-limited", "malformed"} {
		if s.refusals(t, reason) == 0 {
			t.Errorf("nothing was refused as %s", reason)
		}
	}
}

// Bad input (REGISTER flood without credentials): known and unknown users from thousands of sources; nobody is assigned and the cluster state does not change.
func TestBadInputRegisterFlood(t *testing.T) {
	t.Parallel()
	s := beset(t, "regfl")
	victims := subscribe(t, s.c, "victim", 500)
	a := s.army(t)
	state := s.state(t)
	s.stand(t, func() {
		for i := range 10_000 {
			user := fmt.Sprint("unknown", i)
			if i%2 == 0 {
				user = victims[i/2%len(victims)]
			}
			a.send(t, i%5000, a.message(i%5000, "REGISTER", user))
		}
	})
	s.unchanged(t, state)
	if s.refusals(t, "stranger-limited") == 0 {
		t.Error("no REGISTER was refused")
	}
}

// Bad input (INVITE flood without credentials): in the names of registered and other users, from few and from many sources; the cluster state does not change, and the few are banned.
func TestBadInputInviteFlood(t *testing.T) {
	t.Parallel()
	s := beset(t, "invfl")
	a := s.army(t)
	state := s.state(t)
	s.stand(t, func() {
		for i := range 10_000 {
			who := 50_000 + i%2000
			if i%2 == 0 {
				who = 60_000
			}
			user := fmt.Sprint("unknown", i)
			if i%4 < 2 {
				user = s.user
			}
			a.send(t, who, a.message(who, "INVITE", user))
		}
	})
	s.unchanged(t, state)
	banned := netip.PrefixFrom(netip.AddrFrom4(soldier(60_000)), 32)
	if list := s.bans(t, s.n); len(list) != 1 || list[0].Prefix != banned || !list[0].Automatic || list[0].Node != "n1" {
		t.Errorf("bans are %+v", list)
	}
	if _, err := s.n.Admin.RemoveBan(within(t, 5*time.Second), banned); err != nil {
		t.Error(err)
	}
}

// clusterState is what tells whether anything was committed.
type clusterState struct {
	at          time.Time
	index, term float64
	users       int // assigned to workers
}

func (s *assault) state(t testing.TB) clusterState {
	t.Helper()
	st, err := s.n.Admin.Status(within(t, 5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	out := clusterState{
		at: time.Now(), index: figure(t, s.n, "bellwether_raft_applied_index"), term: figure(t, s.n, "bellwether_raft_term"),
	}
	for _, w := range st.Workers {
		out.users += w.Users
	}
	return out
}

// unchanged reports that more was committed than what the leader itself does: an
// empty entry each second to see whether its disk works, and one in each term.
func (s *assault) unchanged(t testing.TB, before clusterState) {
	t.Helper()
	now := s.state(t)
	if most := now.at.Sub(before.at).Seconds() + 2 + 2*(now.term-before.term); now.index-before.index > most {
		t.Errorf("%g entries were committed, more than %g", now.index-before.index, most)
	}
	if now.users != before.users {
		t.Errorf("%d users are assigned, %d were", now.users, before.users)
	}
}

// bans lists what is banned and allowed, as a node tells.
func (s *assault) bans(t testing.TB, n *localcluster.Node) []api.Ban {
	t.Helper()
	l, err := n.Admin.Bans(within(t, 5*time.Second))
	if err != nil || len(l.Silent) > 0 {
		t.Fatalf("bans: %+v, %v", l, err)
	}
	return l.Bans
}

// Bad input (a registered phone floods): its own flow is limited, a neighbour behind the same address goes on, and the phone itself is served again when it stops.
func TestBadInputFloodOfARegisteredPhone(t *testing.T) {
	t.Parallel()
	s := beset(t, "phone")
	users := subscribe(t, s.c, "mad", 2)
	nat := freshNet()(1)
	mad := newWire(t, nat, s.n.P())
	mad.register(t, users[0])
	neighbour := newPhone(t, s.n, users[1], func(cfg *phone.Config) { cfg.LocalIP = nat })
	register(t, neighbour)
	s.stand(t, func() {
		for i := range 5000 {
			mad.send(t, text(mad.initial("MESSAGE", "sip:nobody@"+domain), ""))
			if i%50 == 49 {
				<-time.After(5 * time.Millisecond)
			}
		}
	})
	register(t, neighbour)
	talk(t, neighbour, s.user)
	if s.refusals(t, "flow-limited") == 0 {
		t.Error("the phone that flooded was not limited")
	}
	if m := mad.ask(t, text(mad.request("OPTIONS", "sip:"+s.n.P().String(), users[0]), ""), 20*time.Second); m == nil || m.status != 200 {
		t.Errorf("afterwards it is answered %+v", m)
	}
	if list := s.bans(t, s.n); len(list) != 0 {
		t.Errorf("bans are %+v", list)
	}
}

// Bad input (bans by an operator): what bellwether ban adds holds on all nodes within a second, registered phones included, and so does its end; what is allowed is not limited.
func TestBadInputBansHoldOnAllNodes(t *testing.T) {
	t.Parallel()
	s := beset(t, "banop")
	user := subscribe(t, s.c, "outlaw", 1)[0]
	addr := freshNet()
	outlaw := newWire(t, addr(1), s.n.P())
	outlaw.register(t, user)
	answered := func(n *localcluster.Node) bool {
		outlaw.to = n.P()
		outlaw.send(t, text(outlaw.request("OPTIONS", "sip:"+n.P().String(), user), ""))
		got := outlaw.receive(t, 300*time.Millisecond)
		for more := got; more != ""; { // of retransmissions and earlier ones
			more = outlaw.receive(t, time.Millisecond)
		}
		return got != ""
	}
	all := func(want bool) {
		t.Helper()
		changed := time.Now()
		for _, n := range s.c.Nodes {
			eventually(t, 5*time.Second, func() string {
				if answered(n) != want {
					return fmt.Sprintf("node %s answers: %v", n.Name, !want)
				}
				return ""
			})
		}
		t.Logf("all nodes answer %v after %v", want, time.Since(changed).Round(time.Millisecond))
	}
	all(true)
	run := func(n *localcluster.Node, args ...string) ran {
		t.Helper()
		return bellwether(t, "", append([]string{"--socket", n.AdminSocket()}, args...)...)
	}
	net24, err := addr(1).Prefix(24)
	if err != nil {
		t.Fatal(err)
	}
	if r := run(s.c.Node("n2"), "ban", "add", net24.String(), "--for", "1h", "--reason", "a test"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	all(false)
	for _, n := range s.c.Nodes {
		if list := s.bans(t, n); len(list) != 1 || list[0].Prefix != net24 || list[0].Hits == 0 || list[0].Reason != "a test" {
			t.Errorf("node %s lists %+v", n.Name, list)
		}
	}
	if r := run(s.n, "ban", "add", "--allow", addr(1).String()); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	all(true)
	for _, b := range s.bans(t, s.n) {
		if r := run(s.c.Node("n3"), "ban", "remove", b.Prefix.String()); r.code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	all(true)
	if r := run(s.n, "ban", "add", s.n.Address.String()); r.code != 1 {
		t.Errorf("a node's own address: %+v", r)
	}
	if list := s.bans(t, s.n); len(list) != 0 {
		t.Errorf("left are %+v", list)
	}
}
