package pcscf

import (
	"slices"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/nexthop"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

// fromPhone handles a request of a phone other than REGISTER (TS 24.229
// §5.2.6.3, §5.2.7.2).
func (c *CSCF) fromPhone(r *transaction.Request) {
	m := r.Message.Clone()
	if m.ToTag() != "" {
		if refused := c.dialogFromPhone(m, r.From); refused != 0 {
			c.refuse(r, refused)
		} else {
			c.forwardFromPhone(r, m)
		}
		return
	}
	b, as := c.table.sender(r.From.Flow, claimed(m), time.Now())
	if b == nil {
		c.refuse(r, 403)
		return
	}
	cleanRequestFromPhone(m)
	m.Add(sipmsg.PAssertedIdentity, "<"+as.URI+">")
	m.Add(sipmsg.PChargingVector, c.chargingVector(r.From.Flow))
	c.enforceRoute(m, b)
	if dialogForming(m.Method()) {
		flow := r.From.Flow
		if flow.Transport != b.Flow.Transport { // once for a large request; the dialog stays where the phone is registered
			flow = b.Flow
		}
		m.Push(sipmsg.RecordRoute, c.routeURI(b.ID, flow))
		c.table.talks(b.ID)
	}
	c.forwardFromPhone(r, m)
}

// refuse answers a phone that may not do that, and keeps nothing.
func (c *CSCF) refuse(r *transaction.Request, status int) {
	c.table.refused.Add(1)
	r.ReplyStateless(status, "", nil)
}

// claimed lists the identities that a request wants to be asserted, by
// preference.
func claimed(m *sipmsg.Message) []string {
	var out []string
	for v := range m.Elements(sipmsg.PPreferredIdentity) {
		if a, err := sipmsg.ParseNameAddr(v); err == nil {
			if aor, ok := canonical(a.URI); ok {
				out = append(out, aor)
			}
		}
		if len(out) == 2 { // one sip and one tel at most (RFC 3325 §9.2)
			break
		}
	}
	if aor, ok := addressOfRecord(m, sipmsg.From); ok {
		out = append(out, aor)
	}
	return out
}

// enforceRoute makes the Route the stored Service-Route, whatever the phone
// wrote (TS 24.229 §5.2.6.3.3).
func (c *CSCF) enforceRoute(m *sipmsg.Message, b *binding) {
	routes := slices.Collect(m.Elements(sipmsg.Route))
	for len(routes) > 0 { // entries that led to us
		a, err := sipmsg.ParseNameAddr(routes[0])
		if err != nil {
			break
		}
		if _, mine := c.mine(a.URI); !mine && !c.entry(a.URI) {
			break
		}
		routes = routes[1:]
	}
	if !slices.Equal(routes, b.ServiceRoute) && len(routes) > 0 {
		c.table.overwritten.Add(1)
	}
	m.Remove(sipmsg.Route)
	if len(b.ServiceRoute) > 0 {
		m.Add(sipmsg.Route, strings.Join(b.ServiceRoute, ", "))
	}
}

// dialogFromPhone prepares a request inside a dialog, or the ACK of a 2xx:
// its route set must lead through us, by a token of the phone's own, and then
// on to an S-CSCF, which knows whether there is such a dialog and is told whose
// phone it is, so that it knows whether it is in it. refused is the status to
// answer, 0 for none.
func (c *CSCF) dialogFromPhone(m *sipmsg.Message, from transaction.Peer) (refused int) {
	own, ok := c.popOwn(m)
	if !ok {
		return 403
	}
	b := c.table.binding(own.Binding)
	switch {
	case b == nil && c.table.known(from.Flow, time.Now()):
		return 481 // its phone, and all its dialogs, are forgotten
	case b == nil || !b.sends(from.Flow) && !c.table.owns(from.Flow, b.AOR):
		return 403 // the token of somebody else's dialog
	}
	next, ok := c.nextToken(m)
	if g, known := c.core.State().Group(next.Group); !ok || next.Mode != token.Dialog || !known || g.Kind != state.SCSCF {
		return 403 // no phone may skip the S-CSCF, or begin a dialog in its middle
	}
	cleanRequestFromPhone(m)
	m.Add(sipmsg.PAssertedIdentity, "<"+b.Identities[0].URI+">")
	return 0
}

// popOwn removes the Route entries that led here: those of the phone's
// outbound proxy, and then the one with our token. Where a strict router has
// put that into the Request-URI, the last Route is put back in its place
// (RFC 3261 §16.4).
func (c *CSCF) popOwn(m *sipmsg.Message) (token.Token, bool) {
	if own, ok := c.mine(m.RequestURI()); ok {
		return own, restoreTarget(m)
	}
	for {
		top, ok := m.TopRoute()
		if !ok {
			return token.Token{}, false
		}
		if own, ok := c.mine(top.URI); ok {
			m.Pop(sipmsg.Route)
			return own, true
		}
		if !c.entry(top.URI) {
			return token.Token{}, false
		}
		m.Pop(sipmsg.Route)
	}
}

// restoreTarget makes the last Route the Request-URI; false if there is none
// that can be.
func restoreTarget(m *sipmsg.Message) bool {
	routes := slices.Collect(m.Elements(sipmsg.Route))
	if len(routes) == 0 {
		return false
	}
	last, err := sipmsg.ParseNameAddr(routes[len(routes)-1])
	if err != nil {
		return false
	}
	m.SetRequestURI(last.URI)
	m.Remove(sipmsg.Route)
	if routes = routes[:len(routes)-1]; len(routes) > 0 {
		m.Add(sipmsg.Route, strings.Join(routes, ", "))
	}
	return true
}

// nextToken reads the token of the top Route.
func (c *CSCF) nextToken(m *sipmsg.Message) (token.Token, bool) {
	top, ok := m.TopRoute()
	if !ok {
		return token.Token{}, false
	}
	u, err := sipmsg.ParseURI(top.URI)
	if err != nil {
		return token.Token{}, false
	}
	return c.cfg.Sealer.Open(u.User)
}

// toSCSCF is the way of a phone's request.
func (c *CSCF) toSCSCF(m *sipmsg.Message) (transaction.Peer, error) {
	return c.core.Route(state.SCSCF, m)
}

// forwardFromPhone sends a phone's request on; what comes back is cleaned.
func (c *CSCF) forwardFromPhone(r *transaction.Request, m *sipmsg.Message) {
	nexthop.Send(r, nexthop.Hop{
		Message: m,
		Route:   c.toSCSCF,
		Response: func(_ *transaction.Request, _ *transaction.Target, m *sipmsg.Message) transaction.Verdict {
			cleanTowardsPhone(m)
			return transaction.Pass
		},
		Lost: func(err error) {
			c.log.Warn("route a request", "flow", r.From.Flow, "err", err)
			if r.Message.ToTag() == "" {
				restore(r)
			} else {
				r.Reply(504, "", nil)
			}
		},
	})
}

// restoration tells a phone to register again (TS 24.229 §7.6, §5.2.6.3.9).
const restoration = `<?xml version="1.0" encoding="UTF-8"?>
<ims-3gpp version="1"><alternative-service><type>restoration</type><reason>The serving node cannot be reached</reason><action>initial-registration</action></alternative-service></ims-3gpp>
`

// restore answers for an S-CSCF that cannot be reached.
func restore(r *transaction.Request) {
	r.Reply(504, "", func(resp *sipmsg.Message) { resp.SetBody(imsBody, []byte(restoration)) })
}

const imsBody = "application/3gpp-ims+xml"

const alternative = `<?xml version="1.0" encoding="UTF-8"?>
<ims-3gpp version="1"><alternative-service><type>emergency</type><reason>Emergency calls are not handled here</reason></alternative-service></ims-3gpp>
`

// emergency reports whether a Request-URI asks for an emergency service
// (RFC 5031).
func emergency(uri string) bool {
	const sos = "urn:service:sos"
	return len(uri) >= len(sos) && strings.EqualFold(uri[:len(sos)], sos) &&
		(len(uri) == len(sos) || uri[len(sos)] == '.')
}

// alternativeService sends an emergency call elsewhere, registered or not: no
// emergency service is connected (TS 24.229 §5.2.10).
func (c *CSCF) alternativeService(r *transaction.Request) {
	r.ReplyStateless(380, "", func(resp *sipmsg.Message) { resp.SetBody(imsBody, []byte(alternative)) })
}

// toMyself reports whether a request is for the P-CSCF and not for anybody
// behind it.
func (c *CSCF) toMyself(m *sipmsg.Message) bool {
	for v := range m.Elements(sipmsg.Route) {
		if a, err := sipmsg.ParseNameAddr(v); err != nil || !c.entry(a.URI) {
			return false
		}
	}
	return m.ToTag() == "" && c.entry(m.RequestURI())
}

// options answers phones that ask whether we are there (RFC 3261 §11.2).
func (c *CSCF) options(r *transaction.Request) {
	r.ReplyStateless(200, "", func(resp *sipmsg.Message) {
		resp.Add(sipmsg.Allow, "INVITE, ACK, CANCEL, BYE, OPTIONS, REGISTER, MESSAGE, SUBSCRIBE, NOTIFY, PUBLISH, REFER, INFO, PRACK, UPDATE")
		resp.Add(sipmsg.Supported, "path")
	})
}
