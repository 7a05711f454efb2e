package acceptance

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/controller/api"
	"bellwether/cscf/sipmsg"
)

const tortureDir = "../../cscf/sipmsg/testdata/rfc4475/"

// torment is a message of RFC 4475 and what must come of it; see expected.tsv.
type torment struct {
	name, section, stranger, phone, tcp, why string
	raw                                      []byte
}

func torments(t testing.TB) (all []torment) {
	t.Helper()
	b, err := os.ReadFile(tortureDir + "expected.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if strings.HasPrefix(l, "#") {
			continue
		}
		f := strings.Split(strings.TrimSpace(l), "\t")
		m := torment{name: f[0], section: f[1], stranger: f[2], phone: f[3], tcp: f[4], why: f[5]}
		if m.raw, err = os.ReadFile(tortureDir + m.name + ".dat"); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	if files, _ := filepath.Glob(tortureDir + "*.dat"); len(files) != len(all) {
		t.Fatalf("%d messages, %d expectations", len(files), len(all))
	}
	return all
}

// final sends the message and returns the final response, nil if none comes.
// It is known by its Call-ID, where there is one. Without an answer it is
// repeated, since a source gets only so many answers of the front itself.
func (m torment) final(t testing.TB, w *wire, ear *wire, raw []byte) *answer {
	t.Helper()
	callID := regexp.MustCompile(`(?im)^(?:Call-ID|i):[ \t]*(\S+)`).FindSubmatch(raw)
	w.send(t, string(raw))
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); {
		got := ear.receive(t, time.Second)
		if got == "" && w.transport == "UDP" {
			w.send(t, string(raw))
		}
		a := answer{raw: got}
		if _, err := fmt.Sscanf(got, "SIP/2.0 %d ", &a.status); err != nil || a.status < 200 {
			continue
		}
		if callID != nil && !strings.Contains(got, string(callID[1])) {
			continue // a repeat of an earlier one
		}
		_ = a.Parse([]byte(got)) // may be as wrong as the request
		return &a
	}
	return nil
}

// port is where an answer without rport goes.
func (m torment) port() uint16 {
	if m.name == "quotbal" {
		return 5050
	}
	return 5060
}

// RFC 4475: each of the 49 messages, as it is, from somebody who is not
// registered, over UDP: it gets the answer that the RFC wants or allows, or is
// discarded, and the core goes on.
func TestTortureFromAStranger(t *testing.T) {
	t.Parallel()
	n, addr := sharedCluster(t).Node("n1"), freshNet()
	w := newWireAt(t, netip.AddrPortFrom(addr(1), 5060), n.P())
	other := newWireAt(t, netip.AddrPortFrom(addr(1), 5050), n.P())
	for _, m := range torments(t) {
		t.Run(m.name, func(t *testing.T) {
			if m.stranger == "none" {
				silent(t, w, string(m.raw))
				return
			}
			ear := w
			if m.port() == 5050 {
				ear = other
			}
			// The branch of cparam01 again would make it the same transaction.
			raw := bytes.Replace(m.raw, []byte("saturn.example.com:5060;branch=z9hG4bK"), []byte("saturn.example.com:5060;branch=z9hG4bK"+m.name), 1)
			a := m.final(t, w, ear, raw)
			if a == nil || fmt.Sprint(a.status) != m.stranger {
				t.Errorf("§%s, %s: answered %+v, want %s", m.section, m.why, a, m.stranger)
			}
		})
	}
	alive(t, w)
}

