package workerproc

import (
	"context"
	"maps"
	"slices"
	"syscall"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/cscf/sipmsg"
)

const reportEvery = time.Second

// report tells every front the load of this process's workers each second.
func (p *Process) report(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	cpu, at := cpuTime(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		nextCPU, now := cpuTime(), time.Now()
		m := workerlink.LoadMsg{CPU: (nextCPU - cpu).Seconds() / now.Sub(at).Seconds()}
		cpu, at = nextCPU, now
		engines := *p.engines.Load()
		for _, id := range slices.Sorted(maps.Keys(engines)) {
			e := engines[id]
			f := e.figures()
			m.Groups = append(m.Groups, workerlink.GroupLoad{
				Group: id, Load: float64(e.inFlight.Load()) + m.CPU, Users: f.users, Calls: f.calls,
				InFlight: int(e.inFlight.Load()), Messages: e.messages.Load(),
			})
		}
		if err := p.store.Err(); err != nil {
			m.StoreError = err.Error()
		}
		rs := p.router.Stats()
		m.Executors, m.Queued, m.Delay = rs.Executors, rs.Queued, rs.QueueDelay
		p.countMu.Lock()
		m.Dropped = maps.Clone(p.counts)
		p.countMu.Unlock()
		p.links.broadcast(workerlink.Load, workerlink.Encode(m))
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
func (c core) Bind(f sipmsg.Flow, until time.Time) {
	f.Node = string([]byte(f.Node)) // the key outlives the message's buffer
	c.e.flowMu.Lock()
	c.e.flows[f] = until
	c.e.flowMu.Unlock()
	c.e.p.bind(c.e.group.ID, f, until)
}

// Unbind forgets a flow.
func (c core) Unbind(f sipmsg.Flow) {
	c.e.flowMu.Lock()
	delete(c.e.flows, f)
	c.e.flowMu.Unlock()
	c.e.p.bind(c.e.group.ID, f, time.Time{})
}

func (p *Process) bind(group uint32, f sipmsg.Flow, until time.Time) {
	c := p.links.front(f.Node)
	if c == nil {
		return // told when the link is back
	}
	m := workerlink.BindMsg{Flow: f, Group: group}
	if !until.IsZero() {
		m.Until = until.UnixMilli()
	}
	if c.Notify(workerlink.Bind, workerlink.Encode(m)) != nil {
		p.count("link_full")
	}
}

// sendFlows tells a front that came back every flow of its own.
func (p *Process) sendFlows(node string, c *link.Conn) {
	now := time.Now()
	for id, e := range *p.engines.Load() {
		e.flowMu.Lock()
		for f, until := range e.flows {
			if until.Before(now) {
				delete(e.flows, f)
				continue
			}
			if f.Node == node {
				m := workerlink.BindMsg{Flow: f, Group: id, Until: until.UnixMilli()}
				_ = c.Notify(workerlink.Bind, workerlink.Encode(m)) // a link that breaks begins again
			}
		}
		e.flowMu.Unlock()
	}
}
