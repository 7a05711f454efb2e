package sipmsg

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// torture gives what Parse must say about the messages of RFC 4475: status -1
// for those it passes. Where the RFC lets an element refuse or tolerate, the
// choice made here is noted.
var torture = map[string]int{
	// 3.1.1 valid messages
	"wsinv": -1, "intmeth": -1, "esc01": -1, "escnull": -1, "esc02": -1, "lwsdisp": -1, "longreq": -1,
	"dblreq": -1, "semiuri": -1, "transports": -1, "mpart01": -1, "unreason": -1, "noreason": -1,
	// 3.1.2 invalid messages
	"badinv01": 400, "clerr": 400, "ncl": 400, "scalar02": 400, "scalarlg": 0, "quotbal": 400,
	"ltgtruri": 400, "lwsruri": 400,
	"lwsstart":        400, // refused, 3.1.2.9 allows both
	"trws":            400, // refused, 3.1.2.10 allows both
	"escruri":         400, // refused, 3.1.2.11 allows both
	"baddate":         -1,  // Date is of no interest to a proxy
	"regbadct":        -1,  // Contact is the registrar's: ParseNameAddr refuses it
	"badaspec":        400, // refused, 3.1.2.14 allows both
	"baddn":           400, // refused, 3.1.2.15 allows both
	"baddn-blankline": 400,
	"badvers":         505, "mismatch01": 400, "mismatch02": 400, "bigcode": 0,
	// 3.2 to 3.4: transactions, applications, old versions
	"badbranch": -1, "insuf": 400, "unkscm": 416, "novelsc": 416, "unksm2": -1, "bext01": -1, "invut": -1,
	"regaut01": -1, "multi01": 400, "mcl01": 400, "bcast": -1, "zeromf": -1, "cparam01": -1, "cparam02": -1,
	"regescrt": -1, "sdp01": -1, "inv2543": -1,
}

