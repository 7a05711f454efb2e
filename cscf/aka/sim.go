package aka

import "errors"

// ErrSync means that a challenge is the network's but not fresh: the SIM has
// accepted a later one (TS 33.102 §6.3.3, "synchronisation failure").
var ErrSync = errors.New("open an AKA challenge: sequence number is not fresh")

// SIM is the authentication part of a USIM or ISIM: a key and the sequence
// numbers that it has accepted, one for each IND (TS 33.102 §C.2). It is not
// safe for concurrent use.
type SIM struct {
	*Milenage

	// Delta, if not 0, is how far SEQ may be ahead of the highest accepted one
	// (§C.2.1; 2^28 in the profiles of §C.3).
	Delta uint64
	// Limit, if not 0, is L: how far SEQ may be behind the highest accepted
	// one (§C.2.2).
	Limit uint64

	seq [Inds]uint64
	max SQN
}

// NewSIM returns a SIM that has accepted nothing.
func NewSIM(k, opc Key) *SIM { return &SIM{Milenage: New(k, opc)} }

// SetSQN makes the SIM as if sqn were the highest number that it accepted, and
// the latest of every IND.
func (s *SIM) SetSQN(sqn SQN) {
	s.max = sqn
	for i := range s.seq {
		s.seq[i] = sqn.SEQ()
	}
}

// SQN is the highest number accepted, SQN_MS.
func (s *SIM) SQN() SQN { return s.max }

// Response is what a SIM answers to a challenge that it accepts. It is secret.
type Response struct {
	RES    []byte // 8 bytes
	CK, IK [16]byte
}

// String shows nothing.
func (Response) String() string { return hidden }

// GoString is String.
func (Response) GoString() string { return hidden }

// Challenge answers a challenge. The error is ErrMAC, to which there is no
// answer, or ErrSync, to which auts is the answer.
func (s *SIM) Challenge(rand, autn [16]byte) (r Response, auts [AUTSSize]byte, err error) {
	res, ck, ik, sqn, _, err := s.Answer(rand, autn)
	if err != nil {
		return r, auts, err
	}
	if !s.fresh(sqn) {
		return r, s.AUTS(rand, s.max), ErrSync
	}
	s.seq[sqn.IND()] = sqn.SEQ()
	s.max = max(s.max, sqn)
	return Response{RES: res, CK: ck, IK: ik}, auts, nil
}

func (s *SIM) fresh(sqn SQN) bool {
	seq, highest := sqn.SEQ(), s.max.SEQ()
	switch {
	case s.Delta != 0 && seq > highest && seq-highest > s.Delta:
		return false
	case s.Limit != 0 && seq < highest && highest-seq >= s.Limit:
		return false
	}
	return seq > s.seq[sqn.IND()]
}
