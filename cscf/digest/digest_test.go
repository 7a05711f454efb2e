package digest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/icholy/digest"
)

var (
	secret = []byte("0123456789abcdef0123456789abcdef")
	start  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	every  = func(Algorithm) bool { return true }
)

// The example of RFC 7616 §3.9.1, both algorithms.
func TestResponseOfTheRFC(t *testing.T) {
	for alg, want := range map[Algorithm]string{
		MD5:    "8ca523f5e9506fed4657c9700eebdbec",
		SHA256: "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1",
	} {
		c, err := Parse(`Digest username="Mufasa", realm="http-auth@example.org", uri="/dir/index.html", algorithm=` + string(alg) +
			`, nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", nc=00000001, cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",` +
			` qop=auth, response="x", opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"`)
		if err != nil {
			t.Fatal(err)
		}
		ha1 := HA1(alg, "Mufasa", "http-auth@example.org", "Circle of Life")
		if got := c.Expected("GET", ha1); got != want {
			t.Errorf("%s: got %s, want %s", alg, got, want)
		}
	}
}

func TestChallengesOfferSHA256First(t *testing.T) {
	s := NewServer(Config{Secret: secret})
	got := s.Challenges("ims.test", every, false, start)
	if len(got) != 2 || !strings.Contains(got[0], "algorithm=SHA-256,") || !strings.Contains(got[1], "algorithm=MD5,") {
		t.Fatalf("challenges %q", got)
	}
	if strings.Contains(got[0], "stale") {
		t.Errorf("a first challenge says stale: %s", got[0])
	}
	only := s.Challenges("ims.test", func(a Algorithm) bool { return a == MD5 }, true, start)
	if len(only) != 1 || !strings.Contains(only[0], "stale=true") {
		t.Errorf("challenges %q", only)
	}
}

