package sipmsg

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestHeaderNames(t *testing.T) {
	compact := 0
	for h := Header(1); h < headerCount; h++ {
		name := h.String()
		if name == "" {
			t.Fatalf("header %d has no name", h)
		}
		for _, spelling := range []string{name, strings.ToLower(name), strings.ToUpper(name)} {
			if got := HeaderNamed(spelling); got != h {
				t.Errorf("%s is %v, want %v", spelling, got, h)
			}
		}
		if c := headerTable[h].compact; c != 0 {
			compact++
			if HeaderNamed(string(c)) != h || HeaderNamed(strings.ToUpper(string(c))) != h {
				t.Errorf("compact form %c is not %v", c, h)
			}
		}
	}
	if compact != 20 {
		t.Errorf("%d compact forms, want 20", compact)
	}
	for _, name := range []string{"", "q", "Vi", "Vias", "X-Via", "Call\rID", "V\u0131a", "To\x00"} {
		if got := HeaderNamed(name); got != OtherHeader {
			t.Errorf("%q is %v", name, got)
		}
	}
	if got := OtherHeader.String() + headerCount.String() + Header(255).String(); got != "" {
		t.Errorf("names of no headers: %q", got)
	}
}

func TestLookups(t *testing.T) {
	m := mustParse(t, crlf("MESSAGE sip:b@c SIP/2.0\nVia: SIP/2.0/UDP a\nf: <sip:a@b>\nTo: <sip:b@c>\ni: x\nCSeq: 1 MESSAGE\n"+
		"m: <sip:1>;x=\",\" , \"a,b\" <sip:2,3>\nAuthorization: Digest a=\"1\", b=2\nContact:\n <sip:4>\nX-a: 1,2\nx-A : 3\nDate: Sat, 1 Jan\nSupported:\n\n"))
	collect := func(seq func(func(string) bool)) string { return strings.Join(slices.Collect(seq), "|") }
	tests := []struct{ name, got, want string }{
		{"one value a line", collect(m.Values(Contact)), `<sip:1>;x="," , "a,b" <sip:2,3>|<sip:4>`},
		{"elements over all lines", collect(m.Elements(Contact)), `<sip:1>;x=","|"a,b" <sip:2,3>|<sip:4>`},
		{"credentials are one element", collect(m.Elements(Authorization)), `Digest a="1", b=2`},
		{"a date is one element", collect(m.Elements(Date)), `Sat, 1 Jan`},
		{"an empty header has no element", collect(m.Elements(Supported)), ""},
		{"an unknown name in any case", collect(m.Named("X-A")), "1,2|3"},
		{"a compact name finds the long one", collect(m.Named("M")), `<sip:1>;x="," , "a,b" <sip:2,3>|<sip:4>`},
		{"nothing", collect(m.Named("nothing")), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.got != tt.want {
				t.Errorf("got %s, want %s", tt.got, tt.want)
			}
		})
	}
	if v, ok := m.Value(Supported); v != "" || !ok {
		t.Errorf("empty header: %q, %v", v, ok)
	}
	if _, ok := m.Value(Expires); ok {
		t.Error("absent header found")
	}
	if _, present := m.MaxForwards(); present {
		t.Error("absent Max-Forwards found")
	}
	if _, ok := m.TopRoute(); ok {
		t.Error("absent Route found")
	}
}

