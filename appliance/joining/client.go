package joining

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

// MaxOffset is how far the clock of a new machine may be from the founder's.
// Certificates bear an hour, but nonces, registrations and the sequence
// numbers of AKA are compared between nodes, in seconds.
const MaxOffset = time.Second

const (
	clockRounds = 3
	joinTime    = 10 * time.Second
)

// Machine is a machine that is about to join.
type Machine struct {
	Node        string
	Role        string
	Controllers []Member         // of its configuration
	Now         func() time.Time // nil: time.Now
}

// Joined is what a machine has joined.
type Joined struct {
	*pki.Bundle
	Begun  bool          // the cluster has begun to work
	Offset time.Duration // of this machine's clock from the founder's
}

// Join asks the founder to take this machine in. The new key leaves the
// machine never, the token's secret only when the other side has proved that
// it is of the token's cluster. It takes at most ten seconds for each address.
func Join(ctx context.Context, t Token, m Machine) (Joined, error) {
	if m.Now == nil {
		m.Now = time.Now
	}
	switch {
	case t.Node != m.Node:
		return Joined{}, refusef(otherNode, "this token is for node %s, but this machine is configured as node %s; write node.name: %s, or make a token for %s on the founder", t.Node, m.Node, t.Node, m.Node)
	case t.Role != m.Role:
		return Joined{}, refusef(otherRole, "this token is for a %s, but the configuration makes this machine a %s", t.Role, m.Role)
	}
	var last error
	for _, addr := range t.Founders {
		j, err := joinAt(ctx, addr.String(), t, m)
		if err == nil {
			return j, nil
		}
		if last = err; ctx.Err() != nil {
			break
		}
		if refusal := new(Refusal); errors.As(err, &refusal) {
			break // the founder itself, not the way to it
		}
	}
	return Joined{}, last
}

func joinAt(ctx context.Context, addr string, t Token, m Machine) (Joined, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	c, err := mesh.Stranger(ctx, addr, t.ClusterID, t.Fingerprint, Protocol)
	if err != nil {
		return Joined{}, unreachable(addr, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	offset, sure, err := clockOffset(c, m.Now)
	if err != nil {
		return Joined{}, lost(addr, err)
	}
	if err := checkOffset(offset, sure); err != nil {
		return Joined{}, err
	}
	csr, err := pki.NewRequest(m.Node)
	if err != nil {
		return Joined{}, err
	}
	rep, err := ask(c, request{Ask: askJoin, Secret: t.secret[:], Node: m.Node, Role: m.Role, Controllers: m.Controllers, CSR: csr.DER})
	if err != nil {
		return Joined{}, lost(addr, err)
	}
	b, err := csr.Bundle(rep.CA, rep.Cert)
	if err != nil {
		return Joined{}, fmt.Errorf("check the founder's answer: %w", err)
	}
	if sum, err := b.Fingerprint(); err != nil || sum != t.Fingerprint {
		return Joined{}, errors.New("the founder's answer names another certificate authority than the token")
	}
	return Joined{Bundle: b, Begun: rep.Begun, Offset: offset}, nil
}

func ask(c net.Conn, req request) (reply, error) {
	var rep reply
	if err := send(c, req); err != nil {
		return rep, err
	}
	if err := receive(c, &rep); err != nil {
		return rep, err
	}
	if rep.Refused != nil {
		return rep, rep.Refused
	}
	return rep, nil
}

// clockOffset says how far this clock is ahead of the other one, and how
// sure that is: of several rounds, by the fastest.
func clockOffset(c net.Conn, now func() time.Time) (offset, sure time.Duration, err error) {
	for i := range clockRounds {
		sent, monotonic := now(), time.Now()
		rep, err := ask(c, request{Ask: askClock})
		if err != nil {
			return 0, 0, err
		}
		trip := time.Since(monotonic)
		if o := sent.Add(trip / 2).Sub(time.Unix(0, rep.Time)); i == 0 || trip/2 < sure {
			offset, sure = o, trip/2
		}
	}
	return offset, sure, nil
}

// checkOffset refuses a clock that is off by more than MaxOffset for sure.
func checkOffset(offset, sure time.Duration) error {
	if offset.Abs()-sure <= MaxOffset {
		return nil
	}
	way := "ahead of"
	if offset < 0 {
		way = "behind"
	}
	return refusef("clock", "the clock of this machine is %v %s the founder's, and at most %v is allowed; set it ('timedatectl set-ntp true', then 'timedatectl' must say that the clock is synchronized) and join again",
		offset.Abs().Round(10*time.Millisecond), way, MaxOffset)
}

// unreachable says why there is no connection to the founder.
func unreachable(addr string, err error) error {
	switch {
	case errors.Is(err, mesh.ErrFingerprint):
		return refusef("fingerprint", "what answers at %s shows another certificate authority than the token names: somebody is in between, or the token is of another cluster; nothing was sent", addr)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing answers at the founder's address %s; start 'bellwether node' there first", addr)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("the founder's address %s is not reachable: %w; is the machine on, and does a firewall between let the port through", addr, err)
	case errors.Is(err, mesh.ErrRefused):
		return fmt.Errorf("connect to the founder at %s: %w; a node that does not hold the cluster's certificate authority certifies nobody", addr, err)
	}
	return fmt.Errorf("connect to the founder at %s: %w", addr, err)
}

// lost tells a refusal from a connection that broke.
func lost(addr string, err error) error {
	if refusal := new(Refusal); errors.As(err, &refusal) {
		return err
	}
	return fmt.Errorf("the founder at %s broke off: %w; try again, with a new token if this one is used", addr, err)
}
