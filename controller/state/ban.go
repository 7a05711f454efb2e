package state

import (
	"iter"
	"net/netip"
	"time"
)

// Ban says that the fronts refuse what comes from a prefix or, with Allow, that
// they never limit or ban it. Where an allowed and a banned prefix overlap, the
// allowed one wins, whichever is longer.
type Ban struct {
	Prefix netip.Prefix `cbor:"p" json:"prefix"` // masked, no IPv4 inside IPv6
	Allow  bool         `cbor:"a,omitempty" json:"allow,omitempty"`
	Since  int64        `cbor:"s" json:"since"`           // Unix seconds
	Until  int64        `cbor:"u,omitempty" json:"until"` // Unix seconds; 0: it does not end by itself
	Reason string       `cbor:"r,omitempty" json:"reason,omitempty"`
}

// Ended reports whether the ban is over.
func (b Ban) Ended(now time.Time) bool { return b.Until != 0 && now.Unix() >= b.Until }

// RemoveBan ends the ban, or the allowance, of exactly that prefix.
type RemoveBan struct {
	Prefix netip.Prefix `cbor:"p"`
}

func (b *Ban) validate() error {
	if err := checkPrefix(b.Prefix); err != nil {
		return err
	}
	if b.Since <= 0 || b.Until != 0 && b.Until <= b.Since {
		return invalid("ban of %s is from %d until %d", b.Prefix, b.Since, b.Until)
	}
	if b.Reason != "" {
		return checkText("reason", b.Reason, maxReason)
	}
	return nil
}

func checkPrefix(p netip.Prefix) error {
	if !p.IsValid() || p.Addr().Is4In6() || p != p.Masked() {
		return invalid("%q is not a prefix of addresses", p)
	}
	return nil
}

// putBan replaces what there was for the prefix. What ended before this one
// began is dropped, so that nobody has to clean up.
func (c *change) putBan(b Ban) Result {
	var ended []string
	for k, old := range walk(c.bans.txn.Root()) {
		if old.Until != 0 && old.Until <= b.Since {
			ended = append(ended, string(k))
		}
	}
	for _, k := range ended {
		c.bans.remove(k)
	}
	key := banKey(b.Prefix)
	if _, ok := c.bans.get(key); !ok && c.bans.n >= maxBans {
		return refused(Limit, "the cluster has %d bans, the most it can have", maxBans)
	}
	c.bans.put(key, b)
	return Result{N: 1}
}

func (c *change) removeBan(p netip.Prefix) Result {
	if _, ok := c.bans.remove(banKey(p)); !ok {
		return refused(NotFound, "%s is neither banned nor allowed", p)
	}
	return Result{N: 1}
}

// Bans goes through the bans and allowances by prefix, IPv4 first; some may
// have ended.
func (s *State) Bans() iter.Seq[Ban] { return values(s.bans) }

// Ban returns the ban or allowance of exactly that prefix.
func (s *State) Ban(p netip.Prefix) (Ban, bool) { return s.bans.Get([]byte(banKey(p))) }

// SameBans reports whether s and other certainly have the same bans; it takes
// constant time.
func (s *State) SameBans(other *State) bool { return s.bans.Root() == other.bans.Root() }

// SameNodes reports whether s and other certainly have the same nodes; it
// takes constant time.
func (s *State) SameNodes(other *State) bool { return s.nodes.Root() == other.nodes.Root() }

// banKey orders prefixes by family, address and length.
func banKey(p netip.Prefix) string {
	family := byte(4)
	if p.Addr().Is6() {
		family = 6
	}
	key := append([]byte{family}, p.Addr().AsSlice()...)
	return string(append(key, byte(p.Bits())))
}
