package phone

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/emiago/sipgo/sip"

	"bellwether/cscf/sipmsg"
)

var (
	errCancelled = errors.New("cancelled")
	errHungUp    = errors.New("the far end hung up")
	errNoPRACK   = errors.New("no PRACK came")

	errUnacknowledged = errors.New("no acknowledgement came")
)

// request takes a new request other than ACK and CANCEL from the reader.
func (p *Phone) request(req *sip.Request, tx *sip.ServerTx) {
	if tag, _ := req.To().Params.Get("tag"); tag != "" {
		p.inDialog(req, tx)
		return
	}
	switch req.Method {
	case sip.INVITE:
		p.invited(req, tx)
	case sip.MESSAGE:
		p.messaged(req, tx)
	case sip.OPTIONS:
		p.reply(tx, p.capabilities(req, ""))
	case sip.BYE, sip.PRACK, sip.UPDATE, sip.INFO:
		p.reply(tx, newResponse(req, 481, ""))
	default:
		p.reply(tx, newResponse(req, 405, "", sip.NewHeader("Allow", allow)))
	}
}

func (p *Phone) capabilities(req *sip.Request, tag string) *sip.Response {
	return newResponse(req, 200, tag, sip.NewHeader("Allow", allow),
		sip.NewHeader("Accept", "application/sdp, text/plain"), sip.NewHeader("Supported", "100rel"))
}

// messaged takes a MESSAGE (RFC 3428).
func (p *Phone) messaged(req *sip.Request, tx *sip.ServerTx) {
	if p.cfg.OnMessage == nil {
		p.reply(tx, newResponse(req, 200, ""))
		return
	}
	p.mu.Lock()
	full := p.messages >= maxMessages
	if !full {
		p.messages++
	}
	p.mu.Unlock()
	if full {
		p.reply(tx, newResponse(req, 480, ""))
		return
	}
	from, text := identity(req), string(req.Body())
	started := p.spawn(func() {
		p.cfg.OnMessage(from, text)
		p.mu.Lock()
		p.messages--
		p.mu.Unlock()
	})
	if started {
		p.reply(tx, newResponse(req, 200, ""))
	}
}

// identity is who sent a request: as the core asserts, else as it says.
func identity(req *sip.Request) string {
	for _, e := range elements(req, "P-Asserted-Identity", 1) {
		if n, err := sipmsg.ParseNameAddr(e); err == nil {
			return n.URI
		}
	}
	return req.From().Address.String()
}

// ack takes the ACK of a 2xx from the reader.
func (p *Phone) ack(req *sip.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.find(req)
	if c == nil {
		return
	}
	select {
	case c.acks[req.CSeq().SeqNo] <- req: // nil if nobody waits any more
	default:
	}
}

// find returns the call of a request within a dialog. The caller holds mu.
func (p *Phone) find(req *sip.Request) *call {
	to, _ := req.To().Params.Get("tag")
	from, _ := req.From().Params.Get("tag")
	c := p.calls[dialogKey(string(*req.CallID()), to)]
	if c == nil || c.remoteTag != "" && c.remoteTag != from {
		return nil
	}
	return c
}

// cancel takes a CANCEL from the reader (RFC 3261 §9.2).
func (p *Phone) cancel(req *sip.Request, tx, invite *sip.ServerTx) {
	if invite == nil {
		p.reply(tx, newResponse(req, 481, ""))
		return
	}
	tag := ""
	p.mu.Lock()
	for _, c := range p.calls {
		if c.tx == invite {
			tag = c.tag
			closeOnce(c.cancelled)
		}
	}
	p.mu.Unlock()
	p.reply(tx, newResponse(req, 200, tag))
}

// closeOnce closes a channel that only the reader closes.
func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// invited takes an INVITE that begins a call.
func (p *Phone) invited(req *sip.Request, tx *sip.ServerTx) {
	c := p.newCall(string(*req.CallID()), sip.GenerateTagN(10))
	c.invite, c.tx, c.remoteSeq = req, tx, req.CSeq().SeqNo
	c.remoteTag, _ = req.From().Params.Get("tag")
	offer, refusal := acceptable(req, c.tag)
	if refusal == nil {
		switch busy, merged := p.add(c); {
		case merged:
			refusal = newResponse(req, 482, c.tag)
		case busy:
			refusal = newResponse(req, 486, c.tag)
		}
	}
	if refusal != nil {
		p.conclude(req, tx, refusal)
		return
	}
	answered := p.spawn(func() {
		r := Result{CallID: c.callID, Peer: identity(req)}
		in := &incoming{call: c, began: time.Now()}
		in.lead(offer, &r)
		p.remove(c)
		if p.cfg.OnCall != nil {
			p.cfg.OnCall(r)
		}
	})
	if !answered {
		p.remove(c)
	}
}

