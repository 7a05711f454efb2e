package acceptance

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/icholy/digest"

	"bellwether/appliance/localcluster"
	"bellwether/cscf/sipmsg"
)

// visitor is a phone of a fresh user at the first node, which has not
// registered.
func visitor(t testing.TB, c *localcluster.Cluster, prefix string) *party {
	t.Helper()
	host := freshNet()
	w := newWire(t, host(1), c.Nodes[0].P())
	w.user = subscribe(t, c, unique(prefix, host), 1)[0]
	return w.listen(t)
}

// bound lists the contacts of a response, in order, with their intervals, as
// "uri;params 600": an interval that is a second or two short counts as whole.
func bound(t testing.TB, m *sipmsg.Message) []string {
	t.Helper()
	var out []string
	for v := range m.Elements(sipmsg.Contact) {
		a, err := sipmsg.ParseNameAddr(v)
		if err != nil {
			t.Fatal(err)
		}
		left, _ := a.Params.Value("expires")
		n, err := strconv.Atoi(left)
		if err != nil {
			t.Fatalf("contact %s without expires", v)
		}
		out = append(out, fmt.Sprintf("%s%s %d", a.URI, a.Params.Without("expires"), (n+9)/10*10))
	}
	slices.Sort(out)
	return out
}

// registered fails the test if the user has other contacts than these.
func (p *party) registered(want ...string) {
	p.t.Helper()
	resp := p.enrol("-Contact", "-Expires")
	if got := bound(p.t, resp); resp.Status() != 200 || !slices.Equal(got, want) {
		p.t.Errorf("registered are %q, want %q (%d)", got, want, resp.Status())
	}
}

// enrols sends a REGISTER, which must be answered by a status.
func (p *party) enrols(status int, more ...string) *sipmsg.Message {
	p.t.Helper()
	resp := p.enrol(more...)
	if resp.Status() != status {
		p.t.Errorf("REGISTER with %q was answered %d, want %d", more, resp.Status(), status)
	}
	return resp
}

// Check 44 (RFC 3327 §5.3, RFC 3608 §6.2): the Path of a registration, the proxy's and nothing that the phone wrote itself, is stored, told in the 200 and is the way of requests for the user; the Service-Route in the 200 is the way of the user's own requests.
func TestCheck44PathAndServiceRoute(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	caller, called := pairOf(t, c, "c44", "UDP")
	resp := called.enrol("Path: <sip:thief@192.0.2.1;lr>", "Supported: path")
	path, services := elements(resp, sipmsg.Path), elements(resp, sipmsg.ServiceRoute)
	if len(path) != 1 || strings.Contains(path[0], "thief") || len(services) != 1 || !strings.Contains(services[0], ";lr") {
		t.Fatalf("Path %q, Service-Route %q", path, services)
	}
	at, err := sipmsg.ParseNameAddr(path[0])
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := sipmsg.ParseURI(at.URI)
	if err != nil {
		t.Fatal(err)
	}
	m := caller.call("MESSAGE", called.uri())
	got := called.requested("MESSAGE")
	if via, _ := got.TopVia(); via.Host != proxy.Host || via.Port != proxy.Port {
		t.Errorf("came from %s, the Path is %s", via.SentBy(), path[0])
	}
	if routes := elements(got, sipmsg.Route); len(routes) != 0 {
		t.Errorf("Route %q is left", routes)
	}
	called.answer(got, 200)
	caller.expect(m, 200)

	// The Service-Route is the way, whatever the phone writes.
	called.serviceRoute = services[0]
	for name, route := range map[string]string{
		"in order": "Route: <sip:" + called.to.String() + ";lr>, " + services[0], "without the proxy": "Route: " + services[0],
		"none": "-Route", "another": "Route: <sip:thief@192.0.2.1;lr>",
	} {
		m := called.make("MESSAGE", caller.uri(), route)
		called.post(m)
		got := caller.requested("MESSAGE")
		if vias := elements(got, sipmsg.ViaHeader); len(vias) != 6 { // P S I S P and the phone
			t.Errorf("%s: %d Via entries", name, len(vias))
		}
		caller.answer(got, 200)
		called.expect(m, 200)
	}
}

