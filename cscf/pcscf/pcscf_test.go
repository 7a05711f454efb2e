package pcscf_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bellwether/controller/state"
	. "bellwether/cscf/cscftest"
	"bellwether/cscf/pcscf"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/ha"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a P-CSCF between phones and an I- and an S-CSCF that the test plays.
type bench struct {
	*Cluster
	t       *testing.T
	p       *pcscf.CSCF
	e, i, s *Engine
	serial  int
}

func run(t *testing.T, name string, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &bench{Cluster: New(t), t: t}
			p := b.AddGroup(state.PCSCF, "a")
			b.i = b.NewEngine(b.AddGroup(state.ICSCF, "a"))
			b.s = b.NewEngine(b.AddGroup(state.SCSCF, "b"))
			b.i.Start(nil)
			b.s.Start(nil)
			b.start(p)
			test(t, b)
			b.Sleep(5 * time.Minute)
			if !b.e.Idle() {
				t.Error("transactions are left")
			}
		})
	})
}

// start starts the P-CSCF, or starts it anew.
func (b *bench) start(g state.GroupID) {
	b.e = b.NewEngine(g)
	b.p = pcscf.New(pcscf.Config{Group: g, Sealer: b.Sealer, ServiceAddr: b.ServiceAddrs(g), Domain: Domain}, b.e, b.Store)
	b.p.Load()
	b.e.Start(b.p)
}

func (b *bench) phone() *Phone { return b.NewPhone("a", "192.0.2.1:5060", "alice", aliceURI) }

const (
	aliceURI = "sip:alice@ims.test"
	otherURI = "sip:other@ims.test"
)

// grant answers a REGISTER that reached the I-CSCF like an S-CSCF would.
func (b *bench) grant(req *sipmsg.Message, contacts ...string) {
	resp := req.Response(200, "", "s")
	for _, c := range contacts {
		resp.Add(sipmsg.Contact, c)
	}
	resp.Add(sipmsg.ServiceRoute, b.Route(token.Token{Mode: token.Orig, Group: b.s.Group}))
	set := "<" + aliceURI + ">, <tel:+4930111>"
	if to, _ := req.To(); to.URI == otherURI {
		set = "<" + otherURI + ">"
	}
	resp.Add(sipmsg.PAssociatedURI, set)
	resp.Add(sipmsg.PChargingFunctionAddresses, "ccf=192.0.2.200")
	b.i.Send(b.e, resp)
}

// register registers a phone with its contact for an hour.
func (b *bench) register(p *Phone) *sipmsg.Message {
	b.t.Helper()
	p.Send(p.RegisterRequest())
	b.grant(b.i.Next(), p.Contact+";expires=3600")
	ok := p.Expect(200, "REGISTER")
	p.ServiceRoute = slices.Collect(ok.Elements(sipmsg.ServiceRoute))
	return ok
}

// path is the Path that a phone's REGISTER carries.
func (b *bench) path(p *Phone) string {
	b.t.Helper()
	p.Send(p.RegisterRequest())
	req := b.i.Next()
	v, _ := req.Value(sipmsg.Path)
	b.grant(req, p.Contact+";expires=3600")
	p.Expect(200, "REGISTER")
	return v
}

// toPhone is a request as the S-CSCF sends it along a Path.
func (b *bench) toPhone(method, path string, headers ...string) *sipmsg.Message {
	b.serial++
	id := method + strconv.Itoa(b.serial)
	m := sipmsg.NewRequest(method, "sip:192.0.2.1:5060")
	for _, h := range append([]string{
		"Via: SIP/2.0/UDP " + b.ServiceAddr(b.s.Group).String() + ";branch=z9hG4bK" + b.Sealer.Seal(token.Token{Mode: token.Via, Group: b.s.Group}) + "." + id,
		"Max-Forwards: 60", "From: <sip:bob@ims.test>;tag=b", "To: <" + aliceURI + ">", "Call-ID: c-" + id, "CSeq: 1 " + method,
		"Route: " + path, "P-Asserted-Identity: <sip:bob@ims.test>", "P-Called-Party-ID: <tel:+49-30-111>",
		"P-Charging-Vector: icid-value=1", "P-Charging-Function-Addresses: ccf=1", "P-Served-User: <sip:alice@ims.test>",
	}, headers...) {
		name, value, _ := strings.Cut(h, ": ")
		if name == "To" || name == "From" {
			m.Remove(sipmsg.HeaderNamed(name))
		}
		m.AddNamed(name, value)
	}
	return m
}

