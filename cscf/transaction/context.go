package transaction

import (
	"slices"

	"bellwether/cscf/sipmsg"
)

// answeredElsewhere tells the other phones why they stop ringing (RFC 3326
// §2, §3.1).
const answeredElsewhere = `SIP;cause=200;text="Call completed elsewhere"`

// final is how a branch ended: with a response, or without, m being nil.
type final struct {
	forward *Forward
	target  *Target
	status  int
	m       *sipmsg.Message
}

// settle moves the context on when no branch is pending: to the next group,
// to the best response, or to waiting for the role.
func (r *Request) settle() {
	for len(r.live) == 0 && !r.Finished() {
		switch {
		case len(r.waiting) > 0:
			r.startGroup()
		case len(r.finals) > 0:
			r.decide()
		case r.cancelled && !r.held:
			r.Reply(487, "", nil)
		default:
			r.await()
			return
		}
	}
}

// startGroup begins the branches of the next group. They share Max-Breadth;
// no others are pending (RFC 5393 §5.3.3).
func (r *Request) startGroup() {
	g := r.waiting[0]
	r.waiting = r.waiting[1:]
	n := len(g.targets)
	if n > r.breadth {
		r.finals = append(r.finals, final{g.forward, &g.targets[0], 440, nil})
		return
	}
	begun := len(r.live)
	for i := range g.targets {
		share := r.breadth / n
		if i < r.breadth%n {
			share++
		}
		b := r.newBranch(g.forward, &g.targets[i], g.index+i, share)
		if !b.to.carries(len(b.raw)) {
			r.finals = append(r.finals, final{g.forward, b.target, 513, nil})
			continue
		}
		r.live = append(r.live, b)
	}
	for _, b := range r.live[begun:] {
		b.start()
	}
}

// provisional takes a 1xx. 100 is for this hop only, and no other method than
// INVITE has others (RFC 4320 §4.1).
func (r *Request) provisional(b *branch, m *sipmsg.Message) {
	if m.Status() == 100 || r.decided || r.Finished() {
		return
	}
	r.deliver(b.forward, b.target, m)
}

// succeeded takes a 2xx: the first to any request, and every one and its
// repeats to an INVITE, from whatever branch (RFC 3261 §16.7 step 5, RFC 6026
// §8.3). The other branches are cancelled.
func (r *Request) succeeded(b *branch, m *sipmsg.Message) {
	r.end(b)
	if !b.invite && (r.decided || r.Finished()) {
		r.settle()
		return
	}
	r.decided = true
	r.waiting, r.finals = nil, nil
	r.deliver(b.forward, b.target, m)
	r.cancelLive(answeredElsewhere)
	r.settle()
}

// refused takes a final response other than 2xx. 6xx speaks for all targets
// (RFC 3261 §16.7 step 5).
func (r *Request) refused(b *branch, m *sipmsg.Message) {
	status := m.Status()
	if b.timedOut && status == 487 {
		r.failed(b, 408)
		return
	}
	r.end(b)
	if !r.decided && !r.Finished() {
		r.finals = append(r.finals, final{b.forward, b.target, status, m})
		if status >= 600 {
			r.waiting = nil
			r.cancelLive("")
		}
	}
	r.settle()
}

// failed takes the end of a branch that had no final response.
func (r *Request) failed(b *branch, status int) {
	r.end(b)
	if r.cancelled { // that is what ended the branch, whatever else did
		status = 487
	}
	if !r.decided && !r.Finished() && b.forward.Failed != nil {
		b.forward.Failed(r, b.target, status)
	}
	if !r.decided && !r.Finished() {
		r.finals = append(r.finals, final{b.forward, b.target, status, nil})
	}
	r.settle()
}

func (r *Request) end(b *branch) {
	if i := slices.Index(r.live, b); i >= 0 {
		r.live = slices.Delete(r.live, i, i+1)
	}
}

// deliver shows the role a response and sends it upstream unless it objects.
func (r *Request) deliver(f *Forward, t *Target, m *sipmsg.Message) {
	verdict := Pass
	if f.Response != nil {
		verdict = f.Response(r, t, m)
	}
	switch {
	case verdict == Pass:
		r.send(m)
	case verdict == Hold && m.Status() >= 200 && r.decided:
		r.held = true
	}
}

// decide sends the best final response (RFC 3261 §16.7 steps 6 and 7).
func (r *Request) decide() {
	finals := r.finals
	r.finals = nil
	r.decided = true
	if !r.tx.invite() {
		// No 408 goes upstream (RFC 4320 §4.2).
		finals = slices.DeleteFunc(finals, func(f final) bool { return f.status == 408 })
		if len(finals) == 0 {
			r.tx.silence()
			return
		}
	}
	best := slices.MinFunc(finals, func(a, b final) int { return rank(a.status) - rank(b.status) })
	m := best.m
	switch {
	case best.status == 503:
		m = r.respond(500, "")
	case best.status == 430: // means nothing beyond us, who chose the flow (RFC 5626 §5.3)
		m = r.respond(480, "")
	case m == nil:
		m = r.respond(best.status, "")
	case best.status == 401 || best.status == 407:
		gatherChallenges(m, finals)
	}
	r.deliver(best.forward, best.target, m)
}

// rank orders final responses, the best first: 6xx, then the lowest class,
// and within a class first those that help the client to try again. A 408, a
// flow that failed, and the 503 that another hop must not take for ours, come
// last in theirs. Ties
// go to the first that came.
func rank(status int) int {
	class := status / 100 * 10
	switch {
	case status >= 600:
		return 0
	case status == 401 || status == 407:
		return class
	case status == 415 || status == 420 || status == 484:
		return class + 1
	case status == 408 || status == 430 || status == 503:
		return class + 3
	}
	return class + 2
}

// gatherChallenges adds to m the challenges of all other 401 and 407.
func gatherChallenges(m *sipmsg.Message, finals []final) {
	for _, f := range finals {
		if f.m == nil || f.m == m || f.status != 401 && f.status != 407 {
			continue
		}
		for _, h := range [...]sipmsg.Header{sipmsg.WWWAuthenticate, sipmsg.ProxyAuthenticate} {
			for challenge := range f.m.Values(h) {
				m.Add(h, challenge)
			}
		}
	}
}
