package front

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bellwether/controller/guard"
	"bellwether/controller/link"
	"bellwether/cscf/sipmsg"
)

// TestHalfOpenConnectionsAreBounded opens 10,000 connections that say nothing,
// from 500 addresses. A phone goes on meanwhile, and another one still gets in.
func TestHalfOpenConnectionsAreBounded(t *testing.T) {
	const n, unbound = 10_000, 1000
	f, _ := newStreamFront(t, Streams{Unbound: unbound, PerSource: 100})
	f.guard.SetLimits(guard.Config{})
	w := connect(t, f, p1)
	phone, flow := bound(t, f, w)
	var before int64
	fds := make([]int, 0, n)
	closed := 0
	defer func() {
		for _, fd := range fds[closed:] {
			unix.Close(fd)
		}
	}()
	for i := range n {
		fds = append(fds, rawDial(t, [4]byte{127, 0, 2 + byte(i%2), byte(i / 2 % 250)}, f.Addr('p')))
		if i == unbound {
			eventually(t, "they are there", func() bool { return f.Stats().Accepted > unbound })
			before = memory()
		}
		if i%500 == 0 {
			eventually(t, "they are there", func() bool { return f.Stats().Accepted == uint64(i+2) })
			for ; closed < i-2*unbound; closed++ { // the front has closed these
				unix.Close(fds[closed])
			}
			phone.write(message("MESSAGE sip:bob@ims.test SIP/2.0", fmt.Sprint("Call-ID: ", i)))
			if s := w.next(t); s.Flow != flow || !bytes.Contains(s.Raw, fmt.Appendf(nil, "Call-ID: %d\r", i)) {
				t.Fatalf("after %d: over %v\n%s", i, s.Flow, s.Raw)
			}
		}
	}
	eventually(t, "all came", func() bool { return f.Stats().Accepted == n+1 })
	s := f.Stats()
	if s.Connections != unbound+1 || s.Unbound != unbound || s.Ended["evicted"] != n-unbound {
		t.Errorf("%+v", s)
	}
	if grown := memory() - before; grown > 2<<20 {
		t.Errorf("memory grew by %d kB", grown>>10)
	}
	bound(t, f, w)
}

// TestConnectionsThatBreakOffAreForgotten closes connections in bulk without a
// word, in the middle of messages.
func TestConnectionsThatBreakOffAreForgotten(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	f.guard.SetLimits(guard.Config{})
	w := connect(t, f, p1)
	phone, flow := bound(t, f, w)
	half := message("INVITE sip:bob@ims.test SIP/2.0", "Content-Length: 60000") + strings.Repeat("x", 30000)
	const n = 1000
	for i := range n {
		c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(f.Addr('p')))
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			_, _ = c.Write([]byte(half))
		}
		if i%2 == 0 {
			_ = c.SetLinger(0) // reset
		}
		c.Close()
	}
	eventually(t, "all are forgotten", func() bool {
		s := f.Stats()
		return s.Accepted == n+1 && s.Connections == 1 && s.Held == 0
	})
	phone.write(message("MESSAGE sip:bob@ims.test SIP/2.0"))
	if s := w.next(t); s.Flow != flow {
		t.Errorf("over %v", s.Flow)
	}
}

// TestIncompleteMessagesAreBounded: what many slow senders make the front hold
// has a limit, and who sends whole messages does not notice.
func TestIncompleteMessagesAreBounded(t *testing.T) {
	f, _ := newStreamFront(t, Streams{})
	f.guard.SetLimits(guard.Config{})
	w := connect(t, f, p1)
	phone, flow := bound(t, f, w)
	half := []byte(message("INVITE sip:bob@ims.test SIP/2.0", "Content-Length: 60000") + strings.Repeat("x", 59_000))
	for range 2 * maxHeld / len(half) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 7)}}
		c, err := d.Dial("tcp", f.Addr('p').String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(half) // the front may have closed it
		if held := f.Stats().Held; held > maxHeld+maxHeld/8 {
			t.Fatalf("%d bytes are held", held)
		}
	}
	eventually(t, "some were closed", func() bool { return f.Stats().Ended["held-full"] > 0 })
	phone.write(message("MESSAGE sip:bob@ims.test SIP/2.0"))
	if s := w.next(t); s.Flow != flow {
		t.Errorf("over %v", s.Flow)
	}
}

