package acceptance

import (
	"strings"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

// callee answers what comes to a phone's wire, by a script, until the test
// ends. Nothing else may read the wire meanwhile.
type callee struct {
	w *wire
	// requests are those that came, once each, as they came; responses are those
	// to what the wire sent. What nobody takes is dropped beyond 256.
	requests, responses chan string
	closed              chan struct{} // the wire's end
}

// script says with which statuses, in order, a request is answered; none is
// silence. An ACK has no answer.
type script func(m *sipmsg.Message) []int

// always answers every request in the same way.
func always(statuses ...int) script {
	return func(*sipmsg.Message) []int { return statuses }
}

// serve starts to answer. A CANCEL is answered by 200 and ends its INVITE by
// 487 if that has no final answer yet.
func (w *wire) serve(t testing.TB, answers script) *callee {
	t.Helper()
	c := &callee{w: w, requests: make(chan string, 256), responses: make(chan string, 256), closed: make(chan struct{})}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(t, answers, stop)
	}()
	t.Cleanup(func() { close(stop); <-done })
	return c
}

func (c *callee) run(t testing.TB, answers script, stop chan struct{}) {
	replies := map[string][]string{}          // by branch and method
	pending := map[string]*sipmsg.Message{}   // INVITEs without final answer, by branch
	offer := func(to chan string, s string) { // a test that does not look loses it
		select {
		case to <- s:
		default:
		}
	}
	for {
		select {
		case <-stop:
			return
		default:
		}
		got, err := c.w.read(100 * time.Millisecond)
		if err != nil {
			close(c.closed)
			return
		}
		var m sipmsg.Message
		if got == "" || m.Parse([]byte(got)) != nil {
			continue
		}
		if !m.IsRequest() {
			offer(c.responses, got)
			continue
		}
		via, _ := m.TopVia()
		key := via.Branch() + " " + m.Method()
		if old, again := replies[key]; again {
			for _, r := range old[max(0, len(old)-1):] {
				c.w.send(t, r)
			}
			continue
		}
		replies[key] = nil
		offer(c.requests, got)
		reply := func(m *sipmsg.Message, key string, status int) {
			r := c.w.reply(m, status)
			replies[key] = append(replies[key], r)
			c.w.send(t, r)
		}
		switch m.Method() {
		case "ACK":
		case "CANCEL":
			reply(&m, key, 200)
			if invite := pending[via.Branch()]; invite != nil {
				delete(pending, via.Branch())
				reply(invite, via.Branch()+" INVITE", 487)
			}
		default:
			final := false
			for _, status := range answers(&m) {
				reply(&m, key, status)
				final = final || status >= 200
			}
			if !final && m.Method() == "INVITE" {
				pending[via.Branch()] = m.Clone()
			}
		}
	}
}

const sdp = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 40000 RTP/AVP 8\r\n"

// reply is a response of this wire's phone to a request, with its Contact and
// the route set (RFC 3261 §12.1.1).
func (w *wire) reply(m *sipmsg.Message, status int) string {
	r := m.Response(status, "", "callee-"+strings.NewReplacer(":", "-", "[", "", "]", "").Replace(w.local))
	if status > 100 && status < 300 && m.Method() != "CANCEL" {
		for v := range m.Values(sipmsg.RecordRoute) {
			r.Add(sipmsg.RecordRoute, v)
		}
		r.Set(sipmsg.Contact, "<"+w.contact(w.user)+">")
		if m.Method() == "INVITE" && status >= 200 {
			r.SetBody("application/sdp", []byte(sdp))
		}
	}
	return string(r.Append(nil))
}

// take returns the next request of a method that came to the callee.
func (c *callee) take(t testing.TB, method string) (m *sipmsg.Message, raw string) {
	t.Helper()
	end := time.After(20 * time.Second)
	for {
		select {
		case raw = <-c.requests:
			if m, err := sipmsg.Parse([]byte(raw)); err == nil && m.Method() == method {
				return m, raw
			}
		case <-end:
			t.Fatalf("no %s came to the phone of %s", method, c.w.user)
		}
	}
}

// none says that no request of a method came so far. Something that was sent
// behind it must have come before this means anything.
func (c *callee) none(t testing.TB, method string) {
	t.Helper()
	for {
		select {
		case raw := <-c.requests:
			if m, err := sipmsg.Parse([]byte(raw)); err == nil && m.Method() == method {
				t.Errorf("came to the phone of %s:\n%s", c.w.user, raw)
			}
		default:
			return
		}
	}
}
