package cli

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bellwether/controller/admin/admintest"
	"bellwether/controller/api"
)

// MD5 and SHA-256 of alice@example.test:example.test:secret, by md5sum and sha256sum.
const (
	aliceMD5    = "b7f630a2ce4465dbeac1b1c6ce0f68da"
	aliceSHA256 = "9b87f636d048a9283e0870993b1d45c2223d796349c847c04e1246eba84a02ed"
)

// provision is a node that shows what it was given to store.
func provision(t *testing.T) (do func(stdin string, args ...string) result, stored *[]api.NewSubscriber) {
	stored = &[]api.NewSubscriber{}
	socket := node(t, &admintest.Source{Stored: func(s api.NewSubscriber) { *stored = append(*stored, s) }})
	return func(stdin string, args ...string) result {
		t.Helper()
		return run(t, Hooks{}, stdin, append(append([]string{"subscriber"}, args...), "--socket", socket)...)
	}, stored
}

func TestAPasswordBecomesHashesBeforeItLeaves(t *testing.T) {
	do, stored := provision(t)
	do("secret\n", "add", "alice@example.test", "--password-stdin").is(t, "alice@example.test is stored with sip:alice@example.test\n", "", OK)
	do("MD5="+strings.ToUpper(aliceMD5)+"\nsha-256="+aliceSHA256+"\n", "add", "bob@example.test", "sip:bob@EXAMPLE.test;user=phone", "tel:+49-30-1", "|", "!sip:desk@example.test", "sip:x@example.test", "--ha1-stdin", "--realm", "ims.test").is(t,
		"bob@example.test is stored with sip:bob@example.test tel:+49301 | !sip:desk@example.test sip:x@example.test\n", "", OK)
	want := []api.NewSubscriber{
		{IMPI: "alice@example.test", Realm: "example.test", HA1: api.Credentials{MD5: aliceMD5, SHA256: aliceSHA256}, Identities: []api.Identity{{URI: "sip:alice@example.test"}}},
		{IMPI: "bob@example.test", Realm: "ims.test", HA1: api.Credentials{MD5: aliceMD5, SHA256: aliceSHA256}, Identities: []api.Identity{
			{URI: "sip:bob@example.test"}, {URI: "tel:+49301"}, {URI: "sip:desk@example.test", Set: 1, Barred: true}, {URI: "sip:x@example.test", Set: 1},
		}},
	}
	do("secret", "add", "alice@example.test", "--replace", "--password-stdin", "--algorithm", "MD5").is(t, "alice@example.test is stored with sip:alice@example.test\n", "", OK)
	do("secret", "add", "alice@example.test", "--replace", "--password-stdin", "--algorithm", "SHA-256,MD5").is(t, "alice@example.test is stored with sip:alice@example.test\n", "", OK)
	want = append(want, want[0], want[0])
	want[2].HA1.SHA256 = ""
	for i, w := range want {
		if d := cmp.Diff((*stored)[i], w); d != "" {
			t.Error(d)
		}
		if (*stored)[i].HA1 != w.HA1 { // cmp would print [hidden] for both
			t.Errorf("the HA1 of %s is wrong", w.IMPI)
		}
	}
}

func TestSubscribersAreListedShownAndRemoved(t *testing.T) {
	do, _ := provision(t)
	for _, name := range []string{"bob", "alice"} {
		if r := do("secret", "add", name+"@example.test", "sip:"+name+"@example.test", "tel:+49"+name[:0]+"1"+string('0'+name[0]%10), "--password-stdin"); r.code != OK {
			t.Fatalf("add %s = %+v", name, r)
		}
	}
	do("", "list").is(t, `IMPI                REALM         SECRET       AKA  IDENTITIES
alice@example.test  example.test  MD5 SHA-256  no   sip:alice@example.test tel:+4917
bob@example.test    example.test  MD5 SHA-256  no   sip:bob@example.test tel:+4918
`, "", OK)
	for _, name := range []string{"bob@example.test", "sip:bob@example.test", "tel:+49-18", "+4918"} {
		if r := do("", "show", name); r.code != OK || !strings.Contains(r.out, "\nbob@example.test ") {
			t.Errorf("show %s = %+v", name, r)
		}
	}
	do("secret", "add", "bob@example.test", "--password-stdin").is(t, "", "bellwether: bob@example.test exists already; give --replace to overwrite it\n", Failed)
	do("secret", "add", "bob@example.test", "--password-stdin", "--replace").is(t, "bob@example.test is stored with sip:bob@example.test\n", "bob@example.test had other identities, which are gone: tel:+4918\n", OK)
	do("", "export").is(t, "impi,impus,realm\nalice@example.test,sip:alice@example.test tel:+4917,example.test\nbob@example.test,sip:bob@example.test,example.test\n", "", OK)
	do("", "export", "--json").is(t, `{"impi":"alice@example.test","realm":"example.test","identities":[{"uri":"sip:alice@example.test","set":0},{"uri":"tel:+4917","set":0}],"algorithms":["MD5","SHA-256"]}
{"impi":"bob@example.test","realm":"example.test","identities":[{"uri":"sip:bob@example.test","set":0}],"algorithms":["MD5","SHA-256"]}
`, "", OK)
	do("", "remove", "sip:bob@example.test").is(t, "bob@example.test is removed, with sip:bob@example.test\n", "", OK)
	do("", "remove", "bob@example.test").is(t, "", "bellwether: there is no subscriber bob@example.test; see bellwether subscriber list\n", Failed)
}

