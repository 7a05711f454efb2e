package transaction

import "bellwether/cscf/sipmsg"

// receiveInvite is the INVITE client transaction of RFC 3261 §17.1.1 with the
// Accepted state of RFC 6026 §7.2.
func (c *client) receiveInvite(m *sipmsg.Message) {
	b, status := c.branch, m.Status()
	switch {
	case c.state == completed && status >= 300:
		c.layer.env.Send(c.to, c.raw) // the ACK got lost
	case c.state == accepted && status/100 == 2:
		b.req.succeeded(b, m)
	case c.state > proceeding:
		// Nothing but repeats is expected after a final response.
	case status < 200:
		c.state = proceeding
		c.raw = nil
		c.retry.clear()
		b.heard(status)
		b.req.provisional(b, m)
	case status < 300:
		c.state = accepted
		c.raw = nil
		c.retry.clear()
		c.end.set(c.layer, 64*c.layer.cfg.T1, c) // Timer M
		b.req.succeeded(b, m)
	default:
		to, _ := m.Value(sipmsg.To)
		ack := b.hopRequest("ACK", to, "")
		c.layer.env.Send(c.to, ack)
		c.complete(64 * c.layer.cfg.T1) // Timer D
		if c.state == completed {
			c.raw = ack
		}
		b.req.refused(b, m)
		b.release()
	}
}

func (c *client) expireInvite() {
	b := c.branch
	switch {
	case c.state == trying, c.state == proceeding && b.cancelled:
		c.fail(408)
	case c.state == proceeding:
		b.timedOut = true // Timer C, RFC 3261 §16.8
		b.cancel("")
	default:
		c.terminate()
	}
}
