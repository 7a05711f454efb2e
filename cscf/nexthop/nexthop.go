// Package nexthop sends a request on to another engine of the cluster while
// engines come and go.
//
// Between the death of a worker and its takeover nobody serves its group. A
// request that is answered with an error then fails for its user although the
// next one would succeed; so a role waits a little, and where an engine turns
// out to be gone after the request was sent, it asks for the way once more.
//
// It decides nothing about routing, keeps no state beyond the request, and
// everything runs in the request's shard.
package nexthop

import (
	"errors"
	"time"

	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

const (
	// Patience is how long a request waits for its next hop to be served:
	// longer than a takeover, shorter than a caller's.
	Patience = 2 * time.Second
	// pause between two looks.
	pause = 100 * time.Millisecond
	// attempts to send one request.
	attempts = 3
)

var (
	// ErrEnded means that a request ended while it waited for its next hop.
	ErrEnded = errors.New("request ended before its next hop was there")

	errGone = errors.New("next hop is gone")
)

// Until calls try at once, and then every 100 ms until it returns nil. When
// Patience is over it calls lost with the last error, when the request is
// finished (cancelled, or answered) with ErrEnded.
func Until(r *transaction.Request, try func() error, lost func(error)) {
	env := r.Layer().Env()
	deadline := env.Now().Add(Patience)
	var look func()
	look = func() {
		if r.Finished() {
			lost(ErrEnded)
			return
		}
		err := try()
		switch {
		case err == nil:
		case env.Now().Before(deadline):
			env.After(pause, look)
		default:
			lost(err)
		}
	}
	look()
}

// Hop is a request on its way to one engine.
type Hop struct {
	// Message is the request as it shall leave.
	Message *sipmsg.Message
	// Route finds the engine.
	Route func(m *sipmsg.Message) (transaction.Peer, error)
	// Response and Any are for the transaction layer.
	Response func(r *transaction.Request, t *transaction.Target, m *sipmsg.Message) transaction.Verdict
	Any      any
	// Lost answers when there is no engine to be reached.
	Lost func(error)
}

// Send forwards r as h says. A peer that is known to be gone (status 503 from
// the layer itself) is replaced by what Route finds now, at most twice.
func Send(r *transaction.Request, h Hop) {
	left := attempts
	var forward func() error
	forward = func() error {
		to, err := h.Route(h.Message)
		if err != nil {
			return err
		}
		left--
		r.Forward(transaction.Forward{
			Groups:   [][]transaction.Target{{{Message: h.Message.Clone(), To: to, Any: h.Any}}},
			Response: h.Response,
			Failed: func(_ *transaction.Request, _ *transaction.Target, status int) {
				if status != 503 {
					return
				}
				err := errGone
				if left > 0 {
					err = forward()
				}
				if err != nil {
					h.Lost(err)
				}
			},
		})
		return nil
	}
	Until(r, forward, h.Lost)
}
