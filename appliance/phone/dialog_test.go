package phone

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/cscf/sipmsg"
)

func TestRequestsWithinADialog(t *testing.T) {
	meet(t, nil, func(t *testing.T, p *peer) {
		tag := p.call()
		if !p.hears() {
			t.Error("no sound after the ACK")
		}
		for i, tt := range []struct {
			method, body string
			status       int
			direction    string
			sound        bool
		}{
			{"OPTIONS", "", 200, "", true},
			{"INFO", "", 200, "", true},
			{"UPDATE", "", 200, "", true},
			{"UPDATE", "a=sendonly", 200, "a=recvonly", false},
			{"INVITE", "a=sendrecv", 200, "a=sendrecv", true},
			{"INVITE", "a=inactive", 200, "a=inactive", false},
			{"INVITE", "none", 200, "a=sendrecv", true},
			{"PRACK", "", 400, "", true},
			{"REFER", "", 405, "", true},
			{"SUBSCRIBE", "", 405, "", true},
		} {
			seq := i + 2
			m := p.request(tt.method, seq, tag)
			if tt.body != "" && tt.body != "none" {
				m.SetBody("application/sdp", p.offer(tt.body))
			}
			p.send(m)
			res := p.next(tt.status)
			if !strings.Contains(string(res.Body()), tt.direction) {
				t.Errorf("%s %s was answered %q", tt.method, tt.body, res.Body())
			}
			if tt.method == "INVITE" {
				time.Sleep(3 * time.Second) // it is repeated until the ACK
				p.next(200)
				p.next(200)
				ack := p.request("ACK", seq, tag)
				if tt.body == "none" {
					ack.SetBody("application/sdp", p.offer())
				}
				p.send(ack)
			}
			if got := p.hears(); got != tt.sound {
				t.Errorf("after %s %s there is sound: %v", tt.method, tt.body, got)
			}
		}
		p.send(p.request("BYE", 1, tag))
		p.next(500) // its number is old
		p.send(p.request("BYE", 50, "other"))
		p.next(481)
		p.send(p.request("BYE", 51, tag))
		p.next(200)
		p.send(p.request("BYE", 51, tag)) // repeated
		p.next(200)
		if p.hears() {
			t.Error("there is sound after the BYE")
		}
		m := p.request("INVITE", 52, tag)
		m.SetBody("application/sdp", p.offer())
		p.send(m)
		p.next(481)
		ack := p.request("ACK", 52, tag)
		ack.ReplaceTop(sipmsg.ViaHeader, fmt.Sprintf("SIP/2.0/UDP %v;branch=z9hG4bK%d-INVITE-52;rport", p.addr, p.calls))
		p.send(ack)
		p.silent(time.Minute)
	})
}

func TestRequestsOutsideOfADialog(t *testing.T) {
	tests := []struct {
		name   string
		edit   func(m *sipmsg.Message)
		method string
		status int
		header string
	}{
		{"OPTIONS", nil, "OPTIONS", 200, "Allow: INVITE"},
		{"MESSAGE without a taker", nil, "MESSAGE", 200, ""},
		{"BYE of no call", nil, "BYE", 481, ""},
		{"PRACK of no call", nil, "PRACK", 481, ""},
		{"CANCEL of no call", nil, "CANCEL", 481, ""},
		{"an unknown method", nil, "DANCE", 405, "Allow: INVITE"},
		{"an extension that is not known", func(m *sipmsg.Message) { m.Add(sipmsg.Require, "100rel, timer") }, "INVITE", 420, "Unsupported: timer"},
		{"a body that is no session", func(m *sipmsg.Message) { m.SetBody("text/plain", []byte("hello")) }, "INVITE", 415, "Accept: application/sdp"},
		{"a session without a common codec", func(m *sipmsg.Message) {
			m.SetBody("application/sdp", sdp("c=IN IP4 192.0.2.8", "m=audio 4 RTP/AVP 96"))
		}, "INVITE", 488, ""},
		{"a malformed message", func(m *sipmsg.Message) { m.Set(sipmsg.CSeq, "1 OTHER") }, "OPTIONS", 400, ""},
		{"a version of the future", nil, "SIP/7.0", 505, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			meet(t, nil, func(t *testing.T, p *peer) {
				method := tt.method
				if method == "SIP/7.0" {
					method = "OPTIONS"
				}
				m := p.request(method, 1, "")
				if tt.edit != nil {
					tt.edit(m)
				}
				raw := string(m.Bytes())
				if tt.method == "SIP/7.0" {
					raw = strings.Replace(raw, "SIP/2.0\r\n", "SIP/7.0\r\n", 1)
				}
				p.sendRaw([]byte(raw))
				res := p.next(tt.status)
				if res.ToTag() == "" || !strings.Contains(string(res.Bytes()), tt.header) {
					t.Errorf("answered %q", res.Bytes())
				}
			})
		})
	}
}

