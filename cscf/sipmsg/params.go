package sipmsg

import (
	"iter"
	"strings"
)

// Params are the parameters behind a value or in a URI, as written:
// ";a=b;c". White space around ; and = is allowed and has no meaning. Names are
// compared in any letter case. Values are as written: a quoted one keeps its
// quotes (see [Unquote]).
type Params string

// next cuts the first parameter off.
func (p Params) next() (name, value string, rest Params) {
	s := string(p)
	for s != "" && (s[0] == ';' || isSpace(s[0])) {
		s = s[1:]
	}
	end, eq := len(s), -1
	for i := 0; i < len(s); i++ {
		if c := s[i]; c == ';' {
			end = i
			break
		} else if c == '=' && eq < 0 {
			eq = i
		} else if c == '"' && eq >= 0 {
			n := quoted(s[i:])
			if n < 0 {
				break
			}
			i += n - 1
		}
	}
	if eq < 0 {
		return trim(s[:end]), "", Params(s[end:])
	}
	return trim(s[:eq]), trim(s[eq+1 : end]), Params(s[end:])
}

// All gives names and values in order; the value of a parameter without one
// is "".
func (p Params) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for p != "" {
			var name, value string
			if name, value, p = p.next(); name != "" && !yield(name, value) {
				return
			}
		}
	}
}

// Value gives the first parameter of that name.
func (p Params) Value(name string) (string, bool) {
	for p != "" {
		var n, v string
		if n, v, p = p.next(); n != "" && equalFold(n, name) {
			return v, true
		}
	}
	return "", false
}

// Has says whether a parameter of that name is there.
func (p Params) Has(name string) bool {
	_, ok := p.Value(name)
	return ok
}

// With gives the parameters with that one set: at its place, else at the end.
// The value is written as it is; "" writes the name alone.
func (p Params) With(name, value string) Params {
	var b strings.Builder
	b.Grow(len(p) + len(name) + len(value) + 2)
	done := false
	for n, v := range p.All() {
		if equalFold(n, name) {
			if done {
				continue
			}
			n, v, done = name, value, true
		}
		writeParam(&b, n, v)
	}
	if !done {
		writeParam(&b, name, value)
	}
	return Params(b.String())
}

// Without gives the parameters less every one of that name.
func (p Params) Without(name string) Params {
	if !p.Has(name) {
		return p
	}
	var b strings.Builder
	b.Grow(len(p))
	for n, v := range p.All() {
		if !equalFold(n, name) {
			writeParam(&b, n, v)
		}
	}
	return Params(b.String())
}

func writeParam(b *strings.Builder, name, value string) {
	b.WriteByte(';')
	b.WriteString(name)
	if value != "" {
		b.WriteByte('=')
		b.WriteString(value)
	}
}

// valid checks *( SEMI generic-param ) of RFC 3261 §25.1.
func (p Params) valid() bool {
	s := trim(string(p))
	for s != "" {
		if s[0] != ';' {
			return false
		}
		s = trim(s[1:])
		n := tokenLen(s)
		if n == 0 {
			return false
		}
		if s = trim(s[n:]); s == "" || s[0] != '=' {
			continue
		}
		if s = trim(s[1:]); s == "" {
			return false
		}
		if s[0] == '"' {
			n = quoted(s)
		} else {
			for n = 0; n < len(s) && class[s[n]]&valueChar != 0; n++ {
			}
		}
		if n <= 0 {
			return false
		}
		s = trim(s[n:])
	}
	return true
}
