package transaction

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bellwether/cscf/sipmsg"
)

// returned is a request that a peer sends back the way it came, with a Via of
// its own.
func returned(m *sipmsg.Message, edit func(m *sipmsg.Message)) string {
	m = m.Clone()
	if edit != nil {
		edit(m)
	}
	m.Push(sipmsg.ViaHeader, "SIP/2.0/UDP 203.0.113.2:5060;branch=z9hG4bKback"+loopPart(m))
	return string(m.Bytes())
}

// Check 4: RFC 5393 §4.
func TestLoops(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(m *sipmsg.Message)
		loop bool
	}{
		{"a phone returns what it was sent", nil, true},
		{"without our Via nobody can tell",
			func(m *sipmsg.Message) {
				m.Pop(sipmsg.ViaHeader)
				m.Push(sipmsg.ViaHeader, "SIP/2.0/UDP x.test;branch=z9hG4bKz")
			}, false},
		{"what we received before the last hop comes again",
			func(m *sipmsg.Message) { m.SetRequestURI("sip:bob@ims.test") }, true},
		{"with a new Request-URI it is a spiral",
			func(m *sipmsg.Message) { m.SetRequestURI("sip:carol@ims.test") }, false},
		{"with a Route that it did not have it is a spiral",
			func(m *sipmsg.Message) { m.Push(sipmsg.Route, "<sip:other.test;lr>") }, false},
		{"Max-Forwards and other headers make no spiral",
			func(m *sipmsg.Message) { m.Set(sipmsg.MaxForwards, "20"); m.Set(sipmsg.Subject, "again") }, true},
		{"letters of our branch folded to upper case, but for the token",
			func(m *sipmsg.Message) {
				via, _ := m.TopVia()
				b := via.Branch()
				i := strings.IndexByte(b, '.')
				via.Params = via.Params.With("branch", b[:i]+strings.ToUpper(b[i:]))
				m.ReplaceTop(sipmsg.ViaHeader, via.String())
			}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(bob)
				w.receive(tina, call{}.String())
				w.answer(bob, "INVITE", 180)
				out := w.last(bob, "INVITE")
				w.do(func() { w.trace = nil })
				w.request = to(carol)
				w.receive(bob, returned(out, c.edit))
				if c.loop {
					w.expect(`0.0 > bob 482 INVITE`)
					if w.last(bob, "482 INVITE").ToTag() == "" {
						t.Error("the 482 has no To tag")
					}
				} else {
					w.expect("0.0 > bob 100 INVITE\n0.0 > carol INVITE")
					w.answer(carol, "INVITE", 404)
					ack, _ := sipmsg.Parse([]byte(returned(out, c.edit)))
					w.do(func() { w.trace = nil })
					raw := strings.NewReplacer("INVITE sip", "ACK sip", "1 INVITE", "1 ACK").Replace(string(ack.Bytes()))
					w.receive(bob, raw)
				}
				w.answer(bob, "INVITE", 486)
				w.ack(tina, "486 INVITE")
			})
		})
	}
}

func TestEnginesSeeALoopOnlyInWhatTheyReceived(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = func(r *Request) {
			m := r.Message.Clone()
			m.Push(sipmsg.Route, "<sip:term@192.0.2.1;lr>")
			r.Forward(Forward{Groups: [][]Target{{{Message: m, To: near}}}})
		}
		w.receive(tina, call{method: "MESSAGE"}.String())
		out := w.last(near, "MESSAGE")
		w.request = func(r *Request) { r.Reply(202, "", nil) }
		w.receive(near, returned(out, nil)) // the other half of the same S-CSCF
		w.last(near, "202 MESSAGE")
		w.receive(near, returned(out, func(m *sipmsg.Message) { m.Pop(sipmsg.Route) }))
		w.last(near, "482 MESSAGE")
		w.answer(near, "MESSAGE", 200)
	})
}

