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
// registered, shows in no answer to a stranger: status, headers and challenges
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
	type question struct {
		name, method, uri string // uri "": the user is called, and does not ask
		password          bool
		more              []string
	}
	questions := []question{
		{name: "a REGISTER with a wrong password", method: "REGISTER", uri: "sip:" + domain, password: true},
		{name: "a REGISTER that asks", method: "REGISTER", uri: "sip:" + domain, more: []string{"-Contact"}},
		{name: "a REGISTER that removes", method: "REGISTER", uri: "sip:" + domain, more: []string{"Expires: 0"}},
	}
	for _, method := range []string{"REGISTER", "INVITE", "MESSAGE", "OPTIONS", "SUBSCRIBE", "BYE", "CANCEL", "FROBNICATE"} {
		if method == "REGISTER" {
			questions = append(questions, question{name: method, method: method, uri: "sip:" + domain})
			continue
		}
		questions = append(questions, question{name: method, method: method, uri: p.peer}, question{name: method + " for the user", method: method})
	}
	for _, tt := range questions {
		var heard []string
		for _, user := range users {
			from, uri := user, tt.uri
			if uri == "" {
				from, uri = "somebody", "sip:"+user+"@"+domain
			}
			lines := w.request(tt.method, uri, from)
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
			got := strings.NewReplacer(user, "USER", "z9hG4bK-"+number+";", "z9hG4bK-N;", "tag="+number, "tag=N", " "+number+"-", " N-", "CSeq: "+number, "CSeq: N").Replace(differs.ReplaceAllString(m.raw, "SAME"))
			heard = append(heard, got)
		}
		for i, got := range heard[1:] {
			if got != heard[0] {
				t.Errorf("%s, %s: answered\n%s\nof %s\n%s", tt.name, users[i+1], got, users[0], heard[0])
			}
		}
	}
	p.survived(t)
}
