package transaction

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

// clockwork is an Env with its own clock, for sequences of random events. It
// runs due timers one by one, and some of the stopped ones too, as Env allows.
type clockwork struct {
	now     time.Time
	timers  []*alarm
	pending int
	rng     *rand.Rand
	sent    []packet // the newest few
}

type alarm struct {
	at      time.Time
	fn      func()
	stopped bool
}

func (c *clockwork) Now() time.Time { return c.now }

func (c *clockwork) Send(to Peer, raw []byte) {
	m, err := sipmsg.Parse(raw)
	if err != nil {
		panic(fmt.Sprintf("the layer sent a bad message: %v\n%s", err, raw))
	}
	c.sent = append(c.sent, packet{to, m})
	if len(c.sent) > 8 {
		c.sent = c.sent[1:]
	}
}

func (c *clockwork) After(d time.Duration, fn func()) func() {
	a := &alarm{at: c.now.Add(d), fn: fn}
	c.timers = append(c.timers, a)
	return func() { a.stopped = true }
}

func (c *clockwork) Post(fn func()) { fn() }

// advance lets time pass and runs what is due, in order.
func (c *clockwork) advance(d time.Duration) {
	end := c.now.Add(d)
	for {
		first := -1
		for i, a := range c.timers {
			if !a.at.After(end) && (first < 0 || a.at.Before(c.timers[first].at)) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		a := c.timers[first]
		c.timers = append(c.timers[:first], c.timers[first+1:]...)
		if a.at.After(c.now) {
			c.now = a.at
		}
		if !a.stopped || c.rng.IntN(4) == 0 {
			a.fn()
		}
	}
	c.now = end
}

func (c *clockwork) live() (n int) {
	for _, a := range c.timers {
		if !a.stopped {
			n++
		}
	}
	return n
}

// whim is a role that does anything it may.
type whim struct {
	env  *clockwork
	rng  *rand.Rand
	held []func()
}

func (u *whim) Request(r *Request) {
	switch u.rng.IntN(7) {
	case 0:
		r.Reply(u.status(), "", nil)
	case 6:
		r.ReplyStateless(u.status(), "", nil)
	case 1: // later
		u.held = append(u.held, func() { u.forward(r) })
	case 2: // never
	case 3:
		u.forward(r)
		r.ReplyStateless(u.status(), "", nil)
	default:
		u.forward(r)
	}
}

func (u *whim) status() int { return 100 + u.rng.IntN(600) }

func (u *whim) peer() Peer {
	all := []Peer{alice, bob, carol, tina, tom, near, far}
	return all[u.rng.IntN(len(all))]
}

func (u *whim) forward(r *Request) {
	var groups [][]Peer
	for range u.rng.IntN(3) {
		var peers []Peer
		for range u.rng.IntN(4) {
			peers = append(peers, u.peer())
		}
		groups = append(groups, peers)
	}
	f := forward(r, groups...)
	f.Response = func(r *Request, _ *Target, m *sipmsg.Message) Verdict {
		switch u.rng.IntN(8) {
		case 0:
			u.held = append(u.held, func() { r.Pass(m) })
			return Hold
		case 1:
			if u.rng.IntN(2) == 0 && len(f.Groups) > 0 {
				r.Forward(forward(r, []Peer{u.peer()}))
			}
			return Drop
		case 2:
			r.Reply(u.status(), "", nil)
		}
		return Pass
	}
	f.Failed = func(r *Request, _ *Target, status int) {
		switch u.rng.IntN(4) {
		case 0:
			r.Reply(u.status(), "", nil)
		case 1:
			r.Forward(forward(r, []Peer{u.peer()}))
		}
	}
	r.Forward(f)
}

func (u *whim) Ack(l *Layer, m *sipmsg.Message, from Peer)   { l.Relay(m, u.peer()) }
func (u *whim) Stray(l *Layer, m *sipmsg.Message, from Peer) { l.RelayResponse(m, u.peer()) }

// ramble drives a layer with a sequence of events; each pair of bytes is one.
func ramble(t *testing.T, script []byte) {
	rng := rand.New(rand.NewPCG(uint64(len(script)), 1))
	env := &clockwork{now: time.Unix(1e9, 0), rng: rng}
	u := &whim{env: env, rng: rng}
	cfg := testConfig
	cfg.Max = 20
	cfg.Registering, cfg.Refusals = NewBudget(2), NewBudget(3)
	l := New(cfg, env, u)
	methods := []string{"INVITE", "INVITE", "INVITE", "ACK", "CANCEL", "BYE", "MESSAGE", "REGISTER", "X"}
	for len(script) >= 2 {
		op, arg := script[0], int(script[1])
		script = script[2:]
		switch op % 8 {
		case 0, 1: // a request, new or a repeat
			c := call{method: methods[arg%len(methods)], branch: fmt.Sprintf("z9hG4bK%d", arg/16), toTag: "t"}
			if arg%31 == 0 {
				c.branch = "old"
			}
			if arg%29 == 0 {
				c.hops = fmt.Sprint(arg % 3)
			}
			receive(t, l, c.String(), u.peer())
		case 2, 3, 4: // a response to something that was sent, from anyone
			if n := len(env.sent); n > 0 {
				p := env.sent[arg%n]
				if p.m.IsRequest() && arg%11 == 0 {
					receive(t, l, returned(p.m, nil), p.to) // a loop
				} else if p.m.IsRequest() {
					status := []int{100, 180, 183, 200, 202, 302, 401, 404, 408, 486, 487, 503, 603, 699}[rng.IntN(14)]
					receive(t, l, string(p.m.Response(status, "", fmt.Sprint("t", arg%3)).Bytes()), p.to)
				} else {
					receive(t, l, string(p.m.Bytes()), p.to) // reflected
				}
			}
		case 5:
			env.advance([]time.Duration{0, 100 * time.Millisecond, time.Second, 5 * time.Second, 33 * time.Second, 182 * time.Second}[arg%6])
		case 6:
			if n := len(u.held); n > 0 {
				fn := u.held[arg%n]
				u.held = append(u.held[:arg%n], u.held[arg%n+1:]...)
				fn()
			}
		case 7:
			switch arg % 4 {
			case 0:
				l.Unreachable(u.peer())
			case 1:
				l.Each(func(r *Request) bool { r.Reply(u.status(), "", nil); return rng.IntN(2) == 0 })
			}
		}
		pending := 0
		l.Each(func(*Request) bool { pending++; return true })
		if got := l.Pending(); got != pending {
			t.Fatalf("%d requests are pending, the layer counts %d", pending, got)
		}
		if servers, _ := l.Len(); servers > cfg.Max {
			t.Fatalf("%d server transactions, the limit is %d", servers, cfg.Max)
		}
	}
	for range 200 {
		env.advance(time.Minute)
	}
	if s, c := l.Len(); s != 0 || c != 0 {
		t.Fatalf("left at the end: %d servers, %d clients", s, c)
	}
	if a, b := cfg.Registering.Used(), cfg.Refusals.Used(); a != 0 || b != 0 {
		t.Fatalf("places taken at the end: %d of registrations, %d of refusals", a, b)
	}
	if n := env.live(); n != 0 {
		t.Fatalf("%d timers left at the end", n)
	}
}

func receive(t *testing.T, l *Layer, text string, from Peer) {
	m, err := sipmsg.Parse([]byte(text))
	if err != nil {
		t.Fatalf("parse: %v\n%s", err, text)
	}
	l.Receive(m, from)
}

func TestRandomSequencesEndEmpty(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		script := make([]byte, 2*rng.IntN(200))
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		ramble(t, script)
	}
}

func FuzzLayer(f *testing.F) {
	f.Add([]byte("\x00\x00\x02\x00\x02\x01\x05\x02\x06\x00\x05\x05"))
	f.Add([]byte("\x00\x00\x00\x04\x02\x00\x02\x01\x05\x05"))
	f.Fuzz(func(t *testing.T, script []byte) { ramble(t, script[:min(len(script), 600)]) })
}
