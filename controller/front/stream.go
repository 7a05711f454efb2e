package front

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"bellwether/controller/guard"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

const (
	readBytes   = 16 << 10         // what one read may bring; a buffer of that size only exists while there is something to read
	lingerFor   = time.Second      // how long a connection is read on after its last answer, so that the peer gets it
	lingerBytes = 1 << 20          // and how much of it
	unacked     = 32 * time.Second // after that much silence to what was sent the kernel gives up; 64·T1
	sendBuffer  = 128 << 10        // kernel's, of a connection

	waitWorker = 3 * time.Second // how long a message waits for a worker that is not there just now
	askAgain   = 20 * time.Millisecond
)

// listenTCP opens the accepting socket of an entry. Connections inherit its
// options.
func listenTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: prepare(tune), KeepAliveConfig: keepAlives}
	l, err := lc.Listen(context.Background(), network("tcp", addr.Addr()), addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// keepAlives find peers that went without a word, at a rate that a phone's
// battery bears.
var keepAlives = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Minute, Interval: 30 * time.Second, Count: 4}

func tune(fd int) error {
	// A peer that does not read keeps little of the kernel's memory.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacked.Milliseconds()))
}

// stream is a TCP connection. A goroutine reads it as long as it lasts;
// another one writes while there is something to write.
type stream struct {
	front   *Front
	at      *listener
	remote  netip.AddrPort
	id      uint64 // its flow's Conn
	dialled bool
	cancel  context.CancelFunc // ends the dial; nil for one that was accepted

	last  atomic.Int64 // when the last message came or went, Unix milliseconds
	bound atomic.Int64 // until when it is a registered phone's, Unix milliseconds

	prev, next *stream // among the unbound ones; guarded by streams.mu, nil for a bound one

	mu        sync.Mutex // guards the rest
	nc        *net.TCPConn
	queue     []queued
	bytes     int           // in queue, and in the hands of the writer
	asker     state.GroupID // of the last request sent over it; 0: none was
	writing   bool
	finishing bool
	ended     bool
}

// queued is a message that waits to be sent.
type queued struct {
	raw  []byte
	from state.GroupID // to be told if it cannot be sent; 0: nobody
}

func (s *stream) flow() sipmsg.Flow {
	return sipmsg.Flow{Node: s.front.node, Transport: sipmsg.TCP, Local: s.at.addr, Remote: s.remote, Conn: s.id}
}

// origin is the flow as a worker gave it that asked for the connection.
func (s *stream) origin() sipmsg.Flow {
	flow := s.flow()
	if s.dialled {
		flow.Conn = 0
	}
	return flow
}

func (s *stream) active(now time.Time) { s.last.Store(now.UnixMilli()) }

// accept takes connections at an entry until it is closed.
func (f *Front) accept(l *listener) {
	for {
		nc, err := l.tcp.AcceptTCP()
		if err != nil {
			if f.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors, most likely.
			f.log.Error("accept a SIP connection", "addr", l.addr, "err", err)
			select {
			case <-f.ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		remote := nc.RemoteAddr().(*net.TCPAddr).AddrPort()
		f.admit(l, nc, netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()))
	}
}

// admit serves a connection that was accepted, or closes it.
func (f *Front) admit(l *listener, nc *net.TCPConn, remote netip.AddrPort) {
	s := &stream{front: f, at: l, remote: remote, nc: nc}
	why, ok := Refused, f.guard.Connect(remote.Addr(), time.Now()).Passes()
	if ok {
		why, ok = f.take(s)
	}
	if !ok {
		f.streams.ended[why].Add(1)
		_ = nc.SetLinger(0) // it goes without leaving anything behind in the kernel
		nc.Close()
		return
	}
	f.streams.accepted.Add(1)
	if !f.start(func() { f.serve(s, nc) }) {
		f.streams.remove(s)
		nc.Close()
	}
}

// take gives a connection its place in the table.
func (f *Front) take(s *stream) (Ending, bool) {
	evicted, why, ok := f.streams.add(s)
	if evicted != nil {
		evicted.close(Evicted)
	}
	return why, ok
}

// over reports whether the connection has ended.
func (s *stream) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// wake makes the reader ask when the connection ends.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nc != nil {
		_ = s.nc.SetReadDeadline(time.Now()) // a closed connection fails at the read
	}
}

