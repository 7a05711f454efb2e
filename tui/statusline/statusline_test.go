package statusline

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
)

func TestTextIsNeverWiderThanTheWindow(t *testing.T) {
	items := []Item{{Value: "100", Label: "registered"}, {Value: "日本", Label: "calls"}, {Value: "0", Label: "failed", Bad: true}}
	for width := 1; width < 60; width++ {
		for _, color := range []bool{false, true} {
			if got := ansi.StringWidth(Text(width, color, items...)); got > width {
				t.Errorf("width %d, color %v: line is %d wide", width, color, got)
			}
		}
	}
	if got, want := Text(0, false, items...), "100 registered  日本 calls  0 failed"; got != want {
		t.Errorf("without a limit: got %q, want %q", got, want)
	}
}

func TestTextDropsControlCharacters(t *testing.T) {
	got := Text(0, false, Item{Value: "a\x1b]8;;x\x07b\r\n", Label: "c\td"})
	if strings.ContainsAny(got, "\x1b\x07\r\n\t") {
		t.Errorf("control characters in %q", got)
	}
}

func TestWithoutATerminalALineComesNowAndThen(t *testing.T) {
	var out bytes.Buffer
	l := New(&out)
	at := time.Unix(1000, 0)
	for range 11 { // ten seconds
		if err := l.Show(at, Item{Value: "1", Label: "call"}); err != nil {
			t.Fatal(err)
		}
		at = at.Add(time.Second)
	}
	if got := out.String(); got != "1 call\n1 call\n1 call\n" {
		t.Errorf("got %q, want three lines in ten seconds", got)
	}
}
