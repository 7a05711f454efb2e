package guard

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// cfg has small numbers.
var cfg = Config{
	Messages: Rate{10, 20}, Failures: Rate{1, 5}, Connections: Rate{1, 3}, Flow: Rate{10, 30}, Strangers: Rate{100, 200}, Ban: time.Minute,
}

// passed sends n messages at once and returns how many were let in, and why
// the last one was not.
func passed(g *Guard, s Source, n int, now time.Time) (count int, why Verdict) {
	for range n {
		if v := g.Admit(s, now); v.Passes() {
			count++
		} else {
			why = v
		}
	}
	return count, why
}

func TestEachSourceHasALimitOfItsOwn(t *testing.T) {
	g, now := New(cfg), time.Now()
	for _, tt := range []struct {
		name string
		from Source
		at   time.Duration
		send int
		want int
		why  Verdict
	}{
		{"a burst", Source{Addr: addr("192.0.2.1")}, 0, 30, 20, SourceLimited},
		{"then a rate", Source{Addr: addr("192.0.2.1")}, 500 * time.Millisecond, 30, 5, SourceLimited},
		{"another address", Source{Addr: addr("192.0.2.2")}, 500 * time.Millisecond, 20, 20, Pass},
		{"the same address, from a registered phone", Source{addr("192.0.2.1"), 7}, 500 * time.Millisecond, 40, 30, FlowLimited},
		{"another phone behind it", Source{addr("192.0.2.1"), 8}, 500 * time.Millisecond, 30, 30, Pass},
		{"after a pause", Source{Addr: addr("192.0.2.1")}, time.Minute, 30, 20, SourceLimited},
		{"IPv6", Source{Addr: addr("2001:db8::1")}, time.Minute, 30, 20, SourceLimited},
		{"its neighbour in the same /64", Source{Addr: addr("2001:db8::ffff:2")}, time.Minute, 10, 0, SourceLimited},
		{"one of another /64", Source{Addr: addr("2001:db8:0:1::1")}, time.Minute, 20, 20, Pass},
		{"IPv4 inside IPv6 is IPv4", Source{Addr: addr("::ffff:192.0.2.1")}, time.Minute, 5, 0, SourceLimited},
	} {
		if n, why := passed(g, tt.from, tt.send, now.Add(tt.at)); n != tt.want || why != tt.why {
			t.Errorf("%s: %d of %d, %v; want %d, %v", tt.name, n, tt.send, why, tt.want, tt.why)
		}
	}
}

func TestFailuresCostMore(t *testing.T) {
	g, now := New(cfg), time.Now()
	bad := Source{Addr: addr("192.0.2.1")}
	for i := range 6 {
		if v := g.Admit(bad, now); v.Passes() != (i < 5) {
			t.Fatalf("message %d: %v", i, v)
		}
		if ok := g.Charge(bad, Malformed, now); ok != (i < 5) {
			t.Fatalf("charge %d: %v", i, ok)
		}
	}
	if n, why := passed(g, bad, 1, now); n != 0 || why != FailureLimited {
		t.Errorf("then %d, %v", n, why)
	}
	if n, _ := passed(g, bad, 1, now.Add(2*time.Second)); n != 1 {
		t.Error("nothing passes after a while")
	}
	// A registered phone behind the same address has no part in that.
	phone := Source{bad.Addr, 1}
	if !g.Charge(phone, Malformed, now) || !g.Admit(phone, now).Passes() {
		t.Error("the phone suffers for its neighbour")
	}
}

func TestConnectionsAreLimited(t *testing.T) {
	g, now := New(cfg), time.Now()
	for i, want := range []Verdict{Pass, Pass, Pass, ConnLimited} {
		if v := g.Connect(addr("192.0.2.1"), now); v != want {
			t.Errorf("connection %d: %v, want %v", i, v, want)
		}
	}
	if v := g.Connect(addr("192.0.2.1"), now.Add(time.Second)); v != Pass {
		t.Errorf("a second later: %v", v)
	}
}

