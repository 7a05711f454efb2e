package transaction

import "time"

// timer is one deadline of a transaction. Moving it to a later time arms
// nothing anew: the callback finds the deadline in the future and waits for
// the rest. That saves most of the arming a call would need.
type timer struct {
	due, armed time.Time
	stop       func()
	round      uint32
}

// expirer owns timers; t tells it which one is due.
type expirer interface{ expire(t *timer) }

func (t *timer) set(l *Layer, d time.Duration, owner expirer) {
	t.due = l.env.Now().Add(d)
	if t.stop != nil && !t.armed.After(t.due) {
		return
	}
	t.arm(l, d, owner)
}

func (t *timer) arm(l *Layer, d time.Duration, owner expirer) {
	t.clear()
	round := t.round
	t.armed = t.due
	t.stop = l.env.After(d, func() {
		// A stopped callback may already have been on its way to the shard.
		if round == t.round {
			t.fire(l, owner)
		}
	})
}

func (t *timer) fire(l *Layer, owner expirer) {
	defer l.leave(l.enter())
	t.stop = nil
	t.round++
	if rest := t.due.Sub(l.env.Now()); rest > 0 {
		t.arm(l, rest, owner)
		return
	}
	owner.expire(t)
}

func (t *timer) clear() {
	t.round++
	if t.stop != nil {
		t.stop()
		t.stop = nil
	}
}
