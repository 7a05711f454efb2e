package pcscf

import (
	"net/netip"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/hss"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// fromCore handles a request that an S-CSCF sends towards a phone (TS 24.229
// §5.2.6.4).
func (c *CSCF) fromCore(r *transaction.Request) {
	m := r.Message.Clone()
	b, refused := c.towardsPhone(m, r.From)
	if refused != 0 {
		r.Reply(refused, "", nil)
		return
	}
	c.ring(r, m, b, c.table.reach(b))
}

// ring sends a request to a phone over a flow. If that is gone, the phone is
// tried once more over a connection to its contact, where it can have one, and
// reached there until it registers again.
func (c *CSCF) ring(r *transaction.Request, m *sipmsg.Message, b *binding, flow sipmsg.Flow) {
	answered := b.called(m)
	r.Forward(transaction.Forward{
		Groups: [][]transaction.Target{{{Message: m.Clone(), To: transaction.Peer{Flow: flow}}}},
		Response: func(_ *transaction.Request, _ *transaction.Target, m *sipmsg.Message) transaction.Verdict {
			c.cleanResponseFromPhone(m, answered)
			return transaction.Pass
		},
		Failed: func(_ *transaction.Request, _ *transaction.Target, status int) {
			if status != 503 {
				return
			}
			if other, ok := reconnect(m, flow); ok {
				c.table.detour(b, other)
				c.ring(r, m, b, other)
				return
			}
			c.table.detour(b, b.Flow)
			r.Reply(430, "", nil)
		},
	})
}

// reconnect is the flow, to be made by the front, that leads to the same phone
// as one that is gone. Only a phone that registered a contact with the very
// address that it came from can be reached so: behind a NAT a connection to it
// leads nowhere, or to somebody else.
func reconnect(m *sipmsg.Message, gone sipmsg.Flow) (sipmsg.Flow, bool) {
	if gone.Transport != sipmsg.TCP || gone.Conn == 0 {
		return sipmsg.Flow{}, false
	}
	if _, further := m.TopRoute(); further {
		return sipmsg.Flow{}, false
	}
	u, err := sipmsg.ParseURI(m.RequestURI())
	if err != nil || u.Scheme != "sip" {
		return sipmsg.Flow{}, false
	}
	if t, ok := u.Params.Value("transport"); ok && !strings.EqualFold(t, "tcp") {
		return sipmsg.Flow{}, false
	}
	at, ok := u.HostPort()
	if !ok || at.Addr().Unmap() != gone.Remote.Addr().Unmap() {
		return sipmsg.Flow{}, false
	}
	gone.Remote, gone.Conn = netip.AddrPortFrom(gone.Remote.Addr(), at.Port()), 0
	return gone, true
}

// called is the identity that a request was for, which the phone's answer shall
// assert; "" if the S-CSCF did not say, as inside dialogs.
func (b *binding) called(m *sipmsg.Message) string {
	v, ok := m.Value(sipmsg.PCalledPartyID)
	if !ok {
		return ""
	}
	if a, err := sipmsg.ParseNameAddr(v); err == nil {
		if u, err := sipmsg.ParseURI(a.URI); err == nil {
			for _, aor := range hss.Identities(u) {
				if as, ok := b.asserted(aor); ok {
					return as.URI
				}
			}
		}
	}
	return b.Identities[0].URI
}

// towardsPhone prepares a request for the phone whose binding our Path or
// Record-Route names; refused is the status to answer, 0 for none. Inside a
// dialog a phone is reached even when its registration has ended.
func (c *CSCF) towardsPhone(m *sipmsg.Message, from transaction.Peer) (b *binding, refused int) {
	switch g, ok := c.core.State().Group(from.Group); {
	case !ok: // newer than our copy of the state
		return nil, 504
	case g.Kind != state.SCSCF:
		return nil, 403
	}
	top, ok := m.TopRoute()
	if !ok {
		return nil, 403
	}
	own, ok := c.mine(top.URI)
	if !ok {
		return nil, 403
	}
	b = c.table.binding(own.Binding)
	if b == nil || m.ToTag() == "" && !b.live(time.Now()) {
		return nil, 480
	}
	m.Pop(sipmsg.Route)
	cleanTowardsPhone(m)
	if m.ToTag() == "" && dialogForming(m.Method()) {
		m.Push(sipmsg.RecordRoute, c.routeURI(b.ID, b.Flow))
		c.table.talks(b.ID)
	}
	return b, 0
}
