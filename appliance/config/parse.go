package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Parse reads and checks a configuration; name is used in problems.
// Its error, if any, is Problems.
func Parse(name string, data []byte) (*Config, error) {
	r := &reader{file: name, lines: map[string]int{}}
	root := r.document(data)
	if root == nil {
		return nil, r.sorted()
	}
	c := r.config(root)
	if len(r.problems) > 0 {
		return nil, r.sorted()
	}
	c.File = name
	return c, nil
}

// reader walks a document and collects problems instead of stopping at the first.
type reader struct {
	file     string
	problems Problems
	lines    map[string]int // where each scalar was written
}

func (r *reader) problem(line int, what, write string) {
	r.problems = append(r.problems, Problem{File: r.file, Line: max(line, 1), What: what, Write: write})
}

func (r *reader) sorted() Problems {
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return a.Line - b.Line })
	return r.problems
}

var syntaxLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// grammarFault is what the YAML library says of a fault for which it counts
// lines from 0; for others it counts from 1.
var grammarFault = regexp.MustCompile(`^did not find expected (<|node content|key|'-' indicator|',' or )`)

// document returns the root mapping, or nil when there is none.
func (r *reader) document(data []byte) *yaml.Node {
	if len(data) > MaxSize {
		r.problem(1, "the file is larger than 1 MB", "write only the keys of a node")
		return nil
	}
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		r.problem(1, "the file is empty", "write at least node.name, cluster, sip.domain and sip.address")
		return nil
	case err != nil:
		r.syntax(data, err)
		return nil
	}
	var next yaml.Node
	switch err := dec.Decode(&next); {
	case err == nil:
		r.problem(next.Line, "a second document begins here", "write one document, without ---")
	case !errors.Is(err, io.EOF):
		r.syntax(data, err)
		return nil
	}
	return doc.Content[0]
}

// bareAddress is an address that YAML does not take for a value.
var bareAddress = regexp.MustCompile(`(?m)^[^#\n]*[\[{,:] *::[0-9a-fA-F]`)

func (r *reader) syntax(data []byte, err error) {
	text := err.Error()
	line := 1
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
		}
		text = text[len(m[0]):]
		if grammarFault.MatchString(text) {
			line++
		}
	}
	write := "check the indentation and the colons around this line"
	if bareAddress.Match(data) {
		write = `put an IPv6 address that begins with a colon in quotes, such as "::1"`
	}
	r.problem(line, "this is not YAML: "+text, write)
}

// fields maps the keys of a mapping to what reads them.
type fields map[string]func(*yaml.Node)

// mapping reads the keys of n and returns which were there.
func (r *reader) mapping(n *yaml.Node, path string, f fields) map[string]*yaml.Node {
	seen := map[string]*yaml.Node{}
	if !r.is(n, yaml.MappingNode, path) {
		return seen
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := join(path, k.Value)
		read, known := f[k.Value]
		switch {
		case k.Kind != yaml.ScalarNode || !known:
			r.problem(k.Line, "unknown key "+show(k, key), suggest(k.Value, f))
		case seen[k.Value] != nil:
			r.problem(k.Line, fmt.Sprintf("%s is written twice, first on line %d", key, seen[k.Value].Line), "write it once")
		default:
			seen[k.Value] = k
			read(v)
		}
	}
	return seen
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// is reports whether n is of the kind, and if not, says so.
func (r *reader) is(n *yaml.Node, kind yaml.Kind, path string) bool {
	if n.Kind == kind && n.Anchor == "" {
		return true
	}
	if path == "" {
		path = "the file"
	}
	example, section := examples[path]
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		r.problem(n.Line, path+" uses a YAML anchor or alias", "write the value itself")
	case section:
		r.problem(n.Line, fmt.Sprintf("%s is %s", path, describe(n)), "write "+example)
	case kind == yaml.MappingNode:
		r.problem(n.Line, fmt.Sprintf("%s is %s", path, describe(n)), "write keys with values, such as name: n1")
	case kind == yaml.SequenceNode:
		r.problem(n.Line, fmt.Sprintf("%s is %s", path, describe(n)), "write a list, such as [a, b]")
	default:
		r.problem(n.Line, fmt.Sprintf("%s is %s", path, describe(n)), "write one value")
	}
	return false
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.Tag == "!!null" {
		return "empty"
	}
	return "the value " + strconv.Quote(clip(n.Value))
}