// Check 5: RFC 5393 §5.
func TestMaxBreadth(t *testing.T) {
	for _, c := range []struct {
		name   string
		header string
		peers  []Peer
		want   []string // Max-Breadth by peer; nil: 440
	}{
		{"without the header there are 60", "", []Peer{tom}, []string{"60"}},
		{"one branch gets it all", "Max-Breadth: 7", []Peer{tom}, []string{"7"}},
		{"branches share it", "Max-Breadth: 7", []Peer{tom, near, bob}, []string{"3", "2", "2"}},
		{"no more than 60 are granted", "Max-Breadth: 4294967295", []Peer{tom, near}, []string{"30", "30"}},
		{"one for each is enough", "Max-Breadth: 2", []Peer{tom, near}, []string{"1", "1"}},
		{"less than one for each is exhausted", "Max-Breadth: 1", []Peer{tom, near}, nil},
		{"none left", "Max-Breadth: 0", []Peer{tom}, nil},
		{"no number", "Max-Breadth: many", []Peer{tom}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(c.peers...)
				req := call{}
				if c.header != "" {
					req.extra = []string{c.header}
				}
				w.receive(tina, req.String())
				if c.want == nil {
					w.expect("0.0 > tina 100 INVITE\n0.0 > tina 440 INVITE")
					w.ack(tina, "440 INVITE")
					return
				}
				for i, p := range c.peers {
					got := slices.Collect(w.last(p, "INVITE").Values(sipmsg.MaxBreadth))
					if !slices.Equal(got, c.want[i:i+1]) {
						t.Errorf("%s got Max-Breadth %q, want %s", nameOf(p), got, c.want[i])
					}
				}
				for _, p := range c.peers {
					w.answer(p, "INVITE", 404)
				}
				w.ack(tina, "404 INVITE")
			})
		})
	}
}

func TestBreadthIsFreeAgainForTheNextGroup(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = serially([]Peer{tom}, []Peer{near}, []Peer{bob, carol})
		w.receive(tina, call{extra: []string{"Max-Breadth: 1"}}.String())
		w.answer(tom, "INVITE", 486)
		if got, _ := w.last(near, "INVITE").Value(sipmsg.MaxBreadth); got != "1" {
			t.Errorf("the second group has Max-Breadth %q, want 1", got)
		}
		w.answer(near, "INVITE", 404)
		w.last(tina, "486 INVITE") // the group of two could not be tried; 486 came first
		w.ack(tina, "486 INVITE")
	})
}

// Check 41: RFC 3261 §16.6 step 6.
func TestStrictRouterAsNextHop(t *testing.T) {
	const strict, loose = "<sip:strict.test:5070>", "<sip:loose.test;lr>"
	for _, c := range []struct {
		name   string
		peer   Peer
		routes string
		uri    string
		want   []string
	}{
		{"it gets itself as Request-URI", bob, strict + ", " + loose, "sip:strict.test:5070", []string{loose, "<sip:bob@device.test>"}},
		{"alone", bob, strict, "sip:strict.test:5070", []string{"<sip:bob@device.test>"}},
		{"a loose router does not", bob, loose + ", " + strict, "sip:bob@device.test", []string{loose, strict}},
		{"lr with a value is loose", bob, "<sip:loose.test;LR=on>", "sip:bob@device.test", []string{"<sip:loose.test;LR=on>"}},
		{"engines go by the token", near, "<sip:token@192.0.2.1>", "sip:near@device.test", []string{"<sip:token@192.0.2.1>"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(c.peer)
				w.receive(tina, call{extra: []string{"Route: " + c.routes}}.String())
				check := func(m *sipmsg.Message) {
					t.Helper()
					if got := slices.Collect(m.Elements(sipmsg.Route)); m.RequestURI() != c.uri || !slices.Equal(got, c.want) {
						t.Errorf("%s %s with Route %q, want %s and %q", m.Method(), m.RequestURI(), got, c.uri, c.want)
					}
				}
				check(w.last(c.peer, "INVITE"))
				w.answer(c.peer, "INVITE", 180)
				w.receive(tina, call{method: "CANCEL"}.String())
				check(w.last(c.peer, "CANCEL"))
				w.answer(c.peer, "CANCEL", 200)
				w.answer(c.peer, "INVITE", 487)
				check(w.last(c.peer, "ACK"))
				w.ack(tina, "487 INVITE")
			})
		})
	}
}

func TestAFlowThatFailedIsNotToldUpstream(t *testing.T) {
	for name, peers := range map[string][]Peer{"430 alone becomes 480": {tom}, "a busy phone says more than a lost one": {tom, near}} {
		t.Run(name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(peers...)
				w.receive(tina, call{}.String())
				want := "480 INVITE"
				w.answer(tom, "INVITE", 430)
				if len(peers) > 1 {
					w.answer(near, "INVITE", 486)
					want = "486 INVITE"
				}
				w.last(tina, want)
				w.ack(tina, want)
			})
		})
	}
}

