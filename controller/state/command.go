package state

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"
)

// Version is the version of commands and snapshots that this package writes.
const Version = 1

// Limits on what the state accepts. They keep a mistake, or a hostile member,
// from filling every machine's memory.
const (
	MaxBatch       = 1024    // commands in a batch
	MaxCommandSize = 1 << 20 // encoded bytes of one command
	MaxBatchSize   = 4 << 20 // encoded bytes of a batch
	MaxSubscribers = 1000    // subscribers in one PutSubscribers

	maxName        = 255
	maxUser        = 512
	maxIdentities  = 64
	maxValue       = 4096
	maxSettings    = 1024
	maxNodes       = 1024
	maxWorkers     = 8192
	maxStored      = 4 << 20 // subscribers
	maxAssignments = 8 << 20
	maxBans        = 4096
	maxReason      = 200
	secretSize     = 32
)

// Command is one change of the state. Exactly one of the operations is set.
type Command struct {
	V         int    `cbor:"v"`            // 0 means Version
	RequestID string `cbor:"id,omitempty"` // makes a repeated command take effect once; "" is never remembered

	Init             *Init             `cbor:"init,omitempty"`
	PutNode          *Node             `cbor:"node,omitempty"`
	PutWorker        *Worker           `cbor:"worker,omitempty"` // Group is ignored
	RemoveWorker     *RemoveWorker     `cbor:"rmworker,omitempty"`
	Assign           *Assign           `cbor:"assign,omitempty"`
	Unassign         *Unassign         `cbor:"unassign,omitempty"`
	PutSubscribers   *PutSubscribers   `cbor:"subs,omitempty"`
	RemoveSubscriber *RemoveSubscriber `cbor:"rmsub,omitempty"`
	ResyncAKA        *ResyncAKA        `cbor:"resync,omitempty"`
	Set              *Set              `cbor:"set,omitempty"`
	PutBan           *Ban              `cbor:"ban,omitempty"`
	RemoveBan        *RemoveBan        `cbor:"rmban,omitempty"`
}

// Init gives the cluster its identity, once.
type Init struct {
	ClusterID string `cbor:"c"`
	Name      string `cbor:"n"`
	Secret    Secret `cbor:"s"` // 32 random bytes: key of the routing tokens
}

// RemoveWorker removes a worker and its group, which must have no users left.
type RemoveWorker struct {
	ID string `cbor:"i"`
}

// Assign gives a user a group. A user who has one keeps it. Otherwise Hint is
// taken if it is a group of that kind, else the group with the fewest users.
type Assign struct {
	Kind Kind    `cbor:"k"`
	User string  `cbor:"u"` // P-CSCF: AOR; S-CSCF: IMPI
	Hint GroupID `cbor:"h,omitempty"`
}

// Unassign ends an assignment, only if it still names Group.
type Unassign struct {
	Kind  Kind    `cbor:"k"`
	User  string  `cbor:"u"`
	Group GroupID `cbor:"g"`
}

// PutSubscribers stores subscribers, all or none of them.
type PutSubscribers struct {
	Subscribers []Subscriber `cbor:"s"`
	New         bool         `cbor:"n,omitempty"` // refuse an IMPI that exists instead of replacing it
}

// RemoveSubscriber removes a subscriber, frees its identities and ends their
// assignments.
type RemoveSubscriber struct {
	IMPI string `cbor:"i"`
}

// DomainSetting is the setting that the first node with a domain makes, and that
// every other node must agree with.
const DomainSetting = "sip.domain"

// Set stores a setting; an empty value removes it.
type Set struct {
	Name  string `cbor:"n"`
	Value string `cbor:"v"`
}

// Code classifies why a command was refused. Codes are stable.
type Code string

