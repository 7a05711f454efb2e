package repo

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "bellwether"

// folders are the top-level folders with source.
var folders = []string{"appliance", "controller", "cscf", "ha", "media", "packaging", "tui"}

// beside are the other top-level names; those that begin with a dot are free.
var beside = []string{"CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "bin", "dist", "docs", "go.mod", "go.sum"}

// role is what a serving role may build on.
var role = []string{"cscf/sipmsg", "cscf/transaction", "cscf/token", "cscf/assignment", "cscf/nexthop", "cscf/hss", "cscf/digest", "cscf/aka", "controller/state", "ha"}

// imports says which of our packages a package may import. "x/..." stands for
// x and everything below it; of several rules the longest counts. A package
// that no rule names may import nothing of ours.
var imports = map[string][]string{
	"appliance/...":    {"appliance/...", "controller/...", "cscf/...", "ha/...", "media/...", "tui/..."},
	"controller/...":   {"controller/...", "cscf/sipmsg", "cscf/token"},
	"controller/admin": {"controller/api"},
	"controller/api":   {},
	"controller/link":  {"cscf/sipmsg"},
	"controller/mesh":  {},
	"controller/state": {},
	"cscf/...":         {"cscf/sipmsg", "controller/state"},
	"cscf/aka":         {},
	"cscf/cscftest":    role,
	"cscf/eventrouter": {},
	"cscf/hss":         {"cscf/sipmsg", "cscf/digest", "cscf/aka", "controller/state"},
	"cscf/icscf":       role,
	"cscf/nexthop":     {"cscf/sipmsg", "cscf/transaction"},
	"cscf/pcscf":       role,
	"cscf/scscf":       role,
	"cscf/sipmsg":      {},
	"cscf/token":       {},
	"cscf/transaction": {"cscf/sipmsg"},
	"ha/...":           {},
	"media/...":        {"media/..."},
	"packaging/...":    {},
	"tui/...":          {"tui/...", "controller/api"},
}

// source is one Go file.
type source struct {
	name    string // slash-separated, from the top of the tree
	pkg     string // folder
	test    bool
	file    *ast.File
	imports []string
}

func TestTheTopFolderHoldsWhatItShould(t *testing.T) {
	entries, err := os.ReadDir(root(t))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), "."), slices.Contains(beside, e.Name()):
		case e.IsDir():
			found = append(found, e.Name())
		default:
			t.Errorf("%s does not belong at the top", e.Name())
		}
	}
	if !slices.Equal(found, folders) {
		t.Errorf("the top-level folders are %v, want %v", found, folders)
	}
}

func TestImportsFollowTheTable(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue // a test may stand on whatever it needs, but see below
		}
		for _, imp := range s.imports {
			if ours, ok := strings.CutPrefix(imp, module+"/"); ok && !allowed(s.pkg, ours) {
				t.Errorf("%s imports %s; package %s may import only %v", s.name, ours, s.pkg, rule(s.pkg))
			}
		}
	}
}

func TestNothingOutsideImportsTheAppliance(t *testing.T) {
	for _, s := range sources(t) {
		for _, imp := range s.imports {
			if strings.HasPrefix(imp, module+"/appliance") && !strings.HasPrefix(s.pkg, "appliance") {
				t.Errorf("%s imports %s", s.name, imp)
			}
		}
	}
}

