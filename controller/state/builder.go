package state

import "fmt"

// builder makes a state from a snapshot's records and refuses what a State
// could never hold, so that a decoded state is as good as an applied one.
type builder struct {
	c       *change
	older   table[Result]
	records int
	counted map[GroupID]int // users seen per group
	done    bool
}

func newBuilder() *builder {
	return &builder{c: New().change(), older: open(New().older), counted: make(map[GroupID]int)}
}

func (b *builder) state() *State { return b.c.commit() }

// add takes the next record, encoded.
func (b *builder) add(raw []byte) error {
	var r record
	if err := decMode.Unmarshal(raw, &r); err != nil {
		return err
	}
	if b.records == 0 && r.Head == nil {
		return fmt.Errorf("the first record is not a head")
	}
	var err error
	switch {
	case r.Head != nil:
		err = b.head(r.Head)
	case r.Setting != nil:
		if err = r.Setting.validate(); err == nil {
			b.c.settings.put(r.Setting.Name, r.Setting.Value)
		}
	case r.Node != nil:
		if err = r.Node.validate(); err == nil {
			b.c.nodes.put(r.Node.Name, *r.Node)
		}
	case r.Worker != nil:
		err = b.worker(*r.Worker)
	case r.Group != nil:
		err = b.group(*r.Group)
	case r.Subscriber != nil:
		err = b.subscriber(*r.Subscriber)
	case r.Ban != nil:
		if err = r.Ban.validate(); err == nil {
			b.c.bans.put(banKey(r.Ban.Prefix), *r.Ban)
		}
	case r.Assignments != nil:
		err = b.assignments(r.Assignments)
	case r.Requests != nil:
		b.requests(r.Requests)
	case r.End != nil:
		err = b.end(r.End)
	default:
		err = fmt.Errorf("record %d is of an unknown sort", b.records)
	}
	b.records++
	return err
}

func (b *builder) head(h *head) error {
	if b.records != 0 {
		return fmt.Errorf("record %d is a second head", b.records)
	}
	if h.Version < 1 || h.Version > Version {
		return fmt.Errorf("snapshot version %d is not supported, only up to %d", h.Version, Version)
	}
	if h.ClusterID != "" {
		if err := (&Init{h.ClusterID, h.Name, h.Secret}).validate(); err != nil {
			return err
		}
	}
	s := &b.c.s
	s.index, s.clusterID, s.name, s.secret, s.lastGroup = h.Index, h.ClusterID, h.Name, h.Secret, h.LastGroup
	return nil
}

func (b *builder) worker(w Worker) error {
	if err := w.validate(); err != nil {
		return err
	}
	if _, ok := b.c.nodes.get(w.Node); !ok {
		return fmt.Errorf("worker %s is on unknown node %s", w.ID, w.Node)
	}
	b.c.workers.put(w.ID, w)
	return nil
}

func (b *builder) group(g Group) error {
	home, ok := b.c.workers.get(g.Home)
	if !ok || home.Group != g.ID || home.Kind != g.Kind || g.ID == 0 || g.ID > b.c.s.lastGroup {
		return fmt.Errorf("group %d does not match its home worker %q", g.ID, g.Home)
	}
	if g.Users < 0 {
		return fmt.Errorf("group %d has %d users", g.ID, g.Users)
	}
	b.c.groups.put(groupKey(g.ID), g)
	return nil
}

func (b *builder) subscriber(sub Subscriber) error {
	if err := sub.Validate(); err != nil {
		return err
	}
	if _, ok := b.c.subscribers.get(sub.IMPI); ok {
		return fmt.Errorf("subscriber %s is there twice", sub.IMPI)
	}
	for _, id := range sub.Identities {
		if other, ok := b.c.identities.get(id.URI); ok {
			return fmt.Errorf("identity %s belongs to %s and %s", id.URI, other, sub.IMPI)
		}
	}
	b.c.addSubscriber(sub)
	return nil
}

func (b *builder) assignments(a *assignments) error {
	for _, u := range a.Users {
		if err := checkAssignment(a.Kind, u.User); err != nil {
			return err
		}
		if g, ok := b.c.groups.get(groupKey(u.Group)); !ok || g.Kind != a.Kind {
			return fmt.Errorf("user %s is assigned to unknown %s group %d", u.User, a.Kind, u.Group)
		}
		if _, ok := b.c.assignments.get(assignmentKey(a.Kind, u.User)); ok {
			return fmt.Errorf("user %s is assigned twice", u.User)
		}
		b.c.assignments.put(assignmentKey(a.Kind, u.User), u.Group)
		b.counted[u.Group]++
	}
	return nil
}

func (b *builder) requests(t *requestTable) {
	for _, r := range t.Results {
		if t.Older {
			b.older.put(r.ID, r.Result)
		} else {
			b.c.recent.put(r.ID, r.Result)
		}
	}
}

func (b *builder) end(e *end) error {
	if e.Records != b.records {
		return fmt.Errorf("%d records came of %d", b.records, e.Records)
	}
	for g := range walkValues(b.c.groups.txn.Root()) {
		if b.counted[g.ID] != g.Users {
			return fmt.Errorf("group %d counts %d users but %d are assigned", g.ID, g.Users, b.counted[g.ID])
		}
	}
	if b.c.groups.n != b.c.workers.n {
		return fmt.Errorf("%d workers have %d groups", b.c.workers.n, b.c.groups.n)
	}
	if b.c.recent.n > maxRequests || b.older.n > maxRequests {
		return fmt.Errorf("more than %d requests are remembered", maxRequests)
	}
	b.c.s.older = b.older.txn.Commit()
	b.done = true
	return nil
}
