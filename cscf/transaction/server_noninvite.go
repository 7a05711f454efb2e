package transaction

// finish sends the final response of a request other than INVITE and keeps
// it for repeats (RFC 3261 §17.2.2).
func (s *server) finish(status int, raw []byte) {
	if !s.open() {
		return
	}
	s.complete(raw)
	s.linger(status < 300)
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
	s.linger(false)
}

// linger waits for repeats. What was not granted may be forgotten at once: a
// repeat is new then, and refused anew. Half of the layer is never taken by
// refusals, or strangers who ask in the name of one user, whose requests meet
// in one shard, could keep that user out.
func (s *server) linger(granted bool) {
	if s.peer.Reliable() {
		s.terminate()
		return
	}
	if b := s.layer.cfg.Refusals; !granted {
		if most := s.layer.cfg.Max; most > 0 && len(s.layer.servers) > most/2 || !b.begin() {
			s.terminate()
			return
		}
		s.counted = b
	}
	s.end.set(s.layer, 64*s.layer.cfg.T1, s) // Timer J
}
