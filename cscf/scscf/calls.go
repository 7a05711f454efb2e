package scscf

import (
	"slices"
	"strings"
	"time"

	"bellwether/controller/state"
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
	PCSCF   state.GroupID // of the phone: of several that ring the one heard last; 0: not known
}

// Calls lists the calls in progress, the oldest first; a call whose two users
// are both of this group comes once for each half.
func (c *CSCF) Calls() []Call {
	now := time.Now()
	c.dialogs.mu.Lock()
	defer c.dialogs.mu.Unlock()
	c.dialogs.sweep(now)
	var out []Call
	for _, e := range c.dialogs.sets {
		for half, s := range e.Halves {
			out = append(out, Call{CallID: e.CallID, From: e.From, To: e.Called, Role: half, State: s, Started: e.Started, PCSCF: e.PCSCF[half]})
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

// through notes by which P-CSCF a half of a session reaches its phone. Of the
// phones of a fork it is the one that answered that counts.
func (l *dialogs) through(k hash, half string, group state.GroupID, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.sets[k]
	if e == nil || group == 0 || e.confirmed() && !answered {
		return
	}
	if e.PCSCF == nil {
		e.PCSCF = make(map[string]state.GroupID, 1)
	}
	e.PCSCF[half] = group
}

// inCalls is the number of calls in progress.
func (l *dialogs) inCalls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}
