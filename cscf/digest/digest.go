// Package digest is the server's side of SIP digest authentication (RFC 3261
// §22, RFC 7616, RFC 8760): challenges, the check of credentials, and the
// record of which nonce counts of a user were used.
//
// Nonces verify themselves: they carry their time and their server, and are
// signed with a key derived from the cluster's secret. A challenge therefore
// creates no state, and any server of the cluster can go on with the challenge
// of any other. Only the server that keeps a user's [Uses] can tell a replay,
// so after [Handover] a nonce is good at its own server alone.
//
// The package knows MD5 and SHA-256 with qop=auth. It does not fetch secrets,
// does not speak SIP beyond the two header values, and does not decide what a
// failed check leads to. AKA is not part of it.
//
// A [Server] is safe for concurrent use; a [Uses] is not.
package digest

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"strconv"
	"strings"
	"time"

	"bellwether/cscf/sipmsg"
)

// Algorithm is a digest algorithm as the algorithm parameter names it.
type Algorithm string

// The algorithms, best first: the order of challenges (RFC 8760 §2.4).
const (
	SHA256 Algorithm = "SHA-256"
	MD5    Algorithm = "MD5"
)

// Algorithms lists what a Server can challenge with, best first.
var Algorithms = []Algorithm{SHA256, MD5}

// ErrScheme means that an Authorization value is well formed but not Digest.
var ErrScheme = errors.New("parse credentials: scheme is not Digest")

// errCredentials means that credentials lack what RFC 7616 §3.4 demands.
var errCredentials = errors.New("parse credentials: incomplete or malformed")

// Credentials are the fields of an Authorization header (RFC 7616 §3.4).
type Credentials struct {
	Username, Realm, Nonce, URI, Response string
	Algorithm                             Algorithm // MD5 where none was written
	QOP, CNonce, NC                       string    // QOP "" : RFC 2069 style
	Count                                 uint32    // NC as a number
}

// Parse reads the value of an Authorization header. The error is ErrScheme for
// another scheme. Empty nonce and response, as an IMS phone sends them in its
// first REGISTER (TS 24.229 §5.1.1.2), are no error.
func Parse(value string) (Credentials, error) {
	scheme, params, err := sipmsg.ParseAuth(value)
	if err != nil {
		return Credentials{}, err
	}
	if !strings.EqualFold(scheme, "Digest") {
		return Credentials{}, ErrScheme
	}
	c := Credentials{Algorithm: MD5}
	for name, v := range params.All() {
		switch strings.ToLower(name) {
		case "username":
			c.Username = v
		case "realm":
			c.Realm = v
		case "nonce":
			c.Nonce = v
		case "uri":
			c.URI = v
		case "response":
			c.Response = v
		case "algorithm":
			c.Algorithm = Algorithm(v)
			for _, a := range Algorithms {
				if strings.EqualFold(v, string(a)) {
					c.Algorithm = a
				}
			}
		case "qop":
			c.QOP = v
		case "cnonce":
			c.CNonce = v
		case "nc":
			c.NC = v
		}
	}
	if c.NC != "" {
		n, err := strconv.ParseUint(c.NC, 16, 32)
		if err != nil || len(c.NC) != 8 {
			return Credentials{}, errCredentials
		}
		c.Count = uint32(n)
	}
	if c.Username == "" || c.QOP != "" && (c.CNonce == "" || c.NC == "") {
		return Credentials{}, errCredentials
	}
	return c, nil
}

func (a Algorithm) new() hash.Hash {
	switch a {
	case MD5:
		return md5.New()
	case SHA256:
		return sha256.New()
	}
	return nil
}

