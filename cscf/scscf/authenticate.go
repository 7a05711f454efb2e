package scscf

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/aka"
	"bellwether/cscf/digest"
	"bellwether/cscf/hss"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// authenticate finds out who sent a REGISTER (TS 24.229 §5.4.1.2) and goes on
// with the private identity, or answers.
//
// Nobody must learn from an answer who is a subscriber: what is said, and what
// is computed for it, is the same for those who are and those who are not. Nor
// do answers to somebody unknown cost memory; a repeated REGISTER is judged
// anew.
func (c *CSCF) authenticate(r *transaction.Request, impu string, then func(impi string)) {
	creds, malformed := credentials(r.Message)
	if malformed && len(creds) == 0 {
		r.ReplyStateless(400, "Malformed Credentials", nil)
		return
	}
	q := hss.MultimediaAuth{IMPU: impu, Server: c.cfg.Group}
	if i := realm(creds, c.cfg.Domain); i >= 0 {
		q.IMPI = creds[i].Username
	}
	q.Sent, q.AUTS = sent(creds, c.cfg.Domain)
	c.ask(r, q, func(a hss.MultimediaAuthAnswer, err error) {
		known := err == nil && (len(a.HA1) > 0 || a.Vector != nil) // a user without a secret is as good as none
		switch {
		case errors.Is(err, hss.ErrUserUnknown), err == nil && !known:
			a = c.stranger(impu)
		case err != nil:
			c.log.Warn("fetch the means to authenticate", "err", err)
			r.Reply(504, "", nil)
			return
		}
		c.judge(r, proof{impu: impu, creds: creds, answer: a, known: known}, then)
	})
}

// ask asks the HSS; where the user name is not that of the public identity's
// owner, anew without it. The owner is not let in by such credentials, but
// challenged as always.
func (c *CSCF) ask(r *transaction.Request, q hss.MultimediaAuth, then func(hss.MultimediaAuthAnswer, error)) {
	hss.Await(r.Layer().Env().Post,
		func(reply func(hss.MultimediaAuthAnswer, error)) { c.cfg.HSS.MultimediaAuth(q, reply) },
		func(a hss.MultimediaAuthAnswer, err error) {
			if errors.Is(err, hss.ErrIdentitiesDontMatch) && q.IMPI != "" {
				c.ask(r, hss.MultimediaAuth{IMPU: q.IMPU, Server: q.Server}, then)
				return
			}
			then(a, err)
		})
}

// credentials reads the digest credentials of a request; those of other
// schemes are skipped. malformed: some that should be digest are not.
func credentials(m *sipmsg.Message) (creds []digest.Credentials, malformed bool) {
	for v := range m.Values(sipmsg.Authorization) {
		cred, err := digest.Parse(v)
		switch {
		case err == nil:
			creds = append(creds, cred)
		case !errors.Is(err, digest.ErrScheme):
			malformed = true
		}
	}
	return creds, malformed
}

// realm finds the credentials for a realm; those for others are skipped
// (RFC 3261 §22.3).
func realm(creds []digest.Credentials, name string) int {
	return slices.IndexFunc(creds, func(c digest.Credentials) bool { return strings.EqualFold(c.Realm, name) })
}

// sent gives the AKA challenge that credentials answer, and the AUTS: those for
// the realm if there are any.
func sent(creds []digest.Credentials, name string) (ch *hss.Challenge, auts *[aka.AUTSSize]byte) {
	for _, cred := range creds {
		random, autn, ok := digest.OpenAKANonce(cred.Nonce)
		home := strings.EqualFold(cred.Realm, name)
		if cred.Algorithm != digest.AKAv1MD5 || !ok || ch != nil && !home {
			continue
		}
		ch, auts = &hss.Challenge{RAND: random, AUTN: autn}, nil
		if s, ok := cred.Resync(); ok {
			auts = &s
		}
		if home {
			break
		}
	}
	return ch, auts
}

