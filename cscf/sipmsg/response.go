package sipmsg

import "strconv"

// Response makes the answer to a request (RFC 3261 §8.2.6): all Via, From, To,
// Call-ID and CSeq as they are now in m, and Timestamp in a 100. An empty
// reason stands for the standard phrase. If To has no tag it gets toTag, unless
// that is empty. The answer has no body and shares the raw bytes of m.
func (m *Message) Response(status int, reason, toTag string) *Message {
	if reason == "" {
		reason = ReasonPhrase(status)
	}
	r := &Message{edited: true, status: status, reason: oneLine(reason), lines: make([]line, 0, 16)}
	var seen [headerCount]bool
	for _, l := range m.lines {
		switch l.header {
		case ViaHeader:
		case From, To, CallID, CSeq:
			if seen[l.header] {
				continue
			}
			seen[l.header] = true
			if l.header == To && toTag != "" {
				if a, err := scanNameAddr(l.value); err == nil && !a.Params.Has("tag") {
					l.value, l.text = oneLine(l.value+";tag="+toTag), ""
				}
			}
		case Timestamp:
			if status != 100 {
				continue
			}
		default:
			continue
		}
		r.lines = append(r.lines, l)
	}
	r.Set(ContentLength, "0")
	return r
}

var phrases = map[int]string{
	100: "Trying", 180: "Ringing", 181: "Call Is Being Forwarded", 182: "Queued", 183: "Session Progress",
	199: "Early Dialog Terminated",
	200: "OK", 202: "Accepted", 204: "No Notification",
	300: "Multiple Choices", 301: "Moved Permanently", 302: "Moved Temporarily", 305: "Use Proxy", 380: "Alternative Service",
	400: "Bad Request", 401: "Unauthorized", 402: "Payment Required", 403: "Forbidden", 404: "Not Found",
	405: "Method Not Allowed", 406: "Not Acceptable", 407: "Proxy Authentication Required", 408: "Request Timeout",
	410: "Gone", 412: "Conditional Request Failed", 413: "Request Entity Too Large", 414: "Request-URI Too Long",
	415: "Unsupported Media Type", 416: "Unsupported URI Scheme", 417: "Unknown Resource-Priority", 420: "Bad Extension",
	421: "Extension Required", 422: "Session Interval Too Small", 423: "Interval Too Brief", 424: "Bad Location Information",
	428: "Use Identity Header", 429: "Provide Referrer Identity", 430: "Flow Failed", 433: "Anonymity Disallowed",
	436: "Bad Identity-Info", 437: "Unsupported Certificate", 438: "Invalid Identity Header", 439: "First Hop Lacks Outbound Support",
	440: "Max-Breadth Exceeded", 469: "Bad Info Package", 470: "Consent Needed",
	480: "Temporarily Unavailable", 481: "Call/Transaction Does Not Exist", 482: "Loop Detected", 483: "Too Many Hops",
	484: "Address Incomplete", 485: "Ambiguous", 486: "Busy Here", 487: "Request Terminated", 488: "Not Acceptable Here",
	489: "Bad Event", 491: "Request Pending", 493: "Undecipherable", 494: "Security Agreement Required",
	500: "Server Internal Error", 501: "Not Implemented", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Server Time-out",
	505: "Version Not Supported", 513: "Message Too Large", 555: "Push Notification Service Not Supported", 580: "Precondition Failure",
	600: "Busy Everywhere", 603: "Decline", 604: "Does Not Exist Anywhere", 606: "Not Acceptable", 607: "Unwanted", 608: "Rejected",
}

// ReasonPhrase gives the standard phrase of a status (IANA SIP parameters), or
// the number where there is none.
func ReasonPhrase(status int) string {
	if p := phrases[status]; p != "" {
		return p
	}
	return strconv.Itoa(status)
}