// acceptable returns the offer of an INVITE, nil if it has none, or the refusal.
func acceptable(req *sip.Request, tag string) (*session, *sip.Response) {
	for _, option := range elements(req, "Require", 16) {
		if !strings.EqualFold(option, "100rel") {
			return nil, newResponse(req, 420, tag, sip.NewHeader("Unsupported", option))
		}
	}
	if len(req.Body()) == 0 {
		return nil, nil
	}
	offer, refusal := offered(req, tag)
	return &offer, refusal
}

// offered returns the offer in a request's body, or the refusal.
func offered(req *sip.Request, tag string) (session, *sip.Response) {
	kind, _, _ := strings.Cut(contentType(req), ";")
	if !strings.EqualFold(strings.TrimSpace(kind), "application/sdp") {
		return session{}, newResponse(req, 415, tag, sip.NewHeader("Accept", "application/sdp"))
	}
	offer, err := parseSession(req.Body())
	if err != nil {
		return session{}, newResponse(req, 488, tag)
	}
	return offer, nil
}

func contentType(m sip.Message) string {
	if h := m.GetHeaders("Content-Type"); len(h) > 0 {
		return h[0].Value()
	}
	return ""
}

// incoming is the called side of a call.
type incoming struct {
	*call
	began time.Time
}

// refuse ends the call with a final response other than 2xx.
func (in *incoming) refuse(status int, r *Result) {
	res := newResponse(in.invite, status, in.tag)
	r.Status, r.Reason, r.Setup = status, res.Reason, time.Since(in.began)
	in.p.conclude(in.invite, in.tx, res)
}

// lead leads the call from the INVITE to its end.
func (in *incoming) lead(offer *session, r *Result) {
	p := in.p
	mode := p.cfg.Mode
	if p.cfg.Answer != nil {
		mode = p.cfg.Answer(r.Peer)
	}
	if mode == Busy {
		in.refuse(486, r)
		return
	}
	a, err := p.openAudio()
	if err != nil {
		p.log.Error("call refused", "err", err)
		in.refuse(500, r)
		return
	}
	in.audioMu.Lock()
	in.audio = a
	if offer != nil {
		a.far = *offer
	}
	in.audioMu.Unlock()
	defer in.silence(r)

	switch err := in.alert(mode); {
	case err == nil:
	case errors.Is(err, errCancelled), errors.Is(err, errHungUp):
		in.refuse(487, r)
		return
	case errors.Is(err, errNoPRACK):
		in.refuse(504, r)
		return
	default: // nobody is there, or the phone is being closed
		in.refuse(480, r)
		return
	}
	in.talk(offer != nil, r)
}

// alert rings for as long as the mode says.
func (in *incoming) alert(mode Mode) error {
	p := in.p
	ringing := newResponse(in.invite, 180, in.tag, sip.NewHeader("Contact", p.contact()), sip.NewHeader("Allow", allow))
	reliable := p.cfg.Reliable && hasOption(in.invite, "Supported", "100rel") || hasOption(in.invite, "Require", "100rel")
	if reliable {
		if err := in.reliably(ringing); err != nil {
			return err
		}
	} else {
		p.reply(in.tx, ringing)
	}
	rings := p.cfg.Ring
	if mode == NoAnswer {
		rings = ringLimit
	}
	timer := time.NewTimer(rings)
	defer timer.Stop()
	select {
	case <-timer.C:
		if mode == NoAnswer {
			return errors.New("nobody answered")
		}
		return nil
	case <-in.cancelled:
		return errCancelled
	case <-in.hungUp:
		return errHungUp
	case <-p.ctx.Done():
		return ErrClosed
	}
}