// stranger is the answer of an HSS for somebody who is no subscriber. What
// would be asked of them is drawn from what is asked of subscribers, by a keyed
// hash of the identity, so that it stays the same and tells nothing.
func (c *CSCF) stranger(impu string) hss.MultimediaAuthAnswer {
	st := c.core.State()
	mac := hmac.New(sha256.New, st.Secret())
	mac.Write([]byte("schemes of a stranger "))
	mac.Write([]byte(impu))
	set := st.SchemesAt(binary.BigEndian.Uint64(mac.Sum(nil)))
	a := hss.MultimediaAuthAnswer{Realm: c.cfg.Domain, HA1: state.HA1{}}
	for alg, scheme := range map[digest.Algorithm]state.Schemes{digest.MD5: state.DigestMD5, digest.SHA256: state.DigestSHA256} {
		if set&scheme != 0 {
			a.HA1[string(alg)] = "unknown"
		}
	}
	if set&state.AKAv1 != 0 {
		a.Vector = new(aka.Vector)
		for _, b := range [][]byte{a.Vector.RAND[:], a.Vector.AUTN[:], a.Vector.CK[:], a.Vector.IK[:]} {
			rand.Read(b)
		}
		a.Vector.AUTN[6], a.Vector.AUTN[7] = 0x80, 0x00 // the AMF is not encrypted; this is the usual one
	}
	return a
}

// proof is what there is to judge a REGISTER by.
type proof struct {
	impu   string
	creds  []digest.Credentials
	answer hss.MultimediaAuthAnswer
	known  bool // the answer is a subscriber's
}

// chosen is the index of the credentials that count: those for the realm and,
// if there are several, the first that the user has a secret for.
func (p proof) chosen() int {
	first := -1
	for i, cred := range p.creds {
		if !strings.EqualFold(cred.Realm, p.answer.Realm) {
			continue
		}
		if first < 0 {
			first = i
		}
		if p.answer.HA1[string(cred.Algorithm)] != "" || cred.Algorithm == digest.AKAv1MD5 && p.answer.Vector != nil {
			return i
		}
	}
	return first
}

// judge checks the proof. It goes on with a user who is proved, and answers
// everybody else.
func (c *CSCF) judge(r *transaction.Request, p proof, then func(impi string)) {
	i := p.chosen()
	if i < 0 || p.creds[i].Nonce == "" && p.creds[i].Response == "" { // TS 24.229 §5.1.1.2: the first REGISTER of a phone
		c.challenge(r, p, false)
		return
	}
	cred := p.creds[i]
	switch {
	case !c.meant(cred.URI, r.Message.RequestURI()):
		r.ReplyStateless(400, "Digest URI Does Not Match", nil)
		return
	case cred.QOP != "" && !strings.EqualFold(cred.QOP, "auth"): // nobody offered it (RFC 7616 §3.4)
		r.ReplyStateless(400, "Digest qop Not Offered", nil)
		return
	case cred.Algorithm == digest.AKAv1MD5 && cred.Response == "" && cred.AUTS == "":
		// The SIM takes the challenge for somebody else's (TS 24.229
		// §5.1.1.5.3); another one would fare no better.
		if p.known && p.answer.Sent != nil {
			c.log.Info("a SIM refuses challenges: K, OPc or the SIM is another one's", "user", p.answer.IMPI)
		}
		r.ReplyStateless(403, "", nil)
		return
	}
	v, resynced := c.check(r.Message.Method(), p, cred)
	switch {
	case v == digest.Right:
		c.attempts.forget(wrongAnswer, p.impu)
		then(p.answer.IMPI)
	case resynced:
		c.again(r, p, resync, p.impu, false)
	case v == digest.Stale:
		c.again(r, p, staleNonce, cred.Nonce, true)
	default:
		c.rejected.Add(1)
		if p.known && c.tells(time.Now()) {
			c.log.Info("a phone answers a challenge wrongly: another password, or another SIM's keys?", "user", p.answer.IMPI, "identity", p.impu, "algorithm", string(cred.Algorithm))
		}
		c.again(r, p, wrongAnswer, p.impu, false)
	}
}