func values(m *sipmsg.Message, h sipmsg.Header) []string { return slices.Collect(m.Values(h)) }

func want(t *testing.T, m *sipmsg.Message, h sipmsg.Header, expected ...string) {
	t.Helper()
	if got := values(m, h); !slices.Equal(got, expected) {
		t.Errorf("%s: got %q, want %q in:\n%s", h, got, expected, m.Bytes())
	}
}

func TestRegister(t *testing.T) {
	run(t, "what goes to the I-CSCF is what the network says", func(t *testing.T, b *bench) {
		p := b.phone()
		m := p.RegisterRequest(
			"Security-Client: ipsec-3gpp;alg=x", "security-verify: y", "Require: sec-agree, gruu", "Proxy-Require: sec-agree",
			"Path: <sip:192.0.2.66;lr>", "P-Visited-Network-ID: evil", "P-Charging-Vector: icid-value=1",
			"P-Asserted-Identity: <sip:bob@ims.test>", "P-Access-Network-Info: IEEE-802.11;network-provided",
			`Authorization: Digest username="alice", realm="ims.test", nonce="", Integrity-Protected="tls-yes", uri="sip:ims.test", response=""`,
		)
		m.Add(sipmsg.Route, "<sip:127.0.0.1;lr>, <sip:192.0.2.66;lr>")
		m.Add(sipmsg.Authorization, `Digest username="a,b", integrity-protected=yes , realm="other"`)
		p.Send(m)
		got := b.i.Next()
		for _, h := range []sipmsg.Header{
			sipmsg.SecurityClient, sipmsg.SecurityVerify, sipmsg.ProxyRequire, sipmsg.Route, sipmsg.PAssertedIdentity, sipmsg.PAccessNetworkInfo,
		} {
			want(t, got, h)
		}
		want(t, got, sipmsg.Require, "gruu", "path")
		want(t, got, sipmsg.PVisitedNetworkID, `"ims.test"`)
		want(t, got, sipmsg.Authorization,
			`Digest username="alice", realm="ims.test", nonce="", uri="sip:ims.test", response=""`,
			`Digest username="a,b", realm="other"`)
		path := values(got, sipmsg.Path)
		if len(path) != 1 || !strings.HasSuffix(path[0], "@127.0.0.1:5060;lr>") {
			t.Fatalf("Path %q", path)
		}
		tok, ok := b.Sealer.Open(path[0][len("<sip:"):strings.IndexByte(path[0], '@')])
		if !ok || tok.Mode != token.Binding || tok.Group != b.e.Group || tok.Binding == 0 {
			t.Errorf("token %+v", tok)
		}
		if v := values(got, sipmsg.PChargingVector); len(v) != 1 || !strings.Contains(v[0], "icid-value=") || !strings.Contains(v[0], "orig-ioi=ims.test") || v[0] == "icid-value=1" {
			t.Errorf("P-Charging-Vector %q", v)
		}
	})
	run(t, "the 200 waits for the commit and shows the phone no charging", func(t *testing.T, b *bench) {
		release := b.HoldProposals()
		p := b.phone()
		p.Send(p.RegisterRequest())
		b.grant(b.i.Next(), p.Contact+";expires=3600")
		p.Silent()
		b.Sleep(time.Second)
		p.Silent()
		release()
		want(t, p.Expect(200, "REGISTER"), sipmsg.PChargingFunctionAddresses)
	})
	run(t, "a registration that cannot be committed is answered 500", func(t *testing.T, b *bench) {
		b.FailProposals(errors.New("no leader"))
		p := b.phone()
		p.Send(p.RegisterRequest())
		b.grant(b.i.Next(), p.Contact+";expires=3600")
		p.Expect(500, "REGISTER")
		b.FailProposals(nil)
		b.register(p)
	})
	run(t, "a registration that cannot be stored is answered 500", func(t *testing.T, b *bench) {
		p := b.phone()
		p.Send(p.RegisterRequest())
		if err := b.Store.Close(); err != nil {
			t.Fatal(err)
		}
		b.grant(b.i.Next(), p.Contact+";expires=3600")
		p.Expect(500, "REGISTER")
	})
	run(t, "refusals pass and change nothing", func(t *testing.T, b *bench) {
		p := b.phone()
		b.register(p)
		for _, status := range []int{401, 403, 423, 500} {
			p.Send(p.RegisterRequest())
			b.i.Send(b.e, b.i.Next().Response(status, "", "x"))
			p.Expect(status, "REGISTER")
		}
		if len(b.p.Bindings(aliceURI)) != 1 {
			t.Error("the binding went")
		}
	})
	run(t, "a query changes nothing", func(t *testing.T, b *bench) {
		p := b.phone()
		b.register(p)
		m := p.RegisterRequest()
		m.Remove(sipmsg.Contact)
		p.Send(m)
		b.grant(b.i.Next(), p.Contact+";expires=1800")
		p.Expect(200, "REGISTER")
		if got := b.p.Bindings(aliceURI); len(got) != 1 || got[0].Flow != p.Flow {
			t.Errorf("bindings %+v", got)
		}
	})
	run(t, "a contact that the S-CSCF no longer has is forgotten", func(t *testing.T, b *bench) {
		p, other := b.phone(), b.NewPhone("a", "192.0.2.7:5060", "alice", aliceURI)
		b.register(p)
		other.Send(other.RegisterRequest())
		b.grant(b.i.Next(), other.Contact+";expires=600")
		other.Expect(200, "REGISTER")
		if got := b.p.Bindings(aliceURI); len(got) != 1 || got[0].Flow != other.Flow {
			t.Errorf("bindings %+v", got)
		}
		if got := b.Bound(b.e.Group); len(got) != 1 || got[0] != other.Flow {
			t.Errorf("bound %v", got)
		}
	})
	run(t, "several contacts of one REGISTER are one binding", func(t *testing.T, b *bench) {
		p := b.phone()
		m := p.RegisterRequest()
		m.Add(sipmsg.Contact, "<sip:second@192.0.2.1:5070>;expires=60")
		p.Send(m)
		b.grant(b.i.Next(), p.Contact+";expires=3600", "<sip:second@192.0.2.1:5070>;expires=60")
		p.Expect(200, "REGISTER")
		got := b.p.Bindings(aliceURI)
		if len(got) != 1 || len(got[0].Contacts) != 2 || !got[0].Expires.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("bindings %+v", got)
		}
		if users := b.p.Users(); !slices.Equal(users, []string{aliceURI}) {
			t.Errorf("users %q", users)
		}
	})
	run(t, "a flow that users share is let go with the last of them", func(t *testing.T, b *bench) {
		p := b.phone()
		b.register(p)
		p.AOR = otherURI
		b.register(p)
		p.Send(p.RegisterRequest("Expires: 0"))
		b.grant(b.i.Next())
		p.Expect(200, "REGISTER")
		if got := b.Bound(b.e.Group); len(got) != 1 {
			t.Errorf("bound %v", got)
		}
		p.AOR = aliceURI
		p.Send(p.RegisterRequest("Expires: 0"))
		b.grant(b.i.Next())
		p.Expect(200, "REGISTER")
		if got := b.Bound(b.e.Group); len(got) != 0 {
			t.Errorf("bound %v", got)
		}
	})
	run(t, "malformed and unsupported", func(t *testing.T, b *bench) {
		p := b.phone()
		p.Send(p.RegisterRequest("To: <urn:x>"))
		p.Expect(400, "REGISTER")
		p.Send(p.RegisterRequest("Proxy-Require: sec-agree, foo"))
		want(t, p.Expect(420, "REGISTER"), sipmsg.Unsupported, "foo")
		p.Call("MESSAGE", "sip:bob@ims.test", "Proxy-Require: foo, bar")
		want(t, p.Expect(420, "MESSAGE"), sipmsg.Unsupported, "foo, bar")
	})
	run(t, "an I-CSCF that nobody serves is answered 504", func(t *testing.T, b *bench) {
		b.Isolate(b.i.Group, true)
		p := b.phone()
		p.Send(p.RegisterRequest())
		b.Sleep(3 * time.Second)
		p.Expect(504, "REGISTER")
	})
	run(t, "bindings and ended dialogs survive a restart, damaged records do not matter", func(t *testing.T, b *bench) {
		p := b.phone()
		path := b.path(p)
		b.Store.Put(b.e.Group, "binding/zzz", []byte("\xff\xff"), time.Time{}, nil)
		b.Store.Put(b.e.Group, "binding/0000000000000001", nil, time.Time{}, nil)
		b.start(b.e.Group)
		if got := b.p.Bindings(aliceURI); len(got) != 1 || got[0].Flow != p.Flow || len(got[0].Identities) != 2 {
			t.Fatalf("bindings %+v", got)
		}
		b.s.Send(b.e, b.toPhone("INVITE", path))
		p.Answer(p.Expect(0, "INVITE"), 486)
		p.Expect(0, "ACK")
		p.Send(p.RegisterRequest("Expires: 0"))
		b.grant(b.i.Next())
		p.Expect(200, "REGISTER")
		b.start(b.e.Group)
		b.s.Send(b.e, b.toPhone("BYE", path, "To: <"+aliceURI+">;tag=x"))
		p.Answer(p.Expect(0, "BYE"), 200)
		b.Sleep(2 * time.Hour)
		b.s.Send(b.e, b.toPhone("INFO", path, "To: <"+aliceURI+">;tag=x"))
		p.Silent()
		b.Store.Range(b.e.Group, func(r ha.Record) bool {
			if r.Key != "binding/zzz" && r.Key != "binding/0000000000000001" {
				t.Errorf("record %s is left", r.Key)
			}
			return true
		})
	})
}

