package transaction

import (
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

// still is an Env in which no time passes, for measuring the layer alone.
type still struct{ sent [][]byte }

func (s *still) Now() time.Time                         { return time.Unix(1e9, 0) }
func (s *still) Send(to Peer, raw []byte)               { s.sent = append(s.sent, raw) }
func (s *still) After(time.Duration, func()) (f func()) { return func() {} }
func (s *still) Post(fn func())                         { fn() }

// pipe forwards everything to one peer.
type pipe struct{ to Peer }

func (p pipe) Request(r *Request) {
	r.Forward(Forward{Groups: [][]Target{{{Message: r.Message.Clone(), To: p.to}}}})
}
func (p pipe) Ack(l *Layer, m *sipmsg.Message, from Peer)   { l.Relay(m, p.to) }
func (p pipe) Stray(l *Layer, m *sipmsg.Message, from Peer) {}

// BenchmarkProxiedCall is one call through one layer: INVITE, 100, 180, 200,
// ACK, BYE, 200, seven messages in and seven out. Parsing them, which is the
// caller's, is measured apart.
func BenchmarkProxiedCall(b *testing.B) {
	sdp := "v=0\r\no=- 1 1 IN IP4 198.51.100.1\r\ns=-\r\nc=IN IP4 198.51.100.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 8 0\r\na=rtpmap:8 PCMA/8000\r\n"
	extra := []string{
		"Contact: <sip:alice@198.51.100.1:5062>", "Route: <sip:tok1@192.0.2.1;lr>", "Supported: path, 100rel, timer",
		"Allow: INVITE, ACK, CANCEL, BYE, PRACK, UPDATE, MESSAGE", "User-Agent: bench",
	}
	invite := strings.Replace(call{extra: extra}.String(), "Content-Length: 0\r\n\r\n",
		"Content-Type: application/sdp\r\nContent-Length: "+strconv.Itoa(len(sdp))+"\r\n\r\n"+sdp, 1)
	ack := call{method: "ACK", branch: "z9hG4bKack", toTag: "t", extra: extra}.String()
	bye := call{method: "BYE", branch: "z9hG4bKbye", toTag: "t", extra: extra}.String()

	for _, c := range []struct {
		name     string
		up, down Peer
	}{{"UDP", alice, bob}, {"engines", near, Peer{Group: 5, InProcess: true}}} {
		env := &still{}
		l := New(testConfig, env, pipe{c.down})
		var script [][]byte
		var from []Peer
		receive := func(peer Peer, raw []byte) {
			m, err := sipmsg.Parse(raw)
			if err != nil {
				b.Fatal(err)
			}
			l.Receive(m, peer)
		}
		add := func(peer Peer, raw string) {
			script, from = append(script, []byte(raw)), append(from, peer)
			receive(peer, []byte(raw))
		}
		answer := func(statuses ...string) { // to the last request sent
			_, headers, _ := strings.Cut(string(env.sent[len(env.sent)-1]), "\r\n")
			for _, status := range statuses {
				add(c.down, "SIP/2.0 "+status+"\r\n"+headers)
			}
		}
		forget := func() {
			env.sent = env.sent[:0]
			for _, s := range l.servers {
				s.terminate()
			}
			for _, c := range l.clients {
				c.terminate()
			}
		}
		add(c.up, invite)
		answer("100 Trying", "180 Ringing", "200 OK")
		add(c.up, ack)
		add(c.up, bye)
		answer("200 OK")

		b.Run(c.name+"/parse", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, raw := range script {
					if _, err := sipmsg.Parse(raw); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		b.Run(c.name+"/parse-and-proxy", func(b *testing.B) {
			forget()
			b.ReportAllocs()
			for b.Loop() {
				for i, raw := range script {
					receive(from[i], raw)
				}
				if len(env.sent) != 7 {
					b.Fatalf("%d messages sent", len(env.sent))
				}
				forget()
			}
		})
	}
}

// timed is still with real timers, which take memory, too. None ends here.
type timed struct{ still }

func (t *timed) Send(Peer, []byte) {}
func (t *timed) After(d time.Duration, fn func()) func() {
	timer := time.AfterFunc(d+time.Hour, fn)
	return func() { timer.Stop() }
}

// role is a User of one function.
type role struct {
	pipe
	request func(r *Request)
}

func (u role) Request(r *Request) { u.request(r) }

// BenchmarkMemory is what one transaction keeps, as bytes of heap.
func BenchmarkMemory(b *testing.B) {
	forward := func(r *Request) { pipe{near}.Request(r) }
	for _, c := range []struct {
		name, method string
		request      func(r *Request)
	}{
		{"stranger refused", "INVITE", func(r *Request) { r.ReplyStateless(403, "", nil) }},
		{"refusal that waits for repeats", "REGISTER", func(r *Request) { r.Reply(401, "", nil) }},
		{"registration in progress", "REGISTER", forward},
		{"call that rings", "INVITE", forward},
	} {
		b.Run(c.name, func(b *testing.B) {
			const n = 20_000
			for b.Loop() {
				l := New(testConfig, &timed{}, role{request: c.request})
				before := heap()
				for i := range n {
					m, err := sipmsg.Parse([]byte(call{method: c.method, branch: "z9hG4bK" + strconv.Itoa(i)}.String()))
					if err != nil {
						b.Fatal(err)
					}
					l.Receive(m, alice)
				}
				b.ReportMetric(float64(int64(heap())-int64(before))/n, "B/transaction")
				runtime.KeepAlive(l)
			}
		})
	}
}

// heap is the number of bytes in use after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
