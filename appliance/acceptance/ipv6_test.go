package acceptance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/cscf/sipmsg"
)

// RFC 5118: the IPv6 forms of its sections 4.1 to 4.10, from phones over IPv6,
// UDP and TCP, to a phone over IPv4: a reference in brackets counts as the RFC
// says in Request-URI, Via, Contact and session description, and an address
// without brackets or with a colon too many is answered 400.
func TestIPv6FormsThroughTheCore(t *testing.T) {
	t.Parallel()
	c := start(t, alone, func(s *localcluster.Spec) {
		freePorts(t, s)
		s.Nodes[0].Address6 = netip.IPv6Loopback()
	})
	n := c.Nodes[0]
	p := partiesAt(t, c, n, n, "v6", "UDP", "UDP", func(m *sipmsg.Message) []int {
		if m.Method() == "INVITE" {
			return []int{486}
		}
		return []int{200}
	})
	for i, transport := range []string{"UDP", "TCP"} {
		t.Run("over "+transport, func(t *testing.T) {
			w := openWire(t, transport, netip.IPv6Loopback(), n.P6())
			user := subscribe(t, c, "six"+strings.ToLower(transport), 1)[0]
			w.register(t, user) // §4.1
			p := *p
			p.caller = w
			me := netip.MustParseAddrPort(w.local)

			for _, uri := range []string{"sip:2001:db8::10", "sip:user@2001:db8::10", "sip:user@[2001:db8:::192.0.2.1]", "sip:user@[2001:db8::10", "sip:user@[fe80::1%25lo]"} { // §4.2, §4.10
				refused(t, w, text(w.initial("MESSAGE", uri), ""), 400)
			}

			// §4.3, §4.4, §4.9: what is the port decides what is another contact.
			second := subscribe(t, c, fmt.Sprintf("ports%d", i), 1)[0]
			other := openWire(t, transport, netip.IPv6Loopback(), n.P6())
			for k, contact := range []string{
				"sip:a@[2001:db8::10:5070]", "sip:a@[2001:db8::10]:5070", "sip:a@[::ffff:192.0.2.10]", "sip:a@[2001:DB8:0:0::10]:5070",
			} {
				a := other.registration(t, second, "SHA-256", "Contact: <"+contact+">", "Expires: 600")
				if got := slices.Collect(a.Elements(sipmsg.Contact)); a.status != 200 || len(got) != min(k+1, 3) {
					t.Errorf("after %s: %d %s, registered is %q", contact, a.status, a.Reason(), got)
				}
			}

			// §4.5, §4.7: Vias of both families, received with and without brackets.
			vias := "SIP/2.0/UDP [2001:db8::9:1]:6050;received=[2001:db8::9:255];branch=z9hG4bKas3-111, " +
				"SIP/2.0/TCP [2001:db8::9:1];received=2001:db8::9:255;branch=z9hG4bK451jj, SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKjhja8781"
			l := w.initial("MESSAGE", p.peer)
			l = slices.Insert(l, 2, "Via: "+vias)
			m, raw := p.deliver(t, text(l, ""))
			got := slices.Collect(m.Elements(sipmsg.ViaHeader))
			if want := strings.Split(vias, ", "); len(got) != hops+4 || !slices.Equal(got[hops+1:], want) {
				t.Errorf("the Vias are %q", got)
			}
			if top, _ := m.TopVia(); top.Host != n.Address.String() {
				t.Errorf("towards a phone over IPv4 the core is %s:\n%s", top.Host, raw)
			}

			// §4.6, §4.8: a session over IPv6.
			body := "v=0\r\no=bob 280744730 28977631 IN IP6 2001:db8::20\r\ns=\r\nc=IN IP6 2001:db8::1\r\nt=0 0\r\n" +
				"m=audio 22334 RTP/AVP 0\r\nc=IN IP6 ::ffff:192.0.2.10\r\nm=video 6024 RTP/AVP 107\r\nc=IN IP6 2001:db8::1\r\n"
			refused(t, w, text(w.initial("INVITE", p.peer, "Content-Type: application/sdp"), body), 486)
			if m, _ := p.callee.take(t, "INVITE"); string(m.Body()) != body {
				t.Errorf("the session description came as\n%s", m.Body())
			}

			// received of ours has no brackets, and answers find their way.
			l = w.initial("MESSAGE", p.peer)
			l[1] = w.via(fmt.Sprintf("[2001:db8::9:1]:%d", me.Port()), "")
			a := refused(t, w, text(l, ""), 200)
			p.callee.take(t, "MESSAGE")
			if via, _ := a.TopVia(); via.Host != "[2001:db8::9:1]" || !strings.Contains(string(via.Params), "received=::1") {
				t.Errorf("the Via came back as %q", via)
			}
		})
	}
	// And the other way: what the phone over IPv6 gets shows the core's IPv6 address.
	w := newWire(t, netip.IPv6Loopback(), n.P6())
	w.register(t, subscribe(t, c, "sixcallee", 1)[0])
	far := w.serve(t, always(200))
	for end := time.Now().Add(10 * time.Second); ; {
		a := p.caller.final(t, text(p.caller.initial("MESSAGE", "sip:"+w.user+"@"+domain), "hello"))
		if a.status == 200 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("answered %d", a.status)
		}
	}
	if m, raw := far.take(t, "MESSAGE"); !strings.HasPrefix(value(m, sipmsg.ViaHeader), "SIP/2.0/UDP [::1]:") {
		t.Errorf("came as\n%s", raw)
	}
}
