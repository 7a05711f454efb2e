package rtp

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	pion "github.com/pion/rtp"

	"bellwether/media/g711"
	"bellwether/media/tone"
)

var tones = []float64{440, 620, 1004, 1633}

func start(t *testing.T, c *Clock, cfg Config) *Session {
	t.Helper()
	s, err := c.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestClockSendsFiftyFramesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		a, b := pair()
		sa := start(t, &c, Config{Conn: a, Remote: b.addr, Law: g711.PCMA, ToneHz: 1004})
		sb := start(t, &c, Config{Conn: b, Remote: a.addr, Law: g711.PCMU, ToneHz: 440})
		time.Sleep(10*time.Second + time.Millisecond)
		sa.Close()
		sb.Close()
		for _, tt := range []struct {
			name string
			s    *Session
			hz   float64
		}{{"the PCMA side", sa, 440}, {"the PCMU side", sb, 1004}} {
			st := tt.s.Stats()
			want := Stats{Sent: 500, Expected: 500, Received: 500}
			if st != want {
				t.Errorf("%s counted %+v, want %+v", tt.name, st, want)
			}
			if d, ok := tone.Detect(tt.s.PCM(), tones); !ok || d.Hz != tt.hz || d.SNR < 30 {
				t.Errorf("%s heard %+v, want %g Hz", tt.name, d, tt.hz)
			}
		}
	})
}

func TestLossIsCountedBySequenceNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		a, b := pair()
		a.drop = func(n int) bool { return n%10 == 5 } // none of the first or last
		sa := start(t, &c, Config{Conn: a, Remote: b.addr, Law: g711.PCMA, ToneHz: 1633})
		sb := start(t, &c, Config{Conn: b, Remote: a.addr, Law: g711.PCMA, ToneHz: 620})
		time.Sleep(4*time.Second + time.Millisecond)
		sa.Close()
		sb.Close()
		if st := sb.Stats(); st.Expected != 200 || st.Received != 180 || st.Lost() != 20 {
			t.Errorf("behind 10 %% of loss: %+v", st)
		}
		if st := sa.Stats(); st.Expected != 200 || st.Received != 200 {
			t.Errorf("without loss: %+v", st)
		}
		if d, ok := tone.Detect(sb.PCM(), tones); !ok || d.Hz != 1633 || d.SNR < 5 {
			t.Errorf("behind 10 %% of loss heard %+v", d)
		}
	})
}

func TestClockCatchesUpAfterAStallWithoutLosingItsPace(t *testing.T) {
	var c Clock
	a, b := pair()
	s := &Session{clock: &c, conn: a, remote: b.addr, law: g711.PCMA, tone: &tone.Generator{}}
	c.sessions = []*Session{s}
	stop := make(chan struct{})
	c.stop = stop

	c.tick(stop, 3)
	if s.sent != 3 || s.header.Timestamp != 3*frameSamples {
		t.Errorf("3 frames were due: sent %d, at timestamp %d", s.sent, s.header.Timestamp)
	}
	c.tick(stop, 40)
	if s.sent != 3+catchUp || s.header.SequenceNumber != 3+catchUp || s.header.Timestamp != 43*frameSamples {
		t.Errorf("40 frames were due: sent %d, sequence %d, timestamp %d", s.sent, s.header.SequenceNumber, s.header.Timestamp)
	}
	var p pion.Packet
	for i := range 4 {
		if err := p.Unmarshal(<-a.out); err != nil {
			t.Fatal(err)
		}
		if want := i == 3; p.Marker != want {
			t.Errorf("packet %d has marker %v", i, p.Marker)
		}
	}
	c.tick(make(chan struct{}), 1)
	if s.sent != 3+catchUp {
		t.Error("a goroutine that was told to stop sent a frame")
	}
}

func TestClockGoroutineRunsOnlyWhileThereAreSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		for range 3 {
			a, b := pair()
			s := start(t, &c, Config{Conn: a, Remote: b.addr, Law: g711.PCMA})
			time.Sleep(101 * time.Millisecond)
			s.Close()
			s.Close()
			if c.stop != nil || len(c.sessions) != 0 {
				t.Error("the clock still runs")
			}
			if st := s.Stats(); st.Sent != 5 {
				t.Errorf("sent %d frames in 101 ms", st.Sent)
			}
		}
	})
}

