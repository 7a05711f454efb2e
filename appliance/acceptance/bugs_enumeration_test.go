package acceptance

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bellwether/cscf/sipmsg"
)

// Bug class 20 (Asterisk CVE-2018-12227): who is a subscriber, and who is
// registered, shows in no answer to an outsider: status, headers and challenges
// of a REGISTER, with or without a wrong password, and of other requests are
// the same for a registered user, one who is not, and one who does not exist.
func TestBugClass20Enumeration(t *testing.T) {
	t.Parallel()
	p := newParties(t, "bug20", "UDP", "UDP", always(200))
	users := []string{p.caller.user, subscribe(t, sharedCluster(t), "bug20x", 1)[0]}
	w := p.stranger(t, 3)

	// What those who do not exist are asked for is drawn from what subscribers
	// are; this takes some who are asked for the same.
	challenges := func(user string) string {
		var out []string
		for v := range w.final(t, text(w.request("REGISTER", "sip:"+domain, user), "")).Values(sipmsg.WWWAuthenticate) {
			_, params, err := sipmsg.ParseAuth(v)
			if err != nil {
				t.Fatalf("%s: %v", v, err)
			}
			algorithm, _ := params.Value("algorithm")
			out = append(out, algorithm)
		}
		return strings.Join(out, " ")
	}
	want := challenges(users[0])
	for i := 0; len(users) < 5; i++ {
		if i == 200 {
			t.Fatalf("of %d users who do not exist %d are challenged by %s", i, len(users)-2, want)
		}
		if user := fmt.Sprintf("bug20n%04d", i); challenges(user) == want {
			users = append(users, user)
		}
	}

	differs := regexp.MustCompile(`tag=[a-z2-7]{16}|nonce="[0-9a-f]{56}"`)
	for _, tt := range []struct {
		name, method, uri string
		password          bool
		more              []string
	}{
		{name: "a REGISTER without credentials", method: "REGISTER", uri: "sip:" + domain},
		{name: "a REGISTER with a wrong password", method: "REGISTER", uri: "sip:" + domain, password: true},
		{name: "a REGISTER that asks", method: "REGISTER", uri: "sip:" + domain, more: []string{"-Contact"}},
		{name: "a REGISTER that removes", method: "REGISTER", uri: "sip:" + domain, more: []string{"Expires: 0"}},
		{name: "a MESSAGE", method: "MESSAGE", uri: p.peer},
		{name: "an INVITE", method: "INVITE", uri: p.peer},
		{name: "a SUBSCRIBE", method: "SUBSCRIBE", uri: p.peer, more: []string{"Event: reg"}},
		{name: "a BYE", method: "BYE", uri: p.peer},
	} {
		var heard []string
		for _, user := range users {
			lines := w.request(tt.method, tt.uri, user)
			number := fmt.Sprint(w.number)
			if tt.password {
				a := w.final(t, text(w.request("REGISTER", "sip:"+domain, user), ""))
				lines = append(lines, strings.Replace(w.authorize(t, a, user, "SHA-256"), `response="`, `response="0`, 1))
			}
			for _, line := range tt.more {
				if name, ok := strings.CutPrefix(line, "-"); ok {
					lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, name) })
				} else {
					lines = append(lines, line)
				}
			}
			m := w.final(t, text(lines, ""))
			got := strings.NewReplacer(user, "USER", "z9hG4bK-"+number+";", "z9hG4bK-N;", "tag="+number, "tag=N", " "+number+"-", " N-", "CSeq: "+number, "CSeq: N").Replace(m.raw)
			heard = append(heard, differs.ReplaceAllString(got, "SAME"))
		}
		for i, got := range heard[1:] {
			if got != heard[0] {
				t.Errorf("%s of %s is answered\n%s\nof %s\n%s", tt.name, users[i+1], got, users[0], heard[0])
			}
		}
	}
}
