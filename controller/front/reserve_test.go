package front

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

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

func TestUsersOfOneFlowRegisterAtOnePCSCF(t *testing.T) {
	cl := newCluster(t)
	asked, release := make(chan string, 10), make(chan struct{})
	cl.reserve = func(_ context.Context, _ state.Kind, user string) (state.GroupID, error) {
		asked <- user
		<-release
		return p1, nil
	}
	f := newFront(t, cl)
	w := connect(t, f, p1, p2)
	register := func(ph *phone, user string) {
		ph.send(f.Addr('p'), message("REGISTER sip:ims.test SIP/2.0", "To: <sip:"+user+"@ims.test>"))
	}
	delivered := func(why string, group uint32) {
		t.Helper()
		if s := w.next(t); s.To != group {
			t.Errorf("%s: went to group %d, want %d", why, s.To, group)
		}
	}
	ph := newPhone(t)
	register(ph, "dora")
	<-asked
	register(ph, "alice") // who is assigned to p2
	register(ph, "erin")  // who is assigned to nobody
	w.nothing(t)
	close(release)
	for range 3 {
		delivered("a REGISTER while the first waits", p1)
	}
	register(ph, "alice")
	delivered("a REGISTER before the first is answered", p1)
	if len(asked) != 0 {
		t.Errorf("asked for %q, too", <-asked)
	}

	other := newPhone(t)
	register(other, "alice")
	delivered("alice over a flow of her own", p2)
	register(other, "dora")
	delivered("dora over alice's flow", p2)
	f.Bind(other.flow(f, 'p'), p1, time.Now().Add(time.Hour))
	register(other, "alice")
	delivered("a REGISTER over a bound flow", p1)
}

func TestAClaimOfAWorkerThatIsGoneDoesNotCount(t *testing.T) {
	cl := newCluster(t)
	cl.reserve = func(context.Context, state.Kind, string) (state.GroupID, error) { return p1, nil }
	f := newFront(t, cl)
	gone, stays := connect(t, f, p1), connect(t, f, p2)
	ph := newPhone(t)
	ph.send(f.Addr('p'), message("REGISTER sip:ims.test SIP/2.0", "To: <sip:dora@ims.test>"))
	if s := gone.next(t); s.To != p1 {
		t.Errorf("went to group %d, want %d", s.To, p1)
	}
	f.Detach(gone.near)
	ph.send(f.Addr('p'), message("REGISTER sip:ims.test SIP/2.0", "To: <sip:alice@ims.test>"))
	if s := stays.next(t); s.To != p2 {
		t.Errorf("went to group %d, want %d", s.To, p2)
	}
}

func TestWaitingDatagramsDoNotShareTheReadersBuffer(t *testing.T) {
	cl := newCluster(t)
	hold, asked := make(chan struct{}), make(chan string, 1)
	cl.reserve = func(_ context.Context, _ state.Kind, user string) (state.GroupID, error) {
		<-hold
		asked <- user
		return p1, nil
	}
	f := newFront(t, cl)
	w := connect(t, f, p1)
	r := &receiver{Front: f, at: f.entries['p'][0], socket: f.entries['p'][0].sockets[0], now: time.Now(), state: cl.State(), route: f.workers.routes.Load()}
	msg := message("REGISTER sip:ims.test SIP/2.0", "To: <sip:dora@ims.test>")
	raw := []byte(msg)
	r.datagram(raw, netip.MustParseAddrPort("127.0.0.1:40000"))
	for i := range raw {
		raw[i] = '#'
	}
	close(hold)
	if u := <-asked; u != "sip:dora@ims.test" {
		t.Errorf("reservation for %q", u)
	}
	if s := w.next(t); string(s.Raw) != msg {
		t.Errorf("delivered\n%s", s.Raw)
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
		f.count.lose(f.reserve(state.PCSCF, fmt.Sprint("sip:user", i), link.SIP{Raw: []byte("x")}))
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
		f.count.lose(f.reserve(state.PCSCF, fmt.Sprint("sip:user", i), link.SIP{Raw: raw}))
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
