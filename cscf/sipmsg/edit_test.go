package sipmsg

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// headersOf prints the header section of a message.
func headersOf(m *Message) string {
	raw := m.Bytes()
	start := bytes.Index(raw, []byte("\r\n")) + 2
	end := bytes.Index(raw, []byte("\r\n\r\n")) + 2
	return strings.ReplaceAll(string(raw[start:end]), "\r\n", "\n")
}

func TestEditsTouchOnlyTheirLines(t *testing.T) {
	const head = "INVITE sip:bob@example.com SIP/2.0\n"
	const via = "via  :SIP / 2.0/UDP a ;branch=1 , SIP/2.0/TCP b;branch=\n 2\n"
	const rest = "From:<sip:a@b>;tag=1\n" +
		"t: <sip:b@c>\n" +
		"Call-ID: x\n" +
		"CSEQ: 1 INVITE\n" +
		"p-asserted-identity \t: <sip:x@y>\n" +
		"Route: <sip:r1;lr>\n" +
		"X-Odd:  a ,b\n" +
		"P-Asserted-Identity: <tel:1>, \"A, B\" <sip:z@y>\n" +
		"Route: <sip:r2;lr>,<sip:r3;lr>\n"
	tests := []struct {
		name string
		edit func(m *Message)
		want string
	}{
		{"Set in the place of the first, the others go",
			func(m *Message) { m.Set(PAssertedIdentity, "<sip:q@y>") },
			via + strings.NewReplacer(
				"p-asserted-identity \t: <sip:x@y>\n", "P-Asserted-Identity: <sip:q@y>\n",
				"P-Asserted-Identity: <tel:1>, \"A, B\" <sip:z@y>\n", "").Replace(rest)},
		{"Set of a new header goes to the end",
			func(m *Message) { m.Set(Path, "<sip:p>") }, via + rest + "Path: <sip:p>\n"},
		{"Add goes behind the last one of its name",
			func(m *Message) { m.Add(PAssertedIdentity, "<sip:q@y>") },
			via + strings.Replace(rest, "<sip:z@y>\n", "<sip:z@y>\nP-Asserted-Identity: <sip:q@y>\n", 1)},
		{"Add of a new header goes to the end",
			func(m *Message) { m.Add(Path, "<sip:p>") }, via + rest + "Path: <sip:p>\n"},
		{"Push goes before the first one of its name",
			func(m *Message) { m.Push(Route, "<sip:r0;lr>") },
			via + strings.Replace(rest, "Route", "Route: <sip:r0;lr>\nRoute", 1)},
		{"Push of a new header follows the start line",
			func(m *Message) { m.Push(Path, "<sip:p>") }, "Path: <sip:p>\n" + via + rest},
		{"Pop takes one element of a comma list",
			func(m *Message) { m.Pop(ViaHeader) }, "via: SIP/2.0/TCP b;branch= 2\n" + rest},
		{"Pop takes the line with its last element",
			func(m *Message) { m.Pop(ViaHeader); m.Pop(ViaHeader) }, rest},
		{"Pop goes on in the next line",
			func(m *Message) { m.Pop(Route); m.Pop(Route) },
			via + strings.NewReplacer("Route: <sip:r1;lr>\n", "", "<sip:r2;lr>,", "").Replace(rest)},
		{"Pop of what is not there changes nothing",
			func(m *Message) { m.Pop(Path) }, via + rest},
		{"ReplaceTop takes one element of a comma list",
			func(m *Message) { m.ReplaceTop(ViaHeader, "SIP/2.0/UDP a;branch=1;received=c") },
			"via: SIP/2.0/UDP a;branch=1;received=c, SIP/2.0/TCP b;branch= 2\n" + rest},
		{"Remove finds every letter case",
			func(m *Message) { m.Remove(PAssertedIdentity) },
			via + strings.NewReplacer(
				"p-asserted-identity \t: <sip:x@y>\n", "",
				"P-Asserted-Identity: <tel:1>, \"A, B\" <sip:z@y>\n", "").Replace(rest)},
		{"Remove finds compact forms",
			func(m *Message) { m.Remove(To) }, via + strings.Replace(rest, "t: <sip:b@c>\n", "", 1)},
		{"RemoveNamed finds compact forms",
			func(m *Message) { m.RemoveNamed("TO") }, via + strings.Replace(rest, "t: <sip:b@c>\n", "", 1)},
		{"RemoveNamed finds unknown names",
			func(m *Message) { m.RemoveNamed("x-odd") }, via + strings.Replace(rest, "X-Odd:  a ,b\n", "", 1)},
		{"a line break cannot get in",
			func(m *Message) { m.Set(Path, " a\r\nRoute: evil\n") }, via + rest + "Path: a  Route: evil\n"},
		{"AddNamed maps known names",
			func(m *Message) { m.AddNamed("ROUTE", "<sip:r4>"); m.AddNamed("X-New", "1"); m.AddNamed("X: Y", "1") },
			via + rest + "Route: <sip:r4>\nX-New: 1\n"},
		{"OtherHeader is never edited",
			func(m *Message) {
				m.Set(OtherHeader, "x")
				m.Add(OtherHeader, "x")
				m.Push(OtherHeader, "x")
				m.Pop(OtherHeader)
				m.ReplaceTop(OtherHeader, "x")
				m.Remove(OtherHeader)
			}, via + rest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			raw := crlf(head + via + rest + "\nbody")
			before := bytes.Clone(raw)
			m := mustParse(t, raw)
			c := m.Clone()
			tt.edit(m)
			if got := headersOf(m); got != tt.want {
				t.Errorf("headers:\n%s\nwant:\n%s", got, tt.want)
			}
			if !bytes.HasSuffix(m.Bytes(), []byte("\r\n\r\nbody")) || !bytes.HasPrefix(m.Bytes(), crlf(head)) {
				t.Errorf("start line or body changed: %q", m.Bytes())
			}
			if !bytes.Equal(raw, before) || !bytes.Equal(c.Bytes(), before) {
				t.Error("an edit reached the raw bytes or a clone")
			}
		})
	}
}

