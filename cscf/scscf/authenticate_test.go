package scscf_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/aka"
	. "bellwether/cscf/cscftest"
	"bellwether/cscf/digest"
	"bellwether/cscf/scscf"
	"bellwether/cscf/sipmsg"
)

var (
	testK   = aka.Key{1, 2, 3}
	testOPc = aka.Key{4, 5, 6}
)

// sim gives a subscriber a SIM, and its password with it or not.
func (b *bench) sim(impi string, password bool) *aka.SIM {
	b.t.Helper()
	sub := state.Subscriber{IMPI: impi, Realm: Domain, Identities: []state.Identity{{URI: "sip:" + impi + "@" + Domain}}}
	sub.AKA = &state.AKA{K: testK[:], OPc: testOPc[:], AMF: [2]byte{0x80}}
	if password {
		sub.HA1 = state.HA1{}
		for _, alg := range digest.Algorithms {
			sub.HA1[string(alg)] = digest.HA1(alg, impi, Domain, impi)
		}
	}
	b.Apply(state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{sub}}})
	return aka.NewSIM(testK, testOPc)
}

// algorithms lists what a response challenges with, in its order.
func algorithms(m *sipmsg.Message) (out []string) {
	for v := range m.Values(sipmsg.WWWAuthenticate) {
		_, params, err := sipmsg.ParseAuth(v)
		if err != nil {
			return []string{err.Error()}
		}
		alg, _ := params.Value("algorithm")
		out = append(out, alg)
	}
	return out
}

// akaChallenge finds the AKA challenge of a 401.
func (b *bench) akaChallenge(m *sipmsg.Message) sipmsg.AuthParams {
	b.t.Helper()
	for v := range m.Values(sipmsg.WWWAuthenticate) {
		_, params, err := sipmsg.ParseAuth(v)
		if alg, _ := params.Value("algorithm"); err == nil && alg == "AKAv1-MD5" {
			return params
		}
	}
	b.t.Fatalf("no AKA challenge in:\n%s", m.Bytes())
	return ""
}

// answer makes the credentials for an AKA nonce and a password, with further
// fields.
func answer(impi, nonce, password string, count int, fields ...string) string {
	c := digest.Credentials{
		Username: impi, Realm: Domain, Nonce: nonce, URI: "sip:" + Domain, Algorithm: digest.AKAv1MD5,
		QOP: "auth", CNonce: "c", NC: fmt.Sprintf("%08x", count),
	}
	c.Response = c.Expected("REGISTER", digest.HA1(digest.MD5, impi, Domain, password))
	return strings.Join(append([]string{fmt.Sprintf(`Digest username="%s", realm="%s", nonce="%s", uri="%s", qop=auth, cnonce="c", nc=%s, response="%s", algorithm=AKAv1-MD5`,
		c.Username, c.Realm, c.Nonce, c.URI, c.NC, c.Response)}, fields...), ", ")
}

// registerAKA sends a REGISTER and lets the SIM answer, also by AUTS, until
// there is no challenge; it returns the last answer and how many 401s came.
func (b *bench) registerAKA(impi string, sim *aka.SIM) (*sipmsg.Message, int) {
	b.t.Helper()
	aor := "sip:" + impi + "@" + Domain
	resp := b.ask(b.i, b.registerRequest(impi, aor, "Contact: <sip:a@192.0.2.1>"))
	for n := 1; ; n++ {
		if resp.Status() != 401 || n > 3 {
			return resp, n - 1
		}
		nonce, _ := b.akaChallenge(resp).Value("nonce")
		random, autn, ok := digest.OpenAKANonce(nonce)
		if !ok {
			b.t.Fatalf("nonce %q", nonce)
		}
		r, auts, err := sim.Challenge(random, autn)
		cred := answer(impi, nonce, string(r.RES), 1)
		if errors.Is(err, aka.ErrSync) {
			cred = answer(impi, nonce, "", 1, `auts="`+base64.StdEncoding.EncodeToString(auts[:])+`"`)
		} else if err != nil {
			b.t.Fatal(err)
		}
		resp = b.ask(b.i, b.registerRequest(impi, aor, "Contact: <sip:a@192.0.2.1>", "Authorization: "+cred))
	}
}

