package acceptance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Check 13 (RFC 3261 §18.3): on a stream a negative, malformed or missing
// Content-Length, or two that differ, is answered 400 and ends the connection;
// nothing behind it is taken for a message.
func TestCheck13ContentLengthOfAStream(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk13", "UDP", "UDP", always(200))
	for name, lines := range map[string][]string{
		"negative":           {"Content-Length: -1"},
		"two that differ":    {"Content-Length: 0", "l: 5"},
		"two in one line":    {"Content-Length: 0, 5"},
		"not a number":       {"Content-Length: five"},
		"hexadecimal":        {"Content-Length: 0x10"},
		"beyond all numbers": {"Content-Length: 36893488147419103232"},
		"none":               nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := dialWire(t, p.addr(3), p.n.P())
			l := append(w.request("OPTIONS", p.entry, "x"), lines...)
			smuggled := text(w.request("OPTIONS", p.entry, "y"), "")
			w.send(t, strings.Join(l, "\r\n")+"\r\n\r\n"+smuggled)
			got := w.closed(t, 10*time.Second)
			if !strings.HasPrefix(got, "SIP/2.0 400 ") || strings.Count(got, "SIP/2.0 ") != 1 {
				t.Errorf("answered\n%s", got)
			}
		})
	}
}

// Check 23 (RFC 3261 §18.1.1): a request above 1,300 bytes goes over TCP, with
// TCP in its Via, to a phone that is registered over TCP; towards a phone that
// is registered over UDP its flow wins; the answer to a request over UDP stays
// on UDP whatever its size; and a phone that is registered over UDP may send a
// large request over TCP.
func TestCheck23LargeRequests(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 2500)
	for _, calleeBy := range []string{"UDP", "TCP"} {
		t.Run("to a phone over "+calleeBy, func(t *testing.T) {
			t.Parallel()
			p := newParties(t, "chk23"+strings.ToLower(calleeBy), "UDP", calleeBy, always(200))
			m, raw := p.deliver(t, text(p.caller.initial("MESSAGE", p.peer, "Content-Type: text/plain"), big))
			if via, _ := m.TopVia(); via.Transport != calleeBy {
				t.Errorf("the Via is %q, want %s:\n%s", via, calleeBy, raw)
			}
			if string(m.Body()) != big {
				t.Errorf("the body has %d bytes, want %d", len(m.Body()), len(big))
			}
		})
	}
	t.Run("the answer stays on UDP", func(t *testing.T) {
		t.Parallel()
		p := newParties(t, "chk23r", "UDP", "UDP", always(200))
		l := p.caller.initial("MESSAGE", p.peer)
		for i := range 20 { // every Via comes back in the answer
			l = slices.Insert(l, 2, fmt.Sprintf("Via: SIP/2.0/TCP upstream%d.example.com;branch=z9hG4bK%s", i, strings.Repeat("y", 80)))
		}
		if a := refused(t, p.caller, text(l, ""), 200); len(a.raw) < 1500 {
			t.Errorf("the answer has only %d bytes", len(a.raw))
		}
	})
	t.Run("from a phone over UDP, which sends it over TCP", func(t *testing.T) {
		t.Parallel()
		p := newParties(t, "chk23t", "UDP", "UDP", always(200))
		users := []string{p.caller.user, p.caller.serviceRoute}
		p.caller = dialWire(t, p.addr(1), p.n.P())
		p.caller.user, p.caller.serviceRoute = users[0], users[1]
		if m, raw := p.deliver(t, text(p.caller.initial("MESSAGE", p.peer), big)); string(m.Body()) != big {
			t.Errorf("the callee gets\n%s", raw)
		}
		neighbour := dialWire(t, p.addr(9), p.n.P())
		neighbour.user, neighbour.serviceRoute = users[0], users[1]
		refused(t, neighbour, text(neighbour.initial("MESSAGE", p.peer), big), 403)
	})
}

// Check 25 (RFC 5626 §4.4.1): a double CRLF on a connection is answered by one
// CRLF, whether it comes in one piece, split, or together with a request.
func TestCheck25PingsAreAnswered(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk25", "TCP", "UDP", always(200))
	w := p.caller
	pong := func(what string) {
		t.Helper()
		if got := w.receive(t, 10*time.Second); got != "\r\n" {
			t.Fatalf("%s: %q came, want one CRLF", what, got)
		}
	}
	w.send(t, "\r\n\r\n")
	pong("in one piece")
	for _, b := range []string{"\r", "\n", "\r", "\n"} {
		w.send(t, b)
		<-time.After(10 * time.Millisecond)
	}
	pong("split")
	for _, around := range [][2]string{{"\r\n\r\n", ""}, {"", "\r\n\r\n"}} {
		w.send(t, around[0]+text(w.request("OPTIONS", p.entry, "x"), "")+around[1])
		var pongs, answers int
		for range 2 { // one may overtake the other
			if got := w.receive(t, 10*time.Second); got == "\r\n" {
				pongs++
			} else if strings.HasPrefix(got, "SIP/2.0 200 ") {
				answers++
			}
		}
		if pongs != 1 || answers != 1 {
			t.Errorf("with %q around a request: %d pongs, %d answers", around, pongs, answers)
		}
	}
}

// Check 26 (RFC 3261 §7.5): two messages in one segment are both handled, and
// so is one that comes byte by byte.
func TestCheck26MessagesOfAStream(t *testing.T) {
	t.Parallel()
	p := newParties(t, "chk26", "TCP", "TCP", always(200))
	w := p.caller
	one, two := text(w.initial("MESSAGE", p.peer), "one"), text(w.initial("MESSAGE", p.peer), "two")
	w.send(t, one+two)
	var bodies []string
	for range 2 {
		m, _ := p.callee.take(t, "MESSAGE")
		bodies = append(bodies, string(m.Body()))
	}
	slices.Sort(bodies)
	if !slices.Equal(bodies, []string{"one", "two"}) {
		t.Errorf("came %q", bodies)
	}
	for range 2 {
		if got := w.receive(t, 10*time.Second); !strings.HasPrefix(got, "SIP/2.0 200 ") {
			t.Errorf("answered %q", got)
		}
	}
	slow := text(w.initial("MESSAGE", p.peer), "slow")
	for i := range slow {
		w.send(t, slow[i:i+1])
	}
	if a := w.await(t, slow, 10*time.Second); a == nil || a.status != 200 {
		t.Fatalf("byte by byte: %+v", a)
	}
	if m, _ := p.callee.take(t, "MESSAGE"); string(m.Body()) != "slow" {
		t.Errorf("byte by byte came %q", m.Body())
	}
}