func TestParseURI(t *testing.T) {
	tests := []struct {
		in   string
		want URI
	}{
		{"sip:alice@example.com", URI{Scheme: "sip", User: "alice", Host: "example.com"}},
		{"SIPS:a:b@h:5071;lr;x=y?a=b&c=d", URI{Scheme: "sips", User: "a", Password: "b", Host: "h", Port: 5071, Params: ";lr;x=y", Headers: "a=b&c=d"}},
		{"sip:h", URI{Scheme: "sip", Host: "h"}},
		{"sip:[2001:db8::1]", URI{Scheme: "sip", Host: "[2001:db8::1]"}},
		{"sip:a@[2001:db8::1]:5060", URI{Scheme: "sip", User: "a", Host: "[2001:db8::1]", Port: 5060}},
		{"sip:a;b?c/d@h;e", URI{Scheme: "sip", User: "a;b?c/d", Host: "h", Params: ";e"}},
		{"sip:*21#@h", URI{Scheme: "sip", User: "*21#", Host: "h"}},
		{"sip:%00@h", URI{Scheme: "sip", User: "%00", Host: "h"}},
		{"tel:+49-(30).1234;phone-context=x", URI{Scheme: "tel", User: "+49-(30).1234", Params: ";phone-context=x"}},
		{"tel:*21#", URI{Scheme: "tel", User: "*21#"}},
		{"urn:service:sos", URI{Scheme: "urn", User: "service:sos"}},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := ParseURI(tt.in)
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
			scheme, rest, _ := strings.Cut(tt.in, ":")
			if want := strings.ToLower(scheme) + ":" + rest; got.String() != want {
				t.Errorf("String %q, want %q", got.String(), want)
			}
		})
	}
	for _, in := range []string{
		"", ":", "sip", "sip:", "sip:@h", "sip:a@", "sip:a@b@c", "sip:a@h:", "sip:a@h:0", "sip:a@h:70000", "sip:a@h:x",
		"sip:a@h:-1", "sip:a%@h", "sip:a%2@h", "sip:a%zz@h", "sip:a b@h", " sip:a@h", "sip:a@h ", "sip:a@h;a b", "sip:a@h;\"",
		"sip:a@[::1", "sip:a@[::1]]", "sip:a@::1", "sip:a@[1.2.3.4]", "sip:a@[fe80::1%25eth0]", "sip:a@[]", "sip:a@.1", "sip:a@-", "sip:a@1..2",
		"sip:a\x00@h", "sip:é@h", "1sip:a@h", "<sip:a@h>", "tel:", "tel:+", "tel:+12x", "tel:+1#", "tel:--", "tel:1 2", "urn:", "urn:a b",
	} {
		if got, err := ParseURI(in); err == nil {
			t.Errorf("%q accepted as %+v", in, got)
		}
	}
}

func TestAORIsOneKeyForAllSpellings(t *testing.T) {
	tests := []struct{ want, spellings string }{
		{"sip:alice@example.com", "sip:alice@example.com sip:%61lice@EXAMPLE.com:5060;transport=tcp sips:alice:pw@example.com.?a=b"},
		{"sip:Alice@example.com", "sip:Alice@example.com sip:%41lice@example.com"},
		{"sip:example.com", "sip:example.com SIP:Example.Com:5080"},
		{"sip:a%40b@h", "sip:a%40b@h sip:%61%40b@h"},
		{"sip:%C3%BC@h", "sip:%c3%bc@h sip:%C3%bc@h"},
		{"sip:*21%23@h", "sip:*21#@h sip:*21%23@h sip:%2A21%23@h"},
		{"sip:a@[2001:db8::1]", "sip:a@[2001:DB8:0::1] sip:a@[2001:db8::1]:5060"},
		{"tel:+4930123", "tel:+4930123 tel:+49-30-123;isub=1 TEL:+49(30).123"},
		{"tel:12ab;phone-context=example.com", "tel:12ab;phone-context=example.com tel:1-2AB;x=y;phone-context=Example.com"},
		{"urn:service:sos", "urn:service:sos"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			for s := range strings.FieldsSeq(tt.spellings) {
				u, err := ParseURI(s)
				if err != nil || u.AOR() != tt.want {
					t.Errorf("%s: %s, %v", s, u.AOR(), err)
				}
			}
		})
	}
}

