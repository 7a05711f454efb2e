package pcscf

import (
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
	answered := b.called(m)
	r.Forward(transaction.Forward{
		Groups: [][]transaction.Target{{{Message: m, To: transaction.Peer{Flow: b.Flow}}}},
		Response: func(_ *transaction.Request, _ *transaction.Target, m *sipmsg.Message) transaction.Verdict {
			c.cleanResponseFromPhone(m, answered)
			return transaction.Pass
		},
	})
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
