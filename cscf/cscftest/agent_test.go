package cscftest_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	. "bellwether/cscf/cscftest"
	"bellwether/cscf/sipmsg"
)

// agent is a phone that does what RFC 3261 asks of a user agent over UDP: it
// repeats, acknowledges, absorbs repeats and gives up in time. What it does
// with a request or response is the test's.
type agent struct {
	*Phone
	t  *testing.T
	mu *sync.Mutex // of all agents of a test

	asked    map[string]*asked
	answered map[string]*answered
	request  func(m *sipmsg.Message) // a new request other than ACK and CANCEL
	broken   []string                // what no user agent should have seen
}

// asked is a request of an agent.
type asked struct {
	m        *sipmsg.Message
	finals   map[int]int // times that a final response came, by status
	rang     bool        // a provisional response came
	over     bool        // final response or time-out
	ack      *sipmsg.Message
	response func(m *sipmsg.Message) // each but repeats; nil: given up
}

// answered is a request that an agent received.
type answered struct {
	m     *sipmsg.Message
	last  *sipmsg.Message // response
	acked bool
}

const (
	t1 = 500 * time.Millisecond
	t2 = 4 * time.Second
)

func newAgent(t *testing.T, p *Phone, mu *sync.Mutex) *agent {
	a := &agent{Phone: p, t: t, mu: mu}
	a.reset()
	p.Hear(a.hear)
	return a
}

// reset forgets everything. It reports what was wrong before.
func (a *agent) reset() {
	a.asked, a.answered, a.broken = make(map[string]*asked), make(map[string]*answered), nil
	a.request = func(m *sipmsg.Message) { a.broken = append(a.broken, "unexpected "+m.Method()) }
}

func transactionOf(m *sipmsg.Message) string {
	via, _ := m.TopVia()
	_, method := m.CSeq()
	if method == "ACK" || method == "CANCEL" {
		method = "INVITE"
	}
	return via.Branch() + method
}

// after runs fn later with mu held.
func (a *agent) after(d time.Duration, fn func()) {
	time.AfterFunc(d, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		fn()
	})
}

// ask sends a request and repeats it, with mu held. response hears each
// response once, and nil if none came in time.
func (a *agent) ask(m *sipmsg.Message, response func(m *sipmsg.Message)) *asked {
	q := &asked{m: m, finals: make(map[int]int), response: response}
	_, method := m.CSeq()
	key := transactionOf(m)
	if method == "CANCEL" {
		key += "CANCEL"
	}
	a.asked[key] = q
	var repeat func(d time.Duration)
	repeat = func(d time.Duration) {
		a.Post(m)
		a.after(d, func() {
			if !q.over && !(method == "INVITE" && q.rang) {
				if d *= 2; method != "INVITE" {
					d = min(d, t2)
				}
				repeat(d)
			}
		})
	}
	repeat(t1)
	a.after(64*t1, func() {
		if !q.over && !(method == "INVITE" && q.rang) {
			q.over = true
			response(nil)
		}
	})
	return q
}

// answer sends a response, and repeats a final one to an INVITE until it is
// acknowledged, with mu held.
func (a *agent) answer(req *sipmsg.Message, status int, headers ...string) *sipmsg.Message {
	s := a.answered[transactionOf(req)]
	if s.last != nil && s.last.Status() >= 200 {
		return s.last
	}
	s.last = a.Response(req, status, headers...)
	if status < 200 || req.Method() != "INVITE" {
		a.Post(s.last)
		return s.last
	}
	begin := time.Now()
	var repeat func(d time.Duration)
	repeat = func(d time.Duration) {
		a.Post(s.last)
		a.after(d, func() {
			switch {
			case s.acked:
			case time.Since(begin) < 64*t1:
				repeat(min(2*d, t2))
			case status < 300:
				a.broken = append(a.broken, "no ACK for the 200 that it sent")
			}
		})
	}
	repeat(t1)
	return s.last
}

func (a *agent) hear(m *sipmsg.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !m.IsRequest() {
		a.heard(m)
		return
	}
	s := a.answered[transactionOf(m)]
	switch m.Method() {
	case "ACK":
		for _, s := range a.answered { // that of a 2xx has a branch of its own
			n, _ := m.CSeq()
			if of, _ := s.m.CSeq(); s.m.Method() == "INVITE" && s.m.CallID() == m.CallID() && of == n && s.last != nil && s.last.Status() >= 200 {
				s.acked = true
			}
		}
	case "CANCEL":
		if s == nil {
			a.Post(a.Response(m, 481))
			return
		}
		a.Post(a.Response(m, 200))
		a.answer(s.m, 487)
	default:
		if s != nil {
			if s.last != nil {
				a.Post(s.last)
			}
			return
		}
		a.answered[transactionOf(m)] = &answered{m: m}
		a.request(m)
	}
}

// heard takes a response.
func (a *agent) heard(m *sipmsg.Message) {
	_, method := m.CSeq()
	key := transactionOf(m)
	if method == "CANCEL" {
		key += "CANCEL"
	}
	q := a.asked[key]
	switch {
	case q == nil:
		a.broken = append(a.broken, fmt.Sprintf("unexpected %d %s", m.Status(), method))
	case m.Status() < 200:
		if q.rang = true; m.Status() > 100 && !q.over {
			q.response(m)
		}
	default:
		first := !q.over
		q.over = true
		q.finals[m.Status()]++
		switch {
		case method == "INVITE" && m.Status() >= 300:
			a.Post(AckOf(q.m, m))
		case method == "INVITE":
			if q.ack == nil {
				q.ack = a.InDialog("ACK", q.m, m)
			}
			a.Post(q.ack)
		}
		if first {
			q.response(m)
		}
	}
}

// check reports what went wrong.
func (a *agent) check(t *testing.T, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.broken {
		t.Errorf("%s: %s: %s", name, a.Addr, b)
	}
	for _, q := range a.asked {
		if len(q.finals) > 1 {
			t.Errorf("%s: %s: %s was answered in different ways: %v", name, a.Addr, q.m.Method(), q.finals)
		}
		if !q.over {
			t.Errorf("%s: %s: %s was never answered", name, a.Addr, q.m.Method())
		}
	}
	for _, s := range a.answered {
		if s.last == nil || s.last.Status() < 200 {
			t.Errorf("%s: %s: %s was left without an answer, nobody gave it up", name, a.Addr, s.m.Method())
		}
	}
}