func tortureMessage(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "rfc4475", name+".dat"))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestTortureMessages(t *testing.T) {
	files, err := filepath.Glob("testdata/rfc4475/*.dat")
	if err != nil || len(files) != len(torture) {
		t.Fatalf("%d files, %d expectations, %v", len(files), len(torture), err)
	}
	for name, want := range torture {
		t.Run(name, func(t *testing.T) {
			raw := tortureMessage(t, name)
			m, err := Parse(raw)
			if want >= 0 {
				var e *Error
				if !errors.As(err, &e) || e.Status != want {
					t.Fatalf("got %v, want status %d", err, want)
				}
				if m.Answerable() {
					checkAnswer(t, m, want)
				} else if want != 0 {
					t.Error("cannot be answered")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if name == "dblreq" {
				// A second request in the same datagram is not part of the first.
				raw = raw[:bytes.Index(raw, []byte("\r\n\r\n"))+4]
			}
			if !bytes.Equal(m.Bytes(), raw) {
				t.Errorf("Bytes are not what came")
			}
			// A copy that was edited and edited back is the same, line for line.
			c := m.Clone()
			c.Push(ViaHeader, "SIP/2.0/UDP 192.0.2.99;branch=z9hG4bKours")
			if via, ok := c.TopVia(); !ok || via.Host != "192.0.2.99" {
				t.Errorf("top Via after Push: %v", via)
			}
			c.Pop(ViaHeader)
			if got := c.Bytes(); !bytes.Equal(got, raw) {
				t.Errorf("after Push and Pop of a Via:\n%q\nwant\n%q", got, raw)
			}
		})
	}
}

func TestTortureMeanings(t *testing.T) {
	get := func(name string) *Message { return mustParse(t, tortureMessage(t, name)) }
	expect := func(what string, got, want any) {
		t.Helper()
		if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
			t.Errorf("%s: %q, want %q", what, g, w)
		}
	}

	m := get("wsinv")
	expect("From tag", m.FromTag(), "98asjd8")
	expect("To tag", m.ToTag(), "1918181833n")
	from, err := m.From()
	expect("From error", err, nil)
	expect("From display", from.Display, `J Rosenberg \"`)
	num, method := m.CSeq()
	expect("CSeq", fmt.Sprint(num, method), "9INVITE")
	mf, present := m.MaxForwards()
	expect("Max-Forwards", fmt.Sprint(mf, present), "68 true")
	var vias []string
	for e := range m.Elements(ViaHeader) {
		v, err := ParseVia(e)
		expect("Via error", err, nil)
		vias = append(vias, v.Transport+" "+v.SentBy()+" "+v.Branch())
	}
	expect("Vias", strings.Join(vias, "|"),
		"UDP 192.0.2.2:5060 390skdjuw|TCP spindle.example.com:5060 z9hG4bK9ikj8|UDP 192.168.255.111:5060 z9hG4bK30239")
	route, ok := m.TopRoute()
	expect("Route", fmt.Sprint(route.URI, ok), "sip:services.example.com;lr;unknownwith=value;unknown-no-valuetrue")
	v, _ := m.Value(Contact)
	contact, err := ParseNameAddr(v)
	expect("Contact error", err, nil)
	q, _ := contact.Params.Value("q")
	expect("Contact", contact.Display+" "+contact.URI+" "+q, `Quoted string "" sip:jdrosen@example.com 0.33`)
	for v := range m.Named("newfangledheader") {
		expect("folded value", v, "newfangled value continued newfangled value")
	}
	expect("body length", len(m.Body()), 150)

	m = get("intmeth")
	expect("method", m.Method(), "!interesting-Method0123456789_*+`.%indeed'~")
	_, method = m.CSeq()
	expect("CSeq method", method, m.Method())
	to, err := m.To()
	expect("To error", err, nil)
	expect("To display", to.Display, "BEL:\a NUL:\x00 DEL:\x7f")
	expect("From tag", m.FromTag(), "_token~1'+`*%!-.")

	m = get("esc01")
	uri, err := ParseURI(m.RequestURI())
	expect("Request-URI error", err, nil)
	expect("Request-URI user", uri.User, "sips%3Auser%40example.com")
	to, _ = m.To()
	uri, _ = ParseURI(to.URI)
	expect("To AOR", uri.AOR(), "sip:user@example.com")

	m = get("escnull")
	var aors []string
	for e := range m.Elements(Contact) {
		a, _ := ParseNameAddr(e)
		u, err := ParseURI(a.URI)
		expect("Contact error", err, nil)
		aors = append(aors, u.AOR())
	}
	expect("contacts", strings.Join(aors, " "), "sip:%00@host5.example.com sip:%00%00@host5.example.com")

	m = get("esc02")
	expect("method", m.Method(), "RE%47IST%45R")
	var contacts []string
	for e := range m.Elements(Contact) {
		contacts = append(contacts, e)
	}
	expect("contacts", strings.Join(contacts, " "), "<sip:alias1@host1.example.com> <sip:alias3@host3.example.com>")

	m = get("semiuri")
	uri, _ = ParseURI(m.RequestURI())
	expect("user", uri.User, "user;par=u%40example.net")

	m = get("longreq")
	n := 0
	for e := range m.Elements(ViaHeader) {
		if _, err := ParseVia(e); err == nil {
			n++
		}
	}
	expect("Vias", n, 34)

	m = get("transports")
	var transports []string
	for e := range m.Elements(ViaHeader) {
		v, _ := ParseVia(e)
		transports = append(transports, v.Transport)
	}
	expect("transports", strings.Join(transports, " "), "UDP SCTP TLS UNKNOWN TCP")

	m = get("regbadct")
	v, _ = m.Value(Contact)
	if _, err := ParseNameAddr(v); err == nil {
		t.Error("regbadct: contact accepted")
	}

	m = get("noreason")
	expect("response", fmt.Sprint(m.Status(), m.Reason()), "100")

	m = get("cparam01")
	v, _ = m.Value(Contact)
	contact, _ = ParseNameAddr(v)
	expect("header parameter", contact.Params.Has("unknownparam"), true)
	m = get("cparam02")
	v, _ = m.Value(Contact)
	contact, _ = ParseNameAddr(v)
	uri, _ = ParseURI(contact.URI)
	expect("URI parameter", fmt.Sprint(contact.Params.Has("unknownparam"), uri.Params.Has("unknownparam")), "false true")

	m = get("regescrt")
	v, _ = m.Value(Contact)
	contact, _ = ParseNameAddr(v)
	uri, _ = ParseURI(contact.URI)
	expect("URI headers", uri.Headers, "Route=%3Csip:sip.example.com%3E")
}
