// Package hss is what the I- and S-CSCF ask about subscribers: the four
// questions of the Cx interface (TS 29.228 §6.1) and their answers.
//
// The interface is asynchronous so that an implementation over Diameter can
// wait for its server; [Embedded] answers from the replicated cluster state at
// once. The package decides nothing about SIP and changes nothing: who serves
// a user is committed by the S-CSCF through the cluster state.
//
// A question has an answer or an error. The sentinel errors below are the
// experimental results of Cx and mean that the HSS has decided; any other
// error means that it could not be asked, which a role must never turn into a
// refusal of the user.
package hss

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/aka"
)

// What an HSS may decide against a question (TS 29.229 §6.2).
var (
	// ErrUserUnknown: DIAMETER_ERROR_USER_UNKNOWN (5001).
	ErrUserUnknown = errors.New("user is unknown")
	// ErrIdentitiesDontMatch: DIAMETER_ERROR_IDENTITIES_DONT_MATCH (5002).
	ErrIdentitiesDontMatch = errors.New("public and private identity do not match")
	// ErrIdentityNotRegistered: DIAMETER_ERROR_IDENTITY_NOT_REGISTERED (5003).
	ErrIdentityNotRegistered = errors.New("identity is not registered")
	// ErrAuthorizationRejected: DIAMETER_AUTHORIZATION_REJECTED (5003 of the base protocol).
	ErrAuthorizationRejected = errors.New("user may not register")
)

// HSS answers the questions of the CSCFs. Each method calls reply exactly
// once, before it returns or later on any goroutine; [Await] brings the answer
// to where it is needed. Methods may be called from any goroutine.
type HSS interface {
	// UserAuthorization: may the user register, and which S-CSCF has it (UAR).
	UserAuthorization(q UserAuthorization, reply func(UserAuthorizationAnswer, error))
	// LocationInfo: which S-CSCF serves a public identity (LIR).
	LocationInfo(q LocationInfo, reply func(LocationInfoAnswer, error))
	// MultimediaAuth: how to authenticate the user (MAR).
	MultimediaAuth(q MultimediaAuth, reply func(MultimediaAuthAnswer, error))
	// ServerAssignment: tells what became of a registration and fetches the
	// user's profile (SAR).
	ServerAssignment(q ServerAssignment, reply func(ServerAssignmentAnswer, error))
}

// Live is implemented by an HSS that knows the current profile of a user
// without being asked over a network. Where it is there, an S-CSCF uses it at
// each request, so that a removed or barred user is cut off at once; without
// it, profiles change when the HSS pushes them (PPR, RTR).
type Live interface {
	Profile(impi string) (Profile, bool)
}

// UserAuthorization is the question of a REGISTER at the I-CSCF.
type UserAuthorization struct {
	IMPI string // "" where the REGISTER carried no credentials
	IMPU string // canonical AOR of the To header
}

// UserAuthorizationAnswer allows a registration.
type UserAuthorizationAnswer struct {
	IMPI   string
	Server state.GroupID // S-CSCF group that has the user, 0: none yet
}

// LocationInfo is the question of every other initial request at the I-CSCF.
type LocationInfo struct {
	IMPU string // canonical AOR of the request's target
}

// LocationInfoAnswer names the S-CSCF group that serves the identity.
type LocationInfoAnswer struct {
	IMPI   string
	Server state.GroupID
}

// MultimediaAuth is the question of an S-CSCF that must authenticate.
type MultimediaAuth struct {
	IMPI   string // "" where the REGISTER carried no credentials
	IMPU   string
	Server state.GroupID // S-CSCF group that asks

	Sent *Challenge          // the AKA challenge that the REGISTER answers; nil: none
	AUTS *[aka.AUTSSize]byte // the SIM's answer to Sent, if it asks for resynchronisation
}

// Challenge is the part of an AKA vector that a phone is sent.
type Challenge struct {
	RAND, AUTN [16]byte
}

// MultimediaAuthAnswer carries what SIP digest (Annex N of TS 33.203) and AKA
// need (TS 29.228 §6.3): either of them, or both. Nothing of it must be
// changed, printed or logged.
type MultimediaAuthAnswer struct {
	IMPI  string
	Realm string
	HA1   state.HA1

	Vector   *aka.Vector // for a new challenge; nil: the user has no SIM
	Sent     *Sent       // nil: the question had none, or it is no challenge of this user
	Resynced bool        // the AUTS was the SIM's; Vector goes on from there
}

// Sent is a challenge of the user that was sent earlier.
type Sent struct {
	XRES []byte // secret
	Made time.Time
	Own  bool // the same Server asked for it
}

// String shows no secret.
func (s Sent) String() string { return "{made " + s.Made.Format(time.RFC3339) + "}" }

// GoString is String.
func (s Sent) GoString() string { return s.String() }

// AssignmentType says why an S-CSCF asks for a server assignment
// (Server-Assignment-Type, TS 29.229 §6.3.15).
type AssignmentType uint8

// The assignment types that occur here, with their values in Cx.
const (
	NoAssignment          AssignmentType = 0
	Registration          AssignmentType = 1
	ReRegistration        AssignmentType = 2
	TimeoutDeregistration AssignmentType = 4
	UserDeregistration    AssignmentType = 5
)

// ServerAssignment tells the HSS of a registration or its end.
type ServerAssignment struct {
	IMPI, IMPU string
	Server     state.GroupID
	Type       AssignmentType
}

// ServerAssignmentAnswer carries the profile of the user.
type ServerAssignmentAnswer struct {
	Profile Profile
}

// Profile is the part of a subscription that an S-CSCF works with. It is
// shared and must not be changed.
type Profile struct {
	IMPI       string
	Identities []state.Identity // of all implicit registration sets, in order
	Since      uint64           // differs for another subscription under the same IMPI
}

// Identity finds a public identity by its canonical AOR.
func (p Profile) Identity(aor string) (state.Identity, bool) {
	for _, id := range p.Identities {
		if id.URI == aor {
			return id, true
		}
	}
	return state.Identity{}, false
}

// Associated returns the identities of an implicit registration set that are
// not barred; the first is the default identity (TS 24.229 §5.4.1.2.2F).
func (p Profile) Associated(set int) []string {
	var out []string
	for _, id := range p.Identities {
		if id.Set == set && !id.Barred {
			out = append(out, id.URI)
		}
	}
	return out
}

// Equal reports whether two profiles say the same.
func (p Profile) Equal(o Profile) bool {
	return p.IMPI == o.IMPI && p.Since == o.Since && slices.Equal(p.Identities, o.Identities)
}

// Await asks a question and hands the answer on where the caller wants it: an
// answer that is there when ask returns runs then on the calling goroutine,
// a later one through post. A SIP shard passes its own post, so then always
// runs in the shard and an HSS that answers at once costs no detour.
func Await[A any](post func(func()), ask func(reply func(A, error)), then func(A, error)) {
	const returned, answered = 1, 2
	var (
		phase  atomic.Int32
		answer A
		failed error
	)
	ask(func(a A, err error) {
		answer, failed = a, err
		if phase.Swap(answered) == returned {
			post(func() { then(answer, failed) })
		}
	})
	if phase.Swap(returned) == answered {
		then(answer, failed)
	}
}
