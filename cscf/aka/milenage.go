package aka

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
)

// ErrMAC means that a challenge was not made with the SIM's key (TS 33.102
// §6.3.3, "MAC failure"), or was changed on its way.
var ErrMAC = errors.New("open an AKA challenge: wrong MAC")

// Key is K, OP or OPc, 128 bits (TS 35.206 §3). It prints as "(hidden)".
type Key [16]byte

const hidden = "(hidden)"

func (Key) String() string               { return hidden }
func (Key) GoString() string             { return hidden }
func (Key) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Format hides the key from every verb, %x included.
func (Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// OPc derives a subscriber's OPc from the operator's OP (TS 35.206 §4.1).
func OPc(k, op Key) Key {
	m := Milenage{block: cipherOf(k)}
	var out Key
	m.block.Encrypt(out[:], op[:])
	return xor(out, op)
}

// Milenage computes the functions f1 to f5* of one subscriber (TS 35.206). It
// is safe for concurrent use.
type Milenage struct {
	block cipher.Block
	opc   Key
}

// New returns the functions for a key K and its OPc.
func New(k, opc Key) *Milenage { return &Milenage{block: cipherOf(k), opc: opc} }

func cipherOf(k Key) cipher.Block {
	b, err := aes.NewCipher(k[:])
	if err != nil {
		panic(err) // 16 bytes are always a key
	}
	return b
}

func xor(a, b [16]byte) (out [16]byte) {
	subtle.XORBytes(out[:], a[:], b[:])
	return out
}

// temp is TEMP of TS 35.206 §4.1: the challenge under the key.
func (m *Milenage) temp(rand [16]byte) (out [16]byte) {
	in := xor(rand, m.opc)
	m.block.Encrypt(out[:], in[:])
	return out
}

// out is one of OUT2 to OUT5: TEMP, rotated left by whole bytes, with the
// constant in its last byte.
func (m *Milenage) out(temp [16]byte, rotate int, constant byte) (out [16]byte) {
	in := xor(temp, m.opc)
	var turned [16]byte
	for i := range turned {
		turned[i] = in[(i+rotate)%16]
	}
	turned[15] ^= constant
	m.block.Encrypt(out[:], turned[:])
	return xor(out, m.opc)
}

// f1 computes MAC-A and MAC-S, the network's and the SIM's proof.
func (m *Milenage) f1(rand [16]byte, sqn SQN, amf [2]byte) (a, s [8]byte) {
	six := sqn.Bytes()
	var in1 [16]byte
	copy(in1[:], six[:])
	copy(in1[6:], amf[:])
	copy(in1[8:], in1[:8])
	in1 = xor(in1, m.opc)
	temp := m.temp(rand)
	var turned [16]byte
	for i := range turned {
		turned[i] = in1[(i+8)%16]
	}
	turned = xor(turned, temp)
	var out [16]byte
	m.block.Encrypt(out[:], turned[:])
	out = xor(out, m.opc)
	return [8]byte(out[:8]), [8]byte(out[8:])
}

// f2345 computes RES, CK, IK and AK.
func (m *Milenage) f2345(rand [16]byte) (res [8]byte, ck, ik [16]byte, ak [6]byte) {
	temp := m.temp(rand)
	out := m.out(temp, 0, 1)
	return [8]byte(out[8:]), m.out(temp, 4, 2), m.out(temp, 8, 4), [6]byte(out[:6])
}

// f5star computes AK*, which hides the sequence number in an AUTS.
func (m *Milenage) f5star(rand [16]byte) [6]byte {
	out := m.out(m.temp(rand), 12, 8)
	return [6]byte(out[:6])
}

// Vector is an authentication vector (TS 33.102 §6.3.2). XRES, CK and IK are
// secret.
type Vector struct {
	RAND [16]byte
	AUTN [16]byte // SQN xor AK, AMF, MAC-A
	XRES []byte   // 8 bytes
	CK   [16]byte
	IK   [16]byte
}

// String shows what the phone is sent, and no secret.
func (v Vector) String() string { return fmt.Sprintf("{RAND %x AUTN %x}", v.RAND[:], v.AUTN[:]) }

// GoString is String.
func (v Vector) GoString() string { return v.String() }

// LogValue is String.
func (v Vector) LogValue() slog.Value { return slog.StringValue(v.String()) }

// Vector makes the vector of a challenge. rand must be fresh and random, sqn
// greater than any before it for the same user and IND.
func (m *Milenage) Vector(rand [16]byte, sqn SQN, amf [2]byte) Vector {
	mac, _ := m.f1(rand, sqn, amf)
	res, ck, ik, ak := m.f2345(rand)
	v := Vector{RAND: rand, XRES: res[:], CK: ck, IK: ik}
	six := sqn.Bytes()
	subtle.XORBytes(v.AUTN[:6], six[:], ak[:])
	copy(v.AUTN[6:], amf[:])
	copy(v.AUTN[8:], mac[:])
	return v
}

// Answer opens a challenge: what the SIM does, and what the home network does
// to recognise a challenge of its own. The error is ErrMAC. Whether sqn is
// fresh is for the caller to judge; see [SIM].
func (m *Milenage) Answer(rand, autn [16]byte) (res []byte, ck, ik [16]byte, sqn SQN, amf [2]byte, err error) {
	r, ck, ik, ak := m.f2345(rand)
	var six [6]byte
	subtle.XORBytes(six[:], autn[:6], ak[:])
	sqn, amf = sqnOf(six), [2]byte(autn[6:8])
	mac, _ := m.f1(rand, sqn, amf)
	if subtle.ConstantTimeCompare(mac[:], autn[8:]) != 1 {
		return nil, [16]byte{}, [16]byte{}, 0, amf, ErrMAC
	}
	return r[:], ck, ik, sqn, amf, nil
}

// AUTSSize is the length of an AUTS in bytes (TS 33.102 §6.3.3).
const AUTSSize = 14

// resyncAMF stands for the AMF in an AUTS (TS 33.102 §6.3.3).
var resyncAMF = [2]byte{}

// AUTS tells the network, in answer to the challenge rand, the highest
// sequence number that the SIM has accepted.
func (m *Milenage) AUTS(rand [16]byte, sqnMS SQN) (auts [AUTSSize]byte) {
	_, mac := m.f1(rand, sqnMS, resyncAMF)
	ak := m.f5star(rand)
	six := sqnMS.Bytes()
	subtle.XORBytes(auts[:6], six[:], ak[:])
	copy(auts[6:], mac[:])
	return auts
}

// OpenAUTS reads an AUTS that answers the challenge rand; false if the SIM
// with this key did not make it (TS 33.102 §6.3.5).
func (m *Milenage) OpenAUTS(rand [16]byte, auts [AUTSSize]byte) (SQN, bool) {
	ak := m.f5star(rand)
	var six [6]byte
	subtle.XORBytes(six[:], auts[:6], ak[:])
	sqn := sqnOf(six)
	_, mac := m.f1(rand, sqn, resyncAMF)
	return sqn, subtle.ConstantTimeCompare(mac[:], auts[6:]) == 1
}
