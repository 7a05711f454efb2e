package sipmsg

import (
	"errors"
	"strings"
)

// NameAddr is the value of From, To, Contact, Route and their like
// (RFC 3261 §20.10): a display name without its quotes, a URI as written, and
// the header's parameters.
type NameAddr struct {
	Display string
	URI     string
	Params  Params
}

var (
	errNameAddr = errors.New("parse name-addr: malformed")
	errQuotes   = errors.New("parse name-addr: quotes do not balance")
)

// ParseNameAddr reads one element. Without < and > the parameters belong to
// the header, and a URI with a question mark or comma is refused
// (RFC 3261 §20). The URI's scheme may be any; [ParseURI] looks into it.
func ParseNameAddr(s string) (NameAddr, error) {
	a, err := scanNameAddr(s)
	if err == nil {
		a.Display = Unquote(a.Display)
	}
	return a, err
}

// scanNameAddr is ParseNameAddr with the display name as written, so that it
// never allocates.
func scanNameAddr(s string) (NameAddr, error) {
	s = trim(s)
	var a NameAddr
	open := -1
	if s != "" && s[0] == '"' {
		n := quoted(s)
		if n < 0 {
			return a, errQuotes
		}
		a.Display = s[:n]
		if s = trim(s[n:]); s == "" || s[0] != '<' {
			return NameAddr{}, errNameAddr
		}
		open = 0
	} else if i := strings.IndexAny(s, `<;"`); i >= 0 && s[i] == '<' {
		open = i
		a.Display = trim(s[:open])
		for i := range len(a.Display) {
			// UTF-8 belongs into quotes, but many phones leave them out.
			if c := a.Display[i]; class[c]&tokenChar == 0 && !isSpace(c) && c < 0x80 {
				return NameAddr{}, errNameAddr
			}
		}
	}
	if open >= 0 {
		end := strings.IndexByte(s, '>')
		if end < open {
			return NameAddr{}, errNameAddr
		}
		a.URI, a.Params = s[open+1:end], Params(trim(s[end+1:]))
	} else {
		end := len(s)
		if i := strings.IndexByte(s, ';'); i >= 0 {
			end = i
		}
		a.URI, a.Params = trim(s[:end]), Params(s[end:])
		if strings.IndexByte(a.URI, '?') >= 0 || strings.IndexByte(a.URI, ',') >= 0 {
			return NameAddr{}, errNameAddr
		}
	}
	if _, rest, ok := cutScheme(a.URI); !ok || !all(rest, uriChar) || !a.Params.valid() {
		return NameAddr{}, errNameAddr
	}
	return a, nil
}

// Tag gives the tag parameter, "" if there is none (RFC 3261 §19.3).
func (a NameAddr) Tag() string {
	tag, _ := a.Params.Value("tag")
	return tag
}

// String writes the element, the URI always between < and >.
func (a NameAddr) String() string {
	if a.Display == "" {
		return "<" + a.URI + ">" + string(a.Params)
	}
	return Quote(a.Display) + " <" + a.URI + ">" + string(a.Params)
}