func TestWhoGoesOnIsBannedForLongerEachTime(t *testing.T) {
	g, now := New(cfg), time.Now()
	flood := Source{Addr: addr("192.0.2.1")}
	for _, lasts := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 16 * time.Minute} {
		if n, why := passed(g, flood, 1000, now); n != 20 || why != AutoBanned {
			t.Fatalf("flood: %d passed, %v", n, why)
		}
		list := g.Bans(now)
		if len(list) != 1 || list[0].Until.Sub(now) != lasts || list[0].Source.String() != "192.0.2.1/32" || list[0].Reason != "source-limited" || list[0].Hits == 0 {
			t.Fatalf("bans are %+v, want one of %v", list, lasts)
		}
		if v := g.Admit(Source{flood.Addr, 5}, now); v != Pass {
			t.Errorf("a registered phone at the address: %v", v)
		}
		if v := g.Connect(flood.Addr, now); v != AutoBanned {
			t.Errorf("a connection: %v", v)
		}
		now = now.Add(lasts + time.Second)
		if len(g.Bans(now)) != 0 {
			t.Errorf("the ban goes on after %v", lasts)
		}
	}
	now = now.Add(time.Hour)
	passed(g, flood, 1000, now)
	if list := g.Bans(now); len(list) != 1 || list[0].Until.Sub(now) != time.Minute {
		t.Errorf("after an hour of peace: %+v", list)
	}
	if n := g.Lift(netip.MustParsePrefix("192.0.2.0/24"), now); n != 1 || len(g.Bans(now)) != 0 {
		t.Errorf("lifted %d", n)
	}
}

func TestALittleTooMuchIsLimitedAndNotBanned(t *testing.T) {
	g, now := New(cfg), time.Now()
	s := Source{Addr: addr("192.0.2.1")}
	n := 0
	for range 60 * 15 { // 15 a second instead of 10, for a minute
		now = now.Add(time.Second / 15)
		k, _ := passed(g, s, 1, now)
		n += k
	}
	if n < 600 || n > 640 || len(g.Bans(now)) != 0 {
		t.Errorf("%d passed, bans %+v", n, g.Bans(now))
	}
}

func TestRulesOfOperators(t *testing.T) {
	g, now := New(cfg), time.Now()
	p := netip.MustParsePrefix
	g.SetRules([]Rule{
		{Prefix: p("198.51.100.0/24")},
		{Prefix: p("198.51.100.7/32"), Allow: true},
		{Prefix: p("203.0.113.0/24"), Allow: true},
		{Prefix: p("203.0.113.9/32")},
		{Prefix: p("192.0.2.0/24"), Until: now.Add(time.Minute)},
		{Prefix: p("2001:db8:bad::/48")},
	}, []netip.Addr{addr("192.0.2.250")})
	for _, tt := range []struct {
		name string
		from Source
		at   time.Duration
		want Verdict
	}{
		{"banned with its network", Source{Addr: addr("198.51.100.1")}, 0, Banned},
		{"a registered phone in it too", Source{addr("198.51.100.1"), 3}, 0, Banned},
		{"as IPv4 inside IPv6", Source{Addr: addr("::ffff:198.51.100.1")}, 0, Banned},
		{"allowed within a banned network", Source{Addr: addr("198.51.100.7")}, 0, Allowed},
		{"banned within an allowed network", Source{Addr: addr("203.0.113.9")}, 0, Allowed},
		{"banned for a minute", Source{Addr: addr("192.0.2.1")}, 0, Banned},
		{"after that minute", Source{Addr: addr("192.0.2.1")}, time.Minute, Pass},
		{"IPv6", Source{Addr: addr("2001:db8:bad:1::5")}, 0, Banned},
		{"IPv6 beside it", Source{Addr: addr("2001:db8:bac:1::5")}, 0, Pass},
		{"somebody else", Source{Addr: addr("198.51.101.1")}, 0, Pass},
	} {
		if v := g.Admit(tt.from, now.Add(tt.at)); v != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, v, tt.want)
		}
	}
	if hits := g.Hits(); hits[p("198.51.100.0/24")] != 3 {
		t.Errorf("hits are %v", hits)
	}
	// Whom an operator allows is not limited, whatever he does.
	friend := Source{Addr: addr("203.0.113.5")}
	if n, _ := passed(g, friend, 5000, now); n != 5000 || !g.Charge(friend, Refused, now) || g.Connect(friend.Addr, now) != Allowed || g.Stranger(friend, now) != Pass {
		t.Errorf("%d of 5000 passed", n)
	}
	// The cluster's own are limited and not banned.
	own := Source{Addr: addr("192.0.2.250")}
	now = now.Add(2 * time.Minute)
	if n, why := passed(g, own, 5000, now); n != 20 || why != SourceLimited || len(g.Bans(now)) != 0 {
		t.Errorf("our own: %d passed, %v, %+v", n, why, g.Bans(now))
	}
	// A rule that stays keeps its count, one that goes is gone.
	g.SetRules([]Rule{{Prefix: p("198.51.100.0/24")}}, nil)
	if g.Hits()[p("198.51.100.0/24")] != 3 || g.Admit(Source{Addr: addr("2001:db8:bad::1")}, now) != Pass {
		t.Error("the rules were not replaced")
	}
}

