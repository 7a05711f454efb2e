package acceptance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

// Check 04 (RFC 5393 §4): a request that comes back unchanged is answered 482;
// one that comes back with another Request-URI is a spiral and passes.
func TestCheck04LoopIsAnswered482AndSpiralPasses(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	n, addr := c.Node("n1"), freshNet()
	users := subscribe(t, c, unique("chk04", addr), 3)
	caller, proxy := newWire(t, addr(1), n.P()), newWire(t, addr(2), n.P())
	caller.register(t, users[0])
	proxy.register(t, users[1])
	w := newWire(t, addr(3), c.Node("n2").P())
	w.register(t, users[2])
	third := w.serve(t, always(200))

	// back makes of a request that came to the proxy what a proxy sends on to a
	// user: nothing changes but what every hop changes.
	laps := 0
	back := func(m *sipmsg.Message, uri string) string {
		laps++
		m = m.Clone()
		mf, _ := m.MaxForwards()
		m.Set(sipmsg.MaxForwards, strconv.Itoa(mf-1))
		m.SetRequestURI(uri)
		m.Remove(sipmsg.Route)
		m.Add(sipmsg.Route, "<sip:"+n.P().String()+";lr>, "+proxy.serviceRoute)
		m.Push(sipmsg.ViaHeader, fmt.Sprintf("SIP/2.0/UDP %s;branch=z9hG4bKlap%d;rport", proxy.local, laps))
		return string(m.Append(nil))
	}
	// come returns the next MESSAGE or final response at the proxy.
	come := func() *sipmsg.Message {
		for {
			got := proxy.receive(t, 10*time.Second)
			m, err := sipmsg.Parse([]byte(got))
			if err != nil {
				t.Fatalf("at the proxy: %q, %v", got, err)
			}
			if m.IsRequest() || m.Status() >= 200 {
				return m
			}
		}
	}

	self := "sip:" + users[1] + "@" + domain
	caller.send(t, text(caller.initial("MESSAGE", self), "loop"))
	for m := come(); ; m = come() {
		if !m.IsRequest() {
			if m.Status() != 482 {
				t.Errorf("the loop ends with %d, want 482", m.Status())
			}
			break
		}
		if laps > 2 {
			t.Fatal("it came back and back and is not stopped")
		}
		proxy.send(t, back(m, self))
	}
	if laps == 0 {
		t.Fatal("no request came to the proxy")
	}

	laps = 100
	spiral := text(caller.initial("MESSAGE", self), "spiral")
	caller.send(t, spiral)
	for m := come(); ; m = come() {
		if !m.IsRequest() {
			if m.Status() != 200 {
				t.Errorf("the spiral ends with %d, want 200", m.Status())
			}
			break
		}
		if string(m.Body()) == "spiral" { // not a repeat of the other
			proxy.send(t, back(m, "sip:"+users[2]+"@"+domain))
		}
	}
	third.take(t, "MESSAGE")
}

// Check 05 (RFC 5393 §5): a request whose Max-Breadth is exhausted is answered
// 440; two phones of one user share what is left of it.
func TestCheck05ExhaustedBreadthIsAnswered440(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk05", "UDP", "UDP", always(180))
	two := newWire(t, p.addr(3), p.n.P())
	two.register(t, p.callee.w.user)
	second := two.serve(t, always(180))

	refused(t, p.caller, text(p.caller.initial("MESSAGE", p.peer, "Max-Breadth: 0"), ""), 440)
	p.callee.none(t, "MESSAGE")

	invite := text(p.caller.initial("INVITE", p.peer, "Max-Breadth: 7"), sdp)
	p.caller.send(t, invite)
	sum := 0
	for _, phone := range []*callee{p.callee, second} {
		m, raw := phone.take(t, "INVITE")
		for v := range m.Named("Max-Breadth") {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 {
				t.Errorf("Max-Breadth is %q:\n%s", v, raw)
			}
			sum += n
		}
	}
	if sum < 2 || sum > 7 {
		t.Errorf("the branches have a breadth of %d together, want 2 to 7", sum)
	}
	p.cancel(t, invite)
}

// cancel ends the caller's INVITE.
func (p *parties) cancel(t testing.TB, invite string) {
	t.Helper()
	l := strings.Split(strings.Replace(strings.Replace(invite, "INVITE ", "CANCEL ", 1), " INVITE\r\n", " CANCEL\r\n", 1), "\r\n")
	l = stripped(l[:slices.Index(l, "")], "Content-Length", "Contact", "Content-Type")
	p.caller.send(t, text(l, ""))
	for {
		a := p.caller.await(t, invite, 20*time.Second)
		if a == nil {
			t.Fatal("the INVITE has no answer after its CANCEL")
		}
		if _, method := a.CSeq(); method == "INVITE" {
			if a.status != 487 {
				t.Errorf("the cancelled INVITE ends with %d", a.status)
			}
			return
		}
	}
}