func TestTowardsThePhone(t *testing.T) {
	run(t, "what the phone gets, and what it may answer", func(t *testing.T, b *bench) {
		p := b.phone()
		path := b.path(p)
		b.s.Send(b.e, b.toPhone("INVITE", path))
		got := p.Expect(0, "INVITE")
		for _, h := range []sipmsg.Header{sipmsg.Route, sipmsg.PChargingVector, sipmsg.PChargingFunctionAddresses, sipmsg.PServedUser} {
			want(t, got, h)
		}
		want(t, got, sipmsg.PAssertedIdentity, "<sip:bob@ims.test>")
		want(t, got, sipmsg.PCalledPartyID, "<tel:+49-30-111>")
		want(t, got, sipmsg.RecordRoute, path)
		p.Answer(got, 180, "P-Asserted-Identity: <sip:evil@ims.test>", "P-Charging-Vector: icid-value=9", "P-Access-Network-Info: IEEE-802.11;Network-Provided")
		p.Answer(got, 486, "P-Asserted-Identity: <sip:evil@ims.test>")
		for _, status := range []int{100, 180, 486} {
			resp := b.s.Next()
			if resp.Status() != status {
				t.Fatalf("%d, want %d", resp.Status(), status)
			}
			want(t, resp, sipmsg.PChargingVector)
			want(t, resp, sipmsg.PAccessNetworkInfo)
			if status == 180 {
				want(t, resp, sipmsg.PAssertedIdentity, "<tel:+4930111>")
			} else {
				want(t, resp, sipmsg.PAssertedIdentity)
			}
		}
	})
	run(t, "privacy", func(t *testing.T, b *bench) {
		p := b.phone()
		path := b.path(p)
		for _, c := range []struct {
			privacy string
			shown   bool
		}{{"none", true}, {"id", false}, {"header;id", false}, {"user; ID ; critical", false}, {"identity", true}} {
			b.s.Send(b.e, b.toPhone("MESSAGE", path, "Privacy: "+c.privacy))
			got := p.Expect(0, "MESSAGE")
			if shown := len(values(got, sipmsg.PAssertedIdentity)) > 0; shown != c.shown {
				t.Errorf("Privacy %q: identity shown %t", c.privacy, shown)
			}
			p.Answer(got, 200)
		}
	})
	run(t, "only an S-CSCF may send, only to a binding", func(t *testing.T, b *bench) {
		p := b.phone()
		path := b.path(p)
		b.i.Send(b.e, b.toPhone("MESSAGE", path))
		if s := b.i.Next().Status(); s != 403 {
			t.Errorf("from an I-CSCF: %d", s)
		}
		for route, status := range map[string]int{
			b.Route(token.Token{Mode: token.Binding, Group: b.e.Group, Binding: 7}): 480,
			b.Route(token.Token{Mode: token.Dialog, Group: b.e.Group}):              403,
			b.Route(token.Token{Mode: token.Binding, Group: b.s.Group, Binding: 7}): 403,
			"<sip:127.0.0.1;lr>": 403,
		} {
			b.s.Send(b.e, b.toPhone("MESSAGE", route))
			if s := b.s.Next().Status(); s != status {
				t.Errorf("%s: %d, want %d", route, s, status)
			}
		}
		p.Silent()
	})
	run(t, "a phone whose registration ended is reached inside its dialogs only", func(t *testing.T, b *bench) {
		p := b.phone()
		path := b.path(p)
		b.s.Send(b.e, b.toPhone("INVITE", path))
		p.Answer(p.Expect(0, "INVITE"), 200)
		p.Send(p.RegisterRequest("Expires: 0"))
		b.grant(b.i.Next())
		p.Expect(200, "REGISTER")
		for b.s.Pending() > 0 {
			b.s.Next()
		}
		b.s.Send(b.e, b.toPhone("MESSAGE", path))
		if s := b.s.Next().Status(); s != 480 {
			t.Errorf("a new request: %d", s)
		}
		b.s.Send(b.e, b.toPhone("BYE", path, "To: <"+aliceURI+">;tag=x"))
		p.Answer(p.Expect(0, "BYE"), 200)
		if s := b.s.Next().Status(); s != 200 {
			t.Errorf("a request inside the dialog: %d", s)
		}
	})
	run(t, "a flow nobody registered does not lead to a phone's dialogs", func(t *testing.T, b *bench) {
		p := b.phone()
		path := b.path(p)
		evil := b.NewPhone("a", "192.0.2.66:5060", "x", "sip:x@ims.test")
		evil.Call("BYE", "sip:192.0.2.1", "To: <"+aliceURI+">;tag=x", "Route: "+path)
		evil.Expect(403, "BYE")
		p.Silent()
	})
}

