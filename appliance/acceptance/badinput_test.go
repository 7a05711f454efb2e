package acceptance

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/cscf/sipmsg"
)

func replace(line int, with string) func([]string) []string {
	return func(l []string) []string { l[line] = with; return l }
}

func insert(more ...string) func([]string) []string {
	return func(l []string) []string { return append(l, more...) }
}

func without(line int) func([]string) []string {
	return func(l []string) []string { return append(l[:line:line], l[line+1:]...) }
}

func TestBadRequestsGetTheRightAnswer(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	n := c.Node("n1")
	users := subscribe(t, c, "bad", 3)
	addr := freshNet()
	known := newWire(t, addr(1), n.P()) // a phone that is registered
	serviceRoute := known.register(t, users[0])
	heard := make(chan string, 1)
	register(t, newPhone(t, c.Node("n2"), users[1], func(cfg *phone.Config) {
		cfg.OnMessage = func(from, _ string) { heard <- from }
	}))

	home, peer := "sip:"+domain, "sip:"+users[1]+"@"+domain
	pcscf := "sip:" + n.P().String()
	entryI, entryS := netip.AddrPortFrom(n.Address, 4060), netip.AddrPortFrom(n.Address, 6060)
	route := "Route: <" + pcscf + ";lr>, " + serviceRoute

	for i, tt := range []struct {
		name        string
		method, uri string
		change      func([]string) []string
		registered  bool // comes from the registered phone
		entry       netip.AddrPort
		want        int // 0: nothing may come back
	}{
		{name: "a version of SIP that does not exist", method: "OPTIONS", uri: pcscf, change: replace(0, "OPTIONS "+pcscf+" SIP/7.0"), want: 505},
		{name: "a scheme that nobody routes", method: "OPTIONS", uri: "nobodyknows:x", want: 416},
		{name: "a Request-URI that is none", method: "OPTIONS", uri: "sip:", want: 400},
		{name: "spaces in the request line", method: "OPTIONS", uri: pcscf, change: replace(0, "OPTIONS  "+pcscf+"  SIP/2.0"), want: 400},
		{name: "no From", method: "OPTIONS", uri: pcscf, change: without(2), want: 400},
		{name: "no To", method: "OPTIONS", uri: pcscf, change: without(3), want: 400},
		{name: "no Call-ID", method: "OPTIONS", uri: pcscf, change: without(4), want: 400},
		{name: "no CSeq", method: "OPTIONS", uri: pcscf, change: without(5), want: 400},
		{name: "a CSeq of another method", method: "OPTIONS", uri: pcscf, change: replace(5, "CSeq: 1 INVITE"), want: 400},
		{name: "a CSeq beyond 32 bits", method: "OPTIONS", uri: pcscf, change: replace(5, "CSeq: 4294967296 OPTIONS"), want: 400},
		{name: "two Call-IDs", method: "OPTIONS", uri: pcscf, change: insert("Call-ID: another"), want: 400},
		{name: "a From without end", method: "OPTIONS", uri: pcscf, change: replace(2, `From: "x <sip:a@b>;tag=1`), want: 400},
		{name: "Max-Forwards beyond its range", method: "OPTIONS", uri: pcscf, change: replace(6, "Max-Forwards: 256"), want: 400},
		{name: "a negative Content-Length", method: "OPTIONS", uri: pcscf, change: insert("Content-Length: -1"), want: 400},
		{name: "a body that is cut off", method: "OPTIONS", uri: pcscf, change: insert("l: 9999"), want: 400},
		{name: "a header line without colon", method: "OPTIONS", uri: pcscf, change: insert("nonsense"), want: 400},
		{name: "a NUL in a header", method: "OPTIONS", uri: pcscf, change: insert("X-Nul: a\x00b"), want: 400},
		{name: "more headers than a message may have", method: "OPTIONS", uri: pcscf, change: insert(strings.Split(strings.Repeat("X: y,", 150), ",")[:150]...), want: 400},
		{name: "more parameters than a header may have", method: "OPTIONS", uri: pcscf, change: insert("Contact: <sip:a@b>" + strings.Repeat(";p=q", 100)), want: 400},
		{name: "no Via", method: "OPTIONS", uri: pcscf, change: without(1), want: 0},
		{name: "an ACK that is wrong", method: "ACK", uri: pcscf, change: without(2), want: 0},
		{name: "an ACK for nothing", method: "ACK", uri: peer, want: 0},

		{name: "a REGISTER that may not go on", method: "REGISTER", uri: home, change: replace(6, "Max-Forwards: 0"), want: 483},
		{name: "a REGISTER that needs what nobody has", method: "REGISTER", uri: home, change: insert("Proxy-Require: time-travel"), want: 420},
		{name: "a REGISTER of an unknown user", method: "REGISTER", uri: home, want: 401},
		{name: "a REGISTER for another domain", method: "REGISTER", uri: "sip:elsewhere.test", want: 403},

		{name: "an INVITE of a stranger", method: "INVITE", uri: peer, want: 403},
		{name: "a MESSAGE of a stranger", method: "MESSAGE", uri: peer, want: 403},
		{name: "an unknown method of a stranger", method: "FROBNICATE", uri: peer, want: 403},
		{name: "a CANCEL of nothing", method: "CANCEL", uri: peer, want: 481},
		{name: "a BYE of no dialog", method: "BYE", uri: peer, change: replace(3, "To: <"+peer+">;tag=none"), want: 403},
		{name: "a stranger with a Service-Route that he overheard", method: "MESSAGE", uri: peer, change: insert(route), want: 403},
		{name: "a stranger who goes to an S-CSCF by an overheard token, past the P-CSCF", method: "MESSAGE", uri: peer, change: insert("Route: " + serviceRoute), want: 403},
		{name: "a forged token", method: "MESSAGE", uri: peer, change: insert("Route: " + forge(serviceRoute)), want: 0},
		{name: "a forged token at the S-CSCF", method: "MESSAGE", uri: peer, change: insert("Route: " + forge(serviceRoute)), entry: entryS, want: 0},
		{name: "a forged token at the I-CSCF", method: "MESSAGE", uri: peer, change: insert("Route: " + forge(serviceRoute)), entry: entryI, want: 0},
		{name: "a stranger who goes to the I-CSCF", method: "MESSAGE", uri: peer, entry: entryI, want: 403},
		{name: "a stranger who goes to the S-CSCF", method: "MESSAGE", uri: peer, entry: entryS, change: insert("Route: " + serviceRoute), want: 403},
		{name: "an emergency call of a stranger", method: "INVITE", uri: "urn:service:sos", want: 380},
		{name: "a forged token in the Request-URI", method: "MESSAGE", uri: strings.Trim(forge(serviceRoute), "<>"), want: 403},

		{name: "an unknown method between phones", method: "FROBNICATE", uri: peer, change: insert(route), registered: true, want: 405},
		{name: "a call to nobody", method: "INVITE", uri: "sip:nobody@" + domain, change: insert(route), registered: true, want: 604},
		{name: "a request that may not go on", method: "MESSAGE", uri: peer, change: func(l []string) []string {
			l[6] = "Max-Forwards: 0"
			return append(l, route)
		}, registered: true, want: 483},
		{name: "a request that needs what nobody has", method: "MESSAGE", uri: peer, change: insert(route, "Proxy-Require: time-travel"), registered: true, want: 420},
		{name: "a registered phone in another's name", method: "MESSAGE", uri: peer, change: func(l []string) []string {
			return append(l, route, "P-Preferred-Identity: <sip:"+users[2]+"@"+domain+">")
		}, registered: true, want: 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := known
			if !tt.registered {
				w = newWire(t, addr(2+i), n.P())
			}
			if tt.entry.IsValid() {
				w.to = tt.entry
			}
			user := "stranger"
			if tt.registered {
				user = users[0]
			}
			lines := w.request(tt.method, tt.uri, user)
			if tt.change != nil {
				lines = tt.change(lines)
			}
			msg := text(lines, "")
			if tt.want == 0 {
				w.send(t, msg)
				// What is answered after it proves that it was not.
				w.to = n.P()
				for range 2 {
					request := text(w.request("OPTIONS", pcscf, user), "")
					if m := w.final(t, request); m.status != 200 {
						t.Errorf("answered %d", m.status)
					}
				}
				return
			}
			m := w.final(t, msg)
			if m.status != tt.want {
				t.Errorf("answered %d %s, want %d", m.status, m.Reason(), tt.want)
			}
			if v, _ := m.Value(sipmsg.Unsupported); m.status == 420 && v != "time-travel" {
				t.Errorf("Unsupported is %q", v)
			}
		})
	}
	// The last one of the table said that it was somebody else.
	if from, want := <-heard, "sip:"+users[0]+"@"+domain; from != want {
		t.Errorf("the MESSAGE in another's name came from %s, want %s", from, want)
	}
}

// forge changes the token of a route so that it is not genuine any more.
func forge(route string) string {
	at := strings.IndexByte(route, '@')
	last := byte('a')
	if route[at-1] == last {
		last = 'b'
	}
	return route[:at-1] + string(last) + route[at:]
}

// TestServiceGoesOnDuringAFlood sends what the network may send, as fast as the
// node takes it, and registers and calls meanwhile. No process grows by it.
func TestServiceGoesOnDuringAFlood(t *testing.T) {
	t.Parallel()
	const (
		sources = 4
		warmUp  = 1_000 // datagrams of each source
		flood   = 4_000
		growth  = 64 << 20 // bytes that a process may grow by it, most of it for transactions that end after 32 s
	)
	c := start(t, workersOf{"n1": {"p1", "i1", "s1"}}, nil)
	n := c.Node("n1")
	users := subscribe(t, c, "flood", 3)
	addr := freshNet()
	token := newWire(t, addr(1), n.P()).register(t, users[0])
	phones := phonesAt(t, users[1:], n)
	register(t, phones[0])

	raw := make([]byte, 1<<18)
	rand.NewChaCha8([32]byte{1}).Read(raw)
	noise := string(raw)

	// send sends count datagrams from every source, 20 at a time.
	send := func(count int) (done chan struct{}) {
		var wg sync.WaitGroup
		for i := range sources {
			w := newWire(t, addr(10+i), n.P())
			wg.Go(func() {
				nasty := rubbish{rand.New(rand.NewPCG(uint64(i), uint64(count))), w, token, noise}
				tick := time.NewTicker(4 * time.Millisecond)
				defer tick.Stop()
				for k := range count {
					w.to = netip.AddrPortFrom(n.Address, []uint16{5060, 4060, 6060}[k%3])
					w.send(t, nasty.next())
					if k%20 == 19 {
						<-tick.C
					}
				}
			})
		}
		done = make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		return done
	}
	<-send(warmUp)
	before := rss(t, n)
	received := figure(t, n, "bellwether_front_received_total")
	done := send(flood)
	calls := 0
	for flooding := true; flooding; calls++ {
		register(t, phones[1])
		talk(t, phones[1], users[1])
		select {
		case <-done:
			flooding = false
		default:
		}
	}
	received = figure(t, n, "bellwether_front_received_total") - received
	if calls < 2 || received < flood {
		t.Errorf("%d calls during %g datagrams", calls, received)
	}
	for name, b := range before {
		after := rss(t, n)[name]
		t.Logf("%s: %d MB before, %d MB after %g datagrams and %d calls", name, b>>20, after>>20, received, calls)
		if after > b+growth {
			t.Errorf("the %s process grew from %d to %d MB", name, b>>20, after>>20)
		}
	}
}

// rubbish makes datagrams that nobody should have sent.
type rubbish struct {
	*rand.Rand
	w     *wire
	token string // a genuine one, as a route
	noise string
}

func (r rubbish) bytes(n int) string {
	at := r.IntN(len(r.noise) - n)
	return r.noise[at : at+n]
}

func (r rubbish) next() string {
	w := r.w
	user := fmt.Sprintf("rubbish%d", r.Uint32())
	peer := "sip:" + user + "@" + domain
	switch r.IntN(12) {
	case 0:
		return r.bytes(1 + r.IntN(1500))
	case 1: // as much as UDP carries
		return "OPTIONS " + peer + " SIP/2.0\r\n" + r.bytes(65_000)
	case 2:
		m := text(w.request("REGISTER", "sip:"+domain, user), "")
		return m[:r.IntN(len(m))]
	case 3:
		m := []byte(text(w.request("INVITE", peer, user), "v=0\r\n"))
		for range 1 + r.IntN(5) {
			m[r.IntN(len(m))] = byte(r.Uint32())
		}
		return string(m)
	case 4:
		return text(append(w.request("MESSAGE", peer, user), "X-Long: "+strings.Repeat("x", 40_000)), strings.Repeat("y", 20_000))
	case 5: // responses that nobody asked for
		return text(append([]string{"SIP/2.0 200 OK"}, w.request("INVITE", peer, user)[1:]...), "")
	case 6:
		l := w.request("BYE", peer, user)
		l[0], l[1] = "SIP/2.0 481 No", fmt.Sprintf("Via: SIP/2.0/UDP %s;branch=z9hG4bK%s.1", w.to, strings.Trim(forge(r.token), "<sip:>"))
		return text(l, "")
	case 7:
		return text(append(w.request("MESSAGE", peer, user), "Route: "+forge(r.token)), "")
	case 8: // a genuine token, used by a stranger
		return text(append(w.request("MESSAGE", peer, user), "Route: "+r.token), "")
	case 9:
		return text(w.request(fmt.Sprintf("METHOD%d", r.Uint32()), peer, user), "")
	case 10: // the least that costs a transaction
		return text(w.request("REGISTER", "sip:"+domain, user), "")
	}
	return "\r\n\r\n"
}

// rss is the resident memory of a node's processes, in bytes, by name.
func rss(t testing.TB, n *localcluster.Node) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, name := range []string{"front", "worker"} {
		for _, pid := range children(t, n, name) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				t.Fatal(err)
			}
			kb := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(b)
			if kb == nil {
				t.Fatalf("no VmRSS in %s", b)
			}
			out[name], _ = strconv.Atoi(string(kb[1]))
			out[name] <<= 10
		}
	}
	return out
}

// figure reads one of a node's metrics, which has no labels.
func figure(t testing.TB, n *localcluster.Node, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(fetch(t, n.HTTP()+"/metrics"))
	if m == nil {
		t.Fatalf("node %s has no figure %s", n.Name, name)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func fetch(t testing.TB, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t, 5*time.Second), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
