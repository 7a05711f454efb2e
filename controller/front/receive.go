package front

import (
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/ipv4"

	"bellwether/controller/dispatch"
	"bellwether/controller/guard"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// receiver is what one reader of a socket or connection works with.
type receiver struct {
	*Front
	at     *listener
	socket *socket // of a datagram
	stream *stream // of a message over TCP
	msg    sipmsg.Message
	frame  link.SIP

	candidates []state.GroupID
	from       guard.Source
	again      bool // the message was handled before, and lost
	newFlow    bool // the message is a REGISTER over a flow that goes nowhere yet

	// Of the batch in hand.
	now   time.Time
	state *state.State
	route *routes
}

// refresh takes a look at the time and at who serves what.
func (r *receiver) refresh() {
	r.now, r.state, r.route = time.Now(), r.cluster.State(), r.workers.routes.Load()
	r.rules.follow(r.guard, r.state)
}

// loss says why a message goes nowhere; the zero value: it does not get lost.
type loss struct {
	lost   bool
	cause  Cause
	reason dispatch.Reason // in place of cause, if there is one
}

// passing reports whether the same message might be taken in a moment.
func (l loss) passing() bool {
	switch l.reason {
	case dispatch.NotReady, dispatch.Unserved, dispatch.NoWorker:
		return true
	case dispatch.NoReason:
		return l.cause == NotConnected || l.cause == LinkFull || l.cause == ReserveFull
	}
	return false
}

func (c *counters) lose(l loss) {
	switch {
	case !l.lost:
	case l.reason != dispatch.NoReason:
		c.dispatch(l.reason)
	default:
		c.drop(l.cause)
	}
}

// read takes datagrams from a socket until it is closed.
func (f *Front) read(s *socket) {
	r := &receiver{Front: f, at: s.listener, socket: s}
	msgs := make([]ipv4.Message, batch)
	slab := make([]byte, batch*maxDatagram)
	for i := range msgs {
		msgs[i].Buffers = [][]byte{slab[i*maxDatagram : (i+1)*maxDatagram : (i+1)*maxDatagram]}
	}
	// How many to ask for follows how many come: preparing a call costs time
	// for each message asked for.
	want := batch
	for {
		n, err := s.pc.ReadBatch(msgs[:want], 0)
		if err != nil {
			if f.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			f.log.Error("read SIP socket", "addr", s.addr, "err", err)
			select {
			case <-f.ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		if n < want {
			want = n + 1
		} else {
			want = min(2*want, batch)
		}
		r.refresh()
		for i := range msgs[:n] {
			if from, ok := msgs[i].Addr.(*net.UDPAddr); ok {
				remote := from.AddrPort()
				remote = netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
				r.datagram(msgs[i].Buffers[0][:msgs[i].N], remote)
			}
		}
	}
}

// datagram handles one datagram. raw is reused afterwards.
func (r *receiver) datagram(raw []byte, remote netip.AddrPort) {
	r.count.received.Add(1)
	flow := sipmsg.Flow{Node: r.node, Transport: sipmsg.UDP, Local: r.at.addr, Remote: remote}
	r.from = r.source(flow, r.now)
	if !r.guard.Admit(r.from, r.now).Passes() {
		return
	}
	if keepAlive(raw) {
		r.count.keepAlives.Add(1)
		return
	}
	if err := r.msg.Parse(raw); err != nil {
		r.malformed(err, flow)
		return
	}
	r.count.lose(r.message(raw, flow))
}

// malformed answers a message that could not be parsed, if that can be.
func (r *receiver) malformed(err error, flow sipmsg.Flow) {
	if !r.guard.Charge(r.from, guard.Malformed, r.now) {
		return
	}
	bad, ok := err.(*sipmsg.Error)
	if !ok || bad.Status == 0 || !r.msg.Answerable() {
		r.count.drop(Malformed)
		return
	}
	r.reply(bad.Status, bad.Reason, flow)
}

// message handles the message that was parsed, whose bytes raw are reused
// afterwards. A loss is not counted yet.
func (r *receiver) message(raw []byte, flow sipmsg.Flow) loss {
	r.newFlow = false
	d := dispatch.Decide(dispatch.Input{
		Message: &r.msg, Entry: r.at.kind, Flow: flow, State: r.state, Sealer: r.tokens(r.state), Tables: r,
	})
	if !r.again && !r.affordable(d) {
		return loss{}
	}
	switch d.Verdict {
	case dispatch.To:
		if d.Chosen {
			r.calls.put(r.callKey(r.msg.CallID()), d.Group, r.now, r.now.Add(r.kept()))
		}
		r.frame = link.SIP{To: d.Group, Entry: r.at.kind, Flow: flow, Raw: raw}
		if r.newFlow && d.User != "" {
			if waits, l := r.follow(r.frame); waits {
				return l
			}
			if k, ok := r.flowKey(flow); ok {
				r.claim(k, d.Group)
			}
		}
		l := r.deliver(&r.frame)
		r.frame.Raw = nil
		return l
	case dispatch.Reserve:
		return r.reserve(d.Kind, d.User, link.SIP{Entry: r.at.kind, Flow: flow, Raw: raw})
	case dispatch.Reply:
		r.reply(d.Status, d.Reason, flow)
	case dispatch.Drop:
		return loss{lost: true, reason: d.Drop}
	}
	return loss{}
}

// keepAlive reports whether a datagram is nothing but line breaks (RFC 5626
// §3.5.1 has them for streams; phones send them over UDP, too), or of STUN
// (§3.5.2), which phones use to keep NATs open; it is not answered.
func keepAlive(raw []byte) bool {
	if stun(raw) {
		return true
	}
	for _, b := range raw {
		if b != '\r' && b != '\n' && b != 0 {
			return false
		}
	}
	return true
}

// stun reports whether a datagram is of STUN (RFC 5389 §6).
func stun(raw []byte) bool {
	const header, cookie = 20, 0x2112A442
	return len(raw) >= header && raw[0]&0xC0 == 0 && binary.BigEndian.Uint32(raw[4:]) == cookie &&
		int(binary.BigEndian.Uint16(raw[2:])) == len(raw)-header
}

// Flow implements dispatch.Tables. Several users may register over a flow at
// once: phones behind one address, accounts of one phone. They all go where
// the first went, also before its registration binds the flow.
func (r *receiver) Flow(flow sipmsg.Flow) (state.GroupID, bool) {
	k, ok := r.flowKey(flow)
	if !ok {
		return 0, false
	}
	if g, ok := r.flows.get(k, r.now, time.Time{}); ok {
		return g, true
	}
	if r.msg.Method() != "REGISTER" {
		return 0, false
	}
	g, ok := r.claims.get(k, r.now, time.Time{})
	ok = ok && r.Reachable(g)
	r.newFlow = !ok
	return g, ok
}

// claim remembers where the first REGISTER over a flow went.
func (f *Front) claim(k flowKey, group state.GroupID) {
	now := time.Now()
	f.claims.put(k, group, now, now.Add(claimKept))
}

// Call implements dispatch.Tables; an entry that is used is kept on.
func (r *receiver) Call(callID string) (state.GroupID, bool) {
	return r.calls.get(r.callKey(callID), r.now, r.now.Add(r.kept()))
}

// LeastLoaded implements dispatch.Tables. Ties go to a worker of this node.
func (r *receiver) LeastLoaded() (state.GroupID, bool) {
	r.candidates = r.candidates[:0]
	for _, id := range r.route.groups {
		if g, ok := r.state.Group(id); ok && g.Kind == state.ICSCF && g.Serving != "" {
			r.candidates = append(r.candidates, id)
		}
	}
	return r.load.Choose(r.candidates, r.here)
}

// here reports whether a group is served on this node.
func (r *receiver) here(id state.GroupID) bool {
	g, _ := r.state.Group(id)
	w, ok := r.state.Worker(g.Serving)
	return ok && w.Node == r.node
}

// Reachable implements dispatch.Tables.
func (r *receiver) Reachable(g state.GroupID) bool { return r.route.conns[g] != nil }

func (r *receiver) callKey(callID string) uint64 { return maphash.String(r.seed, callID) }

// kept is how long an I-CSCF is remembered for the Call-ID of the message.
func (r *receiver) kept() time.Duration {
	if r.msg.Method() == "INVITE" {
		return inviteKept
	}
	return callKept
}

const tagSize = 10 // bytes

var tagText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// tag is the To tag of an answer to a request: retransmissions get the same one,
// other requests another. It looks like a P-CSCF's: who answers would tell a
// stranger whether a user is registered.
func (f *Front) tag(m *sipmsg.Message) string {
	var sum [tagSize]byte
	binary.BigEndian.PutUint64(sum[:], maphash.String(f.seed, m.CallID()+"\x00"+m.FromTag()))
	binary.BigEndian.PutUint16(sum[8:], uint16(maphash.Bytes(f.seed, sum[:8])))
	return tagText.EncodeToString(sum[:])
}

// reply answers the request in hand statelessly (RFC 3261 §8.2.7). Over UDP,
// where anybody can have written the source, a source is not answered too often.
func (r *receiver) reply(status int, reason string, flow sipmsg.Flow) {
	if r.stream == nil && !r.limit.allow(flow.Remote.Addr(), r.now) {
		r.count.drop(Unanswered)
		return
	}
	raw, to, ok := r.answer(&r.msg, status, reason, flow.Remote)
	if !ok {
		r.count.drop(Malformed)
		return
	}
	if r.stream != nil {
		if r.stream.send(raw, 0) {
			r.count.reply(status)
		}
		return
	}
	if err := r.socket.send(raw, to); err != nil {
		r.count.drop(SocketFull)
		return
	}
	r.count.reply(status)
}

// answer makes a stateless answer to a request from a remote address, and says
// where it goes over UDP; false if the request shows no way back.
func (f *Front) answer(m *sipmsg.Message, status int, reason string, remote netip.AddrPort) (raw []byte, to netip.AddrPort, ok bool) {
	via, ok := m.TopVia()
	if !ok {
		return nil, to, false
	}
	resp := m.Response(status, reason, f.tag(m))
	to = remote
	// RFC 3261 §18.2.1, §18.2.2 and RFC 3581 §4. No header can carry a zone.
	source := remote.Addr().WithZone("")
	host, err := netip.ParseAddr(strings.Trim(via.Host, "[]"))
	rport := via.Params.Has("rport")
	if rport || err != nil || host.Unmap() != source {
		via.Params = via.Params.With("received", source.String())
	}
	if rport {
		via.Params = via.Params.With("rport", fmt.Sprint(remote.Port()))
	} else {
		to = netip.AddrPortFrom(remote.Addr(), sentPort(via))
	}
	resp.ReplaceTop(sipmsg.ViaHeader, via.String())
	return resp.Append(nil), to, true
}

// sentPort is the port of a Via's sent-by (RFC 3261 §18.2.2).
func sentPort(via sipmsg.Via) uint16 {
	if via.Port == 0 {
		return 5060
	}
	return uint16(via.Port)
}
