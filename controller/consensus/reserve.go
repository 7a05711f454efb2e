package consensus

import (
	"container/list"
	"context"
	"fmt"
	"time"

	"bellwether/controller/state"
)

// A reservation outlives a REGISTER's challenge and its answer.
const (
	reservationTime = 40 * time.Second
	maxReservations = 65536
)

// reservations are the users of which the leader has told a group, but whose
// assignment is not committed. It is not safe for concurrent use, and holds no
// clock.
type reservations struct {
	byUser map[reservedUser]*list.Element
	oldest *list.List // of *reservation, in the order in which they end
	users  map[state.GroupID]int
}

type reservedUser struct {
	kind state.Kind
	user string
}

type reservation struct {
	reservedUser
	group state.GroupID
	ends  time.Time
}

func newReservations() *reservations {
	return &reservations{byUser: make(map[reservedUser]*list.Element), oldest: list.New(), users: make(map[state.GroupID]int)}
}

// take gives the user's group: assigned, reserved before, or by min-user with
// reserved users counted as assigned ones.
func (r *reservations) take(now time.Time, s *state.State, k state.Kind, user string) (state.GroupID, error) {
	if g, ok := s.Assignment(k, user); ok {
		r.drop(k, user)
		return g, nil
	}
	r.expire(now)
	key := reservedUser{k, user}
	if e, ok := r.byUser[key]; ok {
		held := e.Value.(*reservation)
		if g, ok := s.Group(held.group); ok && g.Kind == k {
			held.ends = now.Add(reservationTime)
			r.oldest.MoveToBack(e)
			return held.group, nil
		}
		r.remove(e)
	}
	g, ok := s.MinUser(k, func(id state.GroupID) int { return r.users[id] })
	if !ok {
		return 0, &state.Error{Code: state.NoWorker, Text: fmt.Sprintf("no %s worker is there to take user %s", k, user)}
	}
	if r.oldest.Len() >= maxReservations {
		r.remove(r.oldest.Front())
	}
	r.byUser[key] = r.oldest.PushBack(&reservation{key, g, now.Add(reservationTime)})
	r.users[g]++
	return g, nil
}

func (r *reservations) expire(now time.Time) {
	for e := r.oldest.Front(); e != nil && !e.Value.(*reservation).ends.After(now); e = r.oldest.Front() {
		r.remove(e)
	}
}

func (r *reservations) drop(k state.Kind, user string) {
	if e, ok := r.byUser[reservedUser{k, user}]; ok {
		r.remove(e)
	}
}

func (r *reservations) remove(e *list.Element) {
	held := r.oldest.Remove(e).(*reservation)
	delete(r.byUser, held.reservedUser)
	if r.users[held.group]--; r.users[held.group] == 0 {
		delete(r.users, held.group)
	}
}

// reserve answers as the leader.
func (r *replica) reserve(now time.Time, k state.Kind, user string) (state.GroupID, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reserved.take(now, r.current(), k, user)
}

// forget makes a new leader begin with no reservations.
func (r *replica) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved = newReservations()
}

// Reserve tells which group a user would be assigned to, and holds the place
// in the leader's memory for 40 s: by min-user, counting what is reserved. A
// user who is assigned, or has a reservation, gets the same group again. It
// asks the leader until one answers or ctx ends. At most 65,536 places are
// held; beyond that the one that would end first is given up.
func (c *Controller) Reserve(ctx context.Context, kind state.Kind, user string) (state.GroupID, error) {
	check := state.Command{Assign: &state.Assign{Kind: kind, User: user}}
	if err := check.Validate(); err != nil {
		return 0, fmt.Errorf("reserve a group: %w", err)
	}
	if g, ok := c.State().Assignment(kind, user); ok {
		return g, nil
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	var group state.GroupID
	err := c.retry(ctx, func(ctx context.Context, leader string) (err error) {
		if leader == c.cfg.Node {
			group, err = c.reserveHere(kind, user)
		} else {
			group, err = c.askReserve(ctx, leader, kind, user)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reserve a group for %s: %w", user, c.reason(err))
	}
	return group, nil
}

func (c *Controller) reserveHere(kind state.Kind, user string) (state.GroupID, error) {
	if !c.leader.serving.Load() {
		return 0, errNotServing
	}
	return c.local.reserve(time.Now(), kind, user)
}
