// Package g711 converts between 16-bit linear PCM at 8 kHz and the A-law and
// mu-law octets of ITU-T G.711.
//
// It holds no state: every function depends on its arguments only. It does no
// packet loss concealment, no comfort noise and no resampling. Decoding an
// octet and encoding the result gives the octet back, with one exception: the
// two zeros of mu-law both decode to 0, which encodes to 0xFF.
package g711

import "math/bits"

// Law is one of the two companding laws. Its value is the static RTP payload
// type of the law (RFC 3551 §6, table 4).
type Law uint8

// The laws by their RTP payload type.
const (
	PCMU Law = 0 // mu-law
	PCMA Law = 8 // A-law
)

// Rate is the number of samples per second of both laws.
const Rate = 8000

// Valid reports whether l is PCMU or PCMA. The other methods treat an invalid
// law as PCMU.
func (l Law) Valid() bool { return l == PCMU || l == PCMA }

// String returns the encoding name of RFC 3551: "PCMU" or "PCMA".
func (l Law) String() string {
	if l == PCMA {
		return "PCMA"
	}
	return "PCMU"
}

// Encode appends one octet for each sample of pcm to dst and returns it.
func (l Law) Encode(dst []byte, pcm []int16) []byte {
	if l == PCMA {
		for _, s := range pcm {
			dst = append(dst, encodeA(s))
		}
		return dst
	}
	for _, s := range pcm {
		dst = append(dst, encodeU(s))
	}
	return dst
}

// Decode appends one sample for each octet of b to dst and returns it.
func (l Law) Decode(dst []int16, b []byte) []int16 {
	table := &decodedU
	if l == PCMA {
		table = &decodedA
	}
	for _, o := range b {
		dst = append(dst, table[o])
	}
	return dst
}

// Silence is the octet that decodes to the level nearest to zero.
func (l Law) Silence() byte {
	if l == PCMA {
		return encodeA(0)
	}
	return encodeU(0)
}

const (
	invertA = 0x55 // A-law inverts every second bit (G.711 §3.1, note to table 1a)
	biasU   = 132  // 33 in the 14-bit domain of G.711, shifted to 16 bits
	clipU   = 32767 - biasU
)

// encodeA works on the magnitude: three bits name the segment, which is linear
// in its first two, and four bits the step within it (G.711 table 1).
func encodeA(s int16) byte {
	sign := byte(0x80)
	m := uint16(s)
	if s < 0 {
		sign = 0
		m = ^uint16(s) // -s-1: the decision values of both signs mirror each other
	}
	m >>= 3 // A-law has 13 bits with sign
	var o byte
	if m < 64 {
		o = byte(m >> 1)
	} else {
		seg := bits.Len16(m) - 5
		o = byte(seg)<<4 | byte(m>>seg)&0x0f
	}
	return (o | sign) ^ invertA
}

func decodeA(o byte) int16 {
	o ^= invertA
	seg := o >> 4 & 0x07
	m := int16(o&0x0f)<<4 | 0x08
	if seg > 0 {
		m = (m | 0x100) << (seg - 1)
	}
	if o&0x80 == 0 {
		return -m
	}
	return m
}

// encodeU works on the biased magnitude, which makes every segment start at a
// power of two (G.711 table 2).
func encodeU(s int16) byte {
	sign := byte(0)
	m := int(s)
	if m < 0 {
		sign = 0x80
		m = -m
	}
	m = min(m, clipU) + biasU
	seg := bits.Len(uint(m)) - 8
	return ^(sign | byte(seg)<<4 | byte(m>>(seg+3))&0x0f)
}

func decodeU(o byte) int16 {
	o = ^o
	seg := o >> 4 & 0x07
	m := (int16(o&0x0f)<<3+biasU)<<seg - biasU
	if o&0x80 != 0 {
		return -m
	}
	return m
}

var decodedA, decodedU = table(decodeA), table(decodeU)

func table(decode func(byte) int16) (t [256]int16) {
	for i := range t {
		t[i] = decode(byte(i))
	}
	return t
}
