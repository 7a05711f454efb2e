package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// print writes v as JSON.
func (a *app) print(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table aligns rows under their heads.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, heads ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row(heads)
	return t
}

// add writes a row; empty cells become a dash.
func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = clean(fmt.Sprint(c))
		if row[i] == "" {
			row[i] = "-"
		}
	}
	t.row(row)
}

func (t *table) row(cells []string) { fmt.Fprintln(t.w, strings.Join(cells, "\t")) }

func (t *table) end() error { return t.w.Flush() }

// clean makes text harmless for a terminal: what controls one, or hides or
// reorders text, is shown as an escape.
func clean(s string) string {
	if strings.IndexFunc(s, controls) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if controls(r) {
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func controls(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co) || r == unicode.ReplacementChar
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
