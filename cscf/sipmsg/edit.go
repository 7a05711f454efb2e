package sipmsg

import (
	"slices"
	"strconv"
	"strings"
)

// NewRequest makes a request with nothing but its start line and
// Content-Length: 0.
func NewRequest(method, uri string) *Message {
	m := &Message{edited: true, request: true, method: method, lines: make([]line, 0, 16)}
	m.SetRequestURI(uri)
	m.Set(ContentLength, "0")
	return m
}

// oneLine makes text fit for a header line: no line break can get in.
func oneLine(s string) string {
	s = trim(s)
	if strings.IndexByte(s, '\r') < 0 && strings.IndexByte(s, '\n') < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r == '\r' || r == '\n' {
			return ' '
		}
		return r
	}, s)
}

func newLine(h Header, value string) line {
	return line{header: h, name: h.String(), value: oneLine(value)}
}

// edit marks the message as edited; false for a header without a name.
func (m *Message) edit(h Header) bool {
	if h == OtherHeader || h >= headerCount {
		return false
	}
	m.edited = true
	return true
}

// end gives the place of a new last line. In a message built here
// Content-Length stays behind it.
func (m *Message) end() int {
	n := len(m.lines)
	if m.raw == nil && n > 0 && m.lines[n-1].header == ContentLength {
		n--
	}
	return n
}

// SetRequestURI retargets a request. White space and line breaks in uri are
// left out.
func (m *Message) SetRequestURI(uri string) {
	if strings.ContainsAny(uri, " \t\r\n") {
		uri = strings.Map(func(r rune) rune {
			if r < 0x80 && isSpace(byte(r)) {
				return -1
			}
			return r
		}, uri)
	}
	m.uri, m.start, m.edited = uri, "", true
}

// Set makes value the only line of h, in the place of the first one, else at
// the end of the headers. As in all edits, line breaks in value become spaces,
// and OtherHeader is ignored.
func (m *Message) Set(h Header, value string) {
	if !m.edit(h) {
		return
	}
	i := m.find(h, 0)
	if i < 0 {
		m.lines = slices.Insert(m.lines, m.end(), newLine(h, value))
		return
	}
	m.lines[i] = newLine(h, value)
	rest := m.lines[i+1:]
	rest = slices.DeleteFunc(rest, func(l line) bool { return l.header == h })
	m.lines = m.lines[:i+1+len(rest)]
}

// Add writes a new line after the last one of h, else at the end of the
// headers.
func (m *Message) Add(h Header, value string) {
	if !m.edit(h) {
		return
	}
	at := m.end()
	for i := len(m.lines) - 1; i >= 0; i-- {
		if m.lines[i].header == h {
			at = i + 1
			break
		}
	}
	m.lines = slices.Insert(m.lines, at, newLine(h, value))
}

// AddNamed writes a new line at the end of the headers. A name that is no
// token is ignored.
func (m *Message) AddNamed(name, value string) {
	if !all(name, tokenChar) {
		return
	}
	if h := HeaderNamed(name); h != OtherHeader {
		m.Add(h, value)
		return
	}
	m.edited = true
	m.lines = slices.Insert(m.lines, m.end(), line{name: name, value: oneLine(value)})
}

// Push writes a new line before the first one of h, else directly after the
// start line.
func (m *Message) Push(h Header, value string) {
	if m.edit(h) {
		m.lines = slices.Insert(m.lines, max(m.find(h, 0), 0), newLine(h, value))
	}
}

// Pop removes the first element of h; false if there is none.
func (m *Message) Pop(h Header) bool {
	i, _, rest := m.top(h)
	if i < 0 || !m.edit(h) {
		return false
	}
	if next, _ := firstElement(rest); next == "" {
		m.lines = slices.Delete(m.lines, i, i+1)
	} else {
		m.lines[i].value, m.lines[i].text = trim(rest), ""
	}
	return true
}

// ReplaceTop puts value in the place of the first element of h; false if there
// is none.
func (m *Message) ReplaceTop(h Header, value string) bool {
	i, _, rest := m.top(h)
	if i < 0 || !m.edit(h) {
		return false
	}
	value = oneLine(value)
	if next, _ := firstElement(rest); next != "" {
		value += ", " + trim(rest)
	}
	m.lines[i].value, m.lines[i].text = value, ""
	return true
}

// Remove deletes every line of h, in any letter case or compact form, and
// gives their number.
func (m *Message) Remove(h Header) int {
	if m.find(h, 0) < 0 || !m.edit(h) {
		return 0
	}
	return m.remove(func(l line) bool { return l.header == h })
}

// RemoveNamed is Remove for any name.
func (m *Message) RemoveNamed(name string) int {
	if h := HeaderNamed(name); h != OtherHeader {
		return m.Remove(h)
	}
	return m.remove(func(l line) bool { return l.header == OtherHeader && equalFold(l.name, name) })
}

func (m *Message) remove(match func(line) bool) int {
	n := len(m.lines)
	m.lines = slices.DeleteFunc(m.lines, match)
	n -= len(m.lines)
	if n > 0 {
		m.edited = true
	}
	return n
}

// SetBody replaces the body and sets Content-Type and Content-Length. With an
// empty contentType there is no Content-Type afterwards. The message keeps
// body.
func (m *Message) SetBody(contentType string, body []byte) {
	m.body = body
	if contentType == "" {
		m.Remove(ContentType)
	} else {
		m.Set(ContentType, contentType)
	}
	m.Set(ContentLength, strconv.Itoa(len(body)))
}

// Bytes gives the message for the wire. Unless something was edited these are
// the bytes that were parsed, not a copy.
func (m *Message) Bytes() []byte {
	if !m.edited {
		return m.raw
	}
	return m.Append(nil)
}

// Append writes the message behind dst.
func (m *Message) Append(dst []byte) []byte {
	if !m.edited {
		return append(dst, m.raw...)
	}
	size := len(m.start) + len(m.method) + len(m.uri) + len(m.reason) + 16 + len(m.body)
	for i := range m.lines {
		l := &m.lines[i]
		size += max(len(l.text), len(l.name)+len(l.value)+4)
	}
	dst = slices.Grow(dst, size)
	switch {
	case m.start != "":
		dst = append(dst, m.start...)
	case m.request:
		dst = append(dst, m.method...)
		dst = append(dst, ' ')
		dst = append(dst, m.uri...)
		dst = append(dst, " SIP/2.0\r\n"...)
	default:
		dst = append(dst, "SIP/2.0 "...)
		dst = strconv.AppendInt(dst, int64(m.status), 10)
		dst = append(dst, ' ')
		dst = append(dst, m.reason...)
		dst = append(dst, "\r\n"...)
	}
	for i := range m.lines {
		l := &m.lines[i]
		if l.text != "" {
			dst = append(dst, l.text...)
			continue
		}
		dst = append(dst, l.name...)
		dst = append(dst, ": "...)
		dst = append(dst, l.value...)
		dst = append(dst, "\r\n"...)
	}
	dst = append(dst, "\r\n"...)
	return append(dst, m.body...)
}

// Clone gives a message that can be edited on its own. Both share the raw
// bytes.
func (m *Message) Clone() *Message {
	c := *m
	c.lines = make([]line, len(m.lines), len(m.lines)+8)
	copy(c.lines, m.lines)
	return &c
}