// The codes of refused commands.
const (
	Invalid     Code = "invalid"     // the command itself is wrong
	Exists      Code = "exists"      // what it would create is there already
	NotFound    Code = "not-found"   // what it names is not there
	Conflict    Code = "conflict"    // it contradicts something that is there
	NoWorker    Code = "no-worker"   // no worker of the kind can take the user
	Limit       Code = "limit"       // the state would grow too large
	Unsupported Code = "unsupported" // of a later version, or unreadable
)

// Error is a refusal. errors.Is matches an *Error that has the same Code and no Text.
type Error struct {
	Code Code   `cbor:"c" json:"code"`
	Text string `cbor:"t" json:"text"`
}

func (e *Error) Error() string {
	if e.Text == "" {
		return string(e.Code)
	}
	return e.Text
}

// Is reports whether target is the bare code of e.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Text == "" && t.Code == e.Code
}

// Result is what became of a command.
type Result struct {
	Index uint64  `cbor:"x" json:"index"`                     // log index at which the command took effect
	Group GroupID `cbor:"g,omitempty" json:"group,omitempty"` // PutWorker, Assign, Unassign: the group concerned
	N     int     `cbor:"n,omitempty" json:"n,omitempty"`     // things changed
	Err   *Error  `cbor:"e,omitempty" json:"error,omitempty"` // nil: done
}

// Check returns Err as an error, nil if the command was carried out.
func (r Result) Check() error {
	if r.Err == nil {
		return nil
	}
	return r.Err
}

