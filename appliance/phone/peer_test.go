package phone

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/cscf/sipmsg"
	"bellwether/media/rtp"
)

// peer is a hand-driven user agent that talks to a phone without a core.
type peer struct {
	t     *testing.T
	conn  rtp.Conn
	addr  netip.AddrPort
	phone *Phone
	calls int
	rtp   netip.AddrPort // a socket that hears the phone
	audio rtp.Conn
	got   chan *sipmsg.Message
	done  chan struct{}
}

// meet runs a test of a phone and a peer in virtual time.
func meet(t *testing.T, edit func(*Config), f func(t *testing.T, p *peer)) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		p := &peer{t: t, got: make(chan *sipmsg.Message, 100), done: make(chan struct{})}
		var err error
		if p.conn, p.addr, err = n.listen(netip.MustParseAddrPort("192.0.2.8:0")); err != nil {
			t.Fatal(err)
		}
		if p.audio, p.rtp, err = n.listen(netip.MustParseAddrPort("192.0.2.8:0")); err != nil {
			t.Fatal(err)
		}
		cfg := Config{AOR: "sip:alice@ims.test", Domain: domain, Proxy: p.addr, LocalIP: netip.MustParseAddr("192.0.2.1"), ToneHz: 440, listen: n.listen}
		if edit != nil {
			edit(&cfg)
		}
		if p.phone, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		go p.read()
		defer func() {
			p.phone.Close()
			p.conn.Close()
			p.audio.Close()
			<-p.done
		}()
		f(t, p)
	})
}

func (p *peer) read() {
	defer close(p.done)
	buf := make([]byte, 64<<10)
	for {
		n, _, err := p.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		m, err := sipmsg.Parse([]byte(string(buf[:n])))
		if err != nil {
			continue // the answer to a message that lacked what an answer needs
		}
		p.got <- m
	}
}

func (p *peer) send(m *sipmsg.Message) {
	p.sendRaw(m.Bytes())
}

func (p *peer) sendRaw(b []byte) {
	if _, err := p.conn.WriteToUDPAddrPort(b, p.phone.Addr()); err != nil {
		p.t.Error(err)
	}
}

// next returns the next message with a status, or a request with status 0; the
// time that it may take is virtual.
func (p *peer) next(status int) *sipmsg.Message {
	p.t.Helper()
	for {
		select {
		case m := <-p.got:
			if m.Status() == status {
				return m
			}
			if m.Status() != 100 {
				p.t.Fatalf("got %q, want status %d", m.Bytes(), status)
			}
		case <-time.After(100 * time.Second):
			p.t.Fatalf("nothing came, want status %d", status)
		}
	}
}

// silent fails if anything comes within d.
func (p *peer) silent(d time.Duration) {
	p.t.Helper()
	select {
	case m := <-p.got:
		p.t.Errorf("got %q", m.Bytes())
	case <-time.After(d):
	}
}

// request builds one in the dialog of the last INVITE, or out of one if toTag
// is empty.
func (p *peer) request(method string, cseq int, toTag string) *sipmsg.Message {
	m := sipmsg.NewRequest(method, "sip:alice@"+p.phone.Addr().String())
	m.Add(sipmsg.ViaHeader, fmt.Sprintf("SIP/2.0/UDP %v;branch=z9hG4bK%d-%s-%d;rport", p.addr, p.calls, method, cseq))
	m.Add(sipmsg.MaxForwards, "70")
	m.Add(sipmsg.From, "<sip:peer@ims.test>;tag=peer")
	to := "<sip:alice@ims.test>"
	if toTag != "" {
		to += ";tag=" + toTag
	}
	m.Add(sipmsg.To, to)
	m.Add(sipmsg.CallID, fmt.Sprint("call-", p.calls))
	m.Add(sipmsg.CSeq, fmt.Sprint(cseq, " ", method))
	m.Add(sipmsg.Contact, fmt.Sprintf("<sip:peer@%v>", p.addr))
	return m
}

func (p *peer) offer(lines ...string) []byte {
	return sdp(append([]string{"c=IN IP4 192.0.2.8", fmt.Sprintf("m=audio %d RTP/AVP 8", p.rtp.Port())}, lines...)...)
}

// call calls the phone and returns the tag of its answer.
func (p *peer) call() (toTag string) {
	p.t.Helper()
	p.calls++
	m := p.request("INVITE", 1, "")
	m.SetBody("application/sdp", p.offer())
	p.send(m)
	ringing := p.next(180)
	ok := p.next(200)
	if ringing.ToTag() == "" || ringing.ToTag() != ok.ToTag() {
		p.t.Errorf("tags of 180 and 200 are %q and %q", ringing.ToTag(), ok.ToTag())
	}
	p.send(p.request("ACK", 1, ok.ToTag()))
	return ok.ToTag()
}

// hears reports whether audio of the phone comes within a while.
func (p *peer) hears() bool {
	for {
		synctest.Wait()
		s := p.audio.(*sock)
		for len(s.in) > 0 {
			<-s.in
		}
		time.Sleep(100 * time.Millisecond)
		return len(s.in) > 0
	}
}

// answer is the peer's answer to an INVITE of the phone.
func (p *peer) answer(invite *sipmsg.Message, status int, tag string) *sipmsg.Message {
	res := invite.Response(status, "", tag)
	res.Add(sipmsg.Contact, fmt.Sprintf("<sip:peer@%v>", p.addr))
	if status == 200 {
		res.SetBody("application/sdp", p.offer("a=x-tone:620"))
	}
	return res
}
