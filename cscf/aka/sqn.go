package aka

import "fmt"

// indBits is the length of IND (TS 33.102 §C.3.1).
const indBits = 5

// Inds is how many values IND has: the generators of vectors that can work
// side by side, and the entries of a SIM's table.
const Inds = 1 << indBits

// MaxSEQ is the highest SEQ, 43 bits.
const MaxSEQ = 1<<(48-indBits) - 1

// SQN is a sequence number of 48 bits: SEQ and, in the last five bits, IND
// (TS 33.102 §C.1.1.1).
type SQN uint64

// NewSQN joins SEQ, of which 43 bits count, and IND, of which five do.
func NewSQN(seq uint64, ind int) SQN {
	return SQN(seq&MaxSEQ)<<indBits | SQN(ind)&(Inds-1)
}

func sqnOf(b [6]byte) SQN {
	var n SQN
	for _, x := range b {
		n = n<<8 | SQN(x)
	}
	return n
}

// SEQ is what must grow.
func (n SQN) SEQ() uint64 { return uint64(n>>indBits) & MaxSEQ }

// IND is who made the vector.
func (n SQN) IND() int { return int(n & (Inds - 1)) }

// Bytes is the form in AUTN and AUTS, before AK is added.
func (n SQN) Bytes() [6]byte {
	return [6]byte{byte(n >> 40), byte(n >> 32), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
}

// String is the number in hex, 12 digits.
func (n SQN) String() string { return fmt.Sprintf("%012x", uint64(n)&(1<<48-1)) }
