package sipmsg

import (
	"errors"
	"iter"
)

// AuthParams are the parameters of a credential or challenge, as written:
// `username="a", nonce="b"` (RFC 3261 §20.7, §20.44).
type AuthParams string

var errAuth = errors.New("parse auth: malformed")

// ParseAuth reads the value of Authorization, WWW-Authenticate and their
// Proxy- twins. A parameter that comes twice, or more than MaxParams of them,
// is an error: which one counts would be a guess.
func ParseAuth(s string) (scheme string, p AuthParams, err error) {
	s = trim(s)
	n := tokenLen(s)
	if n == 0 || n == len(s) || !isSpace(s[n]) {
		return "", "", errAuth
	}
	scheme, p = s[:n], AuthParams(trim(s[n:]))
	var seen [MaxParams]string
	count := 0
	for rest := p; rest != ""; {
		var name, value string
		if name, value, rest = rest.next(); name == "" || value == "" || count == MaxParams {
			return "", "", errAuth
		}
		for _, other := range seen[:count] {
			if equalFold(other, name) {
				return "", "", errAuth
			}
		}
		seen[count] = name
		count++
	}
	if count == 0 {
		return "", "", errAuth
	}
	return scheme, p, nil
}

// next cuts the first parameter off; an empty name or value means malformed.
func (p AuthParams) next() (name, value string, rest AuthParams) {
	s := string(p)
	n := tokenLen(s)
	name = s[:n]
	if s = trim(s[n:]); s == "" || s[0] != '=' {
		return "", "", ""
	}
	s = trim(s[1:])
	if s != "" && s[0] == '"' {
		n = quoted(s)
	} else {
		for n = 0; n < len(s) && class[s[n]]&valueChar != 0; n++ {
		}
	}
	if n <= 0 {
		return "", "", ""
	}
	value = s[:n]
	if s = trim(s[n:]); s == "" {
		return name, value, ""
	}
	if s[0] != ',' {
		return "", "", ""
	}
	if s = trim(s[1:]); s == "" {
		return "", "", ""
	}
	return name, value, AuthParams(s)
}

// All gives names and unquoted values in order.
func (p AuthParams) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for p != "" {
			var name, value string
			if name, value, p = p.next(); name == "" || !yield(name, Unquote(value)) {
				return
			}
		}
	}
}

// Value gives the unquoted value of a parameter, its name in any letter case.
func (p AuthParams) Value(name string) (string, bool) {
	for p != "" {
		var n, v string
		if n, v, p = p.next(); n != "" && equalFold(n, name) {
			return Unquote(v), true
		}
	}
	return "", false
}
