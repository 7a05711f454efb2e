package phone

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emiago/sipgo/sip"

	"bellwether/cscf/aka"
	"bellwether/cscf/sipmsg"
)

// usim is what the core knows of a SIM. A nil one is none.
type usim struct {
	*aka.Milenage
	sqn       aka.SQN
	xres      map[string]string // by nonce
	nonces    [][16]byte        // RANDs of the challenges, in order
	resyncs   int
	auts      bool // of the last REGISTER, and good
	forge     bool // challenges have a wrong MAC
	forgeries int
}

var (
	testK   = aka.Key{1, 2, 3}
	testOPc = aka.Key{4, 5, 6}
)

func newUSIM(k, opc aka.Key) *usim {
	return &usim{Milenage: aka.New(k, opc), sqn: aka.NewSQN(1000, 0), xres: map[string]string{}}
}

// challenge makes a nonce (RFC 3310 §3.2).
func (u *usim) challenge() string {
	u.sqn = aka.NewSQN(u.sqn.SEQ()+1, 0)
	v := u.Vector([16]byte{byte(len(u.nonces)), 7}, u.sqn, [2]byte{0x80})
	if u.forge {
		v.AUTN[15] ^= 1
		u.forgeries++
	}
	u.nonces = append(u.nonces, v.RAND)
	nonce := base64.StdEncoding.EncodeToString(append(v.RAND[:], v.AUTN[:]...))
	u.xres[nonce] = string(v.XRES)
	return nonce
}

// take reads the AUTS of an Authorization.
func (u *usim) take(authorization string) {
	if u == nil {
		return
	}
	u.auts = false
	_, params, err := sipmsg.ParseAuth(authorization)
	if err != nil {
		return
	}
	text, ok := params.Value("auts")
	raw, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(raw) != aka.AUTSSize {
		return
	}
	sqn, ok := u.OpenAUTS(u.nonces[len(u.nonces)-1], [aka.AUTSSize]byte(raw))
	if ok {
		u.sqn, u.auts = sqn, true
		u.resyncs++
	}
}

func (u *usim) resynchronised() bool { return u != nil && u.auts }

func TestRegistrationWithAKA(t *testing.T) {
	ahead := func(s *aka.SIM) { s.SetSQN(aka.NewSQN(5000, 3)) }
	for _, tt := range []struct {
		name       string
		algorithms []string
		password   string
		k          aka.Key
		sim        func(*aka.SIM)
		forge      bool
		status     int   // of the refusal; 0: registered
		failure    error // with it
		resyncs    int
		registers  int // sent
	}{
		{"AKA alone", []string{"AKAv1-MD5"}, "", testK, nil, false, 0, nil, 0, 2},
		{"AKA before what a password could answer", []string{"SHA-256", "AKAv1-MD5", "MD5"}, "secret of alice", testK, nil, false, 0, nil, 0, 2},
		{"the name in other letters", []string{"akav1-md5"}, "", testK, nil, false, 0, nil, 0, 2},
		{"no AKA, and a password", []string{"SHA-256"}, "secret of alice", testK, nil, false, 0, nil, 0, 2},
		{"no AKA, and no password", []string{"SHA-256"}, "", testK, nil, false, 401, nil, 0, 1},
		{"a SIM that has seen later challenges", []string{"AKAv1-MD5"}, "", testK, ahead, false, 0, nil, 1, 3},
		{"another key", []string{"AKAv1-MD5"}, "", aka.Key{9}, nil, false, 401, aka.ErrMAC, 0, 3},
		{"challenges that were changed on their way", []string{"AKAv1-MD5"}, "", testK, nil, true, 401, aka.ErrMAC, 0, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				c := newCore(t, n.listen)
				c.algorithms = nil
				for _, a := range tt.algorithms {
					if strings.EqualFold(a, akaMD5) {
						a = akaMD5
					}
					c.algorithms = append(c.algorithms, a)
				}
				if tt.algorithms[0] == "akav1-md5" {
					c.edit = func(m *sipmsg.Message) {
						if v, ok := m.Value(sipmsg.WWWAuthenticate); ok {
							m.Set(sipmsg.WWWAuthenticate, strings.ReplaceAll(v, akaMD5, "akav1-md5"))
						}
					}
				}
				u := newUSIM(testK, testOPc)
				u.forge = tt.forge
				c.usims = map[string]*usim{"alice@" + domain: u}
				p := c.phone(t, n.listen, "alice", func(c *Config) {
					c.Password = tt.password
					c.SIM = aka.NewSIM(tt.k, testOPc)
					if tt.sim != nil {
						tt.sim(c.SIM)
					}
				})
				err := p.Register(t.Context())
				var refused *StatusError
				switch {
				case tt.status == 0 && err != nil:
					t.Error(err)
				case tt.status != 0 && (!errors.As(err, &refused) || refused.Status != tt.status):
					t.Errorf("got %v, want status %d", err, tt.status)
				case tt.failure != nil && !errors.Is(err, tt.failure):
					t.Errorf("got %v, want %v", err, tt.failure)
				}
				if got := c.count("p REGISTER"); got != tt.registers || u.resyncs != tt.resyncs {
					t.Errorf("%d REGISTER, %d resynchronisations, want %d and %d", got, u.resyncs, tt.registers, tt.resyncs)
				}
			})
		})
	}
}

func TestEachAKARegistrationHasAChallengeOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := newCore(t, n.listen)
		c.algorithms = []string{akaMD5}
		u := newUSIM(testK, testOPc)
		c.usims = map[string]*usim{"alice@" + domain: u}
		p := c.registered(t, n.listen, "alice", func(c *Config) {
			c.SIM, c.Expires = aka.NewSIM(testK, testOPc), 100*time.Second
		})
		time.Sleep(101 * time.Second)
		if got := c.count("p REGISTER"); got != 6 || len(u.nonces) != 3 || !p.Registered() {
			t.Errorf("%d REGISTER and %d challenges for a registration and two refreshes, registered %v", got, len(u.nonces), p.Registered())
		}
		if err := p.Unregister(t.Context()); err != nil || len(u.nonces) != 4 {
			t.Errorf("%v after %d challenges", err, len(u.nonces))
		}
	})
}

func TestNonceThatHoldsNoChallenge(t *testing.T) {
	for _, nonce := range []string{"", "abc", "AAAA", "!!!!", strings.Repeat("A", 40)} {
		var a authorization
		c, err := challenge(`Digest realm="x", nonce="` + nonce + `", algorithm=AKAv1-MD5, qop="auth"`)
		if err != nil {
			t.Fatal(err)
		}
		a.challenge = c
		if a.ask(aka.NewSIM(testK, testOPc)); !errors.Is(a.failure, aka.ErrMAC) || a.res != nil || a.auts != "" {
			t.Errorf("nonce %q: %v", nonce, a.failure)
		}
	}
}

func FuzzChallenge(f *testing.F) {
	nonce := base64.StdEncoding.EncodeToString(make([]byte, 32))
	f.Add(`Digest realm="ims.test", nonce="`+nonce+`", algorithm=AKAv1-MD5, qop="auth"`, "")
	f.Add(`Digest realm="a\"b", nonce="x", algorithm=SHA-256, qop="auth,auth-int", opaque="o", stale=true`, "secret")
	f.Add(`Digest realm="", nonce=""`, "\"")
	f.Fuzz(func(t *testing.T, value, password string) {
		c := credentials{user: "alice@ims.test", password: password, sim: aka.NewSIM(testK, testOPc)}
		res := sip.NewResponse(401, "Unauthorized")
		res.AppendHeader(sip.NewHeader("WWW-Authenticate", value))
		var a authorization
		for a.again(res, c) {
			if strings.ContainsAny(value, "\r\n") {
				return // no message carries it
			}
			req := sip.NewRequest(sip.REGISTER, sip.Uri{Scheme: "sip", Host: domain})
			a.apply(req, c)
			h := req.GetHeader("Authorization")
			if h == nil {
				t.Fatalf("no answer to %q", value)
			}
			if strings.ContainsAny(h.Value(), "\r\n") {
				t.Fatalf("answer %q", h.Value())
			}
		}
		if a.tried != 0 {
			t.Errorf("%d challenges were not given up", a.tried)
		}
	})
}
