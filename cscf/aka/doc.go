// Package aka is UMTS authentication and key agreement as IMS uses it (TS
// 33.102 §6.3, TS 33.203 §6.1): the Milenage functions of TS 35.206, the
// authentication vector of the home network, the answer of the SIM, the
// resynchronisation of the two, and their sequence numbers.
//
// It does not speak SIP or digest (RFC 3310 does, on top of it), keeps no
// subscribers and reads no clock: a [Clock] is told the time.
//
// Invariants:
//   - A [Milenage] and what it computes depend on its arguments alone; it is
//     safe for concurrent use, as is a [Clock]. A [SIM] is not.
//   - Sequence numbers that one Clock gives for a user grow strictly, also when
//     the machine's clock steps back.
//   - Nothing prints a key.
//
// Failure modes: a challenge that the key did not make is ErrMAC, one that the
// SIM has seen ErrSync; a sequence number beyond 48 bits cannot be made.
package aka
