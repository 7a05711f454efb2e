// Package scscf is the S-CSCF of one group: registrar, authenticator and
// session control for the users that the group serves (TS 24.229 §5.4).
//
// It does not choose its users (the I-CSCF and the cluster state do), does not
// touch flows (it reaches a phone by the Path it registered with), holds no
// media and runs no services yet.
//
// Invariants:
//   - A REGISTER changes something only after a digest or AKA check; a challenge
//     creates no state. Who is no subscriber, or barred, is challenged like
//     everybody else, and no answer to a challenge tells them.
//   - All contacts of a REGISTER take effect or none (RFC 3261 §10.3). The 200
//     leaves when the registration is durable and the user's assignment is
//     committed.
//   - A request is served for a user who is registered here and whose identity
//     is not barred, judged by the profile of that moment.
//   - A request inside a dialog, or an ACK, passes only if the dialog was formed
//     through here and its From is the dialog's.
//   - Requests come from engines of the cluster only, each mode of our Route
//     from the kind that may use it; what arrives from the wire is refused.
//
// Failure modes: an HSS that cannot be asked, and a next hop that nobody serves
// even after a while (package nexthop), are answered 504, phones that cannot be
// reached 480, a registration that could not be stored 500. A user who is assigned to
// another group is not served. A phone whose answers are wrong, or stale with
// the same nonce, five times in a minute hears 403 until one is right. Records
// that cannot be read are skipped and logged. Beyond the limits of Config a
// request that may form a dialog is answered 503.
package scscf

import (
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/assignment"
	"bellwether/cscf/digest"
	"bellwether/cscf/hss"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
	"bellwether/ha"
)

// Config is what an S-CSCF is. The zero value of a number means its default.
type Config struct {
	Group       state.GroupID
	Sealer      *token.Sealer
	ServiceAddr netip.AddrPort // of the group, with the port of the S entry
	Domain      string         // home network domain
	HSS         hss.HSS
	Digest      *digest.Server // nil: one with the cluster's secret and the group's number

	Intervals   func() Intervals // asked for each REGISTER; nil: the defaults
	MaxContacts int              // of one user; 10
	MaxDialogs  int              // requests that began dialogs which last, or may; one more is answered 503; 100000
	MaxOwned    int              // of those that one user began; 2000
	Log         *slog.Logger
}

// Intervals are the registration intervals that are granted. Zero means the
// default.
type Intervals struct {
	Default time.Duration // of a contact that asks for none; 1 h
	Min     time.Duration // shorter ones are answered 423; 60 s
	Max     time.Duration // longer ones are shortened; 600000 s (TS 24.229 §5.4.1.2.2F)
}

func (c *CSCF) intervals() Intervals {
	var i Intervals
	if c.cfg.Intervals != nil {
		i = c.cfg.Intervals()
	}
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&i.Default, time.Hour)
	set(&i.Min, time.Minute)
	set(&i.Max, 600000*time.Second)
	return i
}