// RFC 3310: a SIM registers, and its keys go to the P-CSCF.
func TestAKA(t *testing.T) {
	run(t, "a SIM registers at once", func(t *testing.T, b *bench) {
		sim := b.sim("dave", false)
		resp := b.ask(b.i, b.registerRequest("dave", "sip:dave@ims.test"))
		params := b.akaChallenge(resp)
		nonce, _ := params.Value("nonce")
		random, autn, _ := digest.OpenAKANonce(nonce)
		r, _, err := aka.NewSIM(testK, testOPc).Challenge(random, autn)
		ck, _ := params.Value("ck")
		ik, _ := params.Value("ik")
		if err != nil || ck != fmt.Sprintf("%x", r.CK) || ik != fmt.Sprintf("%x", r.IK) {
			t.Errorf("keys %s %s, %v", ck, ik, err)
		}
		if f := b.r.Figures(); f != (scscf.Figures{}) {
			t.Errorf("the challenge left %+v", f)
		}
		if resp, n := b.registerAKA("dave", sim); resp.Status() != 200 || n != 1 {
			t.Errorf("after %d challenges:\n%s", n, resp.Bytes())
		}
	})
	run(t, "two challenges under way may both be answered", func(t *testing.T, b *bench) {
		sim := b.sim("dave", false)
		var nonces []string
		for range 2 {
			nonce, _ := b.akaChallenge(b.ask(b.i, b.registerRequest("dave", "sip:dave@ims.test"))).Value("nonce")
			nonces = append(nonces, nonce)
		}
		for _, nonce := range nonces {
			random, autn, _ := digest.OpenAKANonce(nonce)
			r, _, err := sim.Challenge(random, autn)
			if err != nil {
				t.Fatal(err)
			}
			m := b.registerRequest("dave", "sip:dave@ims.test", "Contact: <sip:a@192.0.2.1>", "Authorization: "+answer("dave", nonce, string(r.RES), 1))
			if resp := b.ask(b.i, m); resp.Status() != 200 {
				t.Errorf("%s", resp.Bytes())
			}
		}
	})
	run(t, "a SIM that is out of step is brought in step by one more challenge", func(t *testing.T, b *bench) {
		sim := b.sim("dave", false)
		sim.SetSQN(aka.NewSQN(1<<42, 3))
		if resp, n := b.registerAKA("dave", sim); resp.Status() != 200 || n != 2 {
			t.Errorf("after %d challenges:\n%s", n, resp.Bytes())
		}
		b.nonce = ""
		if resp, n := b.registerAKA("dave", sim); resp.Status() != 200 || n != 1 {
			t.Errorf("the next time, after %d challenges:\n%s", n, resp.Bytes())
		}
	})
	run(t, "a resynchronisation that cannot be committed is no refusal", func(t *testing.T, b *bench) {
		sim := b.sim("dave", false)
		sim.SetSQN(aka.NewSQN(1<<42, 3))
		b.FailProposals(errors.New("no majority"))
		if resp, _ := b.registerAKA("dave", sim); resp.Status() != 504 {
			t.Errorf("%s", resp.Bytes())
		}
	})
	run(t, "a SIM that never gets in step is not challenged for ever, nor does it fill the log", func(t *testing.T, b *bench) {
		b.sim("dave", false)
		statuses := map[int]int{}
		index := b.State().Index()
		for range 20 {
			resp := b.ask(b.i, b.registerRequest("dave", "sip:dave@ims.test"))
			nonce, _ := b.akaChallenge(resp).Value("nonce")
			random, _, _ := digest.OpenAKANonce(nonce)
			auts := aka.New(testK, testOPc).AUTS(random, aka.NewSQN(uint64(time.Now().UnixMilli())+1<<41, 0))
			resp = b.ask(b.i, b.registerRequest("dave", "sip:dave@ims.test", "Authorization: "+answer("dave", nonce, "", 1, `auts="`+base64.StdEncoding.EncodeToString(auts[:])+`"`)))
			statuses[resp.Status()]++
		}
		if statuses[401] != 5 || statuses[403] != 15 || b.State().Index() > index+20 {
			t.Errorf("answered %v, %d commands", statuses, b.State().Index()-index)
		}
	})
	run(t, "what is not the SIM's answer is not let in", func(t *testing.T, b *bench) {
		sim := b.sim("dave", false)
		nonce, _ := b.akaChallenge(b.ask(b.i, b.registerRequest("dave", "sip:dave@ims.test"))).Value("nonce")
		random, autn, _ := digest.OpenAKANonce(nonce)
		r, _, err := sim.Challenge(random, autn)
		if err != nil {
			t.Fatal(err)
		}
		res := string(r.RES)
		autn[15] ^= 1
		forged := digest.AKANonce(random, autn)
		auts := base64.StdEncoding.EncodeToString(make([]byte, 14))
		for _, tt := range []struct {
			name, credentials string
			status            int
			stale             bool
		}{
			{"another RES", answer("dave", nonce, "guess", 1), 401, false},
			{"no password", answer("dave", nonce, "", 1), 401, false},
			{"a challenge that was changed", answer("dave", forged, res, 1), 401, false},
			{"somebody else's AUTS", answer("dave", nonce, "", 1, `auts="`+auts+`"`), 401, false},
			{"another user's name", answer("alice", nonce, res, 1), 401, false},
			{"a SIM that takes the challenge for another network's", `Digest username="dave", realm="ims.test", nonce="` + nonce + `", uri="sip:ims.test", response="", algorithm=AKAv1-MD5`, 403, false},
			{"the answer", answer("dave", nonce, res, 1), 200, false},
			{"the answer again", answer("dave", nonce, res, 1), 401, true},
		} {
			resp := b.ask(b.i, b.registerRequest("dave", "sip:dave@ims.test", "Authorization: "+tt.credentials))
			if resp.Status() != tt.status || strings.Contains(string(resp.Bytes()), "stale=true") != tt.stale {
				t.Errorf("%s:\n%s", tt.name, resp.Bytes())
			}
		}
		b.Sleep(41 * time.Second)
		resp := b.ask(b.i, b.registerRequest("dave", "sip:dave@ims.test", "Authorization: "+answer("dave", nonce, res, 2)))
		if resp.Status() != 401 || !strings.Contains(string(resp.Bytes()), "stale=true") {
			t.Errorf("too late:\n%s", resp.Bytes())
		}
	})
	run(t, "SHA-256 comes before MD5, and AKA first for who asks for it", func(t *testing.T, b *bench) {
		b.sim("dave", true)
		b.sim("erin", false)
		for _, tt := range []struct {
			name, impi, credentials string
			want                    []string
		}{
			{"both, and no word of AKA", "dave", "", []string{"SHA-256", "MD5", "AKAv1-MD5"}},
			{"both, and AKA is named", "dave", `Digest username="dave", realm="ims.test", nonce="", uri="sip:ims.test", response="", algorithm=akav1-md5`, []string{"AKAv1-MD5", "SHA-256", "MD5"}},
			{"a SIM only", "erin", "", []string{"AKAv1-MD5"}},
			{"a password only", "alice", `Digest username="alice", realm="ims.test", nonce="", uri="sip:ims.test", response="", algorithm=AKAv1-MD5`, []string{"SHA-256", "MD5"}},
		} {
			m := b.registerRequest(tt.impi, "sip:"+tt.impi+"@ims.test")
			if tt.credentials != "" {
				m.Set(sipmsg.Authorization, tt.credentials)
			}
			if got := algorithms(b.ask(b.i, m)); !slices.Equal(got, tt.want) {
				t.Errorf("%s: %v", tt.name, got)
			}
		}
		b.challenged(b.ask(b.i, b.registerRequest("dave", "sip:dave@ims.test")))
		b.nonce = "" // of the last challenge, which is AKA's
		if resp, n := b.registerAKA("dave", aka.NewSIM(testK, testOPc)); resp.Status() != 200 || n != 1 {
			t.Errorf("by the SIM, after %d challenges:\n%s", n, resp.Bytes())
		}
	})
}

