package transaction

import "bellwether/cscf/sipmsg"

// Request is a request that waits for its final response: the server
// transaction and the response context (RFC 3261 §16.7). It is used in the
// layer's shard only.
type Request struct {
	// Message is the request as it came, with received and rport in its top
	// Via. The role may edit clones of it, or itself with care: responses
	// take Via, From, To, Call-ID and CSeq from it.
	Message *sipmsg.Message
	From    Peer

	layer     *Layer
	tx        *server
	via       sipmsg.Via
	waiting   []group   // serial groups not begun
	live      []*branch // without a final response yet
	finals    []final   // of those that ended
	targets   int       // so far: the fork index
	decided   bool      // a final response was chosen
	held      bool      // and the role has it
	cancelled bool      // from upstream
	loop      string    // loopPart of Message
	breadth   int       // branches that it may have at a time
}

// group is one serial group of a Forward and the fork index of its first
// target.
type group struct {
	forward *Forward
	targets []Target
	index   int
}

// Layer is the layer r came in.
func (r *Request) Layer() *Layer { return r.layer }

// Finished reports whether a final response was sent, so nothing the role
// does with r has an effect any more.
func (r *Request) Finished() bool { return !r.tx.open() }

// Reply answers as a user agent server would (RFC 3261 §8.2.6), with the
// standard phrase if reason is "". edit, if not nil, sees the response before
// it is sent. A final response ends the request: branches that are pending are
// cancelled. A provisional response to another method than INVITE, and a 408
// to one, are not sent (RFC 4320). After a final response Reply does nothing.
func (r *Request) Reply(status int, reason string, edit func(resp *sipmsg.Message)) {
	defer r.layer.leave(r.layer.enter())
	if r.Finished() {
		return
	}
	resp := r.respond(status, reason)
	if edit != nil {
		edit(resp)
	}
	r.send(resp)
	if len(r.live) == 0 && !r.Finished() {
		r.await()
	}
}

// ReplyStateless answers for good and forgets the request at once, as a
// stateless user agent server does (RFC 3261 §8.2.7): a repeat is a new request
// and gets the same answer, an ACK is absorbed, nothing is sent twice by
// itself. So an answer to somebody unknown costs no memory. It is for requests
// that were not forwarded; otherwise it is Reply.
func (r *Request) ReplyStateless(status int, reason string, edit func(resp *sipmsg.Message)) {
	if r.targets > 0 || status < 200 || status == 408 {
		r.Reply(status, reason, edit)
		return
	}
	defer r.layer.leave(r.layer.enter())
	if r.Finished() {
		return
	}
	resp := r.respond(status, reason)
	if edit != nil {
		edit(resp)
	}
	s := r.tx
	s.terminate()
	s.send(resp.Bytes())
}

// Pass sends upstream a response that Forward.Response held. A provisional
// one is not sent any more once a final one was.
func (r *Request) Pass(m *sipmsg.Message) {
	defer r.layer.leave(r.layer.enter())
	r.send(m)
}

// Forward sends the request on: to the first group at once, to the next when
// all targets of the one before have ended without success. Called again
// before the final response, it adds groups behind those that are left.
// Without Max-Forwards left the answer is 483, without any target 480. A group
// with more targets than Max-Breadth allows counts as answered 440.
// After a CANCEL or the final response it does nothing.
func (r *Request) Forward(f Forward) {
	defer r.layer.leave(r.layer.enter())
	if r.Finished() || r.cancelled {
		return
	}
	if n, present := r.Message.MaxForwards(); present && n == 0 {
		r.Reply(483, "", nil)
		return
	}
	r.decided, r.held = false, false
	if r.targets == 0 {
		r.loop, r.breadth = loopPart(r.Message), breadth(r.Message)
	}
	for _, targets := range f.Groups {
		if len(targets) > 0 {
			r.waiting = append(r.waiting, group{&f, targets, r.targets})
			r.targets += len(targets)
		}
	}
	if len(r.waiting) == 0 && len(r.live) == 0 && len(r.finals) == 0 {
		r.Reply(480, "", nil)
		return
	}
	r.tx.sendTrying()
	r.settle()
}

// respond makes a response of our own.
func (r *Request) respond(status int, reason string) *sipmsg.Message {
	tag := ""
	if status > 100 {
		tag = r.layer.digest(forTag, r.Message, r.via, 0)
	}
	return r.Message.Response(status, reason, tag)
}

// send sends m upstream; a final response closes the context.
func (r *Request) send(m *sipmsg.Message) {
	status, s := m.Status(), r.tx
	reason := ""
	switch {
	case status < 200:
		s.provisional(m.Bytes())
		return
	case s.invite() && status < 300:
		s.success(m.Bytes())
		reason = answeredElsewhere
	case s.invite():
		s.refuse(m.Bytes())
	case status == 408:
		s.silence()
	default:
		s.finish(status, m.Bytes())
	}
	r.cancelLive(reason)
}

// handed is called when the role has seen the new request.
func (r *Request) handed() {
	if r.Finished() {
		return
	}
	r.tx.awaitTrying()
	if len(r.live) == 0 {
		r.await()
	}
}

// await bounds the time for which the request depends on its role alone.
func (r *Request) await() {
	cfg := &r.layer.cfg
	if r.tx.invite() {
		r.tx.end.set(r.layer, cfg.TimerC, r.tx)
	} else {
		r.tx.end.set(r.layer, 64*cfg.T1, r.tx)
	}
}

// abandoned ends a request that its role has forgotten.
func (r *Request) abandoned() {
	if r.tx.invite() {
		r.Reply(500, "", nil)
	} else {
		r.tx.silence()
	}
}

// cancel is the effect of a CANCEL from upstream: the branches end the
// request, each with 487 or with a 200 that raced. Without branches, and
// unless the role holds the final response, it is answered here.
func (r *Request) cancel(reason string) {
	if r.Finished() || r.cancelled {
		return
	}
	r.cancelled = true
	r.waiting = nil
	r.cancelLive(reason)
	r.settle()
}

func (r *Request) cancelLive(reason string) {
	for _, b := range r.live {
		b.cancel(reason)
	}
}