// The pairs are those of RFC 3261 §19.1.4 and RFC 3966 §4, and those that the
// rules decide.
func TestURIEquality(t *testing.T) {
	tests := []struct {
		a, b string
		want bool
	}{
		{"sip:%61lice@atlanta.com;transport=TCP", "sip:alice@AtlanTa.CoM;Transport=tcp", true},
		{"sip:carol@chicago.com", "sip:carol@chicago.com;newparam=5", true},
		{"sip:carol@chicago.com;security=on", "sip:carol@chicago.com;newparam=5", true},
		{"sip:biloxi.com;transport=tcp;method=REGISTER?to=sip:bob%40biloxi.com", "sip:biloxi.com;method=REGISTER;transport=tcp?to=sip:bob%40biloxi.com", true},
		{"sip:alice@atlanta.com?subject=project%20x&priority=urgent", "sip:alice@atlanta.com?priority=urgent&subject=project%20x", true},
		{"SIP:ALICE@AtLanTa.CoM;Transport=udp", "sip:alice@AtLanTa.CoM;Transport=UDP", false},
		{"sip:bob@biloxi.com", "sip:bob@biloxi.com:5060", false},
		{"sip:bob@biloxi.com", "sip:bob@biloxi.com;transport=udp", false},
		{"sip:bob@biloxi.com", "sip:bob@biloxi.com:6000;transport=tcp", false},
		{"sip:carol@chicago.com", "sip:carol@chicago.com?Subject=next%20meeting", false},
		{"sip:bob@phone21.boxesbybob.com", "sip:bob@192.0.2.4", false},
		{"sip:carol@chicago.com;security=on", "sip:carol@chicago.com;security=off", false},
		{"sip:a@b", "sips:a@b", false},
		{"sip:a:x@b", "sip:a@b", false},
		{"sip:a@b;maddr=1.2.3.4", "sip:a@b", false},
		{"sip:a@b;%6C%72", "sip:a@b;lr", true},
		{"sip:a@b;n%61me=v%61lue", "sip:a@b;name=other", false},
		{"tel:+1-201-555-0123", "tel:+12015550123", true},
		{"tel:+12015550123;b=1;a=2", "tel:+12015550123;a=2;b=1", true},
		{"tel:+12015550123;a=2", "tel:+12015550123", false},
		{"tel:7042;phone-context=a", "tel:7042;phone-context=b", false},
		{"urn:service:sos", "urn:service:sos", true},
		{"urn:service:sos", "urn:service:sos.fire", false},
		{"sip:a@b" + strings.Repeat(";x", 100), "sip:a@b" + strings.Repeat(";x", 100), true},
	}
	for _, tt := range tests {
		t.Run(tt.a+" and "+tt.b, func(t *testing.T) {
			a, errA := ParseURI(tt.a)
			b, errB := ParseURI(tt.b)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if a.Equal(b) != tt.want || b.Equal(a) != tt.want {
				t.Errorf("got %v and %v, want %v", a.Equal(b), b.Equal(a), tt.want)
			}
			if !a.Equal(a) || !b.Equal(b) {
				t.Error("not equal to itself")
			}
		})
	}
}

func TestHostPort(t *testing.T) {
	tests := []struct{ uri, want string }{
		{"sip:a@192.0.2.1", "192.0.2.1:5060"},
		{"sips:a@192.0.2.1", "192.0.2.1:5061"},
		{"sip:a@192.0.2.1:7000", "192.0.2.1:7000"},
		{"sip:[2001:db8::1]", "[2001:db8::1]:5060"},
		{"sip:a@example.com", ""},
		{"tel:+1", ""},
	}
	for _, tt := range tests {
		t.Run(tt.uri, func(t *testing.T) {
			u, err := ParseURI(tt.uri)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := u.HostPort()
			if ok != (tt.want != "") || ok && got != netip.MustParseAddrPort(tt.want) {
				t.Errorf("got %v, %v, want %s", got, ok, tt.want)
			}
		})
	}
}

func TestParams(t *testing.T) {
	p := Params(` ; Tag = x ;lr; q="a;\"=b" ;y=1=2`)
	var all []string
	for n, v := range p.All() {
		all = append(all, n+"="+v)
	}
	tests := []struct{ name, got, want string }{
		{"all", strings.Join(all, " "), `Tag=x lr= q="a;\"=b" y=1=2`},
		{"a value in place", string(p.With("TAG", "z")), `;TAG=z;lr;q="a;\"=b";y=1=2`},
		{"a value at the end", string(p.With("r", "")), `;Tag=x;lr;q="a;\"=b";y=1=2;r`},
		{"one of two", string(Params(";a=1;b;A=2").With("a", "3")), ";a=3;b"},
		{"without", string(p.Without("LR").Without("q")), ";Tag=x;y=1=2"},
		{"without what is not there", string(Params(";a ").Without("b")), ";a "},
		{"none", string(Params("").With("a", "b")), ";a=b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.got != tt.want {
				t.Errorf("got %s, want %s", tt.got, tt.want)
			}
		})
	}
	if v, ok := p.Value("Q"); !ok || Unquote(v) != `a;"=b` {
		t.Errorf("q is %q", v)
	}
	if v, ok := p.Value("lr"); !ok || v != "" {
		t.Errorf("lr is %q, %v", v, ok)
	}
	if p.Has("") || p.Has("z") {
		t.Error("found what is not there")
	}
}