// Check 45 (RFC 3261 §10.3 step 7): the expires parameter counts before the Expires header; an interval below the minimum is refused with 423 and Min-Expires and changes nothing, one above the maximum is shortened.
func TestCheck45Intervals(t *testing.T) {
	t.Parallel()
	p := visitor(t, quickCluster(t), "c45") // 60, 600 and 7200 s
	uri := p.contact(p.user)
	contact := "Contact: <" + uri + ">"
	for _, c := range []struct {
		name, expires, contact string
		want                   int
	}{
		{"the parameter alone", "-Expires", contact + ";expires=300", 300},
		{"the parameter before the header", "Expires: 900", contact + ";expires=300", 300},
		{"the header", "Expires: 900", contact, 900},
		{"neither", "-Expires", contact, 600},
		{"a malformed one", "Expires: soon", contact, 600},
		{"more than the maximum", "Expires: 600000", contact, 7200},
		{"more than can be written", "-Expires", contact + ";expires=99999999999999999999", 7200},
		{"the minimum", "Expires: 60", contact, 60},
	} {
		if got, want := bound(t, p.enrols(200, c.expires, c.contact)), []string{fmt.Sprintf("%s %d", uri, c.want)}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", c.name, got, want)
		}
	}
	for _, brief := range [][]string{
		{"Expires: 59", contact}, {"-Expires", contact + ";expires=1"},
		{"Expires: 600", contact + ", <sip:other@" + p.local + ">;expires=59"},
	} {
		resp := p.enrols(423, brief...)
		if v, _ := resp.Value(sipmsg.MinExpires); v != "60" {
			t.Errorf("Min-Expires %q", v)
		}
	}
	p.registered(uri + " 60")
	p.enrols(200, contact+";expires=0")
	p.registered()
}

// Check 46 (RFC 3261 §10.3 step 6): "Contact: *" is taken alone and with Expires 0 only, and then removes all; otherwise it is answered 400 and removes nothing.
func TestCheck46Star(t *testing.T) {
	t.Parallel()
	p := visitor(t, sharedCluster(t), "c46")
	one, two := "sip:one@"+p.local, "sip:two@"+p.local
	p.enrols(200, "Contact: <"+one+">, <"+two+">")
	both := []string{one + " 600", two + " 600"}
	for _, wrong := range [][]string{
		{"Contact: *", "-Expires"}, {"Contact: *", "Expires: 1"}, {"Contact: *", "Expires: never"}, {"Contact: *, <" + one + ">", "Expires: 0"},
		{"Contact: <" + one + ">, *", "Expires: 0"}, {"Contact: *, *", "Expires: 0"}, {"Contact: *;expires=0", "-Expires"},
	} {
		p.enrols(400, wrong...)
	}
	p.registered(both...)
	p.enrols(200, "Contact: *", "Expires: 0")
	p.registered()
	p.enrols(200, "Contact: *", "Expires: 0")
}

// Check 47 (RFC 3261 §10.3 step 7): a REGISTER with the Call-ID of a binding and a lower or equal CSeq changes nothing, a retransmission is answered as before, and another Call-ID updates the binding.
func TestCheck47Order(t *testing.T) {
	t.Parallel()
	p := visitor(t, sharedCluster(t), "c47")
	uri := p.contact(p.user)
	contact, callID := "Contact: <"+uri+">", "Call-ID: of-"+p.user
	p.enrols(200, contact, callID, "CSeq: 10 REGISTER")
	p.enrols(500, contact+";expires=100", callID, "CSeq: 9 REGISTER")
	p.enrols(500, "Contact: *", "Expires: 0", callID, "CSeq: 9 REGISTER")
	p.registered(uri + " 600")
	if got := bound(t, p.enrols(200, contact+";expires=0", callID, "CSeq: 10 REGISTER")); !slices.Equal(got, []string{uri + " 600"}) {
		t.Errorf("an equal CSeq left %q", got)
	}
	p.enrols(500, contact+";expires=100, <sip:new@"+p.local+">", callID, "CSeq: 9 REGISTER") // and not in part
	p.registered(uri + " 600")

	later := p.registration(contact+";expires=300", callID, "CSeq: 11 REGISTER")
	p.post(later)
	resp := p.answered(later)
	later = p.registration(contact+";expires=300", callID, "CSeq: 12 REGISTER",
		p.authorize(t, &answer{status: 401, raw: string(resp.Bytes()), Message: *resp}, p.user, "SHA-256"))
	for range 3 { // the same bytes
		p.post(later)
		if resp := p.answered(later); resp.Status() != 200 || !slices.Equal(bound(t, resp), []string{uri + " 300"}) {
			t.Errorf("a retransmission was answered\n%s", resp.Bytes())
		}
	}
	p.enrols(200, contact+";expires=100", "Call-ID: another-"+p.user, "CSeq: 1 REGISTER")
	p.registered(uri + " 100")
}

