// Package sipmsg reads and edits SIP messages without rewriting them.
//
// A [Message] keeps the bytes that came from the wire and an index of their
// header lines. Edits change single lines; on output every line that nobody
// touched, and the body, leave byte for byte as they came, so a proxy never
// damages what it does not understand. Reading a message into a reused
// Message allocates nothing.
//
// The package does no input or output, knows no transactions, dialogs or
// roles, and does not look into bodies. It imports no other package of this
// module.
//
// Invariants: strings returned by a Message, and by values parsed from them,
// point into the raw bytes, which must not change while any of them is in use.
// A Message is for one goroutine at a time; clones may be used by different
// ones. After Parse returned nil, the start line, Via, Route, From, To, Call-ID,
// CSeq, Max-Forwards and Content-Length are well formed.
//
// Failure modes: input that must not be processed gives an [Error] with the
// status to answer, or status 0 for what must be dropped in silence; nothing
// panics, and work and memory are linear in the size of the input, which is
// limited by [MaxSize], [MaxHeaders] and [MaxParams].
package sipmsg