func TestParseNameAddr(t *testing.T) {
	tests := []struct{ in, display, uri, params, out string }{
		{`<sip:a@b>`, "", "sip:a@b", "", `<sip:a@b>`},
		{`sip:a@b;tag=1`, "", "sip:a@b", ";tag=1", `<sip:a@b>;tag=1`},
		{`<sip:a@b;lr> ; tag=1`, "", "sip:a@b;lr", "; tag=1", `<sip:a@b;lr>; tag=1`},
		{`"A \"B\", C" <sip:a@b?x=y>;q="<>,;"`, `A "B", C`, "sip:a@b?x=y", `;q="<>,;"`, `"A \"B\", C" <sip:a@b?x=y>;q="<>,;"`},
		{`Alice  Smith<sip:a@b>`, "Alice  Smith", "sip:a@b", "", `"Alice  Smith" <sip:a@b>`},
		{`Jürgen <sip:a@b>`, "Jürgen", "sip:a@b", "", `"Jürgen" <sip:a@b>`},
		{`sip:a@b;x="<y>"`, "", "sip:a@b", `;x="<y>"`, `<sip:a@b>;x="<y>"`},
		{`"" <tel:+1>`, "", "tel:+1", "", `<tel:+1>`},
		{`isbn:2983792873`, "", "isbn:2983792873", "", `<isbn:2983792873>`},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := ParseNameAddr(tt.in)
			want := NameAddr{tt.display, tt.uri, Params(tt.params)}
			if err != nil || got != want {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
			if got.String() != tt.out {
				t.Errorf("String %s, want %s", got.String(), tt.out)
			}
		})
	}
	for _, in := range []string{
		"", "*", "a", "<>", "<sip:a@b", "sip:a@b>", `"A <sip:a@b>`, `"A" sip:a@b`, `"A" "B" <sip:a@b>`, `A, B <sip:a@b>`, "< sip:a@b>",
		"<sip:a@b >", "<sip:a b>", "<sip:a@b>x", "<sip:a@b>;", "<sip:a@b>;;a", "<sip:a@b>;a=", `<sip:a@b>;a="`, "sip:a@b?x=y", "sip:a@b,c",
		"<sip:a@b>;tag=a b", "<<sip:a@b>>", "<sip:a\x00@b>", "<//a>",
	} {
		if got, err := ParseNameAddr(in); err == nil {
			t.Errorf("%q accepted as %+v", in, got)
		}
	}
}

func TestParseVia(t *testing.T) {
	tests := []struct {
		in, sentBy string
		want       Via
	}{
		{"SIP/2.0/UDP a.b;branch=z9hG4bK1", "a.b:5060", Via{"UDP", "a.b", 0, ";branch=z9hG4bK1"}},
		{"SIP / 2.0 / tls\t[::1] : 5080 ; branch = z9hG4bK1", "[::1]:5080", Via{"tls", "[::1]", 5080, "; branch = z9hG4bK1"}},
		{"SIP/2.0/TLS a;rport;branch=z9hG4bK1", "a:5061", Via{"TLS", "a", 0, ";rport;branch=z9hG4bK1"}},
		{"SIP/2.0/UDP 1.2.3.4:5060;received=2001:db8::1;branch=z9hG4bK1", "1.2.3.4:5060", Via{"UDP", "1.2.3.4", 5060, ";received=2001:db8::1;branch=z9hG4bK1"}},
		{"SIP/2.0/new-one_1 a;branch=z9hG4bK1", "a:5060", Via{"new-one_1", "a", 0, ";branch=z9hG4bK1"}},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := ParseVia(tt.in)
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
			if got.SentBy() != tt.sentBy || got.Branch() != "z9hG4bK1" {
				t.Errorf("sent-by %s, branch %s", got.SentBy(), got.Branch())
			}
			if again, err := ParseVia(got.String()); err != nil || again != got {
				t.Errorf("%s is read as %+v, %v", got, again, err)
			}
		})
	}
	for _, in := range []string{
		"", "SIP", "SIP/2.0", "SIP/2.0/UDP", "SIP/2.0/UDP ", "SIP/2.0/UDP;branch=1", "SIP/2.0/ a", "SIP/2.0 UDP a", "HTTP/2.0/UDP a", "SIP/2.0/UDP a b",
		"SIP/2.0/UDP a:", "SIP/2.0/UDP a:0", "SIP/2.0/UDP a:65536", "SIP/2.0/UDP a:1x", "SIP/2.0/UDP ::1", "SIP/2.0/UDP [::1", "SIP/2.0/UDP [::1]x",
		"SIP/2.0/UDP a;", "SIP/2.0/UDP a;;b", "SIP/2.0/UDP a;b=", "SIP/2.0/UDP a, SIP/2.0/UDP b", "SIP/2.0/UDP a\x00",
	} {
		if got, err := ParseVia(in); err == nil {
			t.Errorf("%q accepted as %+v", in, got)
		}
	}
}

