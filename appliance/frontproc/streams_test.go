package frontproc

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/api"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// dial opens a connection to a SIP port and sends a REGISTER over it, which any
// P-CSCF takes.
func dial(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_, err = io.WriteString(c, "REGISTER sip:ims.test SIP/2.0\r\nVia: SIP/2.0/TCP "+c.LocalAddr().String()+";branch=z9hG4bK1\r\nMax-Forwards: 70\r\n"+
		"From: <sip:x@ims.test>;tag=1\r\nTo: <sip:x@ims.test>\r\nCall-ID: c\r\nCSeq: 1 REGISTER\r\nContent-Length: 0\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// take makes a worker keep the frames that it gets.
func (w *worker) take() <-chan link.SIP {
	got := make(chan link.SIP, 16)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sip = func(s *link.SIP) {
		if !strings.HasPrefix(string(s.Raw), "OPTIONS ") { // of the probe
			got <- *s
		}
	}
	return got
}

// TestAWorkerHearsThatAConnectionEnded, also of one that a front process had
// before it was restarted.
func TestAWorkerHearsThatAConnectionEnded(t *testing.T) {
	n := start(t, Options{})
	entry := netip.AddrPortFrom(n.cfg.SIP.Address, n.cfg.SIP.PCSCF)
	w, groups := n.serving()
	bind := func(w *worker, flow sipmsg.Flow) {
		w.tell(workerlink.Bind, workerlink.BindMsg{Flow: flow, Group: groups[state.PCSCF], Until: time.Now().Add(time.Hour).UnixMilli()})
	}
	wait := func(w *worker, want sipmsg.Flow) {
		t.Helper()
		select {
		case got := <-w.gone:
			if got != want {
				t.Errorf("gone is %v, want %v", got, want)
			}
		case <-time.After(within):
			t.Errorf("the worker does not hear that %v is gone", want)
		}
	}
	got := w.take()
	first := dial(t, entry)
	a := <-got
	bind(w, a.Flow)
	second := dial(t, entry)
	b := <-got
	bind(w, b.Flow)
	first.Close()
	wait(w, a.Flow)

	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(second); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	n.begin(Options{})
	w = n.local()
	w.hello("n1")
	w.tell(workerlink.Groups, workerlink.GroupsMsg{Groups: []uint32{groups[state.PCSCF], groups[state.ICSCF], groups[state.SCSCF]}})
	w.tell(workerlink.Bind, workerlink.BindMsg{Flow: b.Flow, Group: groups[state.PCSCF], Until: time.Now().Add(time.Hour).UnixMilli()})
	wait(w, b.Flow)
}

func TestANodeOfBothAddressFamilies(t *testing.T) {
	n := prepare(t)
	n.cfg.SIP.Address6 = netip.IPv6Loopback()
	var free []net.Listener
	for _, port := range []*uint16{&n.cfg.SIP.PCSCF, &n.cfg.SIP.ICSCF, &n.cfg.SIP.SCSCF} {
		// There is only one such address on a machine.
		l, err := net.Listen("tcp", "[::1]:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // where the test ends early
		free = append(free, l)
		*port = l.Addr().(*net.TCPAddr).AddrPort().Port()
	}
	for _, l := range free {
		l.Close()
	}
	n.begin(Options{})
	w, _ := n.serving()
	got := w.take()
	for _, a := range []netip.Addr{n.cfg.SIP.Address, n.cfg.SIP.Address6} {
		entry := netip.AddrPortFrom(a, n.cfg.SIP.PCSCF)
		dial(t, entry)
		select {
		case s := <-got:
			if s.Flow.Local != entry || s.Flow.Transport != sipmsg.TCP {
				t.Errorf("over %v", s.Flow)
			}
		case <-time.After(within):
			t.Fatalf("nothing comes by %s", entry)
		}
	}
	n.status("both addresses are shown", func(st api.Status) bool {
		return len(st.Nodes) == 1 && st.Nodes[0].Service == n.cfg.SIP.Address.String() && st.Nodes[0].Service6 == "::1"
	})
	res, err := http.Get(fmt.Sprintf("http://%s/metrics", n.cfg.Metrics.Listen))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`bellwether_front_connections{state="unbound"} 2`, `bellwether_front_connections_accepted_total 2`, `bellwether_front_connections_ended_total{cause="slow-message"} 0`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the metrics do not have %s", want)
		}
	}
}
