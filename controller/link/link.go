// Package link carries SIP messages, calls and notifications between a front
// process and a worker process over one stream: a unix socket inside a node, a
// TLS connection between nodes.
//
// It does not dial, authenticate, reconnect, route or retransmit: who owns the
// stream does the first three, the SIP transaction layers the last.
//
// Invariants: frames of one connection arrive in the order in which they were
// queued; sending never waits (a full queue is an error, and a lost SIP frame
// is a lost datagram); memory is bounded by the queue, the frame limits and
// the number of calls in both directions.
//
// Failure modes: a peer that speaks no common version, sends an oversized or
// malformed frame, is silent for 1.5 s or takes no byte for 5 s ends the
// connection; Run and Err say why. Calls without an answer then return
// ErrClosed.
//
// Lock order: no function holds both locks of a Conn.
package link

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

var (
	// ErrFull means that the queue towards the peer, or the number of calls
	// without an answer, is at its limit. Nothing was sent.
	ErrFull = errors.New("link queue is full")
	// ErrClosed means that the connection has ended.
	ErrClosed = errors.New("link is closed")
	// ErrTooLarge means that a frame would exceed its limit. Nothing was sent.
	ErrTooLarge = errors.New("link frame is too large")
	// ErrBusy means that the peer runs as many calls as it allows.
	ErrBusy = errors.New("peer is busy")
	// ErrSilent means that nothing came from the peer for longer than its
	// keep-alive interval allows.
	ErrSilent = errors.New("peer is silent")
	// ErrVersion means that the peer speaks no version of the protocol that
	// this side does.
	ErrVersion = errors.New("no common link version")
	// ErrGarbage means that the peer sent something that is no frame.
	ErrGarbage = errors.New("malformed link frame")
)

// Handler takes what the peer sends. SIP and Notify run on the reading
// goroutine, in order: they must not wait. Each Call runs on a goroutine of its
// own.
type Handler interface {
	// SIP gets a frame that is only valid until it returns, except for Raw,
	// which it may keep.
	SIP(c *Conn, f *SIP)
	// Call answers a call of the peer; an error reaches the caller as a
	// RemoteError with the same text. It may keep payload.
	Call(c *Conn, method string, payload []byte) ([]byte, error)
	// Notify takes a notification. It may keep payload.
	Notify(c *Conn, method string, payload []byte)
}

// ContextHandler is a Handler whose calls end early: ctx ends at the caller's
// deadline, when the caller gives up, and with the connection.
type ContextHandler interface {
	Handler
	CallContext(ctx context.Context, c *Conn, method string, payload []byte) ([]byte, error)
}

// Options bounds a connection. Zero values mean the defaults.
type Options struct {
	QueueBytes int           // SIP frames queued towards the peer; 4 MiB
	Calls      int           // calls of the peer that run at a time; 256
	Pending    int           // own calls without an answer; 4096
	Alive      time.Duration // interval of keep-alives; 500 ms. Both sides need the same order of magnitude
	Log        *slog.Logger  // for answers that could not be sent; slog.Default()
}

const (
	defaultQueueBytes = 4 << 20
	defaultCalls      = 256
	defaultPending    = 4096
	defaultAlive      = 500 * time.Millisecond

	// controlBytes is the room for calls, answers and notifications beyond
	// the room for SIP frames, so that a flood of SIP does not cut off the
	// control of the cluster: two frames of the largest size.
	controlBytes = 2 * (MaxCall + headerLen)

	// stall is how long the peer may take none of writeChunk bytes.
	stall      = 5 * time.Second
	writeChunk = 256 << 10
)

// Conn is one link. Its methods may be called from any goroutine.
type Conn struct {
	nc net.Conn
	h  Handler
	o  Options

	wake   chan struct{} // holds one element when queue may be non-empty
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex // guards queue, err
	queue []byte     // encoded frames in order
	err   error      // why the connection ended

	calls calls
}

// New returns the link over nc; Run makes it work. Frames may be queued before
// Run. New takes ownership of nc.
func New(nc net.Conn, h Handler, o Options) *Conn {
	if o.QueueBytes <= 0 {
		o.QueueBytes = defaultQueueBytes
	}
	if o.Calls <= 0 {
		o.Calls = defaultCalls
	}
	if o.Pending <= 0 {
		o.Pending = defaultPending
	}
	if o.Alive <= 0 {
		o.Alive = defaultAlive
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	c := &Conn{nc: nc, h: h, o: o, wake: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.calls.init()
	c.queue = appendHello(nil, versionMin, versionMax)
	c.wake <- struct{}{}
	return c
}

// NetConn returns the stream below the link, to ask for its addresses or its
// certificate; the caller must not read, write or close it.
func (c *Conn) NetConn() net.Conn { return c.nc }

// Run reads and handles frames until the connection ends. It returns nil after
// Close, otherwise what ended the connection. It does not wait for calls of
// the peer that still run; their answers go nowhere.
func (c *Conn) Run() error {
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.end(c.write())
	}()
	c.end(c.read())
	<-written
	return c.Err()
}

// Close ends the connection at once; what is queued may be lost.
func (c *Conn) Close() { c.end(nil) }

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.ctx.Done() }

