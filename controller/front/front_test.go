package front

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

// TestDispatch sends each row of the dispatch table as a real datagram.
func TestDispatch(t *testing.T) {
	cl := newCluster(t)
	cl.reserve = func(_ context.Context, kind state.Kind, user string) (state.GroupID, error) {
		switch (userOf{kind, user}) {
		case userOf{state.PCSCF, "sip:dora@ims.test"}:
			return p1, nil
		case userOf{state.SCSCF, "dora@ims.test"}:
			return s1, nil
		}
		return 0, fmt.Errorf("reservation for %s %s", kind, user)
	}
	f := newFront(t, cl)
	w := connect(t, f, p1, i1, s1, p2, s2) // i2 is not connected
	known, stranger := newPhone(t), newPhone(t)
	f.Bind(known.flow(f, 'p'), p1, time.Now().Add(time.Hour))

	route := func(mode token.Mode, g uint32) string {
		return "Route: <sip:" + seal(t, mode, g) + "@127.0.0.2:5060;lr>"
	}
	via := func(g uint32) string {
		return "Via: SIP/2.0/UDP 127.0.0.2:5060;branch=" + token.Branch(seal(t, token.Via, g), "1")
	}
	alice, dora, mallory := "To: <sip:alice@ims.test>", "To: <sip:dora@ims.test>", "To: <sip:mallory@ims.test>"
	fromAlice := "From: <sip:alice@ims.test>;tag=f"

	for _, tc := range []struct {
		name  string
		entry byte
		from  *phone
		msg   string
		group []uint32 // any of them; none: not delivered
		reply int      // 0: none
		drop  string   // "": none
	}{
		{"request with a token", 'p', stranger, message("BYE sip:x@127.0.0.9 SIP/2.0", route(token.Dialog, p2)), []uint32{p2}, 0, ""},
		{"request with a token in the Request-URI", 's', stranger, message("BYE sip:" + seal(t, token.Dialog, s2) + "@127.0.0.2 SIP/2.0"), []uint32{s2}, 0, ""},
		{"response with a token", 's', stranger, message("SIP/2.0 200 OK", via(s1)), []uint32{s1}, 0, ""},
		{"response without a token", 's', stranger, message("SIP/2.0 200 OK"), nil, 0, "no-token"},
		{"forged token", 'p', stranger, message("BYE sip:x@127.0.0.9 SIP/2.0", "Route: <sip:abcdefgh@127.0.0.1;lr>"), nil, 0, "forged-token"},
		{"REGISTER on a known flow", 'p', known, message("REGISTER sip:ims.test SIP/2.0", alice), []uint32{p1}, 0, ""},
		{"REGISTER of an assigned user", 'p', stranger, message("REGISTER sip:ims.test SIP/2.0", alice), []uint32{p2}, 0, ""},
		{"REGISTER of a user without a group", 'p', stranger, message("REGISTER sip:ims.test SIP/2.0", dora), []uint32{p1}, 0, ""},
		{"REGISTER of an unknown user", 'p', stranger, message("REGISTER sip:ims.test SIP/2.0", mallory), []uint32{p1, p2}, 0, ""},
		{"initial request on a known flow", 'p', known, message("INVITE sip:bob@ims.test SIP/2.0"), []uint32{p1}, 0, ""},
		{"CANCEL on a known flow", 'p', known, message("CANCEL sip:bob@ims.test SIP/2.0"), []uint32{p1}, 0, ""},
		{"ACK on a known flow", 'p', known, message("ACK sip:bob@ims.test SIP/2.0"), []uint32{p1}, 0, ""},
		{"initial request on an unknown flow, user assigned", 'p', stranger, message("INVITE sip:bob@ims.test SIP/2.0", fromAlice), []uint32{p2}, 0, ""},
		{"initial request of a stranger", 'p', stranger, message("INVITE sip:bob@ims.test SIP/2.0"), nil, 403, ""},
		{"CANCEL of a stranger", 'p', stranger, message("CANCEL sip:bob@ims.test SIP/2.0"), nil, 481, ""},
		{"ACK of a stranger", 'p', stranger, message("ACK sip:bob@ims.test SIP/2.0"), nil, 0, "stray-ack"},
		{"OPTIONS to us", 'p', stranger, message("OPTIONS sip:127.0.0.1 SIP/2.0"), []uint32{p1}, 0, ""},
		{"request at the I-CSCF", 'i', stranger, message("INVITE sip:bob@ims.test SIP/2.0"), []uint32{i1}, 0, ""},
		{"response for an I-CSCF that is away", 'i', stranger, message("SIP/2.0 200 OK", via(i2)), []uint32{i1}, 0, ""},
		{"REGISTER at the S-CSCF", 's', stranger, message("REGISTER sip:ims.test SIP/2.0", alice), []uint32{s2}, 0, ""},
		{"REGISTER at the S-CSCF without a group", 's', stranger, message("REGISTER sip:ims.test SIP/2.0", dora), []uint32{s1}, 0, ""},
		{"request at the S-CSCF", 's', stranger, message("INVITE sip:alice@ims.test SIP/2.0"), []uint32{s2}, 0, ""},
		{"request at the S-CSCF for nobody", 's', stranger, message("INVITE sip:bob@ims.test SIP/2.0"), nil, 404, ""},
		{"group that is gone", 'p', stranger, message("BYE sip:x@127.0.0.9 SIP/2.0", route(token.Dialog, 99)), nil, 0, "unknown-group"},

		{"line breaks", 'p', stranger, "\r\n\r\n", nil, 0, ""},
		{"a datagram of no bytes", 'p', stranger, "", nil, 0, ""},
		{"no SIP at all", 'p', stranger, "GET / HTTP/1.1\r\n\r\n", nil, 0, "malformed"},
		{"another version", 'p', known, message("INVITE sip:bob@ims.test SIP/7.0"), nil, 505, ""},
		{"another scheme", 'p', known, message("INVITE foo:bob SIP/2.0"), nil, 416, ""},
		{"CSeq of another method", 'p', known, message("INVITE sip:bob@ims.test SIP/2.0", "CSeq: 1 BYE"), nil, 400, ""},
		{"a body cut short", 'p', known, message("MESSAGE sip:bob@ims.test SIP/2.0", "Content-Length: 10") + "short", nil, 400, ""},
		{"a malformed ACK", 'p', known, message("ACK sip:bob@ims.test SIP/2.0", "CSeq: 1 BYE"), nil, 0, "malformed"},
		{"a malformed response", 'p', known, message("SIP/2.0 200 OK", "CSeq: x"), nil, 0, "malformed"},
		{"too many headers", 'p', known, message("INVITE sip:bob@ims.test SIP/2.0", strings.TrimSuffix(strings.Repeat("X: y\r\n", 200), "\r\n")), nil, 400, ""},
		{"the largest datagram", 'p', known, sized(maxPayload), []uint32{p1}, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := f.Stats()
			tc.from.send(f.Addr(tc.entry), tc.msg)
			switch {
			case len(tc.group) > 0:
				got := w.next(t)
				if !strings.Contains(fmt.Sprint(tc.group), fmt.Sprint(got.To)) {
					t.Errorf("delivered to group %d, want one of %v", got.To, tc.group)
				}
				want := link.SIP{To: got.To, Epoch: 1, Entry: tc.entry, Flow: tc.from.flow(f, tc.entry)}
				raw := got.Raw
				if got.Raw = nil; fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("got frame %v, want %v", got, want)
				}
				if string(raw) != tc.msg {
					t.Errorf("the message changed to\n%s", raw)
				}
			case tc.reply > 0:
				m, from := tc.from.receive()
				if m.Status() != tc.reply || from != f.Addr(tc.entry) {
					t.Errorf("got %d from %s, want %d from %s", m.Status(), from, tc.reply, f.Addr(tc.entry))
				}
				eventually(t, "the answer is counted", func() bool { return f.Stats().Replied[tc.reply] == before.Replied[tc.reply]+1 })
			case tc.drop != "":
				eventually(t, "the drop is counted", func() bool { return f.Stats().Dropped[tc.drop] == before.Dropped[tc.drop]+1 })
			default:
				eventually(t, "the keep-alive is counted", func() bool { return f.Stats().KeepAlives == before.KeepAlives+1 })
			}
			w.nothing(t)
		})
	}
	if n := sum(f.Stats().Dropped); n != 7 {
		t.Errorf("%d messages dropped, want 7: %v", n, f.Stats().Dropped)
	}
}

