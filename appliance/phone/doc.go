// Package phone is a built-in SIP phone: a user agent that registers at a
// P-CSCF with digest, calls, answers, sends messages, and plays and hears tones.
// Demonstrations and tests drive many of them in one process.
//
// A phone speaks SIP over UDP (RFC 3261) as a UE of TS 24.229 without IPsec:
// Route from its P-CSCF and Service-Route, P-Preferred-Identity, in-dialog
// requests by Record-Route, reliable provisional responses (RFC 3262), UPDATE
// (RFC 3311). Messages are parsed and written, and transactions run, by sipgo;
// the socket, the matching of messages to transactions, CANCEL and dialogs are
// this package's. It has one socket for SIP, one for each call's audio, one
// goroutine while it is idle, and two more per call.
//
// It does not do: TCP, TLS, AKA, session timers, strict routing, DNS, more than
// one audio stream, or NAT traversal. It is no load generator: each phone keeps
// real transactions and plays real audio.
//
// Invariants: datagrams are handled one by one in the order in which they came,
// so that a CANCEL cannot overtake its INVITE; a response leaves from the socket
// that received the request; everything that the far end can make a phone keep
// is bounded (maxCalls, maxServers, maxMessages, maxDatagram). Close returns when
// every goroutine of the phone has ended; it says goodbye once (BYE or CANCEL)
// and does not wait for the answer.
//
// Failures: what cannot be parsed is answered 400 or dropped; a core that does
// not answer ends a call or REGISTER after 32 s (RFC 3261, Timers B and F), and
// refreshes of a registration are tried again until they work.
//
// Locks: none is held while another is taken, or while a message is sent, but
// call.audioMu, under which the clock and the session of the audio take theirs.
package phone
