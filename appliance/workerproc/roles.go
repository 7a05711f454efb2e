package workerproc

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/state"
	"bellwether/cscf/digest"
	"bellwether/cscf/eventrouter"
	"bellwether/cscf/hss"
	"bellwether/cscf/icscf"
	"bellwether/cscf/pcscf"
	"bellwether/cscf/scscf"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

// start makes the engine of a group and gives it what the store holds.
func (p *Process) start(st *state.State, g state.Group) (*engine, error) {
	addr, ok := st.ServiceAddr(g.ID)
	if !ok {
		return nil, fmt.Errorf("the home node of group %d is not known yet", g.ID)
	}
	sealer, err := token.NewSealer(st.ClusterID(), st.Secret())
	if err != nil {
		return nil, err
	}
	p.tables.sealer.Store(sealer)
	at := p.serviceAddr(g.ID, addr)
	e := &engine{
		p: p, group: g, workerID: g.Serving, entry: entryOf(g.Kind),
		layers: make([]*transaction.Layer, eventrouter.Shards), pending: make([]int, eventrouter.Shards),
		flows: map[sipmsg.Flow]time.Time{},
		layerCfg: transaction.Config{
			T1: p.cfg.SIP.T1, SentBy: func(to transaction.Peer) string { return at(to.Flow.Remote.Addr()).String() }, Max: maxPerShard, Registering: p.registering, Refusals: p.refusals,
			Token:  sealer.Seal(token.Token{Mode: token.Via, Group: g.ID}),
			Secret: secretFor(st.Secret(), "branch"),
		},
	}
	if err := e.play(sealer, addr, g); err != nil {
		return nil, err
	}
	return e, nil
}

// serviceAddr gives the service address of a group that a remote address
// reaches; the first one if there is none of its family, or the state has lost
// the group.
func (p *Process) serviceAddr(g state.GroupID, first netip.AddrPort) func(remote netip.Addr) netip.AddrPort {
	return func(remote netip.Addr) netip.AddrPort {
		if addr, ok := p.State().ServiceAddrFor(g, remote); ok {
			return addr
		}
		return first
	}
}

// secretFor derives a key of one use from the cluster's secret.
func secretFor(secret []byte, use string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(use))
	return h.Sum(nil)
}

// play gives the engine the role of its kind.
func (e *engine) play(sealer *token.Sealer, addr netip.AddrPort, g state.Group) error {
	p, c := e.p, core{e}
	home := hss.NewEmbedded(hss.Config{State: p.State, Realm: p.cfg.SIP.Domain, Node: p.cfg.Node.Name, Clock: p.sims, Propose: c.Propose})
	switch g.Kind {
	case state.PCSCF:
		r := pcscf.New(pcscf.Config{
			Group: g.ID, Sealer: sealer, ServiceAddr: p.serviceAddr(g.ID, addr), Domain: p.cfg.SIP.Domain, Log: p.log,
		}, c, p.store)
		r.Load()
		e.role = r
		e.figures = func() figures {
			f := r.Figures()
			return figures{users: f.Users, lost: f.Lost, lostAt: f.LostAt}
		}
		e.bindings = func(m workerlink.UserMsg) []workerlink.Binding {
			var out []workerlink.Binding
			for _, b := range r.Bindings(m.AOR) {
				for _, contact := range b.Contacts {
					out = append(out, workerlink.Binding{
						Contact: contact, ServiceRoute: b.ServiceRoute, Expires: b.Expires, Flow: flowText(b.Flow),
					})
				}
			}
			return out
		}
	case state.ICSCF:
		e.layerCfg.Recovery = -1 // any I-CSCF may get the response to another one's request
		e.role = icscf.New(icscf.Config{
			Group: g.ID, Sealer: sealer, ServiceAddr: addr, Domain: p.cfg.SIP.Domain, HSS: home, Log: p.log,
		}, c)
		e.figures = func() figures { return figures{} }
	case state.SCSCF:
		r := scscf.New(scscf.Config{
			Group: g.ID, Sealer: sealer, ServiceAddr: addr, Domain: p.cfg.SIP.Domain, HSS: home, Log: p.log,
			Digest: digest.NewServer(digest.Config{
				Secret: p.State().Secret(), Server: g.ID, WithoutQOP: p.cfg.SIP.DigestWithoutQOP,
			}),
			Intervals: func() scscf.Intervals {
				sip := p.now().SIP
				return scscf.Intervals{Default: sip.DefaultExpires, Min: sip.MinExpires, Max: sip.MaxExpires}
			},
		}, c, p.store)
		r.Load()
		e.role = r
		e.figures = func() figures {
			f := r.Figures()
			return figures{users: f.Users, calls: f.Calls, lost: f.Lost, lostAt: f.LostAt, rejected: f.Rejected}
		}
		e.bindings = func(m workerlink.UserMsg) []workerlink.Binding {
			reg, ok := r.Registration(m.AOR)
			if !ok {
				return nil
			}
			var out []workerlink.Binding
			for _, b := range reg.Contacts {
				out = append(out, workerlink.Binding{Contact: b.URI, Path: b.Path, Q: b.Q, Expires: b.Expires})
			}
			return out
		}
		e.calls = func() []workerlink.Call {
			var out []workerlink.Call
			for _, k := range r.Calls() {
				out = append(out, workerlink.Call{CallID: k.CallID, From: k.From, To: k.To, State: k.State, Started: k.Started, Role: k.Role, PCSCF: k.PCSCF})
			}
			return out
		}
	default:
		return fmt.Errorf("this version does not know the kind %q of group %d; upgrade the node", g.Kind, g.ID)
	}
	return nil
}

// flowText is a flow for people: "udp 10.0.0.1:5060 192.0.2.7:5060".
func flowText(f sipmsg.Flow) string {
	return strings.ToLower(f.Transport.String()) + " " + f.Local.String() + " " + f.Remote.String()
}

// bindings lists what this process's workers know of a user.
func (p *Process) bindings(m workerlink.UserMsg) []workerlink.Binding {
	var out []workerlink.Binding
	for _, e := range *p.engines.Load() {
		if e.bindings == nil {
			continue
		}
		for _, b := range e.bindings(m) {
			b.Worker, b.Kind = e.workerID, string(e.group.Kind)
			out = append(out, b)
		}
	}
	return out
}

// allCalls lists the calls of this process's S-CSCFs.
func (p *Process) allCalls() []workerlink.Call {
	out := []workerlink.Call{}
	for _, e := range *p.engines.Load() {
		if e.calls == nil {
			continue
		}
		for _, k := range e.calls() {
			if len(out) == workerlink.MaxCalls {
				return out
			}
			k.Worker = e.workerID
			out = append(out, k)
		}
	}
	return out
}
