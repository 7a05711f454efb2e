package sipmsg

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// URI is a SIP, SIPS or tel URI taken apart (RFC 3261 §19.1, RFC 3966). Its
// parts are as written, escapes included; only Scheme is in lower case. An IPv6
// Host keeps its brackets; Port 0 means that none was written. A tel URI, and
// one of any other scheme, holds all before its parameters, or all of it, in
// User and has no Host.
type URI struct {
	Scheme   string
	User     string
	Password string
	Host     string
	Port     int
	Params   Params
	Headers  string // behind the question mark
}

var (
	errURI       = errors.New("parse uri: malformed")
	errURIUser   = errors.New("parse uri: malformed user")
	errURIHost   = errors.New("parse uri: malformed host or port")
	errURIParams = errors.New("parse uri: malformed parameters or headers")
	errURINumber = errors.New("parse uri: malformed telephone number")
)

// cutScheme splits a URI at its colon; the scheme is as written.
func cutScheme(s string) (scheme, rest string, ok bool) {
	for i := range len(s) {
		c := s[i]
		if c == ':' {
			return s[:i], s[i+1:], i > 0
		}
		if class[c]&schemeChar == 0 || i == 0 && !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') {
			break
		}
	}
	return "", "", false
}

// ParseURI reads a URI without white space around it. Unknown schemes are not
// an error.
func ParseURI(s string) (URI, error) {
	scheme, rest, ok := cutScheme(s)
	if !ok {
		return URI{}, errURI
	}
	switch {
	case equalFold(scheme, "sip"):
		return parseSIPURI("sip", rest)
	case equalFold(scheme, "sips"):
		return parseSIPURI("sips", rest)
	case equalFold(scheme, "tel"):
		return parseTelURI(rest)
	case !all(rest, uriChar):
		return URI{}, errURI
	}
	return URI{Scheme: strings.ToLower(scheme), User: rest}, nil
}

func parseSIPURI(scheme, s string) (URI, error) {
	u := URI{Scheme: scheme}
	if at := strings.IndexByte(s, '@'); at >= 0 {
		u.User = s[:at]
		if colon := strings.IndexByte(u.User, ':'); colon >= 0 {
			u.User, u.Password = u.User[:colon], u.User[colon+1:]
		}
		if u.User == "" || !escaped(u.User, userChar) || !escaped(u.Password, userChar) {
			return URI{}, errURIUser
		}
		s = s[at+1:]
	}
	if i := strings.IndexByte(s, '?'); i >= 0 {
		s, u.Headers = s[:i], s[i+1:]
	}
	if i := strings.IndexByte(s, ';'); i >= 0 {
		s, u.Params = s[:i], Params(s[i:])
	}
	if !escaped(string(u.Params), uriParam) || !escaped(u.Headers, uriParam) {
		return URI{}, errURIParams
	}
	u.Host = s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && i > strings.LastIndexByte(s, ']') {
		u.Host = s[:i]
		if u.Port = number(s[i+1:], 65535); u.Port <= 0 {
			return URI{}, errURIHost
		}
	}
	if !validHost(u.Host) {
		return URI{}, errURIHost
	}
	return u, nil
}

func parseTelURI(s string) (URI, error) {
	u := URI{Scheme: "tel", User: s}
	if i := strings.IndexByte(s, ';'); i >= 0 {
		u.User, u.Params = s[:i], Params(s[i:])
	}
	global := strings.HasPrefix(u.User, "+")
	digits := 0
	for _, c := range []byte(strings.TrimPrefix(u.User, "+")) {
		switch {
		case c >= '0' && c <= '9', !global && (unhex(c) >= 0 || c == '*' || c == '#'):
			digits++
		case !visualSeparator(c):
			return URI{}, errURINumber
		}
	}
	if digits == 0 {
		return URI{}, errURINumber
	}
	if !escaped(string(u.Params), uriParam) {
		return URI{}, errURIParams
	}
	return u, nil
}

func visualSeparator(c byte) bool { return c == '-' || c == '.' || c == '(' || c == ')' }

func validHost(s string) bool {
	if s == "" {
		return false
	}
	if s[0] != '[' {
		return all(s, hostChar) && s[0] != '.' && s[0] != '-' && !strings.Contains(s, "..")
	}
	if s[len(s)-1] != ']' {
		return false
	}
	addr, err := netip.ParseAddr(s[1 : len(s)-1])
	return err == nil && addr.Is6() && addr.Zone() == ""
}

// String writes the URI.
func (u URI) String() string {
	b := make([]byte, 0, 16+len(u.User)+len(u.Password)+len(u.Host)+len(u.Params)+len(u.Headers))
	b = append(b, u.Scheme...)
	b = append(b, ':')
	b = append(b, u.User...)
	if u.Password != "" {
		b = append(b, ':')
		b = append(b, u.Password...)
	}
	if u.Host != "" {
		if u.User != "" {
			b = append(b, '@')
		}
		b = append(b, u.Host...)
	}
	if u.Port != 0 {
		b = append(b, ':')
		b = strconv.AppendInt(b, int64(u.Port), 10)
	}
	b = append(b, u.Params...)
	if u.Headers != "" {
		b = append(b, '?')
		b = append(b, u.Headers...)
	}
	return string(b)
}

// HostPort gives the address that the URI names literally; port 5060, or 5061
// for sips, if none is written (RFC 3263 §4.2). It is false for a host name.
func (u URI) HostPort() (netip.AddrPort, bool) {
	host := u.Host
	if len(host) > 2 && host[0] == '[' {
		host = host[1 : len(host)-1]
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, false
	}
	port := u.Port
	if port == 0 {
		port = 5060
		if u.Scheme == "sips" {
			port = 5061
		}
	}
	return netip.AddrPortFrom(addr, uint16(port)), true
}