func TestCredentialsThatAreNotAsOffered(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for _, tt := range []struct {
		name   string
		change func(cred string) string
		status int
	}{
		{"auth-int, which nobody offered", func(c string) string { return strings.Replace(c, "qop=auth", "qop=auth-int", 1) }, 400},
		{"a qop that does not exist", func(c string) string { return strings.Replace(c, "qop=auth", "qop=none", 1) }, 400},
		{"no qop", func(c string) string { return strings.Replace(c, "qop=auth, ", "", 1) }, 401},
		{"an algorithm that nobody knows", func(c string) string { return strings.Replace(c, "=MD5", "=MD5-sess", 1) }, 401},
		{"an algorithm without the rest", func(c string) string { return strings.Replace(c, "=MD5", "=AKAv1-MD5", 1) }, 401},
		{"a cnonce as long as a letter", func(c string) string { return strings.Replace(c, `cnonce="c"`, `cnonce="`+long+`"`, 1) }, 400},
		{"a digest as long as a letter", func(c string) string { return strings.Replace(c, `response="`, `response="`+long, 1) }, 400},
		{"a user name as long as a letter", func(c string) string { return strings.Replace(c, `username="`, `username="`+long, 1) }, 400},
		{"a parameter twice", func(c string) string { return c + `, username="bob"` }, 400},
		{"a count that is no number", func(c string) string { return strings.Replace(c, "nc=0", "nc=g", 1) }, 400},
		{"the scheme alone", func(string) string { return "Digest" }, 400},
		{"a quote that does not end", func(c string) string { return c + `, opaque="` }, 400},
		{"another scheme", func(string) string { return "Bearer abc==" }, 401},
	} {
		// In the same way for those who are no subscribers.
		for _, user := range []string{"alice", "nobody"} {
			run(t, tt.name+" of "+user, func(t *testing.T, b *bench) {
				aor := "sip:" + user + "@ims.test"
				b.challenged(b.ask(b.i, b.registerRequest(user, aor)))
				m := b.registerRequest(user, aor, "Contact: <sip:a@192.0.2.1>")
				m.Set(sipmsg.Authorization, tt.change(b.credentials(user, user, "sip:ims.test", Domain)))
				if resp := b.ask(b.i, m); resp.Status() != tt.status {
					t.Errorf("%s", resp.Bytes())
				}
				if f := b.r.Figures(); f.Users != 0 || f.Contacts != 0 {
					t.Errorf("figures %+v", f)
				}
			})
		}
	}
}

