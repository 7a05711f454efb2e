package phone

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/emiago/sipgo/sip"
)

const (
	// maxEarly is how many branches of a forked call a phone tells apart.
	maxEarly = 8
	// lastWord is how long a call whose context has ended waits for the answer
	// to its CANCEL or BYE.
	lastWord = 2 * time.Second
)

// call is one call of a phone, in either direction. One goroutine leads it; the
// reader tells it what came through its channels.
type call struct {
	p      *Phone
	callID string
	tag    string        // the phone's
	invite *sip.Request  // the one that began it
	tx     *sip.ServerTx // of an incoming call

	cancelled chan struct{} // closed by CANCEL
	hungUp    chan struct{} // closed by BYE
	pracked   chan struct{} // closed by the PRACK of the reliable response

	audioMu sync.Mutex // of the leading goroutine and of changes by the far end
	audio   *audio

	// Guarded by Phone.mu.
	remoteTag string                       // known for incoming and for answered calls
	remoteSeq uint32                       // highest CSeq of the far end
	acks      map[uint32]chan *sip.Request // by CSeq of the INVITE; capacity 1
	rseq      uint32                       // of the reliable response that waits for its PRACK; 0: none
}

func (p *Phone) newCall(callID, tag string) *call {
	return &call{
		p: p, callID: callID, tag: tag, acks: make(map[uint32]chan *sip.Request),
		cancelled: make(chan struct{}), hungUp: make(chan struct{}), pracked: make(chan struct{}),
	}
}

// add makes a call known to the reader. It reports false if there are too many,
// or if it came before by another way (RFC 3261 §8.2.2.2).
func (p *Phone) add(c *call) (busy, merged bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.calls {
		if c.tx != nil && o.tx != nil && o.callID == c.callID && o.remoteTag == c.remoteTag {
			return false, true
		}
	}
	if len(p.calls) >= maxCalls {
		return true, false
	}
	p.calls[dialogKey(c.callID, c.tag)] = c
	return false, false
}

func (p *Phone) remove(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, dialogKey(c.callID, c.tag))
}

// Call calls target, as "sip:bob@ims.test" or "tel:+4930123456", and returns
// when the call is over. A refusal is not an error: see Result.Status. It is
// one if no final response came, if the answer could not be used, or if the BYE
// was refused. When ctx ends, the call is cancelled or hung up first, which
// takes lastWord at most.
func (p *Phone) Call(ctx context.Context, target string, opts CallOptions) (r Result, err error) {
	r.Peer = target
	if !p.begin() {
		return r, ErrClosed
	}
	defer p.tasks.Done()
	ctx, done := p.within(ctx)
	defer done()

	var uri sip.Uri
	if err := sip.ParseUri(target, &uri); err != nil {
		return r, fmt.Errorf("call %q: %w", target, err)
	}
	c := p.newCall(newCallID(p), sip.GenerateTagN(10))
	r.CallID = c.callID
	if busy, _ := p.add(c); busy {
		return r, fmt.Errorf("call %s: %d calls already", target, maxCalls)
	}
	defer p.remove(c)
	if c.audio, err = p.openAudio(); err != nil {
		return r, fmt.Errorf("call %s: %w", target, err)
	}
	defer c.silence(&r)

	out := &outgoing{call: c, early: make(map[string]*branch)}
	res, err := out.dial(ctx, uri, opts, &r)
	if err == nil && res.IsSuccess() {
		err = out.talk(ctx, res, opts, &r)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		r.Err = fmt.Errorf("call %s: %w", target, err)
	}
	return r, r.Err
}

// silence ends the sound and takes down what was heard.
func (c *call) silence(r *Result) {
	c.audioMu.Lock()
	defer c.audioMu.Unlock()
	if c.audio != nil {
		c.audio.close(r)
		c.audio = nil
	}
}

// connect begins the sound.
func (c *call) connect(far session) error {
	c.audioMu.Lock()
	defer c.audioMu.Unlock()
	return c.audio.connect(far)
}

// outgoing is the calling side of a call.
type outgoing struct {
	*call
	early map[string]*branch // by To tag
	mu    sync.Mutex
	taken string       // To tag of the answer that was taken
	ack   *sip.Request // of it
	ackTo flow
}

// branch is an early dialog of a forked call.
type branch struct {
	dialog *dialog
	rseq   uint32 // of the last reliable response acknowledged
}

