package frontproc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"iter"
	"maps"
	"slices"

	"bellwether/appliance/workerlink"
	"bellwether/controller/api"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

func shown(sub state.Subscriber) api.Subscriber {
	out := api.Subscriber{IMPI: sub.IMPI, Realm: sub.Realm, Identities: []api.Identity{}, Algorithms: slices.AppendSeq([]string{}, maps.Keys(sub.HA1))}
	slices.Sort(out.Algorithms)
	for _, id := range sub.Identities {
		out.Identities = append(out.Identities, api.Identity{URI: id.URI, Set: id.Set, Barred: id.Barred})
	}
	if sub.AKA != nil {
		out.AKA = &api.StoredAKA{AMF: hex.EncodeToString(sub.AKA.AMF[:])}
	}
	return out
}

func (s source) Subscribers(_ context.Context, after string, limit int) (api.SubscriberPage, error) {
	page := api.SubscriberPage{Subscribers: []api.Subscriber{}}
	for sub := range s.p.ctl.State().SubscribersAfter(after) {
		if len(page.Subscribers) == limit {
			page.Next = page.Subscribers[limit-1].IMPI
			break
		}
		page.Subscribers = append(page.Subscribers, shown(sub))
	}
	return page, nil
}

func (s source) Subscriber(_ context.Context, name string) (api.Subscriber, error) {
	st := s.p.ctl.State()
	if sub, ok := st.Subscriber(name); ok {
		return shown(sub), nil
	}
	if aor, err := s.canonical(name); err == nil {
		if sub, ok := st.SubscriberByIdentity(aor); ok {
			return shown(sub), nil
		}
	}
	return api.Subscriber{}, noSubscriber(name)
}

// stored turns what an operator gives into what the state keeps.
func (s source) stored(n api.NewSubscriber) (state.Subscriber, *api.Error) {
	out := state.Subscriber{IMPI: n.IMPI, Realm: n.Realm, HA1: state.HA1{}}
	if out.Realm == "" {
		out.Realm = s.p.cfg.SIP.Domain
	}
	if n.HA1.MD5 != "" {
		out.HA1["MD5"] = n.HA1.MD5
	}
	if n.HA1.SHA256 != "" {
		out.HA1["SHA-256"] = n.HA1.SHA256
	}
	if n.AKA != nil {
		var err *api.Error
		if out.AKA, err = keys(n); err != nil {
			return out, err
		}
	}
	for _, id := range n.Identities {
		u, err := sipmsg.ParseURI(id.URI)
		if err != nil {
			return out, api.Errorf(api.Invalid, "identity %q of %s cannot be read", id.URI, n.IMPI).Advise("write it as sip:user@domain or tel:+number")
		}
		out.Identities = append(out.Identities, state.Identity{URI: u.AOR(), Set: id.Set, Barred: id.Barred})
	}
	return out, nil
}

// keys reads the keys of a USIM, and keeps them out of its error.
func keys(n api.NewSubscriber) (*state.AKA, *api.Error) {
	out := &state.AKA{}
	k, err1 := hex.DecodeString(n.AKA.K)
	opc, err2 := hex.DecodeString(n.AKA.OPc)
	amf, err3 := hex.DecodeString(n.AKA.AMF)
	if err1 != nil || err2 != nil || err3 != nil || len(amf) != len(out.AMF) {
		return nil, api.Errorf(api.Invalid, "the keys of the USIM of %s are malformed", n.IMPI).Advise("write K and OPc as 32 hex digits, AMF as 4")
	}
	out.K, out.OPc, out.AMF = k, opc, [2]byte(amf)
	return out, nil
}

func (s source) AddSubscriber(ctx context.Context, n api.NewSubscriber, replace bool) error {
	sub, err := s.stored(n)
	if err != nil {
		return err
	}
	refusal := s.propose(ctx, state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{sub}, New: !replace}})
	var e *api.Error
	if !errors.As(refusal, &e) || e.Code != api.Conflict {
		return refusal
	}
	st := s.p.ctl.State()
	if _, exists := st.Subscriber(sub.IMPI); exists && !replace {
		return e.Advise("see 'bellwether subscriber show " + sub.IMPI + "', or give --replace")
	}
	if _, err := taken(st, []state.Subscriber{sub}); err != nil {
		return err
	}
	return refusal
}

// taken finds the first of subs that has an identity of a subscriber who is
// not among them.
func taken(st *state.State, subs []state.Subscriber) (int, *api.Error) {
	among := map[string]bool{}
	for _, sub := range subs {
		among[sub.IMPI] = true
	}
	for i, sub := range subs {
		for _, id := range sub.Identities {
			if other, ok := st.SubscriberByIdentity(id.URI); ok && !among[other.IMPI] {
				return i, api.Errorf(api.Conflict, "%s belongs to subscriber %s", id.URI, other.IMPI).
					Advise("see 'bellwether subscriber show " + other.IMPI + "'; an identity has one subscriber")
			}
		}
	}
	return 0, nil
}

