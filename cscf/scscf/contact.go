package scscf

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"bellwether/cscf/sipmsg"
)

// contact is one phone of a user: an address and how to get there. Its strings
// are its own.
type contact struct {
	Set     int       `cbor:"1,keyasint"` // implicit registration set that it serves
	URI     string    `cbor:"2,keyasint"` // as registered
	Params  string    `cbor:"3,keyasint"` // of the Contact header, less expires
	Q       int       `cbor:"4,keyasint"` // thousandths
	CallID  string    `cbor:"5,keyasint"`
	CSeq    uint32    `cbor:"6,keyasint"`
	Expires time.Time `cbor:"7,keyasint"`
	Path    []string  `cbor:"8,keyasint"`
}

// Limits of what a phone may have stored, in bytes.
const (
	maxContactURI    = 1024
	maxContactParams = 1024
	maxCallID        = 512
	maxPath          = 8 // entries
)

// maxWishes bounds the contacts of one REGISTER: comparing them costs their
// square.
func (c *CSCF) maxWishes() int { return max(32, 2*c.cfg.MaxContacts) }

// wish is what a REGISTER asks for one contact.
type wish struct {
	contact
	lifetime time.Duration // 0: remove
}

// refusal is the answer to a REGISTER that cannot be granted.
type refusal struct {
	status int
	reason string
}

func refuse(status int, reason string) *refusal { return &refusal{status, reason} }

// wishes reads the contacts of a REGISTER; all means "*", that every contact
// shall be removed (RFC 3261 §10.3).
func (c *CSCF) wishes(m *sipmsg.Message) (list []wish, all bool, no *refusal) {
	otherwise := c.intervals().Default
	header := otherwise
	if v, ok := m.Value(sipmsg.Expires); ok {
		header = lifetime(v, header)
	}
	for v := range m.Elements(sipmsg.Contact) {
		if strings.TrimSpace(v) == "*" {
			if all {
				return nil, false, refuse(400, "Contact * Not Alone or Without Expires 0")
			}
			all = true
			continue
		}
		a, err := sipmsg.ParseNameAddr(v)
		if err != nil {
			return nil, false, refuse(400, "Malformed Contact")
		}
		u, err := sipmsg.ParseURI(a.URI)
		if err != nil || u.Scheme != "sip" && u.Scheme != "sips" || len(a.URI) > maxContactURI || len(a.Params) > maxContactParams {
			return nil, false, refuse(400, "Unusable Contact")
		}
		if c.ours(u) {
			return nil, false, refuse(400, "Unusable Contact")
		}
		w := wish{contact: contact{URI: a.URI, Params: string(a.Params.Without("expires")), Q: 1000}, lifetime: header}
		if text, ok := a.Params.Value("expires"); ok {
			w.lifetime = lifetime(text, otherwise)
		}
		if text, ok := a.Params.Value("q"); ok {
			if w.Q, ok = quality(text); !ok {
				return nil, false, refuse(400, "Malformed q")
			}
		}
		if list = append(list, w); len(list) > c.maxWishes() {
			return nil, false, refuse(403, "Too Many Contacts")
		}
	}
	if all && (len(list) > 0 || header != 0) {
		return nil, false, refuse(400, "Contact * Not Alone or Without Expires 0")
	}
	return list, all, nil
}

// ours reports whether a URI names an entry of the cluster, which is no phone:
// requests for it would come back to us. Names are not looked up.
func (c *CSCF) ours(u sipmsg.URI) bool {
	addr, ok := u.HostPort()
	if !ok {
		return false
	}
	at := addr.Addr().Unmap()
	for n := range c.core.State().Nodes() {
		if (at == n.Service || at == n.Service6) && (addr.Port() == n.P || addr.Port() == n.I || addr.Port() == n.S) {
			return true
		}
	}
	return false
}

// lifetime reads delta-seconds; a malformed value means the default (RFC 3261
// §10.3 step 7, §20.19), one that is too large the largest.
func lifetime(text string, otherwise time.Duration) time.Duration {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return otherwise
	}
	return time.Duration(n) * time.Second
}

// quality reads a q value as thousandths (RFC 3261 §25.1, qvalue).
func quality(text string) (int, bool) {
	whole, part, _ := strings.Cut(text, ".")
	if whole != "0" && whole != "1" || len(part) > 3 {
		return 0, false
	}
	n := 0
	for i := range 3 {
		n *= 10
		if i < len(part) {
			if part[i] < '0' || part[i] > '9' {
				return 0, false
			}
			n += int(part[i] - '0')
		}
	}
	if whole == "1" {
		return 1000, n == 0
	}
	return n, true
}

