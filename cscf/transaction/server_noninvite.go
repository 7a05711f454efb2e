package transaction

// finish sends the final response of a request other than INVITE and keeps
// it for repeats (RFC 3261 §17.2.2).
func (s *server) finish(status int, raw []byte) {
	if !s.open() {
		return
	}
	s.complete(raw)
	if b := s.layer.cfg.Refusals; status >= 300 && b != nil && !s.peer.Reliable() {
		if s.counted = b.begin(); !s.counted {
			s.terminate()
			s.send(raw)
			return
		}
	}
	s.linger()
	s.send(raw)
}

// silence ends a request other than INVITE without a response: its client
// has timed out by itself (RFC 4320 §4.2). Repeats still on their way are
// absorbed.
func (s *server) silence() {
	if !s.open() {
		return
	}
	s.complete(nil)
	s.linger()
}

func (s *server) linger() {
	if s.peer.Reliable() {
		s.terminate()
	} else {
		s.end.set(s.layer, 64*s.layer.cfg.T1, s) // Timer J
	}
}