func hashHex(a Algorithm, parts ...string) string {
	h := a.new()
	if h == nil {
		return ""
	}
	for i, p := range parts {
		if i > 0 {
			h.Write([]byte{':'})
		}
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// HA1 computes H(username:realm:password) in lower-case hex, what an HSS
// stores instead of the password; "" for an unknown algorithm.
func HA1(a Algorithm, username, realm, password string) string {
	return hashHex(a, username, realm, password)
}

// Expected computes the response that belongs to the credentials' other fields
// (RFC 7616 §3.4.1); "" for an algorithm or qop that is not known here.
func (c Credentials) Expected(method, ha1 string) string {
	ha2 := hashHex(c.Algorithm, method, c.URI)
	switch {
	case c.QOP == "":
		return hashHex(c.Algorithm, ha1, c.Nonce, ha2)
	case strings.EqualFold(c.QOP, "auth"):
		return hashHex(c.Algorithm, ha1, c.Nonce, c.NC, c.CNonce, c.QOP, ha2)
	}
	return ""
}

// Config is the policy of a Server.
type Config struct {
	Secret     []byte        // the cluster's, equal on every node
	Server     uint32        // who keeps the Uses: no other server of the cluster has this number
	Lifetime   time.Duration // of a nonce; 0 means DefaultLifetime
	WithoutQOP bool          // accept credentials without qop, each nonce once (RFC 2069 clients)
}

// DefaultLifetime is how long a nonce may be used. A phone that refreshes its
// registration within it needs no second challenge.
const DefaultLifetime = time.Hour

// Handover is how long any server of the cluster accepts a nonce, so that a
// phone whose S-CSCF changes between the challenge and its answer is not
// challenged again.
const Handover = 40 * time.Second

// skew is how far ahead another node's clock may be.
const skew = time.Minute

// Server challenges and checks.
type Server struct {
	key        []byte
	server     uint32
	lifetime   time.Duration
	withoutQOP bool
}

// NewServer returns a Server.
func NewServer(c Config) *Server {
	mac := hmac.New(sha256.New, c.Secret)
	mac.Write([]byte("bellwether digest nonce"))
	s := &Server{key: mac.Sum(nil), server: c.Server, lifetime: c.Lifetime, withoutQOP: c.WithoutQOP}
	if s.lifetime <= 0 {
		s.lifetime = DefaultLifetime
	}
	return s
}

// Lifetime is how long a nonce may be used.
func (s *Server) Lifetime() time.Duration { return s.lifetime }

// Challenges returns WWW-Authenticate values, one per algorithm that has
// allows, the best first; all with the same fresh nonce. realm must be free of
// quotes. stale tells the phone that its password was right.
func (s *Server) Challenges(realm string, has func(Algorithm) bool, stale bool, now time.Time) []string {
	nonce := s.nonce(realm, now)
	var out []string
	for _, a := range Algorithms {
		if !has(a) {
			continue
		}
		v := `Digest realm=` + sipmsg.Quote(realm) + `, nonce="` + nonce + `", algorithm=` + string(a) + `, qop="auth"`
		if stale {
			v += ", stale=true"
		}
		out = append(out, v)
	}
	return out
}

// A nonce is hex of: milliseconds since 1970 (6 bytes), server (4), random (8),
// MAC (10).
const (
	timeSize   = 6
	serverEnd  = timeSize + 4
	bodySize   = serverEnd + 8
	macSize    = 10
	nonceBytes = bodySize + macSize
)

func (s *Server) sign(body []byte, realm string) []byte {
	mac := hmac.New(sha256.New, s.key)
	mac.Write(body)
	mac.Write([]byte(realm))
	return mac.Sum(nil)[:macSize]
}

func (s *Server) nonce(realm string, now time.Time) string {
	var b [8 + nonceBytes]byte
	raw := b[8-timeSize:][:nonceBytes] // the clock's upper two bytes are left out
	binary.BigEndian.PutUint64(b[:8], uint64(now.UnixMilli()))
	binary.BigEndian.PutUint32(raw[timeSize:serverEnd], s.server)
	rand.Read(raw[serverEnd:bodySize])
	copy(raw[bodySize:], s.sign(raw[:bodySize], realm))
	return hex.EncodeToString(raw)
}

// opened returns when a nonce of the cluster was made, and how long it is good
// here; false for any other text.
func (s *Server) opened(nonce, realm string) (made time.Time, lifetime time.Duration, ok bool) {
	var raw [nonceBytes]byte
	if len(nonce) != 2*nonceBytes {
		return made, 0, false
	}
	if _, err := hex.Decode(raw[:], []byte(nonce)); err != nil {
		return made, 0, false
	}
	if subtle.ConstantTimeCompare(s.sign(raw[:bodySize], realm), raw[bodySize:]) != 1 {
		return made, 0, false
	}
	var ms [8]byte
	copy(ms[8-timeSize:], raw[:timeSize])
	lifetime = s.lifetime
	if binary.BigEndian.Uint32(raw[timeSize:serverEnd]) != s.server {
		lifetime = min(lifetime, Handover)
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:]))), lifetime, true
}

// Verdict is the result of a check.
type Verdict uint8

const (
	// Wrong: no proof of the secret. Challenge anew, without stale.
	Wrong Verdict = iota
	// Stale: the secret was right, but the nonce is too old, not ours, or this
	// use of it was seen before. Challenge anew with stale=true.
	Stale
	// Right: authenticated.
	Right
)

// Check verifies credentials against a secret. uses are those of the user; if
// the result is Right, this use is noted in it and the caller keeps it. Without
// a secret, ha1 being "", nothing is right, and it takes the same time.
func (s *Server) Check(c Credentials, method, ha1 string, uses *Uses, now time.Time) Verdict {
	want := c.Expected(method, ha1)
	got := strings.ToLower(c.Response)
	equal := subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
	if !equal || want == "" || ha1 == "" { // anybody can compute what belongs to no secret
		return Wrong
	}
	if c.QOP == "" && !s.withoutQOP {
		return Wrong
	}
	made, lifetime, ok := s.opened(c.Nonce, c.Realm)
	if !ok || now.Sub(made) > lifetime || made.Sub(now) > skew {
		return Stale
	}
	count := c.Count
	if c.QOP == "" {
		count = 1<<32 - 1 // nothing counts the uses of this nonce: it is used up
	}
	if !uses.take(c.Nonce, count, made, now.Add(-s.lifetime)) {
		return Stale
	}
	return Right
}
