package pcscf

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/nexthop"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// maxIdentity is the longest identity that a user may have, in bytes.
const maxIdentity = 512

// register sends a phone's REGISTER on to an I-CSCF (TS 24.229 §5.2.2.1).
func (c *CSCF) register(r *transaction.Request) {
	m := r.Message.Clone()
	aor, ok := addressOfRecord(m, sipmsg.To)
	if !ok {
		r.ReplyStateless(400, "Malformed To", nil)
		return
	}
	if option := unsupported(m); option != "" {
		r.ReplyStateless(420, "", func(resp *sipmsg.Message) { resp.Set(sipmsg.Unsupported, option) })
		return
	}
	reg := registration{aor: strings.Clone(aor), flow: r.From.Flow}
	for v := range m.Elements(sipmsg.Contact) {
		contact, err := sipmsg.ParseNameAddr(v)
		if err != nil {
			continue // "*", or for the S-CSCF to refuse
		}
		if reg.id == 0 {
			reg.id = bindingID(aor, contact)
		}
		reg.contacts = append(reg.contacts, strings.Clone(contact.URI))
	}

	cleanRequestFromPhone(m)
	withoutIntegrity(m)
	m.Remove(sipmsg.Route) // a phone's way in; from here the REGISTER goes to the home network
	m.Push(sipmsg.Path, c.routeURI(reg.id, r.From.Flow))
	m.Add(sipmsg.Require, "path")
	m.Set(sipmsg.PVisitedNetworkID, sipmsg.Quote(c.cfg.Domain))
	m.Set(sipmsg.PChargingVector, c.chargingVector(r.From.Flow))

	nexthop.Send(r, nexthop.Hop{
		Message:  m,
		Route:    func(m *sipmsg.Message) (transaction.Peer, error) { return c.core.Route(state.ICSCF, m) },
		Response: c.registered,
		Any:      &reg,
		Lost: func(err error) {
			c.log.Warn("route a registration", "user", reg.aor, "err", err)
			r.Reply(504, "", nil)
		},
	})
}

// registered handles the answer to a REGISTER (TS 24.229 §5.2.2.1).
func (c *CSCF) registered(r *transaction.Request, t *transaction.Target, m *sipmsg.Message) transaction.Verdict {
	cleanTowardsPhone(m)
	withoutKeys(m)
	if m.Status() != 200 {
		return transaction.Pass
	}
	reg := *t.Any.(*registration)
	now := time.Now()
	for v := range m.Elements(sipmsg.Contact) {
		contact, err := sipmsg.ParseNameAddr(v)
		if err != nil {
			continue
		}
		if left := granted(contact, m); left > 0 {
			reg.granted = append(reg.granted, grant{contact.URI, now.Add(left)})
		}
	}
	reg.serviceRoute = clones(slices.Collect(m.Elements(sipmsg.ServiceRoute)))
	for v := range m.Elements(sipmsg.PAssociatedURI) {
		if a, err := sipmsg.ParseNameAddr(v); err == nil {
			if aor, ok := canonical(a.URI); ok {
				reg.identities = append(reg.identities, identity{URI: strings.Clone(a.URI), AOR: strings.Clone(aor)})
			}
		}
	}
	if len(reg.identities) == 0 { // a home network that names none: the identity itself
		reg.identities = []identity{{URI: reg.aor, AOR: reg.aor}}
	}
	if len(reg.contacts) == 0 {
		reg.id = 0
	}
	post := r.Layer().Env().Post
	c.table.register(reg, now, func(err error) {
		post(func() {
			if err == nil {
				r.Pass(m)
				return
			}
			c.log.Error("store a registration", "user", reg.aor, "err", err)
			r.Reply(500, "Registration Could Not Be Stored", nil)
		})
	})
	return transaction.Hold
}

// granted is how long a contact of a 200 is registered.
func granted(contact sipmsg.NameAddr, m *sipmsg.Message) time.Duration {
	text, ok := contact.Params.Value("expires")
	if !ok {
		text, _ = m.Value(sipmsg.Expires)
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}

// addressOfRecord gives the canonical identity in From or To.
func addressOfRecord(m *sipmsg.Message, h sipmsg.Header) (string, bool) {
	v, _ := m.Value(h)
	a, err := sipmsg.ParseNameAddr(v)
	if err != nil {
		return "", false
	}
	return canonical(a.URI)
}

// canonical gives the identity that a URI names; false if it can name none.
func canonical(uri string) (string, bool) {
	u, err := sipmsg.ParseURI(uri)
	if err != nil || u.User == "" || u.Scheme != "sip" && u.Scheme != "sips" && u.Scheme != "tel" {
		return "", false
	}
	aor := u.AOR()
	return aor, len(aor) <= maxIdentity
}
