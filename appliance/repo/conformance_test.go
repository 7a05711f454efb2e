package repo

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	conformance = "docs/conformance.md"
	torture     = "cscf/sipmsg/testdata/rfc4475/expected.tsv"
	checks      = 50
	bugClasses  = 34
)

var update = flag.Bool("update", false, "write "+conformance)

// claim is what the comment of a test function says it proves.
type claim struct {
	kind   string // "Check", "Bug class", "Bad input", or a specification such as "RFC 4475"
	number int    // of a check or bug class
	source string // specification and section, or what a bad input is
	text   string
	test   string
	pkg    string
}

var claimed = regexp.MustCompile(`^(?:(Check|Bug class) (\d+)|(Bad input)|(RFC \d+|TS \d+\.\d+))(?: \(([^)]*)\))?: (.+)$`)

// parseClaim reads the first paragraph of a comment.
func parseClaim(comment string) (c claim, ok bool) {
	paragraph, _, _ := strings.Cut(comment, "\n\n")
	m := claimed.FindStringSubmatch(strings.Join(strings.Fields(paragraph), " "))
	if m == nil {
		return c, false
	}
	c = claim{kind: m[1] + m[3] + m[4], source: m[5], text: m[6]}
	if m[2] != "" {
		c.number, _ = strconv.Atoi(m[2])
	}
	return c, true
}

// claims reads the comments of all test functions.
func claims(t *testing.T) []claim {
	t.Helper()
	var all []claim
	walk(t, func(name string) {
		if !strings.HasSuffix(name, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, read(t, name), parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Doc == nil || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") {
				continue
			}
			if c, ok := parseClaim(fn.Doc.Text()); ok {
				c.test, c.pkg = fn.Name.Name, path.Dir(name)
				all = append(all, c)
			}
		}
	})
	slices.SortStableFunc(all, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), a.number-b.number, cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test))
	})
	return all
}

// TestConformanceIsDocumented keeps the document in step with the tests; with
// -update it writes it.
func TestConformanceIsDocumented(t *testing.T) {
	all := claims(t)
	for kind, most := range map[string]int{"Check": checks, "Bug class": bugClasses} {
		for n := 1; n <= most; n++ {
			name := fmt.Sprintf("Test%s%02d", map[string]string{"Check": "Check", "Bug class": "BugClass"}[kind], n)
			if !slices.ContainsFunc(all, func(c claim) bool {
				return c.kind == kind && c.number == n && strings.HasPrefix(c.test, name)
			}) {
				t.Errorf("no %s... says that it proves %s %d; write // %s %d (source): what it proves, above the test that does", name, kind, n, kind, n)
			}
		}
	}
	text := document(t, all)
	if *update {
		if err := os.WriteFile(filepath.Join(root(t), conformance), text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(read(t, conformance), text) {
		t.Errorf("%s is not what the tests say; run make docs", conformance)
	}
}

func document(t *testing.T, all []claim) []byte {
	var b bytes.Buffer
	b.WriteString("# Conformance\n\n" +
		"What is proved of SIP and IMS behaviour, and by which test. `make docs` makes this page of the tests' comments; a test fails when the two differ. " +
		"Run one by its name: `go test -race -run TestCheck12 ./appliance/acceptance`. Tests in `appliance/acceptance` run the real program as a cluster and talk to it over real sockets.\n")
	table := func(title, intro, head string, rows []string) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s\n%s\n", title, intro, head, strings.Join(rows, "\n"))
	}
	var check, bug, bad, spec []string
	for _, c := range all {
		test := fmt.Sprintf("`%s` in `%s`", c.test, c.pkg)
		switch c.kind {
		case "Check":
			check = append(check, row(strconv.Itoa(c.number), c.source, c.text, test))
		case "Bug class":
			bug = append(bug, row(strconv.Itoa(c.number), c.source, c.text, test))
		case "Bad input":
			bad = append(bad, row(c.source, c.text, test))
		default:
			spec = append(spec, row(strings.TrimSpace(c.kind+" "+c.source), c.text, test))
		}
	}
	table("Fifty checks of a proxy and registrar", "Sections are those of RFC 3261 where no other RFC is named.",
		"| check | source | what is proved | test |\n| --- | --- | --- | --- |", check)
	table("Specifications and their test vectors", "Beside the checks above.",
		"| source | what is proved | test |\n| --- | --- | --- |", spec)
	var messages []string
	for line := range strings.Lines(string(read(t, torture))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 6 {
			t.Fatalf("%s: a line of %d fields: %q", torture, len(f), line)
		}
		messages = append(messages, row("`"+f[0]+"`", "§"+f[1], f[2], f[3], f[4], f[5]))
	}
	table("Messages of RFC 4475", "Each is a subtest of the tests `TestTorture...` in `appliance/acceptance`: sent by somebody who is not registered, by a registered phone with its hosts replaced, and over TCP. "+
		"A number is the status of the answer, `none` that there is none.",
		"| message | section | from a stranger | from a phone | over TCP | why |\n| --- | --- | --- | --- | --- | --- |", messages)
	table("Bad input", "Each with the memory of the front and worker processes before and after, and with service going on for others.",
		"| input | what is proved | test |\n| --- | --- | --- |", bad)
	table("Bug classes", "What brought other SIP servers down between 2018 and 2026, sent to this one.",
		"| class | seen in | what is proved | test |\n| --- | --- | --- | --- |", bug)
	return b.Bytes()
}

func row(cells ...string) string {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", "\\|")
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

func TestCommentsAreReadAsClaims(t *testing.T) {
	for _, tt := range []struct {
		name, comment string
		want          claim
	}{
		{"a check", "Check 12 (RFC 3261 §18.3): a datagram that\nis too short is answered 400.\n\nMore.", claim{kind: "Check", number: 12, source: "RFC 3261 §18.3", text: "a datagram that is too short is answered 400."}},
		{"a bug class", "Bug class 4 (Kamailio CVE-2018-14767): two To headers.", claim{kind: "Bug class", number: 4, source: "Kamailio CVE-2018-14767", text: "two To headers."}},
		{"a bad input", "Bad input (header bombs): refused.", claim{kind: "Bad input", source: "header bombs", text: "refused."}},
		{"a specification", "RFC 5118: IPv6 forms.", claim{kind: "RFC 5118", text: "IPv6 forms."}},
		{"a section of one", "TS 35.208 (§4): test set 1.", claim{kind: "TS 35.208", source: "§4", text: "test set 1."}},
		{"any other comment", "TestX checks something: more.", claim{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, _ := parseClaim(tt.comment); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
