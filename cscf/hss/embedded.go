package hss

import (
	"bellwether/controller/state"
	"bellwether/cscf/aka"
)

// Config is what an embedded HSS works with.
type Config struct {
	State func() *state.State // asked at each question
	Realm string              // of subscribers that name none: the home network's domain

	Node    string                                         // name of the node, whose place among all gives IND
	Clock   *aka.Clock                                     // one for the whole process; nil: a new one
	Propose func(state.Command, func(state.Result, error)) // commits a resynchronisation; nil: there is none
}

// Embedded is the HSS inside the cluster state. Its answers are as old as the
// copy of the state that it reads.
type Embedded struct {
	state   func() *state.State
	realm   string
	node    string
	clock   *aka.Clock
	propose func(state.Command, func(state.Result, error))
}

var (
	_ HSS  = (*Embedded)(nil)
	_ Live = (*Embedded)(nil)
)

// NewEmbedded returns an HSS.
func NewEmbedded(c Config) *Embedded {
	e := &Embedded{c.State, c.Realm, c.Node, c.Clock, c.Propose}
	if e.clock == nil {
		e.clock = aka.NewClock()
	}
	return e
}

// owner finds the subscriber of a public identity and checks that it is the
// one of the private identity, if that is given.
func owner(s *state.State, impi, impu string) (state.Subscriber, state.Identity, error) {
	sub, ok := s.SubscriberByIdentity(impu)
	if !ok {
		return sub, state.Identity{}, ErrUserUnknown
	}
	if impi != "" && impi != sub.IMPI {
		return sub, state.Identity{}, ErrIdentitiesDontMatch
	}
	for _, id := range sub.Identities {
		if id.URI == impu {
			return sub, id, nil
		}
	}
	return sub, state.Identity{}, ErrUserUnknown
}

func profile(sub state.Subscriber) Profile {
	return Profile{IMPI: sub.IMPI, Identities: sub.Identities, Since: sub.Since}
}

// UserAuthorization refuses an identity whose implicit registration set is
// barred as a whole: nothing would be registered (TS 29.228 §6.1.1).
func (e *Embedded) UserAuthorization(q UserAuthorization, reply func(UserAuthorizationAnswer, error)) {
	s := e.state()
	sub, id, err := owner(s, q.IMPI, q.IMPU)
	if err == nil && len(profile(sub).Associated(id.Set)) == 0 {
		err = ErrAuthorizationRejected
	}
	if err != nil {
		reply(UserAuthorizationAnswer{}, err)
		return
	}
	server, _ := s.Assignment(state.SCSCF, sub.IMPI)
	reply(UserAuthorizationAnswer{IMPI: sub.IMPI, Server: server}, nil)
}

// LocationInfo knows a user as registered while an S-CSCF is assigned to it.
func (e *Embedded) LocationInfo(q LocationInfo, reply func(LocationInfoAnswer, error)) {
	s := e.state()
	sub, _, err := owner(s, "", q.IMPU)
	if err != nil {
		reply(LocationInfoAnswer{}, err)
		return
	}
	server, ok := s.Assignment(state.SCSCF, sub.IMPI)
	if !ok {
		reply(LocationInfoAnswer{}, ErrIdentityNotRegistered)
		return
	}
	reply(LocationInfoAnswer{IMPI: sub.IMPI, Server: server}, nil)
}

// MultimediaAuth returns the digest secrets of the subscriber, a fresh vector
// for its SIM, or both.
func (e *Embedded) MultimediaAuth(q MultimediaAuth, reply func(MultimediaAuthAnswer, error)) {
	sub, _, err := owner(e.state(), q.IMPI, q.IMPU)
	if err != nil {
		reply(MultimediaAuthAnswer{}, err)
		return
	}
	realm := sub.Realm
	if realm == "" {
		realm = e.realm
	}
	a := MultimediaAuthAnswer{IMPI: sub.IMPI, Realm: realm, HA1: sub.HA1}
	if sub.AKA == nil {
		reply(a, nil)
		return
	}
	e.authenticate(sub, q, a, reply)
}

// ServerAssignment returns the profile. There is nothing to note down: the
// assignment itself is a command of the cluster state.
func (e *Embedded) ServerAssignment(q ServerAssignment, reply func(ServerAssignmentAnswer, error)) {
	sub, _, err := owner(e.state(), q.IMPI, q.IMPU)
	if err != nil {
		reply(ServerAssignmentAnswer{}, err)
		return
	}
	reply(ServerAssignmentAnswer{Profile: profile(sub)}, nil)
}

// Profile returns the profile of a subscriber; false if there is none.
func (e *Embedded) Profile(impi string) (Profile, bool) {
	sub, ok := e.state().Subscriber(impi)
	if !ok {
		return Profile{}, false
	}
	return profile(sub), true
}
