package cscftest_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	. "bellwether/cscf/cscftest"
	"bellwether/cscf/sipmsg"
)

// harm is what befalls one message.
type harm struct {
	name string
	do   func(deliver func()) // nil: the next message overtakes it
}

// network carries messages and harms one of them.
type network struct {
	mu   sync.Mutex
	n    int // messages so far
	at   int // the one to be harmed
	harm harm
	held []func() // wait for the next message
}

func (n *network) carry(_ *sipmsg.Message, deliver func()) {
	n.mu.Lock()
	n.n++
	harmed := n.n == n.at
	late := n.held
	if n.held = nil; harmed && n.harm.do == nil {
		n.held, late = append(late, deliver), nil
	}
	n.mu.Unlock()
	switch { // without mu: a phone may send something at once
	case !harmed:
		deliver()
	case n.harm.do != nil:
		n.harm.do(deliver)
	}
	for _, fn := range late {
		go fn() // it may be for the phone that is sending
	}
}

var harms = []harm{
	{"lost", func(func()) {}},
	{"doubled", func(deliver func()) { deliver(); deliver() }},
	{"doubled a second later", func(deliver func()) { deliver(); time.AfterFunc(time.Second, deliver) }},
	{"doubled as late as can be", func(deliver func()) { deliver(); time.AfterFunc(5*time.Second, deliver) }}, // T4
	{"overtaken by the next", nil},
	{"a second late", func(deliver func()) { time.AfterFunc(time.Second, deliver) }},
}

// flow is what two users do. It begins with mu held; done is called at the end.
type flow struct {
	name string
	bobs int // phones of the called user
	run  func(alice *agent, bobs []*agent)
}

// party answers an INVITE after a while, and all that follows at once.
func party(a *agent, before []int, status int, hangUp bool) {
	a.request = func(m *sipmsg.Message) {
		switch {
		case m.Method() != "INVITE":
			a.answer(m, 200)
		case m.ToTag() != "": // re-INVITE
			a.answer(m, 200)
		default:
			for _, s := range before {
				a.answer(m, s)
			}
			a.after(1500*time.Millisecond, func() {
				resp := a.answer(m, status)
				if hangUp && resp.Status() == 200 {
					a.after(5*time.Second, func() { a.ask(a.InDialog("BYE", m, resp), func(*sipmsg.Message) {}) })
				}
			})
		}
	}
}

// hangUp ends a call that was answered, however late.
func hangUp(a *agent, invite, ok *sipmsg.Message, after time.Duration) {
	a.after(after, func() { a.ask(a.InDialog("BYE", invite, ok), func(*sipmsg.Message) {}) })
}

