package front

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"bellwether/controller/link"
	"bellwether/cscf/sipmsg"
)

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
		n := s.KeepAlives + s.Delivered + sum(s.Dropped) + sum(s.Refused)
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
	r := &receiver{Front: f, at: f.entries['p'][0], socket: f.entries['p'][0].sockets[0]}
	taken := uint64(0)
	flood := func(from, until int) {
		r.now, r.state, r.route = time.Now(), f.cluster.State(), f.workers.routes.Load()
		for i := from; i < until; i++ {
			src := [4]byte{127, byte(1 + i>>16), byte(i >> 8), byte(i)}
			msg := fmt.Sprint("junk", i)
			switch i % 3 {
			case 0:
				msg = message("INVITE sip:bob@ims.test SIP/2.0", fmt.Sprint("Call-ID: ", i))
			case 1:
				msg = message("REGISTER sip:ims.test SIP/2.0", fmt.Sprintf("To: <sip:guess%d@ims.test>", i))
			}
			if i >= real {
				r.datagram([]byte(msg), netip.AddrPortFrom(netip.AddrFrom4(src), port))
			} else if _, err := pc.WriteTo([]byte(msg), &ipv4.ControlMessage{Src: src[:]}, to); err != nil {
				t.Fatal(err)
			}
			if (i+1)%window == 0 { // keep step with the front
				eventually(t, "what was sent is handled", func() bool { return f.Stats().Received == uint64(i+1) })
				for ; taken < f.Stats().Delivered; taken++ {
					w.next(t)
				}
			}
		}
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
	if s.Delivered == 0 || s.Replied[403] == 0 || s.Dropped["malformed"] == 0 || s.Refused["stranger-limited"] == 0 {
		t.Errorf("not every sort of junk was there: %+v", s)
	}
}

// TestPhonesThatANatForgotAreNotKeptOut: thousands behind one address come from
// new ports, and send what only registered phones may, before they register
// again. Guesses at passwords from there are another matter.
func TestPhonesThatANatForgotAreNotKeptOut(t *testing.T) {
	const phones = 1000
	f := newFront(t, newCluster(t))
	w := connect(t, f, p1, p2)
	at := f.entries['p'][0]
	r := &receiver{Front: f, at: at, socket: at.sockets[0]}
	r.refresh()
	remote := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("127.9.9.9"), uint16(20000+i))
	}
	from := func(i int) sipmsg.Flow {
		return sipmsg.Flow{Node: "a", Transport: sipmsg.UDP, Local: at.addr, Remote: remote(i)}
	}
	refused := func(i int, method string) {
		f.FromWorker(&link.SIP{From: p1, Epoch: 1 << 30, Entry: 'p', Flow: from(i), Raw: []byte(message("SIP/2.0 403 Forbidden", "CSeq: 1 "+method))})
	}
	stun := "\x00\x01\x00\x00\x21\x12\xa4\x42abcdefghijkl"
	limited := func() int {
		s := f.Stats()
		return int(s.Refused["failure-limited"] + s.Refused["auto-banned"])
	}
	for i := range phones {
		r.datagram([]byte(stun), remote(i))
		r.datagram([]byte(message("SUBSCRIBE sip:bob@ims.test SIP/2.0")), remote(i))
		refused(i, "SUBSCRIBE")
	}
	if s := f.Stats(); limited() > 0 || s.KeepAlives != phones || s.Dropped["malformed"] > 0 || s.Replied[403] == 0 {
		t.Errorf("%+v", s)
	}
	r.datagram([]byte(message("REGISTER sip:ims.test SIP/2.0", "To: <sip:alice@ims.test>")), remote(0))
	w.next(t)
	for i := range phones {
		refused(i, "REGISTER")
	}
	if limited() < phones/2 {
		t.Errorf("of %d guesses %d were limited", phones, limited())
	}
}
