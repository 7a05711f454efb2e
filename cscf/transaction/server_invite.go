package transaction

import "time"

// tryingDelay is how long an INVITE may stay without any response
// (RFC 3261 §17.2.1).
const tryingDelay = 200 * time.Millisecond

// awaitTrying lets 100 go out if the role answers nothing in time.
func (s *server) awaitTrying() {
	if s.invite() && s.state == trying {
		s.retry.set(s.layer, tryingDelay, s)
	}
}

// sendTrying answers 100 if nothing was answered yet.
func (s *server) sendTrying() {
	if s.invite() && s.state == trying {
		s.provisional(s.req.Message.Response(100, "", "").Bytes())
	}
}

// provisional sends a 1xx. There is none for other methods (RFC 4320 §4.1).
func (s *server) provisional(raw []byte) {
	if !s.invite() || !s.open() {
		return
	}
	s.enter(proceeding)
	s.last = raw
	s.retry.clear()
	s.send(raw)
}

// success sends a 2xx to an INVITE, the first, another branch's or a repeat.
// The INVITE's repeats are absorbed from now on (RFC 6026 §7.1). After
// another final response, or when all is over, the 2xx still goes upstream
// (RFC 3261 §16.7 step 5).
func (s *server) success(raw []byte) {
	if s.open() {
		s.enter(accepted)
		s.last = nil
		s.req = nil
		s.retry.clear()
		s.end.set(s.layer, 64*s.layer.cfg.T1, s) // Timer L
	}
	s.send(raw)
}

// refuse sends a non-2xx to an INVITE and repeats it until its ACK.
func (s *server) refuse(raw []byte) {
	if !s.open() {
		return
	}
	cfg := &s.layer.cfg
	s.complete(raw)
	if !s.peer.Reliable() {
		s.interval = cfg.T1
		s.retry.set(s.layer, s.interval, s) // Timer G
	}
	s.end.set(s.layer, 64*cfg.T1, s) // Timer H
	s.send(raw)
}

// acknowledged takes an ACK; false if it belongs to a 2xx.
func (s *server) acknowledged() bool {
	if s.state == completed {
		s.enter(confirmed)
		s.last = nil
		s.retry.clear()
		switch cfg := &s.layer.cfg; {
		case s.peer.Reliable():
			s.terminate()
		case s.cancelled:
			s.end.set(s.layer, 64*cfg.T1, s) // Timer J of the CANCEL
		default:
			s.end.set(s.layer, cfg.T4, s) // Timer I
		}
		return true
	}
	return s.state != accepted
}

func (s *server) expireRetry() {
	switch s.state {
	case trying:
		s.sendTrying()
	case completed:
		s.interval = double(s.interval, s.layer.cfg.T2)
		s.retry.set(s.layer, s.interval, s)
		s.send(s.last)
	}
}
