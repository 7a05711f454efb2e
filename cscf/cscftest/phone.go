package cscftest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/icholy/digest"

	"bellwether/controller/state"
	bwdigest "bellwether/cscf/digest"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

// Phone is a user agent that a test plays message by message.
type Phone struct {
	c       *Cluster
	Addr    netip.AddrPort
	IMPI    string // user name and password of its credentials
	AOR     string // default identity
	Flow    sipmsg.Flow
	Contact string // URI, with the header's parameters behind >

	ServiceRoute []string // learnt by Register
	nonce        *digest.Challenge
	count        int
	cseq, serial int

	mu    sync.Mutex
	inbox []*sipmsg.Message
	hear  func(m *sipmsg.Message) // instead of inbox
}

// NewPhone makes a phone of a subscriber behind a node's P entry, over UDP.
func (c *Cluster) NewPhone(node, addr, impi, aor string) *Phone {
	c.t.Helper()
	n, ok := c.State().Node(node)
	if !ok {
		c.t.Fatalf("there is no node %s", node)
	}
	remote := netip.MustParseAddrPort(addr)
	p := &Phone{c: c, Addr: remote, IMPI: impi, AOR: aor, Contact: "<sip:" + remote.String() + ">"}
	local := n.Service
	if remote.Addr().Is6() {
		local = n.Service6
	}
	p.Flow = sipmsg.Flow{Node: node, Transport: sipmsg.UDP, Local: netip.AddrPortFrom(local, n.P), Remote: remote}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phones[remote] = p
	return p
}

// Reconnect gives the phone a new TCP connection from an address.
func (p *Phone) Reconnect(addr string) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.c.conn++
	p.Addr = netip.MustParseAddrPort(addr)
	p.Flow.Transport, p.Flow.Remote, p.Flow.Conn = sipmsg.TCP, p.Addr, p.c.conn
	p.c.phones[p.Addr] = p
}

func (p *Phone) take(m *sipmsg.Message) {
	p.mu.Lock()
	hear := p.hear
	if hear == nil {
		p.inbox = append(p.inbox, m)
	}
	p.mu.Unlock()
	if hear != nil {
		hear(m)
	}
}

// Hear gives what the phone receives to fn instead of keeping it for Next. fn
// must not wait for anything.
func (p *Phone) Hear(fn func(m *sipmsg.Message)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hear = fn
}

// Next takes the oldest message that the phone received, without 100.
func (p *Phone) Next() *sipmsg.Message {
	p.c.t.Helper()
	p.c.Settle()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.inbox) > 0 {
		m := p.inbox[0]
		p.inbox = p.inbox[1:]
		if m.Status() != 100 {
			return m
		}
	}
	p.c.t.Fatalf("%s received nothing", p.Addr)
	return nil
}

// Take takes the oldest message that the phone received, if there is one.
func (p *Phone) Take() (*sipmsg.Message, bool) {
	p.c.Settle()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.inbox) == 0 {
		return nil, false
	}
	m := p.inbox[0]
	p.inbox = p.inbox[1:]
	return m, true
}

// Expect takes the next message, which must be a response of that status, or
// for 0 a request of that method.
func (p *Phone) Expect(status int, method string) *sipmsg.Message {
	p.c.t.Helper()
	m := p.Next()
	_, of := m.CSeq()
	if m.Status() != status || of != method {
		p.c.t.Fatalf("%s received %d %s, want %d %s:\n%s", p.Addr, m.Status(), of, status, method, m.Bytes())
	}
	return m
}

// Answered reports whether the last request that the phone made has its final
// response.
func (p *Phone) Answered() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.inbox {
		if n, _ := m.CSeq(); m.Status() >= 200 && int(n) == p.cseq {
			return true
		}
	}
	return false
}

// Drain forgets what the phone received.
func (p *Phone) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inbox = nil
}

// Silent fails the test if the phone received anything but 100.
func (p *Phone) Silent() {
	p.c.t.Helper()
	p.c.Settle()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.inbox {
		if m.Status() != 100 {
			_, of := m.CSeq()
			p.c.t.Fatalf("%s received %d %s:\n%s", p.Addr, m.Status(), of, m.Bytes())
		}
	}
	p.inbox = nil
}

// Request makes a request of the phone, outside any dialog, with further
// headers ("Name: value"). One for a registered phone carries its Route.
func (p *Phone) Request(method, uri string, headers ...string) *sipmsg.Message {
	p.serial++
	p.cseq++
	m := sipmsg.NewRequest(method, uri)
	id := fmt.Sprintf("%s-%d", strings.NewReplacer(".", "", ":", "").Replace(p.Addr.String()), p.serial)
	m.Add(sipmsg.ViaHeader, "SIP/2.0/"+p.Flow.Transport.String()+" "+p.Addr.String()+";rport;branch=z9hG4bK"+id)
	m.Add(sipmsg.MaxForwards, "70")
	m.Add(sipmsg.From, "<"+p.AOR+">;tag=f"+id)
	m.Add(sipmsg.To, "<"+uri+">")
	m.Add(sipmsg.CallID, id+"@phone")
	m.Add(sipmsg.CSeq, fmt.Sprintf("%d %s", p.cseq, method))
	if len(p.ServiceRoute) > 0 {
		m.Add(sipmsg.Route, strings.Join(p.ServiceRoute, ", "))
	}
	if method == "INVITE" || method == "SUBSCRIBE" || method == "REFER" {
		m.Add(sipmsg.Contact, p.Contact)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if of := sipmsg.HeaderNamed(name); of != sipmsg.OtherHeader && of != sipmsg.PAssertedIdentity {
			m.Remove(of)
		}
		m.AddNamed(name, value)
	}
	return m
}

