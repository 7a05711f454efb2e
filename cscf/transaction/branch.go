package transaction

import (
	"strconv"
	"time"

	"bellwether/cscf/sipmsg"
)

// branch is the client transaction of one target and what the response
// context knows of it.
type branch struct {
	client
	req        *Request
	forward    *Forward
	target     *Target
	id         string // branch parameter of our Via
	via        string // our Via
	began      time.Time
	cancelled  bool   // a CANCEL was sent, or waits for a provisional response
	cancelSent bool   // it was sent
	timedOut   bool   // Timer C cancelled it
	reason     string // the CANCEL's Reason
}

// newBranch forwards the request to a target. breadth is its Max-Breadth.
func (r *Request) newBranch(f *Forward, t *Target, index, breadth int) *branch {
	l := r.layer
	if t.Message == r.Message {
		t.Message = r.Message.Clone()
	}
	m := t.Message
	if t.To.Group == 0 {
		looseNextHop(m)
	}
	id := l.branch(r.Message, r.via, index, r.loop, m, t.To)
	b := &branch{req: r, forward: f, target: t, id: id, via: l.newVia(t.To, id), began: l.env.Now()}
	countHop(m)
	m.Set(sipmsg.MaxBreadth, strconv.Itoa(breadth))
	m.Push(sipmsg.ViaHeader, b.via)
	b.client = client{
		layer: l, key: clientKey(id, m.Method()), to: t.To, invite: m.Method() == "INVITE", raw: m.Bytes(), branch: b,
	}
	return b
}

// heard is called for each provisional response to an INVITE. Timer C counts
// from the start, and again from each one other than 100 (RFC 3261 §16.7 step
// 2). A CANCEL that had to wait goes out (RFC 3261 §9.1).
func (b *branch) heard(status int) {
	l := b.layer
	switch {
	case b.cancelSent:
	case b.cancelled:
		b.sendCancel()
	case status == 100:
		b.end.set(l, b.began.Add(l.cfg.TimerC).Sub(l.env.Now()), &b.client)
	default:
		b.end.set(l, l.cfg.TimerC, &b.client)
	}
}

// cancel asks the target of an INVITE to give up; reason is the value of the
// CANCEL's Reason header or "".
func (b *branch) cancel(reason string) {
	if !b.invite || b.cancelled || b.state > proceeding {
		return
	}
	b.cancelled = true
	b.reason = reason
	if b.state == proceeding {
		b.sendCancel()
	}
}

// sendCancel sends the CANCEL as a transaction of its own and gives the
// INVITE 64*T1 to end (RFC 3261 §9.1).
func (b *branch) sendCancel() {
	b.cancelSent = true
	b.end.set(b.layer, 64*b.layer.cfg.T1, &b.client)
	to, _ := b.target.Message.Value(sipmsg.To)
	c := &client{layer: b.layer, key: clientKey(b.id, "CANCEL"), to: b.to, raw: b.hopRequest("CANCEL", to, b.reason)}
	c.start()
}

// hopRequest is a request that belongs to the INVITE's transaction: a CANCEL
// (RFC 3261 §9.1) or the ACK of a non-2xx (§17.1.1.3). It has the INVITE's
// Request-URI, branch, Route, From, Call-ID and CSeq number.
func (b *branch) hopRequest(method, to, reason string) []byte {
	m := b.target.Message
	number, _ := m.CSeq()
	from, _ := m.Value(sipmsg.From)
	out := make([]byte, 0, 512)
	out = append(out, method...)
	out = append(out, ' ')
	out = append(out, m.RequestURI()...)
	out = append(out, " SIP/2.0\r\n"...)
	line := func(h sipmsg.Header, value string) {
		out = append(out, h.String()...)
		out = append(out, ": "...)
		out = append(out, value...)
		out = append(out, "\r\n"...)
	}
	line(sipmsg.ViaHeader, b.via)
	line(sipmsg.MaxForwards, "70")
	for route := range m.Values(sipmsg.Route) {
		line(sipmsg.Route, route)
	}
	line(sipmsg.From, from)
	line(sipmsg.To, to)
	line(sipmsg.CallID, m.CallID())
	line(sipmsg.CSeq, strconv.FormatUint(uint64(number), 10)+" "+method)
	if reason != "" {
		line(sipmsg.ReasonHeader, reason)
	}
	line(sipmsg.ContentLength, "0")
	return append(out, "\r\n"...)
}

// release lets go of the request once nothing is owed upstream: the client
// transaction may have to absorb repeats for long.
func (b *branch) release() {
	b.req, b.forward, b.target = nil, nil, nil
}
