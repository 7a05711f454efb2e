package front

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bellwether/controller/guard"
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
	known, stranger, other := newPhone(t), newPhone(t), newPhone(t)
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
		{"REGISTER of a user without a group", 'p', other, message("REGISTER sip:ims.test SIP/2.0", dora), []uint32{p1}, 0, ""},
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
		{"REGISTER at the S-CSCF", 's', stranger, message("REGISTER sip:ims.test SIP/2.0", alice), nil, 403, ""},
		{"REGISTER at the S-CSCF without a group", 's', stranger, message("REGISTER sip:ims.test SIP/2.0", dora), nil, 403, ""},
		{"request at the S-CSCF", 's', stranger, message("INVITE sip:alice@ims.test SIP/2.0"), nil, 403, ""},
		{"request at the S-CSCF for nobody", 's', stranger, message("INVITE sip:bob@ims.test SIP/2.0"), nil, 403, ""},
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

func TestAnICSCFIsRememberedAsLongAsItsCallMayRing(t *testing.T) {
	f := newFront(t, newCluster(t))
	f.guard.SetLimits(guard.Config{}) // the clock below is set back
	w := connect(t, f, i1, i2)
	r := &receiver{Front: f, at: f.entries['i'][0], socket: f.entries['i'][0].sockets[0], state: f.cluster.State(), route: f.workers.routes.Load()}
	remote := netip.MustParseAddrPort("127.0.0.1:40000")
	begin := time.Now()
	at := func(after time.Duration, start string) uint32 {
		r.now = begin.Add(after)
		r.datagram([]byte(message(start)), remote)
		return w.next(t).To
	}
	for name, tc := range map[string]struct {
		first, then string
		kept        time.Duration
	}{
		"an INVITE until Timer C":         {"INVITE sip:bob@ims.test SIP/2.0", "CANCEL sip:bob@ims.test SIP/2.0", inviteKept},
		"another request for 64 times T1": {"MESSAGE sip:bob@ims.test SIP/2.0", "MESSAGE sip:bob@ims.test SIP/2.0", callKept},
	} {
		t.Run(name, func(t *testing.T) {
			f.Load(i1, 0)
			f.Load(i2, 100)
			if g := at(0, tc.first); g != i1 {
				t.Fatalf("went to %d, want %d", g, i1)
			}
			f.Load(i1, 1000)
			if g := at(tc.kept-time.Second, tc.then); g != i1 {
				t.Errorf("just before its time: %d, want %d", g, i1)
			}
			// That was a use, from which the time counts anew.
			if g := at(tc.kept+callKept, tc.then); g != i2 {
				t.Errorf("after its time: %d, want %d", g, i2)
			}
			f.calls.remove(r.callKey("call-1"))
		})
	}
}