// Err returns what ended the connection; nil while it works and after Close.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Conn) end(err error) {
	c.mu.Lock()
	if c.ctx.Err() == nil {
		c.err = err
		c.queue = nil
		c.cancel()
	}
	c.mu.Unlock()
	c.nc.Close()
}

// SendSIP queues f, which is copied. It returns ErrFull, ErrTooLarge or
// ErrClosed when the frame was not queued.
func (c *Conn) SendSIP(f *SIP) error {
	n, err := sizeSIP(f)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if err := c.room(n, c.o.QueueBytes); err != nil {
		c.mu.Unlock()
		return err
	}
	first := len(c.queue) == 0
	c.queue = appendSIP(c.queue, f, n)
	c.mu.Unlock()
	if first {
		c.signal()
	}
	return nil
}

// Notify queues a notification. It returns ErrFull, ErrTooLarge or ErrClosed
// when it was not queued.
func (c *Conn) Notify(method string, payload []byte) error {
	return c.queueControl(frameNotify, nil, method, payload)
}

// queueControl queues a frame of a fixed part, a method and a payload.
func (c *Conn) queueControl(typ byte, fixed []byte, method string, payload []byte) error {
	if len(method) > maxMethod || len(fixed)+len(method)+len(payload)+1 > MaxCall {
		return ErrTooLarge
	}
	n := headerLen + len(fixed) + 1 + len(method) + len(payload)
	c.mu.Lock()
	if err := c.room(n, c.o.QueueBytes+controlBytes); err != nil {
		c.mu.Unlock()
		return err
	}
	c.queue = appendHeader(c.queue, typ, n-headerLen)
	c.queue = append(c.queue, fixed...)
	c.queue = append(c.queue, byte(len(method)))
	c.queue = append(c.queue, method...)
	c.queue = append(c.queue, payload...)
	c.mu.Unlock()
	c.signal()
	return nil
}

// room reports whether n more bytes fit below limit. The caller holds mu.
func (c *Conn) room(n, limit int) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	if len(c.queue)+n > limit {
		return ErrFull
	}
	return nil
}

func (c *Conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// write sends whatever has gathered in the queue, as few writes as it takes,
// and a keep-alive at each interval.
func (c *Conn) write() error {
	tick := time.NewTicker(c.o.Alive)
	defer tick.Stop()
	var spare []byte
	for {
		alive := false
		select {
		case <-c.wake:
		case <-tick.C:
			alive = true
		case <-c.ctx.Done():
			return nil
		}
		c.mu.Lock()
		out := c.queue
		c.queue = spare[:0]
		if c.ctx.Err() != nil {
			c.queue = nil
		}
		c.mu.Unlock()
		if alive {
			out = appendHeader(out, frameAlive, 0)
		}
		for rest := out; len(rest) > 0; {
			n := min(len(rest), writeChunk)
			// A stream without deadlines (there is none among ours)
			// would only lose the detection of a stalled peer.
			_ = c.nc.SetWriteDeadline(time.Now().Add(stall))
			if _, err := c.nc.Write(rest[:n]); err != nil {
				return fmt.Errorf("write link: %w", err)
			}
			rest = rest[n:]
		}
		// Buffers grow to what a burst needs and are used again, until the
		// link is quiet or one held more than SIP frames.
		if spare = out; alive && len(out) == headerLen || cap(out) > 2*c.o.QueueBytes {
			spare = nil
		}
	}
}

// read handles frames until the stream ends.
func (c *Conn) read() error {
	br := bufio.NewReaderSize(&source{nc: c.nc, wait: 3 * c.o.Alive, grace: c.o.Alive / 2}, 64<<10)
	if err := readHello(br); err != nil {
		return fmt.Errorf("read link hello: %w", err)
	}
	var f SIP
	nodes := make(names)
	for {
		typ, body, err := readFrame(br)
		if err != nil {
			return fmt.Errorf("read link: %w", err)
		}
		switch typ {
		case frameAlive:
		case frameSIP:
			if err := decodeSIP(&f, body, nodes); err != nil {
				return fmt.Errorf("read link: %w", err)
			}
			c.h.SIP(c, &f)
		case frameNotify:
			method, payload, err := decodeMethod(body)
			if err != nil {
				return fmt.Errorf("read link notification: %w", err)
			}
			c.h.Notify(c, method, payload)
		default:
			if err := c.handleCall(typ, body); err != nil {
				return fmt.Errorf("read link call: %w", err)
			}
		}
	}
}

// source is the stream with the check that the peer lives.
type source struct {
	nc          net.Conn
	wait, grace time.Duration
}

// Read waits for bytes at most wait and grace. The second look is for the case
// that this process itself stood still while bytes arrived: a late reader
// accuses nobody.
func (s *source) Read(p []byte) (int, error) {
	for _, d := range [...]time.Duration{s.wait, s.grace} {
		if err := s.nc.SetReadDeadline(time.Now().Add(d)); err != nil {
			return 0, err
		}
		n, err := s.nc.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	return 0, ErrSilent
}

var _ io.Reader = (*source)(nil)
