package transaction

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

func TestMaxForwards(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom)
		for i, c := range []struct{ hops, want string }{{"1", "0"}, {"-", "70"}, {"70", "69"}, {"255", "254"}} {
			w.receive(tina, call{method: "MESSAGE", branch: fmt.Sprintf("z9hG4bK%d", i), hops: c.hops}.String())
			got := slices.Collect(w.last(tom, "MESSAGE").Values(sipmsg.MaxForwards))
			if !slices.Equal(got, []string{c.want}) {
				t.Errorf("Max-Forwards %s leaves as %q, want %s", c.hops, got, c.want)
			}
			w.answer(tom, "MESSAGE", 200)
		}
		w.do(func() { w.trace = nil })
		w.receive(tina, call{hops: "0"}.String())
		w.expect(`0.0 > tina 483 INVITE`)
		if w.last(tina, "483 INVITE").ToTag() == "" {
			t.Error("the 483 has no To tag")
		}
		w.ack(tina, "483 INVITE")
		w.expect(``)
	})
}

func TestUserAgentServerAnswersThoughNoHopIsLeft(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = func(r *Request) { r.Reply(200, "", nil) }
		w.receive(tina, call{method: "OPTIONS", hops: "0"}.String())
		w.expect(`0.0 > tina 200 OPTIONS`)
	})
}

func TestForksCountMaxForwardsOnceEach(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom, near)
		w.receive(tina, call{method: "MESSAGE"}.String())
		for _, p := range []Peer{tom, near} {
			if n, _ := w.last(p, "MESSAGE").MaxForwards(); n != 69 {
				t.Errorf("%s got Max-Forwards %d, want 69", nameOf(p), n)
			}
			w.answer(p, "MESSAGE", 404)
		}
	})
}

// An INVITE that is repeated to a fresh layer, as after a restart or takeover,
// must go on as the same downstream transaction.
func TestBranchesAreDeterministic(t *testing.T) {
	type result struct{ tom, near, relayed string }
	run := func(cfg Config, from Peer, c call) (res result) {
		simulate(t, cfg, func(w *world) {
			w.request = to(tom, near)
			w.receive(from, c.String())
			branch := func(p Peer, what string) string {
				via, _ := w.last(p, what).TopVia()
				return via.Branch()
			}
			res.tom, res.near = branch(tom, "INVITE"), branch(near, "INVITE")
			w.answer(tom, "INVITE", 404)
			w.answer(near, "INVITE", 404)
			w.ack(from, "404 INVITE")

			// The ACK of a non-2xx and a CANCEL find the first branch again.
			c.method = "ACK"
			m, _ := sipmsg.Parse([]byte(c.String()))
			w.do(func() {
				stamp(m, must(m.TopVia()), from)
				w.layer.acking = loopPart(m)
				m.SetRequestURI("sip:tom@device.test") // the role sends it where it sent the INVITE
				w.layer.Relay(m, bob)
			})
			res.relayed = branch(bob, "ACK")
		})
		return res
	}
	first := run(testConfig, tina, call{})
	if first.tom == first.near {
		t.Error("both forks have the same branch")
	}
	if first.relayed != first.tom {
		t.Errorf("a relayed ACK gets %s, the first target %s", first.relayed, first.tom)
	}
	if got := run(testConfig, tina, call{}); got != first {
		t.Errorf("a fresh layer makes %v, the first one %v", got, first)
	}
	elsewhere := tina
	elsewhere.Flow.Node, elsewhere.Flow.Conn = "b", 99
	elsewhere.Flow.Local = carol.Flow.Remote
	names[elsewhere] = "tina, elsewhere"
	if got := run(testConfig, elsewhere, call{}); got != first {
		t.Errorf("another front makes %v, the first one %v", got, first)
	}
	overTCP := call{via: "SIP/2.0/TCP 198.51.100.9:5060;rport"}
	reconnected := wire(sipmsg.TCP, "198.51.100.9:40999", 12)
	names[reconnected] = "tina, reconnected"
	if a, b := run(testConfig, tina, overTCP), run(testConfig, reconnected, overTCP); a != b {
		t.Errorf("a new connection makes %v, the old one %v", b, a)
	}
	secret := testConfig
	secret.Secret = []byte("other")
	moved := wire(sipmsg.UDP, "198.51.100.9:40999", 0)
	names[moved] = "tina, moved"
	for name, got := range map[string]result{
		"port":    run(testConfig, moved, call{}),
		"secret":  run(secret, tina, call{}),
		"source":  run(testConfig, tom, call{}),
		"branch":  run(testConfig, tina, call{branch: "z9hG4bKa9"}),
		"sent-by": run(testConfig, tina, call{via: "SIP/2.0/TCP other.test:5062;rport"}),
		"CSeq":    run(testConfig, tina, call{cseq: "2"}),
	} {
		if got.tom == first.tom {
			t.Errorf("with another %s the branch is the same", name)
		}
	}
}

func must[T any](v T, ok bool) T {
	if !ok {
		panic("missing")
	}
	return v
}

