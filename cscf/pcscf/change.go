package pcscf

import (
	"slices"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/assignment"
	"bellwether/cscf/sipmsg"
	"bellwether/ha"
)

// The functions here change the table. They tell the store, the front and the
// assignment table with mu held, so that these hear of changes in the order in
// which they happened; none of them blocks or calls back into the table.

// registration is what a 200 to REGISTER says.
type registration struct {
	aor          string
	id           uint64   // binding of the phone that registered; 0: it named no contact
	contacts     []string // those of the request
	flow         sipmsg.Flow
	granted      []grant // all contacts of the identity
	serviceRoute []string
	identities   []identity
}

// grant is a contact that the S-CSCF holds.
type grant struct {
	uri     string
	expires time.Time
}

// register brings the bindings of an identity, and of those registered together
// with it, in line with a registration: its contacts are those of the whole set
// (TS 24.229 §5.2.5.1). done hears when all of it is durable and the user is
// assigned.
func (t *table) register(reg registration, now time.Time, done func(error)) {
	both := assignment.Both(done)
	t.mu.Lock()
	defer t.mu.Unlock()

	var last *binding // what the store is told last
	for _, id := range t.set(reg) {
		b := t.byID[id]
		if id == reg.id || b.Gone || slices.ContainsFunc(reg.granted, func(g grant) bool { return b.has(g.uri) }) {
			continue
		}
		t.end(b, now)
		last = b
		if t.arm(b.AOR, now); b.AOR != reg.aor && !t.holds(b.AOR) {
			t.c.users.Release(b.AOR)
		}
	}
	if reg.id != 0 {
		b := &binding{
			ID: reg.id, AOR: reg.aor, Flow: reg.flow,
			ServiceRoute: reg.serviceRoute, Identities: reg.identities,
		}
		for _, uri := range reg.contacts {
			for _, g := range reg.granted {
				if sameURI(uri, g.uri) {
					b.Contacts = append(b.Contacts, uri)
					if g.expires.After(b.Expires) {
						b.Expires = g.expires
					}
				}
			}
		}
		old := t.byID[reg.id]
		switch {
		case len(b.Contacts) > 0:
			t.put(old, b)
			last = b
		case old != nil && !old.Gone:
			t.end(old, now)
			last = old
		}
	}
	if last == nil {
		both(nil)
	} else {
		t.persist(last.ID, both)
	}
	t.arm(reg.aor, now)
	if t.holds(reg.aor) {
		t.c.users.Hold(reg.aor, func(_ state.GroupID, err error) { both(err) })
	} else {
		t.c.users.Release(reg.aor)
		both(nil)
	}
}

// set lists the bindings of the implicit registration set of a registration:
// the 200 names its identities, or what was registered before does.
func (t *table) set(reg registration) []uint64 {
	var ids []uint64
	if p := t.users[reg.aor]; p != nil {
		ids = slices.Clone(p.ids)
	}
	add := func(of []identity) {
		for _, as := range of {
			for _, id := range t.byIdentity[as.AOR] {
				if !slices.Contains(ids, id) {
					ids = append(ids, id)
				}
			}
		}
	}
	add(reg.identities)
	for _, id := range slices.Clone(ids) {
		add(t.byID[id].Identities)
	}
	return ids
}

// holds reports whether an identity has a binding that is not gone.
func (t *table) holds(aor string) bool {
	p := t.users[aor]
	return p != nil && p.live > 0
}

// holding is holds without mu held.
func (t *table) holding(aor string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.holds(aor)
}

// lose ends the assignment of an identity without a binding.
func (t *table) lose(aor string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.holds(aor) {
		t.c.users.Lose(aor)
	}
}

// put adds a live binding in the place of old, which may be nil.
func (t *table) put(old, b *binding) {
	if old != nil {
		if t.drop(old) && old.Flow != b.Flow {
			t.c.core.Unbind(old.Flow)
		}
	}
	t.index(b)
	t.c.core.Bind(b.Flow, b.Expires)
}

// end takes a live binding out of service. If it had dialogs, its flow stays
// for them.
func (t *table) end(b *binding, now time.Time) {
	_, talks := t.dialogs[b.ID]
	if t.drop(b) {
		t.c.core.Unbind(b.Flow)
	}
	if !talks {
		t.persist(b.ID, nil)
		return
	}
	gone := *b
	gone.Gone, gone.Expires = true, now.Add(t.c.cfg.DialogLinger)
	t.index(&gone)
	t.persist(b.ID, nil)
	if len(t.gone) > maxGone {
		t.forget(t.byID[t.gone[0]])
	}
}

// forget removes a binding that is gone.
func (t *table) forget(b *binding) {
	t.drop(b)
	delete(t.dialogs, b.ID)
	t.persist(b.ID, nil)
}

// persist makes the store hold what the table holds.
func (t *table) persist(id uint64, durable func(error)) {
	b := t.byID[id]
	if b == nil {
		t.c.store.Delete(t.c.cfg.Group, (&binding{ID: id}).key(), durable)
		return
	}
	value, err := b.encode()
	if err != nil {
		if durable != nil {
			durable(err)
		}
		return
	}
	t.c.store.Put(t.c.cfg.Group, b.key(), value, b.Expires, durable)
}

// arm makes sure that expire runs when the first binding of an identity ends.
// A timer that is early is left alone: expire arms the next.
func (t *table) arm(aor string, now time.Time) {
	p := t.users[aor]
	if p == nil || t.stopped {
		return
	}
	due := t.byID[p.ids[0]].Expires
	for _, id := range p.ids[1:] {
		if e := t.byID[id].Expires; e.Before(due) {
			due = e
		}
	}
	if p.timer != nil {
		if !due.Before(p.due) {
			return
		}
		p.timer()
	}
	p.due = due
	p.timer = t.c.core.After(due.Sub(now), func() { t.expire(aor, p) })
}

// expire ends what is due.
func (t *table) expire(aor string, p *phones) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped || t.users[aor] != p {
		return
	}
	p.timer = nil
	was := t.holds(aor)
	for _, id := range slices.Clone(p.ids) {
		switch b := t.byID[id]; {
		case now.Before(b.Expires):
		case b.Gone:
			t.forget(b)
		default:
			t.end(b, now)
		}
	}
	if was && !t.holds(aor) {
		t.c.users.Release(aor)
	}
	t.arm(aor, now)
}

// Load takes the group's records from the store, when the worker begins to
// serve the group and before the first request.
func (c *CSCF) Load() {
	t, now := c.table, time.Now()
	var ended []string
	t.mu.Lock()
	defer t.mu.Unlock()
	c.store.Range(c.cfg.Group, func(r ha.Record) bool {
		if !strings.HasPrefix(r.Key, keyPrefix) {
			return true
		}
		b, err := decodeBinding(r)
		switch {
		case err != nil:
			c.log.Error("load a binding", "key", r.Key, "err", err)
		case t.byID[b.ID] != nil:
		case !now.Before(b.Expires):
			ended = append(ended, b.AOR)
			t.persist(b.ID, nil)
		default:
			t.index(b)
			if !b.Gone {
				c.core.Bind(b.Flow, b.Expires)
			}
			t.arm(b.AOR, now)
		}
		return true
	})
	// What ended while nobody served the group.
	for _, aor := range ended {
		if !t.holds(aor) {
			c.users.Release(aor)
		}
	}
	c.users.Reconcile(t.holding, t.lose)
}
