package pcscf

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/cscf/sipmsg"
	"bellwether/ha"
)

// binding is one phone of one public identity: the contacts that it registered
// and the flow that leads to it. It is never changed, only replaced, so it may
// be read without a lock. Its strings are its own.
type binding struct {
	ID           uint64      `cbor:"1,keyasint"`
	AOR          string      `cbor:"2,keyasint"` // canonical identity of the REGISTER's To
	Flow         sipmsg.Flow `cbor:"3,keyasint"`
	Contacts     []string    `cbor:"4,keyasint"` // URIs as registered
	ServiceRoute []string    `cbor:"5,keyasint"`
	Identities   []identity  `cbor:"6,keyasint"` // implicit registration set less the barred ones, default first
	Expires      time.Time   `cbor:"7,keyasint"`
	// Gone: the registration ended and only dialogs may use the flow.
	Gone bool `cbor:"8,keyasint,omitempty"`
}

// identity is an entry of P-Associated-URI.
type identity struct {
	URI string `cbor:"1,keyasint"` // as the S-CSCF wrote it
	AOR string `cbor:"2,keyasint"` // canonical
}

// asserted finds the identity of that canonical form.
func (b *binding) asserted(aor string) (identity, bool) {
	for _, id := range b.Identities {
		if id.AOR == aor {
			return id, true
		}
	}
	return identity{}, false
}

// live reports whether b is a registration at t.
func (b *binding) live(t time.Time) bool { return !b.Gone && t.Before(b.Expires) }

// has reports whether a contact URI is one of the binding's.
func (b *binding) has(uri string) bool {
	for _, own := range b.Contacts {
		if sameURI(own, uri) {
			return true
		}
	}
	return false
}

func sameURI(a, b string) bool {
	if a == b {
		return true
	}
	u, err := sipmsg.ParseURI(a)
	if err != nil {
		return false
	}
	v, err := sipmsg.ParseURI(b)
	return err == nil && u.Equal(v)
}

// bindingID hashes the identity and what tells its phones apart: the instance
// and reg-id where the phone names them (RFC 5626 §4.1), else its contact.
func bindingID(aor string, contact sipmsg.NameAddr) uint64 {
	device, ok := contact.Params.Value("+sip.instance")
	if ok {
		reg, _ := contact.Params.Value("reg-id")
		device += ";" + reg
	} else if u, err := sipmsg.ParseURI(contact.URI); err == nil {
		transport, _ := u.Params.Value("transport")
		device = u.AOR() + ":" + strconv.Itoa(u.Port) + ";" + transport
	} else {
		device = contact.URI
	}
	sum := sha256.Sum256([]byte(aor + "\x00" + device))
	return max(binary.BigEndian.Uint64(sum[:]), 1) // 0 names no binding
}

// recordVersion is the version of stored bindings that is written.
const recordVersion = 1

type record struct {
	V       int     `cbor:"0,keyasint"`
	Binding binding `cbor:"1,keyasint"`
}

var encoding = must(cbor.EncOptions{Time: cbor.TimeUnixMicro}.EncMode())

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // only wrong options reach this, at start
	}
	return v
}

const keyPrefix = "binding/"

func (b *binding) key() string { return keyPrefix + fmt.Sprintf("%016x", b.ID) }

func (b *binding) encode() ([]byte, error) {
	return encoding.Marshal(record{V: recordVersion, Binding: *b})
}

func decodeBinding(r ha.Record) (*binding, error) {
	var rec record
	if err := cbor.Unmarshal(r.Value, &rec); err != nil {
		return nil, fmt.Errorf("decode binding: %w", err)
	}
	b := &rec.Binding
	switch {
	case rec.V != recordVersion:
		return nil, fmt.Errorf("decode binding: version %d is not known", rec.V)
	case b.AOR == "" || b.ID == 0 || len(b.Identities) == 0 || r.Key != b.key():
		return nil, fmt.Errorf("decode binding: incomplete, or under the key of another")
	}
	return b, nil
}
