package api

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// Limits of one subscriber.
const (
	maxIdentities = 64
	maxNameBytes  = 255
)

// Check reports the first thing that makes s unfit to be stored.
// It looks at the text only: whether an identity belongs to somebody else is
// for the node to say, and the exact grammar of URIs for its SIP parser.
func (s NewSubscriber) Check() error {
	user, realm, ok := strings.Cut(s.IMPI, "@")
	switch {
	case s.IMPI == "":
		return Errorf(Invalid, "the IMPI is empty").Advise("write it as user@realm")
	case !ok || user == "" || realm == "" || strings.Contains(realm, "@") || !printable(s.IMPI):
		return Errorf(Invalid, "%q is not an IMPI", s.IMPI).Advise("write it as user@realm, without spaces")
	case strings.Contains(user, ":"):
		return Errorf(Invalid, "the IMPI %q holds a colon, which digest reserves", s.IMPI).Advise("write it as user@realm")
	case s.Realm == "" || !printable(s.Realm):
		return Errorf(Invalid, "%q is not a realm", s.Realm).Advise("write the home domain")
	case len(s.Identities) == 0:
		return Errorf(Invalid, "%s has no public identity", s.IMPI).Advise("give at least one, such as sip:" + s.IMPI)
	case len(s.Identities) > maxIdentities:
		return Errorf(Invalid, "%s has %d public identities", s.IMPI, len(s.Identities)).Advise(fmt.Sprintf("give at most %d", maxIdentities))
	}
	seen := map[string]bool{}
	usable := map[int]bool{}
	for _, id := range s.Identities {
		if err := id.check(); err != nil {
			return err
		}
		if seen[id.URI] {
			return Errorf(Invalid, "%s is given twice", id.URI).Advise("give each public identity once")
		}
		seen[id.URI] = true
		usable[id.Set] = usable[id.Set] || !id.Barred
	}
	for _, id := range s.Identities {
		if !usable[id.Set] {
			return Errorf(Invalid, "every identity in the registration set of %s is barred", id.URI).Advise("leave one of them unbarred")
		}
	}
	if s.HA1 == (Credentials{}) && s.AKA == nil {
		return Errorf(Invalid, "%s has no secret", s.IMPI).Advise("give a password, its HA1, or K and OPc of a USIM")
	}
	if s.AKA != nil {
		if err := s.AKA.check(s.IMPI); err != nil {
			return err
		}
	}
	return s.HA1.check(s.IMPI)
}

func (id Identity) check() error {
	scheme, rest, _ := strings.Cut(id.URI, ":")
	switch strings.ToLower(scheme) {
	case "sip", "sips":
		user, host, at := strings.Cut(rest, "@")
		if !at || user == "" || host == "" || strings.ContainsAny(user, "<>\"") || strings.ContainsAny(host, "<>\"?;,@") || !printable(id.URI) {
			return Errorf(Invalid, "%q is not a public identity", id.URI).Advise("write it as sip:user@domain, without parameters")
		}
	case "tel":
		if !telephone(rest) || !printable(id.URI) {
			return Errorf(Invalid, "%q is not a telephone number", id.URI).
				Advise("write it as tel:+4930123456, or a local one as tel:12;phone-context=example.org")
		}
	default:
		return Errorf(Invalid, "%q is not a public identity", id.URI).Advise("write it as sip:user@domain or tel:+number")
	}
	if id.Set < 0 || id.Set >= maxIdentities {
		return Errorf(Invalid, "%s is in registration set %d", id.URI, id.Set).Advise("number the sets from 0")
	}
	return nil
}

// telephone reports whether s is a global number, which begins with +, or a
// local one with its phone-context (RFC 3966 §5.1.4, §5.1.5), and nothing else.
func telephone(s string) bool {
	number, context, local := strings.Cut(s, ";phone-context=")
	symbols, global := "0123456789", false
	if local {
		symbols += "ABCDEFabcdef*#"
	} else {
		number, global = strings.CutPrefix(number, "+")
	}
	if local && (context == "" || strings.ContainsAny(context, "<>\"?;,=")) || !local && !global {
		return false
	}
	return strings.ContainsAny(number, symbols) && strings.Trim(number, symbols+"-.()") == ""
}

func (c Credentials) check(impi string) error {
	for _, h := range []struct {
		name, value string
		bytes       int
	}{{"MD5", c.MD5, 16}, {"SHA-256", c.SHA256, 32}} {
		if h.value != "" && !hexOf(h.value, h.bytes) {
			return Errorf(Invalid, "the %s HA1 of %s is malformed", h.name, impi).Advise(fmt.Sprintf("write %d lower-case hex digits", 2*h.bytes))
		}
	}
	return nil
}

func (a AKA) check(impi string) error {
	for _, h := range []struct {
		name, value string
		bytes       int
	}{{"K", a.K, 16}, {"OPc", a.OPc, 16}, {"AMF", a.AMF, 2}} {
		if !hexOf(h.value, h.bytes) {
			// Not the value itself, which is a secret.
			return Errorf(Invalid, "%s of the USIM of %s is malformed", h.name, impi).Advise(fmt.Sprintf("write %d lower-case hex digits", 2*h.bytes))
		}
	}
	return nil
}

// hexOf reports whether s is so many bytes in lower-case hex.
func hexOf(s string, bytes int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == bytes && s == strings.ToLower(s)
}

// printable reports whether s is a short text of visible ASCII.
func printable(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return len(s) <= maxNameBytes
}
