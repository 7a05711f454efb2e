package cli

import (
	"fmt"
	"slices"
	"strings"

	"bellwether/controller/api"
	"bellwether/cscf/digest"
	"bellwether/cscf/sipmsg"
)

// withScheme lets people leave out what is obvious; a user without a domain is
// completed by the node, which knows its own.
func withScheme(identity string) string {
	switch {
	case strings.HasPrefix(identity, "sip:"), strings.HasPrefix(identity, "sips:"), strings.HasPrefix(identity, "tel:"):
		return identity
	case strings.HasPrefix(identity, "+"):
		return "tel:" + identity
	case strings.Contains(identity, "@"):
		return "sip:" + identity
	}
	return identity
}

// canonical is the form in which an identity is stored (RFC 3261 §10.3, RFC 3966).
func canonical(identity string) (string, error) {
	u, err := sipmsg.ParseURI(identity)
	if err != nil {
		return "", fmt.Errorf("%q is not a public identity; write it as sip:user@domain or tel:+number", identity)
	}
	return u.AOR(), nil
}

// identities reads the notation of public identities: white space between
// them, | before the next implicit registration set, ! before a barred one.
func identities(text string) ([]api.Identity, error) {
	var all []api.Identity
	set := 0
	fields := strings.Fields(text)
	for i, f := range fields {
		if f == "|" {
			if i == 0 || i == len(fields)-1 || fields[i-1] == "|" {
				return nil, fmt.Errorf("a registration set is empty; write | only between identities")
			}
			set++
			continue
		}
		uri, barred := strings.CutPrefix(f, "!")
		uri, err := canonical(uri)
		if err != nil {
			return nil, err
		}
		all = append(all, api.Identity{URI: uri, Set: set, Barred: barred})
	}
	return all, nil
}

// notation is the reverse of identities.
func notation(all []api.Identity) string {
	all = slices.SortedStableFunc(slices.Values(all), func(a, b api.Identity) int { return a.Set - b.Set })
	var b strings.Builder
	for i, id := range all {
		if i > 0 {
			b.WriteByte(' ')
			if id.Set != all[i-1].Set {
				b.WriteString("| ")
			}
		}
		if id.Barred {
			b.WriteByte('!')
		}
		b.WriteString(id.URI)
	}
	return b.String()
}

// credentials turns a password into what is stored of it.
func credentials(impi, realm, password string) api.Credentials {
	return api.Credentials{
		MD5:    digest.HA1(digest.MD5, impi, realm, password),
		SHA256: digest.HA1(digest.SHA256, impi, realm, password),
	}
}

// realmOf is the realm of an IMPI, user@realm.
func realmOf(impi string) string {
	_, realm, _ := strings.Cut(impi, "@")
	return realm
}
