package state

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"
)

// Update is one step of a copy that follows the cluster state elsewhere: a part
// of a snapshot, or a batch.
type Update struct {
	Index    uint64 `cbor:"x"`           // of the snapshot or batch
	Snapshot bool   `cbor:"s,omitempty"` // Data is a part of a snapshot, else an encoded batch
	More     bool   `cbor:"m,omitempty"` // further parts of this snapshot follow
	Prev     uint64 `cbor:"p,omitempty"` // batch: index of the update before it, 0 if not told
	Data     []byte `cbor:"d"`
}

// partSize is about how large a part of a snapshot is; a single record may exceed it.
const partSize = 256 << 10

// ErrGap means that an update does not continue what the mirror holds. The
// sender must begin again with a snapshot.
var ErrGap = errors.New("update does not follow the state held")

// SnapshotUpdates gives s as a sequence of updates of bounded size.
func SnapshotUpdates(s *State) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		var part []byte
		for r := range s.records() {
			b, err := encMode.Marshal(r)
			if err != nil {
				yield(Update{}, fmt.Errorf("encode snapshot: %w", err))
				return
			}
			part = binary.BigEndian.AppendUint32(part, uint32(len(b)))
			part = append(part, b...)
			last := r.End != nil
			if len(part) < partSize && !last {
				continue
			}
			if !yield(Update{Index: s.index, Snapshot: true, More: !last, Data: part}, nil) {
				return
			}
			part = nil
		}
	}
}

// Encode returns the update's CBOR form.
func (u Update) Encode() ([]byte, error) {
	b, err := encMode.Marshal(u)
	if err != nil {
		return nil, fmt.Errorf("encode update: %w", err)
	}
	return b, nil
}

// DecodeUpdate reads what Encode wrote.
func DecodeUpdate(b []byte) (Update, error) {
	var u Update
	if err := decMode.Unmarshal(b, &u); err != nil {
		return Update{}, fmt.Errorf("decode update: %w", err)
	}
	return u, nil
}

// Mirror is a copy of the cluster state that follows by updates. Its zero
// value holds the empty state. State and Wait may be called from any
// goroutine, Apply from one at a time.
type Mirror struct {
	current atomic.Pointer[State]
	partial *builder // snapshot in the making, touched by Apply only

	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil while nobody waits
}

var empty = New()

// State returns the newest state, never nil.
func (m *Mirror) State() *State {
	if s := m.current.Load(); s != nil {
		return s
	}
	return empty
}

// Apply takes the next update. After an error the mirror keeps what it had,
// and the next update must begin a snapshot.
func (m *Mirror) Apply(u Update) error {
	if u.Snapshot {
		return m.part(u)
	}
	m.partial = nil
	s := m.State()
	if u.Index <= s.index || u.Prev != 0 && u.Prev != s.index {
		return fmt.Errorf("apply update %d after %d to a state at %d: %w", u.Index, u.Prev, s.index, ErrGap)
	}
	cmds, err := DecodeBatch(u.Data)
	if err != nil {
		return fmt.Errorf("apply update %d: %w", u.Index, err)
	}
	next, _ := s.Apply(u.Index, cmds)
	m.set(next)
	return nil
}

func (m *Mirror) part(u Update) error {
	b := m.partial
	m.partial = nil
	if b == nil {
		b = newBuilder()
	}
	in := bytes.NewReader(u.Data)
	for in.Len() > 0 {
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return fmt.Errorf("apply snapshot %d: %w: %w", u.Index, ErrSnapshot, err)
		}
		n := int(binary.BigEndian.Uint32(size[:]))
		if n > in.Len() || b.done {
			return fmt.Errorf("apply snapshot %d: %w: record of %d bytes does not fit", u.Index, ErrSnapshot, n)
		}
		at := len(u.Data) - in.Len()
		if err := b.add(u.Data[at : at+n]); err != nil {
			return fmt.Errorf("apply snapshot %d: %w: %w", u.Index, ErrSnapshot, err)
		}
		_, _ = in.Seek(int64(n), io.SeekCurrent)
	}
	if b.done == u.More {
		return fmt.Errorf("apply snapshot %d: %w: its last part is not its end", u.Index, ErrSnapshot)
	}
	if u.More {
		m.partial = b
		return nil
	}
	m.set(b.state())
	return nil
}

func (m *Mirror) set(s *State) {
	m.current.Store(s)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// Wait returns once ok holds for the mirror's state, at once if it does
// already, and gives that state; or ctx's error.
func (m *Mirror) Wait(ctx context.Context, ok func(*State) bool) (*State, error) {
	for {
		m.mu.Lock()
		if m.changed == nil {
			m.changed = make(chan struct{})
		}
		changed := m.changed
		m.mu.Unlock()
		if s := m.State(); ok(s) {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for cluster state: %w", ctx.Err())
		}
	}
}
