package digest

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

var (
	random = [16]byte{0: 1, 15: 2}
	autn   = [16]byte{0: 3, 15: 4}
	ck, ik = [16]byte{5}, [16]byte{6}
	// A RES is bytes, not text: a zero, a quote and a colon are as good as any.
	res = []byte{0x00, '"', ':', 0xff, 0x00, 1, 2, 0x00}
)

// akaAnswer is what a phone sends, computed by itself.
func akaAnswer(t *testing.T, nonce, password, nc string, fields ...string) Credentials {
	t.Helper()
	sum := func(parts ...string) string {
		s := md5.Sum([]byte(strings.Join(parts, ":")))
		return hex.EncodeToString(s[:])
	}
	response := sum(sum("alice", "ims.test", password), nonce, nc, "cn", "auth", sum("REGISTER", "sip:ims.test"))
	c, err := Parse(`Digest username="alice", realm="ims.test", nonce="` + nonce + `", uri="sip:ims.test", response="` + response +
		`", algorithm=AKAv1-MD5, qop=auth, cnonce="cn", nc=` + nc + strings.Join(append([]string{""}, fields...), ", "))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// RFC 3310: the nonce is base64 of RAND and AUTN, 32 bytes (§3.2); the
// challenge carries the keys for the P-CSCF.
func TestAKAChallenge(t *testing.T) {
	value := AKAChallenge("ims.test", random, autn, ck, ik, false)
	scheme, params, err := sipmsg.ParseAuth(value)
	if err != nil || scheme != "Digest" {
		t.Fatalf("%s: %v", value, err)
	}
	want := map[string]string{
		"realm": "ims.test", "nonce": base64.StdEncoding.EncodeToString(append(random[:], autn[:]...)), "algorithm": "AKAv1-MD5", "qop": "auth",
		"ck": hex.EncodeToString(ck[:]), "ik": hex.EncodeToString(ik[:]),
	}
	for name, v := range params.All() {
		if want[name] != v {
			t.Errorf("%s is %q, want %q", name, v, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("without %v: %s", want, value)
	}
	if stale := AKAChallenge("ims.test", random, autn, ck, ik, true); !strings.Contains(stale, ", stale=true") {
		t.Error(stale)
	}
}

func TestOnlyOneTextIsANonce(t *testing.T) {
	nonce := AKANonce(random, autn)
	if r, a, ok := OpenAKANonce(nonce); !ok || r != random || a != autn {
		t.Errorf("%x %x %t", r, a, ok)
	}
	for name, n := range map[string]string{
		"empty": "", "too short": base64.StdEncoding.EncodeToString(make([]byte, 31)), "too long": base64.StdEncoding.EncodeToString(make([]byte, 33)),
		"server data behind": base64.StdEncoding.EncodeToString(make([]byte, 40)), "without padding": strings.TrimRight(nonce, "="),
		"with a line break": nonce[:20] + "\n" + nonce[20:], "other spare bits": nonce[:42] + "B=", "not base64": strings.Repeat("*", 44),
		"one of ours": NewServer(Config{Secret: secret}).nonce("ims.test", start),
	} {
		if _, _, ok := OpenAKANonce(n); ok {
			t.Errorf("%s: %q is taken", name, n)
		}
	}
}

// RFC 3310: the password is RES, as bytes (§3.3).
func TestCheckAKA(t *testing.T) {
	s := NewServer(Config{Secret: secret})
	nonce := AKANonce(random, autn)
	check := func(c Credentials, res []byte, made time.Time, uses *Uses) Verdict {
		return s.CheckAKA(c, "REGISTER", res, made, uses, start)
	}
	var uses Uses
	for _, tt := range []struct {
		name string
		c    Credentials
		res  []byte
		made time.Time
		want Verdict
	}{
		{"another RES is wrong", akaAnswer(t, nonce, "guess", "00000001"), res, start, Wrong},
		{"an empty password is wrong", akaAnswer(t, nonce, "", "00000001"), res, start, Wrong},
		{"an empty password is wrong also where there is no RES", akaAnswer(t, nonce, "", "00000001"), nil, start, Wrong},
		{"too late is stale", akaAnswer(t, nonce, string(res), "00000001"), res, start.Add(-AKALifetime - time.Millisecond), Stale},
		{"from the future is stale", akaAnswer(t, nonce, string(res), "00000001"), res, start.Add(skew + time.Millisecond), Stale},
		{"RES is right", akaAnswer(t, nonce, string(res), "00000001"), res, start.Add(-AKALifetime), Right},
		{"but once", akaAnswer(t, nonce, string(res), "00000001"), res, start, Stale},
		{"the next count is right", akaAnswer(t, nonce, string(res), "00000002"), res, start, Right},
		{"a count that was overtaken is stale", akaAnswer(t, nonce, string(res), "00000001"), res, start, Stale},
	} {
		if got := check(tt.c, tt.res, tt.made, &uses); got != tt.want {
			t.Errorf("%s: verdict %d, want %d", tt.name, got, tt.want)
		}
	}
	// The two ways do not stand in for each other.
	if got := s.Check(akaAnswer(t, nonce, string(res), "00000003"), "REGISTER", HA1(MD5, "alice", "ims.test", string(res)), &uses, start); got != Wrong {
		t.Errorf("AKA as a password: verdict %d", got)
	}
	md5 := answer(t, s.Challenges("ims.test", func(a Algorithm) bool { return a == MD5 }, false, start)[0], "alice", string(res), 1)
	if got := check(md5, res, start, &uses); got != Wrong {
		t.Errorf("a password as AKA: verdict %d", got)
	}
}

// RFC 3310: auts is base64 of 14 bytes (§3.4).
func TestResyncIsRead(t *testing.T) {
	auts := make([]byte, 14)
	auts[13] = 7
	c := akaAnswer(t, AKANonce(random, autn), "", "00000001", `auts="`+base64.StdEncoding.EncodeToString(auts)+`"`)
	if got, ok := c.Resync(); !ok || string(got[:]) != string(auts) {
		t.Errorf("%x, %t", got, ok)
	}
	for _, v := range []string{"", "AAAA", base64.StdEncoding.EncodeToString(make([]byte, 15)), "%"} {
		if _, ok := (Credentials{Algorithm: AKAv1MD5, AUTS: v}).Resync(); ok {
			t.Errorf("%q is taken", v)
		}
	}
	c.Algorithm = MD5
	if _, ok := c.Resync(); ok {
		t.Error("auts of another algorithm is taken")
	}
}

func FuzzAKANonce(f *testing.F) {
	f.Add(AKANonce(random, autn), "AAAAAAAAAAAAAAAAAAA=")
	f.Fuzz(func(t *testing.T, nonce, auts string) {
		if r, a, ok := OpenAKANonce(nonce); ok && AKANonce(r, a) != nonce {
			t.Fatal("another text is the same nonce")
		}
		c := Credentials{Username: "alice", Realm: "ims.test", Nonce: nonce, Algorithm: AKAv1MD5, AUTS: auts}
		c.Resync()
		if NewServer(Config{Secret: secret}).CheckAKA(c, "REGISTER", res, start, new(Uses), start) == Right {
			t.Fatal("right without RES")
		}
	})
}
