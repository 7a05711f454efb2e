package state

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Kind says what a worker does.
type Kind string

// The kinds of workers (TS 23.228 §4.6).
const (
	PCSCF Kind = "p-cscf"
	ICSCF Kind = "i-cscf"
	SCSCF Kind = "s-cscf"
)

// Kinds lists every kind in a fixed order.
var Kinds = []Kind{PCSCF, ICSCF, SCSCF}

// Valid reports whether k is a known kind.
func (k Kind) Valid() bool { return slices.Contains(Kinds, k) }

// HasUsers reports whether users are assigned to groups of this kind. The
// I-CSCF keeps no users: its requests are spread by load.
func (k Kind) HasUsers() bool { return k == PCSCF || k == SCSCF }

// GroupID names a group. Ids start at 1 and are never reused; 0 is no group.
type GroupID = uint32

// Node is one machine of the cluster.
type Node struct {
	Name        string     `cbor:"n" json:"name"`
	ClusterAddr string     `cbor:"c" json:"cluster_addr"`                 // host:port of the mesh
	Service     netip.Addr `cbor:"s" json:"service"`                      // public address of the node's groups, IPv4 or IPv6
	Service6    netip.Addr `cbor:"s6,omitempty" json:"service6,omitzero"` // second one, IPv6; Service is IPv4 then
	P           uint16     `cbor:"p" json:"p"`                            // entry port of the P-CSCF
	I           uint16     `cbor:"i" json:"i"`                            // of the I-CSCF
	S           uint16     `cbor:"sc" json:"s"`                           // of the S-CSCF
	Controller  bool       `cbor:"m" json:"controller"`
	Version     string     `cbor:"v" json:"version"`
	Domain      string     `cbor:"d,omitempty" json:"domain,omitempty"` // home network domain, one for the whole cluster
}

// Port returns the node's entry port for a kind, 0 for an unknown one.
func (n Node) Port(k Kind) uint16 {
	switch k {
	case PCSCF:
		return n.P
	case ICSCF:
		return n.I
	case SCSCF:
		return n.S
	}
	return 0
}

// Worker is one serving role on a node. Group is chosen by the state when the
// worker is first put, and is that worker's home group ever after.
type Worker struct {
	ID    string  `cbor:"i" json:"id"`
	Kind  Kind    `cbor:"k" json:"kind"`
	Node  string  `cbor:"n" json:"node"`
	Group GroupID `cbor:"g" json:"group"`
}

// Group is the set of users (P, S) or calls (I) homed on one worker.
type Group struct {
	ID      GroupID `cbor:"i" json:"id"`
	Kind    Kind    `cbor:"k" json:"kind"`
	Home    string  `cbor:"h" json:"home"`              // worker id
	Serving string  `cbor:"s" json:"serving"`           // worker id
	Partner string  `cbor:"p" json:"partner,omitempty"` // worker id, "" while the group has no partner
	Epoch   uint64  `cbor:"e" json:"epoch"`             // grows at each change of Serving
	Users   int     `cbor:"u" json:"users"`             // assignments that name the group
}

// HA1 holds digest secrets: "MD5" or "SHA-256" to H(A1) in lower-case hex
// (RFC 7616 §3.4.2). CBOR encodes it; printing, logging and JSON show only
// which algorithms are there.
type HA1 map[string]string

// String lists the algorithms, never the secrets.
func (h HA1) String() string {
	return "[" + strings.Join(slices.Sorted(maps.Keys(h)), " ") + "]"
}

// GoString is String, so that %#v shows no secret either.
func (h HA1) GoString() string { return h.String() }

// LogValue is String.
func (h HA1) LogValue() slog.Value { return slog.StringValue(h.String()) }

// MarshalJSON gives the sorted list of algorithms, never the secrets. JSON
// input stays an object of algorithm to hex, so hidden output that is fed back
// is an error, not a lost secret.
func (h HA1) MarshalJSON() ([]byte, error) {
	quoted := make([]string, 0, len(h))
	for _, alg := range slices.Sorted(maps.Keys(h)) {
		quoted = append(quoted, fmt.Sprintf("%q", alg))
	}
	return []byte("[" + strings.Join(quoted, ",") + "]"), nil
}

// Secret is key material that CBOR encodes and nothing prints.
type Secret []byte

const hidden = "(hidden)"

func (Secret) String() string               { return hidden }
func (Secret) GoString() string             { return hidden }
func (Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// Format hides the secret from every verb, %x included.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }
