package transaction

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/cscf/sipmsg"

	"github.com/google/go-cmp/cmp"
)

// world is one layer with its peers, in virtual time. It writes down what the
// layer sends and when, and plays the role.
type world struct {
	t       *testing.T
	mu      sync.Mutex // the shard
	start   time.Time
	layer   *Layer
	trace   []string
	sent    []packet
	timers  int
	request func(r *Request)
	acks    int
	strays  []string
}

type packet struct {
	to Peer
	m  *sipmsg.Message
}

var (
	here  = netip.MustParseAddrPort("192.0.2.1:5060")
	alice = wire(sipmsg.UDP, "198.51.100.1:5062", 0)
	bob   = wire(sipmsg.UDP, "203.0.113.2:5060", 0)
	carol = wire(sipmsg.UDP, "203.0.113.3:5060", 0)
	tina  = wire(sipmsg.TCP, "198.51.100.9:40000", 7) // upstream
	tom   = wire(sipmsg.TCP, "203.0.113.9:5060", 8)   // downstream
	near  = Peer{Group: 3, InProcess: true}
	far   = Peer{Group: 4}
	names = map[Peer]string{
		alice: "alice", bob: "bob", carol: "carol", tina: "tina", tom: "tom", near: "near", far: "far",
	}
)

func wire(tr sipmsg.Transport, remote string, conn uint64) Peer {
	return Peer{Flow: sipmsg.Flow{
		Node: "a", Transport: tr, Local: here, Remote: netip.MustParseAddrPort(remote), Conn: conn,
	}}
}

func sentBy(to Peer) string {
	if to.Group == 0 && to.Flow.Remote.Addr().Is6() {
		return "[2001:db8::1]:5060"
	}
	return here.String()
}

var testConfig = Config{SentBy: sentBy, Token: "tok1", Secret: []byte("secret")}

// simulate runs fn with a fresh world in virtual time. After it everything
// must come to its end by itself: no transaction and no timer may be left.
func simulate(t *testing.T, cfg Config, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, start: time.Now()}
		w.request = func(r *Request) { t.Errorf("unexpected request %s", r.Message.Method()) }
		w.layer = New(cfg, w, w)
		fn(w)
		w.sleep(30 * time.Minute)
		w.do(func() {
			if n := w.layer.Pending(); n != 0 {
				t.Errorf("%d requests are counted as pending at the end", n)
			}
			if s, c := w.layer.Len(); s != 0 || c != 0 {
				t.Errorf("transactions left at the end: %d servers, %d clients", s, c)
			}
			if w.timers != 0 {
				t.Errorf("timers left at the end: %d", w.timers)
			}
		})
	})
}

func (w *world) do(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
}

func (w *world) len() (servers, clients int) {
	w.do(func() { servers, clients = w.layer.Len() })
	return servers, clients
}

// sleep lets virtual time pass.
func (w *world) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) Now() time.Time { return time.Now() }

func (w *world) Send(to Peer, raw []byte) {
	m, err := sipmsg.Parse(raw)
	if err != nil {
		w.t.Errorf("the layer sent a bad message: %v\n%s", err, raw)
		return
	}
	w.sent = append(w.sent, packet{to, m})
	w.trace = append(w.trace, fmt.Sprintf("%s > %s %s", w.clock(), nameOf(to), summary(m)))
}

func (w *world) After(d time.Duration, fn func()) func() {
	w.timers++
	over := false
	timer := time.AfterFunc(d, func() {
		w.do(func() {
			if !over {
				over = true
				w.timers--
			}
			fn() // even if stopped meanwhile, as Env allows
		})
	})
	return func() {
		timer.Stop()
		if !over {
			over = true
			w.timers--
		}
	}
}

func (w *world) Post(fn func()) { go w.do(fn) }

func (w *world) Request(r *Request) { w.request(r) }

func (w *world) Ack(l *Layer, m *sipmsg.Message, from Peer) {
	w.acks++
	w.trace = append(w.trace, fmt.Sprintf("%s ack from %s", w.clock(), nameOf(from)))
}

func (w *world) Stray(l *Layer, m *sipmsg.Message, from Peer) {
	w.strays = append(w.strays, summary(m))
}

func (w *world) clock() string {
	return fmt.Sprintf("%.1f", time.Since(w.start).Seconds())
}

