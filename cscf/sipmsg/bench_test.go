package sipmsg

import "testing"

var invite = crlf(`INVITE sip:bob@ims.example.org SIP/2.0
Via: SIP/2.0/UDP 10.20.30.40:5060;rport;branch=z9hG4bK-524287-1---a5f2b0c4d1e6f708
Max-Forwards: 70
Route: <sip:192.0.2.10:5060;lr>, <sip:aebagbaf3q5c2mzr7xk4hdyn6wva2p4e7i@192.0.2.11:6060;lr>
Contact: <sip:alice@10.20.30.40:5060;transport=udp>;+g.3gpp.icsi-ref="urn%3Aurn-7%3A3gpp-service.ims.icsi.mmtel"
To: <sip:bob@ims.example.org>
From: "Alice, Example" <sip:alice@ims.example.org>;tag=5e1d9c20
Call-ID: 6q3Zy2bVfW0Yt8nL-1kR4w..@10.20.30.40
CSeq: 1 INVITE
P-Preferred-Identity: <sip:alice@ims.example.org>
Supported: 100rel, timer, gruu
Content-Type: application/sdp
Content-Length: 131

v=0
o=- 1 1 IN IP4 10.20.30.40
s=-
c=IN IP4 10.20.30.40
t=0 0
m=audio 40000 RTP/AVP 8 101
a=rtpmap:101 telephone-event/8000
`)

func BenchmarkParse(b *testing.B) {
	for name, raw := range map[string][]byte{"REGISTER": register, "INVITE": invite} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(raw)))
			var m Message
			for b.Loop() {
				if err := m.Parse(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkForward does what a proxy does to a request: parse, look, take one
// hop off Max-Forwards, pop a Route, push a Via, write.
func BenchmarkForward(b *testing.B) {
	b.ReportAllocs()
	var m Message
	var out []byte
	for b.Loop() {
		if err := m.Parse(invite); err != nil {
			b.Fatal(err)
		}
		m.TopVia()
		m.Set(MaxForwards, "69")
		m.Pop(Route)
		m.Push(ViaHeader, "SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKaebagbaf3q5c2mzr7xk4hdyn6wva2p4e7i.5f1c0d9a77e1b3c8")
		out = m.Append(out[:0])
	}
}

func BenchmarkAccessors(b *testing.B) {
	m := mustParse(b, invite)
	b.ReportAllocs()
	for b.Loop() {
		m.Value(ContentLength)
		m.TopVia()
		m.TopRoute()
		m.CallID()
		m.CSeq()
	}
}

func BenchmarkResponse(b *testing.B) {
	m := mustParse(b, invite)
	b.ReportAllocs()
	for b.Loop() {
		m.Response(100, "", "").Bytes()
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	var m Message
	var out []byte
	parsed := mustParse(t, invite)
	bad, keepAlive := with("CSeq -> X"), []byte("\r\n\r\n")
	tests := []struct {
		name string
		run  func()
	}{
		{"parsing a REGISTER", func() { m.Parse(register) }},
		{"parsing an INVITE", func() { m.Parse(invite) }},
		{"refusing a message", func() { m.Parse(bad) }},
		{"dropping a keep-alive", func() { m.Parse(keepAlive) }},
		{"Value", func() { parsed.Value(ContentLength) }},
		{"TopVia", func() { parsed.TopVia() }},
		{"TopRoute", func() { parsed.TopRoute() }},
		{"CallID and CSeq", func() { parsed.CallID(); parsed.CSeq() }},
		{"tags and Max-Forwards", func() { parsed.FromTag(); parsed.ToTag(); parsed.MaxForwards() }},
		{"a walk over elements", func() {
			for e := range parsed.Elements(Route) {
				ParseNameAddr(e)
			}
		}},
		{"editing and writing", func() {
			m.Parse(invite)
			m.Set(MaxForwards, "69")
			m.Push(ViaHeader, "SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKx")
			m.Pop(Route)
			out = m.Append(out[:0])
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if n := testing.AllocsPerRun(200, tt.run); n != 0 {
				t.Errorf("%v allocations, want none", n)
			}
		})
	}
}
