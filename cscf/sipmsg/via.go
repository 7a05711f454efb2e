package sipmsg

import (
	"errors"
	"strconv"
)

// Via is one element of a Via header (RFC 3261 §20.42). An IPv6 Host keeps its
// brackets; Port 0 means that none was written. The version is not kept: a
// request of a later version must be answered, too (RFC 3261 §21.5.6).
type Via struct {
	Transport string
	Host      string
	Port      int
	Params    Params
}

var errVia = errors.New("parse via: malformed")

// ParseVia reads one element.
func ParseVia(s string) (Via, error) {
	var v Via
	s = trim(s)
	if !hasPrefixFold(s, "SIP") {
		return Via{}, errVia
	}
	s, ok := cutSlash(s[len("SIP"):])
	if !ok {
		return Via{}, errVia
	}
	if s, ok = cutSlash(s[tokenLen(s):]); !ok {
		return Via{}, errVia
	}
	n := tokenLen(s)
	if n == 0 || n == len(s) || !isSpace(s[n]) {
		return Via{}, errVia
	}
	v.Transport, s = s[:n], trim(s[n:])

	n = 0
	if s != "" && s[0] == '[' {
		for n < len(s) && s[n] != ']' {
			n++
		}
		n++
	} else {
		for n < len(s) && class[s[n]]&hostChar != 0 {
			n++
		}
	}
	if n > len(s) || !validHost(s[:n]) {
		return Via{}, errVia
	}
	v.Host, s = s[:n], trim(s[n:])
	if s != "" && s[0] == ':' {
		s = trim(s[1:])
		for n = 0; n < len(s) && s[n] >= '0' && s[n] <= '9'; n++ {
		}
		if v.Port = number(s[:n], 65535); v.Port <= 0 {
			return Via{}, errVia
		}
		s = trim(s[n:])
	}
	v.Params = Params(s)
	if !v.Params.valid() {
		return Via{}, errVia
	}
	return v, nil
}

// cutSlash cuts a slash and the white space around it off.
func cutSlash(s string) (string, bool) {
	if s = trim(s); s == "" || s[0] != '/' {
		return "", false
	}
	return trim(s[1:]), true
}

// Branch gives the branch parameter, "" if there is none.
func (v Via) Branch() string {
	branch, _ := v.Params.Value("branch")
	return branch
}

// SentBy gives "host:port" with the default port of the transport filled in
// (RFC 3261 §18.1.1).
func (v Via) SentBy() string {
	port := v.Port
	if port == 0 {
		port = 5060
		if t, _ := ParseTransport(v.Transport); t == TLS || t == WSS {
			port = 5061
		}
	}
	return v.Host + ":" + strconv.Itoa(port)
}

// String writes the element.
func (v Via) String() string {
	b := make([]byte, 0, 64+len(v.Params))
	b = append(b, "SIP/2.0/"...)
	b = append(b, v.Transport...)
	b = append(b, ' ')
	b = append(b, v.Host...)
	if v.Port != 0 {
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(v.Port), 10)
	}
	return string(append(b, v.Params...))
}
