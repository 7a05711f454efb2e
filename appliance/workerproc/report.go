package workerproc

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/cscf/sipmsg"
)

const (
	reportEvery = time.Second
	fullPause   = 10 * time.Millisecond // before a full link is tried again
)

// report tells every front the load of this process's workers each second.
func (p *Process) report(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	cpu, at := cpuTime(), time.Now()
	var mem memory
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		nextCPU, now := cpuTime(), time.Now()
		m := workerlink.LoadMsg{CPU: (nextCPU - cpu).Seconds() / now.Sub(at).Seconds()}
		cpu, at = nextCPU, now
		mem.look(m.CPU, now)
		engines := *p.engines.Load()
		for _, id := range slices.Sorted(maps.Keys(engines)) {
			e := engines[id]
			f := e.figures()
			l := workerlink.GroupLoad{
				Group: id, Load: float64(e.inFlight.Load()) + m.CPU, Users: f.users, Calls: f.calls,
				InFlight: int(e.inFlight.Load()), Messages: e.messages.Load(), Rejected: f.rejected,
			}
			if f.lost > 0 {
				l.Lost, l.LostAgo = f.lost, now.Sub(f.lostAt)
			}
			m.Groups = append(m.Groups, l)
		}
		if err := p.store.Err(); err != nil {
			m.StoreError = err.Error()
		}
		rs := p.router.Stats()
		m.Executors, m.Queued, m.Delay = rs.Executors, rs.Queued, rs.QueueDelay
		m.Refused = *p.refused.Load()
		p.countMu.Lock()
		m.Dropped = maps.Clone(p.counts)
		p.countMu.Unlock()
		b := workerlink.Encode(m)
		for _, f := range p.links.fronts() {
			_ = f.Notify(workerlink.Load, b) // said again in a second
		}
	}
}

// cpuTime is the CPU time that the process has used, user and system.
func cpuTime() time.Duration {
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// Bind tells the front that owns a flow to whom it belongs, and remembers it
// for when that front comes back.
func (c core) Bind(flow sipmsg.Flow, until time.Time) {
	flow.Node = strings.Clone(flow.Node) // the key outlives the message's buffer
	e := c.e
	e.flowMu.Lock()
	defer e.flowMu.Unlock() // what the front hears last is what is so
	e.flows[flow] = until
	e.change(flow, until)
}

// Unbind forgets a flow.
func (c core) Unbind(flow sipmsg.Flow) {
	e := c.e
	e.flowMu.Lock()
	defer e.flowMu.Unlock()
	delete(e.flows, flow)
	e.change(flow, time.Time{})
}

// change tells the front of a flow what is new; one that is not linked hears
// it when it is back. flowMu is held.
func (e *engine) change(flow sipmsg.Flow, until time.Time) {
	if f := e.p.links.front(flow.Node); f != nil && e.tellFlow(f, flow, until) != nil {
		e.p.count("link_full")
	}
}

// tellFlow tells a front until when a flow of its own belongs to the engine;
// the zero time ends that. flowMu is held.
func (e *engine) tellFlow(f *front, flow sipmsg.Flow, until time.Time) error {
	m := workerlink.BindMsg{Flow: flow, Group: e.group.ID}
	if !until.IsZero() {
		m.Until = until.UnixMilli()
	}
	return f.Notify(workerlink.Bind, workerlink.Encode(m))
}

// tellFlows tells a front that came every flow of its own. It waits while the
// link is full, and ends with it.
func (e *engine) tellFlows(f *front) {
	e.flowMu.Lock()
	var own []sipmsg.Flow
	for flow := range e.flows {
		if flow.Node == f.node {
			own = append(own, flow)
		}
	}
	e.flowMu.Unlock()
	for _, flow := range own {
		for errors.Is(e.tellAgain(f, flow), link.ErrFull) {
			select {
			case <-f.Done():
				return
			case <-time.After(fullPause):
			}
		}
	}
}

// tellAgain tells a flow if it is still bound.
func (e *engine) tellAgain(f *front, flow sipmsg.Flow) error {
	e.flowMu.Lock()
	defer e.flowMu.Unlock()
	until, ok := e.flows[flow]
	if !ok {
		return nil
	}
	return e.tellFlow(f, flow, until)
}
