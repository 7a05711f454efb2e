// Package transaction is the transaction layer and the response context of
// a stateful SIP proxy and user agent server: RFC 3261 §16 and §17 as
// corrected by RFC 6026 (2xx to INVITE), RFC 4320 (non-INVITE), RFC 3581
// (rport) and RFC 5393 (loops and breadth). Where a message goes is the role's decision.
//
// A [Layer] serves one engine (one group) in one shard of the event router.
// A new request becomes a [Request], the server transaction and its response
// context. The role, a [User], answers it ([Request.Reply]) or forwards it to
// targets ([Request.Forward]); the layer then owns Max-Forwards, Max-Breadth, loops,
// Via, strict next hops, 100, retransmission, forking, CANCEL, Timer C, the best response, and the ACK of
// every non-2xx.
//
// What it does not do: it opens no socket and resolves no name, starts no
// goroutine and holds no lock. It does not route, record-route, authenticate
// or keep dialogs. It does not repeat a 2xx that the role itself answered to
// an INVITE (RFC 3261 §13.3.1.4 gives that to the user agent core).
//
// Invariants:
//   - All methods, and the callbacks of [Env.After] and [Env.Post], run in the
//     layer's shard, one at a time. [Env.Send] may deliver to another layer,
//     or back to this one, before it returns: such a message waits until the
//     event in hand is done.
//   - Branches and To tags are a keyed hash of the request as it came, so a
//     repeated INVITE goes on as the same downstream transaction in any layer
//     that has the same secret, SentBy and Token.
//   - What was sent to an engine is answered by that engine, what was sent over
//     a flow by the same host: other responses are dropped. Only the source of a
//     request cancels it.
//   - Every transaction ends by a timer at the latest, and a Request that its
//     role forgets ends too, so the tables empty themselves. What strangers are
//     told leaves nothing behind ([Request.ReplyStateless]) or is bounded
//     ([Config.Refusals]).
//
// Failure modes: beyond [Config.Max] server transactions new requests are
// answered 503 without state. A peer that is silent costs 64*T1 and counts as
// 408 (RFC 3261 §16.8); one that is known to be gone ([Layer.Unreachable])
// counts as 503 at once. After a restart or takeover the fresh layer hands
// responses of its predecessor's transactions to [User.Stray], and their ACKs
// to [User.Ack]; relayed by [Layer.Relay] these get the same branch.
package transaction
