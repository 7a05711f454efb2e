package acceptance

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/cscf/sipmsg"
)

// message is a SIP message that a phone sent or received.
type message struct {
	*sipmsg.Message
	phone netip.AddrPort
	sent  bool // by the phone
	raw   []byte
}

// String is the direction as seen from the phone, and what the message is.
func (m message) String() string {
	arrow := "<"
	if m.sent {
		arrow = ">"
	}
	_, method := m.CSeq()
	if m.IsRequest() {
		return arrow + " " + method
	}
	return fmt.Sprintf("%s %d %s", arrow, m.Status(), method)
}

// view judges what a capture shows from outside of a cluster.
type view struct {
	nodes  map[netip.Addr]string // service addresses, by name of the node
	phones map[netip.AddrPort]string
}

// service reports whether an address is a SIP entry of the cluster.
func (v view) service(a netip.AddrPort) bool {
	return v.nodes[a.Addr()] != "" && slices.Contains([]uint16{5060, 4060, 6060}, a.Port())
}

// exchange sorts the datagrams of a capture: the SIP messages of each phone
// without repetitions, and how many other datagrams went between the phones.
func (v view) exchange(t *testing.T, all []datagram) (sip map[netip.AddrPort][]message, media int) {
	t.Helper()
	sip = map[netip.AddrPort][]message{}
	hosts := map[netip.Addr]bool{}
	for p := range v.phones {
		hosts[p.Addr()] = true
	}
	for _, d := range all {
		at, far, sent := d.from, d.to, true
		if v.phones[at] == "" {
			at, far, sent = d.to, d.from, false
		}
		if v.phones[at] == "" {
			// Media goes from phone to phone, not through the cluster.
			if !hosts[d.from.Addr()] || !hosts[d.to.Addr()] {
				t.Errorf("datagram between %v and %v: % .60x", d.from, d.to, d.payload)
			}
			media++
			continue
		}
		if v.nodes[far.Addr()] == "" || far.Port() != 5060 {
			t.Errorf("the phone %v talks with %v, no service address: % .60q", at, far, d.payload)
		}
		m := message{Message: new(sipmsg.Message), phone: at, sent: sent, raw: d.payload}
		if err := m.Parse(d.payload); err != nil {
			t.Errorf("from %v to %v: %v\n%s", d.from, d.to, err, d.payload)
			continue
		}
		// A busy machine is slow, and then a message is repeated as it was.
		if !slices.ContainsFunc(sip[at], func(old message) bool { return old.sent == sent && bytes.Equal(old.raw, m.raw) }) {
			sip[at] = append(sip[at], m)
		}
	}
	return sip, media
}

var (
	tokenUser   = regexp.MustCompile(`^[a-z2-7]{20,40}$`)
	tokenBranch = regexp.MustCompile(`^z9hG4bK[a-z2-7]{20,40}\.[a-z2-7]{8,}$`)
	loopbackIP  = regexp.MustCompile(`127\.\d+\.\d+\.\d+(:\d+)?`)

	// What no phone may see: charging and other headers between networks
	// (RFC 7315 §5, TS 24.229 §5.2.6.3, §5.2.6.4), keys and how a phone is
	// protected (TS 24.229 §5.2.2), what the phone asked of its own network, and
	// names and sockets of the inside.
	hidden = regexp.MustCompile(`(?im)^(P-Charging|P-Served-User|P-Visited-Network|P-User-Database|P-Profile-Key|P-Preferred-Identity)` +
		`|\b(ik|ck) *=|integrity-protected|icid|\.sock|/run/|\b[pis][12]\b|\bn[123]\b`)
)

// check lists what is wrong with a message that a phone received or sent.
func (v view) check(m message) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }

	// Every address is the phones' own or a SIP entry of the cluster.
	for _, text := range loopbackIP.FindAllString(string(m.raw), -1) {
		if a, err := netip.ParseAddrPort(text); err == nil {
			if !v.service(a) && v.phones[a] == "" {
				complain("shows the address %v", a)
			}
			continue
		}
		a, err := netip.ParseAddr(text)
		known := err == nil && v.nodes[a] != ""
		for p := range v.phones {
			known = known || p.Addr() == a
		}
		if !known {
			complain("shows the address %s", text)
		}
	}

	// Our routes are service addresses with a token that says nothing.
	for _, h := range []sipmsg.Header{sipmsg.Route, sipmsg.RecordRoute, sipmsg.Path, sipmsg.ServiceRoute} {
		for e := range m.Elements(h) {
			a, err := sipmsg.ParseNameAddr(e)
			if err != nil {
				complain("%v: %v", h, err)
				continue
			}
			u, err := sipmsg.ParseURI(a.URI)
			if err != nil {
				complain("%v: %v", h, err)
				continue
			}
			host, ok := u.HostPort()
			_, loose := u.Params.Value("lr")
			outbound := h == sipmsg.Route && m.sent && m.ToTag() == "" && u.User == ""
			if !ok || !v.service(host) || !loose || !outbound && !tokenUser.MatchString(u.User) {
				complain("%v: %s", h, e)
			}
		}
	}
	// The Vias are those of our entries, and last the one of a phone.
	vias := slices.Collect(m.Elements(sipmsg.ViaHeader))
	for i, e := range vias {
		via, err := sipmsg.ParseVia(e)
		if err != nil {
			complain("Via: %v", err)
			continue
		}
		by, err := netip.ParseAddrPort(via.SentBy())
		ours := err == nil && v.service(by) && tokenBranch.MatchString(via.Branch())
		if phones := err == nil && v.phones[by] != ""; ours == (i == len(vias)-1) || phones == ours {
			complain("Via %d of %d: %s", i+1, len(vias), e)
		}
	}

	head, _, _ := bytes.Cut(m.raw, []byte("\r\n\r\n"))
	if !m.sent {
		if found := hidden.Find(head); found != nil {
			complain("shows %q", found)
		}
	}
	if bytes.Contains(m.raw, []byte(password)) {
		complain("shows the password")
	}
	_, method := m.CSeq()
	granted := method == "REGISTER" && m.Status() == 200
	for _, h := range []sipmsg.Header{sipmsg.Path, sipmsg.ServiceRoute, sipmsg.PAssociatedURI} {
		if _, ok := m.Value(h); ok && !granted {
			complain("has a %v", h)
		}
	}
	return wrong
}