type userOf struct {
	kind state.Kind
	name string
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// sized is a MESSAGE of n bytes.
func sized(n int) string {
	head := func(body int) string {
		return message("MESSAGE sip:bob@ims.test SIP/2.0", fmt.Sprintf("Content-Length: %d", body))
	}
	body := n - len(head(10000))
	return head(body) + strings.Repeat("x", body)
}

func TestNothingIsDeliveredWithoutAWorker(t *testing.T) {
	cl := newCluster(t)
	cl.reserve = func(context.Context, state.Kind, string) (state.GroupID, error) { return p1, nil }
	f := newFront(t, cl)
	ph := newPhone(t)
	for label, msg := range map[string]string{
		"unserved":      message("REGISTER sip:ims.test SIP/2.0", "To: <sip:alice@ims.test>"),
		"no-worker":     message("REGISTER sip:ims.test SIP/2.0", "To: <sip:mallory@ims.test>"),
		"not-connected": message("REGISTER sip:ims.test SIP/2.0", "To: <sip:dora@ims.test>"),
	} {
		ph.send(f.Addr('p'), msg)
		eventually(t, label, func() bool { return f.Stats().Dropped[label] == 1 })
	}
}

func TestNothingIsDeliveredBeforeTheClusterExists(t *testing.T) {
	cl := &cluster{}
	cl.state.Store(state.New())
	f := newFront(t, cl)
	connect(t, f, p1)
	newPhone(t).send(f.Addr('p'), message("OPTIONS sip:127.0.0.1 SIP/2.0"))
	eventually(t, "the drop is counted", func() bool { return f.Stats().Dropped["not-ready"] == 1 })
}

func TestReplyFindsItsWay(t *testing.T) {
	f := newFront(t, newCluster(t))
	ph, other := newPhone(t), newPhone(t)
	for _, tc := range []struct {
		name, via string
		to        *phone
		want      string // of the answer's Via
	}{
		{"to the source, if the request asks for rport", "SIP/2.0/UDP 10.1.2.3:7;rport;branch=z9hG4bKa", ph,
			fmt.Sprintf("SIP/2.0/UDP 10.1.2.3:7;rport=%d;branch=z9hG4bKa;received=127.0.0.1", ph.addr.Port())},
		{"to the port of Via, if it does not", fmt.Sprintf("SIP/2.0/UDP 127.0.0.1:%d;branch=z9hG4bKb", other.addr.Port()), other,
			fmt.Sprintf("SIP/2.0/UDP 127.0.0.1:%d;branch=z9hG4bKb", other.addr.Port())},
		{"but to the address of the source", fmt.Sprintf("SIP/2.0/UDP phone.test:%d;branch=z9hG4bKc", other.addr.Port()), other,
			fmt.Sprintf("SIP/2.0/UDP phone.test:%d;branch=z9hG4bKc;received=127.0.0.1", other.addr.Port())},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ph.send(f.Addr('p'), message("INVITE sip:bob@ims.test SIP/2.0", "Via: "+tc.via))
			m, _ := tc.to.receive()
			if v, _ := m.Value(sipmsg.ViaHeader); v != tc.want {
				t.Errorf("got Via %s\nwant %s", v, tc.want)
			}
			if m.Status() != 403 || m.ToTag() == "" {
				t.Errorf("got %d, To tag %q", m.Status(), m.ToTag())
			}
		})
	}
}

