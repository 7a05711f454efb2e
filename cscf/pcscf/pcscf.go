// Package pcscf is the P-CSCF of one group: what a phone talks to (TS 24.229
// §5.2). It keeps the phones' bindings, asserts their identity, and relays
// between their flows and the I- and S-CSCF.
//
// It does not authenticate (the S-CSCF does), does not choose where a phone
// belongs (the front and the cluster state do), opens no socket and keeps no
// dialogs: a dialog's requests find their way by the tokens in its route set,
// and whether the dialog exists is for the S-CSCF to say.
//
// Invariants:
//   - Nothing that a phone claims about its identity, its charging or its way
//     through the network goes on: those headers are removed, whatever their
//     letter case, and written anew from the binding.
//   - A request from a flow without a binding is refused, apart from REGISTER,
//     OPTIONS to the P-CSCF itself and the ACK that nobody answers. A refusal
//     leaves nothing in memory.
//   - A request inside a dialog comes over the flow of a phone that the token
//     in its Route belongs to, and goes on to an S-CSCF that has the dialog.
//   - The 200 to a REGISTER leaves when the binding is durable and the user's
//     assignment is committed, not before.
//   - A binding's id is a hash of the public identity and the phone's instance,
//     so a phone that reconnects and registers again keeps the id that its
//     dialogs carry, and is reached over its current flow.
//
// Failure modes: a phone whose connection is gone is tried at its contact if no
// NAT is between, else the S-CSCF is told 430 at once (RFC 5626 §5.3). An I- or
// S-CSCF that nobody serves is waited for (package
// nexthop) and then answered 504, with the restoration body of TS 24.229 §7.6
// where a registration would help. A
// binding that could not be stored is answered 500; it stays in memory, as the
// S-CSCF has it too, and ends by itself. Records that cannot be read are
// skipped and logged.
package pcscf

import (
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/assignment"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
	"bellwether/ha"
)

// Config is what a P-CSCF is.
type Config struct {
	Group  state.GroupID
	Sealer *token.Sealer
	// ServiceAddr is the group's address that a remote address reaches, of its
	// family where the group has one, with the port of the P entry.
	ServiceAddr func(remote netip.Addr) netip.AddrPort
	Domain      string // home network domain
	// DialogLinger is how long the flow of a phone that had dialogs is kept
	// after its registration ended, so that its calls go on; 0 means 2 h.
	DialogLinger time.Duration
	Log          *slog.Logger
}

// Core is what a P-CSCF needs of the worker process. All methods may be called
// from any goroutine and none may block.
type Core interface {
	// State is the current copy of the cluster state.
	State() *state.State
	// Propose changes the cluster state; done is called once, on any goroutine.
	Propose(cmd state.Command, done func(state.Result, error))
	// Route gives the next hop of m inside the cluster: the group that the
	// token of its top Route names, for a response that of its top Via; without
	// one, a group of that kind by the kind's policy.
	Route(kind state.Kind, m *sipmsg.Message) (transaction.Peer, error)
	// After runs fn after d on any goroutine, unless stop was called before.
	After(d time.Duration, fn func()) (stop func())
	// Bind tells the front of the flow that it belongs to this group.
	Bind(flow sipmsg.Flow, until time.Time)
	// Unbind takes that back.
	Unbind(flow sipmsg.Flow)
}

// CSCF is the P-CSCF of one group. It is safe for use by many shards.
type CSCF struct {
	cfg   Config
	core  Core
	store ha.Store
	log   *slog.Logger
	users *assignment.Table
	table *table
}

var _ transaction.User = (*CSCF)(nil)