// check compares credentials with what the HSS knows.
func (c *CSCF) check(method string, p proof, cred digest.Credentials) (v digest.Verdict, resynced bool) {
	now := time.Now()
	a := p.answer
	if !p.known || cred.Username != a.IMPI { // as much work as for others
		return c.cfg.Digest.Check(cred, method, "", new(digest.Uses), now), false
	}
	if cred.Algorithm == digest.AKAv1MD5 {
		switch {
		case a.Resynced:
			return digest.Wrong, true
		case a.Sent == nil:
			return digest.Wrong, false
		}
		made := a.Sent.Made
		if !a.Sent.Own { // nobody here knows whether it was answered before
			made = time.Time{}
		}
		return c.users.check(a.IMPI, now, func(uses *digest.Uses) digest.Verdict {
			return c.cfg.Digest.CheckAKA(cred, method, a.Sent.XRES, made, uses, now)
		}), false
	}
	return c.users.check(a.IMPI, now, func(uses *digest.Uses) digest.Verdict {
		return c.cfg.Digest.Check(cred, method, a.HA1[string(cred.Algorithm)], uses, now)
	}), false
}

// tells reports whether it is time for another line about a wrong answer:
// anybody can cause one, so there is at most one a second.
func (c *CSCF) tells(now time.Time) bool {
	last := c.told.Load()
	return now.UnixNano()-last >= int64(time.Second) && c.told.CompareAndSwap(last, now.UnixNano())
}

// again challenges once more, unless that has led nowhere too often: then a
// phone that would go on for ever hears that it should not (TS 24.229
// §5.4.1.2.3 lets us do either). A right answer is let in all the same, or
// anybody could lock a user out.
func (c *CSCF) again(r *transaction.Request, p proof, why attempt, of string, stale bool) {
	if c.attempts.count(why, of, time.Now()) > maxAttempts {
		r.ReplyStateless(403, "", nil)
		return
	}
	c.challenge(r, p, stale)
}

// challenge answers 401 with a challenge for everything that the user has a
// secret for: SHA-256 before MD5 (RFC 8760 §2.4), and AKA first where the
// phone named it or there is nothing else, otherwise last.
func (c *CSCF) challenge(r *transaction.Request, p proof, stale bool) {
	has := func(alg digest.Algorithm) bool { return p.answer.HA1[string(alg)] != "" }
	values := c.cfg.Digest.Challenges(p.answer.Realm, has, stale, time.Now())
	if v := p.answer.Vector; v != nil {
		sim := digest.AKAChallenge(p.answer.Realm, v.RAND, v.AUTN, v.CK, v.IK, stale)
		if slices.ContainsFunc(p.creds, func(cred digest.Credentials) bool { return cred.Algorithm == digest.AKAv1MD5 }) {
			values = slices.Insert(values, 0, sim)
		} else {
			values = append(values, sim)
		}
	}
	r.ReplyStateless(401, "", func(resp *sipmsg.Message) {
		for _, v := range values {
			resp.Add(sipmsg.WWWAuthenticate, v)
		}
		if v, ok := r.Message.Value(sipmsg.PChargingVector); ok {
			resp.Add(sipmsg.PChargingVector, v)
		}
	})
}

// meant reports whether the digest-uri names what the request is for: the
// Request-URI, or, because proxies change that and phones write what they were
// told to talk to, the home domain or a service address of the cluster, with or
// without a port (RFC 3261 §22.4 item 6, RFC 7616 §3.4.6). Nothing but a
// REGISTER is ever authenticated, so any of them means the same.
func (c *CSCF) meant(digestURI, requestURI string) bool {
	if digestURI == requestURI {
		return true
	}
	u, err := sipmsg.ParseURI(digestURI)
	if err != nil {
		return false
	}
	if u.User == "" && (u.Scheme == "sip" || u.Scheme == "sips") && (strings.EqualFold(strings.TrimSuffix(u.Host, "."), c.cfg.Domain) || c.serviceAddress(u)) {
		return true
	}
	v, err := sipmsg.ParseURI(requestURI)
	return err == nil && u.Equal(v)
}

// serviceAddress reports whether a URI's host is an address of a node.
func (c *CSCF) serviceAddress(u sipmsg.URI) bool {
	at, ok := u.HostPort()
	if !ok {
		return false
	}
	for n := range c.core.State().Nodes() {
		if at.Addr() == n.Service || at.Addr() == n.Service6 {
			return true
		}
	}
	return false
}
