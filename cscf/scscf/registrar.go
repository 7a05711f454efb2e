package scscf

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/controller/state"
	"bellwether/cscf/assignment"
	"bellwether/cscf/digest"
	"bellwether/cscf/hss"
	"bellwether/ha"
)

// user is what the group knows of one subscription.
type user struct {
	IMPI     string      `cbor:"1,keyasint"`
	Profile  hss.Profile `cbor:"2,keyasint"`
	Contacts []contact   `cbor:"3,keyasint"`
	// Uses outlives the contacts, or a REGISTER could be replayed after a
	// de-registration.
	Uses digest.Uses `cbor:"4,keyasint"`

	timer   func() // stops it; nil: none runs
	due     time.Time
	counted Figures // its part of the total
}

// registrar holds the users of the group. Contacts slices are replaced, never
// changed, so they may be read without the lock.
type registrar struct {
	c *CSCF

	mu         sync.RWMutex
	users      map[string]*user // by IMPI
	byIdentity map[string]*user // registered ones, by each public identity of their profile
	total      Figures
	stopped    bool
}

func newRegistrar(c *CSCF) *registrar {
	return &registrar{c: c, users: make(map[string]*user), byIdentity: make(map[string]*user)}
}

func (g *registrar) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	for _, u := range g.users {
		if u.timer != nil {
			u.timer()
			u.timer = nil
		}
	}
}

// user returns the user of that IMPI, a new one if there is none, with mu
// held. A new one is not in the table until keep.
func (g *registrar) user(impi string) *user {
	if u := g.users[impi]; u != nil {
		return u
	}
	return &user{IMPI: strings.Clone(impi)}
}

// check has credentials verified, whose use is noted and stored with the
// registration that follows.
func (g *registrar) check(impi string, now time.Time, verify func(*digest.Uses) digest.Verdict) digest.Verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.user(impi)
	v := verify(&u.Uses)
	if v == digest.Right {
		g.users[u.IMPI] = u
		g.arm(u, now)
	}
	return v
}

// update replaces a user's contacts by what change makes of them. The store
// and the assignment table are told with mu held, so that they hear of changes
// in the order in which they happened; neither blocks or calls back into the
// registrar. done hears when all of it is durable and the user is assigned; it
// is not called if change refuses.
func (g *registrar) update(p hss.Profile, now time.Time, change func(old []contact) ([]contact, *refusal), done func(error)) *refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.user(p.IMPI)
	old := u.Contacts
	if u.Profile.Since != p.Since { // they are of a subscription that is gone
		old = nil
	}
	next, no := change(old)
	if no != nil {
		g.persist(u, nil) // the nonce was used all the same
		return no
	}
	g.users[u.IMPI] = u
	g.profile(u, p)
	u.Contacts = next
	g.index(u)
	g.arm(u, now)

	both := assignment.Both(done)
	g.persist(u, both)
	if len(next) == 0 {
		g.c.assigned.Release(u.IMPI)
		both(nil)
		return nil
	}
	g.c.assigned.Hold(u.IMPI, func(group state.GroupID, err error) {
		if err == nil && group != g.c.cfg.Group {
			err = fmt.Errorf("user is assigned to group %d: %w", group, errElsewhere)
		}
		both(err)
	})
	return nil
}

// profile gives a user a profile, with mu held.
func (g *registrar) profile(u *user, p hss.Profile) {
	if u.Profile.Equal(p) {
		return
	}
	g.unindex(u)
	u.Profile = p
}

// index makes a user's identities lead to it while it has contacts.
func (g *registrar) index(u *user) {
	g.count(u)
	if len(u.Contacts) == 0 {
		g.unindex(u)
		return
	}
	for _, id := range u.Profile.Identities {
		g.byIdentity[id.URI] = u
	}
}

func (g *registrar) unindex(u *user) {
	for _, id := range u.Profile.Identities {
		if g.byIdentity[id.URI] == u {
			delete(g.byIdentity, id.URI)
		}
	}
}

// forget drops a user without contacts and without nonces to remember.
func (g *registrar) forget(u *user) {
	g.unindex(u)
	delete(g.users, u.IMPI)
	if u.timer != nil {
		u.timer()
		u.timer = nil
	}
}

// ends is when something of a user ends next; zero: nothing does.
func (g *registrar) ends(u *user) time.Time {
	var due time.Time
	for i := range u.Contacts {
		if e := u.Contacts[i].Expires; due.IsZero() || e.Before(due) {
			due = e
		}
	}
	if due.IsZero() {
		due = u.Uses.Until(g.c.cfg.Digest.Lifetime())
	}
	return due
}

