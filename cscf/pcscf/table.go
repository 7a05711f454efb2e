package pcscf

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// maxGone bounds the ended bindings that are kept for their dialogs; beyond it
// the one that ends first goes.
const maxGone = 20000

// table holds the bindings of a group, indexed by what requests come with.
type table struct {
	c *CSCF

	overwritten, refused atomic.Uint64

	mu         sync.RWMutex
	byID       map[uint64]*binding
	byFlow     map[flowKey][]uint64 // live ones
	byIdentity map[string][]uint64  // live ones, by each identity they may use
	users      map[string]*phones   // by AOR
	dialogs    map[uint64]struct{}  // bindings that had a dialog
	gone       []uint64             // in the order in which they end
	detours    map[*binding]sipmsg.Flow
	registered int // users with a live binding
	stopped    bool
}

// phones are the bindings of one public identity, live or gone.
type phones struct {
	ids   []uint64
	live  int    // bindings that are not gone
	timer func() // stops it; nil: none runs
	due   time.Time
}

// flowKey finds the candidates for a flow. UDP has nothing else; a connection
// is compared in full.
type flowKey struct {
	transport sipmsg.Transport
	remote    netip.AddrPort
}

func keyOf(f sipmsg.Flow) flowKey { return flowKey{f.Transport, f.Remote} }

// sameFlow reports whether two flows lead to the same phone. Over UDP that is
// its address, whichever of our addresses it uses.
func sameFlow(a, b sipmsg.Flow) bool {
	if a.Transport.Reliable() {
		return a == b
	}
	return keyOf(a) == keyOf(b)
}

// sends reports whether what comes over a flow comes from the binding's phone.
// A phone may open a connection without registering by it: for a request that
// is too large for a datagram (RFC 3261 §18.1.1), or because its own one was
// lost. If its contact shows that no NAT is between us, a connection from that
// address can only be its own (the IP association of TS 33.203 §N.2.1).
func (b *binding) sends(flow sipmsg.Flow) bool {
	if sameFlow(b.Flow, flow) {
		return true
	}
	return flow.Transport == sipmsg.TCP && b.Flow.Remote.Addr() == flow.Remote.Addr() && slices.ContainsFunc(b.Contacts, b.direct)
}

// direct reports whether a contact is the address that the binding's phone
// registered from. The port of a connection says nothing: it is not the one
// that the phone listens at.
func (b *binding) direct(contact string) bool {
	u, err := sipmsg.ParseURI(contact)
	if err != nil {
		return false
	}
	at, ok := u.HostPort()
	return ok && at.Addr().Unmap() == b.Flow.Remote.Addr() && (b.Flow.Transport.Reliable() || at.Port() == b.Flow.Remote.Port())
}

func newTable(c *CSCF) *table {
	return &table{
		c: c, byID: make(map[uint64]*binding), byFlow: make(map[flowKey][]uint64),
		byIdentity: make(map[string][]uint64), users: make(map[string]*phones), dialogs: make(map[uint64]struct{}),
		detours: make(map[*binding]sipmsg.Flow),
	}
}

func (t *table) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	for _, p := range t.users {
		if p.timer != nil {
			p.timer()
			p.timer = nil
		}
	}
}

// binding returns the binding of that id, live or gone, nil if there is none.
func (t *table) binding(id uint64) *binding {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

// sender finds whose request came over a flow, and which identity it may
// assert: the first of the claimed ones that belongs to a binding of the flow;
// otherwise, if the flow belongs to one user only, that user's default
// (TS 24.229 §5.2.6.3.3).
func (t *table) sender(flow sipmsg.Flow, claimed []string, now time.Time) (*binding, identity) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, aor := range claimed {
		for _, id := range t.byIdentity[aor] {
			if b := t.byID[id]; b.live(now) && b.sends(flow) {
				as, _ := b.asserted(aor)
				return b, as
			}
		}
	}
	var one *binding
	for _, id := range t.byFlow[keyOf(flow)] {
		b := t.byID[id]
		if !b.live(now) || !sameFlow(b.Flow, flow) {
			continue
		}
		if one != nil && one.AOR != b.AOR {
			return nil, identity{}
		}
		if one == nil || b.Expires.After(one.Expires) {
			one = b
		}
	}
	if one == nil {
		return nil, identity{}
	}
	return one, one.Identities[0]
}

// known reports whether a registered phone uses the flow.
func (t *table) known(flow sipmsg.Flow, now time.Time) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, id := range t.byFlow[keyOf(flow)] {
		if b := t.byID[id]; b.live(now) && sameFlow(b.Flow, flow) {
			return true
		}
	}
	return false
}

// owns reports whether a flow is that of a phone of that identity.
func (t *table) owns(flow sipmsg.Flow, aor string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p := t.users[aor]
	return p != nil && slices.ContainsFunc(p.ids, func(id uint64) bool {
		b := t.byID[id]
		return !b.Gone && b.sends(flow)
	})
}

