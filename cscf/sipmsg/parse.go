package sipmsg

import (
	"bytes"
	"strings"
	"unsafe"
)

// Limits of a message that Parse accepts.
const (
	MaxSize    = 64 << 10 // bytes
	MaxHeaders = 128      // header lines
	MaxParams  = 64       // parameters of one header element
)

// Error says what Parse found wrong first.
type Error struct {
	Status int    // status to answer; 0: drop in silence
	Reason string // reason phrase for that answer
}

// Error gives the reason.
func (e *Error) Error() string { return "parse sip message: " + e.Reason }

var (
	errNotSIP         = &Error{0, "Not SIP"}
	errTooLarge       = &Error{513, "Message Too Large"}
	errVersion        = &Error{505, "Version Not Supported"}
	errScheme         = &Error{416, "Unsupported URI Scheme"}
	errStartLine      = &Error{400, "Malformed Request-Line"}
	errRequestURI     = &Error{400, "Malformed Request-URI"}
	errLineEnd        = &Error{400, "Bare CR, LF or NUL in Header"}
	errUnfinished     = &Error{400, "Header Section Without End"}
	errHeaderLine     = &Error{400, "Malformed Header Line"}
	errTooManyHeaders = &Error{400, "Too Many Headers"}
	errTooManyParams  = &Error{400, "Too Many Parameters"}
	errBadVia         = &Error{400, "Malformed Via"}
	errBadRoute       = &Error{400, "Malformed Route"}
	errBadFrom        = &Error{400, "Malformed From"}
	errBadTo          = &Error{400, "Malformed To"}
	errBadCallID      = &Error{400, "Malformed Call-ID"}
	errBadCSeq        = &Error{400, "Malformed CSeq"}
	errCSeqMethod     = &Error{400, "CSeq Method Does Not Match"}
	errBadMaxForwards = &Error{400, "Malformed Max-Forwards"}
	errBadLength      = &Error{400, "Malformed Content-Length"}
	errLength         = &Error{400, "Body Shorter Than Content-Length"}
)

// errMissing and errTwice hold one error a header, so that refusing a message
// allocates nothing.
var errMissing, errTwice = func() (missing, twice [headerCount]*Error) {
	for h := Header(1); h < headerCount; h++ {
		missing[h] = &Error{400, "Missing " + h.String()}
		twice[h] = &Error{400, "More Than One " + h.String()}
	}
	return missing, twice
}()

// Parse reads one message: a datagram, or what was framed from a stream. See
// [Message.Parse].
func Parse(raw []byte) (*Message, error) {
	m := new(Message)
	return m, m.Parse(raw)
}

// Parse reads one message into m, reusing its storage; what was read into m
// before is invalid then. CRLFs before the start line, and bytes behind the
// body that Content-Length announces, are not part of the message
// (RFC 3261 §7.5, §18.3).
//
// The error is an *Error. After one with a Status the message must not be
// processed, but Answerable says whether it can be answered, and Response
// makes that answer. Malformed responses have Status 0: nobody answers them.
func (m *Message) Parse(raw []byte) error {
	*m = Message{lines: m.lines[:0]}
	for len(raw) > 0 && (raw[0] == '\r' || raw[0] == '\n') {
		raw = raw[1:]
	}
	first := bytes.IndexByte(raw, '\n')
	if first < 0 {
		return errNotSIP
	}
	size := len(raw)
	if size > MaxSize {
		raw = raw[:MaxSize]
		first = bytes.IndexByte(raw, '\n')
		if first < 0 {
			return errNotSIP
		}
	}
	// The string shares the bytes, see the package's invariants.
	text := unsafe.String(unsafe.SliceData(raw), len(raw))
	m.start = text[:first+1]
	if !m.parseStart(strings.TrimSuffix(text[:first], "\r")) {
		*m = Message{lines: m.lines}
		return errNotSIP
	}
	if size > MaxSize {
		m.fail(errTooLarge)
	}
	if text[first-1] != '\r' || strings.IndexByte(text[:first-1], '\r') >= 0 || strings.IndexByte(text[:first], 0) >= 0 {
		m.fail(errLineEnd)
	}

	end := first + 1 + m.parseLines(text[first+1:])
	m.body = raw[end:len(raw):len(raw)]
	m.check()
	if m.err == nil {
		if n := m.contentLength(); n >= 0 {
			raw = raw[:end+n]
			m.body = m.body[:n:n]
		}
	}
	if m.err != nil {
		m.cleanLines()
		if !m.request {
			return &Error{0, m.err.Reason}
		}
		return m.err
	}
	m.raw = raw[:len(raw):len(raw)]
	return nil
}

// fail keeps the first error.
func (m *Message) fail(e *Error) {
	if m.err == nil {
		m.err = e
	}
}

