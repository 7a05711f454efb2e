package cli

import (
	"errors"
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

// orDefault is the text of public identities, by default that of the IMPI.
func orDefault(text, impi string) string {
	if text == "" && impi != "" {
		return "sip:" + impi
	}
	return text
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
				return nil, errors.New("a registration set is empty; write | only between identities")
			}
			set++
			continue
		}
		uri, barred := strings.CutPrefix(f, "!")
		if uri == "" {
			return nil, errors.New("! stands alone; write it right before the identity that it bars, such as '!sip:desk@example.org'")
		}
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

// algorithms are the digest algorithms that a password is stored for, a flag.
// None means both.
type algorithms []digest.Algorithm

func (a *algorithms) Set(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		i := slices.IndexFunc(digest.Algorithms, func(s digest.Algorithm) bool { return strings.EqualFold(name, string(s)) })
		if i < 0 {
			return errors.New("write MD5, SHA-256 or both")
		}
		*a = append(*a, digest.Algorithms[i])
	}
	return nil
}

func (a *algorithms) String() string {
	var names []string
	for _, s := range *a {
		names = append(names, string(s))
	}
	return strings.Join(names, ",")
}

func (*algorithms) Type() string { return "algorithms" }

const whichAlgorithms = "`NAME` of the digest to store a password for, MD5 or SHA-256 (default: both)"

// credentials turns a password into what is stored of it.
func (a algorithms) credentials(impi, realm, password string) api.Credentials {
	var c api.Credentials
	if len(a) == 0 || slices.Contains(a, digest.MD5) {
		c.MD5 = digest.HA1(digest.MD5, impi, realm, password)
	}
	if len(a) == 0 || slices.Contains(a, digest.SHA256) {
		c.SHA256 = digest.HA1(digest.SHA256, impi, realm, password)
	}
	return c
}

// realmOf is the realm of an IMPI, user@realm.
func realmOf(impi string) string {
	_, realm, _ := strings.Cut(impi, "@")
	return realm
}