func TestJunkIsIgnored(t *testing.T) {
	meet(t, nil, func(t *testing.T, p *peer) {
		options := string(p.request("OPTIONS", 1, "").Bytes())
		for _, junk := range []string{
			"", "\r\n\r\n", "\x00\x00", "junk", "INVITE", "SIP/2.0 200 OK\r\n\r\n",
			strings.Replace(options, "Call-ID", "X-Call-ID", 1)[:len(options)/2],
			options[:len(options)-2] + strings.Repeat("X: y\r\n", 4000) + "\r\n",
			strings.Replace(options, "OPTIONS sip", "ACK sip", 1),
		} {
			p.sendRaw([]byte(junk))
		}
		for {
			synctest.Wait()
			select {
			case m := <-p.got:
				if m.Status() != 400 {
					t.Errorf("junk was answered %q", m.Bytes())
				}
				continue
			default:
			}
			break
		}
		p.calls++
		p.send(p.request("OPTIONS", 1, ""))
		p.next(200)
	})
}

func TestCallWithoutAnOffer(t *testing.T) {
	meet(t, nil, func(t *testing.T, p *peer) {
		p.calls++
		p.send(p.request("INVITE", 1, ""))
		p.next(180)
		ok := p.next(200)
		if _, err := parseSession(ok.Body()); err != nil {
			t.Fatalf("the 200 has no offer: %v", err)
		}
		ack := p.request("ACK", 1, ok.ToTag())
		ack.SetBody("application/sdp", p.offer())
		p.send(ack)
		if !p.hears() {
			t.Error("no sound after the answer")
		}
		p.send(p.request("BYE", 2, ok.ToTag()))
		p.next(200)

		p.calls++
		p.send(p.request("INVITE", 1, ""))
		p.next(180)
		ok = p.next(200)
		p.send(p.request("ACK", 1, ok.ToTag())) // no answer
		bye := p.next(0)
		if bye.Method() != "BYE" {
			t.Errorf("got %q", bye.Bytes())
		}
		p.send(bye.Response(200, "", ""))
	})
}

func TestAnswerThatIsNeverAcknowledgedIsHungUp(t *testing.T) {
	meet(t, nil, func(t *testing.T, p *peer) {
		p.calls++
		m := p.request("INVITE", 1, "")
		m.SetBody("application/sdp", p.offer())
		p.send(m)
		p.next(180)
		began := time.Now()
		for n := 0; ; n++ {
			m := <-p.got
			if m.Status() == 200 {
				continue
			}
			if m.Method() != "BYE" || time.Since(began) != 32*time.Second || n != 11 {
				t.Errorf("after %v and %d answers came %q", time.Since(began), n, m.Bytes())
			}
			p.send(m.Response(200, "", ""))
			return
		}
	})
}

func TestSameCallByTwoWaysIsAnsweredOnce(t *testing.T) {
	meet(t, func(c *Config) { c.Mode = NoAnswer }, func(t *testing.T, p *peer) {
		p.calls++
		m := p.request("INVITE", 1, "")
		p.send(m)
		p.next(180)
		p.send(m) // repeated: the same transaction
		p.next(180)
		m.ReplaceTop(sipmsg.ViaHeader, fmt.Sprintf("SIP/2.0/UDP %v;branch=z9hG4bKother", p.addr))
		p.send(m)
		p.next(482)
	})
}

func TestCancelledCallHasOneTag(t *testing.T) {
	meet(t, func(c *Config) { c.Mode = NoAnswer }, func(t *testing.T, p *peer) {
		p.calls++
		invite := p.request("INVITE", 1, "")
		p.send(invite)
		tag := p.next(180).ToTag()
		via, _ := invite.Value(sipmsg.ViaHeader)
		cancel := p.request("CANCEL", 1, "")
		cancel.Set(sipmsg.ViaHeader, via)
		p.send(cancel)
		if ok := p.next(200); ok.ToTag() != tag {
			t.Errorf("the 200 to the CANCEL has tag %q, the 180 %q", ok.ToTag(), tag)
		}
		if res := p.next(487); res.ToTag() != tag {
			t.Errorf("the 487 has tag %q, the 180 %q", res.ToTag(), tag)
		}
		ack := p.request("ACK", 1, tag)
		ack.Set(sipmsg.ViaHeader, via)
		p.send(ack)
		p.silent(time.Minute)
	})
}