// RFC 4475: each of the 49 messages, as it is, over a TCP connection of its
// own: an answer comes on the connection, and where nobody can know where the
// next message begins the connection ends.
func TestTortureOverTCP(t *testing.T) {
	t.Parallel()
	n, addr := sharedCluster(t).Node("n1"), freshNet()
	for _, m := range torments(t) {
		t.Run(m.name, func(t *testing.T) {
			w := dialWire(t, addr(1), n.P())
			// With the branch that came over UDP it would be the same transaction.
			m.raw = cookied.ReplaceAll(m.raw, []byte("branch=z9hG4bK${1}tcp"))
			switch m.tcp {
			case "none", "wait":
				w.send(t, string(m.raw))
				if got, err := w.read(200 * time.Millisecond); got != "" {
					t.Errorf("answered %q, %v", got, err)
				}
			case "close":
				w.send(t, string(m.raw))
				if got := w.closed(t, 10*time.Second); !strings.HasPrefix(got, "SIP/2.0 400 ") {
					t.Errorf("answered %q before the end, want 400", got)
				}
			case "two":
				// Its second length is short by three bytes, which on a stream begin
				// a third message.
				w.send(t, strings.Replace(string(m.raw), "Content-Length: 150", "Content-Length: 153", 1))
				one, _ := w.read(10 * time.Second)
				two, _ := w.read(10 * time.Second)
				if !strings.HasPrefix(one, "SIP/2.0 403 ") || !strings.HasPrefix(two, "SIP/2.0 403 ") {
					t.Errorf("answered %q and %q", one, two)
				}
			default:
				a := m.final(t, w, w, m.raw)
				if a == nil || fmt.Sprint(a.status) != m.tcp {
					t.Errorf("§%s, %s: answered %+v, want %s", m.section, m.why, a, m.tcp)
				}
			}
		})
	}
	alive(t, dialWire(t, addr(1), n.P()))
}

// called are the users that the messages of RFC 4475 are for, as identities of
// one phone; registrants are those who register.
var (
	called = []string{
		"user", "t.watson", "1_unusual.URI~(to-be!sure)&isn't+it$/crazy?,/;;*:&it+has=1,weird!*pas$wo~d_too.(doesn't-it)",
		"sips%3Auser%40example.com", "UserB", "kumiko", "user;par=u%40example.net", "remote-target", "vivekg",
	}
	registrants = []string{"watson", "j.user", "null-%00-null", "registering"}
)

// tortureUsers stores both kinds of users.
func tortureUsers(t *testing.T, c *localcluster.Cluster) {
	t.Helper()
	aor := func(user string) api.Identity {
		u, err := sipmsg.ParseURI("sip:" + user + "@" + domain)
		if err != nil {
			t.Fatal(err)
		}
		return api.Identity{URI: u.AOR()}
	}
	var ids []api.Identity
	for _, u := range called {
		ids = append(ids, aor(u))
	}
	subs := []api.NewSubscriber{subscriber("torture-called", ids...), subscriber("torture-caller")}
	for i, u := range registrants {
		subs = append(subs, subscriber(fmt.Sprintf("torture-reg%d", i), aor(u)))
	}
	if _, err := c.Nodes[0].Admin.ImportSubscribers(within(t, 10*time.Second), subs); err != nil {
		t.Fatal(err)
	}
}

var (
	hostOf  = regexp.MustCompile(`([@:])(chair-dnrc\.example\.com|example\.(com|net|org)|company\.com)`)
	fewHops = regexp.MustCompile(`(?m)^Max-Forwards: [1-8]\r$`)
	routes  = regexp.MustCompile(`(?m)^Route:[^\r]*\r\n([ \t][^\r]*\r\n)*`)
	cookied = regexp.MustCompile(`branch=z9hG4bK([^;,\s]+)`)
)