// Check 48 (RFC 3261 §10.3): several contacts of one REGISTER take effect together or not at all; the 200 lists all with their q values, a call tries the phones in the order of q, and a call goes on when its phones end their registrations.
func TestCheck48Contacts(t *testing.T) {
	t.Parallel()
	t.Run("all or none", func(t *testing.T) {
		t.Parallel()
		p := visitor(t, sharedCluster(t), "c48")
		one, two := "sip:one@"+p.local, "sip:two@"+p.local
		for _, wrong := range []string{
			"<" + one + ">, <mailto:two@" + domain + ">", "<" + one + ">, <tel:+49301>", "<" + one + ">, <sip:two@.1>", "<" + one + ">;q=0.1, <" + two + ">;q=1.1",
			"<" + one + ">, <sip:two@" + p.to.String() + ">",
		} {
			p.enrols(400, "Contact: "+wrong)
		}
		p.registered()
		p.enrols(403, "Contact: <"+one+">"+many(10, p.local))
		p.registered()
		if got, want := bound(t, p.enrols(200, "Contact: <"+one+">;q=0.25, <"+two+">;q=0.5;expires=300")), []string{one + ";q=0.25 600", two + ";q=0.5 300"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if got, want := bound(t, p.enrols(200, "Contact: <"+one+">;expires=0, <"+two+">;q=0.75")), []string{two + ";q=0.75 600"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
	t.Run("q orders the phones", func(t *testing.T) {
		t.Parallel()
		caller, last, first := twoPhones(t, sharedCluster(t), "c48q", "UDP", "0.3", "0.7")
		if got := bound(t, last.enrol("-Contact", "-Expires")); len(got) != 2 || !strings.Contains(got[0]+got[1], "q=0.3") || !strings.Contains(got[0]+got[1], "q=0.7") {
			t.Errorf("registered are %q", got)
		}
		invite := caller.call("INVITE", first.uri())
		got := first.requested("INVITE")
		last.none(500*time.Millisecond, is(0, "INVITE"))
		first.answer(got, 486)
		last.answer(last.requested("INVITE"), 480)
		resp := caller.answered(invite)
		caller.hop("ACK", invite, resp)
		if resp.Status() != 486 && resp.Status() != 480 {
			t.Errorf("answered %d", resp.Status())
		}
	})
	t.Run("a call outlives the registrations", func(t *testing.T) {
		t.Parallel()
		caller, called := pairOf(t, sharedCluster(t), "c48r", "UDP")
		invite, ok, got := talkBetween(caller, called)
		for _, p := range []*party{caller, called} {
			p.enrols(200, "Contact: *", "Expires: 0")
		}
		info := called.inDialog("INFO", got, ok)
		called.post(info)
		caller.answer(caller.requested("INFO"), 200)
		called.expect(info, 200)
		hangUp(caller, called, invite, ok)
		m := caller.call("MESSAGE", called.uri())
		caller.expect(m, 403)
	})
}

// many lists n further contacts.
func many(n int, host string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ", <sip:c%d@%s>", i, host)
	}
	return b.String()
}

// challenged sends a REGISTER without credentials and returns the 401.
func (p *party) challenged() *sipmsg.Message {
	p.t.Helper()
	m := p.registration()
	p.post(m)
	return p.expect(m, 401)
}

// proof answers the challenge for an algorithm in a 401.
func (p *party) proof(resp *sipmsg.Message, o digest.Options) string {
	p.t.Helper()
	for v := range resp.Values(sipmsg.WWWAuthenticate) {
		ch, err := digest.ParseChallenge(v)
		if err != nil {
			p.t.Fatal(err)
		}
		if ch.Algorithm != "SHA-256" {
			continue
		}
		if o.URI == "" {
			o.URI = "sip:" + domain
		}
		if o.Password == "" {
			o.Password = password
		}
		o.Method, o.Username = "REGISTER", p.user+"@"+domain
		if o.Count == 0 { // as RFC 2069 had it
			ch.QOP = nil
		}
		cred, err := digest.Digest(ch, o)
		if err != nil {
			p.t.Fatal(err)
		}
		return "Authorization: " + cred.String()
	}
	p.t.Fatalf("no challenge for SHA-256 in\n%s", resp.Bytes())
	return ""
}

// tries sends a REGISTER with credentials, and returns the answer.
func (p *party) tries(status int, more ...string) *sipmsg.Message {
	p.t.Helper()
	m := p.registration(more...)
	p.post(m)
	resp := p.answered(m)
	if resp.Status() != status {
		p.t.Errorf("%q was answered %d, want %d", more, resp.Status(), status)
	}
	return resp
}

func stale(m *sipmsg.Message) bool {
	for v := range m.Values(sipmsg.WWWAuthenticate) {
		if strings.Contains(strings.ToLower(v), "stale=true") {
			return true
		}
	}
	return false
}

// Check 49 (RFC 8760 §2.4, RFC 7616 §3.3 to §3.4.6): SHA-256 is offered before MD5; a nonce count is good once; stale=true comes only where the hash is right; credentials without qop are refused; those for another realm are skipped; the digest-uri must name what the request is for.
func TestCheck49Digest(t *testing.T) {
	t.Parallel()
	p := visitor(t, sharedCluster(t), "c49")
	first := p.challenged()
	var order []string
	for v := range first.Values(sipmsg.WWWAuthenticate) {
		ch, err := digest.ParseChallenge(v)
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, ch.Algorithm)
		if ch.Realm != domain || !slices.Equal(ch.QOP, []string{"auth"}) || ch.Stale {
			t.Errorf("challenge %s", v)
		}
	}
	if !slices.Equal(order, []string{"SHA-256", "MD5"}) {
		t.Errorf("offered are %q", order)
	}
	proof := p.proof(first, digest.Options{Count: 1})
	p.tries(200, proof)
	if resp := p.tries(401, proof); !stale(resp) {
		t.Errorf("a count that was used, with the right hash, is not called stale:\n%s", resp.Bytes())
	}
	if resp := p.tries(401, p.proof(first, digest.Options{Count: 1, Password: "guess"})); stale(resp) {
		t.Errorf("a count that was used, with a wrong hash, is called stale:\n%s", resp.Bytes())
	}
	if resp := p.tries(401, p.proof(first, digest.Options{Count: 2, Password: "guess"})); stale(resp) {
		t.Errorf("a wrong password is called stale:\n%s", resp.Bytes())
	}
	p.tries(200, p.proof(first, digest.Options{Count: 3}))
	if resp := p.tries(401, p.proof(p.challenged(), digest.Options{})); stale(resp) {
		t.Errorf("credentials without qop are called stale:\n%s", resp.Bytes())
	}

	m := p.registration(p.proof(p.challenged(), digest.Options{Count: 1}))
	m.Push(sipmsg.Authorization, `Digest username="x", realm="elsewhere.test", nonce="n", uri="sip:elsewhere.test", response="00"`)
	p.post(m)
	p.expect(m, 200)

	for uri, want := range map[string]int{"sip:" + domain: 200, "sip:" + strings.ToUpper(domain): 200, "sip:elsewhere.test": 400, "sip:" + p.user + "@" + domain: 400} {
		p.tries(want, p.proof(p.challenged(), digest.Options{Count: 1, URI: uri}))
	}
}

// Check 50 (RFC 3261 §22.1): ACK and CANCEL are never challenged, from registered phones or strangers; a REGISTER is challenged in the same way whether its user exists or not, also after a wrong password.
func TestCheck50NeverChallenged(t *testing.T) {
	t.Parallel()
	c := quickCluster(t) // whose subscribers all have the same kinds of secrets
	p := visitor(t, c, "c50")
	strange := func(m *sipmsg.Message) bool { return m.Status() == 401 || m.Status() == 407 || m.Status() == 403 }
	p.serviceRoute = "<sip:" + p.to.String() + ";lr>"
	for _, who := range []string{"a stranger", "a registered phone"} {
		never := p.make("INVITE", "sip:nobody@"+domain)
		p.expect(p.cancel(never), 481)
		p.hop("ACK", never, nil)
		p.post(with(never.Clone(), "-Route")) // proves that the ACK was passed over
		p.hop("ACK", never, p.answered(never))
		p.none(500*time.Millisecond, strange)
		if who == "a stranger" {
			p.serviceRoute, _ = p.enrols(200).Value(sipmsg.ServiceRoute)
		}
	}

	known := p.user
	shape := func(user string, more ...string) []string {
		p.user = user
		m := p.registration(more...)
		p.post(m)
		return shapeOf(p.answered(m))
	}
	wrong := func(user string) []string {
		p.user = user
		return shape(user, p.proof(p.challenged(), digest.Options{Count: 1, Password: "guess"}))
	}
	unknown := "nobody-" + known
	if a, b := shape(known), shape(unknown); !slices.Equal(a, b) {
		t.Errorf("a known user is challenged by\n%q\nan unknown one by\n%q", a, b)
	}
	if a, b := wrong(known), wrong(unknown); !slices.Equal(a, b) {
		t.Errorf("after a wrong password a known user is answered\n%q\nan unknown one\n%q", a, b)
	}
	p.user = known
}

// shapeOf is what can be told of a response apart from its nonces, tags and
// what it copies of the request.
func shapeOf(m *sipmsg.Message) []string {
	out := []string{strconv.Itoa(m.Status()), m.Reason()}
	copied := []string{"Via", "From", "To", "Call-ID", "CSeq"}
	for name, value := range m.Headers() {
		if slices.Contains(copied, name) {
			continue
		}
		if scheme, params, err := sipmsg.ParseAuth(value); err == nil && strings.EqualFold(name, "WWW-Authenticate") {
			all := maps.Collect(params.All())
			all["nonce"] = strconv.Itoa(len(all["nonce"]))
			value = scheme
			for _, k := range slices.Sorted(maps.Keys(all)) {
				value += " " + k + "=" + all[k]
			}
		}
		out = append(out, name+": "+value)
	}
	return out
}
