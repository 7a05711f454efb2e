package guard

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Rule bans a prefix, or allows it.
type Rule struct {
	Prefix netip.Prefix // masked, no IPv4 inside IPv6
	Allow  bool
	Until  time.Time // zero: it does not end
}

// rules are those of an operator in a form to look up. Fields are not changed
// once it is made, but for hits.
type rules struct {
	allow, ban prefixes
	own        map[netip.Addr]bool
}

// prefixes finds the prefixes that hold an address.
type prefixes struct {
	lengths []int // that occur, for both families
	entries map[netip.Prefix]*entry
}

type entry struct {
	until time.Time
	hits  atomic.Uint64
}

// SetRules replaces the operator's rules; own are addresses of the cluster,
// which are never banned automatically. Hits of a rule that stays are kept.
func (g *Guard) SetRules(list []Rule, own []netip.Addr) {
	r := &rules{own: make(map[netip.Addr]bool)}
	old := g.rules.Load()
	for _, rule := range list {
		p := &r.ban
		if rule.Allow {
			p = &r.allow
		}
		p.add(rule)
		if old != nil && !rule.Allow {
			if e := old.ban.entries[rule.Prefix]; e != nil {
				p.entries[rule.Prefix].hits.Store(e.hits.Load())
			}
		}
	}
	for _, a := range own {
		r.own[a.Unmap()] = true
	}
	r.allow.finish()
	r.ban.finish()
	g.rules.Store(r)
}

func (p *prefixes) add(r Rule) {
	if p.entries == nil {
		p.entries = make(map[netip.Prefix]*entry)
	}
	p.entries[r.Prefix] = &entry{until: r.Until}
}

func (p *prefixes) finish() {
	seen := make(map[int]bool)
	for prefix := range p.entries {
		seen[prefix.Bits()] = true
	}
	p.lengths = slices.Sorted(maps.Keys(seen))
}

// find returns an entry that holds an address and has not ended.
func (p *prefixes) find(a netip.Addr, now time.Time) *entry {
	if len(p.lengths) == 0 {
		return nil
	}
	a = a.Unmap().WithZone("")
	for _, n := range p.lengths {
		prefix, err := a.Prefix(n)
		if err != nil {
			continue // longer than addresses of this family
		}
		if e := p.entries[prefix]; e != nil && (e.until.IsZero() || now.Before(e.until)) {
			return e
		}
	}
	return nil
}

// allows reports whether an address is on the allow list.
func (r *rules) allows(a netip.Addr, now time.Time) bool { return r.allow.find(a, now) != nil }

// exempt reports whether a source holds an address of the cluster.
func (r *rules) exempt(p netip.Prefix) bool {
	for a := range r.own {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Hits returns how often each ban of an operator refused something here.
func (g *Guard) Hits() map[netip.Prefix]uint64 {
	out := make(map[netip.Prefix]uint64)
	for p, e := range g.rules.Load().ban.entries {
		out[p] = e.hits.Load()
	}
	return out
}