func TestPacketsOfOthersAreStrays(t *testing.T) {
	remote := netip.MustParseAddrPort("192.0.2.7:4000")
	packet := func(pt uint8, seq uint16, ssrc uint32, payload string) []byte {
		p := pion.Packet{Header: pion.Header{Version: 2, PayloadType: pt, SequenceNumber: seq, SSRC: ssrc}, Payload: []byte(payload)}
		b, err := p.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	version1 := packet(8, 1, 1, "x")
	version1[0] = version1[0]&0x3f | 0x40
	tests := []struct {
		name   string
		b      []byte
		from   string
		strays uint64
	}{
		{"a packet of the remote", packet(8, 2, 1, "x"), "192.0.2.7:4000", 0},
		{"a packet of the remote, mapped to IPv6", packet(0, 2, 1, "x"), "[::ffff:192.0.2.7]:4000", 0},
		{"another port", packet(8, 2, 1, "x"), "192.0.2.7:4002", 1},
		{"another address", packet(8, 2, 1, "x"), "192.0.2.8:4000", 1},
		{"another source", packet(8, 2, 9, "x"), "192.0.2.7:4000", 1},
		{"another codec", packet(96, 2, 1, "x"), "192.0.2.7:4000", 1},
		{"no audio", packet(8, 2, 1, ""), "192.0.2.7:4000", 1},
		{"another version", version1, "192.0.2.7:4000", 1},
		{"half a header", version1[:7], "192.0.2.7:4000", 1},
		{"nothing", nil, "192.0.2.7:4000", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &Session{remote: remote, window: newWindow(8000)}
			var p pion.Packet
			s.receive(&p, packet(8, 1, 1, "x"), remote, 0, nil)
			s.receive(&p, tt.b, netip.MustParseAddrPort(tt.from), 0, nil)
			want := Stats{Expected: 2 - tt.strays, Received: 2 - tt.strays, Strays: tt.strays}
			if got := s.Stats(); got != want {
				t.Errorf("counted %+v, want %+v", got, want)
			}
		})
	}
}

func TestRedirectFollowsANewAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		a, b := pair()
		s := start(t, &c, Config{Conn: a, Remote: netip.MustParseAddrPort("192.0.2.99:9"), Law: g711.PCMA})
		time.Sleep(50 * time.Millisecond)
		if len(a.out) != 0 {
			t.Error("packets went to the new address too early")
		}
		s.Redirect(b.addr, g711.PCMU)
		time.Sleep(50 * time.Millisecond)
		s.Close()
		var p pion.Packet
		if err := p.Unmarshal(<-a.out); err != nil || p.PayloadType != uint8(g711.PCMU) {
			t.Errorf("after the redirection came %v, %v", p.PayloadType, err)
		}
		s.Redirect(netip.AddrPort{}, 77)
		if s.remote != b.addr || s.law != g711.PCMU {
			t.Error("an unusable redirection was obeyed")
		}
	})
}

func TestMutedSessionKeepsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		a, b := pair()
		s := start(t, &c, Config{Conn: a, Remote: b.addr, Law: g711.PCMA})
		time.Sleep(41 * time.Millisecond)
		s.Mute(true)
		time.Sleep(100 * time.Millisecond)
		s.Mute(false)
		time.Sleep(20 * time.Millisecond)
		s.Close()
		var first, last pion.Packet
		if n := len(a.out); n != 3 || s.Stats().Sent != 3 {
			t.Fatalf("%d packets came, %d were sent, want 3", n, s.Stats().Sent)
		}
		if err := first.Unmarshal(<-a.out); err != nil {
			t.Fatal(err)
		}
		<-a.out
		if err := last.Unmarshal(<-a.out); err != nil {
			t.Fatal(err)
		}
		if last.SequenceNumber != first.SequenceNumber+2 || last.Timestamp != first.Timestamp+7*frameSamples || !last.Marker {
			t.Errorf("from %v to %v", first.Header, last.Header)
		}
	})
}

