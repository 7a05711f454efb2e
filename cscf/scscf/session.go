package scscf

import (
	"errors"
	"slices"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/hss"
	"bellwether/cscf/nexthop"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

// errNoRoute means that a request inside a dialog names no next hop of ours.
var errNoRoute = errors.New("route set leads nowhere")

// dialogForming are the methods whose requests must come back through us.
func dialogForming(method string) bool {
	return method == "INVITE" || method == "SUBSCRIBE" || method == "REFER"
}

// originating serves a request of a user of ours (TS 24.229 §5.4.3.2).
func (c *CSCF) originating(r *transaction.Request) {
	m := r.Message.Clone()
	caller, ok := asserted(m)
	if !ok {
		r.Reply(403, "", nil)
		return
	}
	s, ok := c.users.find([]string{caller}, time.Now())
	if !ok || s.identity.Barred {
		r.Reply(403, "", nil)
		return
	}
	if !c.home(m.RequestURI()) {
		r.Reply(404, "", nil)
		return
	}
	if second := alias(s.profile, s.identity); second != "" && single(m, sipmsg.PAssertedIdentity) {
		m.Add(sipmsg.PAssertedIdentity, "<"+second+">")
	}
	m.Remove(sipmsg.Route)
	follow, done, ok := c.follow(r, m, Originating, s.profile.IMPI)
	if !ok {
		return
	}
	nexthop.Send(r, nexthop.Hop{
		Message:  m,
		Route:    func(m *sipmsg.Message) (transaction.Peer, error) { return c.core.Route(state.ICSCF, m) },
		Response: follow,
		Lost: func(err error) {
			c.log.Warn("route to an I-CSCF", "err", err)
			r.Reply(504, "", nil)
			done()
		},
	})
	done()
}

// asserted is the first identity that the P-CSCF asserts.
func asserted(m *sipmsg.Message) (aor string, ok bool) {
	for v := range m.Elements(sipmsg.PAssertedIdentity) {
		if a, err := sipmsg.ParseNameAddr(v); err == nil {
			return hss.Identity(a.URI)
		}
		break
	}
	return "", false
}

// home reports whether a Request-URI is for the home network to resolve: its
// domain, or any telephone number. There is no way into other networks yet.
func (c *CSCF) home(uri string) bool {
	u, err := sipmsg.ParseURI(uri)
	if err != nil {
		return false
	}
	return u.Scheme == "tel" || strings.EqualFold(strings.TrimSuffix(u.Host, "."), c.cfg.Domain)
}

// alias is the identity of the other scheme that is asserted beside id
// (TS 24.229 §5.4.3.2 step 4a): a tel URI beside a SIP URI and the reverse.
func alias(p hss.Profile, id state.Identity) string {
	isTel := strings.HasPrefix(id.URI, "tel:")
	for _, other := range p.Associated(id.Set) {
		if strings.HasPrefix(other, "tel:") != isTel {
			return other
		}
	}
	return ""
}

func single(m *sipmsg.Message, h sipmsg.Header) bool {
	n := 0
	for range m.Elements(h) {
		n++
	}
	return n == 1
}

// terminating delivers a request to the phones of a user of ours (TS 24.229
// §5.4.3.3).
func (c *CSCF) terminating(r *transaction.Request) {
	u, err := sipmsg.ParseURI(r.Message.RequestURI())
	if err != nil {
		r.Reply(400, "Malformed Request-URI", nil)
		return
	}
	s, ok := c.users.find(hss.Identities(u), time.Now())
	switch {
	case !ok:
		r.Reply(480, "", nil)
		return
	case s.identity.Barred:
		r.Reply(404, "", nil)
		return
	}
	m := r.Message.Clone()
	m.Set(sipmsg.PCalledPartyID, "<"+m.RequestURI()+">")
	m.Remove(sipmsg.Route)
	follow, done, ok := c.follow(r, m, Terminating, s.profile.IMPI)
	if !ok {
		return
	}
	nexthop.Until(r, func() error {
		groups, err := c.forks(m, s.contacts)
		if err != nil {
			return err
		}
		c.dialogs.through(hashOf(m.CallID(), m.FromTag()), Terminating, groups[0][0].To.Group, false)
		r.Forward(transaction.Forward{Groups: groups, Response: follow})
		return nil
	}, func(err error) {
		c.log.Warn("route to a P-CSCF", "user", s.profile.IMPI, "err", err)
		r.Reply(480, "", nil)
		done()
	})
	done()
}

// forks makes a target of each contact that can be reached: parallel among
// those of equal q, one group after the other from the highest q on (RFC 3261
// §16.6). The error says why there is none.
func (c *CSCF) forks(m *sipmsg.Message, contacts []contact) ([][]transaction.Target, error) {
	contacts = slices.Clone(contacts)
	slices.SortStableFunc(contacts, func(a, b contact) int { return b.Q - a.Q })
	var groups [][]transaction.Target
	var failed error
	last := 0
	for _, a := range contacts {
		fork := m.Clone()
		fork.SetRequestURI(a.target())
		fork.Set(sipmsg.Route, strings.Join(a.Path, ", "))
		to, err := c.core.Route(state.PCSCF, fork)
		if err != nil {
			failed = err
			continue
		}
		t := transaction.Target{Message: fork, To: to}
		if len(groups) > 0 && a.Q == last {
			groups[len(groups)-1] = append(groups[len(groups)-1], t)
		} else {
			groups = append(groups, []transaction.Target{t})
		}
		last = a.Q
	}
	if len(groups) == 0 {
		return nil, failed
	}
	return groups, nil
}

// follow takes part in the dialogs that a request may form: m, which goes on
// for r, comes back through us, and the dialogs are remembered. user is the IMPI
// of the user whom the half serves. The first function sees the responses, the
// second forgets the request if it was refused before any came. It is false for
// one that was refused here.
func (c *CSCF) follow(r *transaction.Request, m *sipmsg.Message, half, user string) (
	response func(*transaction.Request, *transaction.Target, *sipmsg.Message) transaction.Verdict, done func(), ok bool,
) {
	if !dialogForming(m.Method()) {
		return nil, func() {}, true
	}
	k, err := c.dialogs.begin(m, half, user, time.Now())
	if errors.Is(err, errStranger) {
		r.Reply(403, "", nil)
		return nil, nil, false
	}
	if err != nil {
		c.log.Debug("remember a dialog", "user", user, "err", err)
		r.Reply(503, "", func(resp *sipmsg.Message) { resp.Set(sipmsg.RetryAfter, "30") })
		return nil, nil, false
	}
	m.Push(sipmsg.RecordRoute, c.dialog)
	if half == Originating {
		c.dialogs.through(k, half, r.From.Group, false)
	}
	response = func(_ *transaction.Request, t *transaction.Target, m *sipmsg.Message) transaction.Verdict {
		if half == Terminating && t != nil && m.Status() < 300 {
			c.dialogs.through(k, half, t.To.Group, m.Status() >= 200)
		}
		c.dialogs.heard(k, half, m, time.Now())
		return transaction.Pass
	}
	return response, func() {
		if r.Finished() {
			c.dialogs.dropped(k, half, time.Now())
		}
	}, true
}

// inside takes a request inside a dialog. What comes from a P-CSCF shows whose
// phone it is: a user of ours who is no party of the dialog is a stranger,
// whatever From says. Nobody behind us learns it: who calls may be hidden.
func (c *CSCF) inside(m *sipmsg.Message, from state.Kind) error {
	sender := ""
	if from == state.PCSCF {
		sender, _ = asserted(m)
		m.Remove(sipmsg.PAssertedIdentity)
	}
	return c.dialogs.inside(m, sender, time.Now())
}

// inDialog relays a request along its route set (RFC 3261 §16.4, §16.12).
func (c *CSCF) inDialog(r *transaction.Request, from state.Kind) {
	m := r.Message.Clone()
	m.Pop(sipmsg.Route)
	_, further := c.token(m)
	switch err := c.inside(m, from); {
	case errors.Is(err, errStranger):
		r.Reply(403, "", nil)
		return
	case err != nil:
		r.Reply(481, "", nil)
		return
	case !further:
		r.Reply(404, "", nil) // the route set leads out of the cluster: nowhere
		return
	}
	nexthop.Send(r, nexthop.Hop{
		Message: m,
		Route:   c.next,
		Lost: func(err error) {
			c.log.Warn("route a request inside a dialog", "err", err)
			r.Reply(504, "", nil)
		},
	})
}

// next gives the hop that the top Route names, which must be one of ours:
// another S-CSCF, or the P-CSCF of a phone.
func (c *CSCF) next(m *sipmsg.Message) (transaction.Peer, error) {
	t, ok := c.token(m)
	if !ok {
		return transaction.Peer{}, errNoRoute
	}
	kind := state.SCSCF
	if t.Mode == token.Binding {
		kind = state.PCSCF
	}
	return c.core.Route(kind, m)
}