func (s source) RemoveSubscriber(ctx context.Context, impi string) error {
	err := s.propose(ctx, state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: impi}})
	var e *api.Error
	if errors.As(err, &e) && e.Code == api.NotFound {
		return noSubscriber(impi)
	}
	return err
}

func noSubscriber(name string) error {
	return api.Errorf(api.NotFound, "no subscriber is called %q", name).Advise("list them with 'bellwether subscriber list'")
}

func (s source) ImportSubscribers(ctx context.Context, all []api.NewSubscriber) (api.ImportResult, error) {
	var res api.ImportResult
	st := s.p.ctl.State()
	subs := make([]state.Subscriber, 0, len(all))
	for _, n := range all {
		sub, err := s.stored(n)
		if err != nil {
			return api.ImportResult{}, err.OnLine(n.Line)
		}
		if _, ok := st.Subscriber(n.IMPI); ok {
			res.Replaced++
		} else {
			res.Added++
		}
		subs = append(subs, sub)
	}
	cmds, err := imports(subs)
	if err != nil {
		return api.ImportResult{}, err
	}
	// All or nothing: first on a copy of the state, which shows every conflict.
	next, first := st, 0
	for _, c := range cmds {
		if i, err := taken(next, c.PutSubscribers.Subscribers); err != nil {
			return api.ImportResult{}, err.OnLine(all[first+i].Line)
		}
		first += len(c.PutSubscribers.Subscribers)
		var rs []state.Result
		next, rs = next.Apply(next.Index()+1, []state.Command{c})
		if err := refused(rs[0].Check()); err != nil {
			return api.ImportResult{}, err
		}
	}
	done := 0
	for _, c := range cmds {
		if err := s.commit(ctx, c); err != nil {
			var e *api.Error
			if done > 0 && errors.As(err, &e) {
				err = api.Errorf(e.Code, "the import ended after %d of %d subscribers: %s", done, len(all), e.Message).Advise("import the same file again")
			}
			return api.ImportResult{}, err
		}
		done += len(c.PutSubscribers.Subscribers)
	}
	s.settle(ctx)
	return res, nil
}

// imports puts subscribers into as many commands as it takes.
func imports(subs []state.Subscriber) ([]state.Command, error) {
	var out []state.Command
	for part := range slices.Chunk(subs, state.MaxSubscribers/2) {
		c := state.Command{RequestID: rand.Text(), PutSubscribers: &state.PutSubscribers{Subscribers: part}}
		if _, err := c.Encode(); err == nil {
			out = append(out, c)
			continue
		} else if len(part) == 1 {
			return nil, api.Errorf(api.TooLarge, "subscriber %s has too many identities: %v", part[0].IMPI, err)
		}
		for half := range slices.Chunk(part, (len(part)+1)/2) {
			cmds, err := imports(half)
			if err != nil {
				return nil, err
			}
			out = append(out, cmds...)
		}
	}
	return out, nil
}

func (s source) ExportSubscribers(context.Context) (iter.Seq[api.Subscriber], error) {
	st := s.p.ctl.State()
	return func(yield func(api.Subscriber) bool) {
		for sub := range st.Subscribers() {
			if !yield(shown(sub)) {
				return
			}
		}
	}, nil
}

// propose commits a command and lets it settle.
func (s source) propose(ctx context.Context, c state.Command) error {
	err := s.commit(ctx, c)
	if err == nil {
		s.settle(ctx)
	}
	return err
}

// commit commits a command and turns its refusal into an API error.
func (s source) commit(ctx context.Context, c state.Command) error {
	ctx, cancel := context.WithTimeout(ctx, proposeWithin)
	defer cancel()
	res, err := s.p.ctl.Propose(ctx, c)
	if res.Err != nil {
		return refused(res.Err)
	}
	if err != nil {
		return api.Errorf(api.NoLeader, "the controllers did not commit the change within %v, and it is not known whether it took effect", proposeWithin).
			Advise("wait until 'bellwether status' shows a leader, then see whether the change is there")
	}
	return nil
}

// settle waits until the worker processes have what was committed, for who
// changes something may use it at once, through any worker. One that does not
// answer in time has it when it is back.
func (s source) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	m := workerlink.AwaitMsg{Index: s.p.ctl.State().Index()}
	s.p.workers.askAll(ctx, workerlink.Await, workerlink.Encode(m), func([]byte) error { return nil })
}

func refused(err error) error {
	var e *state.Error
	if !errors.As(err, &e) {
		return err
	}
	code := api.Invalid
	switch e.Code {
	case state.NotFound:
		code = api.NotFound
	case state.Exists, state.Conflict:
		code = api.Conflict
	case state.Limit:
		code = api.TooLarge
	case state.NoWorker:
		code = api.Unavailable
	}
	return api.Errorf(code, "%s", e.Error())
}