func TestByeWhileItRingsEndsTheCall(t *testing.T) {
	for _, reliable := range []bool{false, true} {
		meet(t, func(c *Config) { c.Mode = NoAnswer; c.Reliable = reliable }, func(t *testing.T, p *peer) {
			p.calls++
			invite := p.request("INVITE", 1, "")
			invite.Add(sipmsg.Supported, "100rel")
			p.send(invite)
			tag := p.next(180).ToTag()
			p.send(p.request("BYE", 2, tag))
			p.next(200)
			p.next(487)
		})
	}
}

func TestCancelAfterTheAnswerChangesNothing(t *testing.T) {
	meet(t, nil, func(t *testing.T, p *peer) {
		tag := p.call()
		cancel := p.request("CANCEL", 1, "")
		cancel.Set(sipmsg.ViaHeader, fmt.Sprintf("SIP/2.0/UDP %v;branch=z9hG4bK%d-INVITE-1;rport", p.addr, p.calls))
		p.send(cancel)
		p.next(200)
		if !p.hears() {
			t.Error("the call has ended")
		}
		p.send(p.request("BYE", 2, tag))
		p.next(200)
	})
}

func TestSecondAnswerOfAForkIsHungUp(t *testing.T) {
	meet(t, nil, func(t *testing.T, p *peer) {
		result := make(chan Result, 1)
		go func() {
			r, err := p.phone.Call(t.Context(), "sip:peer@ims.test", CallOptions{Hold: 5 * time.Second})
			if err != nil {
				t.Error(err)
			}
			result <- r
		}()
		invite := p.next(0)
		p.send(p.answer(invite, 200, "one"))
		if ack := p.next(0); ack.Method() != "ACK" || ack.ToTag() != "one" {
			t.Errorf("got %q", ack.Bytes())
		}
		p.send(p.answer(invite, 200, "two"))
		if ack := p.next(0); ack.Method() != "ACK" || ack.ToTag() != "two" {
			t.Errorf("got %q", ack.Bytes())
		}
		bye := p.next(0)
		if bye.Method() != "BYE" || bye.ToTag() != "two" {
			t.Errorf("got %q", bye.Bytes())
		}
		p.send(bye.Response(200, "", ""))
		bye = p.next(0)
		if bye.Method() != "BYE" || bye.ToTag() != "one" {
			t.Errorf("got %q", bye.Bytes())
		}
		p.send(bye.Response(200, "", ""))
		if r := <-result; r.Status != 200 || r.Talk != 5*time.Second {
			t.Errorf("got %+v", r)
		}
	})
}

func TestCancelWaitsForAProvisionalResponse(t *testing.T) {
	meet(t, nil, func(t *testing.T, p *peer) {
		result := make(chan Result, 1)
		go func() {
			r, _ := p.phone.Call(t.Context(), "sip:peer@ims.test", CallOptions{CancelAfter: 100 * time.Millisecond})
			result <- r
		}()
		invite := p.next(0)
		p.silent(400 * time.Millisecond)
		p.send(invite.Response(100, "", ""))
		cancel := p.next(0)
		a, _ := invite.TopVia()
		b, _ := cancel.TopVia()
		if cancel.Method() != "CANCEL" || a.Branch() != b.Branch() || cancel.RequestURI() != invite.RequestURI() {
			t.Errorf("got %q", cancel.Bytes())
		}
		p.send(cancel.Response(200, "", "peer"))
		// The answer was on its way already: it wins, and is hung up.
		p.send(p.answer(invite, 200, "peer"))
		if ack := p.next(0); ack.Method() != "ACK" {
			t.Errorf("got %q", ack.Bytes())
		}
		bye := p.next(0)
		if bye.Method() != "BYE" {
			t.Errorf("got %q", bye.Bytes())
		}
		p.send(bye.Response(200, "", ""))
		if r := <-result; r.Status != 200 {
			t.Errorf("got %+v", r)
		}
	})
}