func TestCredentialsWithoutQOPAreTakenByPolicyOnly(t *testing.T) {
	run(t, "each challenge once", func(t *testing.T, b *bench) {
		b.cfg.Digest = digest.NewServer(digest.Config{Secret: Secret, WithoutQOP: true})
		b.start()
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		c := digest.Credentials{Username: "alice", Realm: Domain, Nonce: b.nonce, URI: "sip:" + Domain, Algorithm: digest.MD5}
		response := c.Expected("REGISTER", digest.HA1(digest.MD5, "alice", Domain, "alice"))
		for _, want := range []int{200, 401} {
			m := b.registerRequest("alice", alice, "Contact: <sip:a@192.0.2.1>")
			m.Set(sipmsg.Authorization, fmt.Sprintf(`Digest username="alice", realm="%s", nonce="%s", uri="%s", response="%s"`, Domain, b.nonce, c.URI, response))
			if resp := b.ask(b.i, m); resp.Status() != want {
				t.Errorf("answered, want %d:\n%s", want, resp.Bytes())
			}
		}
	})
}

func TestTheDigestURIMayNameAnAddressOfTheCluster(t *testing.T) {
	run(t, "as phones write it", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		for _, tt := range []struct {
			uri    string
			status int
		}{{"sip:127.0.0.1:5060", 200}, {"sip:127.0.0.2", 200}, {"sip:ims.test.", 200}, {"sip:127.0.0.3:5060", 400}, {"sip:x@127.0.0.1", 400}} {
			m := b.registerRequest("alice", alice)
			m.Set(sipmsg.Authorization, b.credentials("alice", "alice", tt.uri, Domain))
			if resp := b.ask(b.i, m); resp.Status() != tt.status {
				t.Errorf("%s: %d, want %d", tt.uri, resp.Status(), tt.status)
			}
		}
	})
}

