package sipmsg

import (
	"net/netip"
	"strings"
)

// AOR gives the key under which an identity is stored (RFC 3261 §10.3,
// TS 23.003 §13.4): "sip:user@host", the user without needless escapes, the
// host in lower case, no password, port, parameters or headers, and sip for
// sips; or "tel:+4930..." without visual separators, a local number with its
// phone-context. Other schemes are kept as they are.
func (u URI) AOR() string {
	switch u.Scheme {
	case "sip", "sips":
		if u.User == "" {
			return "sip:" + canonicalHost(u.Host)
		}
		return "sip:" + canonicalUser(u.User) + "@" + canonicalHost(u.Host)
	case "tel":
		aor := "tel:" + bareNumber(u.User)
		if context, ok := u.Params.Value("phone-context"); ok && !strings.HasPrefix(u.User, "+") {
			aor += ";phone-context=" + strings.ToLower(context)
		}
		return aor
	}
	return u.Scheme + ":" + u.User
}

// canonicalUser undoes the escapes of characters that need none in a user part
// and writes the others in upper case.
func canonicalUser(s string) string { return unescape(s, strictUser) }

// unescape writes characters of a class plainly and all others escaped, in
// upper case.
func unescape(s string, bits uint16) string {
	if all(s, bits) {
		return s
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' && i+2 < len(s) && unhex(s[i+1]) >= 0 && unhex(s[i+2]) >= 0 {
			c = byte(unhex(s[i+1])<<4 | unhex(s[i+2]))
			i += 2
		}
		if class[c]&bits != 0 {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

func canonicalHost(s string) string {
	if strings.HasPrefix(s, "[") {
		if addr, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
			return "[" + addr.String() + "]"
		}
	}
	return strings.TrimRight(strings.ToLower(s), ".")
}

// bareNumber leaves visual separators out (RFC 3966 §5.1.1).
func bareNumber(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && visualSeparator(byte(r)) {
			return -1
		}
		return r
	}, strings.ToLower(s))
}

// Equal compares as RFC 3261 §19.1.4 and RFC 3966 §4 say: by meaning, not by
// spelling. It is not transitive, because parameters that only one URI has may
// be ignored.
func (u URI) Equal(v URI) bool {
	if u.Scheme != v.Scheme {
		return false
	}
	if u.parts() > MaxParams || v.parts() > MaxParams {
		return u == v // comparing each with each would be quadratic
	}
	switch u.Scheme {
	case "sip", "sips":
		return canonicalUser(u.User) == canonicalUser(v.User) &&
			canonicalUser(u.Password) == canonicalUser(v.Password) &&
			canonicalHost(u.Host) == canonicalHost(v.Host) && u.Port == v.Port &&
			sipParamsMatch(u.Params, v.Params) && sipParamsMatch(v.Params, u.Params) &&
			uriHeadersMatch(u.Headers, v.Headers) && uriHeadersMatch(v.Headers, u.Headers)
	case "tel":
		return bareNumber(u.User) == bareNumber(v.User) &&
			telParamsMatch(u.Params, v.Params) && telParamsMatch(v.Params, u.Params)
	}
	return u.User == v.User
}

// parts counts parameters and headers.
func (u URI) parts() int {
	return strings.Count(string(u.Params), ";") + strings.Count(u.Headers, "&")
}

// uriParam finds a URI parameter; in URIs, unlike in headers, a name may be
// escaped.
func (p Params) uriParam(name string) (string, bool) {
	for n, v := range p.All() {
		if equalFold(unescape(n, uriParam), name) {
			return unescape(v, uriParam), true
		}
	}
	return "", false
}

// sipParamsMatch says whether nothing in a contradicts b.
func sipParamsMatch(a, b Params) bool {
	for n := range a.All() {
		n = unescape(n, uriParam)
		x, _ := a.uriParam(n)
		y, ok := b.uriParam(n)
		if ok && !equalFold(x, y) {
			return false
		}
		if !ok {
			switch strings.ToLower(n) {
			case "user", "ttl", "method", "maddr", "transport":
				return false
			}
		}
	}
	return true
}

func telParamsMatch(a, b Params) bool {
	for n := range a.All() {
		n = unescape(n, uriParam)
		x, _ := a.uriParam(n)
		if y, ok := b.uriParam(n); !ok || !equalFold(bareNumber(x), bareNumber(y)) {
			return false
		}
	}
	return true
}

// uriHeadersMatch says whether b has every header of a.
func uriHeadersMatch(a, b string) bool {
	for pair := range strings.SplitSeq(a, "&") {
		name, value, _ := strings.Cut(pair, "=")
		found := false
		for other := range strings.SplitSeq(b, "&") {
			n, v, _ := strings.Cut(other, "=")
			found = found || equalFold(unescape(n, uriParam), unescape(name, uriParam)) &&
				unescape(v, uriParam) == unescape(value, uriParam)
		}
		if !found {
			return false
		}
	}
	return true
}