// show quotes a key that may hold anything.
func show(k *yaml.Node, key string) string {
	if k.Kind != yaml.ScalarNode {
		return "(" + describe(k) + ")"
	}
	return strconv.Quote(clip(key))
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// text returns a scalar's text; false after a problem.
func (r *reader) text(n *yaml.Node, path, write string) (string, bool) {
	if !r.is(n, yaml.ScalarNode, path) {
		return "", false
	}
	if n.Tag == "!!null" || n.Value == "" {
		r.problem(n.Line, path+" is empty", write)
		return "", false
	}
	r.lines[path] = n.Line
	return n.Value, true
}

// parsed returns a reader of a scalar into dst by f; f's error says what is wrong.
func parsed[T any](r *reader, path string, dst *T, write string, f func(string) (T, error)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		s, ok := r.text(n, path, write)
		if !ok {
			return
		}
		v, err := f(s)
		if err != nil {
			r.problem(n.Line, fmt.Sprintf("%s %q %v", path, clip(s), err), write)
			return
		}
		*dst = v
	}
}

func oneOf[T ~string](all ...T) func(string) (T, error) {
	return func(s string) (T, error) {
		if slices.Contains(all, T(s)) {
			return T(s), nil
		}
		return "", errors.New("does not exist")
	}
}

func number(lo, hi int64) func(string) (int64, error) {
	return func(s string) (int64, error) {
		n, err := strconv.ParseInt(s, 10, 64)
		switch {
		case errors.Is(err, strconv.ErrSyntax):
			return 0, errors.New("is not a whole number")
		case err != nil || n < lo || n > hi:
			return 0, fmt.Errorf("is not between %d and %d", lo, hi)
		}
		return n, nil
	}
}

// span reads a number of units as a duration.
func (r *reader) span(path string, dst *time.Duration, unit time.Duration, lo, hi int64) func(*yaml.Node) {
	write := fmt.Sprintf("write a whole number from %d to %d", lo, hi)
	return parsed(r, path, dst, write, func(s string) (time.Duration, error) {
		n, err := number(lo, hi)(s)
		return time.Duration(n) * unit, err
	})
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

func name(s string) (string, error) {
	if !label.MatchString(s) {
		return "", errors.New("is not a name")
	}
	return s, nil
}

func directory(limit int) func(string) (string, error) {
	return func(s string) (string, error) {
		switch {
		case !filepath.IsAbs(s):
			return "", errors.New("is not an absolute path")
		case strings.ContainsRune(s, 0):
			return "", errors.New("holds a NUL")
		case len(s) > limit:
			return "", fmt.Errorf("is longer than %d characters", limit)
		}
		return filepath.Clean(s), nil
	}
}

// What people write where an address must be.
var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9.-]*[A-Za-z][A-Za-z0-9.-]*$`)
	hostPort = regexp.MustCompile(`^[A-Za-z0-9.-]*[A-Za-z][A-Za-z0-9.-]*:[0-9]+$`)
)

func endpoint(s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(s)
	switch {
	case err != nil && hostPort.MatchString(s):
		return a, errors.New("is a name with a port, and names are not looked up")
	case err != nil:
		return a, errors.New("is not an address with a port")
	case a.Port() == 0:
		return a, errors.New("has port 0")
	case a.Addr().Zone() != "":
		return a, errors.New("has a zone")
	case a.Addr().IsUnspecified():
		return a, errors.New("means every address, and others must reach this one")
	case a.Addr().IsMulticast():
		return a, errors.New("is a multicast address")
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), nil
}

func loopback(s string) (netip.AddrPort, error) {
	a, err := endpoint(s)
	if err == nil && !a.Addr().IsLoopback() {
		err = errors.New("is not a loopback address, and metrics are for this machine only")
	}
	return a, err
}

func serviceAddress(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil && hostName.MatchString(s):
		return a, errors.New("is a name, and names are not looked up")
	case err != nil:
		return a, errors.New("is not an IP address")
	case a.Zone() != "":
		return a, errors.New("has a zone, which no SIP message can carry")
	}
	switch a = a.Unmap(); {
	case a.IsUnspecified():
		return a, errors.New("means every address, and phones need this one")
	case a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return a, errors.New("is not the address of one machine")
	case a.Is6() && a.IsLinkLocalUnicast():
		return a, errors.New("is a link-local address, which is good for one link only")
	}
	return a, nil
}

var domainLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func domain(s string) (string, error) {
	s = strings.ToLower(s)
	if _, err := netip.ParseAddr(s); err == nil {
		return "", errors.New("is an address")
	}
	if len(s) > 253 {
		return "", errors.New("is longer than 253 characters")
	}
	for l := range strings.SplitSeq(s, ".") {
		if !domainLabel.MatchString(l) {
			return "", errors.New("is not a domain name")
		}
	}
	return s, nil
}

func level(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, errors.New("does not exist")
}
