// Package eventrouter runs events on executors, those of one key in order and
// one at a time.
//
// A key belongs to one of Shards virtual shards for good. A shard is a FIFO
// mailbox with at most one runner; executors (goroutines, from Config.Floor
// to Config.Cap) take the head of a shard that is ready, run it, and come
// back. So the number of executors changes without any key moving.
//
// It does not look into events, knows no clock but the monotonic one, and
// answers nothing on the wire: who is refused says so to its peer.
//
// # Invariants
//
//   - Events of a shard run in the order in which they were taken in, never
//     two at a time, whoever runs them.
//   - Only Submit runs handlers on its caller's goroutine, and only Submit
//     (never inside a handler) and Offer (at most its wait) wait.
//   - What Offer takes in is bounded by Config.HardLimit. Post is not: its
//     callers are handlers, timers and callbacks, bounded by what they serve.
//   - One mutex guards everything and is never held while a handler runs.
//
// # Which shard is next
//
// A shard waits in the list of the most important class in its mailbox, so an
// urgent event pulls those before it along. Executors serve the lists by
// deficit round-robin with one event as the unit, so no class starves.
//
// # Growth
//
// Occupancy counts only events that another executor could start: those
// behind a running one are no reason to grow, else one hot key would double
// the executors for ever. At 40 % the executors double, one step per 100 ms.
// After 30 s below 10 % they shrink, no lower than those that are busy.
//
// # Failure modes
//
// Overload: Offer sheds, the least important class first. A handler that
// never returns holds its shard and one executor. A handler that panics ends
// the process, unless Config.OnPanic is set.
package eventrouter