func nameOf(p Peer) string {
	if name, ok := names[p]; ok {
		return name
	}
	if p.Group != 0 {
		return fmt.Sprintf("group%d", p.Group)
	}
	return p.Flow.Remote.String()
}

func summary(m *sipmsg.Message) string {
	if m.IsRequest() {
		return m.Method()
	}
	_, method := m.CSeq()
	return fmt.Sprintf("%d %s", m.Status(), method)
}

// expect compares what was sent since it was last called with lines of
// "seconds > peer message".
func (w *world) expect(want string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if diff := cmp.Diff(lines, w.trace); diff != "" {
		w.t.Errorf("trace (-want +got):\n%s", diff)
	}
	w.trace = nil
}

// receive gives the layer a message.
func (w *world) receive(from Peer, text string) {
	w.t.Helper()
	m, err := sipmsg.Parse([]byte(text))
	if err != nil {
		w.t.Fatalf("parse: %v\n%s", err, text)
	}
	w.do(func() { w.layer.Receive(m, from) })
}

// last is the last message of that summary that was sent to a peer.
func (w *world) last(to Peer, what string) *sipmsg.Message {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.sent) - 1; i >= 0; i-- {
		if p := w.sent[i]; p.to == to && summary(p.m) == what {
			return p.m
		}
	}
	w.t.Fatalf("nothing sent to %s is %q", nameOf(to), what)
	return nil
}

// answer lets a peer answer the last request of that method it got. extra are
// further header lines.
func (w *world) answer(from Peer, method string, status int, extra ...string) {
	w.t.Helper()
	w.answerFrom(from, from, method, status, extra...)
}

// answerFrom has one peer answer what another one was asked.
func (w *world) answerFrom(at, from Peer, method string, status int, extra ...string) {
	w.t.Helper()
	resp := w.last(from, method).Response(status, "", "tag-"+nameOf(from))
	for _, line := range extra {
		name, value, _ := strings.Cut(line, ": ")
		resp.AddNamed(name, value)
	}
	w.receive(at, string(resp.Bytes()))
}

// ack acknowledges the last response of that summary, a non-2xx.
func (w *world) ack(from Peer, what string) {
	w.t.Helper()
	w.receive(from, call{method: "ACK", toTag: w.last(from, what).ToTag()}.String())
}

// call describes a request of a test's client.
type call struct {
	method, branch, via, uri, cseq, toTag string
	extra                                 []string // header lines
	hops                                  string   // Max-Forwards; "-" for none
}

func (c call) String() string {
	or := func(s, other string) string {
		if s == "" {
			return other
		}
		return s
	}
	method := or(c.method, "INVITE")
	cseq := method
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s SIP/2.0\r\n", method, or(c.uri, "sip:bob@ims.test"))
	fmt.Fprintf(&b, "Via: %s;branch=%s\r\n", or(c.via, "SIP/2.0/UDP 198.51.100.1:5062;rport"), or(c.branch, "z9hG4bKa1"))
	if c.hops != "-" {
		fmt.Fprintf(&b, "Max-Forwards: %s\r\n", or(c.hops, "70"))
	}
	b.WriteString("From: <sip:alice@ims.test>;tag=fa\r\nTo: <sip:bob@ims.test>")
	if c.toTag != "" {
		b.WriteString(";tag=" + c.toTag)
	}
	fmt.Fprintf(&b, "\r\nCall-ID: call-1\r\nCSeq: %s %s\r\n", or(c.cseq, "1"), cseq)
	for _, line := range c.extra {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("Content-Length: 0\r\n\r\n")
	return b.String()
}

// to forwards every request to these peers in parallel.
func to(peers ...Peer) func(r *Request) { return serially(peers) }

// serially forwards every request to groups of peers, one after the other.
func serially(groups ...[]Peer) func(r *Request) {
	return func(r *Request) { r.Forward(forward(r, groups...)) }
}

func forward(r *Request, groups ...[]Peer) Forward {
	var f Forward
	for _, peers := range groups {
		var targets []Target
		for _, p := range peers {
			m := r.Message.Clone()
			m.SetRequestURI("sip:" + nameOf(p) + "@device.test")
			targets = append(targets, Target{Message: m, To: p, Any: nameOf(p)})
		}
		f.Groups = append(f.Groups, targets)
	}
	return f
}
