package phone

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/emiago/sipgo/sip"
	"github.com/icholy/digest"

	"bellwether/cscf/aka"
)

// attempts is how often a request is sent with fresh credentials before the
// refusal is believed: once for the challenge, once for a stale nonce, or for
// each of two challenges that the SIM cannot take (TS 24.229 §5.1.1.5.3).
const attempts = 2

const akaMD5 = "AKAv1-MD5"

// credentials are what a phone proves itself with: a password, a SIM or both.
type credentials struct {
	user     string
	password string
	sim      *aka.SIM // nil: none
}

// authorization answers digest challenges (RFC 3261 §22, RFC 7616, RFC 8760)
// with MD5, SHA-256 or, if there is a SIM, AKA (RFC 3310), which comes first.
// It offers the answer to a password's challenge again while that lasts.
// The zero value has no challenge yet.
type authorization struct {
	challenge *digest.Challenge
	header    string // "Authorization" or "Proxy-Authorization"
	count     int    // uses of the nonce
	tried     int    // challenges since the last success

	// Of an AKA challenge.
	res     []byte // the SIM's answer; nil: it has none
	auts    string // base64, to a challenge that is not fresh; "" otherwise
	failure error  // why the SIM has no answer: aka.ErrSync, aka.ErrMAC
}

// apply adds credentials to req if there was a challenge.
func (a *authorization) apply(req *sip.Request, c credentials) {
	if a.challenge == nil {
		return
	}
	a.count++
	byHash, password := *a.challenge, c.password
	if byHash.Algorithm == akaMD5 {
		byHash.Algorithm, password = "MD5", string(a.res) // of no SIM: the empty password (RFC 3310 §3.4)
	}
	cred, err := digest.Digest(&byHash, digest.Options{
		Method: string(req.Method), URI: req.Recipient.String(),
		Username: c.user, Password: password, Count: a.count,
	})
	if err != nil {
		return // cannot be: again takes only challenges that can be answered
	}
	cred.Algorithm = a.challenge.Algorithm
	if errors.Is(a.failure, aka.ErrMAC) {
		cred.Response = "" // says so (TS 24.229 §5.1.1.5.3)
	}
	value := cred.String()
	if a.auts != "" {
		value += `, auts="` + a.auts + `"`
	}
	req.AppendHeader(sip.NewHeader(a.header, value))
}

// again takes in a response and reports whether the request should be sent
// once more with new credentials.
func (a *authorization) again(res *sip.Response, c credentials) bool {
	var from string
	switch res.StatusCode {
	case 401:
		from, a.header = "WWW-Authenticate", "Authorization"
	case 407:
		from, a.header = "Proxy-Authenticate", "Proxy-Authorization"
	default:
		if a.tried = 0; a.challenge != nil && a.challenge.Algorithm == akaMD5 {
			a.challenge = nil // each authentication has a challenge of its own
		}
		if res.IsSuccess() {
			a.failure = nil
		}
		return false
	}
	var best *digest.Challenge
	for _, h := range res.GetHeaders(from) {
		o, err := challenge(h.Value())
		if err == nil && (best == nil || c.rank(o) > c.rank(best)) && c.rank(o) > 0 {
			best = o
		}
	}
	// A second challenge to the same nonce says that the secret is wrong, unless
	// it was no answer that was given.
	wrong := best != nil && a.challenge != nil && a.tried > 0 && !best.Stale && a.failure == nil
	if best == nil || wrong || a.tried >= attempts {
		a.challenge, a.tried = nil, 0
		return false
	}
	a.challenge, a.count = best, 0
	a.res, a.auts, a.failure = nil, "", nil
	if best.Algorithm == akaMD5 {
		a.ask(c.sim)
	}
	a.tried++
	return true
}

// rank orders the challenges that the credentials can answer; 0: they cannot.
func (c credentials) rank(o *digest.Challenge) int {
	switch {
	case o.Algorithm == akaMD5:
		if c.sim == nil {
			return 0
		}
		return 3
	case c.sim != nil && c.password == "":
		return 0
	case o.Algorithm == "SHA-256":
		return 2
	}
	return 1
}

// ask has the SIM answer the challenge (RFC 3310 §3.2): the nonce begins with
// RAND and AUTN.
func (a *authorization) ask(sim *aka.SIM) {
	nonce, err := base64.StdEncoding.DecodeString(a.challenge.Nonce)
	if err != nil || len(nonce) < 32 {
		a.failure = fmt.Errorf("nonce of %d bytes: %w", len(nonce), aka.ErrMAC) // RAND and AUTN are not there
		return
	}
	rand := [16]byte(nonce)
	r, auts, err := sim.Challenge(rand, [16]byte(nonce[16:]))
	a.res, a.failure = r.RES, err
	if errors.Is(err, aka.ErrSync) {
		a.auts = base64.StdEncoding.EncodeToString(auts[:])
	}
}

// challenge parses one that can be answered.
func challenge(s string) (*digest.Challenge, error) {
	c, err := digest.ParseChallenge(s)
	if err != nil {
		return nil, err
	}
	if c.Algorithm = strings.ToUpper(c.Algorithm); strings.EqualFold(c.Algorithm, akaMD5) {
		c.Algorithm = akaMD5
	}
	for i := range c.QOP {
		c.QOP[i] = strings.TrimSpace(c.QOP[i])
	}
	switch c.Algorithm {
	case "", "MD5", "SHA-256", akaMD5:
	default:
		return nil, fmt.Errorf("challenge of algorithm %q", c.Algorithm)
	}
	if len(c.QOP) > 0 && !c.SupportsQOP("auth") {
		return nil, fmt.Errorf("challenge of qop %v", c.QOP)
	}
	return c, nil
}