// parseStart reads the start line; false means that this is not SIP.
func (m *Message) parseStart(s string) bool {
	if hasPrefixFold(s, "SIP/") {
		return m.parseStatusLine(s)
	}
	sp := strings.IndexByte(s, ' ')
	trimmed := strings.TrimRight(s, " \t")
	last := strings.LastIndexByte(trimmed, ' ')
	if sp <= 0 || !hasPrefixFold(trimmed[last+1:], "SIP/") {
		return false
	}
	m.request = true
	m.method = s[:sp]
	switch {
	case !equalFold(trimmed[last+1:], "SIP/2.0"):
		m.fail(errVersion)
	case last <= sp || len(trimmed) != len(s) || !all(m.method, tokenChar):
		m.fail(errStartLine)
	default:
		m.uri = s[sp+1 : last]
		m.checkRequestURI()
	}
	return true
}

func (m *Message) parseStatusLine(s string) bool {
	const version = "SIP/2.0 "
	if !hasPrefixFold(s, version) || len(s) < len(version)+3 {
		return false
	}
	s = s[len(version):]
	m.status = number(s[:3], 699)
	if m.status < 100 || len(s) > 3 && s[3] != ' ' {
		return false
	}
	if len(s) > 3 {
		m.reason = s[4:]
	}
	return true
}

func (m *Message) checkRequestURI() {
	scheme, _, ok := cutScheme(m.uri)
	if !ok {
		m.fail(errRequestURI)
		return
	}
	switch strings.ToLower(scheme) {
	case "sip", "sips", "tel", "urn": // a URN names a service (RFC 5031)
	default:
		m.fail(errScheme)
		return
	}
	// Headers are for other places than a Request-URI (RFC 3261 §19.1.1).
	if u, err := ParseURI(m.uri); err != nil || u.Headers != "" {
		m.fail(errRequestURI)
	}
}

// parseLines indexes the header lines and gives the length of the header
// section with its empty line. Lines that are malformed are left out or
// cleaned, so that what is indexed can be put into an answer.
func (m *Message) parseLines(s string) int {
	section := s
	hasNUL := strings.IndexByte(s, 0) >= 0
	manyParams := strings.Count(s, ";") > MaxParams
	crlfs := 0
	for {
		end, folded := 0, false
		for {
			n := strings.IndexByte(s[end:], '\n') + 1
			if n == 0 {
				m.fail(errUnfinished)
				return len(section)
			}
			if n > 1 && s[end+n-2] == '\r' {
				crlfs++
			} else {
				m.fail(errLineEnd)
			}
			if end += n; end == len(s) || s[end] != ' ' && s[end] != '\t' {
				break
			}
			folded = true
		}
		text := s[:end]
		s = s[end:]
		if text == "\r\n" || text == "\n" {
			break
		}
		if len(m.lines) == MaxHeaders {
			m.fail(errTooManyHeaders)
			return len(section)
		}
		if hasNUL && strings.IndexByte(text, 0) >= 0 && !quotedNUL(text) {
			m.fail(errLineEnd)
			continue
		}
		n := tokenLen(text)
		l := line{name: text[:n], text: text}
		for text[n] == ' ' || text[n] == '\t' {
			n++
		}
		if l.name == "" || text[n] != ':' {
			m.fail(errHeaderLine)
			continue
		}
		l.header = HeaderNamed(l.name)
		l.value = trim(text[n+1:])
		if folded {
			l.value = unfold(l.value)
		}
		if manyParams && strings.Count(l.value, ";") > MaxParams && tooManyParams(l.value) {
			m.fail(errTooManyParams)
			continue
		}
		m.lines = append(m.lines, l)
	}
	n := len(section) - len(s)
	if strings.Count(section[:n], "\r") != crlfs {
		m.fail(errLineEnd)
	}
	return n
}

// cleanLines makes header lines fit for an answer: those with stray line ends,
// and a top Via whose sent-by can be read, by which an answer finds its way.
func (m *Message) cleanLines() {
	for i := range m.lines {
		l := &m.lines[i]
		l.value, l.text = unfold(l.value), ""
	}
	if _, ok := m.TopVia(); ok {
		return
	}
	if i := m.find(ViaHeader, 0); i >= 0 {
		m.lines[i].value = repairVias(m.lines[i].value)
	}
}

// repairVias leaves out of a Via line what is malformed in the parameters of
// its first element, and other elements that are. A line whose first element
// cannot be repaired stays as it is.
func repairVias(s string) string {
	element, rest, more := nextElement(s)
	v, err := ParseVia(element)
	if err != nil {
		sentBy, params, _ := strings.Cut(element, ";")
		if v, err = ParseVia(sentBy); err != nil {
			return s
		}
		valid := 0
		for p := range strings.SplitSeq(params, ";") {
			if one := Params(";" + p); one.valid() {
				v.Params += one
				if valid++; valid == MaxParams {
					break // an open quote may hide any number
				}
			}
		}
	}
	var out strings.Builder
	out.WriteString(v.String())
	for more {
		element, rest, more = nextElement(rest)
		if v, err := ParseVia(element); err == nil {
			out.WriteString(", ")
			out.WriteString(v.String())
		}
	}
	return out.String()
}

