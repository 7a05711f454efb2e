package consensus

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"bellwether/controller/state"
)

// Batching: how long a proposal waits for company, and how much company.
const (
	gatherTime         = time.Millisecond
	gatherCommands     = 128
	gatherBytes        = 1 << 20
	maxBatchesUnderWay = 8
)

// proposal is a command on its way.
type proposal struct {
	ctx     context.Context
	encoded []byte
	done    chan outcome // capacity 1
}

type outcome struct {
	result state.Result
	err    error
}

// Propose has the cluster carry out a command, once, and returns when the local
// copy shows it. The error is the command's refusal (a *state.Error, also in
// the result), or says that ctx has ended or the controller is closed: then
// the command may or may not take effect, and proposing it again with the same
// RequestID is safe. A command without a RequestID is given one.
func (c *Controller) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	if cmd.RequestID == "" {
		cmd.RequestID = requestID()
	}
	if err := cmd.Validate(); err != nil {
		var refusal *state.Error
		errors.As(err, &refusal)
		return state.Result{Err: refusal}, err
	}
	encoded, err := cmd.Encode()
	if err != nil {
		return state.Result{}, fmt.Errorf("propose %v: %w", cmd, err)
	}
	p := &proposal{ctx: ctx, encoded: encoded, done: make(chan outcome, 1)}
	select {
	case c.batches <- p:
	case <-ctx.Done():
		return state.Result{}, fmt.Errorf("propose %v: %w", cmd, ctx.Err())
	case <-c.ctx.Done():
		return state.Result{}, fmt.Errorf("propose %v: %w", cmd, ErrClosed)
	}
	select {
	case o := <-p.done:
		if o.err != nil {
			return state.Result{}, fmt.Errorf("propose %v: outcome unknown: %w", cmd, o.err)
		}
		return o.result, o.result.Check()
	case <-ctx.Done():
		return state.Result{}, fmt.Errorf("propose %v: outcome unknown: %w", cmd, ctx.Err())
	}
}

func requestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// gather makes batches of proposals and sends each on its way.
func (c *Controller) gather() {
	for {
		var first *proposal
		select {
		case first = <-c.batches:
		case <-c.ctx.Done():
			return
		}
		group := c.company(first)
		select {
		case c.slots <- struct{}{}:
		case <-c.ctx.Done():
			fail(group, ErrClosed)
			return
		}
		c.run(func() {
			defer func() { <-c.slots }()
			c.dispatch(group)
		})
	}
}

// company gathers what comes within gatherTime after the first.
func (c *Controller) company(first *proposal) []*proposal {
	group, size := []*proposal{first}, len(first.encoded)
	timer := time.NewTimer(gatherTime)
	defer timer.Stop()
	for len(group) < gatherCommands && size < gatherBytes {
		select {
		case p := <-c.batches:
			group = append(group, p)
			size += len(p.encoded)
		case <-timer.C:
			return group
		}
	}
	return group
}

func fail(group []*proposal, err error) {
	for _, p := range group {
		p.done <- outcome{err: err}
	}
}

// dispatch proposes a batch until its outcome is known or nobody waits for it.
func (c *Controller) dispatch(group []*proposal) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	var waiting atomic.Int64
	waiting.Store(int64(len(group)))
	encoded := make([][]byte, len(group))
	for i, p := range group {
		encoded[i] = p.encoded
		stop := context.AfterFunc(p.ctx, func() {
			if waiting.Add(-1) == 0 {
				cancel()
			}
		})
		defer stop()
	}
	results, err := c.commit(ctx, encoded)
	if err != nil {
		fail(group, c.reason(err))
		return
	}
	for i, p := range group {
		p.done <- outcome{result: results[i]}
	}
}

// commit has a batch committed, and waits until the local copy shows it.
func (c *Controller) commit(ctx context.Context, encoded [][]byte) ([]state.Result, error) {
	data, err := state.JoinBatch(encoded)
	if err != nil {
		return nil, err
	}
	var reply proposeReply
	err = c.retry(ctx, func(ctx context.Context, leader string) (err error) {
		if leader == c.cfg.Node {
			reply, err = c.proposeHere(ctx, data)
		} else {
			reply, err = c.askPropose(ctx, leader, data)
		}
		if err == nil && len(reply.Results) != len(encoded) {
			err = fmt.Errorf("leader %s gave %d results for %d commands", leader, len(reply.Results), len(encoded))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if _, err := c.local.wait(ctx, func(s *state.State) bool { return s.Index() >= reply.Index }); err != nil {
		return nil, err
	}
	return reply.Results, nil
}

// proposeHere commits a batch as the leader.
func (c *Controller) proposeHere(ctx context.Context, data []byte) (proposeReply, error) {
	timeout := attemptTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(deadline), time.Millisecond)
	}
	f := c.raft.Apply(data, timeout)
	if err := await(ctx, f); err != nil {
		return proposeReply{}, err
	}
	done, ok := f.Response().(*applied)
	if !ok {
		return proposeReply{}, fmt.Errorf("unexpected response %T", f.Response())
	}
	return proposeReply{Index: f.Index(), Results: done.results}, done.err
}

// initialise proposes the cluster's identity until it has one.
func (c *Controller) initialise() {
	init := *c.cfg.Init
	if len(init.Secret) == 0 {
		init.Secret = make([]byte, 32)
		_, _ = rand.Read(init.Secret) // never fails
	}
	if c.State().ClusterID() != "" {
		return // restored from a snapshot; else the proposal is refused as late, which is harmless
	}
	_, err := c.Propose(c.ctx, state.Command{Init: &init})
	if err != nil && !errors.Is(err, &state.Error{Code: state.Exists}) && c.ctx.Err() == nil {
		c.log.Error("the cluster cannot be initialised", "err", err)
	}
}