func TestRetransmissionGetsTheSameAnswer(t *testing.T) {
	f := newFront(t, newCluster(t))
	ph := newPhone(t)
	ask := func(callID string) string {
		ph.send(f.Addr('p'), message("INVITE sip:bob@ims.test SIP/2.0", "Call-ID: "+callID))
		m, _ := ph.receive()
		return string(bytes.Clone(m.Bytes()))
	}
	first := ask("a")
	if again := ask("a"); again != first {
		t.Errorf("first\n%s\nthen\n%s", first, again)
	}
	if other := ask("b"); strings.ReplaceAll(other, "Call-ID: b", "Call-ID: a") == first {
		t.Error("another call has the same To tag")
	}
}

func TestAnswersToOneSourceAreLimited(t *testing.T) {
	f := newFront(t, newCluster(t))
	ph := newPhone(t)
	const requests = 200
	for range requests {
		ph.send(f.Addr('p'), message("INVITE sip:bob@ims.test SIP/2.0"))
	}
	eventually(t, "all are handled", func() bool {
		s := f.Stats()
		return s.Replied[403]+s.Dropped["reply-limited"] == requests
	})
	if n := f.Stats().Replied[403]; n < replyBurst || n > requests/2 {
		t.Errorf("%d of %d requests answered, want about %d", n, requests, replyBurst)
	}
}

func TestLimiterAllowsABurstThenARate(t *testing.T) {
	var l limiter
	l.init()
	now := time.Unix(1000, 0)
	count := func(a string, at time.Time) (n int) {
		for l.allow(netip.MustParseAddr(a), at) {
			n++
		}
		return n
	}
	if n := count("192.0.2.1", now); n != replyBurst {
		t.Errorf("burst of %d, want %d", n, replyBurst)
	}
	if n := count("192.0.2.1", now.Add(10*replyEvery)); n != 10 {
		t.Errorf("%d more after ten intervals, want 10", n)
	}
	if n := count("192.0.2.1", now.Add(time.Hour)); n != replyBurst {
		t.Errorf("%d after an hour, want %d", n, replyBurst)
	}
	if n := count("192.0.2.200", now); n != replyBurst {
		t.Errorf("another source got %d, want %d", n, replyBurst)
	}
	count("2001:db8::1", now)
	if n := count("2001:db8::2", now); n != 0 {
		t.Errorf("%d for the neighbour in the same /64, want 0", n)
	}
}