func refuse(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Text: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error { return refuse(Invalid, format, args...) }

// op names the operation of c; "" if not exactly one is set.
func (c *Command) op() string {
	name, n := "", 0
	for _, o := range []struct {
		name string
		set  bool
	}{
		{"init", c.Init != nil}, {"put node", c.PutNode != nil}, {"put worker", c.PutWorker != nil},
		{"remove worker", c.RemoveWorker != nil}, {"assign", c.Assign != nil}, {"unassign", c.Unassign != nil},
		{"put subscribers", c.PutSubscribers != nil}, {"remove subscriber", c.RemoveSubscriber != nil},
		{"set", c.Set != nil}, {"put ban", c.PutBan != nil}, {"remove ban", c.RemoveBan != nil},
		{"resync AKA", c.ResyncAKA != nil},
	} {
		if o.set {
			name, n = o.name, n+1
		}
	}
	if n != 1 {
		return ""
	}
	return name
}

// String names the operation without its content, which may hold secrets.
func (c Command) String() string {
	op := c.op()
	if op == "" {
		op = "no single operation"
	}
	return fmt.Sprintf("{%s %s}", op, c.RequestID)
}

// GoString is String.
func (c Command) GoString() string { return c.String() }

// LogValue is String.
func (c Command) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Validate checks what can be checked without the state. Apply does so too; a
// proposer that checks first spares the cluster a log entry.
func (c *Command) Validate() error {
	if c.V < 0 || c.V > Version {
		return refuse(Unsupported, "command version %d is not supported, only up to %d", c.V, Version)
	}
	if len(c.RequestID) > maxName || !utf8.ValidString(c.RequestID) {
		return invalid("request id is not text of at most %d bytes", maxName)
	}
	switch {
	case c.op() == "":
		return refuse(Unsupported, "command has no single known operation")
	case c.Init != nil:
		return c.Init.validate()
	case c.PutNode != nil:
		return c.PutNode.validate()
	case c.PutWorker != nil:
		return c.PutWorker.validate()
	case c.RemoveWorker != nil:
		return checkName("worker id", c.RemoveWorker.ID)
	case c.Assign != nil:
		return checkAssignment(c.Assign.Kind, c.Assign.User)
	case c.Unassign != nil:
		return checkAssignment(c.Unassign.Kind, c.Unassign.User)
	case c.PutSubscribers != nil:
		return c.PutSubscribers.validate()
	case c.RemoveSubscriber != nil:
		return checkText("IMPI", c.RemoveSubscriber.IMPI, maxName)
	case c.PutBan != nil:
		return c.PutBan.validate()
	case c.RemoveBan != nil:
		return checkPrefix(c.RemoveBan.Prefix)
	case c.ResyncAKA != nil:
		return c.ResyncAKA.validate()
	default:
		return c.Set.validate()
	}
}

func (i *Init) validate() error {
	if err := checkName("cluster id", i.ClusterID); err != nil {
		return err
	}
	if err := checkText("cluster name", i.Name, maxName); err != nil {
		return err
	}
	if len(i.Secret) != secretSize {
		return invalid("cluster secret has %d bytes, not %d", len(i.Secret), secretSize)
	}
	return nil
}

func (n *Node) validate() error {
	if err := checkName("node name", n.Name); err != nil {
		return err
	}
	if n.ClusterAddr != "" {
		if err := checkText("cluster address", n.ClusterAddr, maxName); err != nil {
			return err
		}
		if _, _, err := net.SplitHostPort(n.ClusterAddr); err != nil {
			return invalid("node %s: cluster address %q is not host:port", n.Name, n.ClusterAddr)
		}
	}
	if !plain(n.Service) {
		return invalid("node %s: service address %q is not a plain unicast IP address", n.Name, n.Service)
	}
	if n.Service6.IsValid() && (!plain(n.Service6) || !n.Service6.Is6() || !n.Service.Is4()) {
		return invalid("node %s: second service address %q is not an IPv6 address beside an IPv4 one", n.Name, n.Service6)
	}
	if n.Domain != "" {
		if err := checkText("SIP domain", n.Domain, maxName); err != nil {
			return err
		}
	}
	if n.Version != "" {
		return checkText("version", n.Version, maxName)
	}
	return nil
}

// plain reports whether messages can show an address as that of one machine.
func plain(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast()
}

func (w *Worker) validate() error {
	if err := checkName("worker id", w.ID); err != nil {
		return err
	}
	if err := checkName("node name", w.Node); err != nil {
		return err
	}
	if !w.Kind.Valid() {
		return invalid("worker %s: kind %.40q is unknown", w.ID, string(w.Kind))
	}
	return nil
}

func (p *PutSubscribers) validate() error {
	if len(p.Subscribers) > MaxSubscribers {
		return refuse(Limit, "%d subscribers in one command, more than %d", len(p.Subscribers), MaxSubscribers)
	}
	for i := range p.Subscribers {
		if err := p.Subscribers[i].Validate(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) validate() error {
	if err := checkName("setting", s.Name); err != nil {
		return err
	}
	if len(s.Value) > maxValue || !utf8.ValidString(s.Value) {
		return invalid("setting %s: value is not text of at most %d bytes", s.Name, maxValue)
	}
	return nil
}

func checkAssignment(k Kind, user string) error {
	if !k.HasUsers() {
		return invalid("users cannot be assigned to workers of kind %.40q", string(k))
	}
	return checkText("user", user, maxUser)
}

// checkText accepts printable text without spaces at its ends.
func checkText(what, s string, limit int) error {
	if s == "" {
		return invalid("%s is empty", what)
	}
	if len(s) > limit {
		return invalid("%s has %d bytes, more than %d", what, len(s), limit)
	}
	if !utf8.ValidString(s) || strings.TrimSpace(s) != s || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return invalid("%s %q is not plain printable text", what, s)
	}
	return nil
}

// checkName accepts what can stand in file names, URIs and labels.
func checkName(what, s string) error {
	if s == "" || len(s) > maxName {
		return invalid("%s has %d bytes, not 1 to %d", what, len(s), maxName)
	}
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			continue
		}
		if i > 0 && (c == '-' || c == '.' || c == '_') {
			continue
		}
		return invalid("%s %q may hold only letters, digits and, after the first, - . _", what, s)
	}
	return nil
}

