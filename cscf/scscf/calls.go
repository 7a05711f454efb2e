package scscf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/cscf/sipmsg"
	"bellwether/ha"
)

// The halves of a call that an S-CSCF can serve.
const (
	Originating = "orig" // the caller is a user of the group
	Terminating = "term" // the one who is called is
)

// The states of a call.
const (
	Trying    = "trying"
	Ringing   = "ringing"
	Confirmed = "confirmed"
)

// Call is the half of a call that this S-CSCF serves.
type Call struct {
	CallID  string
	From    string // as in the From header
	To      string // as called
	Role    string // the half: Originating or Terminating
	State   string
	Started time.Time
}

// Limits of the list of calls.
const (
	callLife    = 12 * time.Hour // a call whose end nobody saw is forgotten
	maxCallText = 256            // bytes kept of identities and Call-ID
)

// callKey names a call by Call-ID and the caller's tag.
type callKey [16]byte

func keyOf(callID, tag string) callKey {
	sum := sha256.Sum256([]byte(callID + "\x00" + tag))
	return callKey(sum[:16])
}

func (k callKey) String() string { return callPrefix + hex.EncodeToString(k[:]) }

const callPrefix = "call/"

// call is one entry of the list, with a state for each half that is here.
type call struct {
	CallID  string            `cbor:"1,keyasint"`
	From    string            `cbor:"2,keyasint"`
	To      string            `cbor:"3,keyasint"`
	Halves  map[string]string `cbor:"4,keyasint"`
	Started time.Time         `cbor:"5,keyasint"`
}

// calls lists the calls in progress. It carries nothing: a call that is not
// listed, since the list is full, goes on all the same.
type calls struct {
	c    *CSCF
	mu   sync.Mutex
	list map[callKey]*call
}

func newCalls(c *CSCF) *calls { return &calls{c: c, list: make(map[callKey]*call)} }

func text(s string) string {
	if len(s) > maxCallText {
		s = s[:maxCallText]
	}
	return strings.ToValidUTF8(strings.Clone(s), "?")
}

// begin lists a call as an INVITE is sent on.
func (l *calls) begin(m *sipmsg.Message, half string, now time.Time) callKey {
	k := keyOf(m.CallID(), m.FromTag())
	from, _ := m.From()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.list[k]
	if e == nil {
		if len(l.list) >= l.c.cfg.MaxCalls && !l.sweep(now) {
			return k
		}
		e = &call{CallID: text(m.CallID()), From: text(from.URI), To: text(m.RequestURI()), Halves: make(map[string]string), Started: now}
		l.list[k] = e
	}
	if e.Halves[half] == "" {
		e.Halves[half] = Trying
	}
	return k
}

// sweep forgets calls that are older than any can be; false if there are none.
func (l *calls) sweep(now time.Time) bool {
	before := len(l.list)
	for k, e := range l.list {
		if now.Sub(e.Started) > callLife {
			delete(l.list, k)
		}
	}
	return len(l.list) < before
}

// heard follows the responses to an INVITE.
func (l *calls) heard(k callKey, half string, status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.list[k]
	if e == nil || e.Halves[half] == "" {
		return
	}
	switch {
	case status < 180:
	case status < 200:
		if e.Halves[half] == Trying {
			e.Halves[half] = Ringing
		}
	case status < 300:
		if e.Halves[half] != Confirmed {
			e.Halves[half] = Confirmed
			l.persist(k, e)
		}
	case e.Halves[half] != Confirmed:
		if delete(e.Halves, half); len(e.Halves) == 0 {
			delete(l.list, k)
		}
	}
}

// end removes the call that a BYE ends; either side may send it.
func (l *calls) end(bye *sipmsg.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, tag := range [...]string{bye.FromTag(), bye.ToTag()} {
		k := keyOf(bye.CallID(), tag)
		if l.list[k] != nil {
			delete(l.list, k)
			l.c.store.Delete(l.c.cfg.Group, k.String(), nil)
		}
	}
}

type callRecord struct {
	V    int  `cbor:"0,keyasint"`
	Call call `cbor:"1,keyasint"`
}

// persist keeps a confirmed call in the store; nobody waits for it.
func (l *calls) persist(k callKey, e *call) {
	value, err := encoding.Marshal(callRecord{V: recordVersion, Call: *e})
	if err != nil {
		return
	}
	l.c.store.Put(l.c.cfg.Group, k.String(), value, e.Started.Add(callLife), nil)
}

// load takes a call from the store.
func (l *calls) load(r ha.Record, now time.Time) error {
	var rec callRecord
	if err := cbor.Unmarshal(r.Value, &rec); err != nil {
		return fmt.Errorf("decode call: %w", err)
	}
	raw, err := hex.DecodeString(strings.TrimPrefix(r.Key, callPrefix))
	if err != nil || len(raw) != len(callKey{}) || rec.V != recordVersion {
		return fmt.Errorf("decode call: version %d under key %q is not known", rec.V, r.Key)
	}
	e := &rec.Call
	for half, s := range e.Halves {
		if s != Confirmed { // its transaction is gone
			delete(e.Halves, half)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(e.Started) > callLife || len(e.Halves) == 0 || len(l.list) >= l.c.cfg.MaxCalls {
		l.c.store.Delete(l.c.cfg.Group, r.Key, nil)
		return nil
	}
	l.list[callKey(raw)] = e
	return nil
}

func (l *calls) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.list)
}

// Calls lists the calls in progress, the oldest first; a call whose two users
// are both of this group comes once for each half.
func (c *CSCF) Calls() []Call {
	now := time.Now()
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	c.calls.sweep(now)
	var out []Call
	for _, e := range c.calls.list {
		for half, s := range e.Halves {
			out = append(out, Call{CallID: e.CallID, From: e.From, To: e.To, Role: half, State: s, Started: e.Started})
		}
	}
	slices.SortFunc(out, func(a, b Call) int {
		if d := a.Started.Compare(b.Started); d != 0 {
			return d
		}
		if d := strings.Compare(a.CallID, b.CallID); d != 0 {
			return d
		}
		return strings.Compare(a.Role, b.Role)
	})
	return out
}