func TestBothAddressFamiliesOfAnEntry(t *testing.T) {
	f, gone := newStreamFront(t, Streams{}, "127.0.0.1:0", "[::1]:0")
	w := connect(t, f, p1)
	addrs := f.Addrs('p')
	if len(addrs) != 2 || addrs[0] != f.Addr('p') || addrs[1].Addr() != netip.IPv6Loopback() {
		t.Fatalf("the P entry is %v", addrs)
	}
	for _, at := range addrs {
		c := dialFront(t, at)
		c.write(message("INVITE sip:bob@ims.test SIP/2.0", "Via: SIP/2.0/TCP [2001:DB8::1]:9;rport;branch=z9hG4bKx"))
		want := fmt.Sprintf("SIP/2.0/TCP [2001:DB8::1]:9;rport=%d;branch=z9hG4bKx;received=%s", c.addr().Port(), at.Addr())
		if v, _ := c.message().Value(sipmsg.ViaHeader); v != want {
			t.Errorf("Via: %s, want %s", v, want)
		}
		c.write(message("REGISTER sip:ims.test SIP/2.0", "To: <sip:stranger@ims.test>"))
		s := w.next(t)
		if s.Flow.Local != at || s.Flow.Remote != c.addr() {
			t.Errorf("over %v", s.Flow)
		}
		f.Bind(s.Flow, p1, time.Now().Add(time.Hour))
		c.Close()
		if got := <-gone; got != s.Flow {
			t.Errorf("gone is %v, want %v", got, s.Flow)
		}
	}
	// What names no local address leaves by the one of the remote's family.
	for _, ip := range []string{"127.0.0.1", "::1"} {
		l := peerAt(t, net.JoinHostPort(ip, "0"))
		flow := sipmsg.Flow{Node: "a", Transport: sipmsg.TCP, Remote: l.Addr().(*net.TCPAddr).AddrPort()}
		if err := w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: []byte(message("INVITE sip:peer SIP/2.0"))}); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); from != netip.MustParseAddr(ip) {
			t.Errorf("from %s to %s", from, ip)
		}
		c.Close()
	}
}

// TestLargestDatagramsOfIPv6 takes and sends what only fragments can carry.
func TestLargestDatagramsOfIPv6(t *testing.T) {
	f, _ := newStreamFront(t, Streams{}, "[::1]:0")
	w := connect(t, f, p1)
	c, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	flow := sipmsg.Flow{Node: "a", Transport: sipmsg.UDP, Local: f.Addr('p'), Remote: c.LocalAddr().(*net.UDPAddr).AddrPort()}
	f.Bind(flow, p1, time.Now().Add(time.Hour))
	empty := message("INVITE sip:bob@ims.test SIP/2.0", "Content-Length: 00000")
	body := maxPayload6 - len(empty)
	msg := message("INVITE sip:bob@ims.test SIP/2.0", fmt.Sprintf("Content-Length: %05d", body)) + strings.Repeat("x", body)
	if _, err := c.WriteToUDPAddrPort([]byte(msg), f.Addr('p')); err != nil {
		t.Fatal(err)
	}
	s := w.next(t)
	if string(s.Raw) != msg {
		t.Errorf("%d bytes came, %d were sent", len(s.Raw), len(msg))
	}
	if err := w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: s.Raw}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != msg {
		t.Errorf("%d bytes came back, %v", n, err)
	}
}

func TestABanEndsTheConnectionsThatThereAre(t *testing.T) {
	f, gone := newStreamFront(t, Streams{})
	w := connect(t, f, p1)
	c, flow := bound(t, f, w)
	f.guard.SetRules([]guard.Rule{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}, nil)
	c.write(message("MESSAGE sip:ims.test SIP/2.0", "To: <sip:stranger@ims.test>"))
	c.closed()
	select {
	case got := <-gone:
		if got != flow {
			t.Errorf("gone is %v, want %v", got, flow)
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody hears that the flow is gone")
	}
	if n := f.Stats().Ended["refused"]; n != 1 {
		t.Errorf("%d were refused", n)
	}
}
