package assignment

import "time"

const (
	// settle is how long a group is served before it gives anybody up: a
	// process that was started by mistake, without what the right one holds,
	// has been refused by then.
	settle         = 15 * time.Second
	reconcileEvery = 5 * time.Minute
	maxFound       = 10000 // users found in one look; the rest at the next, at once
	batch          = 100   // commands proposed in one go
	batchPause     = 100 * time.Millisecond
)

// Reconcile looks, soon and then every few minutes, for users that the state assigns
// to the group and that the group knows nothing of: their registration was lost
// with a disk, or ended while nobody served the group. Each would count as a
// user for ever, and whoever calls it would be sent here in vain.
//
// It is called once, when the group has what its store holds. holds reports
// whether the group has a registration of a user. For one that it has not,
// lose is called: it asks again, with that locked which Hold is called under,
// and then calls Lose. So a registration under way is never mistaken for none.
func (t *Table) Reconcile(holds func(name string) bool, lose func(name string)) {
	t.later(settle, func() { t.find(holds, lose) })
}

// find finds users and gives them up.
func (t *Table) find(holds func(string) bool, lose func(string)) {
	var found []string
	for name, g := range t.cluster.State().Assignments(t.kind) {
		if g != t.group || holds(name) {
			continue
		}
		if found = append(found, name); len(found) == maxFound {
			break
		}
	}
	t.giveUp(found, lose, func() {
		pause := reconcileEvery
		if len(found) == maxFound {
			pause = batchPause
		}
		t.later(pause, func() { t.find(holds, lose) })
	})
}

// giveUp calls lose for each name, at a pace that leaves room for others.
func (t *Table) giveUp(names []string, lose func(string), then func()) {
	n := min(len(names), batch)
	for _, name := range names[:n] {
		lose(name)
	}
	if n == len(names) {
		then()
		return
	}
	t.later(batchPause, func() { t.giveUp(names[n:], lose, then) })
}

// later runs fn unless the table is stopped before.
func (t *Table) later(d time.Duration, fn func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopped {
		t.pending = t.cluster.After(d, fn)
	}
}

// Lose ends the assignment of a user whose registration the group has lost, and
// counts it, unless it has begun to end already.
func (t *Table) Lose(name string) {
	t.mu.Lock()
	g, ok := t.cluster.State().Assignment(t.kind, name)
	if t.users[name] != nil || !ok || g != t.group || t.stopped {
		t.mu.Unlock()
		return
	}
	t.lost, t.lostAt = t.lost+1, time.Now()
	t.mu.Unlock()
	t.Release(name)
}

// Lost is how many users' registrations the group has lost, and when the last
// was found.
func (t *Table) Lost() (n int, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost, t.lostAt
}
