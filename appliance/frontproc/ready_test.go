package frontproc

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"bellwether/appliance/localcluster/loopback"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// responder answers each datagram at a P-CSCF port with a status line and what
// the request had; "" is no answer.
func responder(t *testing.T) (entry netip.AddrPort, say func(line string)) {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback.Network()(1), 5060)))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	answer := ""
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if m, err := sipmsg.Parse(buf[:n]); err != nil || m.Method() != "OPTIONS" {
				t.Errorf("the probe is %q: %v", buf[:n], err)
			}
			mu.Lock()
			if answer != "" {
				_, rest, _ := strings.Cut(string(buf[:n]), "\r\n")
				c.WriteToUDPAddrPort([]byte(answer+"\r\n"+rest), from)
			}
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	return c.LocalAddr().(*net.UDPAddr).AddrPort(), func(line string) {
		mu.Lock()
		defer mu.Unlock()
		answer = line
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	entry, say := responder(t)
	for _, tt := range []struct{ answer, says string }{
		{"SIP/2.0 200 OK", ""},
		{"SIP/2.0 503 Service Unavailable", `answered "SIP/2.0 503 Service Unavailable"`},
		{"nonsense", `answered "nonsense"`},
		{"", "no answer"},
	} {
		say(tt.answer)
		switch err := probe(t.Context(), entry, 1); {
		case tt.says == "" && err != nil, tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("%q: %v", tt.answer, err)
		}
	}
}

func TestReadinessGoesWithTheAnswers(t *testing.T) {
	t.Parallel()
	entry, say := responder(t)
	p := &prober{entries: []netip.AddrPort{entry}}
	if err := p.ready(); err == nil {
		t.Error("ready before the first probe")
	}
	say("SIP/2.0 503 Not Yet")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.run(ctx) }()
	eventually(t, "not ready for a reason", func() bool { err := p.ready(); return err != nil && strings.Contains(err.Error(), "Not Yet") }, func() any { return p.ready() })
	say("SIP/2.0 200 OK")
	eventually(t, "ready", func() bool { return p.ready() == nil }, func() any { return p.ready() })
	say("")
	p.mu.Lock()
	p.last = p.last.Add(-probeFresh)
	p.mu.Unlock()
	eventually(t, "not ready any more", func() bool { return p.ready() != nil }, func() any { return p.ready() })
	// In the middle of a probe that nobody answers.
	began := time.Now()
	cancel()
	<-done
	if took := time.Since(began); took > probeWithin/2 {
		t.Errorf("it took %v to stop", took)
	}
}

func TestHealthAndMetrics(t *testing.T) {
	n := start(t, Options{})
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + n.cfg.Metrics.Listen.String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	if code, body := get("/livez"); code != 200 {
		t.Errorf("livez: %d %s", code, body)
	}
	if code, body := get("/readyz"); code != 503 {
		t.Errorf("readyz without any worker: %d %s", code, body)
	}
	w, groups := n.serving()
	w.mu.Lock()
	w.sip = func(s *link.SIP) {
		m, err := sipmsg.Parse(s.Raw)
		if err != nil {
			t.Error(err)
			return
		}
		_ = w.c.SendSIP(&link.SIP{From: groups[state.PCSCF], Epoch: 1, Entry: 'p', Flow: s.Flow, Raw: m.Response(200, "", "t").Bytes()})
	}
	w.mu.Unlock()
	eventually(t, "SIP is answered", func() bool { code, _ := get("/readyz"); return code == 200 }, func() any { _, b := get("/readyz"); return b })
	_, body := get("/metrics")
	for _, line := range []string{
		`bellwether_worker_connected{kind="p-cscf",node="n1",worker="p1"} 1`,
		`bellwether_leader 1`, `bellwether_quorum 1`, `bellwether_ready 1`, `bellwether_front_received_total`,
		`bellwether_users{kind="s-cscf",node="n1",worker="s1"} 0`,
	} {
		if !strings.Contains(body, line) {
			t.Errorf("no %s in the metrics:\n%s", line, body)
		}
	}
}
