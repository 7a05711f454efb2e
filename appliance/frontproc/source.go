package frontproc

import (
	"cmp"
	"context"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/api"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

const (
	watchEvery   = 500 * time.Millisecond
	settleWithin = time.Second // for a change to reach the worker processes
)

// source is what the admin API reads and changes (admin.Source).
type source struct{ p *Process }

func (s source) Version(context.Context) (api.Version, error) {
	return api.Version{Version: s.p.version, Go: runtime.Version(), Node: s.p.cfg.Node.Name}, nil
}

func (s source) Status(ctx context.Context) (api.Status, error) {
	st, cs := s.p.ctl.State(), s.p.ctl.Status()
	leader, ok := s.p.ctl.Leader()
	out := api.Status{
		Cluster: st.ClusterID(), Name: st.Name(), Domain: s.p.cfg.SIP.Domain, Node: s.p.cfg.Node.Name, Version: s.p.version,
		Leader: leader, Term: cs.Term, Quorum: ok, Subscribers: st.SubscriberCount(),
	}
	out.Received = s.p.front.Stats().Received
	out.Refused, out.Bans = s.p.refusals(time.Now())
	out.Nodes, _ = s.Nodes(ctx)
	out.Workers, _ = s.Workers(ctx)
	for g := range st.Groups() {
		if g.Kind == state.SCSCF {
			out.Users += g.Users
		}
	}
	seen := 0
	for _, w := range out.Workers {
		if w.Calls != nil {
			seen += *w.Calls
		}
	}
	out.Calls = (seen + 1) / 2 // each call has an originating and a terminating half
	now := time.Now()
	s.p.alarms.hold(s.p.conditions(now), now)
	out.Alarms = s.p.alarms.current(now)
	return out, nil
}

func (s source) Nodes(context.Context) ([]api.Node, error) {
	st := s.p.ctl.State()
	leader, _ := s.p.ctl.Leader()
	up := s.p.workers.nodes()
	up[s.p.cfg.Node.Name] = true
	out := []api.Node{}
	for n := range st.Nodes() {
		node := api.Node{
			Name: n.Name, Address: n.ClusterAddr, Service: n.Service.String(), Controller: n.Controller,
			Leader: n.Name == leader, Connected: up[n.Name], Version: n.Version,
		}
		if n.Service6.IsValid() {
			node.Service6 = n.Service6.String()
		}
		out = append(out, node)
	}
	// Controllers that have never been there are missed as well.
	for _, c := range s.p.cfg.Cluster.Controllers {
		if !slices.ContainsFunc(out, func(n api.Node) bool { return n.Name == c.Name }) {
			out = append(out, api.Node{Name: c.Name, Address: c.Address.String(), Controller: true, Connected: up[c.Name]})
		}
	}
	slices.SortFunc(out, func(a, b api.Node) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

func (s source) Workers(context.Context) ([]api.Worker, error) {
	st, loads := s.p.ctl.State(), s.p.workers.loads()
	out := []api.Worker{}
	for w := range st.Workers() {
		g, _ := st.Group(w.Group)
		l, connected := loads[w.Group]
		aw := api.Worker{
			ID: w.ID, Kind: string(w.Kind), Node: w.Node, Group: w.Group, Serving: g.Serving,
			Users: g.Users, Load: l.Load, Connected: connected,
		}
		if keepsCalls(w.Kind) {
			aw.Calls = &l.Calls
		}
		out = append(out, aw)
	}
	return out, nil
}

// keepsCalls reports whether workers of a kind know the calls in progress: the
// P-CSCF and the I-CSCF know transactions only.
func keepsCalls(k state.Kind) bool { return k == state.SCSCF }

func (s source) Worker(ctx context.Context, id string) (api.Worker, error) {
	all, _ := s.Workers(ctx)
	for _, w := range all {
		if w.ID == id {
			return w, nil
		}
	}
	return api.Worker{}, api.Errorf(api.NotFound, "no worker is called %q", id).Advise("list them with 'bellwether worker list'")
}

// serving says whose a user is at workers of a kind.
func (s source) serving(st *state.State, k state.Kind, user string) (api.Serving, bool) {
	id, ok := st.Assignment(k, user)
	if !ok {
		return api.Serving{}, false
	}
	g, _ := st.Group(id)
	return api.Serving{Home: g.Home, Serving: g.Serving}, true
}

// canonical accepts an identity as people write it, "alice" included.
func (s source) canonical(identity string) (string, error) {
	text := strings.TrimSpace(identity)
	if !strings.Contains(text, ":") {
		switch {
		case strings.HasPrefix(text, "+"):
			text = "tel:" + text
		case strings.Contains(text, "@"):
			text = "sip:" + text
		default:
			text = "sip:" + text + "@" + s.p.cfg.SIP.Domain
		}
	}
	u, err := sipmsg.ParseURI(text)
	if err != nil {
		return "", api.Errorf(api.Invalid, "%q is not an identity", identity).Advise("write it as sip:user@domain or tel:+number")
	}
	return u.AOR(), nil
}

// Users lists the users of the S-CSCFs.
func (s source) Users(_ context.Context, after string, limit int) (api.UserPage, error) {
	st := s.p.ctl.State()
	var page api.UserPage
	listed, last := 0, ""
	for sub := range st.SubscribersAfter(after) {
		sc, ok := s.serving(st, state.SCSCF, sub.IMPI)
		if !ok {
			continue
		}
		if listed == limit {
			page.Next = last
			break
		}
		listed, last = listed+1, sub.IMPI
		known := len(page.Users)
		for _, id := range sub.Identities {
			if pc, ok := s.serving(st, state.PCSCF, id.URI); ok {
				page.Users = append(page.Users, api.Registration{Identity: id.URI, IMPI: sub.IMPI, PCSCF: pc, SCSCF: sc})
			}
		}
		if len(page.Users) == known {
			i := max(0, slices.IndexFunc(sub.Identities, func(id state.Identity) bool { return !id.Barred }))
			page.Users = append(page.Users, api.Registration{Identity: sub.Identities[i].URI, IMPI: sub.IMPI, SCSCF: sc})
		}
	}
	return page, nil
}

func (s source) User(ctx context.Context, identity string) (api.User, error) {
	aor, err := s.canonical(identity)
	if err != nil {
		return api.User{}, err
	}
	st := s.p.ctl.State()
	sub, ok := st.SubscriberByIdentity(aor)
	if !ok {
		return api.User{}, api.Errorf(api.NotFound, "nobody has the identity %s", aor).Advise("list subscribers with 'bellwether subscriber list'")
	}
	sc, ok := s.serving(st, state.SCSCF, sub.IMPI)
	if !ok {
		return api.User{}, api.Errorf(api.NotFound, "%s is not registered", aor).Advise("the subscriber exists; look at 'bellwether subscriber show " + sub.IMPI + "'")
	}
	out := api.User{Identity: aor, IMPI: sub.IMPI, SCSCF: sc, Identities: []string{}, Contacts: []api.Contact{}, Path: []string{}, ServiceRoute: []string{}}
	set := 0
	for _, id := range sub.Identities {
		if id.URI == aor {
			set = id.Set
		}
	}
	for _, id := range sub.ImplicitSet(set) {
		if !id.Barred {
			out.Identities = append(out.Identities, id.URI)
		}
		// The P-CSCF knows the user by the identity that the phone registered.
		if pc, ok := s.serving(st, state.PCSCF, id.URI); ok {
			out.PCSCF = pc
		}
	}
	flows := map[string]string{}
	missing := s.p.workers.askAll(ctx, workerlink.User, workerlink.Encode(workerlink.UserMsg{AOR: aor, IMPI: sub.IMPI}), func(b []byte) error {
		var m workerlink.UserReply
		if err := workerlink.Decode(b, &m); err != nil {
			return err
		}
		for _, b := range m.Bindings {
			if b.Kind == string(state.PCSCF) {
				flows[b.Contact] = b.Flow
				out.ServiceRoute = append([]string{}, b.ServiceRoute...)
				continue
			}
			out.Contacts = append(out.Contacts, api.Contact{URI: b.Contact, Q: b.Q, Expires: b.Expires})
			out.Path = append([]string{}, b.Path...)
			if b.Expires.After(out.Expires) {
				out.Expires = b.Expires
			}
		}
		return nil
	})
	if missing > 0 && len(out.Contacts) == 0 {
		return api.User{}, silent(missing)
	}
	if len(out.Contacts) == 0 {
		single := !slices.ContainsFunc(sub.Identities, func(id state.Identity) bool { return id.Set != set })
		if w, err := s.Worker(ctx, sc.Serving); err == nil && !w.Connected {
			return out, api.Errorf(api.Unavailable, "%s is registered at %s, which is not connected", aor, sc.Serving).Advise("look at 'bellwether status'")
		}
		if single {
			return out, api.Errorf(api.NotFound, "%s is not registered", aor).Advise("its registration at " + sc.Serving + " has ended or was lost; its phone has to register again")
		}
		return out, api.Errorf(api.NotFound, "%s is not registered", aor).Advise("another identity of " + sub.IMPI + " is; look at 'bellwether subscriber show " + sub.IMPI + "'")
	}
	for i := range out.Contacts {
		out.Contacts[i].Flow = flows[out.Contacts[i].URI]
	}
	return out, nil
}

// silent is the error where nothing is known because workers do not answer.
func silent(missing int) error {
	return api.Errorf(api.Unavailable, "%d worker processes did not answer", missing).Advise("look at 'bellwether worker list'")
}

func (s source) Calls(ctx context.Context) ([]api.Call, error) {
	byID := map[string]*api.Call{}
	st := s.p.ctl.State()
	missing := s.p.workers.askAll(ctx, workerlink.Calls, nil, func(b []byte) error {
		var m workerlink.CallsReply
		if err := workerlink.Decode(b, &m); err != nil {
			return err
		}
		for _, c := range m.Calls {
			a := byID[c.CallID]
			if a == nil {
				a = &api.Call{CallID: c.CallID, From: c.From, To: c.To, State: c.State, Started: c.Started}
				byID[c.CallID] = a
			}
			// The originating half knows the identities as they were dialled.
			p, _ := st.Group(c.PCSCF)
			if c.Role == "orig" {
				a.From, a.To, a.State, a.SOrig, a.POrig = c.From, c.To, c.State, c.Worker, p.Serving
			} else {
				a.STerm, a.PTerm = c.Worker, p.Serving
			}
			if c.Started.Before(a.Started) {
				a.Started = c.Started
			}
		}
		return nil
	})
	if missing > 0 && len(byID) == 0 {
		return nil, silent(missing)
	}
	out := make([]api.Call, 0, len(byID))
	for _, c := range byID {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b api.Call) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.CallID, b.CallID))
	})
	return out, nil
}

func (s source) Reload(context.Context) (api.Reload, error) {
	if s.p.reload == nil {
		return api.Reload{}, api.Errorf(api.Unavailable, "this process cannot reload its configuration").Advise("restart the node")
	}
	applied, pending, err := s.p.reload()
	if err != nil {
		return api.Reload{}, api.Errorf(api.Invalid, "%v", err).Advise("nothing was changed; correct the file and reload again")
	}
	out := api.Reload{Applied: []api.Change{}, Pending: []api.Change{}}
	for _, c := range applied {
		out.Applied = append(out.Applied, api.Change{Key: c.Key, Old: c.Old, New: c.New})
	}
	for _, c := range pending {
		out.Pending = append(out.Pending, api.Change{Key: c.Key, Old: c.Old, New: c.New})
	}
	return out, nil
}

// Watch compares the status twice a second and tells what changed.
func (s source) Watch(ctx context.Context, send func(api.Event) error) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var last api.Status
	for begun := false; ; begun = true {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if !begun || !reflect.DeepEqual(st, last) {
			last = st
			if err := send(api.Event{Type: "status", Time: time.Now(), Status: &st}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
