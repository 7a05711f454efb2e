package acceptance

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bellwether/appliance/phone"
	"bellwether/cscf/sipmsg"
)

// overTCP makes the assault's caller a phone that speaks TCP.
func (s *assault) overTCP(t testing.TB, prefix string) {
	t.Helper()
	user := subscribe(t, s.c, prefix+"tcp", 1)[0]
	at := freshNet()(1)
	s.caller = newPhone(t, s.n, user, func(cfg *phone.Config) { cfg.LocalIP, cfg.Transport = at, sipmsg.TCP })
	register(t, s.caller)
	talk(t, s.caller, s.user)
	s.before = rss(t, s.n)
}

// connect opens a TCP connection from a soldier to n1. It never waits long.
func (s *assault) connect(i int) (*net.TCPConn, error) {
	from := netip.AddrPortFrom(netip.AddrFrom4(soldier(i)), 0)
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(from)}
	c, err := d.Dial("tcp", s.n.P().String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// ended reads how many of n1's connections ended for a cause.
func (s *assault) ended(t testing.TB, cause string) float64 {
	t.Helper()
	return s.labelled(t, `bellwether_front_connections_ended_total{cause="`+cause+`"}`)
}

// Bad input (10,000 half-open TCP connections): from a hundred sources, each with the begin of a request and no more; the oldest give way, a phone on TCP registers and calls meanwhile.
func TestBadInputHalfOpenConnections(t *testing.T) {
	t.Parallel()
	const connections = 10_000
	files := syscall.Rlimit{Cur: connections + 5000, Max: connections + 5000}
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	if now.Cur < files.Cur {
		files.Max = max(files.Max, now.Max)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
			t.Fatalf("raise the number of files from %d to %d: %v", now.Cur, files.Cur, err)
		}
	}
	s := beset(t, "half")
	s.overTCP(t, "half")
	s.most = 384 << 20 // a goroutine costs the race detector 60 kB
	evicted := s.ended(t, "evicted")
	var mu sync.Mutex
	var open []*net.TCPConn
	t.Cleanup(func() {
		for _, c := range open {
			_ = c.SetLinger(0)
			c.Close()
		}
	})
	begun := "REGISTER sip:" + domain + " SIP/2.0\r\nVia: SIP/2.0/TCP 192.0.2.1;branch=z9hG4bK"
	failed := 0
	s.stand(t, func() {
		for i := range connections {
			c, err := s.connect(70_000 + i%100)
			if err != nil {
				failed++
				continue
			}
			_, _ = c.Write([]byte(begun)) // one that was refused fails
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	})
	if failed > connections/100 {
		t.Errorf("%d connections could not be opened", failed)
	}
	if n := s.labelled(t, `bellwether_front_connections{state="unbound"}`); n > 3000 {
		t.Errorf("n1 has %g connections of strangers", n)
	}
	if evicted = s.ended(t, "evicted") - evicted; evicted < 1000 {
		t.Errorf("%g connections were evicted", evicted)
	}
	t.Logf("%d connections were opened, %g evicted", len(open), evicted)
}

// Bad input (slow senders): three hundred connections that send a header byte by byte are closed after ten seconds; a phone on TCP registers and calls meanwhile.
func TestBadInputSlowSenders(t *testing.T) {
	t.Parallel()
	const senders = 300
	s := beset(t, "slow")
	s.overTCP(t, "slow")
	mute := s.ended(t, "no-first-message")
	line := "OPTIONS sip:" + s.n.P().String() + " SIP/2.0\r\nX: " + strings.Repeat("x", 1000)
	var closed atomic.Int64
	s.stand(t, func() {
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				c, err := s.connect(80_000 + i%10)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				tick := time.NewTicker(250 * time.Millisecond)
				defer tick.Stop()
				for k := range 100 { // 25 s
					if _, err := c.Write([]byte{line[k]}); err != nil {
						closed.Add(1)
						return
					}
					<-tick.C
				}
			})
		}
		wg.Wait()
	})
	if n := closed.Load(); n != senders {
		t.Errorf("%d of %d slow senders were cut off", n, senders)
	}
	if n := s.ended(t, "no-first-message") - mute; n < senders {
		t.Errorf("%g were cut off for that they send no message", n)
	}
}

// Bad input (a flood of connections): one source that opens connections without end is limited and then banned; others connect.
func TestBadInputConnectionFlood(t *testing.T) {
	t.Parallel()
	s := beset(t, "conns")
	s.overTCP(t, "conns")
	limited := s.refusals(t, "connection-limited")
	source := netip.PrefixFrom(netip.AddrFrom4(soldier(90_000)), 32)
	s.stand(t, func() {
		for range 4000 {
			if c, err := s.connect(90_000); err == nil {
				_ = c.SetLinger(0)
				c.Close()
			}
		}
	})
	if s.refusals(t, "connection-limited") == limited {
		t.Error("no connection was refused")
	}
	if list := s.bans(t, s.n); len(list) != 1 || list[0].Prefix != source || list[0].Reason != "connection-limited" {
		t.Errorf("bans are %+v", list)
	}
	if _, err := s.n.Admin.RemoveBan(within(t, 5*time.Second), source); err != nil {
		t.Error(err)
	}
	other := dialWire(t, netip.AddrFrom4(soldier(90_001)), s.n.P())
	if m := other.ask(t, text(other.request("OPTIONS", "sip:"+s.n.P().String(), "other"), ""), 10*time.Second); m == nil || m.status != 200 {
		t.Errorf("another one is answered %+v", m)
	}
}

// Bad input (readers that do not read): connections that ping without end and never read the pongs are closed; what waits for them stays bounded.
func TestBadInputReadersThatDoNotRead(t *testing.T) {
	t.Parallel()
	const readers = 50
	s := beset(t, "deaf")
	s.overTCP(t, "deaf")
	cut := func() float64 {
		return s.ended(t, "not-reading") + s.ended(t, "queue-full") + s.ended(t, "no-first-message")
	}
	before := cut()
	var mu sync.Mutex
	var open []*net.TCPConn // to the end, so that it is the node that closes them
	t.Cleanup(func() {
		for _, c := range open {
			c.Close()
		}
	})
	s.stand(t, func() {
		var wg sync.WaitGroup
		for i := range readers {
			wg.Go(func() {
				c, err := s.connect(100_000 + i)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				open = append(open, c)
				mu.Unlock()
				_ = c.SetReadBuffer(4096)
				pings := []byte(strings.Repeat("\r\n\r\n", 4096))
				_ = c.SetWriteDeadline(time.Now().Add(12 * time.Second))
				for range 1000 { // 16 MB
					if _, err := c.Write(pings); err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
	})
	eventually(t, 20*time.Second, func() string {
		if n := cut() - before; n < readers {
			return fmt.Sprintf("%g of %d connections were closed", n, readers)
		}
		return ""
	})
	if n := s.labelled(t, `bellwether_front_connections_bytes{what="queued"}`); n > 1<<20 {
		t.Errorf("%g bytes wait to be sent", n)
	}
}
