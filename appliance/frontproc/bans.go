package frontproc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/api"
	"bellwether/controller/state"
)

// outsiders are the causes for which the front drops a message whose sender is
// to blame, beside the guard's verdicts.
var outsiders = []string{"malformed", "reply-limited", "no-token", "forged-token", "unknown-group", "stray-ack"}

// refusals are what this node did not let in, by reason, and how many sources
// it bans.
func (p *Process) refusals(now time.Time) (map[string]uint64, int) {
	fs := p.front.Stats()
	out := fs.Refused
	for _, cause := range outsiders {
		out[cause] = fs.Dropped[cause]
	}
	return out, p.guard.Stats(now).Bans
}

// Bans lists the operators' bans with their hits everywhere, and what each node
// bans by itself.
func (s source) Bans(ctx context.Context) (api.BanList, error) {
	hits := map[string]uint64{}
	var auto []api.Ban
	take := func(node string, r workerlink.BansReply) {
		for prefix, n := range r.Hits {
			hits[prefix] += n
		}
		for _, b := range r.Bans {
			prefix, err := netip.ParsePrefix(b.Source)
			if err != nil {
				continue // of a later version
			}
			auto = append(auto, api.Ban{Prefix: prefix, Automatic: true, Node: node, Since: b.Since, Until: b.Until, Reason: b.Reason, Hits: b.Hits})
		}
	}
	take(s.p.cfg.Node.Name, s.p.bans())
	silent := s.p.askFronts(ctx, workerlink.Bans, nil, func(node string, b []byte) error {
		var r workerlink.BansReply
		if err := workerlink.Decode(b, &r); err != nil {
			return err
		}
		take(node, r)
		return nil
	})
	now := time.Now()
	out := api.BanList{Bans: []api.Ban{}, Silent: silent}
	for b := range s.p.ctl.State().Bans() {
		if !b.Ended(now) {
			shown := ban(b)
			shown.Hits = hits[b.Prefix.String()]
			out.Bans = append(out.Bans, shown)
		}
	}
	slices.SortFunc(auto, func(a, b api.Ban) int { return a.Since.Compare(b.Since) })
	out.Bans = append(out.Bans, auto...)
	return out, nil
}

func ban(b state.Ban) api.Ban {
	out := api.Ban{Prefix: b.Prefix, Allow: b.Allow, Since: time.Unix(b.Since, 0).UTC(), Reason: b.Reason}
	if b.Until != 0 {
		out.Until = time.Unix(b.Until, 0).UTC()
	}
	return out
}

// AddBan stores an operator's ban or allowance, at all nodes.
func (s source) AddBan(ctx context.Context, n api.NewBan) (api.Ban, error) {
	if !n.Force {
		if err := s.harmful(n); err != nil {
			return api.Ban{}, err
		}
	}
	b := state.Ban{Prefix: n.Prefix, Allow: n.Allow, Since: time.Now().Unix(), Reason: n.Reason}
	if n.Seconds > 0 {
		b.Until = b.Since + n.Seconds
	}
	if err := s.commit(ctx, state.Command{PutBan: &b}); err != nil {
		return api.Ban{}, err
	}
	s.p.log.Info("audit: ban added", "prefix", b.Prefix, "allow", b.Allow, "until", ban(b).Until, "reason", b.Reason, "force", n.Force)
	return ban(b), nil
}

// harmful refuses rules that an operator hardly means.
func (s source) harmful(r api.NewBan) error {
	const force = "give --force if you mean it"
	p := r.Prefix
	switch {
	case p.IsValid() && p.Bits() < 8: // two halves are the whole
		return api.Errorf(api.Conflict, "%s is everybody, or much of it", p).Advise(force)
	case r.Allow:
		return nil
	}
	for n := range s.p.ctl.State().Nodes() {
		addrs := []netip.Addr{n.Service, n.Service6}
		if a, err := netip.ParseAddrPort(n.ClusterAddr); err == nil {
			addrs = append(addrs, a.Addr())
		}
		for _, a := range addrs {
			if a.IsValid() && p.Contains(a.Unmap()) {
				return api.Errorf(api.Conflict, "%s holds %s, an address of node %s", p, a, n.Name).Advise(force)
			}
		}
	}
	return nil
}

// RemoveBan ends what an operator banned or allowed, and what nodes banned by
// themselves within it.
func (s source) RemoveBan(ctx context.Context, p netip.Prefix) (api.Unban, error) {
	out := api.Unban{Prefix: p}
	st := s.p.ctl.State()
	if b, ok := st.Ban(p); ok {
		if err := s.commit(ctx, state.Command{RemoveBan: &state.RemoveBan{Prefix: p}}); err != nil {
			return out, err
		}
		out.Removed = !b.Ended(time.Now())
	}
	out.Automatic = s.p.guard.Lift(p, time.Now())
	s.p.askFronts(ctx, workerlink.Unban, workerlink.Encode(workerlink.UnbanMsg{Prefix: p.String()}), func(_ string, b []byte) error {
		var r workerlink.UnbanReply
		err := workerlink.Decode(b, &r)
		out.Automatic += r.Ended
		return err
	})
	if !out.Removed && out.Automatic == 0 {
		err := api.Errorf(api.NotFound, "%s is neither banned nor allowed", p).Advise("list what is with 'bellwether ban list'")
		for b := range st.Bans() {
			if !b.Allow && b.Prefix.Bits() < p.Bits() && b.Prefix.Contains(p.Addr()) && !b.Ended(time.Now()) {
				err = err.Advise(fmt.Sprintf("%s is banned around it: remove that, or allow it with 'bellwether ban add --allow %s'", b.Prefix, short(p)))
			}
		}
		return out, err
	}
	s.p.log.Info("audit: ban removed", "prefix", p, "operator", out.Removed, "automatic", out.Automatic)
	return out, nil
}

// short is a prefix as people write it.
func short(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// bans says what this node bans by itself.
func (p *Process) bans() workerlink.BansReply {
	r := workerlink.BansReply{Hits: map[string]uint64{}}
	for _, b := range p.guard.Bans(time.Now()) {
		r.Bans = append(r.Bans, workerlink.AutoBan{Source: b.Source.String(), Since: b.Since, Until: b.Until, Hits: b.Hits, Reason: b.Reason})
	}
	for prefix, n := range p.guard.Hits() {
		r.Hits[prefix.String()] = n
	}
	return r
}

// bansAsked answers another front.
func (p *Process) bansAsked(method string, payload []byte) ([]byte, error) {
	switch method {
	case workerlink.Bans:
		return workerlink.Encode(p.bans()), nil
	case workerlink.Unban:
		var m workerlink.UnbanMsg
		if err := workerlink.Decode(payload, &m); err != nil {
			return nil, err
		}
		prefix, err := netip.ParsePrefix(m.Prefix)
		if err != nil {
			return nil, fmt.Errorf("lift bans: %w", err)
		}
		return workerlink.Encode(workerlink.UnbanReply{Ended: p.guard.Lift(prefix, time.Now())}), nil
	}
	return nil, errors.New("no such question about bans")
}
