package cscftest_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/aka"
	. "bellwether/cscf/cscftest"
	bwdigest "bellwether/cscf/digest"
	"bellwether/cscf/sipmsg"
)

// card gives a subscriber a SIM and no password.
func (c *ims) card(impi string) *aka.SIM {
	k, opc := aka.Key{1}, aka.Key{2}
	c.Apply(state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{{
		IMPI: impi, Realm: Domain, Identities: []state.Identity{{URI: "sip:" + impi + "@" + Domain}},
		AKA: &state.AKA{K: k[:], OPc: opc[:], AMF: [2]byte{0x80}},
	}}}})
	return aka.NewSIM(k, opc)
}

// answerBySIM makes the REGISTER that answers a 401.
func answerBySIM(t *testing.T, p *Phone, sim *aka.SIM, resp *sipmsg.Message) *sipmsg.Message {
	t.Helper()
	v, _ := resp.Value(sipmsg.WWWAuthenticate)
	_, params, err := sipmsg.ParseAuth(v)
	if err != nil {
		t.Fatalf("%v:\n%s", err, resp.Bytes())
	}
	nonce, _ := params.Value("nonce")
	random, autn, ok := bwdigest.OpenAKANonce(nonce)
	if !ok {
		t.Fatalf("no AKA nonce in:\n%s", resp.Bytes())
	}
	r, auts, err := sim.Challenge(random, autn)
	more := ""
	if errors.Is(err, aka.ErrSync) {
		more = `, auts="` + base64.StdEncoding.EncodeToString(auts[:]) + `"`
	} else if err != nil {
		t.Fatal(err)
	}
	cred := bwdigest.Credentials{
		Username: p.IMPI, Realm: Domain, Nonce: nonce, URI: "sip:" + Domain, Algorithm: bwdigest.AKAv1MD5, QOP: "auth", CNonce: "c", NC: "00000001",
	}
	m := p.RegisterRequest()
	m.Set(sipmsg.Authorization, fmt.Sprintf(`Digest username="%s", realm="%s", nonce="%s", uri="%s", algorithm=AKAv1-MD5, qop=auth, cnonce="c", nc=00000001, response="%s"%s`,
		cred.Username, cred.Realm, nonce, cred.URI, cred.Expected("REGISTER", bwdigest.HA1(bwdigest.MD5, p.IMPI, Domain, string(r.RES))), more))
	return m
}

func TestASIMRegistersInTheCluster(t *testing.T) {
	run(t, "the phone sees the challenge without its keys, registers and calls", func(t *testing.T, c *ims) {
		sim := c.card("dave")
		dave := c.NewPhone("a", "192.0.2.4:5060", "dave", "sip:dave@ims.test")
		dave.Send(dave.RegisterRequest())
		resp := dave.Expect(401, "REGISTER")
		v, _ := resp.Value(sipmsg.WWWAuthenticate)
		_, params, err := sipmsg.ParseAuth(v)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for name := range params.All() {
			names[name] = true
		}
		if got := slices.Sorted(maps.Keys(names)); !slices.Equal(got, []string{"algorithm", "nonce", "qop", "realm"}) {
			t.Errorf("the challenge has %v: %s", got, v)
		}
		dave.Send(answerBySIM(t, dave, sim, resp))
		dave.Expect(200, "REGISTER")
		if _, ok := c.State().Assignment(state.SCSCF, "dave"); !ok {
			t.Error("nobody is assigned")
		}
	})
	run(t, "what is for another realm is skipped", func(t *testing.T, c *ims) {
		sim := c.card("dave")
		dave := c.NewPhone("a", "192.0.2.4:5060", "dave", "sip:dave@ims.test")
		foreign := `Digest username="dave", realm="elsewhere", nonce="` + bwdigest.AKANonce([16]byte{1}, [16]byte{2}) +
			`", uri="sip:elsewhere", algorithm=AKAv1-MD5, response="00"`
		for range 2 {
			dave.Send(dave.RegisterRequest())
			m := answerBySIM(t, dave, sim, dave.Expect(401, "REGISTER"))
			own, _ := m.Value(sipmsg.Authorization)
			m.Set(sipmsg.Authorization, foreign)
			m.Add(sipmsg.Authorization, own)
			dave.Send(m)
			dave.Expect(200, "REGISTER")
		}
	})
	run(t, "a SIM that is out of step registers, at whatever node", func(t *testing.T, c *ims) {
		sim := c.card("dave")
		sim.SetSQN(aka.NewSQN(1<<42, 0))
		for i, node := range []string{"a", "b"} {
			dave := c.NewPhone(node, fmt.Sprintf("192.0.2.%d:5060", 4+i), "dave", "sip:dave@ims.test")
			dave.Send(dave.RegisterRequest())
			resp := dave.Expect(401, "REGISTER")
			if i == 0 {
				dave.Send(answerBySIM(t, dave, sim, resp))
				resp = dave.Expect(401, "REGISTER")
			}
			dave.Send(answerBySIM(t, dave, sim, resp))
			dave.Expect(200, "REGISTER")
			c.Sleep(time.Minute)
		}
	})
	run(t, "another S-CSCF knows the challenge of one that has gone", func(t *testing.T, c *ims) {
		sim := c.card("dave")
		dave := c.NewPhone("a", "192.0.2.4:5060", "dave", "sip:dave@ims.test")
		dave.Send(dave.RegisterRequest())
		resp := dave.Expect(401, "REGISTER")
		c.start(state.SCSCF, 0)
		c.start(state.SCSCF, 1)
		dave.Send(answerBySIM(t, dave, sim, resp))
		dave.Expect(200, "REGISTER")
	})
}