// behind finds the flow of the phone that a Via names.
func (t *table) behind(via sipmsg.Via) (sipmsg.Flow, bool) {
	transport, ok := sipmsg.ParseTransport(via.Transport)
	if !ok {
		return sipmsg.Flow{}, false
	}
	addr, ok := transaction.ResponseAddr(via)
	if !ok {
		return sipmsg.Flow{}, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, id := range t.byFlow[flowKey{transport, addr}] {
		return t.byID[id].Flow, true
	}
	return sipmsg.Flow{}, false
}

// talks notes that a binding has a dialog, which may outlive it.
func (t *table) talks(id uint64) {
	t.mu.RLock()
	_, noted := t.dialogs[id]
	t.mu.RUnlock()
	if noted {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[id] != nil {
		t.dialogs[id] = struct{}{}
	}
}

// reach is the flow that leads to a binding's phone.
func (t *table) reach(b *binding) sipmsg.Flow {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if to, ok := t.detours[b]; ok {
		return to
	}
	return b.Flow
}

// detour makes a flow lead to a binding's phone in place of its own, whose
// connection is gone; its own flow ends that.
func (t *table) detour(b *binding, to sipmsg.Flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.byID[b.ID] != b: // replaced meanwhile
	case to == b.Flow:
		delete(t.detours, b)
	default:
		t.detours[b] = to
	}
}

// index adds a binding to the table, with mu held.
func (t *table) index(b *binding) {
	t.byID[b.ID] = b
	p := t.users[b.AOR]
	if p == nil {
		p = &phones{}
		t.users[b.AOR] = p
	}
	p.ids = append(p.ids, b.ID)
	if b.Gone {
		t.dialogs[b.ID] = struct{}{}
		t.gone = append(t.gone, b.ID)
		return
	}
	if p.live++; p.live == 1 {
		t.registered++
	}
	k := keyOf(b.Flow)
	t.byFlow[k] = append(t.byFlow[k], b.ID)
	for _, as := range b.Identities {
		t.byIdentity[as.AOR] = append(t.byIdentity[as.AOR], b.ID)
	}
}

// drop takes a binding out of the table, with mu held. It reports whether its
// flow was the last use of it.
func (t *table) drop(b *binding) (unbind bool) {
	delete(t.byID, b.ID)
	delete(t.detours, b)
	p := t.users[b.AOR]
	if p.ids = without(p.ids, b.ID); len(p.ids) == 0 {
		if p.timer != nil {
			p.timer()
		}
		delete(t.users, b.AOR)
	}
	if b.Gone {
		t.gone = without(t.gone, b.ID)
		return false
	}
	if p.live--; p.live == 0 {
		t.registered--
	}
	for _, as := range b.Identities {
		if ids := without(t.byIdentity[as.AOR], b.ID); len(ids) > 0 {
			t.byIdentity[as.AOR] = ids
		} else {
			delete(t.byIdentity, as.AOR)
		}
	}
	k := keyOf(b.Flow)
	ids := without(t.byFlow[k], b.ID)
	if len(ids) == 0 {
		delete(t.byFlow, k)
		return true
	}
	t.byFlow[k] = ids
	return !slices.ContainsFunc(ids, func(id uint64) bool { return t.byID[id].Flow == b.Flow })
}

func without(ids []uint64, id uint64) []uint64 {
	if i := slices.Index(ids, id); i >= 0 {
		return slices.Delete(ids, i, i+1)
	}
	return ids
}

// figures counts.
func (t *table) figures() Figures {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return Figures{
		Users: t.registered, Bindings: len(t.byID) - len(t.gone),
		Overwritten: t.overwritten.Load(), Refused: t.refused.Load(),
	}
}

// Figures counts what the P-CSCF holds.
func (c *CSCF) Figures() Figures {
	f := c.table.figures()
	f.Lost, f.LostAt = c.users.Lost()
	return f
}

// Binding is a registered phone, for people.
type Binding struct {
	AOR          string
	Contacts     []string
	Flow         sipmsg.Flow
	ServiceRoute []string
	Identities   []string // default first
	Expires      time.Time
}

// Bindings lists the phones of a public identity, given in canonical form;
// also those that registered another identity of the same set.
func (c *CSCF) Bindings(aor string) []Binding {
	t, now := c.table, time.Now()
	t.mu.RLock()
	defer t.mu.RUnlock()
	ids := slices.Clone(t.byIdentity[aor])
	if p := t.users[aor]; p != nil { // a barred identity is in no P-Associated-URI
		for _, id := range p.ids {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	var out []Binding
	for _, id := range ids {
		if b := t.byID[id]; b.live(now) {
			out = append(out, b.public())
		}
	}
	return out
}

// Users lists the public identities that have a binding, in order.
func (c *CSCF) Users() []string {
	t, now := c.table, time.Now()
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []string
	for _, aor := range slices.Sorted(maps.Keys(t.users)) {
		if slices.ContainsFunc(t.users[aor].ids, func(id uint64) bool { return t.byID[id].live(now) }) {
			out = append(out, aor)
		}
	}
	return out
}

func (b *binding) public() Binding {
	p := Binding{
		AOR: b.AOR, Contacts: slices.Clone(b.Contacts), Flow: b.Flow,
		ServiceRoute: slices.Clone(b.ServiceRoute), Expires: b.Expires,
	}
	for _, as := range b.Identities {
		p.Identities = append(p.Identities, as.URI)
	}
	return p
}

func clones(in []string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = strings.Clone(s)
	}
	return out
}
