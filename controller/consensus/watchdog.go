package consensus

import (
	"time"

	"github.com/hashicorp/raft"

	"bellwether/controller/state"
)

const (
	watchPeriod = time.Second
	stallTime   = 3 * time.Second
)

// progress judges whether a leader commits. It holds no clock.
type progress struct {
	limit time.Duration
	since time.Time // when the leader last got on, or was not the leader
	last  time.Time // when it was looked at
	index uint64
}

// stalled takes an observation and reports whether this member has led for
// limit without committing anything. A look that comes late, after a freeze of
// the whole process say, begins the time again: it proves nothing about the disk.
func (p *progress) stalled(now time.Time, leads bool, commit uint64) bool {
	late := now.Sub(p.last) > p.limit/2
	p.last = now
	if !leads || commit != p.index || late {
		p.since, p.index = now, commit
		return false
	}
	return now.Sub(p.since) >= p.limit
}

// guard commits an empty batch each second and ends a leader that cannot: with
// its disk hanging it would still send heartbeats, so nobody would replace it.
func (c *Controller) guard() {
	empty, err := state.EncodeBatch(nil)
	if err != nil {
		c.log.Error("the commit watchdog is off", "err", err)
		return
	}
	tick := time.NewTicker(c.cfg.watchPeriod)
	defer tick.Stop()
	p := progress{limit: c.cfg.stallTime}
	attempt := make(chan struct{}, 1) // at most one under way: raft may never answer
	for {
		select {
		case now := <-tick.C:
			leads := c.raft.State() == raft.Leader
			if p.stalled(now, leads, c.raft.CommitIndex()) {
				c.log.Error("this controller leads but cannot commit; its disk hangs?", "node", c.cfg.Node, "for", now.Sub(p.since))
				c.cfg.OnStall()
				return
			}
			if !leads {
				continue
			}
			select {
			case attempt <- struct{}{}:
				go func() {
					defer func() { <-attempt }()
					_ = c.raft.Apply(empty, c.cfg.watchPeriod).Error() // the index tells
				}()
			default:
			}
		case <-c.ctx.Done():
			return
		}
	}
}
