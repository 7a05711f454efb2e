package transaction

import (
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
// ACK, BYE, 200. That is eight messages in (with a 100 from downstream) and
// eight out. Parsing, which the caller does, is measured too.
func BenchmarkProxiedCall(b *testing.B) {
	sdp := "v=0\r\no=- 1 1 IN IP4 198.51.100.1\r\ns=-\r\nc=IN IP4 198.51.100.1\r\nt=0 0\r\nm=audio 4000 RTP/AVP 8 0\r\na=rtpmap:8 PCMA/8000\r\n"
	for _, c := range []struct {
		name     string
		up, down Peer
	}{{"UDP", alice, bob}, {"engines", near, Peer{Group: 5, InProcess: true}}} {
		b.Run(c.name, func(b *testing.B) {
			env := &still{}
			l := New(testConfig, env, pipe{c.down})
			extra := []string{
				"Contact: <sip:alice@198.51.100.1:5062>", "Route: <sip:tok1@192.0.2.1;lr>", "Supported: path, 100rel, timer",
				"Allow: INVITE, ACK, CANCEL, BYE, PRACK, UPDATE, MESSAGE", "User-Agent: bench",
			}
			receive := func(from Peer, raw []byte) {
				m, err := sipmsg.Parse(raw)
				if err != nil {
					b.Fatal(err)
				}
				l.Receive(m, from)
			}
			// answer makes a response to the last request the layer sent.
			answer := func(request []byte, statuses ...string) {
				text := string(request)
				headers := text[strings.Index(text, "\r\n"):]
				for _, status := range statuses {
					receive(c.down, []byte("SIP/2.0 "+status+headers))
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				env.sent = env.sent[:0]
				id := strconv.Itoa(i)
				invite := call{branch: "z9hG4bKi" + id, extra: extra}.String()
				invite = strings.Replace(invite, "Content-Length: 0\r\n\r\n", "Content-Type: application/sdp\r\nContent-Length: "+strconv.Itoa(len(sdp))+"\r\n\r\n"+sdp, 1)
				receive(c.up, []byte(invite))
				answer(env.sent[1], "100 Trying", "180 Ringing", "200 OK")
				receive(c.up, []byte(call{method: "ACK", branch: "z9hG4bKa" + id, toTag: "t", extra: extra}.String()))
				receive(c.up, []byte(call{method: "BYE", branch: "z9hG4bKb" + id, toTag: "t", extra: extra}.String()))
				answer(env.sent[len(env.sent)-1], "200 OK")
				if len(env.sent) != 7 {
					b.Fatalf("%d messages sent", len(env.sent))
				}
				b.StopTimer()
				for _, s := range l.servers {
					s.terminate()
				}
				for _, c := range l.clients {
					c.terminate()
				}
				b.StartTimer()
			}
		})
	}
}