// quotedNUL says whether every NUL is in a quoted string (RFC 3261 §25.1). It
// sees quotes where nextElement does, so that it holds for each element, too.
func quotedNUL(s string) bool {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case 0:
			return false
		case '"':
			n := quoted(s[i:])
			if n < 0 || bareNUL(s[i:i+n]) {
				return false
			}
			i += n - 1
		case '<':
			if n := strings.IndexByte(s[i:], '>'); n >= 0 && strings.IndexByte(s[i:i+n], 0) < 0 {
				i += n
			} else if n >= 0 || strings.IndexByte(s[i:], 0) >= 0 {
				return false
			}
		}
	}
	return true
}

// bareNUL says whether a quoted string has a NUL without a backslash.
func bareNUL(s string) bool {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case 0:
			return true
		}
	}
	return false
}

// unfold replaces each line break and the white space around it by one space
// (RFC 3261 §7.3.1).
func unfold(s string) string {
	if strings.IndexByte(s, '\r') < 0 && strings.IndexByte(s, '\n') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\r' && s[i] != '\n' {
			b = append(b, s[i])
			continue
		}
		for len(b) > 0 && isSpace(b[len(b)-1]) {
			b = b[:len(b)-1]
		}
		for i+1 < len(s) && isSpace(s[i+1]) {
			i++
		}
		b = append(b, ' ')
	}
	return string(b)
}

// tooManyParams counts the semicolons of each element.
func tooManyParams(s string) bool {
	for more := true; more; {
		var element string
		element, s, more = nextElement(s)
		count := 0
		for i := 0; i < len(element); i++ {
			switch element[i] {
			case ';':
				count++
			case '"':
				n := quoted(element[i:])
				if n < 0 {
					n = len(element) - i // searching on would be quadratic
				}
				i += n - 1
			}
		}
		if count > MaxParams {
			return true
		}
	}
	return false
}

// check looks at the headers that every element must understand.
func (m *Message) check() {
	var seen [headerCount]bool
	for i := range m.lines {
		l := &m.lines[i]
		if seen[l.header] && headerTable[l.header].single {
			m.fail(errTwice[l.header])
			continue
		}
		seen[l.header] = true
		switch l.header {
		case ViaHeader:
			for rest, more := l.value, true; more; {
				var element string
				element, rest, more = nextElement(rest)
				if _, err := ParseVia(element); err != nil {
					m.fail(errBadVia)
					break
				}
			}
		case Route:
			for rest, more := l.value, true; more; {
				var element string
				element, rest, more = nextElement(rest)
				if _, err := scanNameAddr(element); err != nil {
					m.fail(errBadRoute)
					break
				}
			}
		case From:
			if _, err := scanNameAddr(l.value); err != nil {
				m.fail(errBadFrom)
			}
		case To:
			if _, err := scanNameAddr(l.value); err != nil {
				m.fail(errBadTo)
			}
		case CallID:
			for i := range len(l.value) {
				if c := l.value[i]; c <= ' ' || c == 0x7f {
					m.fail(errBadCallID)
				}
			}
			if l.value == "" {
				m.fail(errBadCallID)
			}
		case CSeq:
			_, method, ok := parseCSeq(l.value)
			if !ok {
				m.fail(errBadCSeq)
			} else if m.request && method != m.method {
				m.fail(errCSeqMethod)
			}
		case MaxForwards:
			if number(l.value, 255) < 0 {
				m.fail(errBadMaxForwards)
			}
		}
	}
	for _, h := range [...]Header{ViaHeader, From, To, CallID, CSeq} {
		if !seen[h] {
			m.fail(errMissing[h])
		}
	}
}

// contentLength gives the length of the body: what Content-Length says, all
// that is there without one, -1 after an error.
func (m *Message) contentLength() int {
	v, ok := m.Value(ContentLength)
	if !ok {
		return len(m.body)
	}
	n := number(v, MaxSize)
	switch {
	case n < 0 && !allDigits(v):
		m.fail(errBadLength)
		return -1
	case n < 0 || n > len(m.body):
		m.fail(errLength)
		return -1
	}
	return n
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// Answerable says whether Response can make an answer that finds its way: m is
// a request other than ACK and has a Via whose sent-by can be read. It holds after Parse gave
// an error, too; a header that is missing is missing in the answer then.
func (m *Message) Answerable() bool {
	_, ok := m.TopVia()
	return m.request && m.method != "ACK" && ok
}