func TestChallengesComeToAnEnd(t *testing.T) {
	wrong := func(b *bench, user string) int {
		m := b.registerRequest(user, "sip:"+user+"@ims.test")
		m.Set(sipmsg.Authorization, b.credentials(user, "guess", "sip:ims.test", Domain))
		return b.ask(b.i, m).Status()
	}
	for _, user := range []string{"alice", "nobody"} {
		run(t, "wrong answers of "+user, func(t *testing.T, b *bench) {
			b.challenged(b.ask(b.i, b.registerRequest(user, "sip:"+user+"@ims.test")))
			for round := range 2 {
				for i := range 10 {
					want := 401
					if i >= 5 {
						want = 403
					}
					if got := wrong(b, user); got != want {
						t.Errorf("round %d, wrong answer %d: %d, want %d", round, i+1, got, want)
					}
				}
				b.Sleep(time.Minute)
			}
		})
	}
	run(t, "nobody is locked out by the wrong answers of others", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		for range 20 {
			wrong(b, "alice")
		}
		b.nonce = ""
		if resp := b.register("alice", alice, "Contact: <sip:a@192.0.2.1>"); resp.Status() != 200 {
			t.Errorf("%s", resp.Bytes())
		}
		if got := wrong(b, "alice"); got != 401 {
			t.Errorf("the first wrong answer after a right one: %d", got)
		}
	})
	run(t, "a phone that repeats itself is told to stop", func(t *testing.T, b *bench) {
		b.challenged(b.ask(b.i, b.registerRequest("alice", alice)))
		m := b.registerRequest("alice", alice, "Contact: <sip:a@192.0.2.1>")
		cred, _ := m.Value(sipmsg.Authorization)
		got := []int{b.ask(b.i, m).Status()}
		for range 7 {
			m := b.registerRequest("alice", alice, "Contact: <sip:a@192.0.2.1>")
			m.Set(sipmsg.Authorization, cred)
			got = append(got, b.ask(b.i, m).Status())
		}
		if want := []int{200, 401, 401, 401, 401, 401, 403, 403}; !slices.Equal(got, want) {
			t.Errorf("answered %v, want %v", got, want)
		}
	})
}