func TestEditsReportWhatTheyDid(t *testing.T) {
	m := mustParse(t, invite)
	if !m.Pop(Route) || !m.Pop(Route) || m.Pop(Route) {
		t.Error("Pop: want true, true, false")
	}
	if m.ReplaceTop(Route, "x") || !m.ReplaceTop(Contact, "<sip:x>") {
		t.Error("ReplaceTop: want false for Route, true for Contact")
	}
	if n := m.Remove(Supported); n != 1 {
		t.Errorf("Remove: %d, want 1", n)
	}
	if n := m.RemoveNamed("nothing"); n != 0 {
		t.Errorf("RemoveNamed: %d, want 0", n)
	}
}

func TestAccessorsSeeEdits(t *testing.T) {
	m := mustParse(t, invite)
	m.SetRequestURI("sip:bob @10.0.0.1\r\n")
	m.Push(ViaHeader, "SIP/2.0/TCP 192.0.2.9:4060;branch=z9hG4bKnew")
	m.Set(MaxForwards, "12")
	m.Set(To, "<sip:bob@ims.example.org>;tag=99")
	m.Pop(Route)
	m.SetBody("text/plain", []byte("hi"))
	via, _ := m.TopVia()
	route, _ := m.TopRoute()
	mf, _ := m.MaxForwards()
	length, _ := m.Value(ContentLength)
	kind, _ := m.Value(ContentType)
	got := fmt.Sprint(m.RequestURI(), " ", via.Branch(), " ", mf, " ", m.ToTag(), " ", route.URI, " ", length, " ", kind, " ", string(m.Body()))
	want := "sip:bob@10.0.0.1 z9hG4bKnew 12 99 sip:aebagbaf3q5c2mzr7xk4hdyn6wva2p4e7i@192.0.2.11:6060;lr 2 text/plain hi"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r := mustParse(t, m.Bytes())
	if !slices.Equal(pairs(r), pairs(m)) || r.RequestURI() != m.RequestURI() || string(r.Body()) != "hi" {
		t.Errorf("reparsed:\n%q\nwant\n%q", pairs(r), pairs(m))
	}
	m.SetBody("", nil)
	if _, ok := m.Value(ContentType); ok {
		t.Error("Content-Type stays without a body")
	}
	mustParse(t, m.Bytes())
}

