package front

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bellwether/controller/guard"
	"bellwether/controller/link"
	"bellwether/cscf/sipmsg"
)

func TestSocketQueueIsBounded(t *testing.T) {
	l, err := listenUDP(Entry{'p', netip.MustParseAddrPort("127.0.0.1:0")}, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	raw, to, n := make([]byte, maxPayload), netip.MustParseAddrPort("127.0.0.1:9"), 0
	for ; l.toward(to).send(raw, to) == nil; n++ { // nobody writes
		if n > queueBytes/maxPayload {
			t.Fatalf("%d bytes wait", n*maxPayload)
		}
	}
	if n != queueBytes/maxPayload {
		t.Errorf("%d datagrams wait, want %d", n, queueBytes/maxPayload)
	}
}

func TestOneUnsendableDatagramLosesNoOther(t *testing.T) {
	f := newFront(t, newCluster(t))
	ph := newPhone(t)
	s := f.entries['p'][0].sockets[0]
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

func TestSocketsShareAnEntry(t *testing.T) {
	cl := newCluster(t)
	f, err := New(Config{Node: "a", Sockets: 4, Entries: []Entry{{'p', netip.MustParseAddrPort("127.0.0.1:0")}}}, cl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if n := len(f.entries['p'][0].sockets); n != 4 {
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
	f.guard.SetLimits(guard.Config{})
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