// answer lets an independent client answer a challenge.
func answer(t *testing.T, challenge, user, password string, count int) Credentials {
	t.Helper()
	chal, err := digest.ParseChallenge(challenge)
	if err != nil {
		t.Fatal(err)
	}
	cred, err := digest.Digest(chal, digest.Options{Method: "REGISTER", URI: "sip:ims.test", Username: user, Password: password, Count: count, Cnonce: "abc"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(cred.String())
	if err != nil {
		t.Fatalf("%s: %v", cred, err)
	}
	return c
}

func TestCheck(t *testing.T) {
	for _, alg := range Algorithms {
		ha1 := HA1(alg, "alice", "ims.test", "secret")
		has := func(a Algorithm) bool { return a == alg }
		s := NewServer(Config{Secret: secret, Lifetime: time.Minute})
		challenge := s.Challenges("ims.test", has, false, start)[0]
		run := func(name string, test func(t *testing.T, uses *Uses)) {
			t.Run(fmt.Sprintf("%s %s", alg, name), func(t *testing.T) { test(t, new(Uses)) })
		}
		expect := func(t *testing.T, got, want Verdict) {
			t.Helper()
			if got != want {
				t.Errorf("verdict %d, want %d", got, want)
			}
		}
		run("the right password is right, on any node", func(t *testing.T, uses *Uses) {
			other := NewServer(Config{Secret: secret, Lifetime: time.Minute})
			expect(t, other.Check(answer(t, challenge, "alice", "secret", 1), "REGISTER", ha1, uses, start), Right)
		})
		run("a nonce of another server is stale", func(t *testing.T, uses *Uses) {
			other := NewServer(Config{Secret: secret, Lifetime: time.Minute, Server: 2})
			cred := answer(t, challenge, "alice", "secret", 1)
			expect(t, other.Check(cred, "REGISTER", ha1, uses, start), Stale)
			if server, made, ok := other.Origin(cred.Nonce, "ims.test"); !ok || server != 0 || made.UnixMilli() != start.UnixMilli() {
				t.Errorf("made by %d at %v, %v", server, made, ok)
			}
			if _, _, ok := other.Origin(cred.Nonce, "elsewhere"); ok {
				t.Error("it is good for another realm")
			}
			expect(t, s.Check(answer(t, challenge, "alice", "secret", 2), "REGISTER", ha1, uses, start.Add(time.Minute)), Right)
		})
		run("counts go up, a replay is stale", func(t *testing.T, uses *Uses) {
			for _, step := range []struct {
				count int
				want  Verdict
			}{{1, Right}, {1, Stale}, {2, Right}, {5, Right}, {4, Stale}, {5, Stale}, {6, Right}} {
				expect(t, s.Check(answer(t, challenge, "alice", "secret", step.count), "REGISTER", ha1, uses, start), step.want)
			}
		})
		run("a wrong password is wrong, not stale", func(t *testing.T, uses *Uses) {
			expect(t, s.Check(answer(t, challenge, "alice", "guess", 1), "REGISTER", ha1, uses, start), Wrong)
			expect(t, s.Check(answer(t, challenge, "alice", "guess", 1), "REGISTER", ha1, uses, start.Add(time.Hour)), Wrong)
			if len(uses.Seen) != 0 {
				t.Error("a wrong password used a nonce up")
			}
		})
		run("another method is wrong", func(t *testing.T, uses *Uses) {
			expect(t, s.Check(answer(t, challenge, "alice", "secret", 1), "INVITE", ha1, uses, start), Wrong)
		})
		run("without a secret nothing is right, whatever it is computed from", func(t *testing.T, uses *Uses) {
			c := answer(t, challenge, "alice", "secret", 1)
			expect(t, s.Check(c, "REGISTER", "", uses, start), Wrong)
			for _, guess := range []string{"", HA1(alg, "alice", "ims.test", ""), HA1(alg, "", "", ""), strings.Repeat("0", len(ha1))} {
				c.Response = c.Expected("REGISTER", guess)
				expect(t, s.Check(c, "REGISTER", "", uses, start), Wrong)
			}
			if len(uses.Seen) != 0 {
				t.Error("a nonce was used up")
			}
		})
		run("an old nonce is stale only with the right password", func(t *testing.T, uses *Uses) {
			expect(t, s.Check(answer(t, challenge, "alice", "secret", 1), "REGISTER", ha1, uses, start.Add(time.Minute)), Right)
			expect(t, s.Check(answer(t, challenge, "alice", "secret", 2), "REGISTER", ha1, uses, start.Add(time.Minute+time.Millisecond)), Stale)
		})
		run("a nonce of another cluster or realm is stale", func(t *testing.T, uses *Uses) {
			foreign := NewServer(Config{Secret: []byte("another")}).Challenges("ims.test", has, false, start)[0]
			expect(t, s.Check(answer(t, foreign, "alice", "secret", 1), "REGISTER", ha1, uses, start), Stale)
			realm := s.Challenges("other.test", has, false, start)[0]
			moved := answer(t, realm, "alice", "secret", 1)
			moved.Realm = "ims.test"
			moved.Response = moved.Expected("REGISTER", ha1)
			expect(t, s.Check(moved, "REGISTER", ha1, uses, start), Stale)
		})
		run("a nonce from the future is stale", func(t *testing.T, uses *Uses) {
			ahead := s.Challenges("ims.test", has, false, start.Add(skew+time.Second))[0]
			expect(t, s.Check(answer(t, ahead, "alice", "secret", 1), "REGISTER", ha1, uses, start), Stale)
		})
		run("without qop it is policy, and then the nonce counts once", func(t *testing.T, uses *Uses) {
			c := answer(t, challenge, "alice", "secret", 1)
			c.QOP, c.NC, c.CNonce, c.Count = "", "", "", 0
			c.Response = c.Expected("REGISTER", ha1)
			expect(t, s.Check(c, "REGISTER", ha1, uses, start), Wrong)
			lenient := NewServer(Config{Secret: secret, WithoutQOP: true})
			expect(t, lenient.Check(c, "REGISTER", ha1, uses, start), Right)
			expect(t, lenient.Check(c, "REGISTER", ha1, uses, start), Stale)
			expect(t, lenient.Check(answer(t, challenge, "alice", "secret", 9), "REGISTER", ha1, uses, start), Stale)
		})
		run("auth-int and unknown algorithms are wrong", func(t *testing.T, uses *Uses) {
			c := answer(t, challenge, "alice", "secret", 1)
			c.QOP = "auth-int"
			expect(t, s.Check(c, "REGISTER", ha1, uses, start), Wrong)
			c = answer(t, challenge, "alice", "secret", 1)
			c.Algorithm, c.Response = "MD5-sess", ""
			expect(t, s.Check(c, "REGISTER", ha1, uses, start), Wrong)
		})
	}
}

func TestUsesAreBoundedAndStillRefuseReplays(t *testing.T) {
	var u Uses
	oldest := start.Add(-time.Hour)
	nonce := func(i int) (string, time.Time) { return fmt.Sprint("n", i), start.Add(time.Duration(i) * time.Second) }
	for i := range 3 * maxUses {
		n, made := nonce(i)
		if !u.take(n, 1, made, oldest) {
			t.Fatalf("nonce %d refused", i)
		}
	}
	if len(u.Seen) > maxUses {
		t.Errorf("%d nonces remembered", len(u.Seen))
	}
	for i := range 3 * maxUses {
		n, made := nonce(i)
		if u.take(n, 1, made, oldest) {
			t.Errorf("nonce %d replayed", i)
		}
	}
	_, last := nonce(3*maxUses - 1)
	if got := u.Until(time.Hour); !got.Equal(last.Add(time.Hour)) {
		t.Errorf("until %v", got)
	}
}

func TestParseCredentials(t *testing.T) {
	for _, c := range []struct {
		name, value string
		ok          bool
	}{
		{"an IMS phone's first REGISTER", `Digest username="a@b", realm="b", nonce="", uri="sip:b", response=""`, true},
		{"parameter names and algorithm in any case", `digest USERNAME="a", realm="b", nonce="n", uri="sip:b", response="r", algorithm=sha-256`, true},
		{"no user name", `Digest realm="b", nonce="n", uri="sip:b", response="r"`, false},
		{"qop without cnonce", `Digest username="a", realm="b", nonce="n", uri="sip:b", response="r", qop=auth, nc=00000001`, false},
		{"a count that is no hex", `Digest username="a", realm="b", nonce="n", uri="sip:b", response="r", qop=auth, cnonce="c", nc=0000000g`, false},
		{"a short count", `Digest username="a", realm="b", nonce="n", uri="sip:b", response="r", qop=auth, cnonce="c", nc=1`, false},
		{"another scheme", `Basic YTpi`, false},
		{"a bearer token", `Bearer a="b"`, false},
		{"nothing", ``, false},
	} {
		got, err := Parse(c.value)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.name == "parameter names and algorithm in any case" && got.Algorithm != SHA256 {
			t.Errorf("algorithm %q", got.Algorithm)
		}
	}
}

// A digest that is longer than anybody needs is refused before it is hashed or
// kept.
func TestOversizedFieldsAreRefused(t *testing.T) {
	fields := map[string]int{
		"username": maxName, "realm": maxName, "nonce": maxField, "uri": maxURI, "response": maxResponse, "cnonce": maxField,
		"algorithm": maxField, "qop": maxField, "auts": maxField,
	}
	for name, limit := range fields {
		for _, n := range []int{limit, limit + 1, 50_000} {
			value := "Digest "
			for other := range fields {
				v := "x"
				if other == name {
					v = strings.Repeat("x", n)
				}
				value += other + `="` + v + `", `
			}
			if _, err := Parse(value + "nc=00000001"); (err == nil) != (n <= limit) {
				t.Errorf("%s of %d bytes: %v", name, n, err)
			}
		}
	}
}

func TestOtherSchemesAreNotReadAsDigest(t *testing.T) {
	for _, v := range []string{`Basic YWxpY2U6c2VjcmV0`, `Bearer abc==`, `Bearer realm="x"`, ``, ` `, `DigestX username="a"`} {
		if _, err := Parse(v); !errors.Is(err, ErrScheme) {
			t.Errorf("%q: %v", v, err)
		}
	}
	for _, v := range []string{`Digest`, `Digest `, `digest username`, `DIGEST realm="x"`, `Digest username="a", username="b"`} {
		if _, err := Parse(v); err == nil || errors.Is(err, ErrScheme) {
			t.Errorf("%q: %v", v, err)
		}
	}
}

// Nobody can tell which of two nonces come from one server, or when.
func TestNoncesOfOneServerHaveNothingInCommon(t *testing.T) {
	s := NewServer(Config{Secret: secret, Server: 7})
	const n = 64
	seen := make(map[string]int)
	for range n {
		nonce := s.nonce("ims.test", start)
		for i := 0; i+8 <= len(nonce); i += 8 {
			seen[fmt.Sprint(i, nonce[i:i+8])]++
		}
	}
	for part, times := range seen {
		if times > 1 {
			t.Errorf("%s comes %d times", part, times)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`Digest username="a", realm="b", nonce="n", uri="sip:b", response="r", qop=auth, cnonce="c", nc=00000001, algorithm=MD5`)
	f.Add(`Digest username="a\"b",realm=b`)
	f.Fuzz(func(t *testing.T, value string) {
		c, err := Parse(value)
		if err != nil {
			return
		}
		var uses Uses
		if NewServer(Config{Secret: secret}).Check(c, "REGISTER", "0123456789abcdef0123456789abcdef", &uses, start) == Right {
			t.Fatal("right without the secret")
		}
	})
}