// TestNobodyLearnsWhoIsASubscriber asks as an outsider would, through all roles.
func TestNobodyLearnsWhoIsASubscriber(t *testing.T) {
	// Each asks from a port of its own: a request of the same branch from the
	// same port is a repeated one, and hears what the first one heard.
	port := 5060
	outsider := func(c *ims, user string) *Phone {
		port++
		return c.NewPhone("a", fmt.Sprint("192.0.2.66:", port), user, "sip:"+user+"@ims.test")
	}
	run(t, "SIMs that there are not have challenges like those that there are", func(t *testing.T, c *ims) {
		c.card("dave")
		amf := func(user string) (amf []byte) {
			p := outsider(c, user)
			p.Send(p.RegisterRequest())
			for v := range p.Expect(401, "REGISTER").Values(sipmsg.WWWAuthenticate) {
				_, params, err := sipmsg.ParseAuth(v)
				if err != nil {
					t.Fatal(err)
				}
				nonce, _ := params.Value("nonce")
				if _, autn, ok := bwdigest.OpenAKANonce(nonce); ok {
					amf = autn[6:8]
				}
			}
			return amf
		}
		daves, found := amf("dave"), 0
		for i := range 100 {
			if got := amf(fmt.Sprint("nobody", i)); got != nil {
				found++
				if !slices.Equal(got, daves) {
					t.Fatalf("nobody's AMF is %x, dave's %x", got, daves)
				}
			}
		}
		if found == 0 {
			t.Error("of 100 strangers none is taken for somebody with a SIM")
		}
	})
	run(t, "unknown users, foreign identities and barred ones", func(t *testing.T, c *ims) {
		c.Subscriber("mute", "!sip:mute@ims.test")
		registered(c.bob()) // a subscriber who has an S-CSCF
		describe := func(m *sipmsg.Message) string {
			out := fmt.Sprint(m.Status(), " ", m.Reason())
			for _, line := range strings.Split(string(m.Bytes()), "\r\n")[1:] {
				name, value, _ := strings.Cut(line, ":")
				if _, params, err := sipmsg.ParseAuth(value); name == "WWW-Authenticate" && err == nil {
					nonce, _ := params.Value("nonce")
					line = strings.Replace(line, nonce, fmt.Sprint(len(nonce)), 1)
				} else {
					line = name
				}
				out += "\n" + line
			}
			return out
		}
		for _, password := range []string{"", "guess"} {
			var want string
			for _, user := range []string{"alice", "bob", "mute", "nobody", "someone"} {
				evil := outsider(c, user)
				evil.Send(evil.RegisterRequest())
				resp := evil.Expect(401, "REGISTER")
				if password != "" {
					evil.Challenged(resp, bwdigest.MD5)
					evil.IMPI = password // of another user, as far as anybody knows
					evil.Send(evil.RegisterRequest())
					resp = evil.Next()
				}
				got := describe(resp)
				if want == "" {
					want = got
				}
				if got != want {
					t.Errorf("%s with %q hears\n%s\nalice\n%s", user, password, got, want)
				}
			}
		}
		for _, user := range []string{"alice", "nobody"} {
			if _, ok := c.State().Assignment(state.SCSCF, user); ok {
				t.Errorf("%s is assigned", user)
			}
		}
	})
}