func TestFromThePhone(t *testing.T) {
	run(t, "an S-CSCF that nobody serves: the phone shall register again", func(t *testing.T, b *bench) {
		p := b.phone()
		b.register(p)
		b.Isolate(b.s.Group, true)
		p.Call("MESSAGE", "sip:bob@ims.test")
		b.Sleep(3 * time.Second)
		resp := p.Expect(504, "MESSAGE")
		want(t, resp, sipmsg.ContentType, "application/3gpp-ims+xml")
		if !strings.Contains(string(resp.Body()), "<action>initial-registration</action>") {
			t.Errorf("body %s", resp.Body())
		}
	})
	run(t, "an emergency call is sent elsewhere, registered or not", func(t *testing.T, b *bench) {
		p := b.phone()
		for _, uri := range []string{"urn:service:sos", "URN:service:SOS.fire"} {
			invite := p.Call("INVITE", uri)
			resp := p.Expect(380, "INVITE")
			if !strings.Contains(string(resp.Body()), "<type>emergency</type>") {
				t.Errorf("body %s", resp.Body())
			}
			p.AckRefusal(invite, resp)
			b.register(p)
		}
		p.Call("MESSAGE", "urn:service:counseling")
		b.s.Send(b.e, b.s.Next().Response(404, "", "s")) // no emergency
		p.Expect(404, "MESSAGE")
	})
	run(t, "a phone with an expired binding is refused", func(t *testing.T, b *bench) {
		p := b.phone()
		b.register(p)
		b.Sleep(time.Hour)
		p.Call("MESSAGE", "sip:bob@ims.test")
		p.Expect(403, "MESSAGE")
		if f := b.p.Figures(); f.Refused != 1 || f.Users != 0 {
			t.Errorf("figures %+v", f)
		}
	})
	run(t, "the charging vector is ours and new each time", func(t *testing.T, b *bench) {
		p := b.phone()
		b.register(p)
		seen := map[string]bool{}
		for range 3 {
			p.Call("MESSAGE", "sip:bob@ims.test", "P-Charging-Vector: icid-value=1")
			m := b.s.Next()
			v := values(m, sipmsg.PChargingVector)
			if len(v) != 1 || seen[v[0]] || v[0] == "icid-value=1" {
				t.Errorf("P-Charging-Vector %q", v)
			}
			seen[v[0]] = true
			b.s.Send(b.e, m.Response(202, "", "s"))
			p.Expect(202, "MESSAGE")
		}
	})
	run(t, "a response of a lost transaction finds the connection of its phone", func(t *testing.T, b *bench) {
		p := b.phone()
		p.Reconnect("192.0.2.1:40000")
		b.register(p)
		m := p.Request("INVITE", "sip:bob@ims.test")
		m.Set(sipmsg.ViaHeader, "SIP/2.0/TCP 192.0.2.1:5060;branch=z9hG4bKnorport")
		p.Send(m)
		toCore := b.s.Next()
		b.start(b.e.Group)
		b.s.Send(b.e, toCore.Response(200, "", "s"))
		p.Expect(200, "INVITE")
	})
	run(t, "a response of a lost transaction finds its way, both ways", func(t *testing.T, b *bench) {
		p := b.phone()
		path := b.path(p)
		p.ServiceRoute = []string{b.Route(token.Token{Mode: token.Orig, Group: b.s.Group})}
		p.Call("INVITE", "sip:bob@ims.test")
		toCore := b.s.Next()
		b.s.Send(b.e, b.toPhone("INVITE", path))
		b.s.Next() // 100
		toPhone := p.Expect(0, "INVITE")
		b.start(b.e.Group)
		ok := toCore.Response(200, "", "s")
		ok.Add(sipmsg.PChargingVector, "icid-value=1")
		b.s.Send(b.e, ok)
		want(t, p.Expect(200, "INVITE"), sipmsg.PChargingVector)
		p.Answer(toPhone, 200, "P-Asserted-Identity: <sip:evil@ims.test>")
		resp := b.s.Next()
		if resp.Status() != 200 {
			t.Errorf("status %d", resp.Status())
		}
		want(t, resp, sipmsg.PAssertedIdentity)
	})
}
