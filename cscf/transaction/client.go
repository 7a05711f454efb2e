package transaction

import (
	"time"

	"bellwether/cscf/sipmsg"
)

// client is a client transaction (RFC 3261 §17.1): one branch of a forwarded
// request, or a CANCEL of the layer's own.
type client struct {
	layer    *Layer
	key      key
	to       Peer
	invite   bool
	state    state
	raw      []byte // the request while it may have to be repeated, then the ACK
	interval time.Duration
	retry    timer   // Timer A or E
	end      timer   // Timer B, C, D, F, K or M
	branch   *branch // nil for a CANCEL
}

// start sends the request and registers the transaction in place of one that
// an earlier copy of the same request left behind.
func (c *client) start() {
	l := c.layer
	if old := l.clients[c.key]; old != nil {
		old.fail(503)
	}
	if l.clients == nil {
		l.clients = make(map[key]*client)
	}
	l.clients[c.key] = c
	if !c.to.Reliable() {
		c.interval = l.cfg.T1
		c.retry.set(l, c.interval, c) // Timer A or E
	}
	c.end.set(l, 64*l.cfg.T1, c) // Timer B or F
	l.env.Send(c.to, c.raw)
	if c.to.Reliable() {
		c.raw = nil
	}
}

func (c *client) receive(m *sipmsg.Message) {
	if c.invite {
		c.receiveInvite(m)
	} else {
		c.receiveOther(m)
	}
}

func (c *client) expire(t *timer) {
	switch {
	case t == &c.end && c.invite:
		c.expireInvite()
	case t == &c.end:
		c.expireOther()
	case c.invite:
		c.interval *= 2
		c.repeat()
	case c.state == proceeding:
		c.interval = c.layer.cfg.T2
		c.repeat()
	default:
		c.interval = double(c.interval, c.layer.cfg.T2)
		c.repeat()
	}
}

func (c *client) repeat() {
	c.retry.set(c.layer, c.interval, c)
	c.layer.env.Send(c.to, c.raw)
}

// fail ends the transaction for want of a final response.
func (c *client) fail(status int) {
	open, b := c.state <= proceeding, c.branch
	c.terminate()
	if b != nil && open {
		b.req.failed(b, status)
	}
}

// complete enters the state that absorbs repeats of the final response for d.
func (c *client) complete(d time.Duration) {
	c.state = completed
	c.retry.clear()
	if c.to.Reliable() {
		c.terminate()
	} else {
		c.end.set(c.layer, d, c)
	}
}

func (c *client) terminate() {
	c.state = terminated
	c.raw = nil
	c.retry.clear()
	c.end.clear()
	if c.layer.clients[c.key] == c {
		delete(c.layer.clients, c.key)
	}
}