// close ends a connection at once; its reader cleans up.
func (s *stream) close(why Ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	s.front.streams.ended[why].Add(1)
	if s.cancel != nil {
		s.cancel()
	}
	if s.nc != nil {
		s.nc.Close()
	}
}

// reading is what a connection needs only while there is something to read.
type reading struct {
	receiver
	buf [readBytes]byte
}

// serve reads a connection until it ends.
func (f *Front) serve(s *stream, nc *net.TCPConn) {
	in := inbound{stream: s, nc: nc, began: time.Now(), first: !s.dialled}
	s.active(in.began)
	why := in.read()
	s.close(why)
	f.streams.held.Add(-int64(in.held))
	f.cleanUp(s)
}

// cleanUp makes an ended connection forgotten and tells whom it concerns.
func (f *Front) cleanUp(s *stream) {
	f.streams.remove(s)
	s.mu.Lock()
	left := s.queue
	s.queue = nil
	// One that was dialled is nobody's flow: who sent a request over it waits
	// for the answer all the same.
	if s.dialled && s.asker != 0 {
		left = append(left, queued{from: s.asker})
	}
	if !s.writing {
		f.streams.queued.Add(-int64(s.bytes))
		s.bytes = 0
	}
	s.mu.Unlock()
	if f.ctx.Err() != nil {
		return // whoever could be told loses the front itself
	}
	f.undelivered(left, s.origin())
	if k, ok := f.flowKey(s.flow()); ok {
		if g, ok := f.flows.get(k, time.Now(), time.Time{}); ok {
			f.flows.remove(k)
			f.tellGone(g, s.flow())
		}
		f.claims.remove(k)
	}
}

// inbound is the reading side of a connection.
type inbound struct {
	*stream
	nc     *net.TCPConn
	framer sipmsg.Framer
	held   int       // of framer, as counted in streams.held
	began  time.Time // of the message that is incomplete, or of waiting for the first one
	first  bool      // no message came yet
	inside bool      // a message has begun
	armed  bool      // for the time between messages
}

// read reads until the connection ends, and says why.
func (in *inbound) read() Ending {
	f := in.front
	rc, err := in.nc.SyscallConn()
	if err != nil {
		return ByPeer
	}
	var r *reading
	var n int
	var failed error
	// Waiting for bytes takes no buffer: it is taken when they are there.
	take := func(fd uintptr) bool {
		r = f.streams.reads.Get().(*reading)
		for {
			n, failed = unix.Read(int(fd), r.buf[:])
			if failed != unix.EINTR {
				break
			}
		}
		if failed == unix.EAGAIN {
			f.streams.reads.Put(r)
			r = nil
			return false
		}
		return true
	}
	in.arm(time.Now())
	for {
		err := rc.Read(take)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if why, over := in.overdue(time.Now()); over {
				return why
			}
			continue
		}
		if err != nil {
			return ByPeer
		}
		if failed != nil || n <= 0 {
			f.streams.reads.Put(r)
			return ByPeer
		}
		in.framer.Push(r.buf[:n])
		why, over := in.messages(r)
		f.streams.reads.Put(r)
		if over {
			return why
		}
	}
}

