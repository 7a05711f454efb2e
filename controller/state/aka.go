package state

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
)

// AKA is what the home network shares with a subscriber's SIM (TS 33.102
// §6.3, TS 35.206). CBOR encodes it; printing, logging and JSON show only the
// AMF.
type AKA struct {
	K   Secret  `cbor:"k"` // 16 bytes
	OPc Secret  `cbor:"o"` // 16 bytes
	AMF [2]byte `cbor:"a"` // authentication management field, 8000 by custom
	// Offset is added to the clock of the sequence numbers, in its unit of 1 ms:
	// DIF of TS 33.102 §C.1.1.3. It is changed by ResyncAKA.
	Offset int64 `cbor:"d,omitempty"`
}

const (
	akaKeySize   = 16
	maxAKAOffset = 1 << 43 // the range of SEQ
)

// String shows the AMF only.
func (a AKA) String() string { return "{AMF " + hex.EncodeToString(a.AMF[:]) + "}" }

// GoString is String.
func (a AKA) GoString() string { return a.String() }

// LogValue is String.
func (a AKA) LogValue() slog.Value { return slog.StringValue(a.String()) }

// Format is String for every verb.
func (a AKA) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(a.String())) }

// MarshalJSON gives the AMF only.
func (a AKA) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"amf": hex.EncodeToString(a.AMF[:])})
}

// UnmarshalJSON refuses: hidden output that is fed back is an error, not a
// lost secret.
func (a *AKA) UnmarshalJSON([]byte) error {
	return fmt.Errorf("read AKA keys from JSON: they are never written there")
}

func (a *AKA) clone() *AKA {
	if a == nil {
		return nil
	}
	b := *a
	b.K, b.OPc = append(Secret(nil), a.K...), append(Secret(nil), a.OPc...)
	return &b
}

// sameSIM reports whether two are the keys of one SIM, whose sequence numbers
// go on.
func (a *AKA) sameSIM(b *AKA) bool {
	return a != nil && b != nil && string(a.K) == string(b.K) && string(a.OPc) == string(b.OPc)
}

// validate never puts a key into its error.
func (a *AKA) validate() error {
	if len(a.K) != akaKeySize {
		return fmt.Errorf("AKA key K has %d bytes, not %d", len(a.K), akaKeySize)
	}
	if len(a.OPc) != akaKeySize {
		return fmt.Errorf("AKA key OPc has %d bytes, not %d", len(a.OPc), akaKeySize)
	}
	return checkAKAOffset(a.Offset)
}

func checkAKAOffset(n int64) error {
	if n < -maxAKAOffset || n > maxAKAOffset {
		return fmt.Errorf("AKA sequence offset %d is out of range", n)
	}
	return nil
}

// ResyncAKA brings a subscriber's sequence numbers in step with those of the
// SIM (TS 33.102 §6.3.5): the offset becomes To if it is From, so that the same
// resynchronisation takes effect once.
type ResyncAKA struct {
	IMPI string `cbor:"i"`
	From int64  `cbor:"f,omitempty"`
	To   int64  `cbor:"t,omitempty"`
}

func (r *ResyncAKA) validate() error {
	if err := checkText("IMPI", r.IMPI, maxName); err != nil {
		return err
	}
	for _, n := range []int64{r.From, r.To} {
		if err := checkAKAOffset(n); err != nil {
			return invalid("subscriber %s: %v", r.IMPI, err)
		}
	}
	return nil
}

func (c *change) resyncAKA(r *ResyncAKA) Result {
	sub, ok := c.subscribers.get(r.IMPI)
	if !ok || sub.AKA == nil {
		return refused(NotFound, "subscriber %s with AKA is unknown", r.IMPI)
	}
	if sub.AKA.Offset != r.From || r.From == r.To {
		return Result{}
	}
	sub.AKA = sub.AKA.clone()
	sub.AKA.Offset = r.To
	c.subscribers.put(r.IMPI, sub)
	return Result{N: 1}
}

// Schemes are the ways in which a subscriber can be authenticated.
type Schemes uint8

// The schemes, as a set of bits.
const (
	DigestMD5 Schemes = 1 << iota
	DigestSHA256
	AKAv1

	allSchemes = 1<<iota - 1
)

// Schemes are those that the subscriber has secrets for.
func (s Subscriber) Schemes() Schemes {
	var out Schemes
	if s.HA1["MD5"] != "" {
		out |= DigestMD5
	}
	if s.HA1["SHA-256"] != "" {
		out |= DigestSHA256
	}
	if s.AKA != nil {
		out |= AKAv1
	}
	return out
}

// SchemesAt gives the schemes of a subscriber drawn from all that have any:
// over all points each set comes as often as among the subscribers. It is what
// somebody who is no subscriber may be shown. Without subscribers it is both
// digests.
func (s *State) SchemesAt(point uint64) Schemes {
	total := 0
	for set := 1; set <= allSchemes; set++ {
		total += s.schemes[set]
	}
	if total == 0 {
		return DigestMD5 | DigestSHA256
	}
	left := int(point % uint64(total))
	for set := 1; set <= allSchemes; set++ {
		if left -= s.schemes[set]; left < 0 {
			return Schemes(set)
		}
	}
	return DigestMD5 | DigestSHA256
}
