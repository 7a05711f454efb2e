package sipmsg

import "iter"

// Message is a SIP request or response. The zero value is ready for Parse.
type Message struct {
	raw    []byte // the message as it came; nil if it was built here
	edited bool   // raw is no longer what Append writes

	request bool
	method  string
	uri     string
	status  int
	reason  string

	start string // start line with its CRLF; "" = write it from the fields
	lines []line
	body  []byte

	err *Error // first thing that Parse found wrong
}

// line is one header line.
type line struct {
	header Header
	name   string // as the sender wrote it
	value  string // trimmed and unfolded
	text   string // as it came, with its CRLF; "" = write it from name and value
}

// IsRequest tells requests from responses.
func (m *Message) IsRequest() bool { return m.request }

// Method gives a request's method, "" in a response. Methods are
// case-sensitive (RFC 3261 §7.1).
func (m *Message) Method() string { return m.method }

// RequestURI gives a request's target as written, "" in a response.
func (m *Message) RequestURI() string { return m.uri }

// Status gives a response's status code, 0 in a request.
func (m *Message) Status() int { return m.status }

// Reason gives a response's phrase; it may be empty.
func (m *Message) Reason() string { return m.reason }

// Body gives the body; it must not be changed.
func (m *Message) Body() []byte { return m.body }

// find gives the index of the first line of h at or after i, -1 if there is
// none.
func (m *Message) find(h Header, i int) int {
	for ; i < len(m.lines); i++ {
		if m.lines[i].header == h {
			return i
		}
	}
	return -1
}

// Value gives the value of the first line of h.
func (m *Message) Value(h Header) (string, bool) {
	if i := m.find(h, 0); i >= 0 {
		return m.lines[i].value, true
	}
	return "", false
}

// Values gives the values of all lines of h, in order. The message must not be
// edited meanwhile.
func (m *Message) Values(h Header) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := m.find(h, 0); i >= 0; i = m.find(h, i+1) {
			if !yield(m.lines[i].value) {
				return
			}
		}
	}
}

// Elements gives the comma-separated elements of all lines of h, in order. A
// header that is no list, such as Authorization or Date, has one element a
// line. The message must not be edited meanwhile.
func (m *Message) Elements(h Header) iter.Seq[string] {
	return func(yield func(string) bool) {
		for value := range m.Values(h) {
			for value != "" {
				var element string
				if element, value = h.first(value); element == "" {
					break
				}
				if !yield(element) {
					return
				}
			}
		}
	}
}

// first is firstElement where h is a list.
func (h Header) first(value string) (element, rest string) {
	if h < headerCount && headerTable[h].whole {
		return value, ""
	}
	return firstElement(value)
}

// Named gives the values of all headers of a name, in any letter case or
// compact form. The message must not be edited meanwhile.
func (m *Message) Named(name string) iter.Seq[string] {
	h := HeaderNamed(name)
	if h != OtherHeader {
		return m.Values(h)
	}
	return func(yield func(string) bool) {
		for i := m.find(h, 0); i >= 0; i = m.find(h, i+1) {
			if equalFold(m.lines[i].name, name) && !yield(m.lines[i].value) {
				return
			}
		}
	}
}

// Headers gives names as written and values of all header lines, in order. The
// message must not be edited meanwhile.
func (m *Message) Headers() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, l := range m.lines {
			if !yield(l.name, l.value) {
				return
			}
		}
	}
}

// top gives the first element of h and the line it is in, -1 if there is none.
func (m *Message) top(h Header) (i int, element, rest string) {
	for i = m.find(h, 0); i >= 0; i = m.find(h, i+1) {
		if element, rest = h.first(m.lines[i].value); element != "" {
			return i, element, rest
		}
	}
	return -1, "", ""
}

// CallID gives the Call-ID, "" if there is none.
func (m *Message) CallID() string {
	v, _ := m.Value(CallID)
	return v
}

// FromTag gives From's tag, "" if there is none.
func (m *Message) FromTag() string { return m.tag(From) }

// ToTag gives To's tag, "" if there is none.
func (m *Message) ToTag() string { return m.tag(To) }

func (m *Message) tag(h Header) string {
	v, _ := m.Value(h)
	a, err := scanNameAddr(v)
	if err != nil {
		return ""
	}
	return a.Tag()
}

// CSeq gives the sequence number, below 2³¹, and method of CSeq; zeros if it is
// missing or malformed.
func (m *Message) CSeq() (num uint32, method string) {
	v, _ := m.Value(CSeq)
	num, method, _ = parseCSeq(v)
	return num, method
}

func parseCSeq(s string) (num uint32, method string, ok bool) {
	i := 0
	for i < len(s) && !isSpace(s[i]) {
		i++
	}
	n := number(s[:i], 1<<31-1)
	method = trim(s[i:])
	if n < 0 || !all(method, tokenChar) {
		return 0, "", false
	}
	return uint32(n), method, true
}

// From reads the From header.
func (m *Message) From() (NameAddr, error) { return m.nameAddr(From) }

// To reads the To header.
func (m *Message) To() (NameAddr, error) { return m.nameAddr(To) }

func (m *Message) nameAddr(h Header) (NameAddr, error) {
	v, _ := m.Value(h)
	return ParseNameAddr(v)
}

// TopVia reads the first Via; false if there is none or it is malformed.
func (m *Message) TopVia() (Via, bool) {
	i, element, _ := m.top(ViaHeader)
	if i < 0 {
		return Via{}, false
	}
	v, err := ParseVia(element)
	return v, err == nil
}

// TopRoute reads the first Route; false if there is none or it is malformed.
func (m *Message) TopRoute() (NameAddr, bool) {
	i, element, _ := m.top(Route)
	if i < 0 {
		return NameAddr{}, false
	}
	a, err := ParseNameAddr(element)
	return a, err == nil
}

// MaxForwards gives the hops left, 0 to 255, and whether the header is there.
// A malformed one counts as 0.
func (m *Message) MaxForwards() (n int, present bool) {
	v, ok := m.Value(MaxForwards)
	return max(number(v, 255), 0), ok
}