func TestNewRequest(t *testing.T) {
	m := NewRequest("CANCEL", "sip:bob@example.com")
	m.Add(ViaHeader, "SIP/2.0/UDP a;branch=z9hG4bK1")
	m.Add(From, "<sip:a@b>;tag=1")
	m.Add(To, "<sip:b@c>")
	m.Set(CallID, "x")
	m.Add(CSeq, "1 CANCEL")
	m.AddNamed("X-Y", "z")
	want := "CANCEL sip:bob@example.com SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK1\r\nFrom: <sip:a@b>;tag=1\r\n" +
		"To: <sip:b@c>\r\nCall-ID: x\r\nCSeq: 1 CANCEL\r\nX-Y: z\r\nContent-Length: 0\r\n\r\n"
	if got := string(m.Bytes()); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	mustParse(t, m.Bytes())
}

func TestResponse(t *testing.T) {
	req := crlf("INVITE sip:b@c SIP/2.0\nv: SIP/2.0/UDP a;branch=1,\n SIP/2.0/UDP b\nTimestamp: 5\nFrom :<sip:a@b>;tag=1\n" +
		"To: \"B\" <sip:b@c;tag=uri>\ni: x\nVia: SIP/2.0/UDP c\nRecord-Route: <sip:rr>\nCSeq: 1 INVITE\n\n")
	tests := []struct {
		name   string
		status int
		reason string
		tag    string
		want   string
	}{
		{"a final response gets a tag", 404, "", "t2",
			"SIP/2.0 404 Not Found\nv: SIP/2.0/UDP a;branch=1,\n SIP/2.0/UDP b\nFrom :<sip:a@b>;tag=1\n" +
				"To: \"B\" <sip:b@c;tag=uri>;tag=t2\ni: x\nVia: SIP/2.0/UDP c\nCSeq: 1 INVITE\nContent-Length: 0\n\n"},
		{"a 100 has no tag but the timestamp", 100, "", "",
			"SIP/2.0 100 Trying\nv: SIP/2.0/UDP a;branch=1,\n SIP/2.0/UDP b\nTimestamp: 5\nFrom :<sip:a@b>;tag=1\n" +
				"To: \"B\" <sip:b@c;tag=uri>\ni: x\nVia: SIP/2.0/UDP c\nCSeq: 1 INVITE\nContent-Length: 0\n\n"},
		{"a reason of its own, on one line", 499, "No\r\nway", "",
			"SIP/2.0 499 No  way\nv: SIP/2.0/UDP a;branch=1,\n SIP/2.0/UDP b\nFrom :<sip:a@b>;tag=1\n" +
				"To: \"B\" <sip:b@c;tag=uri>\ni: x\nVia: SIP/2.0/UDP c\nCSeq: 1 INVITE\nContent-Length: 0\n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := mustParse(t, req)
			r := m.Response(tt.status, tt.reason, tt.tag)
			if got, want := string(r.Bytes()), string(crlf(tt.want)); got != want {
				t.Errorf("got  %q\nwant %q", got, want)
			}
			p := mustParse(t, r.Bytes())
			if p.IsRequest() || p.Status() != tt.status || p.ToTag() != tt.tag {
				t.Errorf("reparsed: %d, tag %q", p.Status(), p.ToTag())
			}
		})
	}
	t.Run("a tag that is there stays", func(t *testing.T) {
		m := mustParse(t, with("To: <sip:bob@example.com> -> To: <sip:bob@example.com>;TAG=old"))
		if got := m.Response(200, "", "new").ToTag(); got != "old" {
			t.Errorf("tag %q, want old", got)
		}
	})
	t.Run("later edits of the request stay out", func(t *testing.T) {
		m := mustParse(t, req)
		r := m.Response(200, "", "t")
		want := string(r.Bytes())
		m.Pop(ViaHeader)
		m.Set(CallID, "other")
		if got := string(r.Bytes()); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}

// pairs lists names and values.
func pairs(m *Message) []string {
	var out []string
	for name, value := range m.Headers() {
		out = append(out, name+": "+value)
	}
	return out
}

// rival is a message kept the naive way: header lines as names and lists of
// elements. text is what an untouched line must still look like.
type rival []rivalLine

type rivalLine struct {
	name     string
	elements []string
	text     string
}

func newRival(m *Message) rival {
	var r rival
	for _, l := range m.lines {
		r = append(r, rivalLine{l.name, elementsOf(l.header, l.value), l.text})
	}
	return r
}

func elementsOf(h Header, value string) []string {
	if value != "" && (h == OtherHeader || headerTable[h].whole) {
		return []string{value}
	}
	return slices.Collect(SplitElements(value))
}

func (r rival) is(h Header) func(rivalLine) bool {
	return func(l rivalLine) bool { return HeaderNamed(l.name) == h }
}

func (r rival) top(h Header) int {
	return slices.IndexFunc(r, func(l rivalLine) bool { return r.is(h)(l) && len(l.elements) > 0 })
}

// editRandomly makes one random edit in both.
func editRandomly(rnd *rand.Rand, m *Message, r rival) rival {
	values := map[Header][]string{
		ViaHeader:         {"SIP/2.0/UDP a:1;branch=z9hG4bKq", "SIP/2.0/TCP [::1], SIP/2.0/TLS b;x=\",\""},
		Route:             {"<sip:a;lr>", "<sip:a,b@c;lr>;p=\"<,\" , <sip:d>"},
		Contact:           {"*", "\"A, <B\" <sip:a@b>;q=0.5,<sip:c>", "sip:x@y;p"},
		Supported:         {"", "path", "path , gruu,,"},
		PAssertedIdentity: {"<tel:+1>", "\"\\\"\" <sip:a@b>"},
		Authorization:     {"Digest a=b, c=\"d,e\""},
		Subject:           {"a, b"},
		MaxForwards:       {"3"},
		CallID:            {"new,id"},
	}
	headers := []Header{ViaHeader, Route, Contact, Supported, PAssertedIdentity, Authorization, Subject, MaxForwards, CallID}
	h := headers[rnd.IntN(len(headers))]
	value := values[h][rnd.IntN(len(values[h]))]
	fresh := rivalLine{h.String(), elementsOf(h, value), ""}
	at := slices.IndexFunc(r, r.is(h))
	op := rnd.IntN(6)
	if headerTable[h].single {
		op = 0
	}
	switch op {
	case 0:
		m.Set(h, value)
		if at < 0 {
			return append(r, fresh)
		}
		r[at] = fresh
		return append(r[:at+1], slices.DeleteFunc(r[at+1:], r.is(h))...)
	case 1:
		m.Add(h, value)
		last := len(r) - 1
		for i, l := range r {
			if r.is(h)(l) {
				last = i
			}
		}
		return slices.Insert(r, last+1, fresh)
	case 2:
		m.Push(h, value)
		return slices.Insert(r, max(at, 0), fresh)
	case 3:
		if h == ViaHeader {
			return r // a message without Via does not parse
		}
		m.Pop(h)
		if at = r.top(h); at < 0 {
			return r
		}
		if r[at].elements, r[at].text = r[at].elements[1:], ""; len(r[at].elements) == 0 {
			return slices.Delete(r, at, at+1)
		}
	case 4:
		m.ReplaceTop(h, value)
		if at = r.top(h); at >= 0 {
			r[at].elements, r[at].text = append(fresh.elements, r[at].elements[1:]...), ""
		}
	case 5:
		if h == ViaHeader {
			return r
		}
		m.Remove(h)
		return slices.DeleteFunc(r, r.is(h))
	}
	return r
}

func TestAnySeriesOfEditsReparsesToTheSameHeaders(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	sources := [][]byte{register, invite}
	for name, status := range torture {
		if status < 0 {
			sources = append(sources, tortureMessage(t, name))
		}
	}
	slices.SortFunc(sources, bytes.Compare)
	for range 3000 {
		raw := sources[rnd.IntN(len(sources))]
		m := mustParse(t, raw)
		r := newRival(m)
		for range rnd.IntN(12) {
			r = editRandomly(rnd, m, r)
		}
		body := m.Body()
		back := mustParse(t, m.Bytes())
		if got, want := pairs(back), pairs(m); !slices.Equal(got, want) {
			t.Fatalf("reparsed\n%q\nwant\n%q", got, want)
		}
		if !bytes.Equal(back.Body(), body) || back.start != m.start {
			t.Fatalf("start line or body changed:\n%q\nfrom\n%q", m.Bytes(), raw)
		}
		if len(back.lines) != len(r) {
			t.Fatalf("%d lines, want %d:\n%s", len(back.lines), len(r), m.Bytes())
		}
		for i, l := range back.lines {
			if l.name != r[i].name || !slices.Equal(elementsOf(l.header, l.value), r[i].elements) {
				t.Fatalf("line %d is %q, want %s: %q", i, l.text, r[i].name, r[i].elements)
			}
			if r[i].text != "" && l.text != r[i].text {
				t.Fatalf("untouched line became %q, was %q", l.text, r[i].text)
			}
		}
	}
}