func TestFlowsAreBoundUntilTheirTime(t *testing.T) {
	f := newFront(t, newCluster(t))
	w := connect(t, f, p1, p2)
	ph := newPhone(t)
	invite := message("INVITE sip:bob@ims.test SIP/2.0")
	refused := func(why string) {
		t.Helper()
		ph.send(f.Addr('p'), invite)
		if m, _ := ph.receive(); m.Status() != 403 {
			t.Errorf("%s: got %d, want 403", why, m.Status())
		}
	}
	delivered := func(why string, group uint32) {
		t.Helper()
		ph.send(f.Addr('p'), invite)
		if s := w.next(t); s.To != group {
			t.Errorf("%s: delivered to %d, want %d", why, s.To, group)
		}
	}
	flow := ph.flow(f, 'p')
	refused("unknown flow")
	f.Bind(flow, p1, time.Now().Add(time.Hour))
	delivered("bound flow", p1)
	f.Bind(flow, p2, time.Now().Add(time.Hour))
	delivered("bound again", p2)
	f.Unbind(flow)
	refused("unbound flow")
	f.Bind(flow, p1, time.Now().Add(-time.Second))
	refused("flow out of time")
	flow.Node = "b" // its address has moved here
	f.Bind(flow, p1, time.Now().Add(time.Hour))
	delivered("flow that another node began", p1)
	flow.Local = netip.MustParseAddrPort("127.0.0.99:5060")
	f.Bind(flow, p2, time.Now().Add(time.Hour))
	delivered("flow of an address elsewhere", p1)
	if n := f.Stats().Flows; n != 1 {
		t.Errorf("%d flows known, want 1", n)
	}
}

func TestOneICSCFServesACall(t *testing.T) {
	f := newFront(t, newCluster(t))
	w := connect(t, f, i1, i2)
	ph := newPhone(t)
	ask := func(start, callID string) uint32 {
		ph.send(f.Addr('i'), message(start, "Call-ID: "+callID))
		return w.next(t).To
	}
	f.Load(i1, 5)
	f.Load(i2, 3)
	first := ask("INVITE sip:bob@ims.test SIP/2.0", "a")
	if first != i2 {
		t.Errorf("the first call went to %d, want the less loaded %d", first, i2)
	}
	f.Load(i2, 50)
	if g := ask("CANCEL sip:bob@ims.test SIP/2.0", "a"); g != first {
		t.Errorf("its CANCEL went to %d, want %d", g, first)
	}
	if g := ask("INVITE sip:bob@ims.test SIP/2.0", "b"); g != i1 {
		t.Errorf("the next call went to %d, want the less loaded %d", g, i1)
	}
	if n := f.Stats().Calls; n != 2 {
		t.Errorf("%d calls remembered, want 2", n)
	}
	// Each dispatch counts as one more until the next report.
	f.Load(i1, 0)
	f.Load(i2, 0)
	count := map[uint32]int{}
	for i := range 100 {
		count[ask("INVITE sip:bob@ims.test SIP/2.0", fmt.Sprint("c", i))]++
	}
	if count[i1] != 50 || count[i2] != 50 {
		t.Errorf("100 calls spread %v, want 50 each", count)
	}
}

func TestDatagramsShareAReservationInOrder(t *testing.T) {
	cl := newCluster(t)
	asked, release := make(chan string, 10), make(chan struct{})
	cl.reserve = func(_ context.Context, _ state.Kind, user string) (state.GroupID, error) {
		asked <- user
		<-release
		return p1, nil
	}
	f := newFront(t, cl)
	w := connect(t, f, p1)
	ph := newPhone(t)
	const datagrams = maxWaiting
	for i := range datagrams {
		ph.send(f.Addr('p'), message("REGISTER sip:ims.test SIP/2.0", "To: <sip:dora@ims.test>", fmt.Sprintf("CSeq: %d REGISTER", i+1)))
	}
	if u := <-asked; u != "sip:dora@ims.test" {
		t.Errorf("reservation for %q", u)
	}
	// The reader goes on meanwhile, and one more datagram is one too many.
	ph.send(f.Addr('p'), message("REGISTER sip:ims.test SIP/2.0", "To: <sip:dora@ims.test>", "CSeq: 99 REGISTER"))
	eventually(t, "the surplus datagram is dropped", func() bool { return f.Stats().Dropped["reserve-full"] == 1 })
	if n := f.Stats().Reserving; n != 1 {
		t.Errorf("%d reservations under way, want 1", n)
	}
	w.nothing(t)
	close(release)
	for i := range datagrams {
		got := w.next(t)
		m, err := sipmsg.Parse(got.Raw)
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := m.CSeq(); got.To != p1 || int(n) != i+1 {
			t.Errorf("datagram %d came as number %d at group %d", n, i+1, got.To)
		}
	}
	eventually(t, "nothing waits", func() bool { return f.Stats().Reserving == 0 })
	if len(asked) != 0 {
		t.Errorf("asked %d times more", len(asked))
	}
}

func TestFailedReservationsAreCounted(t *testing.T) {
	cl := newCluster(t)
	cl.reserve = func(context.Context, state.Kind, string) (state.GroupID, error) { return 0, errors.New("no leader") }
	f := newFront(t, cl)
	connect(t, f, p1)
	newPhone(t).send(f.Addr('p'), message("REGISTER sip:ims.test SIP/2.0", "To: <sip:dora@ims.test>"))
	eventually(t, "the drop is counted", func() bool { return f.Stats().Dropped["reserve-failed"] == 1 })
}

