package acceptance

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/cscf/sipmsg"
)

// parties are two registered phones, written by hand, at two nodes of the
// shared cluster. Between them are five hops: P-CSCF, S-CSCF, I-CSCF, S-CSCF,
// P-CSCF.
type parties struct {
	c      *localcluster.Cluster
	n      *localcluster.Node // of the caller
	addr   func(host int) netip.Addr
	caller *wire
	callee *callee
	peer   string // URI of the callee
	entry  string // URI of the P entry of n
}

// hops is how often a request is forwarded between two phones.
const hops = 5

// newParties registers both, over the transport that each shall have.
func newParties(t testing.TB, prefix, callerBy, calleeBy string, answers script) *parties {
	t.Helper()
	c := sharedCluster(t)
	return partiesAt(t, c, c.Node("n1"), c.Node("n2"), prefix, callerBy, calleeBy, answers)
}

// partiesAt is newParties for any cluster.
func partiesAt(t testing.TB, c *localcluster.Cluster, near, far *localcluster.Node, prefix, callerBy, calleeBy string, answers script) *parties {
	t.Helper()
	addr := freshNet()
	users := subscribe(t, c, unique(prefix, addr), 2)
	p := &parties{c: c, n: near, addr: addr, peer: "sip:" + users[1] + "@" + domain}
	p.entry = "sip:" + p.n.P().String()
	p.caller = openWire(t, callerBy, p.addr(1), p.n.P())
	p.caller.register(t, users[0])
	w := openWire(t, calleeBy, p.addr(2), far.P())
	w.register(t, users[1])
	p.callee = w.serve(t, answers)
	p.meet(t)
	return p
}

// meet waits until every node knows that the callee is registered, which may
// take a moment after the 200.
func (p *parties) meet(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		a := p.caller.ask(t, text(p.caller.initial("MESSAGE", p.peer), "met?"), 500*time.Millisecond)
		if a == nil || a.status != 480 && a.status != 404 {
			break
		}
	}
	for {
		select {
		case <-p.callee.requests:
			continue
		default:
		}
		return
	}
}

// stranger is a wire of nobody.
func (p *parties) stranger(t testing.TB, host int) *wire {
	t.Helper()
	return newWire(t, p.addr(host), p.n.P())
}

// deliver sends a request that the callee answers, and returns what came to it.
func (p *parties) deliver(t testing.TB, request string) (m *sipmsg.Message, raw string) {
	t.Helper()
	method, _, _ := strings.Cut(request, " ")
	if a := p.caller.final(t, request); a.status != 200 {
		t.Fatalf("answered %d %s", a.status, a.Reason())
	}
	return p.callee.take(t, method)
}

// silent sends something that nobody may answer, and proves it by an answer to
// what is sent after it.
func silent(t testing.TB, w *wire, message string) {
	t.Helper()
	w.send(t, message)
	alive(t, w)
	if got := w.receive(t, 1); got != "" {
		t.Errorf("answered: %.300q", got)
	}
}

// alive proves that a wire is served, and that everything before was read.
func alive(t testing.TB, w *wire) {
	t.Helper()
	request := text(w.request("OPTIONS", "sip:"+w.to.String(), "alive"), "")
	branch := branchOf.FindStringSubmatch(request)[1]
	if a := w.final(t, request); a.status != 200 || !strings.Contains(a.raw, branch) {
		t.Errorf("OPTIONS of %s is answered %d:\n%s", w.local, a.status, a.raw)
	}
}

// refused wants a status for a request.
func refused(t testing.TB, w *wire, request string, status int) *answer {
	t.Helper()
	a := w.final(t, request)
	if a.status != status {
		t.Errorf("answered %d %s, want %d, to\n%.600s", a.status, a.Reason(), status, request)
	}
	return a
}

// value is the first value of a header, "" if there is none.
func value(m *sipmsg.Message, h sipmsg.Header) string {
	v, _ := m.Value(h)
	return v
}

// stripped is a list of header lines without those of the names.
func stripped(lines []string, names ...string) (out []string) {
	for _, l := range lines {
		name, _, _ := strings.Cut(l, ":")
		drop := false
		for _, n := range names {
			drop = drop || strings.EqualFold(strings.TrimSpace(name), n)
		}
		if !drop {
			out = append(out, l)
		}
	}
	return out
}

// bothTransports runs a test for a phone over UDP and one over TCP.
func bothTransports(t *testing.T, run func(t *testing.T, transport string)) {
	for _, transport := range []string{"UDP", "TCP"} {
		t.Run(fmt.Sprintf("over %s", transport), func(t *testing.T) {
			t.Parallel()
			run(t, transport)
		})
	}
}