func TestStartRefusesWhatCannotWork(t *testing.T) {
	a, b := pair()
	tests := []struct {
		name string
		cfg  Config
	}{
		{"no socket", Config{Remote: b.addr}},
		{"no remote address", Config{Conn: a}},
		{"remote port zero", Config{Conn: a, Remote: netip.MustParseAddrPort("192.0.2.1:0")}},
		{"a law that is none", Config{Conn: a, Remote: b.addr, Law: 18}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c Clock
			if s, err := c.Start(tt.cfg); err == nil {
				s.Close()
				t.Error("started")
			}
		})
	}
}

func TestSessionsOverRealSockets(t *testing.T) {
	listen := func() (*net.UDPConn, netip.AddrPort) {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		return c, c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	var c Clock
	a, addrA := listen()
	b, addrB := listen()
	sa := start(t, &c, Config{Conn: a, Remote: addrB, Law: g711.PCMA, ToneHz: 1004})
	sb := start(t, &c, Config{Conn: b, Remote: addrA, Law: g711.PCMA, ToneHz: 620})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); sb.Stats().Received < 25; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("25 packets did not come within 10 s: %+v", sb.Stats())
		}
	}
	sa.Close()
	sb.Close()
	if st := sb.Stats(); st.Expected != st.Received {
		t.Errorf("loss on the loopback: %+v", st)
	}
	// How clear it is depends on the machine: a sender that wakes up late jumps
	// in its tone. Whether it is clear enough is Detect's verdict.
	if d, ok := tone.Detect(sb.PCM(), tones); !ok || d.Hz != 1004 {
		t.Errorf("heard %+v", d)
	}
}

func TestCounter(t *testing.T) {
	up := func(from, n int) (s []uint16) {
		for i := range n {
			s = append(s, uint16(from+i))
		}
		return s
	}
	tests := []struct {
		name                         string
		seqs                         []uint16
		expected, received, repeated uint64
	}{
		{"nothing came", nil, 0, 0, 0},
		{"one packet", []uint16{7}, 1, 1, 0},
		{"in order", up(100, 50), 50, 50, 0},
		{"across the wrap of 16 bits", up(65530, 20), 20, 20, 0},
		{"one is missing", []uint16{1, 2, 4, 5}, 5, 4, 0},
		{"one is missing at the wrap", []uint16{65534, 65535, 1}, 4, 3, 0},
		{"two changed places", []uint16{1, 3, 2, 4}, 4, 4, 0},
		{"the second overtook the first", []uint16{0, 65535, 1}, 3, 3, 0},
		{"a duplicate", []uint16{1, 2, 2, 3}, 3, 3, 1},
		{"a late duplicate", []uint16{1, 2, 3, 4, 2}, 4, 4, 1},
		{"later than the history is lost", append([]uint16{1}, append(up(3, 70), 2)...), 72, 71, 0},
		{"a lone jump is ignored", []uint16{1, 2, 30000, 3}, 3, 3, 0},
		{"a confirmed jump starts again", []uint16{1, 2, 30000, 30001, 30002}, 4, 4, 0},
		{"a gap as long as the history", []uint16{1, 66}, 66, 2, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c counter
			for _, s := range tt.seqs {
				c.add(s)
			}
			st := c.stats()
			if st.Expected != tt.expected || st.Received != tt.received || st.Duplicates != tt.repeated {
				t.Errorf("counted %+v, want expected %d, received %d, duplicates %d", st, tt.expected, tt.received, tt.repeated)
			}
		})
	}
}