// same reports whether two contacts are the same phone: by instance and
// reg-id where both name them (RFC 5626 §6); by instance where neither names a
// reg-id, since a phone that cannot register twice has only moved, and its
// P-CSCF knows one way to it; else by the URI (RFC 3261 §10.3, §19.1.4).
func (a *contact) same(b *contact) bool {
	p, q := sipmsg.Params(a.Params), sipmsg.Params(b.Params)
	i, ok := p.Value("+sip.instance")
	j, also := q.Value("+sip.instance")
	r, outbound := p.Value("reg-id")
	s, alsoOutbound := q.Value("reg-id")
	switch {
	case !ok || !also || outbound != alsoOutbound:
	case outbound:
		return i == j && r == s
	case i == j:
		return true
	}
	if a.URI == b.URI {
		return true
	}
	u, err := sipmsg.ParseURI(a.URI)
	if err != nil {
		return false
	}
	v, err := sipmsg.ParseURI(b.URI)
	return err == nil && u.Equal(v)
}

// target is the Request-URI that reaches the contact: headers are for other
// places (RFC 3261 §19.1.1).
func (a *contact) target() string {
	u, err := sipmsg.ParseURI(a.URI)
	if err != nil || u.Headers == "" {
		return a.URI
	}
	u.Headers = ""
	return u.String()
}

// own makes the strings of a contact independent of the request.
func (a contact) own() contact {
	a.URI, a.Params, a.CallID = strings.Clone(a.URI), strings.Clone(a.Params), strings.Clone(a.CallID)
	return a
}

// header writes a contact as in the 200 to REGISTER.
func (a *contact) header(now time.Time) string {
	left := (a.Expires.Sub(now) + time.Second - 1) / time.Second
	return "<" + a.URI + ">" + a.Params + ";expires=" + strconv.Itoa(int(max(left, 0)))
}

// merge applies the wishes of a REGISTER for an implicit registration set to
// the contacts of a user (RFC 3261 §10.3 steps 6 and 7) and returns the new
// ones; old does not change. A REGISTER that came before, or is repeated,
// changes nothing: the repeat is answered like the first, an older one refused.
func (c *CSCF) merge(old []contact, list []wish, all bool, from contact, now time.Time) ([]contact, *refusal) {
	before := slices.DeleteFunc(slices.Clone(old), func(a contact) bool { return !now.Before(a.Expires) })
	next := slices.Clone(before)
	repeated := false
	// order checks that the REGISTER is newer than what set a contact.
	order := func(a *contact) *refusal {
		switch {
		case a.CallID != from.CallID || from.CSeq > a.CSeq:
		case from.CSeq == a.CSeq:
			repeated = true
		default:
			return refuse(500, "REGISTER Out of Order")
		}
		return nil
	}
	if all {
		for i := range next {
			if next[i].Set == from.Set {
				if no := order(&next[i]); no != nil {
					return nil, no
				}
			}
		}
		if repeated {
			return old, nil
		}
		return slices.DeleteFunc(next, func(a contact) bool { return a.Set == from.Set }), nil
	}
	granted := c.intervals()
	for _, w := range list {
		if w.lifetime != 0 && w.lifetime < granted.Min {
			return nil, refuse(423, "")
		}
		matches := func(a contact) bool { return a.Set == from.Set && a.same(&w.contact) }
		if known := slices.IndexFunc(before, matches); known >= 0 {
			if no := order(&before[known]); no != nil {
				return nil, no
			}
		}
		i := slices.IndexFunc(next, matches)
		a := w.contact.own()
		a.Set, a.CallID, a.CSeq, a.Path = from.Set, from.CallID, from.CSeq, from.Path
		a.Expires = now.Add(min(w.lifetime, granted.Max))
		switch {
		case w.lifetime == 0 && i >= 0:
			next = slices.Delete(next, i, i+1)
		case w.lifetime == 0:
		case i >= 0:
			next[i] = a
		default:
			next = append(next, a)
		}
	}
	if repeated {
		return old, nil
	}
	if len(next) > c.cfg.MaxContacts && len(next) > len(old) {
		return nil, refuse(403, "Too Many Contacts")
	}
	return next, nil
}
