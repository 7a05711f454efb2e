package state

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
)

// A snapshot is magic, then records, each with its length as 4 bytes in front,
// then a record that counts them. Records are small, so neither side ever
// holds the whole snapshot in encoded form.

const (
	magic         = "bw-state/1\n"
	maxRecordSize = 1 << 20
	perRecord     = 256 // assignments or requests in one record
)

// ErrSnapshot means that a snapshot is damaged, incomplete, or not one.
var ErrSnapshot = errors.New("bad snapshot")

// record is one piece of a snapshot. Exactly one field is set.
type record struct {
	Head        *head         `cbor:"head,omitempty"`
	Setting     *Set          `cbor:"set,omitempty"`
	Node        *Node         `cbor:"node,omitempty"`
	Worker      *Worker       `cbor:"worker,omitempty"`
	Group       *Group        `cbor:"group,omitempty"`
	Subscriber  *Subscriber   `cbor:"sub,omitempty"`
	Ban         *Ban          `cbor:"ban,omitempty"`
	Assignments *assignments  `cbor:"asg,omitempty"`
	Requests    *requestTable `cbor:"req,omitempty"`
	End         *end          `cbor:"end,omitempty"`
}

type head struct {
	Version   int     `cbor:"v"`
	Index     uint64  `cbor:"x"`
	ClusterID string  `cbor:"c"`
	Name      string  `cbor:"n"`
	Secret    Secret  `cbor:"s"`
	LastGroup GroupID `cbor:"g"`
}

type assignments struct {
	Kind  Kind         `cbor:"k"`
	Users []assignment `cbor:"u"`
}

type assignment struct {
	_     struct{} `cbor:",toarray"`
	User  string
	Group GroupID
}

type requestTable struct {
	Older   bool      `cbor:"o,omitempty"`
	Results []request `cbor:"r"`
}

type request struct {
	_      struct{} `cbor:",toarray"`
	ID     string
	Result Result
}

type end struct {
	Records int `cbor:"n"` // before this one
}

// records goes through the state in an order that is the same everywhere, so
// equal states have equal snapshots.
func (s *State) records() iter.Seq[record] {
	return func(yield func(record) bool) {
		n := 0
		emit := func(r record) bool { n++; return yield(r) }
		ok := emit(record{Head: &head{Version, s.index, s.clusterID, s.name, s.secret, s.lastGroup}})
		for k, v := range s.Settings() {
			ok = ok && emit(record{Setting: &Set{Name: k, Value: v}})
		}
		for v := range s.Nodes() {
			ok = ok && emit(record{Node: &v})
		}
		for v := range s.Workers() {
			ok = ok && emit(record{Worker: &v})
		}
		for v := range s.Groups() {
			ok = ok && emit(record{Group: &v})
		}
		for v := range s.Subscribers() {
			if ok = ok && emit(record{Subscriber: &v}); !ok {
				return
			}
		}
		for v := range s.Bans() {
			ok = ok && emit(record{Ban: &v})
		}
		for _, k := range Kinds {
			pending := make([]assignment, 0, perRecord)
			for user, g := range s.Assignments(k) {
				if pending = append(pending, assignment{User: user, Group: g}); len(pending) == perRecord {
					if ok = ok && emit(record{Assignments: &assignments{k, pending}}); !ok {
						return
					}
					pending = make([]assignment, 0, perRecord)
				}
			}
			if len(pending) > 0 {
				ok = ok && emit(record{Assignments: &assignments{k, pending}})
			}
		}
		for _, older := range []bool{true, false} {
			tree := s.recent
			if older {
				tree = s.older
			}
			pending := make([]request, 0, perRecord)
			for id, r := range all(tree) {
				if pending = append(pending, request{ID: string(id), Result: r}); len(pending) == perRecord {
					ok = ok && emit(record{Requests: &requestTable{older, pending}})
					pending = make([]request, 0, perRecord)
				}
			}
			if len(pending) > 0 {
				ok = ok && emit(record{Requests: &requestTable{older, pending}})
			}
		}
		if ok {
			yield(record{End: &end{Records: n}})
		}
	}
}

// EncodeSnapshot writes s to w, piece by piece. Equal states give equal bytes.
func EncodeSnapshot(w io.Writer, s *State) error {
	buf := bufio.NewWriterSize(w, 64<<10)
	if _, err := buf.WriteString(magic); err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	for r := range s.records() {
		b, err := encMode.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode snapshot: %w", err)
		}
		if len(b) > maxRecordSize {
			return fmt.Errorf("encode snapshot: record of %d bytes: %w", len(b), ErrTooLarge)
		}
		if _, err := buf.Write(binary.BigEndian.AppendUint32(nil, uint32(len(b)))); err != nil {
			return fmt.Errorf("encode snapshot: %w", err)
		}
		if _, err := buf.Write(b); err != nil {
			return fmt.Errorf("encode snapshot: %w", err)
		}
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	return nil
}

// DecodeSnapshot reads what EncodeSnapshot wrote. It refuses, with
// ErrSnapshot, whatever is not a whole snapshot of a consistent state.
func DecodeSnapshot(r io.Reader) (*State, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if err := readMagic(in); err != nil {
		return nil, err
	}
	b := newBuilder()
	var size [4]byte
	var raw []byte
	for !b.done {
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return nil, fmt.Errorf("decode snapshot: %w: %w", ErrSnapshot, err)
		}
		n := binary.BigEndian.Uint32(size[:])
		if n > maxRecordSize {
			return nil, fmt.Errorf("decode snapshot: %w: record of %d bytes", ErrSnapshot, n)
		}
		if cap(raw) < int(n) {
			raw = make([]byte, n)
		}
		raw = raw[:n]
		if _, err := io.ReadFull(in, raw); err != nil {
			return nil, fmt.Errorf("decode snapshot: %w: %w", ErrSnapshot, err)
		}
		if err := b.add(raw); err != nil {
			return nil, fmt.Errorf("decode snapshot: %w: %w", ErrSnapshot, err)
		}
	}
	if _, err := in.ReadByte(); err != io.EOF {
		return nil, fmt.Errorf("decode snapshot: %w: bytes after its end", ErrSnapshot)
	}
	return b.state(), nil
}

func readMagic(in io.Reader) error {
	got := make([]byte, len(magic))
	if _, err := io.ReadFull(in, got); err != nil || string(got) != magic {
		return fmt.Errorf("decode snapshot: %w: it does not begin with %q", ErrSnapshot, magic)
	}
	return nil
}
