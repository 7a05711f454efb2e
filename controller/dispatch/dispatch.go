// Package dispatch decides which group a SIP message belongs to. Fronts ask it
// for what arrives on the wire, workers for their own next hop, so that both
// send the same message to the same place.
//
// It is pure: no sockets, goroutines, clocks or tables of its own. It changes
// no message, verifies no sender and makes no reservation; the caller does
// what a Decision says.
//
// Invariants: a message that carries a valid token of ours goes to the token's
// group and nowhere else; a message with a forged token, and a response
// without a token, goes nowhere; a group that nobody serves at the moment
// never leads to an error response, because the retransmission will be served
// (an I-CSCF keeps no state: any other takes over). An ACK is never answered.
//
// CANCEL, the ACK of a non-2xx response and retransmissions need no memory of
// their INVITE: they carry the same Route, From, To, Request-URI and Call-ID
// (RFC 3261 §9.1, §17.1.1.3), and everything here follows from those and from
// the flow.
package dispatch

import (
	"net/netip"
	"strings"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

// Verdict says what a Decision is.
type Verdict uint8

// The verdicts.
const (
	Drop    Verdict = iota // say nothing, count Decision.Drop
	To                     // hand over to Decision.Group
	Reserve                // reserve a group of Decision.Kind for Decision.User, then hand over to it
	Reply                  // answer statelessly with Decision.Status
)

// Reason says why a message is dropped.
type Reason uint8

// The reasons. NoReason stands in a Decision that drops nothing.
const (
	NoReason     Reason = iota
	NotReady            // the cluster state has no cluster yet
	Malformed           // a header that the decision needs is missing or unreadable
	NoToken             // response whose top Via is not ours (RFC 3261 §18.1.2)
	Forged              // a token that is not genuine, or not one for this place
	UnknownGroup        // genuine token of a group that is gone
	Unserved            // nobody serves the group, or its worker is not connected
	NoWorker            // no group of the kind is served
	StrayACK            // ACK that belongs to no dialog or transaction of ours
	reasons
)

var reasonNames = [reasons]string{
	"none", "not-ready", "malformed", "no-token", "forged-token", "unknown-group",
	"unserved", "no-worker", "stray-ack",
}

// String is the reason as a metric's label.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "unknown"
}

// Decision is what to do with a message.
type Decision struct {
	Verdict Verdict
	Group   state.GroupID // To
	// Chosen tells, with To, that the I-CSCF was chosen by load: the caller
	// remembers it for the Call-ID.
	Chosen bool
	Kind   state.Kind // Reserve
	User   string     // Reserve: AOR at the P-CSCF, IMPI at the S-CSCF; To: AOR whose assignment decided, of a REGISTER at the P-CSCF
	Status int        // Reply
	Reason string     // Reply: reason phrase
	Drop   Reason     // Drop
}

// Tables is what the caller knows beside the cluster state.
type Tables interface {
	// Flow returns the group of the phone that a flow belongs to.
	Flow(f sipmsg.Flow) (state.GroupID, bool)
	// Call returns the I-CSCF group that was chosen for a Call-ID before;
	// entries live for 64·T1 after the transaction can no longer be pending.
	Call(callID string) (state.GroupID, bool)
	// LeastLoaded returns the reachable I-CSCF group with the least load. It
	// is asked only for a message that goes there, and may count it.
	LeastLoaded() (state.GroupID, bool)
	// Reachable reports whether the group's worker can be sent to now.
	Reachable(g state.GroupID) bool
}

// Input is a message and everything that decides about it. All fields are
// needed.
type Input struct {
	Message *sipmsg.Message
	Entry   byte        // entry point it arrived at, or is meant for: 'p', 'i' or 's'
	Flow    sipmsg.Flow // where it came from; Node is the node that decides
	State   *state.State
	Sealer  *token.Sealer
	Tables  Tables
}

// KindOf returns the kind of worker behind an entry point.
func KindOf(entry byte) (state.Kind, bool) {
	switch entry {
	case 'p':
		return state.PCSCF, true
	case 'i':
		return state.ICSCF, true
	case 's':
		return state.SCSCF, true
	}
	return "", false
}

// Decide decides about a message that passed sipmsg's checks.
func Decide(in Input) Decision {
	if in.State == nil || in.Sealer == nil {
		return drop(NotReady)
	}
	kind, ok := KindOf(in.Entry)
	if !ok {
		return drop(NoWorker)
	}
	if !in.Message.IsRequest() {
		return in.response(kind)
	}
	uri, err := sipmsg.ParseURI(in.Message.RequestURI())
	if err != nil {
		return in.refuse(400, "Bad Request-URI")
	}
	method := in.Message.Method()
	// Where a phone registers is the cluster's choice, not that of a token that
	// it happens to know: its Route is only its way in.
	if method != "REGISTER" || kind != state.PCSCF {
		if d, ok := in.routed(kind, uri); ok {
			return d
		}
	}
	if method == "OPTIONS" && uri.User == "" && in.ours(uri.Host) && kind != state.ICSCF {
		return in.local(kind)
	}
	switch {
	case kind == state.ICSCF:
		return in.byLoad()
	case kind == state.SCSCF:
		// Nothing from the wire is served there. Where it would lead tells who
		// is registered.
		return in.refuse(403, "")
	case method == "REGISTER":
		return in.registerP()
	}
	return in.initialP(uri)
}