func TestReservationsAreBounded(t *testing.T) {
	cl := newCluster(t)
	release := make(chan struct{})
	cl.reserve = func(context.Context, state.Kind, string) (state.GroupID, error) { <-release; return p1, nil }
	f := newFront(t, cl)
	defer close(release)
	for i := range maxReserves + 10 {
		f.reserve(state.PCSCF, fmt.Sprint("sip:user", i), &link.SIP{Raw: []byte("x")})
	}
	if s := f.Stats(); s.Reserving != maxReserves || s.Dropped["reserve-full"] != 10 {
		t.Errorf("%d under way, %d dropped; want %d and 10", s.Reserving, s.Dropped["reserve-full"], maxReserves)
	}
}

func TestWaitingBytesAreBounded(t *testing.T) {
	cl := newCluster(t)
	release := make(chan struct{})
	cl.reserve = func(context.Context, state.Kind, string) (state.GroupID, error) { <-release; return p1, nil }
	f := newFront(t, cl)
	raw := make([]byte, maxPayload)
	const fit = maxWaitingBytes / maxPayload
	for i := range fit + 1 {
		f.reserve(state.PCSCF, fmt.Sprint("sip:user", i), &link.SIP{Raw: raw})
	}
	if s := f.Stats(); s.Reserving != fit || s.Dropped["reserve-full"] != 1 {
		t.Errorf("%d under way, %d dropped; want %d and 1", s.Reserving, s.Dropped["reserve-full"], fit)
	}
	close(release)
	eventually(t, "nothing waits", func() bool { return f.Stats().Reserving == 0 })
	f.waiting.mu.Lock()
	defer f.waiting.mu.Unlock()
	if f.waiting.bytes != 0 {
		t.Errorf("%d bytes wait, want 0", f.waiting.bytes)
	}
}

func TestCloseEndsReservations(t *testing.T) {
	cl := newCluster(t)
	entered := make(chan struct{})
	cl.reserve = func(ctx context.Context, _ state.Kind, _ string) (state.GroupID, error) {
		close(entered)
		<-ctx.Done()
		return 0, ctx.Err()
	}
	f := newFront(t, cl)
	newPhone(t).send(f.Addr('p'), message("REGISTER sip:ims.test SIP/2.0", "To: <sip:dora@ims.test>"))
	<-entered
	f.Close()
}

func TestFromWorker(t *testing.T) {
	f := newFront(t, newCluster(t))
	a := connect(t, f, p1, s1)
	b := connect(t, f, p2)
	ph := newPhone(t)
	raw := []byte(message("OPTIONS sip:phone SIP/2.0"))
	flow := ph.flow(f, 'p')
	elsewhere := func(local, remote string) sipmsg.Flow {
		fl := flow
		if local != "" {
			fl.Local = netip.MustParseAddrPort(local)
		}
		if remote != "" {
			fl.Remote = netip.MustParseAddrPort(remote)
		}
		return fl
	}
	send := func(s link.SIP) {
		t.Helper()
		if err := a.far.SendSIP(&s); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("a frame for the wire leaves by its flow", func(t *testing.T) {
		send(link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: raw})
		if m, from := ph.receive(); from != f.Addr('p') || string(m.Bytes()) != string(raw) {
			t.Errorf("from %s:\n%s", from, m.Bytes())
		}
	})
	t.Run("without a local address it leaves by its entry", func(t *testing.T) {
		send(link.SIP{From: s1, Epoch: 1, Entry: 's', Flow: sipmsg.Flow{Transport: sipmsg.UDP, Remote: ph.addr}, Raw: raw})
		if _, from := ph.receive(); from != f.Addr('s') {
			t.Errorf("from %s, want %s", from, f.Addr('s'))
		}
	})
	t.Run("a frame for another group is relayed as it is", func(t *testing.T) {
		send(link.SIP{To: p2, From: s1, Epoch: 1, Entry: 's', Raw: raw})
		got := b.next(t)
		if got.To != p2 || got.From != s1 || got.Epoch != 1 || got.Entry != 's' || string(got.Raw) != string(raw) {
			t.Errorf("got %+v", got)
		}
	})
	tcp := flow
	tcp.Transport = sipmsg.TCP
	for label, bad := range map[string][]link.SIP{
		"stale-epoch": {
			{From: p1, Epoch: 0, Entry: 'p', Flow: flow, Raw: raw},
			{To: p2, From: p1, Epoch: 0, Entry: 'p', Raw: raw},
		},
		"unknown-group": {
			{From: 99, Epoch: 1, Entry: 'p', Flow: flow, Raw: raw},
			{From: 0, Epoch: 1, Entry: 'p', Flow: flow, Raw: raw},
		},
		"not-connected": {
			{To: i2, From: p1, Epoch: 1, Entry: 'p', Raw: raw},
			{To: 99, From: p1, Epoch: 1, Entry: 'p', Raw: raw},
		},
		"no-socket": {
			{From: p1, Epoch: 1, Entry: 'p', Flow: elsewhere("127.0.0.99:5060", ""), Raw: raw},
			{From: p1, Epoch: 1, Entry: 'p', Flow: tcp, Raw: raw},
			{From: p1, Epoch: 1, Entry: 'x', Flow: sipmsg.Flow{Transport: sipmsg.UDP, Remote: ph.addr}, Raw: raw},
		},
		"unsendable": {
			{From: p1, Epoch: 1, Entry: 'p', Flow: elsewhere("", "127.0.0.1:0"), Raw: raw},
			{From: p1, Epoch: 1, Entry: 'p', Flow: elsewhere("", "255.255.255.255:5060"), Raw: raw},
			{From: p1, Epoch: 1, Entry: 'p', Flow: elsewhere("", "224.0.1.75:5060"), Raw: raw},
			{From: p1, Epoch: 1, Entry: 'p', Flow: elsewhere("", "[::1]:5060"), Raw: raw},
			{From: p1, Epoch: 1, Entry: 'p', Flow: sipmsg.Flow{Transport: sipmsg.UDP, Local: flow.Local}, Raw: raw},
			{From: p1, Epoch: 1, Entry: 'p', Flow: flow},
			{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: make([]byte, maxPayload+1)},
		},
	} {
		t.Run("dropped: "+label, func(t *testing.T) {
			for i, s := range bad {
				send(s)
				eventually(t, fmt.Sprintf("drop %d is counted", i), func() bool { return f.Stats().Dropped[label] == uint64(i+1) })
			}
		})
	}
	// Nothing of that reached anybody, and the socket works on.
	send(link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: []byte(message("INFO sip:phone SIP/2.0"))})
	if m, _ := ph.receive(); m.Method() != "INFO" {
		t.Errorf("got %s", m.Method())
	}
	b.nothing(t)
	eventually(t, "three were sent and one relayed", func() bool { s := f.Stats(); return s.Sent == 3 && s.Relayed == 1 })
}

