package sipmsg

import (
	"iter"
	"strings"
)

// Character classes of RFC 3261 §25.1.
const (
	tokenChar  = 1 << iota
	userChar   // user and password, unescaped; '#' too, since phones dial it bare
	hostChar   // a host name; '_' too, since networks use it
	valueChar  // a parameter's value that is not quoted
	schemeChar // after the first letter
	uriChar    // anything visible that may stand in a URI of unknown scheme
	spaceChar  // linear white space and line ends
	uriParam   // paramchar and hvalue of a SIP URI, unescaped, with their separators
	strictUser // userChar as the RFC has it
)

var class = func() (t [256]uint16) {
	const unreserved = "-_.!~*'()"
	mark := func(chars string, bits uint16) {
		for i := range len(chars) {
			t[chars[i]] |= bits
		}
	}
	for c := range 256 {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			t[c] |= tokenChar | userChar | hostChar | valueChar | schemeChar | uriChar | uriParam | strictUser
		case c > ' ' && c < 0x7f:
			t[c] |= valueChar | uriChar
		}
	}
	mark("-.!%*_+`'~", tokenChar)
	mark(unreserved+"&=+$,;?/", userChar|strictUser)
	mark("#", userChar)
	mark(" \t\r\n", spaceChar)
	mark("-._", hostChar)
	mark("+-.", schemeChar)
	mark(unreserved+"[]/:&+$;=?", uriParam)
	for _, c := range `";,<>` {
		t[c] &^= valueChar
	}
	for _, c := range `"<>` {
		t[c] &^= uriChar
	}
	return t
}()

var lower = func() (t [256]byte) {
	for c := range 256 {
		t[c] = byte(c)
		if c >= 'A' && c <= 'Z' {
			t[c] += 'a' - 'A'
		}
	}
	return t
}()

// equalFold compares as ASCII: Unicode folding would let other letters pass
// for header names.
func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lower[a[i]] != lower[b[i]] {
			return false
		}
	}
	return true
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && equalFold(s[:len(prefix)], prefix)
}

// all says whether s has only characters of a class and at least one.
func all(s string, bits uint16) bool {
	for i := range len(s) {
		if class[s[i]]&bits == 0 {
			return false
		}
	}
	return s != ""
}

// tokenLen gives the length of the token that s begins with.
func tokenLen(s string) int {
	n := 0
	for n < len(s) && class[s[n]]&tokenChar != 0 {
		n++
	}
	return n
}

// escaped says whether s has only characters of a class and whole escapes.
// The empty string passes.
func escaped(s string, bits uint16) bool {
	for i := 0; i < len(s); i++ {
		if s[i] == '%' {
			if i+2 >= len(s) || unhex(s[i+1]) < 0 || unhex(s[i+2]) < 0 {
				return false
			}
			i += 2
		} else if class[s[i]]&bits == 0 {
			return false
		}
	}
	return true
}

func unhex(c byte) int {
	switch c = lower[c]; {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}

func isSpace(c byte) bool { return class[c]&spaceChar != 0 }

// trim removes linear white space at both ends.
func trim(s string) string {
	for len(s) > 0 && isSpace(s[0]) {
		s = s[1:]
	}
	for len(s) > 0 && isSpace(s[len(s)-1]) {
		s = s[:len(s)-1]
	}
	return s
}

// number reads a decimal number of any length up to max; -1 for anything else.
func number(s string, max int) int {
	if s == "" {
		return -1
	}
	n := 0
	for i := range len(s) {
		c := s[i] - '0'
		if c > 9 {
			return -1
		}
		if n = n*10 + int(c); n > max {
			return -1
		}
	}
	return n
}

// quoted gives the length of the quoted string that s begins with, quotes
// included; -1 if it has no end.
func quoted(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// Unquote gives the text of a quoted string (RFC 3261 §25.1); anything else is
// returned as it is.
func Unquote(s string) string {
	if len(s) < 2 || s[0] != '"' || quoted(s) != len(s) {
		return s
	}
	s = s[1 : len(s)-1]
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b = append(b, s[i])
	}
	return string(b)
}

// Quote makes a quoted string of s.
func Quote(s string) string {
	if strings.IndexByte(s, '"') < 0 && strings.IndexByte(s, '\\') < 0 {
		return `"` + s + `"`
	}
	b := make([]byte, 0, len(s)+8)
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return string(append(b, '"'))
}

// nextElement cuts the first element off a comma-separated list. It may be
// empty. more says that a comma followed.
func nextElement(s string) (element, rest string, more bool) {
	if strings.IndexByte(s, ',') < 0 {
		return trim(s), "", false
	}
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case ',':
			return trim(s[:i]), s[i+1:], true
		case '"':
			n := quoted(s[i:])
			if n < 0 {
				return trim(s), "", false
			}
			i += n - 1
		case '<':
			n := strings.IndexByte(s[i:], '>')
			if n < 0 {
				return trim(s), "", false
			}
			i += n
		}
	}
	return trim(s), "", false
}

// firstElement is nextElement for the first element that is not empty.
func firstElement(s string) (element, rest string) {
	for more := true; more && element == ""; {
		element, s, more = nextElement(s)
	}
	return element, s
}

// SplitElements gives the elements of a comma-separated header value
// (RFC 3261 §7.3.1), trimmed. Commas in quoted strings and between < and > do
// not separate; empty elements are left out.
func SplitElements(s string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for s != "" {
			var element string
			if element, s = firstElement(s); element == "" || !yield(element) {
				return
			}
		}
	}
}
