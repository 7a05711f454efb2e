package digest

import (
	"encoding/base64"
	"encoding/hex"
	"time"

	"bellwether/cscf/sipmsg"
)

// AKALifetime is how long an AKA challenge may be answered.
const AKALifetime = 40 * time.Second

// Lengths in bytes of what is in an AKA nonce and in auts.
const (
	akaNonceSize = 32
	autsSize     = 14
)

// AKANonce is the nonce of an AKA challenge (RFC 3310 §3.2): base64 of RAND and
// AUTN, without server data.
func AKANonce(rand, autn [16]byte) string {
	return base64.StdEncoding.EncodeToString(append(rand[:], autn[:]...))
}

// OpenAKANonce gives RAND and AUTN of a nonce that AKANonce may have made;
// false for any other.
func OpenAKANonce(nonce string) (rand, autn [16]byte, ok bool) {
	b, err := base64.StdEncoding.Strict().DecodeString(nonce)
	if err != nil || len(b) != akaNonceSize {
		return rand, autn, false
	}
	rand, autn = [16]byte(b[:16]), [16]byte(b[16:])
	return rand, autn, AKANonce(rand, autn) == nonce // one text for each nonce: its uses are counted
}

// Resync gives the AUTS of credentials that ask for resynchronisation (RFC
// 3310 §3.4); false if they do not.
func (c Credentials) Resync() (auts [autsSize]byte, ok bool) {
	b, err := base64.StdEncoding.DecodeString(c.AUTS)
	if c.Algorithm != AKAv1MD5 || err != nil || len(b) != autsSize {
		return auts, false
	}
	return [autsSize]byte(b), true
}

// AKAChallenge is a WWW-Authenticate value for a vector. The keys are for the
// P-CSCF, which must take them out (TS 24.229 §5.4.1.2.1, §5.2.2.2).
func AKAChallenge(realm string, rand, autn, ck, ik [16]byte, stale bool) string {
	v := `Digest realm=` + sipmsg.Quote(realm) + `, nonce="` + AKANonce(rand, autn) + `", algorithm=` + string(AKAv1MD5) + `, qop="auth"`
	if stale {
		v += ", stale=true"
	}
	return v + `, ck="` + hex.EncodeToString(ck[:]) + `", ik="` + hex.EncodeToString(ik[:]) + `"`
}

// CheckAKA is Check for credentials that answer an AKA challenge made at that
// time. Without the RES of the challenge, res being empty, nothing is right.
func (s *Server) CheckAKA(c Credentials, method string, res []byte, made time.Time, uses *Uses, now time.Time) Verdict {
	ha1 := ""
	if len(res) > 0 {
		ha1 = HA1(MD5, c.Username, c.Realm, string(res))
	}
	if c.Algorithm != AKAv1MD5 || !s.proves(c, method, ha1) {
		return Wrong
	}
	return s.use(c, made, AKALifetime, uses, now)
}
