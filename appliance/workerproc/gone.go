package workerproc

import (
	"slices"
	"sync"
	"time"

	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// maxAwaited bounds the flows of one generation that are remembered because a
// request was sent over them.
const maxAwaited = 100_000

// awaited remembers in which shards of an engine requests were sent over
// connections, so that when one ends only these have to be told. An entry lives
// for one to two generations of 64·T1: a client transaction that has heard
// nothing by then is over.
type awaited struct {
	mu       sync.Mutex
	now, old map[sipmsg.Flow][]int
	turned   time.Time
}

// note remembers that a request was sent over a flow.
func (a *awaited) note(flow sipmsg.Flow, shard int, at time.Time, keep time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if age := at.Sub(a.turned); a.now == nil || age >= keep || len(a.now) >= maxAwaited {
		a.old, a.now, a.turned = a.now, map[sipmsg.Flow][]int{}, at
		if age > 2*keep {
			a.old = nil
		}
	}
	if shards := a.now[flow]; !slices.Contains(shards, shard) {
		a.now[flow] = append(shards, shard)
	}
}

// take returns the shards of a flow, and forgets it.
func (a *awaited) take(flow sipmsg.Flow) []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	shards := a.now[flow]
	for _, s := range a.old[flow] {
		if !slices.Contains(shards, s) {
			shards = append(shards, s)
		}
	}
	delete(a.now, flow)
	delete(a.old, flow)
	return shards
}

// gone lets every request fail at once that waits for a first answer over a
// flow whose connection ended, or could not be made. The front has forgotten
// that the flow is a phone's, and need not be told again.
func (p *Process) gone(flow sipmsg.Flow) {
	for _, e := range *p.engines.Load() {
		e.flowMu.Lock()
		delete(e.flows, flow)
		e.flowMu.Unlock()
		for _, shard := range e.awaited.take(flow) {
			e.unreachable(shard, transaction.Peer{Flow: flow})
		}
	}
}

// unreachable tells the layer of a shard that nothing can be sent to a peer.
func (e *engine) unreachable(shard int, to transaction.Peer) {
	e.p.router.Post(shard, event{eng: e, fn: func() {
		if l := e.layers[shard]; l != nil {
			l.Unreachable(to)
		}
	}})
}

// isRequest reports whether a message that we wrote is a request.
func isRequest(raw []byte) bool { return len(raw) > 4 && string(raw[:4]) != "SIP/" }
