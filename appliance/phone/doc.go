// Package phone is a built-in SIP phone: a user agent that registers at a
// P-CSCF with digest or AKA (RFC 3310), calls, answers, sends messages, and plays
// and hears tones. Demonstrations and tests drive many of them in one process.
//
// A phone speaks SIP over UDP or TCP, IPv4 or IPv6 (RFC 3261) as a UE of TS
// 24.229 without IPsec, so it has no use for the keys CK and IK: Route from its
// P-CSCF and Service-Route, P-Preferred-Identity, in-dialog requests by
// Record-Route, reliable provisional responses (RFC 3262), UPDATE (RFC 3311).
// Messages are parsed and written, and transactions run, by sipgo;
// the sockets, the matching of messages to transactions, CANCEL and dialogs are
// this package's. It has one socket for SIP, one for each call's audio, one
// goroutine while it is idle, and two more per call. Over TCP it has one
// connection to the P-CSCF for requests both ways, kept alive by CRLF (RFC 5626
// §4.4.1), and another goroutine for that; it connects from the address in its
// Contact and does not listen.
//
// It does not do: TLS, session timers, strict routing, DNS, more than one audio
// stream, or NAT traversal. It is no load generator: each phone keeps real
// transactions and plays real audio.
//
// Invariants: messages are handled one by one in the order in which they came,
// so that a CANCEL cannot overtake its INVITE; a response leaves from the socket
// that received the request; everything that the far end can make a phone keep
// is bounded (maxCalls, maxServers, maxMessages, maxDatagram, sipmsg.MaxSize).
// Close returns when every goroutine of the phone has ended; it says goodbye once
// (BYE or CANCEL) and does not wait for the answer.
//
// Failures: what cannot be parsed is answered 400 or dropped; a core that does
// not answer ends a call or REGISTER after 32 s (RFC 3261, Timers B and F), and
// refreshes of a registration are tried again until they work. A broken
// connection ends the requests that wait for their answers, not the calls; it is
// made again with growing pauses, and the phone registers again over it.
//
// Locks: none is held while another is taken, or while a message is sent, but
// call.audioMu, under which the clock and the session of the audio take theirs.
package phone