// New returns the P-CSCF of a group, without any binding; see Load.
func New(cfg Config, core Core, store ha.Store) *CSCF {
	if cfg.DialogLinger == 0 {
		cfg.DialogLinger = 2 * time.Hour
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &CSCF{
		cfg: cfg, core: core, store: store,
		log: cfg.Log.With("role", "p-cscf", "group", cfg.Group),
	}
	c.users = assignment.New(state.PCSCF, cfg.Group, core, c.log)
	c.table = newTable(c)
	return c
}

// Stop ends timers. Requests in progress may still end.
func (c *CSCF) Stop() {
	c.users.Stop()
	c.table.stop()
}

// Figures are the P-CSCF's part of its worker's load.
type Figures struct {
	Users       int    // public identities with a binding
	Bindings    int    // phones that can be reached
	Overwritten uint64 // requests whose Route was not the Service-Route
	Refused     uint64 // requests from flows without a binding

	Lost   int       // identities that were assigned to the group without a binding in its store
	LostAt time.Time // when the last of them was found
}

// Request handles a new request (TS 24.229 §5.2.2 to §5.2.10).
func (c *CSCF) Request(r *transaction.Request) {
	if r.From.Group != 0 {
		c.fromCore(r)
		return
	}
	m := r.Message
	switch {
	case m.Method() == "REGISTER":
		c.register(r)
	case unsupported(m) != "":
		r.ReplyStateless(420, "", func(resp *sipmsg.Message) { resp.Set(sipmsg.Unsupported, unsupported(m)) })
	case emergency(m.RequestURI()):
		c.alternativeService(r)
	case m.Method() == "OPTIONS" && c.toMyself(m):
		c.options(r)
	default:
		c.fromPhone(r)
	}
}

// Ack relays the ACK of a 2xx along its route set; one that has no way is
// dropped, since nobody answers an ACK.
func (c *CSCF) Ack(l *transaction.Layer, m *sipmsg.Message, from transaction.Peer) {
	if from.Group != 0 {
		if b, refused := c.towardsPhone(m, from); refused == 0 {
			l.Relay(m, transaction.Peer{Flow: c.table.reach(b)})
		}
		return
	}
	if c.dialogFromPhone(m, from) != 0 {
		return
	}
	if to, err := c.toSCSCF(m); err == nil {
		l.Relay(m, to)
	}
}

// Stray relays a response whose transaction was lost with a predecessor, by
// the Via below ours (RFC 3261 §16.11): a phone's to the core, the core's to a
// phone.
func (c *CSCF) Stray(l *transaction.Layer, m *sipmsg.Message, from transaction.Peer) {
	via, ok := m.TopVia()
	if !ok {
		return
	}
	if tok, ours := token.FromBranch(via.Branch()); ours {
		if _, ours = c.cfg.Sealer.Open(tok); ours {
			c.cleanResponseFromPhone(m, "")
			if to, err := c.core.Route(state.SCSCF, m); err == nil {
				l.RelayResponse(m, to)
			}
			return
		}
	}
	if to, ok := c.table.behind(via); ok && from.Group != 0 {
		cleanTowardsPhone(m)
		l.RelayResponse(m, transaction.Peer{Flow: to})
	}
}

// mine reports whether a route names this P-CSCF, and the token in it.
func (c *CSCF) mine(uri string) (token.Token, bool) {
	u, err := sipmsg.ParseURI(uri)
	if err != nil {
		return token.Token{}, false
	}
	t, ok := c.cfg.Sealer.Open(u.User)
	return t, ok && t.Mode == token.Binding && t.Group == c.cfg.Group
}

// entry reports whether a URI without user names the cluster's P entry: any
// node's addresses or the home domain, the way a phone's outbound proxy is set,
// whatever the transport.
func (c *CSCF) entry(uri string) bool {
	u, err := sipmsg.ParseURI(uri)
	if err != nil || u.User != "" || u.Host == "" {
		return false
	}
	if strings.EqualFold(u.Host, c.cfg.Domain) {
		return true
	}
	at, ok := u.HostPort()
	if !ok {
		return false
	}
	addr := at.Addr().Unmap()
	for n := range c.core.State().Nodes() {
		if (n.Service.Unmap() == addr || n.Service6 == addr) && (u.Port == 0 || u.Port == int(n.P)) {
			return true
		}
	}
	return false
}

// routeURI is our entry in Path and Record-Route for a binding whose phone is
// reached over a flow: it names the address and transport by which that phone
// reaches us. The other side, an S-CSCF, goes by the token alone, so one entry
// serves both (RFC 5658 has two where the sides differ).
func (c *CSCF) routeURI(binding uint64, flow sipmsg.Flow) string {
	transport := ""
	if flow.Transport.Reliable() {
		transport = ";transport=" + strings.ToLower(flow.Transport.String())
	}
	tok := c.cfg.Sealer.Seal(token.Token{Mode: token.Binding, Group: c.cfg.Group, Binding: binding})
	return "<sip:" + tok + "@" + c.cfg.ServiceAddr(flow.Remote.Addr()).String() + transport + ";lr>"
}
