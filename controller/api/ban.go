package api

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// MaxBanSeconds is the longest time for which a ban can be asked: ten years.
const MaxBanSeconds = 10 * 365 * 24 * 3600

const maxReason = 200

// Ban says that the nodes refuse what comes from a prefix or, with Allow, that
// they never limit or ban it.
type Ban struct {
	Prefix    netip.Prefix `json:"prefix"`
	Allow     bool         `json:"allow,omitempty"`
	Automatic bool         `json:"automatic,omitempty"` // a node banned it by itself
	Node      string       `json:"node,omitempty"`      // that node; empty: it is a rule of an operator, for all nodes
	Since     time.Time    `json:"since"`
	Until     time.Time    `json:"until,omitzero"` // zero: until it is removed
	Reason    string       `json:"reason,omitempty"`
	Hits      uint64       `json:"hits"` // messages and connections that it refused, on the nodes that answered
}

// BanList is what is banned and allowed: first what operators did, then what
// nodes did by themselves.
type BanList struct {
	Bans   []Ban    `json:"bans"`
	Silent []string `json:"silent"` // nodes that did not say what they banned
}

// NewBan is a ban or an allowance to store; one of the same prefix is replaced.
type NewBan struct {
	Prefix  netip.Prefix `json:"prefix"`
	Allow   bool         `json:"allow,omitempty"`
	Seconds int64        `json:"seconds,omitempty"` // that it lasts; 0: until it is removed
	Reason  string       `json:"reason,omitempty"`
	Force   bool         `json:"force,omitempty"` // ban even everybody, or a node of the cluster
}

// Check reports the first thing that makes b unfit to be stored.
func (b NewBan) Check() error {
	if err := checkPrefix(b.Prefix); err != nil {
		return err
	}
	if b.Seconds < 0 || b.Seconds > MaxBanSeconds {
		return Errorf(Invalid, "%d seconds are no time to ban for", b.Seconds).Advise("give at most ten years, or no time at all")
	}
	if len(b.Reason) > maxReason || strings.TrimSpace(b.Reason) != b.Reason || strings.ContainsFunc(b.Reason, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return Errorf(Invalid, "the reason is not a line of at most %d bytes", maxReason).Advise("shorten it")
	}
	return nil
}

// Unban says what became of a ban that was to end.
type Unban struct {
	Prefix    netip.Prefix `json:"prefix"`
	Removed   bool         `json:"removed"`   // there was one of an operator
	Automatic int          `json:"automatic"` // bans by nodes that ended
}

const writePrefix = "write an address or a network, such as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32"

// ParsePrefix reads an address, which stands for itself alone, or a network.
func ParsePrefix(s string) (netip.Prefix, error) {
	bad := func(why string) error {
		if len(s) > 60 {
			s = s[:60] + "..."
		}
		return Errorf(Invalid, "%q %s", s, why).Advise(writePrefix)
	}
	text := s
	if inner, ok := strings.CutPrefix(text, "["); ok { // as in a URI
		inner, rest, _ := strings.Cut(inner, "]")
		text = inner + rest
	}
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			if ap, err := netip.ParseAddrPort(s); err == nil {
				return netip.Prefix{}, Errorf(Invalid, "%q has a port, and bans hold for all ports", s).Advise("write " + ap.Addr().String())
			}
			return netip.Prefix{}, bad("is neither an address nor a network")
		case a.Zone() != "":
			return netip.Prefix{}, bad("has a zone")
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, bad("is not a network")
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, bad("mixes IPv4 and IPv6")
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if p != p.Masked() {
		return netip.Prefix{}, Errorf(Invalid, "%s has bits beyond its length", p).
			Advise(fmt.Sprintf("write %s for the network, or %s for the address", p.Masked(), p.Addr()))
	}
	return p, nil
}

func checkPrefix(p netip.Prefix) error {
	if !p.IsValid() {
		return Errorf(Invalid, "there is no prefix").Advise(writePrefix)
	}
	q, err := ParsePrefix(p.String())
	if err == nil && q != p {
		return Errorf(Invalid, "%s mixes IPv4 and IPv6", p).Advise("write " + q.String())
	}
	return err
}