// adapted is the message as one of the home domain. Hosts of the Request-URI
// are replaced, of a REGISTER those of From and To, too; the way is the phone's
// own; five hops need as many; and branches that the messages share are made
// different. Everything else stays as it is.
func (m torment) adapted(w *wire, number int) []byte {
	end := bytes.IndexByte(m.raw, '\n') + 1
	line, rest := string(m.raw[:end]), string(m.raw[end:])
	register := strings.HasPrefix(line, "REGISTER ")
	line = strings.Replace(line, "registrar.example.com", "user@example.com", 1)
	line = hostOf.ReplaceAllString(line, "${1}"+domain)
	rest = fewHops.ReplaceAllLiteralString(rest, "Max-Forwards: 70\r")
	rest = cookied.ReplaceAllString(rest, fmt.Sprintf("branch=z9hG4bK${1}%s%d", m.name, number))
	if !register {
		rest = routes.ReplaceAllLiteralString(rest, "")
		rest = strings.Replace(rest, " ;   tag    = 1918181833n", "", 1) // wsinv: outside of a dialog
		return []byte(line + "Route: <sip:" + w.to.String() + ";lr>, " + w.serviceRoute + "\r\n" + rest)
	}
	for _, h := range []string{"To", "From"} {
		re := regexp.MustCompile(`(?m)^` + h + `: [^\r]*`)
		rest = re.ReplaceAllStringFunc(rest, func(l string) string {
			l = strings.Replace(l, "sip:user@", "sip:registering@", 1)
			return hostOf.ReplaceAllString(l, "${1}"+domain)
		})
	}
	return []byte(line + rest)
}

// registrant is the subscriber whose identity a REGISTER names.
func registrant(raw []byte) string {
	for i, u := range registrants {
		if bytes.Contains(raw, []byte("sip:"+u+"@"+domain)) {
			return fmt.Sprintf("torture-reg%d", i)
		}
	}
	return ""
}

// tortureAnswer is what the phone that is called answers.
func tortureAnswer(m *sipmsg.Message) []int {
	contentType, _ := m.Value(sipmsg.ContentType)
	for v := range m.Named("Accept") {
		if m.Method() == "INVITE" && v == "text/nobodyKnowsThis" {
			return []int{406}
		}
	}
	switch {
	case m.Method() != "INVITE":
		return []int{200}
	case contentType == "application/unknownformat":
		return []int{415}
	}
	return []int{486}
}

// RFC 4475: each of the 49 messages for the home domain, from a phone that is
// registered: a valid request reaches the phone that is called, or the
// registrar, with its meaning and its body; an invalid one is refused as the
// RFC wants and reaches nobody.
func TestTortureFromAPhone(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	n, addr := c.Node("n1"), freshNet()
	tortureUsers(t, c)
	fresh := newWire(t, addr(4), n.P())
	for _, user := range []string{"torture-called", "torture-caller", "torture-reg0", "torture-reg1", "torture-reg2", "torture-reg3"} {
		fresh.registration(t, user, "SHA-256", "Contact: *", "Expires: 0") // the test may run again
	}
	w := newWireAt(t, netip.AddrPortFrom(addr(1), 5060), n.P())
	other := newWireAt(t, netip.AddrPortFrom(addr(1), 5050), n.P())
	w.register(t, "torture-caller")
	far := newWire(t, addr(2), c.Node("n2").P())
	far.register(t, "torture-called")
	callee := far.serve(t, tortureAnswer)
	reg := newWireAt(t, netip.AddrPortFrom(addr(3), 5060), n.P())

	for _, m := range torments(t) {
		t.Run(m.name, func(t *testing.T) {
			raw := m.adapted(w, 1)
			if bytes.HasPrefix(raw, []byte("REGISTER ")) {
				m.register(t, reg, raw)
				return
			}
			if m.phone == "none" {
				silent(t, w, string(m.raw))
				return
			}
			ear := w
			if m.port() == 5050 {
				ear = other
			}
			a := m.final(t, w, ear, raw)
			if a == nil || fmt.Sprint(a.status) != m.phone {
				t.Fatalf("§%s, %s: answered %+v, want %s", m.section, m.why, a, m.phone)
			}
			if m.phone == "420" {
				if v := value(&a.Message, sipmsg.Unsupported); v != "noProxiesSupportThis, norDoAnyProxiesSupportThis" {
					t.Errorf("Unsupported is %q", v)
				}
			}
			if !slices.Contains([]string{"200", "486", "406", "415"}, m.phone) {
				callee.nothing(t)
				return
			}
			m.arrived(t, callee, raw)
		})
	}
	alive(t, w)
}

