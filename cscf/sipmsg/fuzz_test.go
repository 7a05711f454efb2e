package sipmsg

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

func FuzzParse(f *testing.F) {
	f.Add(register)
	f.Add(invite)
	f.Add(with())
	f.Add([]byte("SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP a,SIP/2.0/UDP b\r\nf:<sip:a@b>\r\nt:<sip:c@d>\r\ni:x\r\nCSeq:1 X\r\n\r\n"))
	f.Add([]byte("\r\n\r\n"))
	for name := range torture {
		f.Add(tortureMessage(f, name))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		m, err := Parse(raw)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Reason == "" || e.Status != 0 && e.Status < 400 {
				t.Fatalf("error %#v", err)
			}
			if m.Answerable() {
				checkAnswer(t, m, max(e.Status, 400))
			}
			return
		}
		wire := m.Bytes()
		if !bytes.Contains(raw, wire) || !bytes.HasPrefix(bytes.TrimLeft(raw, "\r\n"), wire) {
			t.Fatalf("unedited: %q from %q", wire, raw)
		}
		again, err := Parse(wire)
		if err != nil || !bytes.Equal(again.Bytes(), wire) || !slices.Equal(pairs(again), pairs(m)) {
			t.Fatalf("second parse: %v, %q", err, wire)
		}
		if m.Answerable() {
			checkAnswer(t, m, 200)
		}

		c := m.Clone()
		c.Push(ViaHeader, "SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKx")
		if !c.Pop(ViaHeader) || !bytes.Equal(c.Bytes(), wire) {
			t.Fatalf("after Push and Pop: %q, want %q", c.Bytes(), wire)
		}

		c.Push(ViaHeader, "SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKx")
		c.ReplaceTop(ViaHeader, "SIP/2.0/TCP 192.0.2.2;branch=z9hG4bKy")
		c.Set(MaxForwards, "1")
		for c.Pop(Route) {
		}
		c.Pop(Contact)
		c.ReplaceTop(Contact, "<sip:new@192.0.2.1>")
		c.Remove(Supported)
		c.RemoveNamed("x-odd")
		c.Pop(RecordRoute)
		c.Add(RecordRoute, "<sip:192.0.2.1;lr>")
		c.SetBody("text/plain", []byte("hello"))
		if c.IsRequest() {
			c.SetRequestURI("sip:next@192.0.2.3")
		}
		checkReparse(t, c)
		if !bytes.Equal(raw, before) {
			t.Fatal("raw bytes changed")
		}
	})
}

// checkReparse verifies that an edited message means on the wire what it says
// here.
func checkReparse(t *testing.T, m *Message) {
	t.Helper()
	wire := m.Bytes()
	back, err := Parse(wire)
	if len(m.lines) > MaxHeaders || len(wire) > MaxSize {
		return
	}
	if err != nil {
		t.Fatalf("edited message: %v\n%q", err, wire)
	}
	if !slices.Equal(pairs(back), pairs(m)) || !bytes.Equal(back.Body(), m.Body()) {
		t.Fatalf("reparsed\n%q\nwant\n%q", pairs(back), pairs(m))
	}
	if back.Method() != m.Method() || back.RequestURI() != m.RequestURI() || back.Status() != m.Status() || back.Reason() != m.Reason() {
		t.Fatalf("start line became %q", back.start)
	}
}

func FuzzParseURI(f *testing.F) {
	for _, s := range []string{"sip:a:b@h:5060;lr?x=y", "sips:%61@[::1]", "tel:+49-30;phone-context=a", "tel:1", "urn:service:sos", "sip:a#@B.."} {
		f.Add(s, "sip:a@h")
	}
	f.Fuzz(func(t *testing.T, s, other string) {
		u, err := ParseURI(s)
		if err != nil {
			return
		}
		again, err := ParseURI(u.String())
		if err != nil || again != u {
			t.Fatalf("%q is read as %+v, then %+v, %v", s, u, again, err)
		}
		if !u.Equal(again) {
			t.Fatalf("%q is not equal to itself", s)
		}
		key, err := ParseURI(u.AOR())
		if err != nil || key.AOR() != u.AOR() {
			t.Fatalf("%q has the key %q, and that %q, %v", s, u.AOR(), key.AOR(), err)
		}
		u.HostPort()
		if v, err := ParseURI(other); err == nil && u.Equal(v) != v.Equal(u) {
			t.Fatalf("%q and %q are equal one way only", s, other)
		}
	})
}

func FuzzParseNameAddr(f *testing.F) {
	for _, s := range []string{`"A \"B\"" <sip:a@b>;tag=1`, "sip:a@b;tag=1", "A B<sip:a>;q=\",\"", "<tel:+1>;x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseNameAddr(s)
		if err != nil {
			return
		}
		again, err := ParseNameAddr(a.String())
		if err != nil || again != a {
			t.Fatalf("%q is read as %+v, then %+v, %v", s, a, again, err)
		}
		with := a.Params.With("tag", "x")
		if v, _ := with.Value("TAG"); v != "x" || with.Without("tag").Has("tag") || !with.valid() {
			t.Fatalf("%q with a tag is %q", a.Params, with)
		}
	})
}

func FuzzParseVia(f *testing.F) {
	for _, s := range []string{"SIP/2.0/UDP a:5060;branch=z9hG4bK1;rport", "SIP / 2.0 / TCP [::1] ; x = \"y\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseVia(s)
		if err != nil {
			return
		}
		again, err := ParseVia(v.String())
		if err != nil || again != v {
			t.Fatalf("%q is read as %+v, then %+v, %v", s, v, again, err)
		}
		v.Branch()
		v.SentBy()
	})
}

func FuzzParseAuth(f *testing.F) {
	for _, s := range []string{`Digest a="b,\"", c=d`, "Digest a=b", "NTLM x=\"\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, p, err := ParseAuth(s)
		if err != nil {
			return
		}
		n := 0
		for name, value := range p.All() {
			if v, ok := p.Value(name); !ok || v != value {
				t.Fatalf("%q: %s is %q, then %q", s, name, value, v)
			}
			n++
		}
		if n == 0 || n > MaxParams {
			t.Fatalf("%q: %d parameters", s, n)
		}
	})
}
