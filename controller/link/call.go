package link

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"time"
)

// RemoteError is the text of an error that the peer's Handler.Call returned.
type RemoteError string

func (e RemoteError) Error() string { return string(e) }

// Results of a call on the wire.
const (
	answerOK byte = iota
	answerError
	answerBusy
)

type answer struct {
	status  byte
	payload []byte
}

// calls holds the calls in both directions.
type calls struct {
	mu      sync.Mutex
	last    uint64
	own     map[uint64]chan answer        // capacity of each channel: 1
	foreign map[uint64]context.CancelFunc // calls of the peer that run
}

func (cs *calls) init() {
	cs.own = make(map[uint64]chan answer)
	cs.foreign = make(map[uint64]context.CancelFunc)
}

// Call asks the peer and waits for its answer until ctx ends; the peer is told
// the deadline, and when the caller gives up. Errors: RemoteError, ErrBusy,
// ErrFull, ErrTooLarge, ErrClosed, or that of ctx; only the first three and
// ErrTooLarge tell that the peer did not, or will not, do it.
func (c *Conn) Call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	ch := make(chan answer, 1)
	cs := &c.calls
	cs.mu.Lock()
	if len(cs.own) >= c.o.Pending {
		cs.mu.Unlock()
		return nil, fmt.Errorf("call %s: %w", method, ErrFull)
	}
	cs.last++
	id := cs.last
	cs.own[id] = ch
	cs.mu.Unlock()
	defer func() {
		cs.mu.Lock()
		delete(cs.own, id)
		cs.mu.Unlock()
	}()

	var fixed [12]byte // id, milliseconds until the deadline (0: none)
	binary.BigEndian.PutUint64(fixed[:], id)
	if deadline, ok := ctx.Deadline(); ok {
		ms := time.Until(deadline).Milliseconds()
		binary.BigEndian.PutUint32(fixed[8:], uint32(min(max(ms, 1), math.MaxUint32)))
	}
	if err := c.queueControl(frameCall, fixed[:], method, payload); err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	select {
	case a := <-ch:
		switch a.status {
		case answerOK:
			return a.payload, nil
		case answerBusy:
			return nil, fmt.Errorf("call %s: %w", method, ErrBusy)
		}
		return nil, fmt.Errorf("call %s: %w", method, RemoteError(a.payload))
	case <-ctx.Done():
		// Telling the peer spares it work; that it is not told when the
		// queue is full costs only that.
		_ = c.queueControl(frameCancel, fixed[:8], "", nil)
		return nil, fmt.Errorf("call %s: %w", method, ctx.Err())
	case <-c.Done():
		return nil, fmt.Errorf("call %s: %w", method, ErrClosed)
	}
}

// handleCall handles a call, an answer or a cancellation.
func (c *Conn) handleCall(typ byte, body []byte) error {
	cur := cursor{b: body}
	id := cur.u64()
	cs := &c.calls
	switch typ {
	case frameCall:
		wait := time.Duration(cur.u32()) * time.Millisecond
		method, payload, err := decodeMethod(cur.b)
		if cur.short || err != nil {
			return ErrGarbage
		}
		return c.serve(id, wait, method, payload)
	case frameAnswer:
		status := cur.u8()
		_, payload, err := decodeMethod(cur.b)
		if cur.short || err != nil || status > answerBusy {
			return ErrGarbage
		}
		cs.mu.Lock()
		ch := cs.own[id]
		delete(cs.own, id)
		cs.mu.Unlock()
		if ch != nil {
			ch <- answer{status, payload}
		}
	case frameCancel:
		if cur.short {
			return ErrGarbage
		}
		cs.mu.Lock()
		cancel := cs.foreign[id]
		cs.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	default:
		return fmt.Errorf("frame of type %d: %w", typ, ErrGarbage)
	}
	return nil
}

// serve runs a call of the peer.
func (c *Conn) serve(id uint64, wait time.Duration, method string, payload []byte) error {
	cs := &c.calls
	cs.mu.Lock()
	if cs.foreign[id] != nil {
		cs.mu.Unlock()
		return fmt.Errorf("call %d twice: %w", id, ErrGarbage)
	}
	if len(cs.foreign) >= c.o.Calls {
		cs.mu.Unlock()
		c.answer(id, answerBusy, nil)
		return nil
	}
	var ctx context.Context
	var cancel context.CancelFunc
	if wait > 0 {
		ctx, cancel = context.WithTimeout(c.ctx, wait)
	} else {
		ctx, cancel = context.WithCancel(c.ctx)
	}
	cs.foreign[id] = cancel
	cs.mu.Unlock()
	go func() {
		var out []byte
		var err error
		if h, ok := c.h.(ContextHandler); ok {
			out, err = h.CallContext(ctx, c, method, payload)
		} else {
			out, err = c.h.Call(c, method, payload)
		}
		cs.mu.Lock()
		delete(cs.foreign, id)
		cs.mu.Unlock()
		givenUp := ctx.Err() != nil
		cancel()
		switch {
		case givenUp:
		case err != nil:
			c.answer(id, answerError, []byte(err.Error()))
		default:
			c.answer(id, answerOK, out)
		}
	}()
	return nil
}

// answer queues an answer. Where it cannot be queued, the caller's deadline
// stands in for it; a too large one is answered with that error.
func (c *Conn) answer(id uint64, status byte, payload []byte) {
	var fixed [9]byte
	binary.BigEndian.PutUint64(fixed[:], id)
	fixed[8] = status
	err := c.queueControl(frameAnswer, fixed[:], "", payload)
	if err == ErrTooLarge {
		fixed[8] = answerError
		err = c.queueControl(frameAnswer, fixed[:], "", []byte("answer is too large"))
	}
	if err == ErrFull {
		c.o.Log.Warn("drop the answer to a call", "id", id, "err", err)
	}
}