func TestRequestsBeyondMaxAreAnswered503WithoutState(t *testing.T) {
	cfg := testConfig
	cfg.Max = 1
	simulate(t, cfg, func(w *world) {
		w.request = to(tom)
		w.receive(tina, call{}.String())
		second := call{branch: "z9hG4bKa2"}
		w.receive(alice, second.String())
		w.receive(alice, second.String())
		tag := w.last(alice, "503 INVITE").ToTag()
		second.method, second.toTag = "ACK", tag
		w.receive(alice, second.String())
		w.receive(tina, call{method: "CANCEL"}.String()) // of the first: never refused
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > alice 503 INVITE
			0.0 > alice 503 INVITE
			0.0 > tina 200 CANCEL`)
		if servers, _ := w.len(); servers != 1 {
			t.Errorf("%d server transactions, want 1", servers)
		}
		w.answer(tom, "INVITE", 200)
	})
}

func TestEachGivesThePendingRequests(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = func(r *Request) {
			if r.Message.Method() == "MESSAGE" {
				r.Reply(404, "", nil)
			}
		}
		for i := range 3 {
			w.receive(alice, call{branch: fmt.Sprintf("z9hG4bK%d", i)}.String())
		}
		w.receive(alice, call{method: "MESSAGE", branch: "z9hG4bKm"}.String())
		n := 0
		w.do(func() {
			w.layer.Each(func(r *Request) bool { n++; return n < 2 })
			if n != 2 {
				t.Errorf("Each went on to %d", n)
			}
			n = 0
			w.layer.Each(func(r *Request) bool { n++; r.Reply(480, "", nil); return true })
		})
		if n != 3 {
			t.Errorf("%d pending requests, want 3", n)
		}
		for i := range 3 {
			w.receive(alice, call{method: "ACK", branch: fmt.Sprintf("z9hG4bK%d", i)}.String())
		}
	})
}

func TestAckAndCancelNeverReachTheRoleAsRequests(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		// w.request fails the test for any request.
		w.receive(alice, call{method: "ACK"}.String())
		w.receive(alice, call{method: "CANCEL"}.String())
		w.expect(`
			0.0 ack from alice
			0.0 > alice 481 CANCEL`)
	})
}

func TestOtherMethodUnderTheBranchOfAnInviteIsAnotherTransaction(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom)
		w.receive(tina, call{}.String())
		w.receive(tina, call{method: "OPTIONS"}.String())
		w.receive(tina, call{method: "OPTIONS"}.String())
		w.receive(tina, call{}.String())
		w.answer(tom, "OPTIONS", 200)
		w.answer(tom, "INVITE", 200)
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > tom OPTIONS
			0.0 > tina 100 INVITE
			0.0 > tina 200 OPTIONS
			0.0 > tina 200 INVITE`)
	})
}

func TestBranchWithoutCookieIsTakenWithTheOlderRules(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom)
		old := call{branch: "1"}
		w.receive(alice, old.String())
		w.receive(alice, old.String())
		old.cseq = "2"
		w.receive(alice, old.String())
		w.answer(tom, "INVITE", 404)
		w.expect(`
			0.0 > alice 100 INVITE
			0.0 > tom INVITE
			0.0 > alice 100 INVITE
			0.0 > alice 100 INVITE
			0.0 > tom INVITE
			0.0 > tom ACK
			0.0 > alice 404 INVITE`)
		old.method, old.toTag = "ACK", "tag-tom"
		w.receive(alice, old.String())
		if w.acks != 0 {
			t.Error("the ACK was not matched")
		}
	})
}

// A second copy of a request whose server transaction is over replaces what
// is left of the first: it has the same branch.
func TestCopyOfAFinishedRequestIsForwardedAgain(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob)
		for range 2 {
			w.receive(tina, call{method: "BYE"}.String())
			w.answer(bob, "BYE", 200)
		}
		w.expect(`
			0.0 > bob BYE
			0.0 > tina 200 BYE
			0.0 > bob BYE
			0.0 > tina 200 BYE`)
	})
}

// hop is an engine whose Env delivers synchronously, so each Send runs the
// receiver, which may answer, before it returns.
type hop struct {
	*world
	layer *Layer
	self  Peer
	peers map[uint32]*hop
	next  []Peer
}

func (h *hop) Send(to Peer, raw []byte) {
	if peer := h.peers[to.Group]; peer != nil {
		m, err := sipmsg.Parse(raw)
		if err != nil {
			h.t.Errorf("parse: %v", err)
			return
		}
		peer.layer.Receive(m, h.self)
		return
	}
	h.world.Send(to, raw)
}

func (h *hop) Request(r *Request) {
	if len(h.next) == 0 {
		r.Reply(180, "", nil)
		r.Reply(486, "", nil)
		return
	}
	r.Forward(forward(r, h.next))
}

func TestEnginesThatCallEachOtherSynchronously(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		peers := map[uint32]*hop{}
		var hops []*hop
		for g := uint32(10); g < 14; g++ {
			h := &hop{world: w, self: Peer{Group: g, InProcess: true}, peers: peers}
			switch g {
			case 10:
				h.next = []Peer{{Group: 11, InProcess: true}}
			case 11: // a fork, both of which answer before Forward returns
				h.next = []Peer{{Group: 12, InProcess: true}, {Group: 13, InProcess: true}}
			}
			cfg := testConfig
			cfg.Token = fmt.Sprintf("g%d", g)
			h.layer = New(cfg, h, h)
			peers[g] = h
			hops = append(hops, h)
		}
		m, _ := sipmsg.Parse([]byte(call{}.String()))
		w.do(func() { hops[0].layer.Receive(m, alice) })
		w.expect(`
			0.0 > alice 100 INVITE
			0.0 > alice 180 INVITE
			0.0 > alice 180 INVITE
			0.0 > alice 486 INVITE`)
		m, _ = sipmsg.Parse([]byte(call{method: "ACK", toTag: "x"}.String()))
		w.do(func() { hops[0].layer.Receive(m, alice) })
		w.sleep(time.Minute)
		for _, h := range hops {
			if s, c := h.layer.Len(); s != 0 || c != 0 {
				t.Errorf("group %d has %d servers and %d clients left", h.self.Group, s, c)
			}
		}
	})
}