func TestJitter(t *testing.T) {
	ms := time.Millisecond
	tests := []struct {
		name  string
		delay func(i int) time.Duration
		want  time.Duration
	}{
		{"a steady stream has none", func(int) time.Duration { return 30 * ms }, 0},
		{"every second packet 4 ms late", func(i int) time.Duration { return time.Duration(i%2) * 4 * ms }, 4 * ms},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c counter
			for i := range 500 {
				// Timestamps cross the wrap of 32 bits.
				c.arrive(uint32(i*frameSamples)-80*frameSamples, time.Duration(i)*FrameTime+tt.delay(i))
			}
			if got := c.stats().Jitter; math.Abs(float64(got-tt.want)) > float64(50*time.Microsecond) {
				t.Errorf("jitter is %v, want %v", got, tt.want)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	type packet struct {
		ts  uint32
		pcm []int16
	}
	tests := []struct {
		name    string
		packets []packet
		want    []int16
	}{
		{"nothing", nil, []int16{}},
		{"in order", []packet{{50, []int16{1, 2}}, {52, []int16{3}}}, []int16{1, 2, 3}},
		{"a gap is silent", []packet{{50, []int16{1, 2}}, {54, []int16{5}}}, []int16{1, 2, 0, 0, 5}},
		{"a late packet fills its gap", []packet{{50, []int16{1}}, {52, []int16{3}}, {51, []int16{2}}}, []int16{1, 2, 3}},
		{"only the newest stay", []packet{{0, []int16{1, 2, 3, 4, 5, 6}}, {6, []int16{7, 8, 9, 10}}}, []int16{3, 4, 5, 6, 7, 8, 9, 10}},
		{"a packet longer than the window", []packet{{0, []int16{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}}, []int16{3, 4, 5, 6, 7, 8, 9, 10}},
		{"one from before the first is dropped", []packet{{50, []int16{1}}, {40, []int16{9}}}, []int16{1}},
		{"a jump clears all", []packet{{0, []int16{1, 2}}, {1 << 30, []int16{3}}}, []int16{0, 0, 0, 0, 0, 0, 0, 3}},
		{"across the wrap of 32 bits", []packet{{math.MaxUint32, []int16{1, 2}}, {1, []int16{3}}}, []int16{1, 2, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWindow(8)
			for _, p := range tt.packets {
				w.put(p.ts, p.pcm)
			}
			if got := w.pcm(); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func FuzzReceive(f *testing.F) {
	p := pion.Packet{Header: pion.Header{Version: 2, PayloadType: 8, SequenceNumber: 3, Timestamp: 480, SSRC: 1}, Payload: make([]byte, 160)}
	b, err := p.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, b)
	f.Add([]byte{0xbf, 0x08, 0, 0}, b[:20])
	f.Fuzz(func(t *testing.T, b1, b2 []byte) {
		remote := netip.MustParseAddrPort("192.0.2.7:4000")
		s := &Session{remote: remote, window: newWindow(1000)}
		var p pion.Packet
		for i, b := range [][]byte{b1, b2, b1, b2} {
			s.receive(&p, b, remote, time.Duration(i)*FrameTime, nil)
		}
		st := s.Stats()
		if st.Received > st.Expected || st.Received+st.Strays > 4 {
			t.Errorf("counted %+v of 4 datagrams", st)
		}
		if n := len(s.PCM()); n > 1024 {
			t.Errorf("the window holds %d samples", n)
		}
	})
}

// BenchmarkSessionSecond is the cost of one second of one session that sends and
// receives over the loopback.
func BenchmarkSessionSecond(b *testing.B) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	addr := c.LocalAddr().(*net.UDPAddr).AddrPort()
	var clock Clock
	s, err := clock.Start(Config{Conn: c, Remote: addr, Law: g711.PCMA, ToneHz: 1004})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	clock.mu.Lock() // keeps the clock's own goroutine out
	defer clock.mu.Unlock()
	var buf frameBuffer
	for b.Loop() {
		for range 50 {
			s.send(&buf)
		}
	}
	b.ReportMetric(float64(s.Stats().Received)/float64(b.N), "received/op")
}

func ExampleClock() {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return
	}
	var clock Clock
	s, err := clock.Start(Config{Conn: conn, Remote: conn.LocalAddr().(*net.UDPAddr).AddrPort(), Law: g711.PCMA, ToneHz: 1004})
	if err != nil {
		return
	}
	s.Close()
	fmt.Println(s.Stats().Lost())
	// Output: 0
}