func TestSecretsThatAreRefused(t *testing.T) {
	do, stored := provision(t)
	for _, tt := range []struct{ name, flag, stdin, want string }{
		{"an empty password", "--password-stdin", "\n", "the password is empty; give one"},
		{"two lines", "--password-stdin", "hush1\nhush2\n", "the password has more than one line; give one line"},
		{"a book", "--password-stdin", strings.Repeat("hush", 2000), "the secret has more than 4096 bytes; give a shorter one"},
		{"no HA1", "--ha1-stdin", "", "alice@example.test has no secret; give a password, its HA1, or K and OPc of a USIM"},
		{"a password for an HA1", "--ha1-stdin", "hush", "standard input holds no HA1; write MD5=HEX, SHA-256=HEX or both"},
		{"an HA1 twice", "--ha1-stdin", "MD5=" + aliceMD5 + " MD5=" + aliceMD5, "standard input holds no HA1; write MD5=HEX, SHA-256=HEX or both"},
		{"an HA1 that is too short", "--ha1-stdin", "MD5=abcd", "the MD5 HA1 of alice@example.test is malformed; write 32 lower-case hex digits"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := do(tt.stdin, "add", "alice@example.test", tt.flag)
			r.is(t, "", "bellwether: "+tt.want+"\n", Failed)
			if strings.Contains(r.err, "hush") {
				t.Errorf("the secret is printed: %s", r.err)
			}
		})
	}
	if len(*stored) > 0 {
		t.Errorf("stored %v", *stored)
	}
}

func TestImport(t *testing.T) {
	do, stored := provision(t)
	file := filepath.Join(t.TempDir(), "subscribers.csv")
	write(t, file, "\xef\xbb\xbfIMPI, impus ,password,ha1_md5\r\n"+
		"alice@example.test,sip:alice@example.test,secret,\r\n"+
		"\r\n"+
		`"bob@example.test","sip:bob@example.test | tel:+49301",,`+aliceMD5+"\r\n"+
		`carol@example.test,sip:carol@example.test,"with, "" and space ",`+"\r\n")
	do("", "import", file).is(t, "3 subscribers added, 0 replaced\n", "", OK)
	if got := *stored; len(got) != 3 || got[0].HA1 != (api.Credentials{MD5: aliceMD5, SHA256: aliceSHA256}) ||
		got[1].HA1 != (api.Credentials{MD5: aliceMD5}) || got[1].Identities[1].Set != 1 ||
		got[2].HA1 != algorithms(nil).credentials("carol@example.test", "example.test", `with, " and space `) || got[2].Line != 5 {
		t.Errorf("stored %+v", got)
	}
	do("impi,impus,password,realm\nalice@example.test,sip:alice@example.test,secret,ims.test\n", "import", "-", "--json").is(t,
		"{\n  \"added\": 0,\n  \"replaced\": 1\n}\n", "", OK)
	if got := (*stored)[3]; got.Realm != "ims.test" || got.HA1 != algorithms(nil).credentials("alice@example.test", "ims.test", "secret") {
		t.Errorf("stored %+v", got)
	}
	do("impi,password\nerin@example.test,secret\n", "import", "-", "--algorithm", "md5").is(t, "1 subscriber added, 0 replaced\n", "", OK)
	if got := (*stored)[4]; got.HA1.MD5 == "" || got.HA1.SHA256 != "" || len(got.Identities) != 1 || got.Identities[0].URI != "sip:erin@example.test" {
		t.Errorf("stored %+v", got)
	}
	write(t, file, "impi,impus,password\ndave@example.test,sip:bob@example.test,x\n")
	do("", "import", file).is(t, "", "bellwether: "+file+": nothing was imported: line 2: sip:bob@example.test belongs to bob@example.test; give each public identity to one subscriber\n", Failed)
	do("", "import", file+"x").is(t, "", "bellwether: import subscribers: open "+file+"x: no such file or directory\n", Failed)
}

