// Package ha keeps the state of workers: contacts, bindings, dialogs,
// pending requests, each a Record under a group and a key.
//
// Store is what the rest of the system sees. Journal is a Store on the disk
// of one machine; Memory is a Store without one.
//
// It does not look into values, does not run timers on expiry and does not
// replicate: who reads a record decides what it means and when it has ended.
//
// # Invariants
//
//   - Seq grows by one with every Put and Delete of a store, across restarts.
//   - durable is called exactly once for each Put and Delete, in the order
//     of Seq, never on the goroutine that called Put.
//   - durable(nil) means: this record, and every one with a lower Seq,
//     survives a power cut.
//   - A directory that belongs to another identity is refused before
//     anything in it is changed.
//
// # Failure modes
//
// A write or sync that fails turns the journal failed for good: what was in
// flight and everything later is answered with that error, since after a
// failed fsync the kernel may have dropped the pages and a retry would lie.
// The records in memory stay readable. A compaction that fails leaves the
// journal as it was and is tried again later. At opening, an incomplete last
// sync group is cut and reported; damage to anything older is ErrCorrupt,
// and the directory is left as it is.
package ha
