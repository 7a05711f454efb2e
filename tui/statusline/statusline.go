// Package statusline draws one line of live status at the bottom of a terminal,
// or a line now and then where the output is no terminal.
//
// It decides nothing about what is shown: its user gives labelled figures in
// the order of importance; what does not fit the width is left out from the
// end, never wrapped. Text is stripped of control characters.
package statusline

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"
)

// Item is a figure and what it counts: "100", "registered".
type Item struct {
	Value, Label string
	Bad          bool // draws attention, where colour is allowed
}

// every is the interval of lines where the output is no terminal.
const every = 5 * time.Second

// Line is where the status goes.
type Line struct {
	w     io.Writer
	tty   bool
	color bool
	width func() int
	last  time.Time
}

// New returns a line on w. Colour is used on a terminal unless NO_COLOR is set
// (no-color.org).
func New(w io.Writer) *Line {
	l := &Line{w: w, width: func() int { return 80 }}
	if f, ok := w.(*os.File); ok && term.IsTerminal(f.Fd()) {
		l.tty = true
		l.color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		l.width = func() int {
			if w, _, err := term.GetSize(f.Fd()); err == nil && w > 0 {
				return w
			}
			return 80
		}
	}
	return l
}

// Show replaces the line. It returns a write error of the output.
func (l *Line) Show(now time.Time, items ...Item) error {
	if !l.tty {
		if now.Sub(l.last) < every {
			return nil
		}
		l.last = now
		_, err := fmt.Fprintln(l.w, Text(0, false, items...))
		return err
	}
	_, err := fmt.Fprintf(l.w, "\r%s\x1b[K", Text(l.width()-1, l.color, items...))
	return err
}

// End leaves the last line where it stands and goes to the next.
func (l *Line) End() error {
	if !l.tty {
		return nil
	}
	_, err := fmt.Fprintln(l.w)
	return err
}

var (
	strong = lipgloss.NewStyle().Bold(true)
	alert  = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Red)
)

// Text renders items into at most width columns; 0 is no limit.
func Text(width int, color bool, items ...Item) string {
	var b strings.Builder
	used := 0
	for i, it := range items {
		value, label := clean(it.Value), clean(it.Label)
		n := ansi.StringWidth(value + label)
		if label != "" {
			n++
		}
		if i > 0 {
			n += 2
		}
		if width > 0 && used+n > width {
			break
		}
		used += n
		if i > 0 {
			b.WriteString("  ")
		}
		switch {
		case color && it.Bad:
			value = alert.Render(value)
		case color:
			value = strong.Render(value)
		}
		b.WriteString(value)
		if label != "" {
			b.WriteString(" " + label)
		}
	}
	return b.String()
}

// clean keeps what a terminal prints as it is.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, s)
}
