package sipmsg

import (
	"bytes"
	"strings"
	"unsafe"
)

// FrameError says why a stream cannot be read on: nobody knows where the next
// message begins. The connection must be closed.
type FrameError struct {
	Status int    // status to answer before the close; 0: close in silence
	Reason string // reason phrase of that answer
	Head   []byte // the message so far, to be parsed for that answer; valid as Next's result
}

// Error gives the reason.
func (e *FrameError) Error() string { return "frame sip stream: " + e.Reason }

// Unit is what Framer.Next found.
type Unit uint8

// The units of a stream.
const (
	More    Unit = iota // nothing complete: more bytes must be pushed
	Whole               // a message
	Ping                // CRLFCRLF between messages (RFC 5626 §3.5.1): one CRLF is the answer
	Waiting             // as More, but bytes of an incomplete message are held
)

// Framer cuts a byte stream into messages (RFC 3261 §7.5, §18.3). The zero
// value begins a stream.
//
// It holds at most MaxSize bytes and what was pushed last, and takes memory
// for bytes that came, not for lengths that were announced. It finds the end of
// the header section and Content-Length as Parse does, so that both agree
// where a message ends. Between messages line breaks are ignored.
type Framer struct {
	in      []byte // bytes that were not returned yet
	owned   bool   // in is memory of the framer's own
	scanned int    // bytes of in without the end of a header section
	end     int    // length of the message whose header section is complete; 0: not known
	breaks  int    // of the CRLFCRLF that is under way between messages: bytes seen
	started bool   // the start line was looked at
	failed  error
}

// Push adds what was read. The framer uses b, unchanged, until Next returned
// More, Waiting or an error.
func (f *Framer) Push(b []byte) {
	if len(f.in) == 0 {
		f.in, f.owned = b, false
		return
	}
	if !f.owned {
		f.hold()
	}
	f.in = append(f.in, b...)
}

// Held gives how many bytes of memory an incomplete message takes.
func (f *Framer) Held() int {
	if f.owned {
		return cap(f.in)
	}
	return 0
}

// hold makes what is left the framer's own.
func (f *Framer) hold() {
	if len(f.in) == 0 {
		f.in, f.owned = nil, false
		return
	}
	if !f.owned {
		f.in, f.owned = bytes.Clone(f.in), true
	}
}

// Next returns the next unit of what was pushed. raw is the message, without
// line breaks before it; it is valid until the next Push. An error, always a
// *FrameError, is final.
func (f *Framer) Next() (u Unit, raw []byte, err error) {
	if f.failed != nil {
		return More, nil, f.failed
	}
	if !f.started {
		if f.skipBreaks() {
			return Ping, nil, nil
		}
		if len(f.in) == 0 {
			f.hold()
			return More, nil, nil
		}
		f.breaks = 0
	}
	if f.end == 0 {
		if err := f.head(); err != nil {
			f.failed = err
			return More, nil, err
		}
	}
	if f.end == 0 || len(f.in) < f.end {
		f.hold()
		return Waiting, nil, nil
	}
	raw = f.in[:f.end:f.end]
	// What follows is held, if it must be, without the memory of this one.
	f.in, f.owned = f.in[f.end:], false
	f.scanned, f.end, f.started = 0, 0, false
	return Whole, raw, nil
}

// skipBreaks drops line breaks and reports whether they completed CRLFCRLF.
func (f *Framer) skipBreaks() (ping bool) {
	for len(f.in) > 0 && (f.in[0] == '\r' || f.in[0] == '\n') {
		if f.in[0] == "\r\n\r\n"[f.breaks] {
			f.breaks++
		} else {
			f.breaks = 0
		}
		f.in = f.in[1:]
		if f.breaks == 4 {
			f.breaks = 0
			return true
		}
	}
	return false
}

// head looks for the end of the header section and sets end.
func (f *Framer) head() *FrameError {
	in := f.in[:min(len(f.in), MaxSize)]
	// The string shares the bytes and does not outlive this call.
	text := unsafe.String(unsafe.SliceData(in), len(in))
	if !f.started {
		first := bytes.IndexByte(in[f.scanned:], '\n')
		if class[in[0]]&tokenChar == 0 || first < 0 && len(f.in) > MaxSize {
			return &FrameError{Reason: errNotSIP.Reason}
		}
		if first < 0 {
			f.scanned = len(in)
			return nil
		}
		first += f.scanned
		var m Message
		if !m.parseStart(strings.TrimSuffix(text[:first], "\r")) {
			return &FrameError{Reason: errNotSIP.Reason}
		}
		f.started, f.scanned = true, first
	}
	for i := f.scanned; ; {
		n := bytes.IndexByte(in[i:], '\n')
		if n < 0 {
			f.scanned = len(in)
			break
		}
		i += n
		// in[i] ends a line; an empty line behind it ends the section.
		switch rest := in[i+1:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return &FrameError{Status: errLineEnd.Status, Reason: errLineEnd.Reason, Head: f.in[: i+2 : i+2]}
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return f.body(text, i+3)
		case len(rest) < 2:
			f.scanned = i
			if len(f.in) > MaxSize {
				return tooLarge(in)
			}
			return nil // the line break may be cut in two
		}
		i++
	}
	if len(f.in) > MaxSize {
		return tooLarge(in)
	}
	return nil
}

func tooLarge(head []byte) *FrameError {
	return &FrameError{Status: errTooLarge.Status, Reason: errTooLarge.Reason, Head: head}
}

// maxLength is the largest Content-Length that is believed to be one.
const maxLength = 1<<31 - 1

// body reads Content-Length from a header section of n bytes.
func (f *Framer) body(text string, n int) *FrameError {
	bad := func(reason string) *FrameError {
		return &FrameError{Status: 400, Reason: reason, Head: f.in[:n:n]}
	}
	length, found := 0, false
	s := text[:n]
	for {
		// The line after the next line break that no folding follows.
		i := 0
		for {
			k := strings.IndexByte(s[i:], '\n')
			if k < 0 {
				break
			}
			i += k + 1
			if i == len(s) || s[i] != ' ' && s[i] != '\t' {
				break
			}
		}
		if s = s[i:]; i == 0 || s == "" {
			break
		}
		if c := lower[s[0]]; c != 'c' && c != 'l' {
			continue
		}
		name := tokenLen(s)
		if HeaderNamed(s[:name]) != ContentLength {
			continue
		}
		value := s[name:]
		for value != "" && (value[0] == ' ' || value[0] == '\t') {
			value = value[1:]
		}
		if value == "" || value[0] != ':' {
			return bad(errHeaderLine.Reason)
		}
		if found {
			return bad(errTwice[ContentLength].Reason)
		}
		found = true
		if length = number(lineValue(value[1:]), maxLength); length < 0 {
			return bad(errBadLength.Reason)
		}
	}
	switch {
	case !found:
		return bad(errMissing[ContentLength].Reason)
	case length > MaxSize-n:
		return tooLarge(f.in[:n:n])
	}
	f.end = n + length
	return nil
}

// lineValue is the trimmed value that a header line, with lines folded into it,
// begins with.
func lineValue(s string) string {
	for i := 0; i < len(s); i++ {
		if s[i] == '\n' && (i+1 == len(s) || s[i+1] != ' ' && s[i+1] != '\t') {
			return trim(s[:i])
		}
	}
	return trim(s)
}