func TestTheTableIsRead(t *testing.T) {
	for _, tt := range []struct {
		pkg, imports string
		want         bool
	}{
		{"cscf/sipmsg", "cscf/token", false},
		{"cscf/transaction", "cscf/sipmsg", true},
		{"cscf/transaction", "ha", false},
		{"controller/state", "cscf/sipmsg", false},
		{"controller/front", "controller/state", true},
		{"controller/front", "appliance/config", false},
		{"controller/admin", "controller/api", true},
		{"controller/admin", "controller/state", false},
		{"controller/admin/admintest", "controller/api", true},
		{"ha", "controller/state", false},
		{"ha/chord", "ha", false},
		{"media/rtp", "media/g711", true},
		{"tui/screens", "controller/admin", false},
		{"other", "ha", false},
		{"appliance/node", "ha", true},
	} {
		if got := allowed(tt.pkg, tt.imports); got != tt.want {
			t.Errorf("allowed(%s, %s) = %v, want %v", tt.pkg, tt.imports, got, tt.want)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		name := s.file.Name.Name
		if s.test && strings.HasSuffix(name, "_test") {
			continue
		}
		want := "Package " + name + " "
		if name == "main" {
			want = "Command " + path.Base(s.pkg) + " "
		}
		documented[s.pkg] = documented[s.pkg] || s.file.Doc != nil && strings.HasPrefix(s.file.Doc.Text(), want)
	}
	for _, pkg := range slices.Sorted(maps.Keys(documented)) {
		if !documented[pkg] {
			t.Errorf("package %s has no package comment", pkg)
		}
		switch path.Base(pkg) {
		case "util", "utils", "common", "helper", "helpers", "manager", "impl", "misc":
			t.Errorf("package %s: a name of that kind says nothing", pkg)
		}
	}
}

func TestEveryDependencyIsAccountedFor(t *testing.T) {
	required := map[string]bool{}
	requirement := regexp.MustCompile(`(?m)^(?:require)?\s+([a-z0-9.-]+\.[a-z]+/\S*) v`)
	for _, m := range requirement.FindAllStringSubmatch(string(read(t, "go.mod")), -1) {
		required[m[1]] = true
	}
	used := map[string]bool{}
	for _, s := range sources(t) {
		for _, imp := range s.imports {
			for m := imp; m != "."; m = path.Dir(m) {
				if required[m] {
					used[m] = true
					break
				}
			}
		}
	}
	listed := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]+ \\| [^|]+ \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(string(read(t, "docs/dependencies.md")), -1) {
		listed[m[1]] = true
	}
	for _, m := range slices.Sorted(maps.Keys(used)) {
		if !listed[m] {
			t.Errorf("docs/dependencies.md has no row for %s; say its licence, what for, and how it is kept", m)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(listed)) {
		if !used[m] {
			t.Errorf("docs/dependencies.md has a row for %s, which nothing imports", m)
		}
	}
}

func TestNoFileNamesAPathOfAMachine(t *testing.T) {
	machine := regexp.MustCompile(`(?m)(^|[^A-Za-z0-9_.])/(work|farm|root|home|Users)/\w`)
	walk(t, func(name string) {
		if name == "go.sum" {
			return
		}
		text := read(t, name)
		if bytes.IndexByte(text, 0) >= 0 {
			return
		}
		if at := machine.FindIndex(text); at != nil {
			t.Errorf("%s:%d names a path of a machine: %q", name, bytes.Count(text[:at[0]], []byte("\n"))+1, text[at[0]:at[1]])
		}
	})
}

// root is the top of the tree.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// walk visits the files of the project, not what was built or fetched.
func walk(t *testing.T, visit func(name string)) {
	t.Helper()
	top := root(t)
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist"}, name):
			return filepath.SkipDir
		case name == ".git": // the file that stands for it in a working tree of its own
		case d.Type().IsRegular():
			visit(filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	walk(t, func(name string) {
		if !strings.HasSuffix(name, ".go") || strings.Contains(name, "/testdata/") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, read(t, name), parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		s := source{name: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), file: f}
		for _, i := range f.Imports {
			imp, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			s.imports = append(s.imports, imp)
		}
		all = append(all, s)
	})
	return all
}

// rule is what the table says of a package.
func rule(pkg string) []string {
	if r, ok := imports[pkg]; ok {
		return r
	}
	for dir := pkg; dir != "."; dir = path.Dir(dir) {
		if r, ok := imports[dir+"/..."]; ok {
			return r
		}
	}
	return nil
}

func allowed(pkg, imported string) bool {
	return slices.ContainsFunc(rule(pkg), func(pattern string) bool {
		if dir, deep := strings.CutSuffix(pattern, "/..."); deep {
			return imported == dir || strings.HasPrefix(imported, dir+"/")
		}
		return imported == pattern
	})
}
