package acceptance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/cscf/sipmsg"
)

// party is a registered phone that a test plays message by message. It keeps
// what it receives until the test asks for it. What may get lost over UDP it
// does by itself: it repeats its requests until they are answered, and its
// answers to requests that are repeated, which it counts and does not show.
type party struct {
	*wire
	t testing.TB

	mu      sync.Mutex
	inbox   []arrived
	news    chan struct{}        // closed and replaced as something arrives
	asking  map[string]*question // requests without any response
	answers map[string]string    // the last ones
	seen    map[string]int       // requests that came
}

// question is a request that is repeated over UDP.
type question struct {
	raw   string
	pause time.Duration
	next  time.Time
}

// txOf names the transaction of a message.
func txOf(m *sipmsg.Message) string {
	via, _ := m.TopVia()
	_, method := m.CSeq()
	return via.Branch() + " " + method
}

// hear keeps a message that came, unless it is a repeat.
func (p *party) hear(m *sipmsg.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := txOf(m)
	if !m.IsRequest() {
		delete(p.asking, key)
	} else if p.seen[key]++; p.seen[key] > 1 && m.Method() != "ACK" {
		if again := p.answers[key]; again != "" {
			p.wire.send(p.t, again)
		}
		return
	}
	p.inbox = append(p.inbox, arrived{m, time.Now()})
	close(p.news)
	p.news = make(chan struct{})
}

// repeat sends what is due again.
func (p *party) repeat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.asking {
		if time.Now().After(q.next) {
			p.wire.send(p.t, q.raw)
			q.pause = min(2*q.pause, 4*time.Second)
			q.next = time.Now().Add(q.pause)
		}
	}
}

// repeats is how often a request came again.
func (p *party) repeats(req *sipmsg.Message) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[txOf(req)] - 1
}

// arrived is a message as it came.
type arrived struct {
	*sipmsg.Message
	at time.Time
}