// response routes by the token in the branch of the top Via.
func (in *Input) response(kind state.Kind) Decision {
	via, ok := in.Message.TopVia()
	if !ok {
		return drop(Malformed)
	}
	text, ok := token.FromBranch(via.Branch())
	if !ok {
		return drop(NoToken)
	}
	tok, ok := in.Sealer.Open(text)
	if !ok || tok.Mode != token.Via {
		return drop(Forged)
	}
	d, admitted := in.byToken(tok, kind)
	if !admitted {
		return drop(Forged)
	}
	return d
}

// routed looks for a token of ours: in the Request-URI, where a strict router
// puts it (RFC 3261 §16.4), else in the top Route.
func (in *Input) routed(kind state.Kind, uri sipmsg.URI) (Decision, bool) {
	if tok, ok := in.Sealer.Open(uri.User); ok {
		if tok.Mode == token.Via {
			return drop(Forged), true
		}
		if d, ok := in.byToken(tok, kind); ok {
			return d, true
		}
	}
	route, ok := in.Message.TopRoute()
	if !ok {
		return Decision{}, false
	}
	hop, err := sipmsg.ParseURI(route.URI)
	if err != nil || hop.User == "" {
		return Decision{}, false
	}
	tok, ok := in.Sealer.Open(hop.User)
	switch {
	case ok && tok.Mode == token.Via:
		return drop(Forged), true
	case ok:
		return in.byToken(tok, kind)
	case in.ours(hop.Host):
		return drop(Forged), true
	}
	return Decision{}, false
}

// byToken hands over to a token's group. The P-CSCF's entry is open to
// everyone, so there only tokens of P-CSCFs count: a phone that knows the
// token of an S-CSCF, which stands in its Service-Route and in every Via
// below, must not reach it past the P-CSCF that asserts who it is.
func (in *Input) byToken(tok token.Token, entry state.Kind) (d Decision, admitted bool) {
	if tok.Group == 0 { // names the cluster only: any I-CSCF
		return in.byLoad(), entry != state.PCSCF
	}
	g, ok := in.State.Group(tok.Group)
	switch {
	case !ok:
		return drop(UnknownGroup), true
	case entry == state.PCSCF && g.Kind != state.PCSCF:
		return Decision{}, false
	case g.Kind == state.ICSCF && !in.served(g):
		return in.leastLoaded(), true
	}
	return in.to(g), true
}

// registerP: the flow's group, else the user's, else one to be reserved.
// A user whom nobody knows costs no reservation; any P-CSCF takes it to the
// core, whose answer does not tell that the user is unknown.
func (in *Input) registerP() Decision {
	if g, ok := in.flowGroup(); ok {
		return in.to(g)
	}
	aor, ok := in.toAOR()
	if !ok {
		return in.refuse(400, "Bad To")
	}
	if d, ok := in.assigned(state.PCSCF, aor); ok {
		if d.Verdict == To {
			d.User = aor
		}
		return d
	}
	if _, ok := in.State.SubscriberByIdentity(aor); ok {
		return Decision{Verdict: Reserve, Kind: state.PCSCF, User: aor}
	}
	return in.spread(state.PCSCF, aor, "")
}

// initialP: the flow's group; for an unknown flow the group of the user that
// the request claims to be from, whose worker knows whether that is so. A call
// for a service, such as urn:service:sos, may come from anybody (TS 24.229
// §5.2.10): any P-CSCF knows what to answer.
func (in *Input) initialP(uri sipmsg.URI) Decision {
	if g, ok := in.flowGroup(); ok {
		return in.to(g)
	}
	if uri.Scheme == "urn" {
		return in.local(state.PCSCF)
	}
	if from, err := in.Message.From(); err == nil {
		if d, ok := in.hinted(from.URI); ok {
			return d
		}
	}
	for v := range in.Message.Elements(sipmsg.PPreferredIdentity) {
		if id, err := sipmsg.ParseNameAddr(v); err == nil {
			if d, ok := in.hinted(id.URI); ok {
				return d
			}
		}
	}
	return in.refuse(403, "") // as a P-CSCF says it of a user who is registered, but elsewhere
}

