package phone

import (
	"fmt"
	"strings"

	"github.com/emiago/sipgo/sip"
	"github.com/icholy/digest"
)

// attempts is how often a request is sent with fresh credentials before the
// refusal is believed: once for the challenge, once for a stale nonce.
const attempts = 2

// authorization answers digest challenges (RFC 3261 §22, RFC 7616, RFC 8760)
// with MD5 or SHA-256, and offers the last one again while it lasts.
// The zero value has no challenge yet.
type authorization struct {
	challenge *digest.Challenge
	header    string // "Authorization" or "Proxy-Authorization"
	count     int    // uses of the nonce
	tried     int    // challenges since the last success
}

// apply adds credentials to req if there was a challenge.
func (a *authorization) apply(req *sip.Request, user, password string) {
	if a.challenge == nil {
		return
	}
	a.count++
	cred, err := digest.Digest(a.challenge, digest.Options{
		Method: string(req.Method), URI: req.Recipient.String(),
		Username: user, Password: password, Count: a.count,
	})
	if err != nil {
		return // cannot be: again takes only challenges that can be answered
	}
	req.AppendHeader(sip.NewHeader(a.header, cred.String()))
}

// again takes in a response and reports whether the request should be sent
// once more with new credentials.
func (a *authorization) again(res *sip.Response) bool {
	var from string
	switch res.StatusCode {
	case 401:
		from, a.header = "WWW-Authenticate", "Authorization"
	case 407:
		from, a.header = "Proxy-Authenticate", "Proxy-Authorization"
	default:
		a.tried = 0
		return false
	}
	var best *digest.Challenge
	for _, h := range res.GetHeaders(from) {
		c, err := challenge(h.Value())
		if err == nil && (best == nil || best.Algorithm != "SHA-256" && c.Algorithm == "SHA-256") {
			best = c
		}
	}
	// A second challenge to the same nonce says that the password is wrong.
	wrong := best != nil && a.challenge != nil && a.tried > 0 && !best.Stale
	if best == nil || wrong || a.tried >= attempts {
		a.challenge, a.tried = nil, 0
		return false
	}
	a.challenge, a.count = best, 0
	a.tried++
	return true
}

// challenge parses one that can be answered.
func challenge(s string) (*digest.Challenge, error) {
	c, err := digest.ParseChallenge(s)
	if err != nil {
		return nil, err
	}
	c.Algorithm = strings.ToUpper(c.Algorithm)
	for i := range c.QOP {
		c.QOP[i] = strings.TrimSpace(c.QOP[i])
	}
	if c.Algorithm != "" && c.Algorithm != "MD5" && c.Algorithm != "SHA-256" || len(c.QOP) > 0 && !c.SupportsQOP("auth") {
		return nil, fmt.Errorf("challenge of algorithm %q and qop %v", c.Algorithm, c.QOP)
	}
	return c, nil
}