// Send gives a message to the cluster, as a front would, and lets it take its
// effect.
func (p *Phone) Send(m *sipmsg.Message) {
	p.c.t.Helper()
	p.Post(m)
	p.c.Settle()
}

// Post is Send without waiting for anything.
func (p *Phone) Post(m *sipmsg.Message) {
	p.c.t.Helper()
	raw := slices.Clone(m.Bytes())
	parsed, err := sipmsg.Parse(raw)
	if err != nil {
		p.c.t.Fatalf("%s sends a malformed message: %v\n%s", p.Addr, err, raw)
	}
	p.c.carry(parsed, func(m *sipmsg.Message) {
		if e := p.c.front(p.Flow, m); e != nil {
			e.Deliver(transaction.Peer{Flow: p.Flow}, m)
		}
	})
}

// front finds the engine for what comes from the wire.
func (c *Cluster) front(f sipmsg.Flow, m *sipmsg.Message) *Engine {
	g := state.GroupID(0)
	if !m.IsRequest() {
		g, _ = c.pick("", m)
	} else if top, ok := m.TopRoute(); ok {
		if u, err := sipmsg.ParseURI(top.URI); err == nil {
			if t, ok := c.Sealer.Open(u.User); ok && t.Mode == token.Binding {
				g = t.Group
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if g == 0 {
		if b := c.flows[f]; time.Now().Before(b.until) {
			g = b.group
		}
	}
	if to, err := m.To(); g == 0 && m.Method() == "REGISTER" && err == nil {
		if u, err := sipmsg.ParseURI(to.URI); err == nil {
			g, _ = c.state.Assignment(state.PCSCF, u.AOR())
		}
	}
	if g == 0 {
		g, _ = c.state.MinUser(state.PCSCF, nil)
	}
	return c.engines[g]
}

// Call sends a request and returns it.
func (p *Phone) Call(method, uri string, headers ...string) *sipmsg.Message {
	p.c.t.Helper()
	m := p.Request(method, uri, headers...)
	p.Send(m)
	return m
}

// Answer sends a response to a request that the phone received, with further
// headers.
func (p *Phone) Answer(req *sipmsg.Message, status int, headers ...string) *sipmsg.Message {
	p.c.t.Helper()
	resp := p.Response(req, status, headers...)
	p.Send(resp)
	return resp
}

// Response makes the response that Answer sends.
func (p *Phone) Response(req *sipmsg.Message, status int, headers ...string) *sipmsg.Message {
	resp := req.Response(status, "", "t"+strings.NewReplacer(".", "", ":", "").Replace(p.Addr.String()))
	for v := range req.Values(sipmsg.RecordRoute) {
		resp.Add(sipmsg.RecordRoute, v)
	}
	if status > 100 && status < 300 {
		resp.Add(sipmsg.Contact, p.Contact)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		resp.AddNamed(name, value)
	}
	return resp
}

// InDialog makes a request inside the dialog that a request and a response
// formed; the phone is the caller if it sent the request.
func (p *Phone) InDialog(method string, req, resp *sipmsg.Message, headers ...string) *sipmsg.Message {
	p.c.t.Helper()
	p.serial++
	own, peer := sipmsg.From, sipmsg.To
	route := slices.Collect(resp.Elements(sipmsg.RecordRoute))
	target := resp
	caller := slices.Contains(slices.Collect(req.Values(sipmsg.Contact)), p.Contact)
	if caller {
		slices.Reverse(route) // RFC 3261 §12.1.2
	} else {
		own, peer, target = sipmsg.To, sipmsg.From, req
	}
	uri := ""
	for v := range target.Elements(sipmsg.Contact) {
		a, err := sipmsg.ParseNameAddr(v)
		if err != nil {
			p.c.t.Fatal(err)
		}
		uri = a.URI
	}
	m := sipmsg.NewRequest(method, uri)
	m.Add(sipmsg.ViaHeader, "SIP/2.0/"+p.Flow.Transport.String()+" "+p.Addr.String()+";rport;branch=z9hG4bKd"+fmt.Sprint(p.serial)+resp.CallID()+method)
	m.Add(sipmsg.MaxForwards, "70")
	v, _ := resp.Value(own)
	m.Add(sipmsg.From, v)
	v, _ = resp.Value(peer)
	m.Add(sipmsg.To, v)
	m.Add(sipmsg.CallID, resp.CallID())
	n, _ := req.CSeq()
	if method != "ACK" {
		p.cseq++
		n = uint32(p.cseq + 1000)
	}
	m.Add(sipmsg.CSeq, fmt.Sprintf("%d %s", n, method))
	if len(route) > 0 {
		m.Add(sipmsg.Route, strings.Join(route, ", "))
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		m.AddNamed(name, value)
	}
	return m
}

// Cancel cancels a request that the phone sent.
func (p *Phone) Cancel(req *sipmsg.Message) {
	p.c.t.Helper()
	p.Send(CancelOf(req))
}

// CancelOf makes the CANCEL of a request (RFC 3261 §9.1).
func CancelOf(req *sipmsg.Message) *sipmsg.Message {
	m := sipmsg.NewRequest("CANCEL", req.RequestURI())
	for _, h := range []sipmsg.Header{sipmsg.ViaHeader, sipmsg.Route, sipmsg.From, sipmsg.To, sipmsg.CallID} {
		if v, ok := req.Value(h); ok {
			m.Add(h, v)
		}
	}
	m.Add(sipmsg.MaxForwards, "70")
	n, _ := req.CSeq()
	m.Add(sipmsg.CSeq, fmt.Sprintf("%d CANCEL", n))
	return m
}

// AckRefusal acknowledges a final response other than 2xx.
func (p *Phone) AckRefusal(req, resp *sipmsg.Message) {
	p.c.t.Helper()
	p.Send(AckOf(req, resp))
}

// AckOf makes the ACK of a final response other than 2xx (RFC 3261 §17.1.1.3).
func AckOf(req, resp *sipmsg.Message) *sipmsg.Message {
	m := sipmsg.NewRequest("ACK", req.RequestURI())
	for _, h := range []sipmsg.Header{sipmsg.ViaHeader, sipmsg.Route, sipmsg.From, sipmsg.CallID} {
		if v, ok := req.Value(h); ok {
			m.Add(h, v)
		}
	}
	v, _ := resp.Value(sipmsg.To)
	m.Add(sipmsg.To, v)
	m.Add(sipmsg.MaxForwards, "70")
	n, _ := req.CSeq()
	m.Add(sipmsg.CSeq, fmt.Sprintf("%d ACK", n))
	return m
}

// RegisterRequest makes a REGISTER, with credentials once the phone was
// challenged.
func (p *Phone) RegisterRequest(headers ...string) *sipmsg.Message {
	p.c.t.Helper()
	m := p.Request("REGISTER", "sip:"+Domain, append([]string{"To: <" + p.AOR + ">", "Contact: " + p.Contact, "Supported: path"}, headers...)...)
	m.Remove(sipmsg.Route)
	m.Set(sipmsg.CallID, "reg-"+p.IMPI+"-"+p.Flow.Node)
	if p.nonce != nil {
		p.count++
		cred, err := digest.Digest(p.nonce, digest.Options{
			Method: "REGISTER", URI: "sip:" + Domain, Username: p.IMPI, Password: p.IMPI, Count: p.count, Cnonce: "c",
		})
		if err != nil {
			p.c.t.Fatal(err)
		}
		m.Set(sipmsg.Authorization, cred.String())
	}
	return m
}

// Challenged notes a challenge, that of the algorithm, for RegisterRequest.
func (p *Phone) Challenged(resp *sipmsg.Message, algorithm bwdigest.Algorithm) {
	p.c.t.Helper()
	for v := range resp.Values(sipmsg.WWWAuthenticate) {
		ch, err := digest.ParseChallenge(v)
		if err != nil {
			p.c.t.Fatalf("%s: %v", v, err)
		}
		if ch.Algorithm == string(algorithm) {
			p.nonce, p.count = ch, 0
			return
		}
	}
	p.c.t.Fatalf("no challenge for %s in:\n%s", algorithm, resp.Bytes())
}

// Register registers the phone, answering a challenge, and returns the 200.
func (p *Phone) Register(headers ...string) *sipmsg.Message {
	p.c.t.Helper()
	p.Send(p.RegisterRequest(headers...))
	resp := p.Next()
	if resp.Status() == 401 {
		p.Challenged(resp, bwdigest.SHA256)
		p.Send(p.RegisterRequest(headers...))
		resp = p.Next()
	}
	if resp.Status() != 200 {
		p.c.t.Fatalf("%s: REGISTER answered:\n%s", p.AOR, resp.Bytes())
	}
	if routes := slices.Collect(resp.Elements(sipmsg.ServiceRoute)); len(routes) > 0 {
		p.ServiceRoute = routes
	}
	return resp
}

func subscriber(impi string, identities []string) state.Subscriber {
	s := state.Subscriber{IMPI: impi, Realm: Domain, HA1: state.HA1{}}
	set := 0
	for _, uri := range identities {
		if uri == "" {
			set++
			continue
		}
		name, barred := strings.CutPrefix(uri, "!")
		s.Identities = append(s.Identities, state.Identity{URI: name, Set: set, Barred: barred})
	}
	for _, a := range bwdigest.Algorithms {
		s.HA1[string(a)] = bwdigest.HA1(a, impi, Domain, impi)
	}
	return s
}
