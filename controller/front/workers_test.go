package front

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"bellwether/controller/link"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

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
	tls := flow
	tls.Transport = sipmsg.TLS
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
			{From: p1, Epoch: 1, Entry: 'p', Flow: tls, Raw: raw},
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