// What strangers get leaves nothing behind, over any transport.
func TestReplyStateless(t *testing.T) {
	for _, from := range []Peer{alice, tina, far} {
		for _, method := range []string{"INVITE", "MESSAGE"} {
			simulate(t, testConfig, func(w *world) {
				w.request = func(r *Request) { r.ReplyStateless(403, "", nil) }
				for range 2 {
					w.receive(from, call{method: method}.String())
					if s, c := w.len(); s+c != 0 {
						t.Errorf("%s from %s leaves %d transactions", method, nameOf(from), s+c)
					}
				}
				w.expect("0.0 > " + nameOf(from) + " 403 " + method + "\n0.0 > " + nameOf(from) + " 403 " + method)
				first, second := w.sent[0].m, w.sent[1].m
				if first.ToTag() == "" || first.ToTag() != second.ToTag() {
					t.Errorf("To tags %q and %q", first.ToTag(), second.ToTag())
				}
				if method == "INVITE" {
					w.ack(from, "403 INVITE")
				}
				if w.acks != 0 {
					t.Error("the ACK goes on")
				}
			})
		}
	}
}

func TestRefusalsBeyondTheBudgetAreForgottenAtOnce(t *testing.T) {
	cfg := testConfig
	cfg.Refusals = NewBudget(2)
	simulate(t, cfg, func(w *world) {
		answer := 401
		w.request = func(r *Request) { r.Reply(answer, "", nil) }
		for _, branch := range []string{"z9hG4bK1", "z9hG4bK2", "z9hG4bK3", "z9hG4bK4"} {
			w.receive(alice, call{method: "REGISTER", branch: branch}.String())
		}
		if s, _ := w.len(); s != 2 || cfg.Refusals.Used() != 2 {
			t.Errorf("%d refusals are kept, %d counted, want 2", s, cfg.Refusals.Used())
		}
		answer = 200 // what was granted is kept
		w.receive(alice, call{method: "REGISTER", branch: "z9hG4bK5"}.String())
		if s, _ := w.len(); s != 3 {
			t.Errorf("%d transactions, want 3", s)
		}
	})
	if n := cfg.Refusals.Used(); n != 0 {
		t.Errorf("%d refusals are counted at the end", n)
	}
}

func TestRefusalsLeaveRoomInTheirShard(t *testing.T) {
	cfg := testConfig
	cfg.Max = 8
	simulate(t, cfg, func(w *world) {
		status := 401
		w.request = func(r *Request) { r.Reply(status, "", nil) }
		send := func(from Peer, branch string) {
			w.receive(from, call{method: "REGISTER", branch: branch}.String())
		}
		for i := range 100 { // strangers, in the name of one user
			send(alice, fmt.Sprintf("z9hG4bKstranger%d", i))
			w.last(alice, "401 REGISTER")
		}
		status = 200
		send(bob, "z9hG4bKuser")
		w.last(bob, "200 REGISTER")
		if n, _ := w.len(); n != cfg.Max/2+1 {
			t.Errorf("%d transactions are kept, want %d", n, cfg.Max/2+1)
		}
	})
}

func TestRegistrationsInProgressAreBounded(t *testing.T) {
	cfg := testConfig
	cfg.Registering = NewBudget(2)
	simulate(t, cfg, func(w *world) {
		var open []*Request
		w.request = func(r *Request) { open = append(open, r) }
		send := func(from Peer, method, branch string) {
			w.receive(from, call{method: method, branch: branch}.String())
		}
		send(alice, "REGISTER", "z9hG4bK1")
		send(tina, "REGISTER", "z9hG4bK2")
		send(alice, "REGISTER", "z9hG4bK3")
		w.expect(`0.0 > alice 503 REGISTER`)
		send(far, "REGISTER", "z9hG4bK4") // has its place where it came in
		send(alice, "INVITE", "z9hG4bK5")
		if len(open) != 4 {
			t.Fatalf("%d requests reach the role, want 4", len(open))
		}
		w.do(func() { open[0].Reply(200, "", nil) }) // it lingers, and waits for nobody
		send(alice, "REGISTER", "z9hG4bK3")
		if len(open) != 5 {
			t.Error("a place that is free is not given")
		}
		w.do(func() {
			for _, r := range open {
				r.Reply(403, "", nil)
			}
		})
		w.receive(alice, call{method: "ACK", branch: "z9hG4bK5", toTag: "x"}.String())
		if n := cfg.Registering.Used(); n != 0 {
			t.Errorf("%d places are taken at the end", n)
		}
	})
}
