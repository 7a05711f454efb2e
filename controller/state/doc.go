// Package state is the cluster's replicated state: nodes, workers, groups,
// assignments of users to groups, subscribers, bans of addresses and settings.
//
// A [State] is an immutable value. [State.Apply] makes the next one from a
// batch of commands, and is deterministic: equal states and equal batches give
// equal states and equal results on every member, whatever order a Go map
// happens to have. It never panics, whatever a command holds; a command that
// cannot be carried out changes nothing and says why in its [Result].
//
// Choosing a worker by min-user (the group with the fewest users, ties by
// group id) happens inside Apply, so two members cannot choose differently.
//
// The package holds no sockets, clocks, goroutines or files. It does not agree
// on an order of commands; package consensus does. It does not parse SIP: the
// caller gives identities in their canonical form.
//
// Failure modes: a batch that does not decode is an error for its reader; a
// command of a later version is refused with [Unsupported]; a truncated or
// foreign snapshot is refused as a whole.
package state