// listen makes a party of a wire. Nothing else may read the wire from then on.
func (w *wire) listen(t testing.TB) *party {
	t.Helper()
	p := &party{
		wire: w, t: t, news: make(chan struct{}), asking: make(map[string]*question),
		answers: make(map[string]string), seen: make(map[string]int),
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			got, err := w.read(100 * time.Millisecond)
			if err != nil {
				return
			}
			if m, bad := sipmsg.Parse([]byte(got)); bad == nil {
				p.hear(m)
			}
			p.repeat()
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
	return p
}

// partyOf registers a phone of a user over a wire, with further lines in its
// REGISTER.
func partyOf(t testing.TB, w *wire, user string, more ...string) *party {
	t.Helper()
	w.user = user
	p := w.listen(t)
	resp := p.enrol(more...)
	for end := time.Now().Add(5 * time.Second); resp.Status() == 401 && time.Now().Before(end); {
		<-time.After(100 * time.Millisecond) // a worker that has not heard of the subscriber yet
		resp = p.enrol(more...)
	}
	if resp.Status() != 200 {
		t.Fatalf("REGISTER of %s was answered\n%s", user, resp.Bytes())
	}
	p.serviceRoute, _ = resp.Value(sipmsg.ServiceRoute)
	return p
}

// enrol sends a REGISTER, answers a challenge, and returns the final response.
// A line of a header that the request has replaces it.
func (p *party) enrol(more ...string) *sipmsg.Message {
	p.t.Helper()
	m := p.registration(more...)
	p.post(m)
	resp := p.answered(m)
	if resp.Status() != 401 {
		return resp
	}
	again := p.registration(append(more, p.authorize(p.t, &answer{status: 401, raw: string(resp.Bytes()), Message: *resp}, p.user, "SHA-256"))...)
	p.post(again)
	return p.answered(again)
}

// registration makes a REGISTER without credentials.
func (p *party) registration(more ...string) *sipmsg.Message {
	p.t.Helper()
	m, err := sipmsg.Parse([]byte(text(append(p.wire.request("REGISTER", "sip:"+domain, p.user), "Expires: 600"), "")))
	if err != nil {
		p.t.Fatal(err)
	}
	return with(m, more...)
}

// unique is the prefix of users whom no other run of a test has.
func unique(prefix string, host func(int) netip.Addr) string {
	return fmt.Sprintf("%s-%d-", prefix, host(0).As4()[2])
}

// pairOf is a caller at the first node and one to be called at the second.
func pairOf(t testing.TB, c *localcluster.Cluster, prefix, transport string) (caller, called *party) {
	t.Helper()
	host := freshNet()
	users := subscribe(t, c, unique(prefix, host), 2)
	return partyOf(t, openWire(t, transport, host(1), c.Nodes[0].P()), users[0]),
		partyOf(t, openWire(t, transport, host(2), c.Nodes[1].P()), users[1])
}

// twoPhones are a caller and two phones of one user, at two nodes, with q values.
func twoPhones(t testing.TB, c *localcluster.Cluster, prefix, transport string, q ...string) (caller, first, second *party) {
	t.Helper()
	host := freshNet()
	users := subscribe(t, c, unique(prefix, host), 2)
	caller = partyOf(t, openWire(t, transport, host(1), c.Nodes[0].P()), users[0])
	var phones []*party
	for i := range 2 {
		w := openWire(t, transport, host(2+i), c.Nodes[i].P())
		contact := "Contact: <" + w.contact(users[1]) + ">"
		if len(q) > i {
			contact += ";q=" + q[i]
		}
		phones = append(phones, partyOf(t, w, users[1], contact))
	}
	return caller, phones[0], phones[1]
}

// uri is the party's public identity.
func (p *party) uri() string { return "sip:" + p.user + "@" + domain }

// is matches a response of a status to a request, or for status 0 a request of
// that method.
func is(status int, method string) func(*sipmsg.Message) bool {
	return func(m *sipmsg.Message) bool {
		_, of := m.CSeq()
		return m.Status() == status && of == method
	}
}

// to matches the responses to a request, of a status or for 0 of any.
func to(req *sipmsg.Message, status int) func(*sipmsg.Message) bool {
	n, method := req.CSeq()
	return func(m *sipmsg.Message) bool {
		number, of := m.CSeq()
		return !m.IsRequest() && m.CallID() == req.CallID() && number == n && of == method && (status == 0 || m.Status() == status)
	}
}

// within waits for a message that matches, and takes it; false if none comes.
func (p *party) within(d time.Duration, match func(*sipmsg.Message) bool) (arrived, bool) {
	late := time.After(d)
	for {
		p.mu.Lock()
		i := slices.IndexFunc(p.inbox, func(a arrived) bool { return match(a.Message) })
		if i >= 0 {
			a := p.inbox[i]
			p.inbox = slices.Delete(p.inbox, i, i+1)
			p.mu.Unlock()
			return a, true
		}
		news := p.news
		p.mu.Unlock()
		select {
		case <-news:
		case <-late:
			return arrived{}, false
		}
	}
}

// take waits for a message that matches, and takes it.
func (p *party) take(match func(*sipmsg.Message) bool) arrived {
	p.t.Helper()
	a, ok := p.within(30*time.Second, match)
	if !ok {
		p.t.Fatalf("%s did not receive what it had to; it received %s", p.user, p.received())
	}
	return a
}

// expect takes the response of a status to a request.
func (p *party) expect(req *sipmsg.Message, status int) *sipmsg.Message {
	p.t.Helper()
	return p.take(to(req, status)).Message
}

// requested takes a request of a method.
func (p *party) requested(method string) *sipmsg.Message {
	p.t.Helper()
	return p.take(is(0, method)).Message
}

// answered takes the final response to a request, whatever it is.
func (p *party) answered(req *sipmsg.Message) *sipmsg.Message {
	p.t.Helper()
	any := to(req, 0)
	return p.take(func(m *sipmsg.Message) bool { return m.Status() >= 200 && any(m) }).Message
}

// none fails the test if something that matches comes within d.
func (p *party) none(d time.Duration, match func(*sipmsg.Message) bool) {
	p.t.Helper()
	if a, ok := p.within(d, match); ok {
		p.t.Errorf("%s received:\n%s", p.user, a.Bytes())
	}
}

// all takes everything that matches and has come.
func (p *party) all(match func(*sipmsg.Message) bool) (out []arrived) {
	for {
		a, ok := p.within(0, match)
		if !ok {
			return out
		}
		out = append(out, a)
	}
}

// received is one line for people.
func (p *party) received() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, a := range p.inbox {
		_, of := a.CSeq()
		if a.IsRequest() {
			out = append(out, a.Method())
		} else {
			out = append(out, fmt.Sprint(a.Status(), " ", of))
		}
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// post sends a message.
func (p *party) post(m *sipmsg.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	raw := string(m.Append(nil))
	switch {
	case !m.IsRequest():
		p.answers[txOf(m)] = raw
	case p.transport == "UDP" && m.Method() != "ACK":
		p.asking[txOf(m)] = &question{raw, 500 * time.Millisecond, time.Now().Add(500 * time.Millisecond)}
	}
	p.send(p.t, raw)
}

// make makes a request outside of a dialog, by the Service-Route, with further
// lines. A line of a header that is there replaces it.
func (p *party) make(method, uri string, more ...string) *sipmsg.Message {
	p.t.Helper()
	m, err := sipmsg.Parse([]byte(text(p.initial(method, uri), "")))
	if err != nil {
		p.t.Fatal(err)
	}
	return with(m, more...)
}

// with adds lines to a message. One of a header that the message has replaces
// it; a line "-Name" removes it.
func with(m *sipmsg.Message, more ...string) *sipmsg.Message {
	for _, line := range more {
		if name, gone := strings.CutPrefix(line, "-"); gone {
			m.RemoveNamed(name)
			continue
		}
		name, value, _ := strings.Cut(line, ": ")
		if h := sipmsg.HeaderNamed(name); h != sipmsg.OtherHeader {
			m.Remove(h)
		}
		m.AddNamed(name, value)
	}
	return m
}

// call sends a request outside of a dialog.
func (p *party) call(method, uri string, more ...string) *sipmsg.Message {
	p.t.Helper()
	m := p.make(method, uri, more...)
	p.post(m)
	return m
}

// answer answers a request with further lines.
func (p *party) answer(req *sipmsg.Message, status int, more ...string) *sipmsg.Message {
	p.t.Helper()
	r, err := sipmsg.Parse([]byte(p.reply(req, status)))
	if err != nil {
		p.t.Fatal(err)
	}
	p.post(with(r, more...))
	return r
}

// inDialog makes a request of either side inside the dialog that a response to
// a request formed.
func (p *party) inDialog(method string, req, resp *sipmsg.Message, more ...string) *sipmsg.Message {
	p.t.Helper()
	p.number++
	var routes []string
	for v := range resp.Elements(sipmsg.RecordRoute) {
		routes = append(routes, v)
	}
	local, _ := req.Value(sipmsg.From)
	remote, _ := resp.Value(sipmsg.To)
	target, _ := resp.Value(sipmsg.Contact)
	// The core tells the called side whom it called.
	if _, called := req.Value(sipmsg.PCalledPartyID); called {
		local, remote = remote, local
		target, _ = req.Value(sipmsg.Contact)
	} else {
		slices.Reverse(routes)
	}
	number := 1000 + p.number
	if method == "ACK" || method == "CANCEL" {
		n, _ := req.CSeq()
		number = int(n)
	}
	a, err := sipmsg.ParseNameAddr(target)
	if err != nil {
		p.t.Fatalf("no target in %q", target)
	}
	m := sipmsg.NewRequest(method, a.URI)
	m.Add(sipmsg.ViaHeader, fmt.Sprintf("SIP/2.0/%s %s;branch=z9hG4bK-d%d;rport", p.transport, p.local, p.number))
	m.Add(sipmsg.MaxForwards, "70")
	for _, r := range routes {
		m.Add(sipmsg.Route, r)
	}
	m.Add(sipmsg.From, local)
	m.Add(sipmsg.To, remote)
	m.Add(sipmsg.CallID, req.CallID())
	m.Add(sipmsg.CSeq, fmt.Sprintf("%d %s", number, method))
	m.Add(sipmsg.Contact, "<"+p.contact(p.user)+">")
	return with(m, more...)
}

// ack acknowledges a 2xx.
func (p *party) ack(invite, resp *sipmsg.Message) *sipmsg.Message {
	p.t.Helper()
	m := p.inDialog("ACK", invite, resp)
	p.post(m)
	return m
}

// hop is a CANCEL, or the ACK of a refusal, of a request of this party.
func (p *party) hop(method string, req, resp *sipmsg.Message) *sipmsg.Message {
	p.t.Helper()
	m := sipmsg.NewRequest(method, req.RequestURI())
	n, _ := req.CSeq()
	via, _ := req.Value(sipmsg.ViaHeader)
	m.Add(sipmsg.ViaHeader, via)
	m.Add(sipmsg.MaxForwards, "70")
	for v := range req.Values(sipmsg.Route) {
		m.Add(sipmsg.Route, v)
	}
	from, _ := req.Value(sipmsg.From)
	m.Add(sipmsg.From, from)
	to, _ := req.Value(sipmsg.To)
	if resp != nil {
		to, _ = resp.Value(sipmsg.To)
	}
	m.Add(sipmsg.To, to)
	m.Add(sipmsg.CallID, req.CallID())
	m.Add(sipmsg.CSeq, fmt.Sprintf("%d %s", n, method))
	p.post(m)
	return m
}

func (p *party) cancel(invite *sipmsg.Message) *sipmsg.Message { return p.hop("CANCEL", invite, nil) }
func (p *party) refused(invite *sipmsg.Message, status int) *sipmsg.Message {
	p.t.Helper()
	resp := p.expect(invite, status)
	p.hop("ACK", invite, resp)
	return resp
}

// talkBetween begins a call and answers it; the messages are as each side has them.
func talkBetween(caller, called *party) (invite, ok, got *sipmsg.Message) {
	caller.t.Helper()
	invite = caller.call("INVITE", called.uri())
	got = called.requested("INVITE")
	called.answer(got, 200)
	ok = caller.expect(invite, 200)
	caller.ack(invite, ok)
	called.requested("ACK")
	return invite, ok, got
}

// hangUp ends a call from the caller's side.
func hangUp(caller, called *party, invite, ok *sipmsg.Message) {
	caller.t.Helper()
	bye := caller.inDialog("BYE", invite, ok)
	caller.post(bye)
	called.answer(called.requested("BYE"), 200)
	caller.expect(bye, 200)
}

// elements lists the elements of a header.
func elements(m *sipmsg.Message, h sipmsg.Header) []string { return slices.Collect(m.Elements(h)) }

// at moves a party's UDP socket towards another node.
func (p *party) at(n netip.AddrPort) *party {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = n
	return p
}