// messages handles what was pushed; over: the connection ends.
func (in *inbound) messages(r *reading) (why Ending, over bool) {
	f := in.front
	r.Front, r.at, r.stream, r.socket = f, in.at, in.stream, nil
	pings, before := 0, in.began
	for unit := sipmsg.Ping; unit == sipmsg.Ping || unit == sipmsg.Whole; {
		var raw []byte
		var err error
		unit, raw, err = in.framer.Next()
		if err != nil {
			return in.unframed(r, err.(*sipmsg.FrameError)), true
		}
		switch unit {
		case sipmsg.Ping:
			f.count.keepAlives.Add(1)
			pings++
		case sipmsg.Whole:
			f.count.received.Add(1)
			in.first, in.inside = false, false
			in.message(r, raw)
		case sipmsg.Waiting:
			if !in.inside && !in.first {
				in.began = time.Now()
			}
			in.inside = true
		}
	}
	for ; pings > 0; pings -= len(pongs) / 2 {
		// RFC 5626 §4.4.1: one CRLF for each ping.
		in.send(pongs[:2*min(pings, len(pongs)/2)], 0)
	}
	if held := in.framer.Held(); held != in.held {
		all := f.streams.held.Add(int64(held - in.held))
		grown := held > in.held
		in.held = held
		if grown && all > maxHeld {
			return HeldFull, true
		}
	}
	if in.began != before || !in.inside && !in.armed {
		in.arm(time.Now())
	}
	return 0, false
}

var pongs = []byte("\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n")

// message handles one message.
func (in *inbound) message(r *reading, raw []byte) {
	r.refresh()
	flow := in.flow()
	r.from = r.source(flow, r.now)
	switch v := r.guard.Admit(r.from, r.now); {
	case v == guard.Banned || v == guard.AutoBanned:
		in.close(Refused)
		return
	case !v.Passes():
		return
	}
	in.active(r.now)
	if err := r.msg.Parse(raw); err != nil {
		r.malformed(err, flow)
		return
	}
	r.again = false
	l := r.message(raw, flow)
	if l.lost && l.passing() {
		l = in.insist(r, raw, flow, l)
	}
	r.count.lose(l)
	if l.lost && l.passing() && r.msg.IsRequest() && r.msg.Method() != "ACK" {
		r.reply(503, "Service Unavailable", flow)
	}
}

// insist tries again to hand over a message that nobody would repeat. Only so
// many connections wait at a time.
func (in *inbound) insist(r *reading, raw []byte, flow sipmsg.Flow, l loss) loss {
	select {
	case in.front.streams.patience <- struct{}{}:
	default:
		return l
	}
	defer func() { <-in.front.streams.patience }()
	tick := time.NewTicker(askAgain)
	defer tick.Stop()
	for until := r.now.Add(waitWorker); l.lost && l.passing() && r.now.Before(until) && !in.over(); {
		<-tick.C
		r.refresh()
		r.again = true
		l = r.message(raw, flow)
	}
	return l
}

// unframed answers what made the stream unreadable, if it can be answered, and
// reads on for a moment: closing a socket with unread bytes would take the
// answer away from the peer.
func (in *inbound) unframed(r *reading, bad *sipmsg.FrameError) Ending {
	why := BadFraming
	if bad.Status == 513 {
		why = TooLarge
	}
	r.refresh()
	r.from = r.source(in.flow(), r.now)
	answered := false
	if r.guard.Charge(r.from, guard.Malformed, r.now) && bad.Status != 0 {
		_ = r.msg.Parse(bad.Head) // that it is wrong is known
		if answered = r.msg.Answerable(); answered {
			r.reply(bad.Status, bad.Reason, in.flow())
		}
	}
	if !answered {
		r.count.drop(Malformed)
		return why
	}
	in.finish()
	_ = in.nc.SetReadDeadline(time.Now().Add(lingerFor)) // a closed connection fails at the read
	for left := lingerBytes; left > 0; {
		n, err := in.nc.Read(r.buf[:])
		if err != nil {
			break
		}
		left -= n
	}
	return why
}

// arm sets the time at which overdue is asked next.
func (in *inbound) arm(now time.Time) {
	_, at := in.due(now)
	_ = in.nc.SetReadDeadline(at) // a closed connection fails at the read
	in.armed = !in.first && !in.inside
}

