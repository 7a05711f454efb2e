package hss

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/aka"
)

const (
	// challengeLifetime is how old a challenge may be that a SIM answers with a
	// demand for resynchronisation: an older one may be a replay.
	challengeLifetime = 40 * time.Second
	// clockMargin is how far the clocks of two nodes may differ.
	clockMargin = time.Minute
)

var errNoResync = errors.New("resynchronise a SIM: this HSS cannot change subscribers")

// authenticate completes the answer for a subscriber with a SIM: it is the
// authentication centre, which makes vectors and recognises them again without
// keeping any (TS 33.102 §6.3, Annex C).
//
// SEQ is the time, so a vector tells its age. IND is the place of the node in
// the list of all nodes, sorted by name, modulo 32: two nodes that challenge
// one SIM at the same time do not make each other's challenges look old.
func (e *Embedded) authenticate(sub state.Subscriber, q MultimediaAuth, a MultimediaAuthAnswer, reply func(MultimediaAuthAnswer, error)) {
	now := time.Now()
	m := milenage(sub)
	if q.Sent == nil {
		e.challenge(m, sub, q, a, reply)
		return
	}
	var offset int64
	a.Sent, offset, a.Resynced = e.sent(m, *sub.AKA, q, now)
	switch {
	case offset == sub.AKA.Offset:
		e.challenge(m, sub, q, a, reply)
		return
	case e.propose == nil:
		reply(MultimediaAuthAnswer{}, errNoResync)
		return
	}
	cmd := state.Command{ResyncAKA: &state.ResyncAKA{IMPI: sub.IMPI, From: sub.AKA.Offset, To: offset}}
	e.propose(cmd, func(_ state.Result, err error) {
		if err != nil {
			reply(MultimediaAuthAnswer{}, fmt.Errorf("resynchronise the SIM of %s: %w", sub.IMPI, err))
			return
		}
		// Another S-CSCF may have been first: what the state says now counts.
		sub, _, err := owner(e.state(), sub.IMPI, q.IMPU)
		if err == nil && sub.AKA == nil {
			err = ErrUserUnknown
		}
		if err != nil {
			reply(MultimediaAuthAnswer{}, err)
			return
		}
		e.challenge(milenage(sub), sub, q, a, reply)
	})
}

func milenage(sub state.Subscriber) *aka.Milenage {
	return aka.New(aka.Key(sub.AKA.K), aka.Key(sub.AKA.OPc)) // their lengths are checked where they come in
}

// challenge answers with a fresh vector.
func (e *Embedded) challenge(m *aka.Milenage, sub state.Subscriber, q MultimediaAuth, a MultimediaAuthAnswer, reply func(MultimediaAuthAnswer, error)) {
	seq, err := e.clock.Next(sub.IMPI, sub.AKA.Offset, time.Now())
	if err != nil {
		reply(MultimediaAuthAnswer{}, fmt.Errorf("make a vector: %w", err))
		return
	}
	var random [16]byte
	rand.Read(random[:unmarked])
	copy(random[unmarked:], e.mark(random, q.Server))
	v := m.Vector(random, aka.NewSQN(seq, e.ind()), sub.AKA.AMF)
	a.Vector = &v
	reply(a, nil)
}

// unmarked is how many bytes of RAND are random; the others are a mark.
const unmarked = 12

// mark is the end of a RAND, by which the challenges of one S-CSCF are told from
// those of others, and nobody but the cluster can tell it from random bytes.
func (e *Embedded) mark(random [16]byte, server state.GroupID) []byte {
	mac := hmac.New(sha256.New, e.state().Secret())
	mac.Write([]byte("RAND"))
	mac.Write(binary.BigEndian.AppendUint32(random[:unmarked:unmarked], server))
	return mac.Sum(nil)[:len(random)-unmarked]
}

func (e *Embedded) ind() int {
	place := 0
	for n := range e.state().Nodes() {
		if n.Name == e.node {
			return place % aka.Inds
		}
		place++
	}
	return 0
}

// sent opens a challenge that was sent earlier, and what the SIM says if it
// asks for resynchronisation: the offset to go on with, and whether it was the
// SIM that asked (TS 33.102 §6.3.5).
func (e *Embedded) sent(m *aka.Milenage, with state.AKA, q MultimediaAuth, now time.Time) (sent *Sent, offset int64, resynced bool) {
	xres, _, _, sqn, _, err := m.Answer(q.Sent.RAND, q.Sent.AUTN)
	if err != nil {
		return nil, with.Offset, false
	}
	age := e.clock.Age(sqn.SEQ(), with.Offset, now)
	own := hmac.Equal(e.mark(q.Sent.RAND, q.Server), q.Sent.RAND[unmarked:])
	sent = &Sent{XRES: xres, Made: now.Add(-age), Own: own}
	if q.AUTS == nil || age > challengeLifetime || age < -clockMargin {
		return sent, with.Offset, false
	}
	sqnMS, ok := m.OpenAUTS(q.Sent.RAND, *q.AUTS)
	switch {
	case !ok:
		return sent, with.Offset, false
	case sqnMS >= sqn && e.clock.Age(sqnMS.SEQ(), with.Offset, now) > 0:
		// It has seen a later challenge, or none of this IND that is newer than
		// this one, but the next will be news to it.
		return sent, with.Offset, true
	}
	// It is ahead of the clock, or so far behind that it takes the challenge for
	// a mistake (TS 33.102 §C.2.1).
	return sent, e.clock.Resync(sqnMS, clockMargin, now), true
}
