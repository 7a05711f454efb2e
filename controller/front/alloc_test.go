//go:build !race

// The race detector makes pools and lookups allocate.

package front

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"bellwether/controller/guard"
	"bellwether/controller/link"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

func TestPassingADatagramOnAllocatesNothing(t *testing.T) {
	f := newFront(t, newCluster(t))
	f.guard.SetLimits(guard.Config{})
	near, far := net.Pipe()
	c := link.New(near, nearEnd{f}, link.Options{})
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run() })
	wg.Go(func() { _, _ = io.Copy(io.Discard, far) })
	defer wg.Wait()
	defer far.Close()
	defer c.Close()
	f.Attach(c, []uint32{p1})
	remote := netip.MustParseAddrPort("127.0.0.1:40000")
	r := &receiver{Front: f, at: f.entries['p'][0], socket: f.entries['p'][0].sockets[0], now: time.Now(), state: f.cluster.State(), route: f.workers.routes.Load()}
	f.Bind(sipmsg.Flow{Transport: sipmsg.UDP, Local: f.Addr('p'), Remote: remote}, p1, r.now.Add(time.Hour))
	for name, msg := range map[string]string{
		"on a known flow":    message("INVITE sip:bob@ims.test SIP/2.0"),
		"with a token":       message("BYE sip:x@127.0.0.9 SIP/2.0", "Route: <sip:"+seal(t, token.Dialog, p1)+"@127.0.0.1;lr>"),
		"that is a response": message("SIP/2.0 200 OK", "Via: SIP/2.0/UDP 127.0.0.1;branch="+token.Branch(seal(t, token.Via, p1), "1")),
	} {
		raw := []byte(msg)
		before := f.Stats().Delivered
		// Less than one on average: the link's buffers still grow.
		if n := testing.AllocsPerRun(2000, func() {
			r.now = r.now.Add(100 * time.Millisecond) // this is no flood
			r.datagram(raw, remote)
		}); n >= 1 {
			t.Errorf("a datagram %s: %v allocations", name, n)
		}
		if f.Stats().Delivered == before {
			t.Errorf("a datagram %s is not delivered: %v", name, f.Stats().Dropped)
		}
	}
}
