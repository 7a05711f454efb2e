package workerproc

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"bellwether/controller/state"
)

// copyOfState is this process's copy of the cluster state. One front feeds it
// at a time; when another one takes over and lags, the copy stays where it is
// until that front is past it: it never goes back.
type copyOfState struct {
	newest atomic.Pointer[state.State] // written with mu held

	mu      sync.Mutex
	feed    uint64        // number of the feed that counts; updates of others come late
	mirror  *state.Mirror // what that feed has told so far
	changed chan struct{} // closed at the next change of newest
}

func newCopy() *copyOfState {
	c := &copyOfState{changed: make(chan struct{})}
	c.newest.Store(state.New())
	return c
}

func (c *copyOfState) current() *state.State { return c.newest.Load() }

// begin ends the feed that there is and returns the number of the next one,
// which starts with a snapshot.
func (c *copyOfState) begin() (feed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.feed++
	c.mirror = &state.Mirror{}
	return c.feed
}

// apply takes the next update of a feed. After an error the feed is of no use.
func (c *copyOfState) apply(feed uint64, u state.Update) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if feed != c.feed || c.mirror == nil {
		return nil
	}
	if err := c.mirror.Apply(u); err != nil {
		c.mirror = nil
		return err
	}
	if st := c.mirror.State(); st.Index() > c.current().Index() {
		c.newest.Store(st)
		close(c.changed)
		c.changed = make(chan struct{})
	}
	return nil
}

// await returns when the copy holds an index.
func (c *copyOfState) await(ctx context.Context, index uint64) error {
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		if c.current().Index() >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for state %d: %w", index, ctx.Err())
		}
	}
}