// arm makes sure that expire runs when something of a user ends. A timer that
// is early is left alone: expire arms the next.
func (g *registrar) arm(u *user, now time.Time) {
	due := g.ends(u)
	if due.IsZero() || g.stopped {
		return
	}
	if u.timer != nil {
		if !due.Before(u.due) {
			return
		}
		u.timer()
	}
	u.due = due
	u.timer = g.c.core.After(due.Sub(now), func() { g.expire(u) })
}

// expire removes the contacts whose time is over (TS 24.229 §5.4.1.4), and in
// the end the user.
func (g *registrar) expire(u *user) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped || g.users[u.IMPI] != u {
		return
	}
	u.timer = nil
	next := slices.DeleteFunc(slices.Clone(u.Contacts), func(a contact) bool { return !now.Before(a.Expires) })
	if len(next) != len(u.Contacts) {
		u.Contacts = next
		g.index(u)
		if len(next) == 0 {
			g.deregistered(u, hss.TimeoutDeregistration)
		}
	} else if len(next) == 0 && !now.Before(g.ends(u)) {
		g.forget(u)
	} else {
		g.arm(u, now)
		return
	}
	g.persist(u, nil)
	g.arm(u, now)
}

// drop forgets the contacts of a user whom another group serves.
func (g *registrar) drop(impi string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := g.users[impi]
	if u == nil {
		return
	}
	u.Contacts = nil
	g.index(u)
	g.c.assigned.Release(impi)
	g.persist(u, nil)
	g.arm(u, time.Now())
}

// holds reports whether a user has a contact.
func (g *registrar) holds(impi string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.has(impi)
}

// has is holds, with mu held.
func (g *registrar) has(impi string) bool {
	u := g.users[impi]
	return u != nil && len(u.Contacts) > 0
}

// lose ends the assignment of a user who has no contact.
func (g *registrar) lose(impi string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.has(impi) {
		g.c.assigned.Lose(impi)
	}
}

// bound returns the contacts of an implicit registration set of a user.
func (g *registrar) bound(impi string, set int, now time.Time) []contact {
	g.mu.RLock()
	defer g.mu.RUnlock()
	var out []contact
	if u := g.users[impi]; u != nil {
		for _, a := range u.Contacts {
			if a.Set == set && now.Before(a.Expires) {
				out = append(out, a)
			}
		}
	}
	return out
}

// owns reports whether a public identity is one of a user, now or when the user
// registered. A user of whom nothing is known any more may still leave a call.
func (g *registrar) owns(impi, aor string) bool {
	if impi == "" {
		return false
	}
	known := false
	if g.c.live != nil {
		if p, ok := g.c.live.Profile(impi); ok {
			known = true
			if _, ok := p.Identity(aor); ok {
				return true
			}
		}
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if u := g.users[impi]; u != nil && u.Profile.IMPI != "" {
		_, ok := u.Profile.Identity(aor)
		return ok
	}
	return !known
}

// registered reports whether the group serves the identity.
func (g *registrar) registered(aor string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.byIdentity[aor] != nil
}

// deregistered ends the assignment of a user and tells the HSS.
func (g *registrar) deregistered(u *user, why hss.AssignmentType) {
	g.c.assigned.Release(u.IMPI)
	if len(u.Profile.Identities) > 0 {
		q := hss.ServerAssignment{IMPI: u.IMPI, IMPU: u.Profile.Identities[0].URI, Server: g.c.cfg.Group, Type: why}
		g.c.cfg.HSS.ServerAssignment(q, func(hss.ServerAssignmentAnswer, error) {})
	}
}

// recordVersion is the version of stored users that is written.
const recordVersion = 1

type userRecord struct {
	V    int  `cbor:"0,keyasint"`
	User user `cbor:"1,keyasint"`
}

const userPrefix = "user/"

var encoding = must(cbor.EncOptions{Time: cbor.TimeUnixMicro}.EncMode())

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // only wrong options reach this, at start
	}
	return v
}