// reliably repeats a provisional response until its PRACK comes (RFC 3262 §3).
func (in *incoming) reliably(res *sip.Response) error {
	p := in.p
	rseq := 1 + rand.Uint32N(1<<16)
	res.AppendHeader(sip.NewHeader("Require", "100rel"))
	res.AppendHeader(sip.NewHeader("RSeq", strconv.FormatUint(uint64(rseq), 10)))
	p.mu.Lock()
	in.rseq = rseq
	p.mu.Unlock()
	_, err := repeat(in.call, in.tx, res, in.pracked, in.cancelled, 64*sip.T1)
	if errors.Is(err, errUnacknowledged) {
		return errNoPRACK
	}
	return err
}

// repeat sends a response again and again, after T1 and then twice as long each
// time but at most longest, until the far end acknowledges it through got
// (RFC 3261 §13.3.1.4), for 64·T1.
func repeat[T any](c *call, tx *sip.ServerTx, res *sip.Response, got <-chan T, cancelled <-chan struct{}, longest time.Duration) (T, error) {
	p := c.p
	pause := sip.T1
	timer, limit := time.NewTimer(pause), time.NewTimer(64*sip.T1)
	defer timer.Stop()
	defer limit.Stop()
	p.reply(tx, res)
	var none T
	for {
		select {
		case v := <-got:
			return v, nil
		case <-cancelled:
			return none, errCancelled
		case <-c.hungUp:
			return none, errHungUp
		case <-p.ctx.Done():
			return none, ErrClosed
		case <-limit.C:
			return none, errUnacknowledged
		case <-timer.C:
			p.reply(tx, res)
			pause = min(2*pause, longest)
			timer.Reset(pause)
		}
	}
}

// expectACK makes the reader hand over the ACK of an INVITE.
func (c *call) expectACK(seq uint32) <-chan *sip.Request {
	got := make(chan *sip.Request, 1)
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.acks[seq] = got
	return got
}

func (c *call) forgetACK(seq uint32) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	delete(c.acks, seq)
}

// talk answers and talks until the far end hangs up.
func (in *incoming) talk(offered bool, r *Result) {
	p := in.p
	body, err := in.own(offered)
	if err != nil {
		in.refuse(488, r)
		return
	}
	d := p.dialIn(in.invite, in.tag)
	seq := in.invite.CSeq().SeqNo
	got := in.expectACK(seq)
	r.Status, r.Reason, r.Setup = 200, "OK", time.Since(in.began)
	ack, err := repeat(in.call, in.tx, p.withSession(in.invite, in.tag, body), got, nil, sip.T2)
	in.forgetACK(seq)
	if err == nil && !offered {
		err = in.answered(ack)
	}
	if err == nil {
		limit := time.NewTimer(talkLimit)
		defer limit.Stop()
		select {
		case <-in.hungUp:
			err = errHungUp
		case <-p.ctx.Done():
			err = ErrClosed
		case <-limit.C:
		}
	}
	in.silence(r)
	if errors.Is(err, errHungUp) {
		return
	}
	r.Err = err
	if byeErr := in.bye(p.ctx, d); r.Err == nil {
		r.Err = byeErr
	}
}

// own returns the phone's side of the session, and begins the sound if the far
// end's is known.
func (in *incoming) own(offered bool) ([]byte, error) {
	in.audioMu.Lock()
	defer in.audioMu.Unlock()
	if !offered {
		return in.audio.desc.offer(), nil
	}
	return in.audio.desc.answer(in.audio.far), in.audio.connect(in.audio.far)
}

// answered begins the sound with the answer in an ACK.
func (in *incoming) answered(ack *sip.Request) error {
	far, err := parseSession(ack.Body())
	if err == nil {
		err = in.connect(far)
	}
	if err != nil {
		return fmt.Errorf("use the answer: %w", err)
	}
	return nil
}

// withSession is a 200 that carries a session description.
func (p *Phone) withSession(req *sip.Request, tag string, body []byte) *sip.Response {
	res := newResponse(req, 200, tag, sip.NewHeader("Contact", p.contact()), sip.NewHeader("Allow", allow),
		sip.NewHeader("Supported", "100rel"), sip.NewHeader("Content-Type", "application/sdp"))
	res.SetBody(body)
	return res
}
