package phone

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emiago/sipgo/sip"

	"bellwether/cscf/sipmsg"
)

func TestRegistrationWithDigest(t *testing.T) {
	tests := []struct {
		name       string
		algorithms []string
		password   string
		status     int // of the refusal; 0: registered
	}{
		{"MD5", []string{"MD5"}, "", 0},
		{"SHA-256", []string{"SHA-256"}, "", 0},
		{"the stronger of two", []string{"MD5", "SHA-256"}, "", 0},
		{"one that is not known beside one that is", []string{"AKAv1-MD5", "MD5"}, "", 0},
		{"none that is known", []string{"SHA-512"}, "", 401},
		{"a wrong password", []string{"MD5"}, "wrong", 403},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				c := newCore(t, n.listen)
				c.algorithms = tt.algorithms
				p := c.phone(t, n.listen, "alice", func(c *Config) {
					if tt.password != "" {
						c.Password = tt.password
					}
				})
				err := p.Register(t.Context())
				var refused *StatusError
				switch {
				case tt.status == 0 && err != nil:
					t.Error(err)
				case tt.status != 0 && (!errors.As(err, &refused) || refused.Status != tt.status):
					t.Errorf("got %v, want status %d", err, tt.status)
				}
				if p.Registered() != (tt.status == 0) {
					t.Errorf("registered: %v", p.Registered())
				}
				if tt.status == 0 && !slices.Equal(p.Associated(), []string{"sip:alice@ims.test", "tel:+4930alice"}) {
					t.Errorf("associated identities: %v", p.Associated())
				}
			})
		})
	}
}

func TestRegistrationIsRefreshedUntilItIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := newCore(t, n.listen)
		p := c.phone(t, n.listen, "alice", func(c *Config) { c.Expires = 100 * time.Second })
		if err := p.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(30 * time.Second)
			if !p.Registered() {
				t.Fatal("the registration ran out")
			}
		}
		// Two for the challenge, then one with the same nonce every 50 s.
		if got := c.count("p REGISTER"); got < 7 || got > 8 {
			t.Errorf("%d REGISTER in 300 s, want 7 or 8", got)
		}
		if err := p.Unregister(t.Context()); err != nil || p.Registered() {
			t.Errorf("unregistered: %v, registered: %v", err, p.Registered())
		}
		before := c.count("p REGISTER")
		time.Sleep(time.Hour)
		if got := c.count("p REGISTER"); got != before {
			t.Errorf("%d REGISTER after the registration was removed", got-before)
		}
	})
}

func TestRefreshIsTriedAgainUntilItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := newCore(t, n.listen)
		p := c.registered(t, n.listen, "alice", func(c *Config) { c.Expires = 600 * time.Second })
		time.Sleep(200 * time.Second)
		c.mu.Lock()
		c.refuse = 504
		c.mu.Unlock()
		time.Sleep(500 * time.Second)
		if p.Registered() {
			t.Error("registered by a core that refuses")
		}
		c.mu.Lock()
		c.refuse = 0
		clear(c.nonces) // as after a restart
		c.mu.Unlock()
		time.Sleep(retryLast + retryLast/2)
		if !p.Registered() {
			t.Error("not registered again")
		}
		// Pauses grow from 1 s to 30 s.
		if got := c.count("p REGISTER"); got > 30 {
			t.Errorf("%d REGISTER", got)
		}
	})
}

func TestRegistrationAsksForLongerAfter423(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := newCore(t, n.listen)
		c.least = 1800
		p := c.registered(t, n.listen, "alice", func(c *Config) { c.Expires = 60 * time.Second })
		time.Sleep(1000 * time.Second)
		if !p.Registered() {
			t.Error("the registration ran out")
		}
	})
}

func TestShorterGrantIsObeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := newCore(t, n.listen)
		c.grant = 20
		p := c.registered(t, n.listen, "alice", nil)
		time.Sleep(101 * time.Second)
		if got := c.count("p REGISTER"); got != 12 || !p.Registered() {
			t.Errorf("%d REGISTER in 101 s, want 12; registered: %v", got, p.Registered())
		}
	})
}

func TestRegistrationSurvivesLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := newCore(t, n.listen)
		p := c.phone(t, n.listen, "alice", nil)
		lost := 0
		n.setLoss(func(_, _ netip.AddrPort, _ []byte) bool { lost++; return lost == 1 || lost == 3 || lost == 5 })
		began := time.Now()
		if err := p.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 3500*time.Millisecond {
			t.Errorf("registered after %v", d)
		}
	})
}

func TestRegistrationEndsWithItsContextOrPhone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := newCore(t, n.listen)
		p := c.phone(t, n.listen, "alice", nil)
		n.setLoss(func(_, _ netip.AddrPort, _ []byte) bool { return true })
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := p.Register(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := p.Register(t.Context()); !errors.Is(err, sip.ErrTransactionTimeout) {
			t.Errorf("got %v, want Timer F", err)
		}
		time.AfterFunc(time.Second, p.Close)
		if err := p.Register(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
		p.Close()
		if err := p.Register(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("a closed phone registers: %v", err)
		}
	})
}

func TestServiceRouteIsKeptInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := newCore(t, n.listen)
		c.edit = func(m *sipmsg.Message) {
			if _, method := m.CSeq(); method == "REGISTER" && m.Status() == 200 {
				m.Set(sipmsg.ServiceRoute, `<sip:a@192.0.2.1;lr>;p="x,y", <sip:b@192.0.2.2;lr>`)
				m.Add(sipmsg.ServiceRoute, "<sip:c@192.0.2.3;lr>")
			}
		}
		p := c.registered(t, n.listen, "alice", nil)
		want := []string{`<sip:a@192.0.2.1;lr>;p="x,y"`, "<sip:b@192.0.2.2;lr>", "<sip:c@192.0.2.3;lr>"}
		if got := p.reg.serviceRoute(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		req := p.newRequest(sip.INVITE, p.from, p.from, "id", "tag", 1)
		p.initial(req)
		routes := elements(req, "Route", 9)
		if want = append([]string{"<sip:" + c.p.addr.String() + ";lr>"}, want...); !slices.Equal(routes, want) {
			t.Errorf("routes are %q, want %q", routes, want)
		}
	})
}

func TestPasswordIsNeverLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := newCore(t, n.listen)
		var log strings.Builder
		p := c.phone(t, n.listen, "alice", func(c *Config) {
			c.Password = "hunter2"
			c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		if err := p.Register(t.Context()); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
		p.Close()
		if strings.Contains(log.String(), "hunter2") {
			t.Errorf("the log says %s", log.String())
		}
	})
}

func TestRefreshTime(t *testing.T) {
	for granted, want := range map[time.Duration]time.Duration{
		60 * time.Second: 30 * time.Second, 1200 * time.Second: 600 * time.Second,
		1201 * time.Second: 601 * time.Second, 600000 * time.Second: 599400 * time.Second,
	} {
		if got := refreshAfter(granted); got != want {
			t.Errorf("after a grant of %v: %v, want %v", granted, got, want)
		}
	}
}

func TestIncompleteConfigurationIsRefused(t *testing.T) {
	good := Config{AOR: "sip:a@ims.test", Domain: domain, Proxy: netip.MustParseAddrPort("127.0.0.1:5060"), LocalIP: netip.MustParseAddr("127.0.0.1")}
	tests := []struct {
		name string
		edit func(*Config)
	}{
		{"no identity", func(c *Config) { c.AOR = "" }},
		{"an identity that is no SIP URI", func(c *Config) { c.AOR = "tel:+4930" }},
		{"an identity without a user", func(c *Config) { c.AOR = "sip:ims.test" }},
		{"no domain", func(c *Config) { c.Domain = "" }},
		{"no P-CSCF", func(c *Config) { c.Proxy = netip.AddrPort{} }},
		{"no local address", func(c *Config) { c.LocalIP = netip.Addr{} }},
		{"a tone that is none", func(c *Config) { c.ToneHz = 4000 }},
		{"an address of another machine", func(c *Config) { c.LocalIP = netip.MustParseAddr("192.0.2.1") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good
			tt.edit(&cfg)
			if p, err := New(cfg); err == nil {
				p.Close()
				t.Error("the phone was made")
			}
		})
	}
	p, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	p.Close()
}
