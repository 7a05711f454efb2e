package front

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"bellwether/controller/dispatch"
)

// Cause says why the front itself dropped a message; dispatch.Reason has the
// causes that follow from the message.
type Cause uint8

// The causes.
const (
	Malformed     Cause = iota // not SIP, or wrong and not answerable
	Unanswered                 // would have been answered statelessly, but its source is too often
	UnknownGroup               // of a group that the cluster state does not have
	NotConnected               // the worker process of the group is not connected
	LinkFull                   // the link to the worker process is full
	ReserveFull                // too many reservations under way
	ReserveFailed              // no reservation: no leader, or too slow
	StaleEpoch                 // from a worker that does not serve the group any more
	NoSocket                   // for a local address or transport that this front does not have
	Unsendable                 // too large, empty, or for an address that is no host's
	SocketFull                 // more waits to be sent than may
	SendFailed                 // refused by the kernel, or by a connection's peer
	NoStream                   // for a TCP connection that has ended, or that could not be opened
	causes
)

var causeNames = [causes]string{
	"malformed", "reply-limited", "unknown-group", "not-connected", "link-full", "reserve-full", "reserve-failed",
	"stale-epoch", "no-socket", "unsendable", "socket-full", "send-failed", "no-connection",
}

// String is the cause as a metric's label.
func (c Cause) String() string {
	if c < causes {
		return causeNames[c]
	}
	return "unknown"
}

// counters count since the start.
type counters struct {
	received, keepAlives, sent, delivered, relayed atomic.Uint64
	causes                                         [causes]atomic.Uint64
	reasons                                        [16]atomic.Uint64 // by dispatch.Reason

	mu      sync.Mutex // guards replies
	replies map[int]uint64
}

func (c *counters) drop(cause Cause) { c.causes[cause].Add(1) }

func (c *counters) dispatch(r dispatch.Reason) { c.reasons[int(r)%len(c.reasons)].Add(1) }

func (c *counters) reply(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.replies == nil {
		c.replies = make(map[int]uint64)
	}
	c.replies[status]++
}

// Stats are counts since the start, and sizes now.
type Stats struct {
	Received   uint64            // datagrams, and messages over TCP
	KeepAlives uint64            // datagrams of nothing but line breaks, and pings over TCP
	Delivered  uint64            // messages from the wire handed to a worker
	Relayed    uint64            // messages of a worker handed to another one
	Sent       uint64            // datagrams, and messages and pongs over TCP
	Replied    map[int]uint64    // stateless answers, by status
	Dropped    map[string]uint64 // messages, by Cause and dispatch.Reason; all labels are there
	Refused    map[string]uint64 // what the guard did not let in, by guard.Verdict; all labels are there
	Flows      int               // known flows of phones, those out of time included
	Calls      int               // Call-IDs remembered for I-CSCFs, those out of time included
	Reserving  int               // reservations under way

	Connections int               // over TCP
	Unbound     int               // those of them that belong to no registered phone
	Accepted    uint64            // connections
	Dialled     uint64            // connections that were opened from here
	Ended       map[string]uint64 // connections, by Ending; all labels are there
	Held        int64             // bytes of incomplete messages
	Queued      int64             // bytes that wait to leave over TCP
}

// Stats returns the counters.
func (f *Front) Stats() Stats {
	c := &f.count
	s := Stats{
		Received: c.received.Load(), KeepAlives: c.keepAlives.Load(), Delivered: c.delivered.Load(),
		Relayed: c.relayed.Load(), Sent: c.sent.Load(),
		Dropped: make(map[string]uint64), Flows: f.flows.len(), Calls: f.calls.len(),
	}
	for i := range c.reasons {
		if r := dispatch.Reason(i); r != dispatch.NoReason && r.String() != "unknown" {
			s.Dropped[r.String()] += c.reasons[i].Load()
		}
	}
	for i := range c.causes {
		s.Dropped[Cause(i).String()] += c.causes[i].Load()
	}
	t := &f.streams
	s.Connections, s.Unbound = t.sizes()
	s.Accepted, s.Dialled, s.Held, s.Queued = t.accepted.Load(), t.dialled.Load(), t.held.Load(), t.queued.Load()
	s.Ended = make(map[string]uint64)
	for i := range t.ended {
		s.Ended[Ending(i).String()] = t.ended[i].Load()
	}
	c.mu.Lock()
	s.Replied = maps.Clone(c.replies)
	c.mu.Unlock()
	s.Refused = f.guard.Stats(time.Now()).Refused
	f.waiting.mu.Lock()
	s.Reserving = len(f.waiting.waiting)
	f.waiting.mu.Unlock()
	return s
}
