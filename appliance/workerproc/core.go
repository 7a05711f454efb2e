package workerproc

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// commitWithin bounds a proposal or reservation: an election and a phone's
// first retransmissions fit in, Timer B and F do not run out.
const commitWithin = 3 * time.Second

// attemptWithin is how much of it one front may take before another is asked;
// an election fits in.
const attemptWithin = commitWithin / 2

// core is what a role sees of the cluster; it is the engine's view.
type core struct{ e *engine }

func (c core) State() *state.State { return c.e.p.State() }

// Propose commits a command; done runs on another goroutine after this
// process's copy of the state contains it.
func (c core) Propose(cmd state.Command, done func(state.Result, error)) {
	c.e.p.background(func(ctx context.Context) {
		res, err := c.e.p.propose(ctx, cmd)
		if done != nil {
			done(res, err)
		}
	})
}

// Reserve asks the leader for a soft reservation.
func (c core) Reserve(kind state.Kind, user string, done func(state.GroupID, error)) {
	c.e.p.background(func(ctx context.Context) {
		g, err := c.e.p.reserve(ctx, kind, user)
		done(g, err)
	})
}

// background runs fn on a goroutine of its own with a deadline. At most
// maxCalling of them are under way at a time; one that waits for longer than
// its deadline runs with a context that has ended, and so ends at once.
func (p *Process) background(fn func(context.Context)) {
	go func() {
		ctx, cancel := context.WithTimeout(p.ctx, commitWithin)
		defer cancel()
		select {
		case p.calling <- struct{}{}:
			defer func() { <-p.calling }()
		case <-ctx.Done():
		}
		fn(ctx)
	}()
}

// ask calls a method on the nearest front, and on the next one where that
// fails or takes long, until ctx ends. What is asked must have the same effect
// once as twice. What the state refuses is an answer, so an error says that
// this front cannot do it now.
func (p *Process) ask(ctx context.Context, method string, payload []byte) ([]byte, error) {
	pause := 20 * time.Millisecond
	last := errNoFront
	for try := 0; ; try++ {
		if fronts := p.links.fronts(); len(fronts) > 0 {
			actx, cancel := context.WithTimeout(ctx, attemptWithin)
			b, err := fronts[try%len(fronts)].Call(actx, method, payload)
			cancel()
			if err == nil {
				return b, nil
			}
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", method, last)
		case <-time.After(pause):
			pause = min(2*pause, 200*time.Millisecond)
		}
	}
}

func (p *Process) propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	if cmd.RequestID == "" {
		cmd.RequestID = rand.Text() // the same one at each retry: it takes effect once
	}
	b, err := cmd.Encode()
	if err != nil {
		return state.Result{}, fmt.Errorf("propose: %w", err)
	}
	out, err := p.ask(ctx, workerlink.Propose, b)
	if err != nil {
		return state.Result{}, err
	}
	var r state.Result
	if err := workerlink.Decode(out, &r); err != nil {
		return state.Result{}, err
	}
	// The copy of this process must hold what it acts on next.
	if err := p.state.await(ctx, r.Index); err != nil {
		return state.Result{}, err
	}
	return r, r.Check()
}

func (p *Process) reserve(ctx context.Context, kind state.Kind, user string) (state.GroupID, error) {
	out, err := p.ask(ctx, workerlink.Reserve, workerlink.Encode(workerlink.ReserveMsg{Kind: string(kind), User: user}))
	if err != nil {
		return 0, err
	}
	var r workerlink.ReserveReply
	if err := workerlink.Decode(out, &r); err != nil {
		return 0, err
	}
	if r.Err != nil {
		return 0, r.Err
	}
	return r.Group, nil
}

// Route finds the engine that a message goes to inside the cluster, by the
// same rules as a front.
func (c core) Route(kind state.Kind, m *sipmsg.Message) (transaction.Peer, error) {
	g, err := c.e.p.tables.route(kind, m)
	if err != nil {
		return transaction.Peer{}, err
	}
	return transaction.Peer{Group: g, InProcess: c.e.p.engine(g) != nil}, nil
}

// After runs fn after d on a goroutine of its own, unless the process has ended.
func (c core) After(d time.Duration, fn func()) (stop func()) {
	t := time.AfterFunc(d, func() {
		if c.e.p.ctx.Err() == nil {
			fn()
		}
	})
	return func() { t.Stop() }
}