// shape is a response without what differs from one to the next in any case.
func shape(m *sipmsg.Message) string {
	var out []string
	for _, line := range strings.Split(string(m.Bytes()), "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "Via", "From", "Call-ID", "CSeq":
			continue
		case "To":
			line = fmt.Sprintf("To with a tag of %d", len(m.ToTag()))
		case "WWW-Authenticate":
			_, params, _ := sipmsg.ParseAuth(value)
			line = name
			for p, v := range params.All() {
				if p == "nonce" || p == "ck" || p == "ik" {
					v = fmt.Sprint(len(v))
				}
				line += " " + p + "=" + v
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// An outsider must not learn from answers who is a subscriber.
func TestStrangersAreAnsweredLikeSubscribers(t *testing.T) {
	for name, put := range map[string]func(b *bench, impi string){
		"passwords": func(b *bench, impi string) { b.Subscriber(impi, "sip:"+impi+"@ims.test") },
		"SIMs":      func(b *bench, impi string) { b.sim(impi, false) },
		"both":      func(b *bench, impi string) { b.sim(impi, true) },
		"barred identities": func(b *bench, impi string) {
			b.Subscriber(impi, "!sip:"+impi+"@ims.test")
		},
	} {
		run(t, "where subscribers have "+name, func(t *testing.T, b *bench) {
			for _, impi := range []string{"alice", "bob"} {
				b.Apply(state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: impi}})
			}
			put(b, "known")
			ask := func(user, credentials string) *sipmsg.Message {
				m := b.registerRequest(user, "sip:"+user+"@ims.test", "Contact: <sip:a@192.0.2.1>")
				if m.Remove(sipmsg.Authorization); credentials != "" {
					m.Set(sipmsg.Authorization, strings.ReplaceAll(credentials, "USER", user))
				}
				return b.ask(b.i, m)
			}
			for question, credentials := range map[string]string{
				"no credentials":          "",
				"the first of an IMS SIM": `Digest username="USER", realm="ims.test", nonce="", uri="sip:ims.test", response=""`,
				"AKA asked for":           `Digest username="USER", realm="ims.test", nonce="", uri="sip:ims.test", response="", algorithm=AKAv1-MD5`,
				"another realm":           `Digest username="USER", realm="elsewhere", nonce="n", uri="sip:ims.test", response="r"`,
				"somebody else's name":    `Digest username="somebody", realm="ims.test", nonce="n", uri="sip:ims.test", response="r"`,
				"a wrong MD5":             `Digest username="USER", realm="ims.test", nonce="n", uri="sip:ims.test", response="r", qop=auth, cnonce="c", nc=00000001`,
				"a wrong SHA-256":         `Digest username="USER", realm="ims.test", nonce="n", uri="sip:ims.test", response="r", algorithm=SHA-256`,
				"a wrong RES":             answer("USER", digest.AKANonce([16]byte{1}, [16]byte{2}), "guess", 1),
				"a wrong AUTS":            answer("USER", digest.AKANonce([16]byte{1}, [16]byte{2}), "", 1, `auts="AAAAAAAAAAAAAAAAAAA="`),
				"a refused challenge":     `Digest username="USER", realm="ims.test", nonce="` + digest.AKANonce([16]byte{1}, [16]byte{2}) + `", uri="sip:ims.test", response="", algorithm=AKAv1-MD5`,
			} {
				known, unknown := ask("known", credentials), ask("someone", credentials)
				if got, want := shape(unknown), shape(known); got != want {
					t.Errorf("%s: a stranger hears\n%s\na subscriber\n%s", question, got, want)
				}
				b.Sleep(time.Minute)
			}
		})
	}
	run(t, "a stranger is always shown the same, and strangers what subscribers are shown", func(t *testing.T, b *bench) {
		b.sim("dave", false)
		seen := map[string]int{}
		for i := range 40 {
			user := fmt.Sprint("stranger", i)
			first := algorithms(b.ask(b.i, b.registerRequest(user, "sip:"+user+"@ims.test")))
			again := algorithms(b.ask(b.i, b.registerRequest(user, "sip:"+user+"@ims.test")))
			if !slices.Equal(first, again) {
				t.Errorf("%s is shown %v, then %v", user, first, again)
			}
			seen[strings.Join(first, " ")]++
		}
		if seen["AKAv1-MD5"] == 0 || seen["SHA-256 MD5"] == 0 || len(seen) != 2 {
			t.Errorf("%v", seen)
		}
	})
	run(t, "who is barred hears so with the right answer only", func(t *testing.T, b *bench) {
		b.Subscriber("carol", "!sip:carol@ims.test")
		if resp := b.register("carol", "sip:carol@ims.test", "Contact: <sip:a@192.0.2.1>"); resp.Status() != 403 {
			t.Errorf("%s", resp.Bytes())
		}
		if f := b.r.Figures(); f.Users != 0 {
			t.Errorf("figures %+v", f)
		}
	})
}