func TestAnImportWithFaultsImportsNothing(t *testing.T) {
	for _, tt := range []struct {
		name, csv string
		want      []string
	}{
		{"an empty file", "", []string{"1: there are no subscribers; write impi,impus,password and a line for each"}},
		{"only a head", "impi,impus,password\n", []string{"1: there are no subscribers; write impi,impus,password and a line for each"}},
		{"a misspelt column", "impi,impuss,password\n", []string{`1: there is no column "impuss"; write impus`}},
		{"a foreign column", "impi,impus,password,colour\n", []string{`1: there is no column "colour"; write some of impi, impus, password, ha1_md5, ha1_sha256, realm, k, opc, op, amf`}},
		{"a column twice", "impi,impus,password,impi\n", []string{"1: the column impi is there twice; write it once"}},
		{"no impi", "impus,password\n", []string{"1: the column impi is missing; write impi,impus,password in the first line"}},
		{"no secret column", "impi,impus\n", []string{"1: there is no secret; add a column password, ha1_md5 or ha1_sha256, or k and opc"}},
		{"a row too short", "impi,impus,password\na@b.test,sip:a@b.test\n", []string{"2: there are 2 columns; write 3, as in the first line"}},
		{"a stray quote", "impi,impus,password\na@b.test,sip:a@b.test,hu\"sh\n", []string{`2: this is not CSV (bare " in non-quoted-field); put a value with quotes in quotes, and double them`}},
		{"faults on several lines", "impi,impus,password,ha1_md5\n" +
			"alice,sip:alice@b.test,hush,\n" +
			"bob@b.test,tel:12,hush,\n" +
			"good@b.test,sip:good@b.test,hush,\n" +
			"carol@b.test,mailto:carol,hush,\n" +
			"dave@b.test,sip:dave@b.test,,\n" +
			"erin@b.test,sip:erin@b.test,hush," + aliceMD5 + "\n" +
			"frank@b.test,sip:good@B.test,hush,\n" +
			"good@b.test,sip:other@b.test,hush,\n" +
			"gina@b.test,sip:gina@b.test,,hush\n",
			[]string{
				`2: "alice" is not an IMPI; write it as user@realm, without spaces`,
				`3: "tel:12" is not a telephone number; write it as tel:+4930123456, or a local one as tel:12;phone-context=example.org`,
				`5: "mailto:carol" is not a public identity; write it as sip:user@domain or tel:+number`,
				"6: dave@b.test has no secret; give a password, its HA1, or K and OPc of a USIM",
				"7: erin@b.test has both a password and an HA1; give one of them",
				"8: sip:good@b.test is on line 4 already; give it once",
				"9: IMPI good@b.test is on line 4 already; give it once",
				"10: the MD5 HA1 of gina@b.test is malformed; write 32 lower-case hex digits",
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			do, stored := provision(t)
			file := filepath.Join(t.TempDir(), "s.csv")
			write(t, file, tt.csv)
			want := ""
			for _, line := range tt.want {
				want += file + ":" + line + "\n"
			}
			r := do("", "import", file)
			r.is(t, "", want+file+": nothing was imported\n", Failed)
			if len(*stored) > 0 || strings.Contains(r.err, "hush") {
				t.Errorf("stored %v, printed %q", *stored, r.err)
			}
		})
	}
}

func TestAFileFullOfFaultsIsNotPrintedWhole(t *testing.T) {
	do, _ := provision(t)
	r := do("impi,impus,password\n"+strings.Repeat("x,y,z\n", 1000), "import", "-")
	if n := strings.Count(r.err, "\n"); n != maxImportErrors+2 || !strings.Contains(r.err, "standard input: and perhaps more; mend these first\n") {
		t.Errorf("%d lines: %q", n, r.err)
	}
}