func flows() []flow {
	const callee = "sip:bob@ims.test"
	never := func(*sipmsg.Message) {}
	call := func(a *agent, answered func(invite, ok *sipmsg.Message)) *sipmsg.Message {
		invite := a.Request("INVITE", callee)
		a.ask(invite, func(m *sipmsg.Message) {
			if m != nil && m.Status()/100 == 2 {
				answered(invite, m)
			}
		})
		return invite
	}
	return []flow{
		{"a call that the caller ends", 1, func(alice *agent, bobs []*agent) {
			party(bobs[0], []int{180}, 200, false)
			call(alice, func(invite, ok *sipmsg.Message) { hangUp(alice, invite, ok, 3*time.Second) })
		}},
		{"a call that the callee ends", 1, func(alice *agent, bobs []*agent) {
			party(alice, nil, 200, false)
			party(bobs[0], []int{180}, 200, true)
			call(alice, func(_, _ *sipmsg.Message) {})
		}},
		{"busy", 1, func(alice *agent, bobs []*agent) {
			party(bobs[0], []int{180}, 486, false)
			call(alice, func(invite, ok *sipmsg.Message) { alice.broken = append(alice.broken, "200 from a busy phone") })
		}},
		{"a call that is cancelled", 1, func(alice *agent, bobs []*agent) {
			b := bobs[0]
			b.request = func(m *sipmsg.Message) {
				if m.Method() != "INVITE" {
					b.answer(m, 200)
					return
				}
				b.answer(m, 180)
				b.after(time.Minute, func() { b.answer(m, 480) }) // nobody is there
			}
			invite := alice.Request("INVITE", callee)
			cancelled := false
			alice.ask(invite, func(m *sipmsg.Message) {
				if m != nil && m.Status() == 180 && !cancelled {
					cancelled = true
					alice.after(2*time.Second, func() { alice.ask(CancelOf(invite), never) })
				}
			})
		}},
		{"a call that is answered as it is cancelled", 1, func(alice *agent, bobs []*agent) {
			party(bobs[0], []int{180}, 200, false)
			invite := alice.Request("INVITE", callee)
			cancelled := false
			alice.ask(invite, func(m *sipmsg.Message) {
				switch {
				case m == nil:
				case m.Status() == 180 && !cancelled:
					cancelled = true
					alice.after(1500*time.Millisecond, func() { alice.ask(CancelOf(invite), never) })
				case m.Status() == 200:
					hangUp(alice, invite, m, 0)
				}
			})
		}},
		{"PRACK, UPDATE and a re-INVITE", 1, func(alice *agent, bobs []*agent) {
			party(alice, nil, 200, false)
			party(bobs[0], []int{183}, 200, false)
			invite := alice.Request("INVITE", callee)
			early := false
			alice.ask(invite, func(m *sipmsg.Message) {
				switch {
				case m == nil:
				case m.Status() == 183 && !early:
					early = true
					alice.ask(alice.InDialog("PRACK", invite, m), func(*sipmsg.Message) {
						alice.ask(alice.InDialog("UPDATE", invite, m), never)
					})
				case m.Status() == 200:
					again := alice.InDialog("INVITE", invite, m)
					again.Add(sipmsg.Contact, alice.Contact)
					alice.after(2*time.Second, func() {
						q := alice.ask(again, func(*sipmsg.Message) { hangUp(alice, invite, m, 2*time.Second) })
						n, _ := again.CSeq()
						q.ack = alice.InDialog("ACK", invite, m)
						q.ack.Set(sipmsg.CSeq, fmt.Sprintf("%d ACK", n))
					})
				}
			})
		}},
		{"a message", 1, func(alice *agent, bobs []*agent) {
			party(bobs[0], nil, 200, false)
			alice.ask(alice.Request("MESSAGE", callee), never)
		}},
		{"two phones ring, one is taken", 2, func(alice *agent, bobs []*agent) {
			party(bobs[0], []int{180}, 200, false)
			b := bobs[1]
			b.request = func(m *sipmsg.Message) {
				if b.answer(m, map[bool]int{true: 180, false: 200}[m.Method() == "INVITE"]); m.Method() == "INVITE" {
					b.after(time.Minute, func() { b.answer(m, 480) })
				}
			}
			call(alice, func(invite, ok *sipmsg.Message) { hangUp(alice, invite, ok, 3*time.Second) })
		}},
		{"two phones ring and the call is cancelled", 2, func(alice *agent, bobs []*agent) {
			for _, b := range bobs {
				b.request = func(m *sipmsg.Message) {
					b.answer(m, 180)
					b.after(time.Minute, func() { b.answer(m, 480) })
				}
			}
			invite := alice.Request("INVITE", callee)
			alice.ask(invite, func(*sipmsg.Message) {})
			alice.after(3*time.Second, func() { alice.ask(CancelOf(invite), never) })
		}},
		{"a refresh of a registration", 1, func(alice *agent, _ []*agent) {
			alice.ask(alice.RegisterRequest("Expires: 600000"), never)
		}},
	}
}

// Whatever one message of a flow suffers on its way, the flow ends as it
// should: everybody is answered once, nobody is left in a call, nothing stays
// behind.
func TestOneMessageIsHarmed(t *testing.T) {
	for _, f := range flows() {
		for _, h := range harms {
			run(t, f.name+", one message "+h.name, func(t *testing.T, c *ims) {
				var mu sync.Mutex
				var all []*agent
				join := func(p *Phone) *agent {
					p.Register("Expires: 600000")
					a := newAgent(t, p, &mu)
					all = append(all, a)
					return a
				}
				alice := join(c.alice())
				var bobs []*agent
				for i := range f.bobs {
					// The one phone that the other node has, and one at the same.
					bobs = append(bobs, join(c.NewPhone([]string{"b", "a"}[i], fmt.Sprintf("192.0.2.2%d:5060", i), "bob", "sip:bob@ims.test")))
				}
				total := 1
				for at := 0; at <= total; at++ { // first none, to count
					n := &network{at: at, harm: h}
					c.Network(n.carry)
					mu.Lock()
					for _, a := range all {
						a.reset()
					}
					f.run(alice, bobs)
					mu.Unlock()
					c.Sleep(4 * time.Minute)
					name := fmt.Sprintf("message %d", at)
					for _, a := range all {
						a.check(t, name)
					}
					if calls := c.calls(); len(calls) != 0 {
						t.Errorf("%s: calls %v", name, calls)
					}
					for _, e := range c.e {
						if !e.Idle() {
							t.Errorf("%s: group %d has transactions", name, e.Group)
						}
					}
					if at == 0 {
						total = n.n
					}
					if t.Failed() {
						t.Fatalf("%s of %d", name, total)
					}
				}
				c.Network(nil)
			})
		}
	}
}
