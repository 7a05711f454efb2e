// Package digest is the server's side of SIP digest authentication (RFC 3261
// §22, RFC 7616, RFC 8760) and of its use with a SIM (RFC 3310): challenges, the
// check of credentials, and the record of which nonce counts of a user were
// used.
//
// Nonces verify themselves: they carry their time and their server, and are
// signed with a key derived from the cluster's secret. A challenge therefore
// creates no state. Only the server that keeps a user's [Uses] can tell a replay,
// so a nonce is good at its own server alone: what answers another's challenge is
// challenged again, with stale=true.
//
// The nonce of an AKA challenge is its RAND and AUTN, made and recognised by the
// home network's authentication centre; here it is only carried.
//
// Counts of a nonce must grow from one use to the next: a request that was
// overtaken by a later one is challenged again, with stale=true, like a replay.
//
// The package knows MD5, SHA-256 and AKAv1-MD5 with qop=auth. It does not fetch
// secrets, does not speak SIP beyond the two header values, and does not decide
// what a failed check leads to.
//
// Failure modes: credentials that are incomplete, not well formed or longer
// than anybody needs are an error of Parse, before anything is computed from
// them.
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

// AKAv1MD5 takes a SIM's RES in the place of a password, and MD5 (RFC 3310
// §3.1).
const AKAv1MD5 Algorithm = "AKAv1-MD5"

// Algorithms lists what a Server can challenge with by itself, best first.
var Algorithms = []Algorithm{SHA256, MD5}

const scheme = "Digest"

// ErrScheme means that an Authorization value is of another scheme than Digest.
var ErrScheme = errors.New("parse credentials: scheme is not Digest")

// errCredentials means that credentials lack what RFC 7616 §3.4 demands.
var errCredentials = errors.New("parse credentials: incomplete or malformed")

// Credentials are the fields of an Authorization header (RFC 7616 §3.4).
type Credentials struct {
	Username, Realm, Nonce, URI, Response string
	Algorithm                             Algorithm // MD5 where none was written
	QOP, CNonce, NC                       string    // QOP "" : RFC 2069 style
	Count                                 uint32    // NC as a number
	AUTS                                  string    // base64: the SIM asks for resynchronisation (RFC 3310 §3.4)
}

// The longest fields that are taken, in bytes. Nonces of ours have 56 or 44,
// responses at most 64 characters.
const (
	maxName     = 255 // user name and realm, as in the cluster state
	maxField    = 256
	maxURI      = 1024
	maxResponse = 128
)

// Parse reads the value of an Authorization header. The error is ErrScheme for
// another scheme. Empty nonce and response, as an IMS phone sends them in its
// first REGISTER (TS 24.229 §5.1.1.2), are no error.
func Parse(value string) (Credentials, error) {
	if name := strings.TrimLeft(value, " \t"); len(name) < len(scheme) || !strings.EqualFold(name[:len(scheme)], scheme) {
		return Credentials{}, ErrScheme
	}
	found, params, err := sipmsg.ParseAuth(value)
	if err != nil {
		return Credentials{}, err
	}
	if !strings.EqualFold(found, scheme) {
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
			for _, a := range []Algorithm{SHA256, MD5, AKAv1MD5} {
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
		case "auts":
			c.AUTS = v
		}
	}
	for _, f := range []struct {
		value string
		limit int
	}{
		{c.Username, maxName}, {c.Realm, maxName}, {c.Nonce, maxField}, {c.URI, maxURI}, {c.Response, maxResponse},
		{string(c.Algorithm), maxField}, {c.QOP, maxField}, {c.CNonce, maxField}, {c.AUTS, maxField},
	} {
		if len(f.value) > f.limit {
			return Credentials{}, errCredentials
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
	case MD5, AKAv1MD5:
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
// MAC (10). Time and server are masked, so that nobody learns from nonces which
// of them come from one server.
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

// mask hides time and server in a nonce, or shows them again.
func (s *Server) mask(raw []byte) {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte("mask"))
	mac.Write(raw[serverEnd:bodySize])
	subtle.XORBytes(raw[:serverEnd], raw[:serverEnd], mac.Sum(nil))
}

func (s *Server) nonce(realm string, now time.Time) string {
	var b [8 + nonceBytes]byte
	raw := b[8-timeSize:][:nonceBytes] // the clock's upper two bytes are left out
	binary.BigEndian.PutUint64(b[:8], uint64(now.UnixMilli()))
	binary.BigEndian.PutUint32(raw[timeSize:serverEnd], s.server)
	rand.Read(raw[serverEnd:bodySize])
	s.mask(raw)
	copy(raw[bodySize:], s.sign(raw[:bodySize], realm))
	return hex.EncodeToString(raw)
}

// Origin tells which server of the cluster made a nonce, and when; false for any
// other text.
func (s *Server) Origin(nonce, realm string) (server uint32, made time.Time, ok bool) {
	var raw [nonceBytes]byte
	if len(nonce) != 2*nonceBytes {
		return 0, made, false
	}
	if _, err := hex.Decode(raw[:], []byte(nonce)); err != nil {
		return 0, made, false
	}
	if subtle.ConstantTimeCompare(s.sign(raw[:bodySize], realm), raw[bodySize:]) != 1 {
		return 0, made, false
	}
	s.mask(raw[:])
	var ms [8]byte
	copy(ms[8-timeSize:], raw[:timeSize])
	return binary.BigEndian.Uint32(raw[timeSize:serverEnd]), time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:]))), true
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
	if c.Algorithm == AKAv1MD5 || !s.proves(c, method, ha1) {
		return Wrong
	}
	server, made, ok := s.Origin(c.Nonce, c.Realm)
	if !ok || server != s.server {
		return Stale
	}
	return s.use(c, made, s.lifetime, uses, now)
}

// proves reports whether the credentials were computed with a secret.
func (s *Server) proves(c Credentials, method, ha1 string) bool {
	want := c.Expected(method, ha1)
	got := strings.ToLower(c.Response)
	equal := subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
	// Anybody can compute what belongs to no secret.
	return equal && want != "" && ha1 != "" && (c.QOP != "" || s.withoutQOP)
}

// use notes the use of a nonce in credentials that are proved.
func (s *Server) use(c Credentials, made time.Time, lifetime time.Duration, uses *Uses, now time.Time) Verdict {
	if now.Sub(made) > lifetime || made.Sub(now) > skew {
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
