package transaction

import (
	"strings"
	"time"
)

// state of a transaction, client or server, in the order it passes them.
type state uint8

const (
	trying     state = iota // client: nothing heard yet; server: nothing sent
	proceeding              // provisional response
	accepted                // INVITE with a 2xx (RFC 6026)
	completed               // other final response, repeats absorbed
	confirmed               // server: the ACK of a non-2xx came
	terminated
)

// server is a server transaction (RFC 3261 §17.2). It is smaller than its
// Request and lets go of it with the final response, since it may have to
// absorb repeats for 32 s more.
type server struct {
	layer    *Layer
	key      key
	method   string
	peer     Peer // where responses go
	state    state
	last     []byte // answers a repeat of the request
	interval time.Duration
	retry    timer // the 200 ms for 100, then Timer G
	end      timer // the role's time, then Timer H, I, J or L
	req      *Request
	// cancelled: repeats of a CANCEL that was answered 200 may come.
	cancelled bool
	counted   *Budget // where it has a place; nil: nowhere
}

func (s *server) invite() bool { return s.method == "INVITE" }

// retained is a copy of a method that does not keep its message in memory.
func retained(method string) string {
	for _, known := range [...]string{"INVITE", "BYE", "PRACK", "UPDATE", "REGISTER", "MESSAGE", "SUBSCRIBE", "NOTIFY", "OPTIONS", "INFO"} {
		if method == known {
			return known
		}
	}
	return strings.Clone(method)
}

func (s *server) open() bool { return s.state <= proceeding }

// enter changes the state.
func (s *server) enter(next state) {
	if s.open() && next > proceeding {
		s.layer.pending--
	}
	s.state = next
}

func (s *server) send(raw []byte) { s.layer.env.Send(s.peer, raw) }

// repeated absorbs a repeat of the request.
func (s *server) repeated() {
	if s.last != nil {
		s.send(s.last)
	}
}

// expire handles its timers.
func (s *server) expire(t *timer) {
	switch {
	case t == &s.retry:
		s.expireRetry()
	case !s.open():
		s.terminate()
	case len(s.req.live) == 0:
		s.req.abandoned()
	}
}

// leave gives up its place in a budget.
func (s *server) leave() {
	s.counted.end()
	s.counted = nil
}

// complete enters the state in which only repeats are answered, with last.
func (s *server) complete(last []byte) {
	s.leave()
	s.enter(completed)
	s.last = last
	s.req = nil
	s.retry.clear()
}

func (s *server) terminate() {
	s.leave()
	s.enter(terminated)
	s.last = nil
	s.req = nil
	s.retry.clear()
	s.end.clear()
	s.layer.forget(s)
}

func double(d, limit time.Duration) time.Duration { return min(2*d, limit) }