func TestParseAuth(t *testing.T) {
	scheme, p, err := ParseAuth(` Digest username = "a\"b, c" ,realm="",NC=00000001, algorithm=AKAv1-MD5 ,nonce="x=="`)
	if err != nil || scheme != "Digest" {
		t.Fatalf("scheme %q, %v", scheme, err)
	}
	var all []string
	for n, v := range p.All() {
		all = append(all, n+"="+v)
	}
	if got, want := strings.Join(all, "|"), `username=a"b, c|realm=|NC=00000001|algorithm=AKAv1-MD5|nonce=x==`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if v, ok := p.Value("nc"); v != "00000001" || !ok {
		t.Errorf("nc %q, %v", v, ok)
	}
	if v, ok := p.Value("realm"); v != "" || !ok {
		t.Errorf("realm %q, %v", v, ok)
	}
	if _, ok := p.Value("opaque"); ok {
		t.Error("opaque found")
	}
	for _, in := range []string{
		"", "Digest", "Digest ", "Digest abc", "Digest a=", `Digest a="`, "Digest a=b,", "Digest a=b c=d", "Digest a=b,,c=d", "Digest =b",
		"Digest a=1, A=2", `Digest username="x", realm="y", username="z"`, `Digest a="b"c`, "Digest " + strings.Repeat("a=1,", 3) + "b=2",
		"Digest " + manyAuthParams(MaxParams+1),
	} {
		if _, p, err := ParseAuth(in); err == nil {
			t.Errorf("%q accepted as %q", in, p)
		}
	}
	if _, _, err := ParseAuth("Digest " + manyAuthParams(MaxParams)); err != nil {
		t.Errorf("%d parameters: %v", MaxParams, err)
	}
}

func manyAuthParams(n int) string {
	var params []string
	for i := range n {
		params = append(params, fmt.Sprintf("p%d=v", i))
	}
	return strings.Join(params, ",")
}

func TestSplitElements(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", ""},
		{" a ", "a"},
		{"a,b , c", "a|b|c"},
		{",,a,,b,", "a|b"},
		{`"a,b" <c,d>;e="f,\",g",h`, `"a,b" <c,d>;e="f,\",g"|h`},
		{`<a">,b`, `<a">|b`},
		{`a,"b,c`, `a|"b,c`},
		{`a,<b,c`, `a|<b,c`},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			if got := strings.Join(slices.Collect(SplitElements(tt.in)), "|"); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestTransportAndFlow(t *testing.T) {
	for _, tr := range []Transport{UDP, TCP, TLS, WS, WSS} {
		if got, ok := ParseTransport(strings.ToLower(tr.String())); got != tr || !ok {
			t.Errorf("%s is read as %s, %v", tr, got, ok)
		}
		if tr.Reliable() != (tr != UDP) {
			t.Errorf("%s reliable: %v", tr, tr.Reliable())
		}
	}
	if _, ok := ParseTransport("SCTP"); ok || Transport(0).Reliable() || Transport(99).Reliable() {
		t.Error("a transport that is none")
	}
	f := Flow{"n1", TCP, netip.MustParseAddrPort("192.0.2.1:5060"), netip.MustParseAddrPort("[2001:db8::1]:40000"), 7}
	if got, want := f.String(), "n1/TCP/192.0.2.1:5060-[2001:db8::1]:40000#7"; got != want {
		t.Errorf("flow %s, want %s", got, want)
	}
}
