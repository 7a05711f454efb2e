package state

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
)

// Subscriber is one IMS subscription (TS 23.228 §4.3): a private identity with
// its public ones and the secrets of its digest password, its SIM or both. What a State returns is shared with it
// and must not be changed.
type Subscriber struct {
	IMPI       string     `cbor:"i" json:"impi"`
	Realm      string     `cbor:"r" json:"realm"`
	Identities []Identity `cbor:"p" json:"identities"`
	HA1        HA1        `cbor:"h,omitempty" json:"ha1,omitempty"`
	AKA        *AKA       `cbor:"a,omitempty" json:"aka,omitempty"`
	// Since is the index of the log entry that added the subscriber: one who was
	// removed and added again is another. Apply sets it.
	Since uint64 `cbor:"n,omitempty" json:"-"`
}

// Identity is a public identity (IMPU). The first identity of a set that is
// not barred is the set's default (TS 23.228 §5.2.1a).
type Identity struct {
	URI    string `cbor:"u" json:"uri"`           // canonical AOR, "sip:..." or "tel:..."
	Set    int    `cbor:"s,omitempty" json:"set"` // implicit registration set
	Barred bool   `cbor:"b,omitempty" json:"barred,omitempty"`
}

// String shows everything but the secrets.
func (s Subscriber) String() string {
	text := fmt.Sprintf("{%s realm %s identities %v ha1 %v", s.IMPI, s.Realm, s.Identities, s.HA1)
	if s.AKA != nil {
		text += " aka " + s.AKA.String()
	}
	return text + "}"
}

// GoString is String.
func (s Subscriber) GoString() string { return s.String() }

// LogValue shows everything but the secrets.
func (s Subscriber) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("impi", s.IMPI), slog.String("realm", s.Realm),
		slog.Any("identities", s.Identities), slog.String("ha1", s.HA1.String())}
	if s.AKA != nil {
		attrs = append(attrs, slog.String("aka", s.AKA.String()))
	}
	return slog.GroupValue(attrs...)
}

// ImplicitSet returns the identities of set n in their order.
func (s Subscriber) ImplicitSet(n int) []Identity {
	var ids []Identity
	for _, id := range s.Identities {
		if id.Set == n {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s Subscriber) clone() Subscriber {
	s.Identities = slices.Clone(s.Identities)
	s.HA1 = maps.Clone(s.HA1)
	s.AKA = s.AKA.clone()
	return s
}

// Validate checks the subscriber by itself; that no other subscriber has one
// of its identities is checked by Apply.
func (s Subscriber) Validate() error {
	if err := checkText("IMPI", s.IMPI, maxName); err != nil {
		return err
	}
	if s.Realm != "" {
		if err := checkText("realm", s.Realm, maxName); err != nil {
			return fmt.Errorf("subscriber %s: %w", s.IMPI, err)
		}
	}
	if len(s.Identities) == 0 {
		return invalid("subscriber %s has no public identity", s.IMPI)
	}
	if len(s.Identities) > maxIdentities {
		return invalid("subscriber %s has %d public identities, more than %d", s.IMPI, len(s.Identities), maxIdentities)
	}
	for i, id := range s.Identities {
		if err := checkAOR(id.URI); err != nil {
			return invalid("subscriber %s: %v", s.IMPI, err)
		}
		if id.Set < 0 || id.Set > maxIdentities {
			return invalid("subscriber %s: identity %s: implicit registration set %d is not within 0 to %d", s.IMPI, id.URI, id.Set, maxIdentities)
		}
		for _, earlier := range s.Identities[:i] {
			if earlier.URI == id.URI {
				return invalid("subscriber %s has identity %s twice", s.IMPI, id.URI)
			}
		}
	}
	for _, alg := range slices.Sorted(maps.Keys(s.HA1)) {
		if err := checkHA1(alg, s.HA1[alg]); err != nil {
			return invalid("subscriber %s: %v", s.IMPI, err)
		}
	}
	if s.AKA != nil {
		if err := s.AKA.validate(); err != nil {
			return invalid("subscriber %s: %v", s.IMPI, err)
		}
	}
	return nil
}

// checkHA1 never puts the secret itself into its error.
func checkHA1(alg, hex string) error {
	var want int
	switch alg {
	case "MD5":
		want = 32
	case "SHA-256":
		want = 64
	default:
		return fmt.Errorf("digest algorithm %.40q is neither MD5 nor SHA-256", alg)
	}
	if len(hex) != want {
		return fmt.Errorf("HA1 for %s has %d characters, not %d", alg, len(hex), want)
	}
	for i := range len(hex) {
		if c := hex[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("HA1 for %s is not lower-case hex", alg)
		}
	}
	return nil
}