// hinted finds the group of a claimed identity, by itself or by one that was
// registered together with it.
func (in *Input) hinted(text string) (Decision, bool) {
	uri, err := sipmsg.ParseURI(text)
	if err != nil {
		return Decision{}, false
	}
	aor := uri.AOR()
	if d, ok := in.assigned(state.PCSCF, aor); ok {
		return d, true
	}
	sub, ok := in.State.SubscriberByIdentity(aor)
	if !ok {
		return Decision{}, false
	}
	for _, own := range sub.Identities {
		if own.URI != aor {
			continue
		}
		for _, other := range sub.Identities {
			if other.Set != own.Set {
				continue
			}
			if d, ok := in.assigned(state.PCSCF, other.URI); ok {
				return d, true
			}
		}
	}
	return Decision{}, false
}

// byLoad: the I-CSCF that has the call already, else the least loaded one.
func (in *Input) byLoad() Decision {
	if id, ok := in.Tables.Call(in.Message.CallID()); ok {
		if g, ok := in.State.Group(id); ok && g.Kind == state.ICSCF && in.served(g) {
			return in.to(g)
		}
	}
	return in.leastLoaded()
}

// local hands over to a worker of this node, or of another if there is none.
func (in *Input) local(kind state.Kind) Decision {
	if d := in.spread(kind, in.Message.CallID(), in.Flow.Node); d.Verdict == To {
		return d
	}
	return in.spread(kind, in.Message.CallID(), "")
}

// spread hands over to the group of a kind, served on a node or (node "") on
// any, that the key falls to: the one with the highest hash, so that a group
// that comes or goes moves only its own keys.
func (in *Input) spread(kind state.Kind, key, node string) Decision {
	var best state.GroupID
	var highest uint64
	for g := range in.State.Groups() {
		if g.Kind != kind || !in.served(g) {
			continue
		}
		if node != "" {
			if w, ok := in.State.Worker(g.Serving); !ok || w.Node != node {
				continue
			}
		}
		if h := score(key, g.ID); best == 0 || h > highest {
			best, highest = g.ID, h
		}
	}
	if best == 0 {
		return drop(NoWorker)
	}
	return Decision{Verdict: To, Group: best}
}

// score is FNV-1a over key and group, mixed so that its high bits depend on
// all of them (finaliser of SplitMix64).
func score(key string, g state.GroupID) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h = (h ^ uint64(g)) * 1099511628211
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

func (in *Input) leastLoaded() Decision {
	id, ok := in.Tables.LeastLoaded()
	if !ok {
		return drop(NoWorker)
	}
	return Decision{Verdict: To, Group: id, Chosen: true}
}

// flowGroup returns the P-CSCF group that the flow belongs to.
func (in *Input) flowGroup() (state.Group, bool) {
	id, ok := in.Tables.Flow(in.Flow)
	if !ok {
		return state.Group{}, false
	}
	g, ok := in.State.Group(id)
	return g, ok && g.Kind == state.PCSCF
}

// assigned hands over to the group that a user is assigned to.
func (in *Input) assigned(kind state.Kind, user string) (Decision, bool) {
	id, ok := in.State.Assignment(kind, user)
	if !ok {
		return Decision{}, false
	}
	g, ok := in.State.Group(id)
	if !ok {
		return Decision{}, false
	}
	return in.to(g), true
}

// toAOR returns the address-of-record of To.
func (in *Input) toAOR() (string, bool) {
	to, err := in.Message.To()
	if err != nil {
		return "", false
	}
	uri, err := sipmsg.ParseURI(to.URI)
	if err != nil {
		return "", false
	}
	aor := uri.AOR()
	return aor, aor != ""
}

func (in *Input) served(g state.Group) bool {
	return g.Serving != "" && in.Tables.Reachable(g.ID)
}

// to hands over to a group if somebody serves it.
func (in *Input) to(g state.Group) Decision {
	if !in.served(g) {
		return drop(Unserved)
	}
	return Decision{Verdict: To, Group: g.ID}
}

// ours reports whether host is a service address of the cluster or the
// address at which the message arrived.
func (in *Input) ours(host string) bool {
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return false
	}
	addr = addr.Unmap()
	if addr == in.Flow.Local.Addr().Unmap() {
		return true
	}
	for n := range in.State.Nodes() {
		if addr == n.Service.Unmap() || addr == n.Service6 {
			return true
		}
	}
	return false
}

// refuse answers a request. An ACK is dropped. A CANCEL is told that there is
// nothing to cancel (RFC 3261 §9.2): its INVITE was refused by the same rule.
func (in *Input) refuse(status int, reason string) Decision {
	switch in.Message.Method() {
	case "ACK":
		return drop(StrayACK)
	case "CANCEL":
		status, reason = 481, "Call/Transaction Does Not Exist"
	}
	return Decision{Verdict: Reply, Status: status, Reason: reason}
}

func drop(r Reason) Decision { return Decision{Verdict: Drop, Drop: r} }
