package phone

import (
	"errors"
	"strconv"
	"strings"

	"github.com/emiago/sipgo/sip"
)

// inDialog takes a request with a To tag from the reader (RFC 3261 §12.2.2).
func (p *Phone) inDialog(req *sip.Request, tx *sip.ServerTx) {
	seq := req.CSeq().SeqNo
	p.mu.Lock()
	c := p.find(req)
	old := c != nil && seq < c.remoteSeq
	if c != nil && !old {
		c.remoteSeq = seq
	}
	p.mu.Unlock()
	switch {
	case c == nil:
		p.conclude(req, tx, newResponse(req, 481, ""))
		return
	case old:
		p.conclude(req, tx, newResponse(req, 500, ""))
		return
	}
	switch req.Method {
	case sip.BYE:
		closeOnce(c.hungUp)
		p.reply(tx, newResponse(req, 200, ""))
	case sip.PRACK:
		p.reply(tx, newResponse(req, c.prack(req), ""))
	case sip.INVITE:
		c.change(req, tx)
	case sip.UPDATE:
		c.change(req, tx)
	case sip.INFO:
		p.reply(tx, newResponse(req, 200, ""))
	case sip.OPTIONS:
		p.reply(tx, p.capabilities(req, ""))
	default:
		p.reply(tx, newResponse(req, 405, "", sip.NewHeader("Allow", allow)))
	}
}

// prack takes a PRACK (RFC 3262 §3) and returns the status of its answer.
func (c *call) prack(req *sip.Request) int {
	h := req.GetHeader("RAck")
	if h == nil {
		return 400
	}
	f := strings.Fields(h.Value())
	if len(f) != 3 {
		return 400
	}
	rseq, err1 := strconv.ParseUint(f[0], 10, 32)
	seq, err2 := strconv.ParseUint(f[1], 10, 32)
	if err1 != nil || err2 != nil {
		return 400
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if c.tx == nil || c.rseq == 0 || uint32(rseq) != c.rseq || uint32(seq) != c.invite.CSeq().SeqNo || f[2] != string(sip.INVITE) {
		return 481
	}
	c.rseq = 0
	close(c.pracked)
	return 200
}

// change takes an INVITE or UPDATE of a running call, with or without a new
// offer (RFC 3261 §14.2, RFC 3311 §5.2).
func (c *call) change(req *sip.Request, tx *sip.ServerTx) {
	p := c.p
	var res *sip.Response
	switch {
	case len(req.Body()) > 0:
		offer, refusal := offered(req, c.tag)
		if refusal != nil {
			p.conclude(req, tx, refusal)
			return
		}
		body := c.follow(offer)
		if body == nil {
			p.conclude(req, tx, newResponse(req, 481, ""))
			return
		}
		res = p.withSession(req, c.tag, body)
	case req.IsInvite(): // wants an offer, and its ACK brings the answer
		c.audioMu.Lock()
		var body []byte
		if c.audio != nil {
			body = c.audio.desc.offer()
		}
		c.audioMu.Unlock()
		res = p.withSession(req, c.tag, body)
	default:
		res = newResponse(req, 200, c.tag, sip.NewHeader("Contact", p.contact()))
	}
	if !req.IsInvite() {
		p.reply(tx, res)
		return
	}
	seq := req.CSeq().SeqNo
	got := c.expectACK(seq)
	p.spawn(func() {
		ack, err := repeat(c, tx, res, got, nil, sip.T2)
		c.forgetACK(seq)
		switch {
		case errors.Is(err, errUnacknowledged):
			p.log.Debug("re-INVITE without an ACK", "call_id", c.callID)
		case err == nil && len(req.Body()) == 0:
			if far, err := parseSession(ack.Body()); err == nil {
				c.follow(far)
			}
		}
	})
}

// follow obeys a new description and returns the answer; nil if the call is over.
func (c *call) follow(offer session) []byte {
	c.audioMu.Lock()
	defer c.audioMu.Unlock()
	if c.audio == nil {
		return nil
	}
	if c.audio.session == nil {
		c.audio.far = offer // until the call is answered
	} else if err := c.audio.connect(offer); err != nil {
		return nil
	}
	return c.audio.desc.answer(offer)
}