func (c Config) withDefaults() Config {
	if c.MaxContacts == 0 {
		c.MaxContacts = 10
	}
	if c.MaxDialogs == 0 {
		c.MaxDialogs = 100000
	}
	if c.MaxOwned == 0 {
		c.MaxOwned = 2000
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Core is what an S-CSCF needs of the worker process. All methods may be
// called from any goroutine and none may block.
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
}

// CSCF is the S-CSCF of one group. It is safe for use by many shards.
type CSCF struct {
	cfg      Config
	core     Core
	store    ha.Store
	log      *slog.Logger
	live     hss.Live // nil: profiles are as old as the registration
	assigned *assignment.Table
	users    *registrar
	dialogs  *dialogs
	attempts *attempts
	orig     string // our Service-Route
	dialog   string // our Record-Route

	rejected atomic.Uint64 // REGISTERs whose credentials were wrong
	told     atomic.Int64  // when one of them was logged last, in Unix nanoseconds
}

var _ transaction.User = (*CSCF)(nil)

// New returns the S-CSCF of a group, without any registration; see Load.
func New(cfg Config, core Core, store ha.Store) *CSCF {
	c := &CSCF{cfg: cfg.withDefaults(), core: core, store: store}
	if c.cfg.Digest == nil {
		c.cfg.Digest = digest.NewServer(digest.Config{Secret: core.State().Secret(), Server: cfg.Group})
	}
	c.log = c.cfg.Log.With("role", "s-cscf", "group", cfg.Group)
	c.live, _ = cfg.HSS.(hss.Live)
	route := func(mode token.Mode) string {
		return "<sip:" + cfg.Sealer.Seal(token.Token{Mode: mode, Group: cfg.Group}) + "@" + cfg.ServiceAddr.String() + ";lr>"
	}
	c.orig, c.dialog = route(token.Orig), route(token.Dialog)
	c.assigned = assignment.New(state.SCSCF, cfg.Group, core, c.log)
	c.users = newRegistrar(c)
	c.dialogs = newDialogs(c)
	c.attempts = newAttempts()
	return c
}

// Stop ends timers. Requests in progress may still end.
func (c *CSCF) Stop() {
	c.assigned.Stop()
	c.users.stop()
}

// Load takes the group's records from the store, when the worker begins to
// serve the group and before the first request.
func (c *CSCF) Load() {
	now := time.Now()
	c.store.Range(c.cfg.Group, func(r ha.Record) bool {
		var err error
		switch {
		case strings.HasPrefix(r.Key, userPrefix):
			err = c.users.load(r, now)
		case strings.HasPrefix(r.Key, dialogPrefix):
			err = c.dialogs.load(r, now)
		}
		if err != nil {
			c.log.Error("load a record", "key", r.Key, "err", err)
		}
		return true
	})
	c.assigned.Reconcile(c.users.holds, c.users.lose)
}

// Figures are the S-CSCF's part of its worker's load.
type Figures struct {
	Users      int // subscriptions with a contact
	Identities int // public identities that are registered
	Contacts   int
	Calls      int    // in progress, both halves of a call counted once
	Rejected   uint64 // REGISTERs whose credentials were wrong

	Lost   int       // users who were assigned to the group without a registration in its store
	LostAt time.Time // when the last of them was found
}

// Figures counts what the S-CSCF holds.
func (c *CSCF) Figures() Figures {
	f := c.users.figures()
	f.Calls, f.Rejected = c.dialogs.inCalls(), c.rejected.Load()
	f.Lost, f.LostAt = c.assigned.Lost()
	return f
}

// Request handles a new request by the mode of the Route entry of ours that
// brought it here (TS 24.229 §5.4.3).
func (c *CSCF) Request(r *transaction.Request) {
	m := r.Message
	if r.From.Group == 0 {
		if m.Method() == "OPTIONS" && c.myself(m.RequestURI()) {
			r.ReplyStateless(200, "", nil)
		} else {
			r.ReplyStateless(403, "", nil)
		}
		return
	}
	from, ok := c.core.State().Group(r.From.Group)
	if !ok { // newer than our copy of the state
		r.Reply(504, "", nil)
		return
	}
	mode := c.mode(m)
	registers := m.Method() == "REGISTER"
	switch {
	case registers && mode == token.Term && from.Kind == state.ICSCF:
		c.register(r)
	case registers:
		r.Reply(403, "", nil)
	case (mode == token.Orig || mode == token.Term) && m.ToTag() != "":
		r.Reply(481, "", nil) // our Record-Route is in the route set of every dialog
	case mode == token.Orig && from.Kind == state.PCSCF:
		c.originating(r)
	case mode == token.Term && from.Kind == state.ICSCF:
		c.terminating(r)
	case mode == token.Dialog && m.ToTag() != "" && from.Kind != state.ICSCF:
		c.inDialog(r, from.Kind)
	default:
		r.Reply(403, "", nil)
	}
}

// Ack relays the ACK of a 2xx along its route set; nobody answers one that has
// no way.
func (c *CSCF) Ack(l *transaction.Layer, m *sipmsg.Message, from transaction.Peer) {
	sender, ok := c.core.State().Group(from.Group)
	if mode := c.mode(m); !ok || sender.Kind == state.ICSCF || mode != token.Dialog {
		return
	}
	m.Pop(sipmsg.Route)
	to, err := c.next(m)
	if err != nil || c.inside(m, sender.Kind) != nil {
		return
	}
	l.Relay(m, to)
}

// Stray relays a response of a predecessor's transaction, by the Via below
// ours (RFC 3261 §16.11).
func (c *CSCF) Stray(l *transaction.Layer, m *sipmsg.Message, from transaction.Peer) {
	via, ok := m.TopVia()
	if !ok || from.Group == 0 {
		return
	}
	tok, ok := token.FromBranch(via.Branch())
	if !ok {
		return
	}
	if _, ok = c.cfg.Sealer.Open(tok); !ok {
		return
	}
	c.dialogs.heard(hashOf(m.CallID(), m.FromTag()), "", m, time.Now())
	if to, err := c.core.Route(state.PCSCF, m); err == nil {
		l.RelayResponse(m, to)
	}
}

// token reads the token in the user part of the top Route.
func (c *CSCF) token(m *sipmsg.Message) (token.Token, bool) {
	top, ok := m.TopRoute()
	if !ok {
		return token.Token{}, false
	}
	u, err := sipmsg.ParseURI(top.URI)
	if err != nil {
		return token.Token{}, false
	}
	return c.cfg.Sealer.Open(u.User)
}

// mode is that of the top Route, 0 if it is not ours.
func (c *CSCF) mode(m *sipmsg.Message) token.Mode {
	t, ok := c.token(m)
	if !ok || t.Group != c.cfg.Group {
		return 0
	}
	return t.Mode
}

// myself reports whether a URI names the S entry.
func (c *CSCF) myself(uri string) bool {
	u, err := sipmsg.ParseURI(uri)
	if err != nil || u.User != "" {
		return false
	}
	addr, ok := u.HostPort()
	own, known := c.core.State().ServiceAddrFor(c.cfg.Group, addr.Addr())
	return ok && known && own.Addr() == addr.Addr().Unmap() || strings.EqualFold(u.Host, c.cfg.Domain)
}
