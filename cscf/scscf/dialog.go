package scscf

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/ha"
)

// The S-CSCF is in the route set of every dialog of its users, and remembers
// the dialogs: whoever sends a request with an invented To tag, or with the From
// of somebody else, reaches nobody. What one request began is one dialogSet: a
// dialog for each To tag that answered it, with the uses of RFC 5057: one
// session, and subscriptions.

// Limits of what is remembered.
const (
	dialogLife  = 12 * time.Hour   // a session that nothing was heard of
	answerLife  = 5 * time.Minute  // what waits for an answer and heard none, or since the last 1xx: longer than Timer C
	lingerLife  = 32 * time.Second // after the end, for repeats and for what crossed it
	longestSub  = 600000 * time.Second
	usualSub    = 2 * time.Hour // of a SUBSCRIBE that asks for no interval
	referSub    = 10 * time.Minute
	maxTags     = 16  // dialogs of one request
	maxCallText = 256 // bytes kept of identities and Call-ID
	sweepPause  = time.Second
)

// Why a request is in no dialog of ours.
var (
	errNoDialog = errors.New("there is no such dialog")
	errStranger = errors.New("sender is no party of the dialog")
	errTooMany  = errors.New("too many dialogs")
)

// hash stands for text of any length that somebody else chose.
type hash [16]byte

func hashOf(callID, tag string) hash {
	sum := sha256.Sum256([]byte(callID + "\x00" + tag))
	return hash(sum[:16])
}

const dialogPrefix = "dialog/"

// dialogKey names a set in the store.
func dialogKey(k hash) string { return dialogPrefix + hex.EncodeToString(k[:]) }

// dialog is one of a set: what the To tag that answered has to do with it.
type dialog struct {
	Tag       hash      `cbor:"1,keyasint"`
	Confirmed bool      `cbor:"2,keyasint,omitempty"` // its session is
	Ended     bool      `cbor:"3,keyasint,omitempty"` // its session had its BYE
	Until     time.Time `cbor:"4,keyasint"`           // of its subscriptions, and of what comes late
}

// dialogSet is what one INVITE, SUBSCRIBE or REFER began. Its key is the hash
// of Call-ID and From tag.
type dialogSet struct {
	CallID  string            `cbor:"1,keyasint"`
	From    string            `cbor:"2,keyasint"` // URI of the one who began
	To      string            `cbor:"3,keyasint"` // URI of To
	Called  string            `cbor:"4,keyasint"` // Request-URI
	Halves  map[string]string `cbor:"5,keyasint"` // of its session: the state of each half that is here
	Started time.Time         `cbor:"6,keyasint"`
	Heard   time.Time         `cbor:"7,keyasint"`           // last request inside the session, to the hour; before its 2xx, last 1xx
	Open    time.Time         `cbor:"8,keyasint"`           // until then a NOTIFY may add a dialog (RFC 6665 §4.4.1)
	Sub     time.Duration     `cbor:"9,keyasint,omitempty"` // how long a subscription that it begins may last
	Dialogs []dialog          `cbor:"10,keyasint"`
	Owner   string            `cbor:"11,keyasint,omitempty"` // IMPI of the one who began, if this group serves it
	By      string            `cbor:"12,keyasint,omitempty"` // identity that was asserted of the one who began
	Callee  string            `cbor:"13,keyasint,omitempty"` // IMPI of the one who was called, if this group serves it

	PCSCF map[string]state.GroupID `cbor:"14,keyasint,omitempty"` // of the phone of each half that is here
}

// dialogs are the sets of a group.
type dialogs struct {
	c     *CSCF
	mu    sync.Mutex
	sets  map[hash]*dialogSet
	owned map[string]int // sets by Owner
	calls int            // sets with a session
	swept time.Time      // when what ended was last looked for
}

func newDialogs(c *CSCF) *dialogs {
	return &dialogs{c: c, sets: make(map[hash]*dialogSet), owned: make(map[string]int)}
}

func text(s string) string {
	if len(s) > maxCallText {
		s = s[:maxCallText]
	}
	return strings.ToValidUTF8(strings.Clone(s), "?")
}