func checkAOR(uri string) error {
	if err := checkText("identity", uri, maxUser); err != nil {
		return err
	}
	scheme, rest, ok := strings.Cut(uri, ":")
	if scheme == "tel" { // a local number has its context, RFC 3966 §5.1.5
		rest = strings.Replace(rest, ";phone-context=", "", 1)
	}
	if at := strings.LastIndexByte(rest, '@'); scheme == "sip" && at > 0 { // a user may have ; and ?, RFC 3261 §25.1
		rest = strings.NewReplacer(";", "", "?", "").Replace(rest[:at]) + rest[at:]
	}
	if !ok || rest == "" || (scheme != "sip" && scheme != "tel") || strings.ContainsAny(rest, " <>;?\"") {
		return fmt.Errorf("identity %q is not a canonical sip: or tel: identity", uri)
	}
	return nil
}

var (
	encMode = must(cbor.EncOptions{Sort: cbor.SortCoreDeterministic, IndefLength: cbor.IndefLengthForbidden}.EncMode())
	decMode = must(cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
		MaxNestedLevels: 16, MaxArrayElements: 1 << 16, MaxMapPairs: 256,
	}.DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // only wrong options reach this, at start
	}
	return v
}

// ErrTooLarge means that a command or batch exceeds its size limit.
var ErrTooLarge = errors.New("too large")

// Encode returns the command's CBOR form.
func (c Command) Encode() ([]byte, error) {
	if c.V == 0 {
		c.V = Version
	}
	b, err := encMode.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	if len(b) > MaxCommandSize {
		return nil, fmt.Errorf("encode command: %d bytes: %w", len(b), ErrTooLarge)
	}
	return b, nil
}

// DecodeCommand reads what Encode wrote. Unknown fields are ignored.
func DecodeCommand(b []byte) (Command, error) {
	var c Command
	if len(b) > MaxCommandSize {
		return c, fmt.Errorf("decode command: %d bytes: %w", len(b), ErrTooLarge)
	}
	if err := decMode.Unmarshal(b, &c); err != nil {
		return Command{}, fmt.Errorf("decode command: %w", err)
	}
	return c, nil
}

// EncodeBatch returns the CBOR form of a log entry's commands.
func EncodeBatch(cmds []Command) ([]byte, error) {
	encoded := make([][]byte, len(cmds))
	for i := range cmds {
		b, err := cmds[i].Encode()
		if err != nil {
			return nil, err
		}
		encoded[i] = b
	}
	return JoinBatch(encoded)
}

// JoinBatch makes a batch of commands that are encoded already.
func JoinBatch(encoded [][]byte) ([]byte, error) {
	if len(encoded) > MaxBatch {
		return nil, fmt.Errorf("encode batch: %d commands: %w", len(encoded), ErrTooLarge)
	}
	items := make([]cbor.RawMessage, len(encoded))
	for i, e := range encoded {
		items[i] = e
	}
	b, err := encMode.Marshal(items)
	if err != nil {
		return nil, fmt.Errorf("encode batch: %w", err)
	}
	if len(b) > MaxBatchSize {
		return nil, fmt.Errorf("encode batch: %d bytes: %w", len(b), ErrTooLarge)
	}
	return b, nil
}

// DecodeBatch reads what EncodeBatch wrote. A command in it that does not
// decode becomes one that Apply refuses, so that it cannot void its neighbours.
func DecodeBatch(b []byte) ([]Command, error) {
	if len(b) > MaxBatchSize {
		return nil, fmt.Errorf("decode batch: %d bytes: %w", len(b), ErrTooLarge)
	}
	var items []cbor.RawMessage
	if err := decMode.Unmarshal(b, &items); err != nil {
		return nil, fmt.Errorf("decode batch: %w", err)
	}
	if len(items) > MaxBatch {
		return nil, fmt.Errorf("decode batch: %d commands: %w", len(items), ErrTooLarge)
	}
	cmds := make([]Command, len(items))
	for i, item := range items {
		c, err := DecodeCommand(item)
		if err != nil {
			c = Command{V: -1}
		}
		cmds[i] = c
	}
	return cmds, nil
}