// persist makes the store hold what the table holds of a user, with mu held.
func (g *registrar) persist(u *user, durable func(error)) {
	key := userPrefix + u.IMPI
	if g.users[u.IMPI] != u {
		g.c.store.Delete(g.c.cfg.Group, key, durable)
		return
	}
	value, err := encoding.Marshal(userRecord{V: recordVersion, User: *u})
	if err != nil {
		if durable != nil {
			durable(err)
		}
		return
	}
	until := u.Uses.Until(g.c.cfg.Digest.Lifetime())
	for i := range u.Contacts {
		if e := u.Contacts[i].Expires; e.After(until) {
			until = e
		}
	}
	g.c.store.Put(g.c.cfg.Group, key, value, until, durable)
}

// load takes a user from the store.
func (g *registrar) load(r ha.Record, now time.Time) error {
	var rec userRecord
	if err := cbor.Unmarshal(r.Value, &rec); err != nil {
		return fmt.Errorf("decode user: %w", err)
	}
	u := &rec.User
	switch {
	case rec.V != recordVersion:
		return fmt.Errorf("decode user: version %d is not known", rec.V)
	case u.IMPI == "" || r.Key != userPrefix+u.IMPI || u.Profile.IMPI != u.IMPI && u.Profile.IMPI != "":
		return fmt.Errorf("decode user: incomplete, or under the key of another")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users[u.IMPI] != nil {
		return nil
	}
	g.users[u.IMPI] = u
	g.index(u)
	// What ended while nobody served the group is ended by the timer, at once.
	g.arm(u, now)
	if u.timer == nil {
		g.forget(u)
		g.persist(u, nil)
	}
	return nil
}

// count keeps the total up to date.
func (g *registrar) count(u *user) {
	f := Figures{Users: min(len(u.Contacts), 1), Contacts: len(u.Contacts)}
	for _, id := range u.Profile.Identities {
		if slices.ContainsFunc(u.Contacts, func(a contact) bool { return a.Set == id.Set }) {
			f.Identities++
		}
	}
	g.total.Users += f.Users - u.counted.Users
	g.total.Contacts += f.Contacts - u.counted.Contacts
	g.total.Identities += f.Identities - u.counted.Identities
	u.counted = f
}

func (g *registrar) figures() Figures {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.total
}

// served is a user as requests are served for it.
type served struct {
	profile  hss.Profile
	identity state.Identity
	contacts []contact // live ones of the identity's set
}

// find returns the registered user of the first of the identities that has
// one here, judged by the current profile. A user who is assigned to another
// group is not served.
func (g *registrar) find(ids []string, now time.Time) (served, bool) {
	for _, aor := range ids {
		g.mu.RLock()
		u := g.byIdentity[aor]
		if u == nil {
			g.mu.RUnlock()
			continue
		}
		s, all, impi := served{profile: u.Profile}, u.Contacts, u.IMPI
		g.mu.RUnlock()
		if group, ok := g.c.core.State().Assignment(state.SCSCF, impi); ok && group != g.c.cfg.Group {
			continue
		}
		if g.c.live != nil {
			p, ok := g.c.live.Profile(impi)
			if !ok || p.Since != s.profile.Since {
				continue
			}
			s.profile = p
		}
		var ok bool
		if s.identity, ok = s.profile.Identity(aor); !ok {
			continue
		}
		for _, a := range all {
			if a.Set == s.identity.Set && now.Before(a.Expires) {
				s.contacts = append(s.contacts, a)
			}
		}
		if len(s.contacts) > 0 {
			return s, true
		}
	}
	return served{}, false
}

// Contact is a registered phone, for people.
type Contact struct {
	URI     string
	Path    []string
	Q       float64
	CallID  string
	Expires time.Time
}

// Registration is a registered public identity, for people.
type Registration struct {
	IMPI         string
	Identity     string
	Identities   []string // implicit registration set less the barred ones, default first
	ServiceRoute string
	Contacts     []Contact
	Expires      time.Time // of the longest contact
}

// Registration returns the registration of a public identity, given in
// canonical form.
func (c *CSCF) Registration(aor string) (Registration, bool) {
	s, ok := c.users.find([]string{aor}, time.Now())
	if !ok {
		return Registration{}, false
	}
	r := Registration{
		IMPI: s.profile.IMPI, Identity: aor, Identities: s.profile.Associated(s.identity.Set), ServiceRoute: c.orig,
	}
	for _, a := range s.contacts {
		r.Contacts = append(r.Contacts, Contact{
			URI: a.URI, Path: slices.Clone(a.Path), Q: float64(a.Q) / 1000, CallID: a.CallID, Expires: a.Expires,
		})
		if a.Expires.After(r.Expires) {
			r.Expires = a.Expires
		}
	}
	return r, true
}
