package scscf

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/digest"
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
	creds := credentials(m)
	q := hss.MultimediaAuth{IMPU: impu}
	if i := realm(creds, c.cfg.Domain); i >= 0 {
		q.IMPI = creds[i].Username
	}
	hss.Await(r.Layer().Env().Post,
		func(reply func(hss.MultimediaAuthAnswer, error)) { c.cfg.HSS.MultimediaAuth(q, reply) },
		func(a hss.MultimediaAuthAnswer, err error) {
			if c.authenticated(r, creds, a, err) {
				c.assign(r, a.IMPI, impu, list, all)
			}
		})
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

// credentials reads the digest credentials of a request; those of other
// schemes and malformed ones prove nothing.
func credentials(m *sipmsg.Message) []digest.Credentials {
	var out []digest.Credentials
	for v := range m.Values(sipmsg.Authorization) {
		if cred, err := digest.Parse(v); err == nil {
			out = append(out, cred)
		}
	}
	return out
}

// realm finds the credentials for a realm; those for others are skipped
// (RFC 3261 §22.3).
func realm(creds []digest.Credentials, name string) int {
	return slices.IndexFunc(creds, func(c digest.Credentials) bool { return strings.EqualFold(c.Realm, name) })
}

// authenticated checks the proof. If there is none, or a wrong one, it answers,
// in the same way whether the user exists or not.
func (c *CSCF) authenticated(r *transaction.Request, creds []digest.Credentials, a hss.MultimediaAuthAnswer, err error) bool {
	known := err == nil
	switch {
	case errors.Is(err, hss.ErrUserUnknown), errors.Is(err, hss.ErrIdentitiesDontMatch):
		a = hss.MultimediaAuthAnswer{Realm: c.cfg.Domain}
	case err != nil:
		c.log.Warn("fetch the means to authenticate", "err", err)
		r.Reply(504, "", nil)
		return false
	}
	now := time.Now()
	known = known && len(a.HA1) > 0 // a user without a secret is as good as none
	has := func(alg digest.Algorithm) bool { return !known || a.HA1[string(alg)] != "" }
	challenge := func(stale bool) {
		r.Reply(401, "", func(resp *sipmsg.Message) {
			for _, v := range c.cfg.Digest.Challenges(a.Realm, has, stale, now) {
				resp.Add(sipmsg.WWWAuthenticate, v)
			}
			if v, ok := r.Message.Value(sipmsg.PChargingVector); ok {
				resp.Add(sipmsg.PChargingVector, v)
			}
		})
	}
	i := realm(creds, a.Realm)
	if i < 0 || creds[i].Nonce == "" && creds[i].Response == "" {
		challenge(false)
		return false
	}
	cred := creds[i]
	if !c.meant(cred.URI, r.Message.RequestURI()) {
		r.Reply(400, "Digest URI Does Not Match", nil)
		return false
	}
	ha1 := a.HA1[string(cred.Algorithm)]
	if !known || cred.Username != a.IMPI {
		ha1 = ""
	}
	switch c.users.check(cred, r.Message.Method(), a.IMPI, ha1, now) {
	case digest.Right:
		return true
	case digest.Stale:
		challenge(true)
	default:
		c.rejected.Add(1)
		challenge(false)
	}
	return false
}

// meant reports whether the digest-uri names what the request is for: the
// Request-URI, or the home domain where a proxy on the way changed that
// (RFC 3261 §22.4 item 6, RFC 7616 §3.4.6).
func (c *CSCF) meant(digestURI, requestURI string) bool {
	if digestURI == requestURI {
		return true
	}
	u, err := sipmsg.ParseURI(digestURI)
	if err != nil {
		return false
	}
	if u.User == "" && (u.Scheme == "sip" || u.Scheme == "sips") && strings.EqualFold(u.Host, c.cfg.Domain) {
		return true
	}
	v, err := sipmsg.ParseURI(requestURI)
	return err == nil && u.Equal(v)
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
			case errors.Is(err, hss.ErrUserUnknown), errors.Is(err, hss.ErrIdentitiesDontMatch), err == nil && !ok:
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
