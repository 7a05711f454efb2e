package transaction

import "bellwether/cscf/sipmsg"

// receiveOther is the non-INVITE client transaction of RFC 3261 §17.1.2.
func (c *client) receiveOther(m *sipmsg.Message) {
	if c.state > proceeding {
		return
	}
	if m.Status() < 200 {
		c.state = proceeding
		return
	}
	c.complete(c.layer.cfg.T4) // Timer K
	c.raw = nil
	b := c.branch
	if b == nil {
		return
	}
	if m.Status() < 300 {
		b.req.succeeded(b, m)
	} else {
		b.req.refused(b, m)
	}
	b.release()
}

func (c *client) expireOther() {
	if c.state <= proceeding {
		c.fail(408)
	} else {
		c.terminate()
	}
}