func TestUnusableAnswerIsHungUp(t *testing.T) {
	meet(t, nil, func(t *testing.T, p *peer) {
		result := make(chan error, 1)
		go func() {
			_, err := p.phone.Call(t.Context(), "sip:peer@ims.test", CallOptions{Hold: time.Hour})
			result <- err
		}()
		res := p.answer(p.next(0), 200, "peer")
		res.SetBody("application/sdp", sdp("c=IN IP4 192.0.2.8", "m=audio 0 RTP/AVP 8"))
		p.send(res)
		if ack := p.next(0); ack.Method() != "ACK" {
			t.Errorf("got %q", ack.Bytes())
		}
		bye := p.next(0)
		p.send(bye.Response(200, "", ""))
		if err := <-result; err == nil || bye.Method() != "BYE" {
			t.Errorf("%v, %q", err, bye.Bytes())
		}
	})
}

func TestINVITEIsAnsweredToAChallenge(t *testing.T) {
	meet(t, func(c *Config) { c.Password = "x" }, func(t *testing.T, p *peer) {
		result := make(chan Result, 1)
		go func() {
			r, _ := p.phone.Call(t.Context(), "sip:peer@ims.test", CallOptions{})
			result <- r
		}()
		invite := p.next(0)
		res := invite.Response(407, "", "a")
		res.Add(sipmsg.ProxyAuthenticate, `Digest realm="r", nonce="n", qop="auth,auth-int"`)
		p.send(res)
		if ack := p.next(0); ack.Method() != "ACK" || ack.ToTag() != "a" {
			t.Errorf("got %q", ack.Bytes())
		}
		second := p.next(0)
		n, _ := second.CSeq()
		if auth, ok := second.Value(sipmsg.ProxyAuthorization); !ok || !strings.Contains(auth, `username="alice@ims.test"`) || n != 2 || second.CallID() != invite.CallID() {
			t.Errorf("got %q", second.Bytes())
		}
		p.send(second.Response(603, "", "b"))
		p.next(0) // ACK
		if r := <-result; r.Status != 603 || r.Reason != "Decline" {
			t.Errorf("got %+v", r)
		}
	})
}

func TestResponsesLeaveByTheRulesOfTheVia(t *testing.T) {
	meet(t, nil, func(t *testing.T, p *peer) {
		m := p.request("OPTIONS", 1, "")
		m.Set(sipmsg.ViaHeader, fmt.Sprintf("SIP/2.0/UDP behind.nat:1;branch=z9hG4bKnat;rport, SIP/2.0/UDP first:2;branch=z9hG4bKfirst;x=%s", `"a,b"`))
		p.send(m)
		res := p.next(200)
		via, _ := res.TopVia()
		if v, _ := via.Params.Value("received"); v != p.addr.Addr().String() {
			t.Errorf("received is %q", v)
		}
		if v, _ := via.Params.Value("rport"); v != fmt.Sprint(p.addr.Port()) {
			t.Errorf("rport is %q", v)
		}
		n := 0
		for range res.Elements(sipmsg.ViaHeader) {
			n++
		}
		if n != 2 {
			t.Errorf("the response has %d Via: %q", n, res.Bytes())
		}
		p.calls++
		m = p.request("OPTIONS", 2, "")
		m.Set(sipmsg.ViaHeader, fmt.Sprintf("SIP/2.0/UDP %v:%d;branch=z9hG4bKport", "behind.nat", p.addr.Port()))
		p.send(m)
		if via, _ := p.next(200).TopVia(); !via.Params.Has("received") {
			t.Errorf("got %v", via)
		}
	})
}

func FuzzDatagram(f *testing.F) {
	n := newNetwork()
	cfg := Config{AOR: "sip:alice@ims.test", Domain: domain, Proxy: netip.MustParseAddrPort("192.0.2.8:5060"), LocalIP: netip.MustParseAddr("192.0.2.1"), listen: n.listen}
	p, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(p.Close)
	from := netip.MustParseAddrPort("192.0.2.8:5060")
	seed := &peer{phone: p, addr: from, rtp: netip.MustParseAddrPort("192.0.2.8:6000")}
	for _, method := range []string{"INVITE", "ACK", "CANCEL", "BYE", "PRACK", "UPDATE", "MESSAGE", "OPTIONS"} {
		m := seed.request(method, 1, "")
		m.Add(sipmsg.RAck, "1 1 INVITE")
		m.Add(sipmsg.RecordRoute, "<sip:a@192.0.2.8;lr>, <sip:b@192.0.2.8:4060;lr>")
		m.SetBody("application/sdp", seed.offer())
		f.Add(m.Bytes())
	}
	f.Add(seed.request("INVITE", 1, "").Response(200, "", "x").Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		p.ep.receive(b, from)
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.calls) > maxCalls {
			t.Errorf("%d calls", len(p.calls))
		}
	})
}