// values are the elements of a header.
func (m message) values(h sipmsg.Header) []string { return slices.Collect(m.Elements(h)) }

// ports are those of the URIs of a header, in order.
func (m message) ports(h sipmsg.Header) (ports []int) {
	for e := range m.Elements(h) {
		if h == sipmsg.ViaHeader {
			via, _ := sipmsg.ParseVia(e)
			ports = append(ports, via.Port)
			continue
		}
		a, _ := sipmsg.ParseNameAddr(e)
		u, _ := sipmsg.ParseURI(a.URI)
		ports = append(ports, u.Port)
	}
	return ports
}

func TestACaptureShowsServiceAddressesOnly(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	users := subscribe(t, c, "watched", 2)
	at := freshNet()
	// A phone that hung up may still get media of the other, and says so by ICMP.
	phones := at(0).String() + "/24"
	capture := startCapture(t, fmt.Sprintf("net %[1]s and not (icmp and src net %[1]s and dst net %[1]s)", phones))

	v := view{nodes: map[netip.Addr]string{}, phones: map[netip.AddrPort]string{}}
	for _, n := range c.Nodes {
		v.nodes[n.Address] = n.Name
	}
	open := func(n *localcluster.Node, host int, user string, change func(*phone.Config)) *phone.Phone {
		p := newPhone(t, n, user, func(cfg *phone.Config) {
			cfg.LocalIP = at(host)
			if change != nil {
				change(cfg)
			}
		})
		v.phones[p.Addr()] = user
		return p
	}
	done := make(chan phone.Result, 1)
	a := open(c.Node("n1"), 1, users[0], nil)
	b := open(c.Node("n2"), 2, users[1], func(cfg *phone.Config) {
		cfg.ToneHz, cfg.Ring, cfg.Reliable = 900, 200*time.Millisecond, true
		cfg.OnCall = func(r phone.Result) { done <- r }
	})
	ctx := within(t, 30*time.Second)
	for _, p := range []*phone.Phone{a, b} {
		if err := p.Register(ctx); err != nil {
			t.Fatal(err)
		}
	}
	calleeURI := "sip:" + users[1] + "@" + domain
	if r, err := a.Call(ctx, calleeURI, phone.CallOptions{Hold: 500 * time.Millisecond, Update: true}); err != nil || r.Status != 200 {
		t.Fatalf("call: %+v, %v", r, err)
	}
	<-done
	if status, err := a.Message(ctx, calleeURI, "hello"); err != nil || status != 200 {
		t.Fatalf("message: %d, %v", status, err)
	}
	if err := a.Unregister(ctx); err != nil {
		t.Fatal(err)
	}
	capture.wait(t, "the end of the caller's registration", func(d datagram) bool {
		return d.to == a.Addr() && bytes.Contains(d.payload, []byte("200 OK")) && bytes.Contains(d.payload, []byte("REGISTER")) &&
			!bytes.Contains(d.payload, []byte("Service-Route"))
	})

	sip, media := v.exchange(t, capture.datagrams())
	if media == 0 {
		t.Error("no media between the phones")
	}
	for _, m := range slices.Concat(slices.Collect(maps.Values(sip))...) {
		if wrong := v.check(m); len(wrong) > 0 {
			t.Errorf("the phone of %s: %v:\n%s\n%s", v.phones[m.phone], m, strings.Join(wrong, "\n"), m.raw)
		}
	}

	// Every message that a phone has to send or receive, and no other.
	legs := map[string][]string{}
	find := func(p *phone.Phone, text string) message {
		t.Helper()
		for _, m := range sip[p.Addr()] {
			if m.String() == text {
				return m
			}
		}
		t.Fatalf("no %q of %s", text, v.phones[p.Addr()])
		return message{}
	}
	for p, name := range v.phones {
		for _, m := range sip[p] {
			legs[name] = append(legs[name], m.String())
		}
	}
	want := map[string][]string{
		users[0]: {
			"> REGISTER", "< 401 REGISTER", "> REGISTER", "< 200 REGISTER",
			"> INVITE", "< 100 INVITE", "< 180 INVITE", "> PRACK", "< 200 PRACK", "< 200 INVITE", "> ACK",
			"> UPDATE", "< 200 UPDATE", "> BYE", "< 200 BYE",
			"> MESSAGE", "< 200 MESSAGE",
			"> REGISTER", "< 200 REGISTER",
		},
		users[1]: {
			"> REGISTER", "< 401 REGISTER", "> REGISTER", "< 200 REGISTER",
			"< INVITE", "> 180 INVITE", "< PRACK", "> 200 PRACK", "> 200 INVITE", "< ACK",
			"< UPDATE", "> 200 UPDATE", "< BYE", "> 200 BYE",
			"< MESSAGE", "> 200 MESSAGE",
		},
	}
	if diff := cmp.Diff(want, legs); diff != "" {
		t.Errorf("messages of the phones (-want +got):\n%s", diff)
	}

	// The way of the INVITE: P, S, I, S, P; the dialog goes without the I-CSCF.
	invite, offered := find(b, "< INVITE"), find(a, "> INVITE")
	if got, want := invite.ports(sipmsg.ViaHeader), []int{5060, 6060, 4060, 6060, 5060, int(a.Addr().Port())}; !slices.Equal(got, want) {
		t.Errorf("ports of the Vias of the INVITE: %v, want %v", got, want)
	}
	routes := invite.values(sipmsg.RecordRoute)
	if got, want := invite.ports(sipmsg.RecordRoute), []int{5060, 6060, 6060, 5060}; !slices.Equal(got, want) {
		t.Errorf("ports of the Record-Routes of the INVITE: %v, want %v", got, want)
	}
	if got := find(a, "< 200 INVITE").values(sipmsg.RecordRoute); !slices.Equal(got, routes) {
		t.Errorf("the caller has the Record-Route %q, the callee %q", got, routes)
	}
	if !bytes.Equal(invite.Body(), offered.Body()) {
		t.Errorf("the offer was changed on its way:\n%s\n%s", offered.Body(), invite.Body())
	}
	for _, m := range []message{find(b, "< PRACK"), find(b, "< ACK"), find(b, "< UPDATE"), find(b, "< BYE")} {
		if got := m.values(sipmsg.Route); len(got) != 0 {
			t.Errorf("%v still has the Route %q", m, got)
		}
		if got := m.ports(sipmsg.ViaHeader); len(got) != 5 {
			t.Errorf("ports of the Vias of %v: %v, want four of ours and the phone's", m, got)
		}
	}

	// Who is who, as the network says.
	caller, callee := []string{"<sip:" + users[0] + "@" + domain + ">"}, []string{"<" + calleeURI + ">"}
	for _, tt := range []struct {
		p    *phone.Phone
		text string
		h    sipmsg.Header
		want []string
	}{
		{b, "< INVITE", sipmsg.PAssertedIdentity, caller},
		{b, "< MESSAGE", sipmsg.PAssertedIdentity, caller},
		{a, "< 180 INVITE", sipmsg.PAssertedIdentity, callee},
		{a, "< 200 INVITE", sipmsg.PAssertedIdentity, callee},
		{a, "< 200 MESSAGE", sipmsg.PAssertedIdentity, callee},
		{b, "< INVITE", sipmsg.PCalledPartyID, callee},
		{b, "< MESSAGE", sipmsg.PCalledPartyID, callee},
		{b, "< BYE", sipmsg.PCalledPartyID, nil},
		{a, "< 180 INVITE", sipmsg.PCalledPartyID, nil},
		{a, "< 200 INVITE", sipmsg.PCalledPartyID, nil},
	} {
		if got := find(tt.p, tt.text).values(tt.h); !slices.Equal(got, tt.want) {
			t.Errorf("%v of %s in %q: %q, want %q", tt.h, v.phones[tt.p.Addr()], tt.text, got, tt.want)
		}
	}
	for _, p := range []*phone.Phone{a, b} {
		ok := find(p, "< 200 REGISTER")
		if got, want := ok.values(sipmsg.PAssociatedURI), []string{"<sip:" + v.phones[p.Addr()] + "@" + domain + ">"}; !slices.Equal(got, want) {
			t.Errorf("P-Associated-URI: %q, want %q", got, want)
		}
		if got := ok.ports(sipmsg.ServiceRoute); !slices.Equal(got, []int{6060}) {
			t.Errorf("ports of the Service-Route: %v, want that of an S-CSCF", got)
		}
		if got := ok.ports(sipmsg.Path); !slices.Equal(got, []int{5060}) {
			t.Errorf("ports of the Path: %v, want that of a P-CSCF", got)
		}
	}
}
