// Package icscf is the I-CSCF: it asks the HSS which S-CSCF a request is for,
// has one reserved for a user who registers without one, and relays the
// request there (TS 24.229 §5.3).
//
// It keeps no state and writes no Record-Route, so any I-CSCF can carry on for
// any other and none is in the way of a dialog. It does not authenticate and
// does not look at phones.
//
// Invariants:
//   - A REGISTER is taken from a P-CSCF of the cluster only, other requests
//     from an S-CSCF.
//   - What comes from the wire is refused, but OPTIONS: no other network is
//     connected, and a phone that came this way would be past the P- and S-CSCF
//     that say who it is and whether it may call.
//   - Only requests for users of the home domain go on; this is no open relay.
//   - Whether somebody is a subscriber, or barred, is for the S-CSCF to know: a
//     REGISTER for anybody goes to one, which challenges.
//
// Failure modes: an HSS that cannot be asked, and a cluster that has no S-CSCF
// to give, are answered 504, never 403: the user is not at fault. An S-CSCF
// that nobody serves is waited for (package nexthop).
package icscf

import (
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/digest"
	"bellwether/cscf/hss"
	"bellwether/cscf/nexthop"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

// Config is what an I-CSCF is.
type Config struct {
	Group       state.GroupID
	Sealer      *token.Sealer
	ServiceAddr netip.AddrPort // of the group, with the port of the I entry
	Domain      string         // home network domain
	HSS         hss.HSS
	Log         *slog.Logger
}

// Core is what an I-CSCF needs of the worker process. All methods may be
// called from any goroutine and none may block.
type Core interface {
	// State is the current copy of the cluster state.
	State() *state.State
	// Reserve names a group of that kind for a user who is assigned to none,
	// and holds the place for a while; done is called once, on any goroutine.
	Reserve(kind state.Kind, user string, done func(state.GroupID, error))
	// Route gives the next hop of m inside the cluster: the group that the
	// token of its top Route names, for a response that of its top Via.
	Route(kind state.Kind, m *sipmsg.Message) (transaction.Peer, error)
}

// CSCF is the I-CSCF of one group. It is safe for use by many shards.
type CSCF struct {
	cfg    Config
	core   Core
	log    *slog.Logger
	digest *digest.Server
}

var _ transaction.User = (*CSCF)(nil)

// New returns an I-CSCF.
func New(cfg Config, core Core) *CSCF {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &CSCF{
		cfg: cfg, core: core, log: cfg.Log.With("role", "i-cscf", "group", cfg.Group),
		digest: digest.NewServer(digest.Config{Secret: core.State().Secret()}),
	}
}

// Stop does nothing: there is nothing to end.
func (c *CSCF) Stop() {}

// Request handles a new request.
func (c *CSCF) Request(r *transaction.Request) {
	m := r.Message
	if r.From.Group == 0 {
		if u, err := sipmsg.ParseURI(m.RequestURI()); err == nil && m.Method() == "OPTIONS" && u.User == "" && c.myself(u) {
			r.ReplyStateless(200, "", nil)
		} else {
			r.ReplyStateless(403, "", nil)
		}
		return
	}
	registers := m.Method() == "REGISTER"
	g, ok := c.core.State().Group(r.From.Group)
	switch {
	case !ok: // newer than our copy of the state
		r.Reply(504, "", nil)
		return
	case registers && g.Kind != state.PCSCF, !registers && g.Kind != state.SCSCF:
		r.Reply(403, "", nil)
		return
	}
	for option := range m.Elements(sipmsg.ProxyRequire) {
		r.Reply(420, "", func(resp *sipmsg.Message) { resp.Set(sipmsg.Unsupported, option) })
		return
	}
	if registers {
		c.register(r)
		return
	}
	u, err := sipmsg.ParseURI(m.RequestURI())
	if err != nil {
		r.Reply(400, "Malformed Request-URI", nil)
		return
	}
	c.locate(r, u)
}

// Ack drops: an I-CSCF is in no route set, so no ACK of a 2xx comes here.
func (c *CSCF) Ack(*transaction.Layer, *sipmsg.Message, transaction.Peer) {}

// Stray relays a response of a predecessor's transaction, by the Via below
// ours (RFC 3261 §16.11).
func (c *CSCF) Stray(l *transaction.Layer, m *sipmsg.Message, from transaction.Peer) {
	via, ok := m.TopVia()
	if !ok || from.Group == 0 { // nothing was sent to the wire
		return
	}
	tok, ok := token.FromBranch(via.Branch())
	if !ok {
		return
	}
	if _, ok = c.cfg.Sealer.Open(tok); !ok {
		return
	}
	if to, err := c.core.Route(state.PCSCF, m); err == nil {
		l.RelayResponse(m, to)
	}
}

// myself reports whether a URI without user names the I entry.
func (c *CSCF) myself(u sipmsg.URI) bool {
	if strings.EqualFold(u.Host, c.cfg.Domain) {
		return true
	}
	addr, ok := u.HostPort()
	if !ok {
		return false
	}
	own, ok := c.core.State().ServiceAddrFor(c.cfg.Group, addr.Addr())
	return ok && own.Addr() == addr.Addr().Unmap()
}

// home reports whether a REGISTER's Request-URI names the home network: by its
// domain, or by the address that a phone was given for it.
func (c *CSCF) home(u sipmsg.URI) bool {
	if strings.EqualFold(strings.TrimSuffix(u.Host, "."), c.cfg.Domain) {
		return true
	}
	at, ok := u.HostPort()
	if !ok {
		return false
	}
	for n := range c.core.State().Nodes() {
		if at.Addr() == n.Service || at.Addr() == n.Service6 {
			return true
		}
	}
	return false
}

// register finds the S-CSCF of a user who registers (TS 24.229 §5.3.1).
func (c *CSCF) register(r *transaction.Request) {
	m := r.Message
	to, err := m.To()
	impu, ok := hss.Identity(to.URI)
	if err != nil || !ok {
		r.Reply(400, "Malformed To", nil)
		return
	}
	if u, err := sipmsg.ParseURI(m.RequestURI()); err != nil || !c.home(u) { // RFC 3261 §10.3 step 1
		r.Reply(403, "", nil)
		return
	}
	q := hss.UserAuthorization{IMPI: c.privateIdentity(m), IMPU: impu}
	c.authorize(r, q)
}

// authorize asks the HSS; where the user name is not that of the public
// identity's owner, anew without it: the S-CSCF judges credentials.
func (c *CSCF) authorize(r *transaction.Request, q hss.UserAuthorization) {
	hss.Await(r.Layer().Env().Post,
		func(reply func(hss.UserAuthorizationAnswer, error)) { c.cfg.HSS.UserAuthorization(q, reply) },
		func(a hss.UserAuthorizationAnswer, err error) {
			if errors.Is(err, hss.ErrIdentitiesDontMatch) && q.IMPI != "" {
				c.authorize(r, hss.UserAuthorization{IMPU: q.IMPU})
				return
			}
			c.authorized(r, q.IMPU, a, err)
		})
}

// privateIdentity is the user name of the credentials for the home domain; ""
// without any, and then the HSS goes by the public identity.
func (c *CSCF) privateIdentity(m *sipmsg.Message) string {
	for v := range m.Values(sipmsg.Authorization) {
		if cred, err := digest.Parse(v); err == nil && strings.EqualFold(cred.Realm, c.cfg.Domain) {
			return cred.Username
		}
	}
	return ""
}

func (c *CSCF) authorized(r *transaction.Request, impu string, a hss.UserAuthorizationAnswer, err error) {
	switch {
	case errors.Is(err, hss.ErrUserUnknown), errors.Is(err, hss.ErrIdentitiesDontMatch),
		errors.Is(err, hss.ErrAuthorizationRejected):
		c.stranger(r, impu)
	case err != nil:
		c.log.Warn("authorize a registration", "err", err)
		r.Reply(504, "", nil)
	case a.Server != 0:
		c.send(r, a.Server)
	case c.challenger(r.Message) != 0:
		c.send(r, c.challenger(r.Message))
	default:
		hss.Await(r.Layer().Env().Post,
			func(reply func(state.GroupID, error)) { c.core.Reserve(state.SCSCF, a.IMPI, reply) },
			func(g state.GroupID, err error) {
				if err != nil {
					c.log.Warn("reserve an S-CSCF", "user", a.IMPI, "err", err)
					r.Reply(504, "", nil)
					return
				}
				c.send(r, g)
			})
	}
}

// challengeTime is how long a challenge leads its answer to the S-CSCF that made
// it, as long as the leader holds a reservation.
const challengeTime = 40 * time.Second

// challenger is the S-CSCF whose fresh challenge a REGISTER answers, which no
// other takes an answer to, also when a new leader knows nothing of the
// reservation; 0 if there is none, or nobody serves it.
func (c *CSCF) challenger(m *sipmsg.Message) state.GroupID {
	for v := range m.Values(sipmsg.Authorization) {
		cred, err := digest.Parse(v)
		if err != nil {
			continue
		}
		server, made, ok := c.digest.Origin(cred.Nonce, cred.Realm)
		if !ok || time.Since(made) > challengeTime {
			continue
		}
		if g, ok := c.core.State().Group(server); ok && g.Kind == state.SCSCF && g.Serving != "" {
			return g.ID
		}
	}
	return 0
}

// stranger sends the REGISTER of somebody who may not register to an S-CSCF all
// the same, as if that were the user's: it challenges, and nobody learns from
// the answer who is a subscriber. The identity always falls to the same one
// while that is served, so that its wrong answers are counted together.
func (c *CSCF) stranger(r *transaction.Request, impu string) {
	var best state.GroupID
	var highest uint64
	for g := range c.core.State().Groups() {
		if g.Kind != state.SCSCF || g.Serving == "" {
			continue
		}
		h := fnv.New64a()
		fmt.Fprintf(h, "%d %s", g.ID, impu)
		if score := h.Sum64(); best == 0 || score > highest {
			best, highest = g.ID, score
		}
	}
	if best == 0 {
		r.Reply(504, "", nil)
		return
	}
	c.send(r, best)
}

// locate finds the S-CSCF of the user whom a request is for (TS 24.229
// §5.3.2).
func (c *CSCF) locate(r *transaction.Request, u sipmsg.URI) {
	if u.Scheme != "tel" && !strings.EqualFold(strings.TrimSuffix(u.Host, "."), c.cfg.Domain) {
		r.Reply(404, "", nil)
		return
	}
	ids := hss.Identities(u)
	if len(ids) == 0 {
		r.Reply(404, "", nil)
		return
	}
	c.ask(r, u, ids, againAfter)
}

// againAfter is the pause before the HSS is asked once more about a user who is
// not registered. The copies of the cluster state follow each other within
// milliseconds, and a call may come faster than that behind the registration
// that it is for.
const againAfter = 250 * time.Millisecond

// ask tries the identities that a Request-URI may mean one after the other.
// Who is not registered is asked for again after a pause, 0 for not.
func (c *CSCF) ask(r *transaction.Request, u sipmsg.URI, ids []string, pause time.Duration) {
	hss.Await(r.Layer().Env().Post,
		func(reply func(hss.LocationInfoAnswer, error)) {
			c.cfg.HSS.LocationInfo(hss.LocationInfo{IMPU: ids[0]}, reply)
		},
		func(a hss.LocationInfoAnswer, err error) {
			switch {
			case errors.Is(err, hss.ErrUserUnknown) && len(ids) > 1:
				c.ask(r, u, ids[1:], pause)
			case errors.Is(err, hss.ErrUserUnknown) && u.Scheme == "tel":
				r.Reply(404, "", nil) // somebody else may have the number
			case errors.Is(err, hss.ErrUserUnknown):
				r.Reply(604, "", nil)
			case errors.Is(err, hss.ErrIdentityNotRegistered) && pause > 0:
				r.Layer().Env().After(pause, func() {
					if !r.Finished() {
						c.ask(r, u, ids, 0)
					}
				})
			case errors.Is(err, hss.ErrIdentityNotRegistered):
				r.Reply(480, "", nil)
			case err != nil:
				c.log.Warn("locate a user", "err", err)
				r.Reply(504, "", nil)
			default:
				c.send(r, a.Server)
			}
		})
}

// send relays a request to the S-CSCF of a group.
func (c *CSCF) send(r *transaction.Request, server state.GroupID) {
	addr, ok := c.core.State().ServiceAddr(server)
	if !ok {
		c.log.Warn("address an S-CSCF", "server", server)
		r.Reply(504, "", nil)
		return
	}
	m := r.Message.Clone()
	m.Remove(sipmsg.Route)
	m.Push(sipmsg.Route, "<sip:"+c.cfg.Sealer.Seal(token.Token{Mode: token.Term, Group: server})+"@"+addr.String()+";lr>")
	nexthop.Send(r, nexthop.Hop{
		Message: m,
		Route:   func(m *sipmsg.Message) (transaction.Peer, error) { return c.core.Route(state.SCSCF, m) },
		Lost: func(err error) {
			c.log.Warn("route to an S-CSCF", "server", server, "err", err)
			r.Reply(504, "", nil)
		},
	})
}
