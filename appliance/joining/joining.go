// Package joining brings new machines into a cluster and renews the
// certificates of those that are in it, over the founder's cluster port.
//
// The founder is the node whose data directory holds the CA. It writes a token
// for a node: where the founder is, the fingerprint of the CA, and a secret
// that is good once, for a time, for that node and role. The new machine knows
// the founder by the fingerprint before it says anything, compares its clock
// and its list of controllers, and sends the secret and a certificate request;
// its key never leaves it. A node that has a certificate renews it by that.
//
// The package does not change the cluster state and needs no quorum. It
// neither lists nor removes members: the configuration does.
//
// Invariants: a token certifies at most one key; the secret is stored hashed,
// and is sent only to a holder of a certificate of the CA that the token
// names. What a stranger can make the founder keep is bounded: connections,
// bytes and seconds of each, and the addresses whose failures are counted.
//
// Failure modes: each refusal has a code and one sentence that says what to
// do. An answer that is lost on its way leaves a used token: a new one is
// needed. A founder that is down delays renewals, and an alarm says so before
// it matters.
package joining

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/fxamacker/cbor/v2"

	"bellwether/appliance/config"
)

// Protocol is the name of the protocol on the mesh (ALPN).
const Protocol = "bw-join/1"

// maxMessage bounds a message, in bytes.
const maxMessage = 16 << 10

// What a message asks for.
const (
	askClock = "clock"
	askJoin  = "join"
	askRenew = "renew"
)

// Member is a controller as a configuration lists it.
type Member struct {
	Name string `cbor:"n"`
	Addr string `cbor:"a"` // host:port
}

// Members are the controllers of a configuration, and those that are not this node.
func Members(cfg *config.Config) (all, others []Member) {
	for _, c := range cfg.Cluster.Controllers {
		m := Member{Name: c.Name, Addr: c.Address.String()}
		all = append(all, m)
		if c.Name != cfg.Node.Name {
			others = append(others, m)
		}
	}
	return all, others
}

// Lists says a list of controllers in one line.
func Lists(all []Member) string {
	var out []string
	for _, m := range all {
		out = append(out, m.Name+" "+m.Addr)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

type request struct {
	Ask         string   `cbor:"ask"`
	Secret      []byte   `cbor:"secret,omitempty"`
	Node        string   `cbor:"node,omitempty"`
	Role        string   `cbor:"role,omitempty"`
	Controllers []Member `cbor:"controllers,omitempty"`
	CSR         []byte   `cbor:"csr,omitempty"`
}

type reply struct {
	Time    int64    `cbor:"time,omitempty"` // nanoseconds since 1970
	CA      []byte   `cbor:"ca,omitempty"`   // PEM
	Cert    []byte   `cbor:"cert,omitempty"` // PEM
	Begun   bool     `cbor:"begun,omitempty"`
	Refused *Refusal `cbor:"refused,omitempty"`
}

// Refusal is a decision, with what to do about it.
type Refusal struct {
	Code string `cbor:"code"`
	Text string `cbor:"text"`
}

func (r *Refusal) Error() string { return r.Text }

func refusef(code, format string, args ...any) error {
	return &Refusal{Code: code, Text: fmt.Sprintf(format, args...)}
}

// send writes a message after its length.
func send(w io.Writer, msg any) error {
	body, err := cbor.Marshal(msg)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("message of %d bytes is too large", len(body))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// receive reads what send wrote. It takes no memory for a length that is only
// claimed.
func receive(r io.Reader, into any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxMessage {
		return fmt.Errorf("message of %d bytes is too large", n)
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(body) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if err := strict.Unmarshal(body, into); err != nil {
		return errors.New("message is not of this protocol")
	}
	return nil
}