// dial sends the INVITE, again if it is challenged, and returns its final
// response.
func (o *outgoing) dial(ctx context.Context, uri sip.Uri, opts CallOptions, r *Result) (*sip.Response, error) {
	p := o.p
	var giveUp <-chan time.Time
	if opts.CancelAfter > 0 {
		timer := time.NewTimer(opts.CancelAfter)
		defer timer.Stop()
		giveUp = timer.C
	}
	var auth authorization
	offer := o.audio.desc.offer()
	for seq := uint32(1); ; seq++ {
		invite := p.newRequest(sip.INVITE, uri, uri, o.callID, o.tag, seq)
		p.initial(invite)
		auth.apply(invite, p.password())
		invite.AppendHeader(sip.NewHeader("Contact", p.contact()))
		invite.AppendHeader(sip.NewHeader("Allow", allow))
		invite.AppendHeader(sip.NewHeader("Supported", "100rel"))
		invite.AppendHeader(sip.NewHeader("Accept", "application/sdp"))
		invite.AppendHeader(sip.NewHeader("Content-Type", "application/sdp"))
		invite.SetBody(offer)
		o.invite = invite
		began := time.Now()
		res, err := o.ring(ctx, giveUp)
		r.Setup = time.Since(began)
		if err != nil {
			return nil, err
		}
		if auth.again(res, p.password()) {
			continue
		}
		r.Status, r.Reason = res.StatusCode, res.Reason
		return res, nil
	}
}

// ring waits for the final response and cancels when it is time to
// (RFC 3261 §9.1: not before a provisional response).
func (o *outgoing) ring(ctx context.Context, giveUp <-chan time.Time) (*sip.Response, error) {
	p := o.p
	if err := p.ep.online(ctx); err != nil {
		return nil, fmt.Errorf("INVITE to %v: %w", p.cfg.Proxy, err)
	}
	tx, err := p.ep.start(o.invite, p.cfg.Proxy)
	if err != nil {
		return nil, err
	}
	tx.OnRetransmission(o.repeated)
	limit := time.NewTimer(patience)
	defer limit.Stop()
	var late <-chan time.Time
	var rings, cancel, cancelled bool
	ended := ctx.Done()
	for {
		if cancel && rings && !cancelled {
			cancelled = true
			o.cancelInvite()
			if late == nil {
				late = time.After(64 * sip.T1)
			}
		}
		if p.ctx.Err() != nil {
			tx.Terminate()
			return nil, ErrClosed
		}
		select {
		case res := <-tx.Responses():
			if !res.IsProvisional() {
				return res, nil
			}
			rings = true
			o.progress(res)
		case <-tx.Done():
			return nil, fmt.Errorf("INVITE to %v: %w", p.cfg.Proxy, cause(tx))
		case <-giveUp:
			giveUp, cancel = nil, true
		case <-limit.C:
			cancel = true
		case <-ended:
			ended, cancel, late = nil, true, time.After(lastWord)
		case <-late:
			tx.Terminate()
			return nil, fmt.Errorf("INVITE to %v: no final response after CANCEL", p.cfg.Proxy)
		}
	}
}

// cancelInvite sends a CANCEL, and just once when the phone is being closed.
func (o *outgoing) cancelInvite() {
	invite := o.invite
	req := sip.NewRequest(sip.CANCEL, invite.Recipient)
	req.AppendHeader(invite.Via().Clone())
	req.AppendHeader(sip.NewHeader("Max-Forwards", "70"))
	sip.CopyHeaders("Route", invite, req)
	req.AppendHeader(invite.From())
	req.AppendHeader(invite.To())
	req.AppendHeader(invite.CallID())
	req.AppendHeader(&sip.CSeqHeader{SeqNo: invite.CSeq().SeqNo, MethodName: sip.CANCEL})
	req.SetBody(nil)
	o.p.deliver(req, flow{o.p.ep, o.p.cfg.Proxy})
}

// deliver sends a request whose answer nobody waits for.
func (p *Phone) deliver(req *sip.Request, f flow) {
	waits := p.ctx.Err() == nil && p.spawn(func() {
		if _, err := p.ep.exchange(p.ctx, req, f.to); err != nil && p.ctx.Err() == nil {
			p.log.Debug("request without an answer", "method", req.Method, "err", err)
		}
	})
	if !waits {
		_ = f.WriteMsg(req)
	}
}