// ends is when nothing of a set is left.
func (e *dialogSet) ends() time.Time {
	end := e.Open
	switch {
	case len(e.Halves) == 0:
	case e.confirmed():
		end = later(end, e.Heard.Add(dialogLife))
	default:
		end = later(end, e.Heard.Add(answerLife))
	}
	for i := range e.Dialogs {
		end = later(end, e.Dialogs[i].Until)
	}
	return end
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// find returns the dialog of a To tag.
func (e *dialogSet) find(tag hash) *dialog {
	if i := slices.IndexFunc(e.Dialogs, func(d dialog) bool { return d.Tag == tag }); i >= 0 {
		return &e.Dialogs[i]
	}
	return nil
}

// add is find that makes the dialog if there is room.
func (e *dialogSet) add(tag hash) (d *dialog, added bool) {
	if d := e.find(tag); d != nil {
		return d, false
	}
	if len(e.Dialogs) >= maxTags {
		return nil, false
	}
	e.Dialogs = append(e.Dialogs, dialog{Tag: tag})
	return &e.Dialogs[len(e.Dialogs)-1], true
}

// lives reports whether requests inside a dialog may pass: while its INVITE
// has no final response, while it is confirmed, while a subscription lasts.
func (e *dialogSet) lives(d *dialog, now time.Time) bool {
	return d.Confirmed || len(e.Halves) > 0 && !d.Ended || now.Before(d.Until)
}

// confirmed reports whether a set has a session that is neither early nor over.
func (e *dialogSet) confirmed() bool {
	return slices.ContainsFunc(e.Dialogs, func(d dialog) bool { return d.Confirmed })
}

// keep puts a set into the table.
func (l *dialogs) keep(k hash, e *dialogSet) {
	l.sets[k] = e
	l.calls += min(len(e.Halves), 1)
	if e.Owner != "" {
		l.owned[e.Owner]++
	}
}

// forget takes a set out of the table.
func (l *dialogs) forget(k hash, e *dialogSet) {
	delete(l.sets, k)
	l.calls -= min(len(e.Halves), 1)
	if l.owned[e.Owner]--; l.owned[e.Owner] <= 0 {
		delete(l.owned, e.Owner)
	}
}

// begin remembers a request that may form dialogs, before it is sent on; user is
// the IMPI of the one whom the half serves. The error is errTooMany if there are
// as many already as can be remembered, in all or of one who begins them, and
// errStranger if somebody else began one of the same Call-ID and tag, which is
// no accident.
func (l *dialogs) begin(m *sipmsg.Message, half, user string, now time.Time) (hash, error) {
	owner := ""
	if half == Originating {
		owner = user
	}
	by, _ := asserted(m)
	k := hashOf(m.CallID(), m.FromTag())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweep(now)
	e := l.sets[k]
	if e != nil && e.By != text(by) {
		return k, errStranger
	}
	if e == nil {
		if len(l.sets) >= l.c.cfg.MaxDialogs || owner != "" && l.owned[owner] >= l.c.cfg.MaxOwned {
			return k, errTooMany
		}
		from, _ := m.From()
		to, _ := m.To()
		e = &dialogSet{
			CallID: text(m.CallID()), From: text(from.URI), To: text(to.URI), Called: text(m.RequestURI()),
			Halves: make(map[string]string), Started: now, Heard: now, Owner: strings.Clone(owner), By: text(by),
		}
		l.keep(k, e)
	}
	if half == Terminating {
		e.Callee = strings.Clone(user)
	}
	switch m.Method() {
	case "INVITE":
		if e.Halves[half] == "" {
			l.half(e, half, Trying)
		}
	case "REFER":
		e.Sub, e.Open = max(e.Sub, referSub), now.Add(answerLife)
	default:
		e.Sub, e.Open = max(e.Sub, interval(m)), now.Add(answerLife)
	}
	l.settle(k, e, now)
	return k, nil
}

// interval is how long the subscription that a SUBSCRIBE asks for may last.
func interval(m *sipmsg.Message) time.Duration {
	v, ok := m.Value(sipmsg.Expires)
	if !ok {
		return usualSub
	}
	return min(lifetime(v, usualSub), longestSub)
}

// half sets the state of a half of a session, "" for none.
func (l *dialogs) half(e *dialogSet, half, state string) {
	before := len(e.Halves)
	if state == "" {
		delete(e.Halves, half)
	} else {
		e.Halves[half] = state
	}
	l.calls += min(len(e.Halves), 1) - min(before, 1)
}

// heard follows the responses to a request that may form dialogs. half "" is
// every half: the response of a transaction that was lost.
func (l *dialogs) heard(k hash, half string, m *sipmsg.Message, now time.Time) {
	status := m.Status()
	if status <= 100 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.sets[k]
	if e == nil {
		return
	}
	_, method := m.CSeq()
	changed := false
	if tag := m.ToTag(); tag != "" && status < 300 {
		var d *dialog
		if d, changed = e.add(hashOf("", tag)); d != nil {
			switch {
			case method != "INVITE" && status >= 200:
				d.Until = later(d.Until, now.Add(e.Sub+lingerLife))
				changed = true
			case method == "INVITE" && status >= 200 && !d.Confirmed && !d.Ended:
				d.Confirmed, changed = true, true
				e.Heard = now
			}
		}
	}
	if method == "INVITE" && status < 200 && !e.confirmed() {
		changed = changed || now.Sub(e.Heard) >= time.Minute // what is stored may be that old
		if changed {
			e.Heard = now
		}
	}
	for of, state := range e.Halves {
		if half != "" && half != of || method != "INVITE" {
			continue
		}
		switch {
		case status < 180:
		case status < 200 && state == Trying:
			l.half(e, of, Ringing)
		case status < 200:
		case status < 300 && state != Confirmed:
			l.half(e, of, Confirmed)
			changed = true
		case status >= 300 && state != Confirmed:
			l.half(e, of, "")
			changed = true
		}
	}
	if method != "INVITE" && status >= 300 && len(e.Dialogs) == 0 {
		e.Open, changed = time.Time{}, true
	}
	if changed {
		l.settle(k, e, now)
	}
}

// dropped takes a half off whose request was answered here.
func (l *dialogs) dropped(k hash, half string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.sets[k]
	if e == nil || e.confirmed() {
		return
	}
	if l.half(e, half, ""); len(e.Dialogs) == 0 {
		e.Open = time.Time{}
	}
	l.settle(k, e, now)
}

// inside takes a request inside a dialog, which it may end; sender is the
// identity that a P-CSCF asserts of its sender, "" if that is for another S-CSCF
// to know. The error is errNoDialog if we know none, errStranger if the sender
// is not in it, or calls himself something else than when the dialog began (RFC
// 3261 §12.2.1.1). A NOTIFY forms a dialog if it comes before the answer to its SUBSCRIBE, or from
// another fork (RFC 6665 §4.4.1).
func (l *dialogs) inside(m *sipmsg.Message, sender string, now time.Time) error {
	from, err := m.From()
	if err != nil {
		return errNoDialog
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k, e, tag, answerer := l.of(m, now)
	if e == nil {
		return errNoDialog
	}
	party, user := e.From, e.Owner
	if answerer {
		party, user = e.To, e.Callee
	}
	if sender != "" && !l.c.users.owns(user, sender) {
		return errStranger
	}
	d := e.find(tag)
	added := false
	if d == nil && m.Method() == "NOTIFY" && answerer && now.Before(e.Open) {
		if d, added = e.add(tag); added {
			d.Until = now.Add(e.Sub + lingerLife)
		}
	}
	if d == nil || !e.lives(d, now) {
		return errNoDialog
	}
	if !sameParty(party, from.URI) {
		return errStranger
	}
	if l.use(e, d, m, now) || added {
		l.settle(k, e, now)
	}
	return nil
}

// of finds the set of a request inside a dialog, the tag of the side that
// answered, and whether that side sends. Where both tags began something, it is
// the set that has the dialog.
func (l *dialogs) of(m *sipmsg.Message, now time.Time) (k hash, e *dialogSet, tag hash, answerer bool) {
	callID, from, to := m.CallID(), m.FromTag(), m.ToTag()
	began, answered := hashOf(callID, from), hashOf(callID, to)
	first, second := l.sets[began], l.sets[answered]
	if second != nil && now.Before(second.ends()) && (first == nil || first.find(hashOf("", to)) == nil) {
		return answered, second, hashOf("", from), true
	}
	if first != nil && now.Before(first.ends()) {
		return began, first, hashOf("", to), false
	}
	return began, nil, hash{}, false
}

// sameParty compares the URI of a From header with what was kept of another.
func sameParty(kept, uri string) bool {
	if kept == text(uri) {
		return true
	}
	u, err := sipmsg.ParseURI(kept)
	if err != nil {
		return false
	}
	v, err := sipmsg.ParseURI(uri)
	return err == nil && u.Equal(v)
}

// use notes what a request does to its dialog; false if that is nothing.
// Subscriptions last as long as they were asked for, or as a NOTIFY says.
func (l *dialogs) use(e *dialogSet, d *dialog, m *sipmsg.Message, now time.Time) bool {
	until := d.Until
	switch m.Method() {
	case "BYE":
		if !d.Confirmed && d.Ended {
			return false
		}
		d.Confirmed, d.Ended = false, true
		d.Until = later(d.Until, now.Add(lingerLife))
		if !e.confirmed() {
			for half, state := range e.Halves {
				if state == Confirmed {
					l.half(e, half, "")
				}
			}
		}
		return true
	case "SUBSCRIBE":
		d.Until = later(d.Until, now.Add(interval(m)+lingerLife))
	case "REFER":
		d.Until = later(d.Until, now.Add(referSub))
	case "NOTIFY":
		v := ""
		for v = range m.Named("Subscription-State") {
			break
		}
		name, params, _ := strings.Cut(v, ";")
		if strings.EqualFold(strings.TrimSpace(name), "terminated") {
			d.Until = now.Add(lingerLife)
		} else if left, ok := sipmsg.Params(";" + params).Value("expires"); ok {
			if n, err := strconv.ParseUint(left, 10, 32); err == nil {
				d.Until = later(d.Until, now.Add(min(time.Duration(n)*time.Second, longestSub)+lingerLife))
			}
		}
	}
	if len(e.Halves) > 0 && now.Sub(e.Heard) > time.Hour {
		e.Heard = now
		return true
	}
	return !until.Equal(d.Until)
}

// settle makes the store hold what the table holds of a set, and drops one of
// which nothing is left. Nobody waits for the disk: what is lost with it are
// the dialogs of the last milliseconds.
func (l *dialogs) settle(k hash, e *dialogSet, now time.Time) {
	end := e.ends()
	if !now.Before(end) {
		l.forget(k, e)
	}
	if !now.Add(lingerLife).Before(end) { // a restart may lose what only lingers
		l.c.store.Delete(l.c.cfg.Group, dialogKey(k), nil)
		return
	}
	value, err := encoding.Marshal(dialogRecord{V: recordVersion, Set: *e})
	if err != nil {
		return
	}
	l.c.store.Put(l.c.cfg.Group, dialogKey(k), value, end, nil)
}

// sweep forgets the sets of which nothing is left, at most once a second: it
// looks at all of them.
func (l *dialogs) sweep(now time.Time) {
	if now.Sub(l.swept) < sweepPause {
		return
	}
	l.swept = now
	for k, e := range l.sets {
		if !now.Before(e.ends()) {
			l.forget(k, e)
		}
	}
}

type dialogRecord struct {
	V   int       `cbor:"0,keyasint"`
	Set dialogSet `cbor:"1,keyasint"`
}

// load takes a set from the store. A session that was ringing has lost its
// transaction; its phone may still answer.
func (l *dialogs) load(r ha.Record, now time.Time) error {
	var rec dialogRecord
	if err := cbor.Unmarshal(r.Value, &rec); err != nil {
		return fmt.Errorf("decode dialogs: %w", err)
	}
	raw, err := hex.DecodeString(strings.TrimPrefix(r.Key, dialogPrefix))
	if err != nil || len(raw) != len(hash{}) || rec.V != recordVersion {
		return fmt.Errorf("decode dialogs: version %d under key %q is not known", rec.V, r.Key)
	}
	e, k := &rec.Set, hash(raw)
	if e.Halves == nil {
		e.Halves = make(map[string]string)
	}
	if len(e.Halves) > 0 && !e.confirmed() {
		e.Heard = now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !now.Before(e.ends()) || len(e.Dialogs) > maxTags || len(l.sets) >= l.c.cfg.MaxDialogs || l.sets[k] != nil {
		return nil
	}
	l.keep(k, e)
	return nil
}
