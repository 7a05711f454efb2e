package workerproc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"bellwether/controller/link"
	"bellwether/controller/state"
)

// copyOfState is this process's copy of the cluster state. Each front that
// feeds it has a mirror of its own, and the copy is the newest of them: it
// never goes back when the source changes to a front that lags.
type copyOfState struct {
	newest atomic.Pointer[state.State]
	wake   chan struct{} // holds at most one: the state changed

	mu      sync.Mutex
	mirrors map[*link.Conn]*state.Mirror
	changed chan struct{} // closed at the next change
}

func newCopy() *copyOfState {
	c := &copyOfState{wake: make(chan struct{}, 1), mirrors: map[*link.Conn]*state.Mirror{}, changed: make(chan struct{})}
	c.newest.Store(state.New())
	return c
}

func (c *copyOfState) current() *state.State { return c.newest.Load() }

// apply takes an update of one source; updates of one source come in order.
func (c *copyOfState) apply(from *link.Conn, u state.Update) error {
	c.mu.Lock()
	m := c.mirrors[from]
	if m == nil {
		m = &state.Mirror{}
		c.mirrors[from] = m
	}
	c.mu.Unlock()
	if err := m.Apply(u); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	st := m.State()
	if st.Index() <= c.current().Index() {
		return nil
	}
	c.newest.Store(st)
	close(c.changed)
	c.changed = make(chan struct{})
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// forget drops what a source that is gone had sent.
func (c *copyOfState) forget(from *link.Conn) {
	c.mu.Lock()
	delete(c.mirrors, from)
	c.mu.Unlock()
}

// await returns when the copy holds an index.
func (c *copyOfState) await(ctx context.Context, index uint64) error {
	for {
		c.mu.Lock()
		ch := c.changed
		c.mu.Unlock()
		if c.current().Index() >= index {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return fmt.Errorf("wait for state %d: %w", index, ctx.Err())
		}
	}
}
