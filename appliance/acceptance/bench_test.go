package acceptance

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
)

// ticks is the unit of CPU time in /proc, which Linux fixes at 100 Hz for users.
const ticks = 10 * time.Millisecond

// cpu is the CPU time, user and system, of all processes of a cluster's nodes.
func cpu(b *testing.B, c *localcluster.Cluster) (sum time.Duration) {
	b.Helper()
	for _, n := range c.Nodes {
		for _, pid := range append(children(b, n, ""), n.PID()) {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				b.Fatal(err)
			}
			fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
			for _, f := range fields[11:13] { // utime, stime
				n, err := strconv.Atoi(f)
				if err != nil {
					b.Fatal(err)
				}
				sum += time.Duration(n) * ticks
			}
		}
	}
	return sum
}

// BenchmarkRegistration is the CPU that one node with a P-, I- and S-CSCF uses
// for a registration with a challenge (two REGISTERs), durable and committed,
// at 500 a second. isolation: process; all processes of the node are counted.
func BenchmarkRegistration(b *testing.B) {
	const rate, seconds = 500, 10
	c := start(b, workersOf{"n1": {"p1", "i1", "s1"}}, nil)
	host := freshNet()
	n := 0
	for b.Loop() {
		users := subscribeMD5(b, c, fmt.Sprintf("reg%d-", n), rate*seconds)
		d := desk{at: netip.AddrPortFrom(host(10+n), 6000), node: c.Nodes[0]}
		n++
		before := cpu(b, c)
		d.registration(users, 3600, rate).start(b).finish(b)
		b.ReportMetric(float64((cpu(b, c)-before).Microseconds())/(rate*seconds), "cpu-µs/registration")
	}
}

// BenchmarkCall is the same for a call P-S-I-S-P (INVITE 100 180 200 ACK BYE
// 200) at 100 a second.
func BenchmarkCall(b *testing.B) {
	const rate, seconds, users = 100, 10, 100
	c := start(b, workersOf{"n1": {"p1", "i1", "s1"}}, nil)
	host := freshNet()
	caller := desk{at: netip.AddrPortFrom(host(1), 6000), node: c.Nodes[0], users: subscribeMD5(b, c, "from", users)}
	callee := desk{at: netip.AddrPortFrom(host(2), 6000), node: c.Nodes[0], users: subscribeMD5(b, c, "to", users)}
	caller.register(b)
	callee.register(b)
	caller.users = slices.Repeat(caller.users, rate*seconds/users) // a call each
	for b.Loop() {
		waits := sipp{scenario: "answer_uas.xml", at: callee.at, calls: rate * seconds}.start(b)
		before := cpu(b, c)
		caller.calls("answer_uac.xml", callee.users, rate, nil).start(b).finish(b)
		waits.finish(b)
		b.ReportMetric(float64((cpu(b, c)-before).Microseconds())/(rate*seconds), "cpu-µs/call")
	}
}
