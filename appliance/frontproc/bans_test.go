package frontproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/config"
	"bellwether/controller/api"
	"bellwether/controller/guard"
)

// knock sends an OPTIONS for a user from an address, which a front without
// workers cannot serve but counts.
func (n *node) knock(from netip.Addr, request string) {
	n.t.Helper()
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: from.AsSlice()}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.cfg.SIP.Address, 5060)))
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(request)); err != nil {
		n.t.Fatal(err)
	}
}

func TestBansOfOperators(t *testing.T) {
	n := start(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	enemy := n.host(9)
	own := netip.PrefixFrom(n.cfg.SIP.Address, 32)
	net24, err := enemy.Prefix(24)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		b    api.NewBan
		want api.Code
	}{
		{"everybody", api.NewBan{Prefix: netip.MustParsePrefix("0.0.0.0/0")}, api.Conflict},
		{"everybody of IPv6", api.NewBan{Prefix: netip.MustParsePrefix("::/0")}, api.Conflict},
		{"half of everybody", api.NewBan{Prefix: netip.MustParsePrefix("128.0.0.0/1")}, api.Conflict},
		{"everybody allowed", api.NewBan{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Allow: true}, api.Conflict},
		{"the node itself", api.NewBan{Prefix: own}, api.Conflict},
		{"its network", api.NewBan{Prefix: net24}, api.Conflict},
		{"its network allowed", api.NewBan{Prefix: net24, Allow: true}, ""},
		{"nobody", api.NewBan{}, api.Invalid},
		{"one address", api.NewBan{Prefix: netip.PrefixFrom(enemy, 32), Reason: "floods", Seconds: 3600}, ""},
	} {
		_, err := n.admin.AddBan(ctx, tt.b)
		var e *api.Error
		if errors.As(err, &e); (err == nil) != (tt.want == "") || e != nil && e.Code != tt.want {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, err := n.admin.RemoveBan(ctx, net24); err != nil {
		t.Error(err)
	}
	eventually(t, "the ban is hit", func() bool {
		n.knock(enemy, "junk")
		l, err := n.admin.Bans(ctx)
		if err != nil || len(l.Bans) != 1 || len(l.Silent) != 0 {
			t.Fatalf("%+v, %v", l, err)
		}
		b := l.Bans[0]
		return b.Hits > 0 && b.Reason == "floods" && b.Until.Sub(b.Since) == time.Hour && !b.Automatic
	}, func() any { l, err := n.admin.Bans(ctx); return fmt.Sprint(l, err) })
	if s, err := n.admin.Status(ctx); err != nil || s.Refused["banned"] == 0 || s.Bans != 0 {
		t.Errorf("status: %+v, %v", s.Refused, err)
	}
	_, err = n.admin.RemoveBan(ctx, netip.PrefixFrom(n.host(8), 32))
	if err == nil || !strings.Contains(err.Error(), "neither banned nor allowed; list what is") {
		t.Errorf("removed what was not there: %v", err)
	}
	if log := n.log.String(); !strings.Contains(log, "audit: ban added") || !strings.Contains(log, fmt.Sprint(enemy)) || !strings.Contains(log, "audit: ban removed") {
		t.Errorf("the log says nothing of bans:\n%s", log)
	}
}

func TestAFlooderIsBannedUntilItIsLifted(t *testing.T) {
	n := start(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	enemy := n.host(9)
	bans := func() []api.Ban {
		l, err := n.admin.Bans(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return l.Bans
	}
	eventually(t, "the flooder is banned", func() bool {
		for range 500 {
			n.knock(enemy, "junk")
		}
		return len(bans()) == 1
	}, func() any { return bans() })
	b := bans()[0]
	if b.Prefix.Addr() != enemy || !b.Automatic || b.Node != "n1" || b.Reason != "failure-limited" || b.Until.Sub(b.Since).Round(time.Second) != time.Minute {
		t.Errorf("banned %+v", b)
	}
	if s, err := n.admin.Status(ctx); err != nil || s.Bans != 1 || s.Refused["malformed"] == 0 || s.Refused["failure-limited"] == 0 {
		t.Errorf("status: %+v, %d, %v", s.Refused, s.Bans, err)
	}
	resp, err := http.Get("http://" + n.cfg.Metrics.Listen.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`bellwether_front_refused_total{reason="failure-limited"}`, "bellwether_front_bans 1"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	if u, err := n.admin.RemoveBan(ctx, netip.PrefixFrom(enemy, 32)); err != nil || u.Removed || u.Automatic != 1 || len(bans()) != 0 {
		t.Errorf("lifted %+v, %v", u, err)
	}
}

func TestTheDefaultLimitsAreTheGuards(t *testing.T) {
	const minimal = "node: {name: n1}\ncluster: {address: 10.0.0.1:7400, controllers: [{name: n1, address: 10.0.0.1:7400}]}\n" +
		"sip: {domain: example.test, address: 10.0.0.1}\n"
	cfg, err := config.Parse("n1.yaml", []byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := limits(cfg.Flood), guard.Default(); got != want {
		t.Errorf("limits are %+v, want %+v", got, want)
	}
}
