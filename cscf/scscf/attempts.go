package scscf

import (
	"hash/maphash"
	"sync"
	"time"
)

// attempt is a sort of REGISTER that ends in another challenge.
type attempt byte

const (
	wrongAnswer attempt = iota // of a public identity
	resync                     // of a public identity
	staleNonce                 // of a nonce
)

const (
	maxAttempts    = 5 // of one sort and name within attemptWindow
	attemptWindow  = time.Minute
	attemptEntries = 4096
)

// attempts counts what led nowhere, in fixed memory: names that fall to the
// same entry displace each other, which forgets a count but invents none.
type attempts struct {
	seed maphash.Seed

	mu      sync.Mutex
	entries [attemptEntries]struct {
		name  uint64
		since time.Time
		n     int
	}
}

func newAttempts() *attempts { return &attempts{seed: maphash.MakeSeed()} }

func (a *attempts) name(why attempt, of string) uint64 {
	var h maphash.Hash
	h.SetSeed(a.seed)
	h.WriteByte(byte(why))
	h.WriteString(of)
	return h.Sum64()
}

// count counts one more and returns how many there were of late.
func (a *attempts) count(why attempt, of string, now time.Time) int {
	name := a.name(why, of)
	a.mu.Lock()
	defer a.mu.Unlock()
	e := &a.entries[name%attemptEntries]
	if e.name != name || now.Sub(e.since) >= attemptWindow {
		e.name, e.since, e.n = name, now, 0
	}
	e.n++
	return e.n
}

// forget begins anew.
func (a *attempts) forget(why attempt, of string) {
	name := a.name(why, of)
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := &a.entries[name%attemptEntries]; e.name == name {
		e.n = 0
	}
}