func TestOneUnsendableDatagramLosesNoOther(t *testing.T) {
	f := newFront(t, newCluster(t))
	ph := newPhone(t)
	s := f.entries['p'].sockets[0]
	const n = 3 * batch
	for i := range n {
		if i%3 == 0 { // the kernel refuses port 0
			if err := s.send([]byte("x"), netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.send([]byte(message("INFO sip:phone SIP/2.0", fmt.Sprint("Call-ID: ", i))), ph.addr); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		if m, _ := ph.receive(); m.CallID() != fmt.Sprint(i) {
			t.Fatalf("got %s as number %d", m.CallID(), i)
		}
	}
	eventually(t, "refusals are counted", func() bool { return f.Stats().Dropped["send-failed"] == n/3 })
}

func TestNewestClaimToAGroupCounts(t *testing.T) {
	f := newFront(t, newCluster(t))
	old, young := connect(t, f, p1, p2), connect(t, f, p1)
	ph := newPhone(t)
	at := func(group uint32, want *process, why string) {
		t.Helper()
		ph.send(f.Addr('p'), message("BYE sip:x@127.0.0.9 SIP/2.0", "Route: <sip:"+seal(t, token.Dialog, group)+"@127.0.0.1;lr>"))
		if s := want.next(t); s.To != group {
			t.Errorf("%s: got group %d", why, s.To)
		}
	}
	at(p1, young, "the process that came last")
	at(p2, old, "a group that only one hosts")
	f.SetGroups(old.near, []uint32{p1, p2})
	at(p1, young, "a claim repeated is no newer")
	f.SetGroups(young.near, []uint32{p1, p2})
	at(p2, young, "a group taken over")
	f.SetGroups(young.near, nil)
	at(p1, old, "a group given back")
	f.Attach(young.near, []uint32{p1})
	at(p1, young, "attached again")
	f.Detach(young.near)
	at(p1, old, "after the other has gone")
	f.SetGroups(young.near, []uint32{p1})
	at(p1, old, "a link that is not attached claims nothing")
	f.Detach(old.near)
	ph.send(f.Addr('p'), message("BYE sip:x@127.0.0.9 SIP/2.0", "Route: <sip:"+seal(t, token.Dialog, p1)+"@127.0.0.1;lr>"))
	eventually(t, "nobody is left", func() bool { return f.Stats().Dropped["unserved"] == 1 })
}

func TestFullLinkLosesDatagramsOnly(t *testing.T) {
	f := newFront(t, newCluster(t))
	near, far := net.Pipe() // nobody reads the far end
	c := link.New(near, nearEnd{f}, link.Options{QueueBytes: 2000})
	f.Attach(c, []uint32{p1})
	ph := newPhone(t)
	f.Bind(ph.flow(f, 'p'), p1, time.Now().Add(time.Hour))
	for range 20 {
		ph.send(f.Addr('p'), message("INVITE sip:bob@ims.test SIP/2.0"))
	}
	eventually(t, "all are handled", func() bool {
		s := f.Stats()
		return s.Delivered+s.Dropped["link-full"] == 20 && s.Dropped["link-full"] > 0
	})
	c.Close()
	far.Close()
	ph.send(f.Addr('p'), message("INVITE sip:bob@ims.test SIP/2.0"))
	eventually(t, "a closed link counts as not connected", func() bool { return f.Stats().Dropped["not-connected"] == 1 })
}

func TestGarbageFloodDoesNotDisturb(t *testing.T) {
	f := newFront(t, newCluster(t))
	w := connect(t, f, p1)
	ph, noise := newPhone(t), newPhone(t)
	f.Bind(ph.flow(f, 'p'), p1, time.Now().Add(time.Hour))
	rnd := rand.New(rand.NewPCG(1, 2))
	whole := []byte(message("INVITE sip:bob@ims.test SIP/2.0", "Route: <sip:x@127.0.0.1;lr>"))
	total := uint64(0)
	for round := range 100 {
		for range 100 {
			var b []byte
			switch rnd.IntN(3) {
			case 0: // random bytes
				b = make([]byte, rnd.IntN(1500))
				for i := range b {
					b[i] = byte(rnd.Uint32())
				}
			case 1: // a message cut anywhere
				b = whole[:rnd.IntN(len(whole))]
			case 2: // a message with changed bytes
				b = bytes.Clone(whole)
				for range 1 + rnd.IntN(4) {
					b[rnd.IntN(len(b))] = byte(rnd.Uint32())
				}
			}
			noise.send(f.Addr('p'), string(b))
		}
		total += 101
		ph.send(f.Addr('p'), message("INVITE sip:bob@ims.test SIP/2.0", fmt.Sprint("Call-ID: ", round)))
		for {
			s := w.next(t)
			if s.Flow.Remote != ph.addr {
				continue // some garbage is still good enough to be a worker's
			}
			if m, err := sipmsg.Parse(s.Raw); err != nil || m.CallID() != fmt.Sprint(round) {
				t.Fatalf("round %d: %v\n%s", round, err, s.Raw)
			}
			break
		}
	}
	eventually(t, "every datagram is accounted for", func() bool {
		s := f.Stats()
		n := s.KeepAlives + s.Delivered + sum(s.Dropped)
		for _, r := range s.Replied {
			n += r
		}
		return s.Received == total && n == total
	})
}

// TestJunkSourcesCostNoMemory has 100,000 sources in 127/8, each with a
// stranger's request, a guess at a user or junk. The first come over the wire,
// the others, to save time, only as what a reader has read.
func TestJunkSourcesCostNoMemory(t *testing.T) {
	const sources, real, window = 100_000, 2000, 100
	f := newFront(t, newCluster(t))
	w := connect(t, f, p1)
	c, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pc := ipv4.NewPacketConn(c)
	port := c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	to := net.UDPAddrFromAddrPort(f.Addr('p'))
	r := &receiver{Front: f, socket: f.entries['p'].sockets[0]}
	flood := func(from, until int) {
		r.now, r.state, r.route = time.Now(), f.cluster.State(), f.workers.routes.Load()
		delivered := 0
		for i := from; i < until; i++ {
			src := [4]byte{127, byte(1 + i>>16), byte(i >> 8), byte(i)}
			msg := fmt.Sprint("junk", i)
			switch i % 3 {
			case 0:
				msg = message("INVITE sip:bob@ims.test SIP/2.0", fmt.Sprint("Call-ID: ", i))
			case 1:
				msg = message("REGISTER sip:ims.test SIP/2.0", fmt.Sprintf("To: <sip:guess%d@ims.test>", i))
				delivered++
			}
			if i >= real {
				r.datagram([]byte(msg), netip.AddrPortFrom(netip.AddrFrom4(src), port))
			} else if _, err := pc.WriteTo([]byte(msg), &ipv4.ControlMessage{Src: src[:]}, to); err != nil {
				t.Fatal(err)
			}
			if (i+1)%window == 0 { // keep step with the front
				for ; delivered > 0; delivered-- {
					w.next(t)
				}
			}
		}
		eventually(t, "all datagrams are handled", func() bool { return f.Stats().Received == uint64(until) })
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	flood(0, 2*real) // buffers have their size afterwards
	before := heap()
	flood(2*real, sources)
	if grown := heap() - before; grown > 2<<20 {
		t.Errorf("the heap grew by %d kB", grown>>10)
	}
	s := f.Stats()
	if s.Flows != 0 || s.Calls != 0 || s.Reserving != 0 {
		t.Errorf("tables hold %d flows, %d calls, %d reservations", s.Flows, s.Calls, s.Reserving)
	}
	if s.Delivered == 0 || s.Replied[403] == 0 || s.Dropped["malformed"] == 0 {
		t.Errorf("not every sort of junk was there: %+v", s)
	}
}

func TestSocketsShareAnEntry(t *testing.T) {
	cl := newCluster(t)
	f, err := New(Config{Node: "a", Sockets: 4, Entries: []Entry{{'p', netip.MustParseAddrPort("127.0.0.1:0")}}}, cl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if n := len(f.entries['p'].sockets); n != 4 {
		t.Fatalf("%d sockets, want 4", n)
	}
	w := connect(t, f, p1)
	const phones = 16
	for range phones {
		ph := newPhone(t)
		f.Bind(ph.flow(f, 'p'), p1, time.Now().Add(time.Hour))
		for i := range 5 { // each phone's messages keep their order
			ph.send(f.Addr('p'), message("INVITE sip:bob@ims.test SIP/2.0", fmt.Sprint("Call-ID: ", i)))
		}
		for i := range 5 {
			s := w.next(t)
			if m, err := sipmsg.Parse(s.Raw); err != nil || m.CallID() != fmt.Sprint(i) || s.Flow.Remote != ph.addr {
				t.Fatalf("message %d: %v, from %s\n%s", i, err, s.Flow.Remote, s.Raw)
			}
		}
		if err := w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: ph.flow(f, 'p'), Raw: []byte(message("INFO sip:phone SIP/2.0"))}); err != nil {
			t.Fatal(err)
		}
		if _, from := ph.receive(); from != f.Addr('p') {
			t.Errorf("from %s, want %s", from, f.Addr('p'))
		}
	}
}

func TestNewRefuses(t *testing.T) {
	taken := newPhone(t).addr
	for name, entries := range map[string][]Entry{
		"an address in use":        {{'i', taken}},
		"one in use, also shared":  {{'p', taken}},
		"an unspecified address":   {{'p', netip.MustParseAddrPort("0.0.0.0:0")}},
		"no address":               {{'p', netip.AddrPort{}}},
		"a kind that nobody knows": {{'x', netip.MustParseAddrPort("127.0.0.1:0")}},
		"two addresses of a kind":  {{'p', netip.MustParseAddrPort("127.0.0.1:0")}, {'p', netip.MustParseAddrPort("127.0.0.1:0")}},
		"a foreign address":        {{'p', netip.MustParseAddrPort("192.0.2.1:5060")}},
	} {
		if f, err := New(Config{Node: "a", Entries: entries, Sockets: 2}, newCluster(t)); err == nil {
			t.Errorf("%s: no error", name)
			f.Close()
		}
	}
	// A front that shares its port among its own sockets shares it with no other.
	f := newFront(t, newCluster(t))
	if g, err := New(Config{Node: "b", Entries: []Entry{{'p', f.Addr('p')}}, Sockets: 2}, newCluster(t)); err == nil {
		t.Error("two fronts at one address: no error")
		g.Close()
	}
}

func TestFrontListensAtIPv6(t *testing.T) {
	f, err := New(Config{Node: "a", Entries: []Entry{{'p', netip.MustParseAddrPort("[::1]:0")}}, Sockets: 1}, newCluster(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	c, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(f.Addr('p')))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(message("INVITE sip:bob@ims.test SIP/2.0", "Via: SIP/2.0/UDP [2001:db8::1]:9;rport;branch=z9hG4bKx"))); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	m, err := sipmsg.Parse(buf[:n])
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("SIP/2.0/UDP [2001:db8::1]:9;rport=%d;branch=z9hG4bKx;received=::1", c.LocalAddr().(*net.UDPAddr).Port)
	if v, _ := m.Value(sipmsg.ViaHeader); m.Status() != 403 || v != want {
		t.Errorf("got %d, Via %s\nwant 403, Via %s", m.Status(), v, want)
	}
}

// BenchmarkRelay takes datagrams in, hands them to a worker process over a
// link, and sends its frames out: the way of every message of method one.
func BenchmarkRelay(b *testing.B) {
	f := newFront(b, newCluster(b))
	w := connect(b, f, p1)
	in, out := newPhone(b), newPhone(b)
	f.Bind(in.flow(f, 'p'), p1, time.Now().Add(time.Hour))
	msg := []byte(message("INVITE sip:bob@ims.test SIP/2.0", "Subject: "+strings.Repeat("x", 1000)))
	to := f.Addr('p')
	flow := out.flow(f, 'p')
	const window = 64 // datagrams under way
	buf := make([]byte, 4096)
	b.ReportAllocs()
	for done := 0; done < b.N; {
		n := min(window, b.N-done)
		for range n {
			if _, err := in.WriteToUDPAddrPort(msg, to); err != nil {
				b.Fatal(err)
			}
		}
		for range n {
			s := <-w.got
			if err := w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: s.Raw}); err != nil {
				b.Fatal(err)
			}
		}
		for range n {
			if _, _, err := out.ReadFromUDPAddrPort(buf); err != nil {
				b.Fatal(err)
			}
		}
		done += n
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}
