package front

import (
	"bytes"
	"hash/maphash"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"bellwether/controller/dispatch"
	"bellwether/controller/guard"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// source is who the guard sees behind a flow: the flow itself, if it is that of
// a registered phone, else its address.
func (f *Front) source(flow sipmsg.Flow, now time.Time) guard.Source {
	s := guard.Source{Addr: flow.Remote.Addr()}
	if k, ok := f.flowKey(flow); ok {
		if _, known := f.flows.get(k, now, time.Time{}); known {
			s.Flow = maphash.Comparable(f.seed, k) | 1
		}
	}
	return s
}

// affordable charges a source for what was decided about its message. False
// means that it has cost too much, and the message goes nowhere.
func (r *receiver) affordable(d dispatch.Decision) bool {
	switch {
	case d.Verdict == dispatch.Reply && d.Status == statusForbidden:
		return true // says nothing of anybody, and an honest phone earns it, see answerable
	case d.Verdict == dispatch.Reply:
		return r.guard.Charge(r.from, guard.Refused, r.now)
	case d.Verdict != dispatch.Drop:
		return !r.msg.IsRequest() || r.guard.Stranger(r.from, r.now).Passes()
	case d.Drop == dispatch.NoToken || d.Drop == dispatch.Forged || d.Drop == dispatch.UnknownGroup:
		return r.guard.Charge(r.from, guard.Stray, r.now)
	}
	return true
}

const statusForbidden = 403

// answerable charges the source of a request for its answer, if that is a
// refusal: who guesses at passwords, or at users, gets many of them. A 403 for
// anything but a REGISTER is none: when a NAT has forgotten its phones, each of
// them gets one for what it sends before it registers again, and thousands may
// share an address.
func (f *Front) answerable(s *link.SIP) bool {
	switch {
	case bytes.HasPrefix(s.Raw, []byte("SIP/2.0 404 ")):
	case bytes.HasPrefix(s.Raw, []byte("SIP/2.0 403 ")):
		if m, err := sipmsg.Parse(s.Raw); err == nil {
			if _, method := m.CSeq(); method != "REGISTER" {
				return true
			}
		}
	default:
		return true
	}
	now := time.Now()
	return f.guard.Charge(f.source(s.Flow, now), guard.Refused, now)
}

// ruled keeps the guard's rules those of the cluster state.
type ruled struct {
	last atomic.Pointer[state.State] // that the rules were taken from
	mu   sync.Mutex                  // held while they are
}

// follow takes the rules of a state, if they may be others than before.
func (r *ruled) follow(g *guard.Guard, st *state.State) {
	if r.last.Load() == st {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.last.Load()
	if last != nil && st.Index() < last.Index() {
		return // a reader that began before another one
	}
	r.last.Store(st)
	if last != nil && st.SameBans(last) && st.SameNodes(last) {
		return
	}
	var rules []guard.Rule
	for b := range st.Bans() {
		rule := guard.Rule{Prefix: b.Prefix, Allow: b.Allow}
		if b.Until != 0 {
			rule.Until = time.Unix(b.Until, 0)
		}
		rules = append(rules, rule)
	}
	g.SetRules(rules, addresses(st))
}

// addresses are those of the cluster's nodes.
func addresses(st *state.State) []netip.Addr {
	var own []netip.Addr
	for n := range st.Nodes() {
		own = append(own, n.Service)
		if n.Service6.IsValid() {
			own = append(own, n.Service6)
		}
		if a, err := netip.ParseAddrPort(n.ClusterAddr); err == nil {
			own = append(own, a.Addr())
		}
	}
	return own
}