// due says when the connection ends, as things are, and why.
func (in *inbound) due(now time.Time) (Ending, time.Time) {
	t := &in.front.streams
	switch bound := time.UnixMilli(in.bound.Load()); {
	case in.first:
		return Mute, in.began.Add(t.First)
	case in.inside:
		return SlowMessage, in.began.Add(t.Message)
	case bound.After(now):
		return IdleUnbound, bound.Add(t.Idle)
	}
	return IdleUnbound, time.UnixMilli(in.last.Load()).Add(t.Idle)
}

// overdue is asked when the time of arm is there.
func (in *inbound) overdue(now time.Time) (Ending, bool) {
	in.front.streams.lapse(in.stream, now)
	why, at := in.due(now)
	if !at.After(now) {
		return why, true
	}
	in.arm(now)
	return 0, false
}

// send queues raw, which must not change any more; from is told if it cannot
// be sent after all. It reports whether it was queued.
func (s *stream) send(raw []byte, from state.GroupID) bool {
	f := s.front
	s.mu.Lock()
	if s.ended || s.finishing {
		s.mu.Unlock()
		return false
	}
	if s.bytes+len(raw) > maxStreamQueue || f.streams.queued.Load()+int64(len(raw)) > maxQueued {
		s.mu.Unlock()
		f.count.drop(SocketFull)
		s.close(QueueFull)
		return false
	}
	s.queue = append(s.queue, queued{raw, from})
	if from != 0 {
		s.asker = from
	}
	s.bytes += len(raw)
	f.streams.queued.Add(int64(len(raw)))
	begin := !s.writing && s.nc != nil
	s.writing = s.writing || begin
	s.mu.Unlock()
	if begin {
		s.begin()
	}
	return true
}

// begin starts a writer; writing is set.
func (s *stream) begin() {
	if !s.front.start(s.write) {
		s.mu.Lock()
		s.writing = false
		s.mu.Unlock()
	}
}

// finish lets what is queued leave and ends the sending side then.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishing = true
	if !s.writing && !s.ended {
		_ = s.nc.CloseWrite() // the reader notices
	}
}

// write sends what is queued, until nothing is.
func (s *stream) write() {
	f := s.front
	var bufs net.Buffers
	for {
		s.mu.Lock()
		batch, size := s.queue, 0
		s.queue = nil
		if len(batch) == 0 || s.ended {
			s.queue = batch
			f.streams.queued.Add(-int64(s.bytes))
			s.bytes = 0
			s.writing = false
			if s.finishing && !s.ended {
				_ = s.nc.CloseWrite() // the reader notices
			}
			s.mu.Unlock()
			f.undelivered(s.rest(), s.origin())
			return
		}
		s.mu.Unlock()
		bufs = bufs[:0]
		for _, q := range batch {
			bufs = append(bufs, q.raw)
			size += len(q.raw)
		}
		_ = s.nc.SetWriteDeadline(time.Now().Add(f.streams.Stall)) // a closed connection fails at the write
		out := bufs
		_, err := out.WriteTo(s.nc)
		if err != nil {
			f.count.drop(SendFailed)
			why := ByPeer
			if errors.Is(err, os.ErrDeadlineExceeded) {
				why = NotReading
			}
			s.close(why)
		} else {
			f.count.sent.Add(uint64(len(batch)))
			s.active(time.Now())
		}
		clear(bufs)
		f.streams.queued.Add(-int64(size))
		s.mu.Lock()
		s.bytes -= size
		s.mu.Unlock()
	}
}

// rest takes what will not be sent any more.
func (s *stream) rest() []queued {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		return nil
	}
	left := s.queue
	s.queue = nil
	return left
}

// unavailable answers a request that came over TCP, waited, and cannot be
// served. It is called with a frame from the wire.
func (f *Front) unavailable(frame *link.SIP) {
	if frame.Flow.Transport != sipmsg.TCP {
		return
	}
	s := f.streams.get(frame.Flow.Conn)
	m, err := sipmsg.Parse(frame.Raw)
	if s == nil || err != nil || !m.Answerable() {
		return
	}
	if raw, _, ok := f.answer(m, 503, "Service Unavailable", frame.Flow.Remote); ok && s.send(raw, 0) {
		f.count.reply(503)
	}
}
