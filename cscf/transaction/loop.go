package transaction

import (
	"strconv"
	"strings"

	"bellwether/cscf/sipmsg"
)

// Lengths of the parts of a branch behind the token: the hash of the upstream
// transaction, and what loops are found by.
const (
	hashSize = 16
	loopSize = 8
)

// loopPart is what a request is routed by, its Request-URI and Route, as the
// part of a branch that loops are found by (RFC 5393 §4.2.1): 8 lower-case
// letters and digits of FNV-1a. It needs no key: who makes two requests alike
// harms these two. The method is not in it, so the ACK of a non-2xx and a CANCEL have
// their INVITE's.
func loopPart(m *sipmsg.Message) string {
	h := uint64(14695981039346656037)
	add := func(s string) {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h *= 1099511628211 // a zero byte ends it
	}
	add(m.RequestURI())
	for route := range m.Elements(sipmsg.Route) {
		add(route)
	}
	h ^= h >> 32
	var text [loopSize]byte
	for i := range text {
		text[i] = alphabet[h>>(5*i)&31]
	}
	return string(text[:])
}

// looped reports whether a request was here before as it is now: one of its
// Vias is ours and tells that we received, or sent to a phone, a request with
// the same Request-URI and Route. One that comes back with others is a spiral,
// which is legal (RFC 5393 §4.2.2).
func (l *Layer) looped(m *sipmsg.Message) bool {
	if l.cfg.Token == "" {
		return false
	}
	now := ""
	for element := range m.Elements(sipmsg.ViaHeader) {
		if !strings.Contains(element, l.cfg.Token) {
			continue
		}
		via, err := sipmsg.ParseVia(element)
		if err != nil || !l.ours(via, Peer{}) {
			continue
		}
		parts := via.Branch()[len(cookie)+len(l.cfg.Token)+1:]
		if len(parts) < hashSize+loopSize {
			continue
		}
		if now == "" {
			now = loopPart(m)
		}
		received, sent := parts[hashSize:hashSize+loopSize], parts[hashSize+loopSize:]
		if strings.EqualFold(now, received) || strings.EqualFold(now, sent) {
			return true
		}
	}
	return false
}

// maxBreadth is the Max-Breadth of a request that has none, and the highest
// that we grant (RFC 5393 §5.3.3).
const maxBreadth = 60

// breadth is the number of branches that a request may have at a time, here
// and downstream together. A malformed one counts as 0.
func breadth(m *sipmsg.Message) int {
	v, ok := m.Value(sipmsg.MaxBreadth)
	if !ok {
		return maxBreadth
	}
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil {
		return 0
	}
	return int(min(n, maxBreadth))
}

// looseNextHop puts the topmost Route into the Request-URI where its owner is
// a strict router, and keeps the Request-URI as the last Route (RFC 3261 §16.6
// step 6).
func looseNextHop(m *sipmsg.Message) {
	top, ok := m.TopRoute()
	if !ok {
		return
	}
	if u, err := sipmsg.ParseURI(top.URI); err != nil || u.Params.Has("lr") {
		return
	}
	m.Pop(sipmsg.Route)
	m.Add(sipmsg.Route, "<"+m.RequestURI()+">")
	m.SetRequestURI(top.URI)
}
