package joining

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/appliance/pki"
)

// Prefix begins every token, and tells its version.
const Prefix = "bwjoin1-"

const (
	maxToken     = 2048 // characters
	maxFounders  = 8
	checksumSize = 4
	secretSize   = 16
	maxName      = 63
)

// ErrNoToken means that a text is not a token, or not the whole of one.
var ErrNoToken = errors.New("this is not a join token")

// Token is what a new machine is told about the cluster that it shall join,
// and its permission to do so, once.
type Token struct {
	ClusterID   string
	Node        string // whom it is for
	Role        string
	Founders    []netip.AddrPort // where it can be used
	Fingerprint [sha256.Size]byte
	secret      [secretSize]byte
}

// String shows everything but the secret.
func (t Token) String() string {
	return fmt.Sprintf("{token for node %s, %s of cluster %s}", t.Node, t.Role, t.ClusterID)
}

// GoString is String: %#v must not show the secret either.
func (t Token) GoString() string { return t.String() }

// Issue writes down a new token in the founder's book and returns its text.
func Issue(b Book, ca *pki.CA, founders []netip.AddrPort, node, role string, good time.Duration, now time.Time) (text string, expires time.Time, err error) {
	secret, err := b.issue(node, role, good, now)
	if err != nil {
		return "", time.Time{}, err
	}
	t := Token{ClusterID: ca.ID, Node: node, Role: role, Founders: founders, Fingerprint: ca.Fingerprint(), secret: secret}
	text, err = t.Text()
	return text, now.Add(good), err
}

// packed is a token's content as it is sent.
type packed struct {
	_           struct{} `cbor:",toarray"`
	ClusterID   string
	Node        string
	Role        string
	Founders    []string
	Fingerprint []byte
	Secret      []byte
}

// strict takes neither indefinite lengths, tags nor more than a little.
var strict = func() cbor.DecMode {
	m, err := cbor.DecOptions{
		IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden, MaxNestedLevels: 4, MaxArrayElements: 16, MaxMapPairs: 16,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField, DupMapKey: cbor.DupMapKeyEnforcedAPF,
	}.DecMode()
	if err != nil {
		panic(err) // only wrong options reach this, at start
	}
	return m
}()

// Text is the token as one word. It holds the secret.
func (t Token) Text() (string, error) {
	p := packed{ClusterID: t.ClusterID, Node: t.Node, Role: t.Role, Fingerprint: t.Fingerprint[:], Secret: t.secret[:]}
	for _, f := range t.Founders {
		p.Founders = append(p.Founders, f.String())
	}
	body, err := cbor.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("write token: %w", err)
	}
	sum := sha256.Sum256(body)
	return Prefix + base64.RawURLEncoding.EncodeToString(append(body, sum[:checksumSize]...)), nil
}

// ParseToken reads what Text wrote; white space around it does not matter.
// What it says is not to be believed before the founder has been asked.
func ParseToken(text string) (Token, error) {
	t, err := parseToken(strings.TrimSpace(text))
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", ErrNoToken, err)
	}
	return t, nil
}

func parseToken(text string) (t Token, err error) {
	body, ours := strings.CutPrefix(text, Prefix)
	if !ours {
		return t, fmt.Errorf("it does not begin with %s", Prefix)
	}
	damaged := errors.New("a part of it is missing or changed; copy the whole line")
	if len(text) > maxToken {
		return t, fmt.Errorf("it is longer than %d characters", maxToken)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(raw) <= checksumSize {
		return t, damaged
	}
	raw, sum := raw[:len(raw)-checksumSize], raw[len(raw)-checksumSize:]
	if want := sha256.Sum256(raw); !bytes.Equal(sum, want[:checksumSize]) {
		return t, damaged
	}
	var p packed
	if err := strict.Unmarshal(raw, &p); err != nil {
		return t, errors.New("its content is not that of a token")
	}
	if len(p.Fingerprint) != len(t.Fingerprint) || len(p.Secret) != len(t.secret) {
		return t, errors.New("its fingerprint or secret has the wrong length")
	}
	for _, s := range []string{p.ClusterID, p.Node, p.Role} {
		if !plain(s) {
			return t, errors.New("a name in it is not a name")
		}
	}
	if len(p.Founders) == 0 || len(p.Founders) > maxFounders {
		return t, errors.New("it names no founder, or too many")
	}
	t = Token{ClusterID: p.ClusterID, Node: p.Node, Role: p.Role, Fingerprint: [sha256.Size]byte(p.Fingerprint), secret: [secretSize]byte(p.Secret)}
	for _, f := range p.Founders {
		a, err := netip.ParseAddrPort(f)
		if err != nil || a.Port() == 0 {
			return Token{}, errors.New("a founder in it is not an address with a port")
		}
		t.Founders = append(t.Founders, a)
	}
	return t, nil
}

// plain reports whether a name is one that can be shown as it is.
func plain(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_') {
			return false
		}
	}
	return true
}
