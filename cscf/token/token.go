// Package token makes the opaque signed words that our routing headers carry:
// the user part of our Route, Record-Route, Path and Service-Route URIs, and a
// part of our Via branches.
//
// A token names a group and, where one phone is meant, its binding; never a
// connection. Whoever holds the cluster's secret can read it without asking
// anybody, so any front routes any in-dialog message or response. A token is
// signed, not encrypted: it holds nothing that must stay secret.
//
// The package keeps no state besides the key, does no input or output and
// imports no other package of this module. A Sealer is safe for concurrent
// use. Text that is forged, damaged, of another cluster or of another version
// is never opened.
package token

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"hash"
	"strings"
	"sync"
)

// Mode says which header a token was made for. A token opened in another place
// than its mode names must not be used.
type Mode byte

// The modes. The zero Mode is none of them.
const (
	Via     Mode = 1 + iota // in the branch of our Via
	Orig                    // Service-Route: originating leg at the S-CSCF
	Term                    // Route written by the I-CSCF: terminating leg at the S-CSCF
	Dialog                  // Record-Route
	Binding                 // Path, and Record-Route of a P-CSCF: names the phone's binding
	modeEnd
)

// Token is what a routing header of ours says.
type Token struct {
	Mode    Mode
	Group   uint32 // group that the message belongs to; 0 in tokens that name the cluster only
	Binding uint64 // binding within the group; 0 = none
}

const (
	version = 1

	bodySize = 1 + 4 + 8 // version and mode, group, binding
	macSize  = 8
	rawSize  = bodySize + macSize

	// Size is the length of a token's text: base 32 of 21 bytes.
	Size = (rawSize*8 + 4) / 5

	// minSecret is the size in bytes below which a secret could be searched for.
	minSecret = 16

	magic = "z9hG4bK" // RFC 3261 §8.1.1.7
)

// Base 32 in lower case only: proxies and phones may fold the case of a user
// part or a branch.
const alphabet = "abcdefghijklmnopqrstuvwxyz234567"

const notInAlphabet = 0xff

var digits = func() (t [256]byte) {
	for i := range t {
		t[i] = notInAlphabet
	}
	for i := range len(alphabet) {
		t[alphabet[i]] = byte(i)
		t[strings.ToUpper(alphabet)[i]] = byte(i)
	}
	return t
}()

// ErrSecret means that a Sealer was asked for with a secret of less than 16
// bytes, or without a cluster id.
var ErrSecret = errors.New("make token sealer: secret shorter than 16 bytes or no cluster id")

// Sealer makes and opens the tokens of one cluster.
type Sealer struct {
	states sync.Pool // of *state
}

// state is what one Seal or Open works on, kept together so that nothing is
// allocated per call.
type state struct {
	mac hash.Hash
	raw [rawSize]byte
	sum [sha256.Size]byte
}

// NewSealer makes the Sealer of a cluster. Clusters that share a secret by
// mistake still do not accept each other's tokens. The only error is
// [ErrSecret].
func NewSealer(clusterID string, secret []byte) (*Sealer, error) {
	if clusterID == "" || len(secret) < minSecret {
		return nil, ErrSecret
	}
	derive := hmac.New(sha256.New, secret)
	derive.Write([]byte("bellwether routing token\x00"))
	derive.Write([]byte(clusterID))
	key := derive.Sum(nil)
	s := &Sealer{}
	s.states.New = func() any { return &state{mac: hmac.New(sha256.New, key)} }
	return s, nil
}

// sign computes the MAC of the body into st.sum.
func (st *state) sign() []byte {
	st.mac.Reset()
	st.mac.Write(st.raw[:bodySize])
	return st.mac.Sum(st.sum[:0])[:macSize]
}

// Seal gives the text of a token: Size lower-case letters and digits, ending
// in 64 bits of HMAC-SHA256.
func (s *Sealer) Seal(t Token) string { return s.seal(version, t) }

func (s *Sealer) seal(v byte, t Token) string {
	st := s.states.Get().(*state)
	defer s.states.Put(st)
	st.raw[0] = v<<4 | byte(t.Mode)&0x0f
	binary.BigEndian.PutUint32(st.raw[1:], t.Group)
	binary.BigEndian.PutUint64(st.raw[5:], t.Binding)
	copy(st.raw[bodySize:], st.sign())

	var text [Size]byte
	var bits uint32
	have, n := 0, 0
	for _, b := range st.raw {
		bits = bits<<8 | uint32(b)
		for have += 8; have >= 5; n++ {
			have -= 5
			text[n] = alphabet[bits>>have&31]
		}
	}
	text[n] = alphabet[bits<<(5-have)&31]
	return string(text[:])
}

// Open reads a token, in any letter case. It is false for everything that Seal
// of the same cluster, secret and version did not write. It does not allocate.
func (s *Sealer) Open(text string) (Token, bool) {
	if len(text) != Size {
		return Token{}, false
	}
	st := s.states.Get().(*state)
	defer s.states.Put(st)
	var bits uint32
	have, n := 0, 0
	for i := range len(text) {
		d := digits[text[i]]
		if d == notInAlphabet {
			return Token{}, false
		}
		bits = bits<<5 | uint32(d)
		if have += 5; have >= 8 {
			have -= 8
			st.raw[n] = byte(bits >> have)
			n++
		}
	}
	if bits&(1<<have-1) != 0 {
		return Token{}, false // spare bits: not the text that Seal writes
	}
	if subtle.ConstantTimeCompare(st.sign(), st.raw[bodySize:]) != 1 {
		return Token{}, false
	}
	t := Token{
		Mode:    Mode(st.raw[0] & 0x0f),
		Group:   binary.BigEndian.Uint32(st.raw[1:]),
		Binding: binary.BigEndian.Uint64(st.raw[5:]),
	}
	if st.raw[0]>>4 != version || t.Mode == 0 || t.Mode >= modeEnd {
		return Token{}, false
	}
	return t, true
}

// Branch gives the branch of a Via of ours: RFC 3261's magic cookie, the
// token, and what makes the transaction unique.
func Branch(tok, hash string) string { return magic + tok + "." + hash }

// FromBranch gives the token in a branch. Whether it is one of ours, Open says.
func FromBranch(branch string) (tok string, ok bool) {
	if len(branch) < len(magic) || !strings.EqualFold(branch[:len(magic)], magic) {
		return "", false
	}
	tok, _, ok = strings.Cut(branch[len(magic):], ".")
	if !ok || tok == "" {
		return "", false
	}
	return tok, true
}