func FuzzParseImport(f *testing.F) {
	f.Add("impi,impus,password\nalice@b.test,sip:alice@b.test,hush\n")
	f.Add("impi,impus,ha1_md5\na@b,tel:+1 | !sip:a@b sip:c@d," + aliceMD5 + "\n")
	f.Add("impi,k,op,amf\na@b," + testK + "," + testOP + ",8000\n")
	f.Add("\"")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseImport("f", strings.NewReader(text), nil)
		if (len(all) == 0) == (err == nil) {
			t.Fatalf("%d subscribers, error %v", len(all), err)
		}
		for _, s := range all {
			if err := s.Check(); err != nil {
				t.Errorf("accepted what cannot be stored: %v", err)
			}
			if again, err := identities(notation(s.Identities)); err != nil || !cmp.Equal(again, s.Identities) {
				t.Errorf("notation %q reads as %v, %v", notation(s.Identities), again, err)
			}
		}
	})
}

// typed runs a subscriber add at a terminal, with what the user types.
func typed(t *testing.T, secret, lines string, args ...string) (result, []api.NewSubscriber) {
	t.Helper()
	user, tty := terminal(t)
	var stored []api.NewSubscriber
	socket := node(t, &admintest.Source{Stored: func(s api.NewSubscriber) { stored = append(stored, s) }})
	var out strings.Builder
	// The questions are written while the user types, so they tell when.
	questions := make(questions, 16)
	done := make(chan int)
	go func() {
		done <- Run(t.Context(), append([]string{"subscriber", "add", "alice@example.test", "--socket", socket}, args...), IO{tty, &out, questions}, Hooks{})
	}()
	for _, line := range strings.SplitAfter(lines, "\n") {
		if line == "" {
			continue
		}
		for q := range questions {
			if strings.HasSuffix(q, ": ") {
				break
			}
		}
		if _, err := user.WriteString(line); err != nil {
			t.Fatal(err)
		}
	}
	code := <-done
	close(questions)
	var errs strings.Builder
	for q := range questions {
		errs.WriteString(q)
	}
	if echo := echoed(t, user, tty); strings.Contains(echo, secret) {
		t.Errorf("the terminal shows %q", echo)
	}
	return result{out.String(), errs.String(), code}, stored
}

func TestThePasswordIsAskedForWithoutEcho(t *testing.T) {
	r, stored := typed(t, "secret", "secret\nsecret\n")
	r.is(t, "alice@example.test is stored with sip:alice@example.test\n", "\n", OK)
	if len(stored) != 1 || stored[0].HA1 != (api.Credentials{MD5: aliceMD5, SHA256: aliceSHA256}) {
		t.Errorf("stored %v", stored)
	}
	r, stored = typed(t, "secret", "secret\nsecreT\n")
	r.is(t, "", "\nbellwether: the passwords differ; try again\n", Failed)
	if len(stored) != 0 {
		t.Errorf("stored %v", stored)
	}
}

func TestAnInterruptedQuestionLeavesTheTerminalAsItWas(t *testing.T) {
	user, tty := terminal(t)
	src := &admintest.Source{Stored: func(api.NewSubscriber) { t.Error("something was stored") }}
	ctx, interrupt := context.WithCancel(t.Context())
	questions := make(questions, 16)
	done := make(chan int)
	socket := node(t, src)
	go func() {
		done <- Run(ctx, []string{"subscriber", "add", "alice@example.test", "--socket", socket}, IO{tty, io.Discard, questions}, Hooks{})
	}()
	if q := <-questions; q != "Password of alice@example.test: " {
		t.Errorf("asked %q", q)
	}
	interrupt()
	if code := <-done; code != Failed {
		t.Errorf("code %d, want %d", code, Failed)
	}
	<-questions // the end of the line
	if got := <-questions; got != "bellwether: interrupted\n" {
		t.Errorf("said %q", got)
	}
	echoed(t, user, tty)
}

// questions passes on what is written to standard error.
type questions chan string

func (q questions) Write(p []byte) (int, error) { q <- string(p); return len(p), nil }

func TestWhatMayNotHaveBeenMeantIsSaid(t *testing.T) {
	socket := node(t, cluster())
	add := func(args ...string) result {
		return run(t, Hooks{}, "secret", append([]string{"subscriber", "add", "--password-stdin", "--socket", socket}, args...)...)
	}
	if r := add("bob@other.org"); r.code != OK || r.err != "no phone can register as bob@other.org: none of its identities is of the domain example.test, which this cluster serves\n" {
		t.Errorf("a domain that is not served: %+v", r)
	}
	if r := add("carl@example.test", "sip:carl@example.test", "tel:+49300004"); r.code != OK || r.err != "" {
		t.Errorf("a domain that is served: %+v", r)
	}
	if r := add("--replace", "carl@example.test"); r.code != OK || r.err != "carl@example.test had other identities, which are gone: tel:+49300004\n" {
		t.Errorf("an identity that is replaced: %+v", r)
	}
}