func TestStrangersShareABudget(t *testing.T) {
	g, now := New(cfg), time.Now()
	let := func(from string, n int) (count int) {
		s := Source{Addr: addr(from)}
		for range n {
			if g.Admit(s, now).Passes() && g.Stranger(s, now).Passes() {
				count++
			}
		}
		return count
	}
	total := 0
	for i := range 12 { // a dozen who send all that they may
		total += let(fmt.Sprintf("192.0.2.%d", i), 20)
	}
	if total >= 200 || total < 100 {
		t.Errorf("%d of those who send much passed", total)
	}
	for i := range 10 { // who sends little gets his share nevertheless
		if n := let(fmt.Sprintf("198.51.100.%d", i), 1); n != 1 {
			t.Errorf("the one who sent one message got %d through", n)
		}
	}
	if v := g.Stranger(Source{addr("192.0.2.1"), 9}, now); v != Pass {
		t.Errorf("a registered phone: %v", v)
	}
}

func TestNoLimitWhereNoneIsSet(t *testing.T) {
	g, now := New(Config{}), time.Now()
	s := Source{Addr: addr("192.0.2.1")}
	n, _ := passed(g, s, 100_000, now)
	f, _ := passed(g, Source{s.Addr, 1}, 100_000, now)
	if n != 100_000 || f != 100_000 || !g.Charge(s, Stray, now) || g.Stranger(s, now) != Pass || g.Connect(s.Addr, now) != Pass {
		t.Errorf("%d and %d passed", n, f)
	}
}

// The table is full of sources that send one message each. It does not grow,
// and the one that floods is found among them.
func TestManySourcesCostNoMemory(t *testing.T) {
	g, now := New(Default()), time.Now()
	flood := Source{Addr: addr("192.0.2.1")}
	junk := func(from, until int) {
		for i := from; i < until; i++ {
			s := Source{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
			if !g.Admit(s, now).Passes() {
				t.Fatalf("source %v: %v", s.Addr, g.Admit(s, now))
			}
			g.Charge(s, Malformed, now)
			g.Admit(flood, now)
			now = now.Add(10 * time.Microsecond)
		}
	}
	junk(0, 1000)
	before := heap()
	junk(1000, 200_000)
	if grown := heap() - before; grown > 64<<10 {
		t.Errorf("the heap grew by %d kB", grown>>10)
	}
	if list := g.Bans(now); len(list) != 1 || list[0].Source.Addr() != flood.Addr {
		t.Errorf("bans are %+v", list)
	}
}

func TestAutomaticBansAreBounded(t *testing.T) {
	g, now := New(cfg), time.Now()
	for i := range maxBans + 50 {
		g.ban(keyOf(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})), SourceLimited, now)
		now = now.Add(time.Microsecond)
	}
	if n := len(g.Bans(now)); n != maxBans {
		t.Errorf("%d bans, want %d", n, maxBans)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkAdmit(b *testing.B) {
	for _, bb := range []struct {
		name string
		prep func(g *Guard) Source
	}{
		{"stranger", func(g *Guard) Source { return Source{Addr: addr("192.0.2.1")} }},
		{"phone", func(g *Guard) Source { return Source{addr("192.0.2.1"), 1} }},
		{"banned by itself", func(g *Guard) Source {
			g.ban(keyOf(addr("192.0.2.1")), SourceLimited, time.Now())
			return Source{Addr: addr("192.0.2.1")}
		}},
		{"banned by an operator", func(g *Guard) Source {
			g.SetRules([]Rule{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}, nil)
			return Source{Addr: addr("192.0.2.1")}
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			g := New(Default())
			s, now := bb.prep(g), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				g.Admit(s, now)
			}
		})
	}
}
