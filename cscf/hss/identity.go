package hss

import (
	"strings"

	"bellwether/cscf/sipmsg"
)

// maxIdentity is the longest identity that is looked up, in bytes.
const maxIdentity = 512

// Identities lists the public identities, in canonical form, that a
// Request-URI may mean, the likeliest first: itself, and for a SIP URI that
// carries a global telephone number the number as a tel URI (RFC 3261
// §19.1.6, TS 24.229 §5.3.2.1). It is empty for a URI that names nobody.
func Identities(u sipmsg.URI) []string {
	if u.User == "" || u.Scheme != "sip" && u.Scheme != "sips" && u.Scheme != "tel" {
		return nil
	}
	var out []string
	if aor := u.AOR(); len(aor) <= maxIdentity {
		out = append(out, aor)
	}
	if u.Scheme == "tel" || !strings.HasPrefix(u.User, "+") {
		return out
	}
	number, _, _ := strings.Cut(u.User, ";")
	if tel, err := sipmsg.ParseURI("tel:" + number); err == nil && len(number) <= maxIdentity {
		out = append(out, tel.AOR())
	}
	return out
}

// Identity is the first of Identities for a URI in its text form; false if the
// URI names nobody.
func Identity(uri string) (string, bool) {
	u, err := sipmsg.ParseURI(uri)
	if err != nil {
		return "", false
	}
	ids := Identities(u)
	if len(ids) == 0 {
		return "", false
	}
	return ids[0], true
}
