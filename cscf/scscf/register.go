package scscf

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/hss"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// errElsewhere means that the cluster assigned the user to another group.
var errElsewhere = errors.New("not the user's S-CSCF")

// register handles a REGISTER (TS 24.229 §5.4.1): first who it is, from the
// HSS, then the proof, then the contacts.
func (c *CSCF) register(r *transaction.Request) {
	m := r.Message
	to, err := m.To()
	impu, ok := hss.Identity(to.URI)
	if err != nil || !ok {
		r.Reply(400, "Malformed To", nil)
		return
	}
	if list := unsupported(m); list != "" {
		r.Reply(420, "", func(resp *sipmsg.Message) { resp.Set(sipmsg.Unsupported, list) })
		return
	}
	list, all, no := c.wishes(m)
	if no != nil {
		r.Reply(no.status, no.reason, nil)
		return
	}
	c.authenticate(r, impu, func(impi string) { c.assign(r, impi, impu, list, all) })
}

// unsupported lists the options of Require that a registrar here does not know
// (RFC 3261 §8.2.2.3).
func unsupported(m *sipmsg.Message) string {
	var list []string
	for option := range m.Elements(sipmsg.Require) {
		if !strings.EqualFold(option, "path") {
			list = append(list, option)
		}
	}
	return strings.Join(list, ", ")
}

// assign fetches the profile of an authenticated user (TS 24.229 §5.4.1.2.2F)
// and registers.
func (c *CSCF) assign(r *transaction.Request, impi, impu string, list []wish, all bool) {
	if g, ok := c.core.State().Assignment(state.SCSCF, impi); ok && g != c.cfg.Group {
		r.Reply(504, "", nil) // the I-CSCF and we have different news: the next try finds the right one
		return
	}
	q := hss.ServerAssignment{IMPI: impi, IMPU: impu, Server: c.cfg.Group, Type: hss.Registration}
	switch {
	case all || len(list) > 0 && !slices.ContainsFunc(list, func(w wish) bool { return w.lifetime > 0 }):
		q.Type = hss.UserDeregistration
	case c.users.registered(impu):
		q.Type = hss.ReRegistration
	}
	hss.Await(r.Layer().Env().Post,
		func(reply func(hss.ServerAssignmentAnswer, error)) { c.cfg.HSS.ServerAssignment(q, reply) },
		func(a hss.ServerAssignmentAnswer, err error) {
			id, ok := a.Profile.Identity(impu)
			switch {
			case errors.Is(err, hss.ErrUserUnknown), errors.Is(err, hss.ErrIdentitiesDontMatch), err == nil && !ok,
				err == nil && len(a.Profile.Associated(id.Set)) == 0: // barred as a whole
				r.Reply(403, "", nil)
			case err != nil:
				c.log.Warn("fetch a profile", "user", impi, "err", err)
				r.Reply(504, "", nil)
			default:
				c.bind(r, a.Profile, id.Set, list, all)
			}
		})
}

// bind changes the contacts and answers when that is safe.
func (c *CSCF) bind(r *transaction.Request, p hss.Profile, set int, list []wish, all bool) {
	m := r.Message
	number, _ := m.CSeq()
	from := contact{Set: set, CallID: strings.Clone(m.CallID()), CSeq: number}
	for v := range m.Elements(sipmsg.Path) {
		from.Path = append(from.Path, strings.Clone(v))
	}
	adds := slices.ContainsFunc(list, func(w wish) bool { return w.lifetime > 0 })
	switch {
	case len(from.CallID) > maxCallID || len(from.Path) > maxPath:
		r.Reply(400, "Call-ID or Path Too Long", nil)
		return
	case adds && len(from.Path) == 0: // nobody could be reached
		r.Reply(421, "", func(resp *sipmsg.Message) { resp.Add(sipmsg.Require, "path") })
		return
	}
	post := r.Layer().Env().Post
	now := time.Now()
	no := c.users.update(p, now,
		func(old []contact) ([]contact, *refusal) {
			if !all && len(list) == 0 { // a question
				return old, nil
			}
			return c.merge(old, list, all, from, now)
		},
		func(err error) {
			post(func() { c.answer(r, p, set, err) })
		})
	if no != nil {
		r.Reply(no.status, no.reason, func(resp *sipmsg.Message) {
			if no.status == 423 {
				resp.Set(sipmsg.MinExpires, strconv.Itoa(int(c.intervals().Min/time.Second)))
			}
		})
	}
}

// answer is the 200 to a REGISTER whose outcome is durable, or why it is not.
// It tells what is registered now: another REGISTER may have been answered
// meanwhile, and the P-CSCF goes by the last 200 that it sees.
func (c *CSCF) answer(r *transaction.Request, p hss.Profile, set int, err error) {
	switch {
	case errors.Is(err, errElsewhere):
		c.users.drop(p.IMPI)
		r.Reply(504, "", nil)
		return
	case err != nil:
		c.log.Error("store a registration", "user", p.IMPI, "err", err)
		r.Reply(500, "Registration Could Not Be Stored", nil)
		return
	}
	now := time.Now()
	m := r.Message
	r.Reply(200, "", func(resp *sipmsg.Message) {
		for v := range m.Values(sipmsg.Path) {
			resp.Add(sipmsg.Path, v)
		}
		contacts := c.users.bound(p.IMPI, set, now)
		for i := range contacts {
			resp.Add(sipmsg.Contact, contacts[i].header(now))
		}
		if len(contacts) > 0 {
			resp.Add(sipmsg.ServiceRoute, c.orig)
			if ids := p.Associated(set); len(ids) > 0 {
				resp.Add(sipmsg.PAssociatedURI, "<"+strings.Join(ids, ">, <")+">")
			}
		}
		if v, ok := m.Value(sipmsg.PChargingVector); ok {
			resp.Add(sipmsg.PChargingVector, v+";term-ioi="+c.cfg.Domain)
		}
	})
}