// nothing says that nothing came so far.
func (c *callee) nothing(t testing.TB) {
	t.Helper()
	for {
		select {
		case raw := <-c.requests:
			if !strings.HasPrefix(raw, "ACK ") {
				t.Errorf("came to the phone of %s:\n%s", c.w.user, raw)
			}
		default:
			return
		}
	}
}

// arrived compares what came to the phone that was called with what was sent.
func (m torment) arrived(t *testing.T, callee *callee, raw []byte) {
	t.Helper()
	sent, err := sipmsg.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	got, text := callee.take(t, sent.Method())
	same := func(what string, g, w any) {
		t.Helper()
		if fmt.Sprint(g) != fmt.Sprint(w) {
			t.Errorf("%s is %q, sent %q", what, g, w)
		}
	}
	same("Call-ID", got.CallID(), sent.CallID())
	same("From tag", got.FromTag(), sent.FromTag())
	same("body", string(got.Body()), string(sent.Body()))
	for _, h := range []sipmsg.Header{sipmsg.From, sipmsg.To, sipmsg.CSeq, sipmsg.Contact} {
		same(h.String(), value(got, h), value(sent, h))
	}
	// The caller's Vias are the last ones, in their order; the first of them
	// says where it came from.
	vias, own := slices.Collect(got.Elements(sipmsg.ViaHeader)), slices.Collect(sent.Elements(sipmsg.ViaHeader))
	if len(vias) != hops+len(own) {
		t.Fatalf("%d Vias, want %d:\n%s", len(vias), hops+len(own), text)
	}
	same("Vias", vias[hops+1:], own[1:])
	if called := strings.TrimPrefix(strings.Fields(string(raw))[1], "sip:"); !strings.Contains(value(got, sipmsg.PCalledPartyID), strings.SplitN(called, "@", 2)[0]) {
		if sent.Method() == "INVITE" || m.name == "semiuri" {
			t.Errorf("P-Called-Party-ID is %q, called was %s", value(got, sipmsg.PCalledPartyID), called)
		}
	}
}

// register sends a REGISTER, again with credentials if it is challenged, and
// looks at what was stored.
func (m torment) register(t *testing.T, w *wire, raw []byte) {
	t.Helper()
	a := m.final(t, w, w, raw)
	if a == nil {
		t.Fatalf("§%s, %s: no answer", m.section, m.why)
	}
	user := registrant(raw)
	if m.phone != "401" && a.status == 401 {
		auth := w.authorize(t, a, user, "SHA-256")
		raw = m.adapted(w, 2)
		line := bytes.IndexByte(raw, '\n') + 1
		raw = slices.Concat(raw[:line], []byte(auth+"\r\n"), raw[line:])
		a = m.final(t, w, w, raw)
	}
	if a == nil || fmt.Sprint(a.status) != m.phone {
		t.Fatalf("§%s, %s: answered %+v, want %s", m.section, m.why, a, m.phone)
	}
	var stored []string
	for v := range a.Elements(sipmsg.Contact) {
		stored = append(stored, regexp.MustCompile(`;expires=\d+`).ReplaceAllString(v, ""))
	}
	want := map[string][]string{
		"cparam01": {"<sip:+19725552222@gw1.example.net>;unknownparam"},
		"cparam02": {"<sip:+19725552222@gw1.example.net;unknownparam>"}, // the same URI as that of cparam01
		"dblreq":   {"<sip:j.user@host.example.com>"},
		"escnull":  {"<sip:%00@host5.example.com>", "<sip:%00%00@host5.example.com>"},
		"regescrt": {"<sip:user@example.com?Route=%3Csip:sip.example.com%3E>"},
	}[m.name]
	if !slices.Equal(stored, want) {
		t.Errorf("stored is %q, want %q", stored, want)
	}
	if m.name == "regbadct" { // a query of what is registered
		user := registrant(raw)
		if a := w.registration(t, user, "SHA-256"); len(slices.Collect(a.Elements(sipmsg.Contact))) != 0 {
			t.Errorf("stored is\n%s", a.raw)
		}
	}
}