// progress acknowledges a reliable provisional response (RFC 3262 §4).
func (o *outgoing) progress(res *sip.Response) {
	tag, _ := res.To().Params.Get("tag")
	if tag == "" || !hasOption(res, "Require", "100rel") {
		return
	}
	h := res.GetHeader("RSeq")
	if h == nil {
		return
	}
	n, err := strconv.ParseUint(strings.TrimSpace(h.Value()), 10, 32)
	if err != nil || n == 0 {
		return
	}
	b := o.early[tag]
	if b == nil {
		if len(o.early) == maxEarly {
			return
		}
		b = &branch{dialog: o.p.dialOut(o.invite, res)}
		o.early[tag] = b
	}
	if b.rseq != 0 && uint32(n) != b.rseq+1 {
		return // repeated, or out of order: it will be repeated
	}
	b.rseq = uint32(n)
	rack := fmt.Sprintf("%d %d INVITE", n, o.invite.CSeq().SeqNo)
	o.p.deliver(b.dialog.request(sip.PRACK, sip.NewHeader("RAck", rack)), flow{o.p.ep, b.dialog.hop()})
}

// repeated is called by the reader for each further 2xx: a repetition, whose
// ACK was lost, or the answer of another branch, which is hung up
// (RFC 3261 §13.2.2.4).
func (o *outgoing) repeated(res *sip.Response) {
	tag, _ := res.To().Params.Get("tag")
	o.mu.Lock()
	ack, to, taken := o.ack, o.ackTo, o.taken
	o.mu.Unlock()
	switch {
	case ack == nil: // not yet: it will come again
	case tag == taken:
		_ = to.WriteMsg(ack)
	default:
		d := o.p.dialOut(o.invite, res)
		f := flow{o.p.ep, d.hop()}
		_ = f.WriteMsg(d.numbered(sip.ACK, o.invite.CSeq().SeqNo))
		o.p.deliver(d.request(sip.BYE), f)
	}
}

// talk acknowledges the answer, talks, and hangs up.
func (o *outgoing) talk(ctx context.Context, res *sip.Response, opts CallOptions, r *Result) error {
	p := o.p
	d := p.dialOut(o.invite, res)
	if b := o.early[d.remoteTag]; b != nil {
		d.seq.Store(b.dialog.seq.Load()) // of the PRACKs
	}
	ack := d.numbered(sip.ACK, o.invite.CSeq().SeqNo)
	to := flow{p.ep, d.hop()}
	if err := to.WriteMsg(ack); err != nil {
		return fmt.Errorf("ACK to %v: %w", to.to, err)
	}
	o.mu.Lock()
	o.ack, o.ackTo, o.taken = ack, to, d.remoteTag
	o.mu.Unlock()
	p.mu.Lock()
	o.remoteTag = d.remoteTag
	p.mu.Unlock()

	far, err := parseSession(res.Body())
	if err == nil {
		err = o.connect(far)
	}
	if err != nil {
		_ = o.bye(ctx, d)
		return fmt.Errorf("use the answer: %w", err)
	}
	if opts.Update {
		if err := o.update(ctx, d); err != nil {
			_ = o.bye(ctx, d)
			return err
		}
	}
	hold := time.NewTimer(opts.Hold)
	defer hold.Stop()
	select {
	case <-hold.C:
	case <-ctx.Done():
	case <-o.hungUp:
		o.silence(r)
		return nil
	}
	o.silence(r)
	return o.bye(ctx, d)
}

// update sends an UPDATE without a new offer (RFC 3311).
func (o *outgoing) update(ctx context.Context, d *dialog) error {
	res, err := o.p.ep.exchange(ctx, d.request(sip.UPDATE, sip.NewHeader("Contact", o.p.contact())), d.hop())
	if err != nil {
		return err
	}
	if !res.IsSuccess() {
		return &StatusError{"UPDATE", res.StatusCode, res.Reason}
	}
	return nil
}

// bye ends a call.
func (c *call) bye(ctx context.Context, d *dialog) error {
	p := c.p
	req := d.request(sip.BYE)
	if p.ctx.Err() != nil {
		_ = flow{p.ep, d.hop()}.WriteMsg(req)
		return ErrClosed
	}
	within := p.ctx
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(p.ctx, lastWord)
		defer cancel()
	}
	res, err := p.ep.exchange(within, req, d.hop())
	if err != nil {
		return err
	}
	if res.StatusCode == 481 {
		select {
		case <-c.hungUp: // both hung up at once
			return nil
		default:
		}
	}
	if !res.IsSuccess() {
		return &StatusError{"BYE", res.StatusCode, res.Reason}
	}
	return nil
}
