package cli

import (
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// columns are how wide help is: what any terminal shows.
const columns = 80

// fold breaks lines that are wider than a terminal, between words where it can.
func fold(text string, width int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line, ended := strings.CutSuffix(line, "\n")
		for utf8.RuneCountInString(line) > width {
			wide := 0 // bytes of as many characters as fit
			for range width {
				_, n := utf8.DecodeRuneInString(line[wide:])
				wide += n
			}
			cut := strings.LastIndexByte(line[:wide+1], ' ')
			if strings.TrimSpace(line[:max(cut, 0)]) == "" {
				cut = wide
			}
			out.WriteString(strings.TrimRight(line[:cut], " ") + "\n")
			line = strings.TrimLeft(line[cut:], " ")
		}
		out.WriteString(line)
		if ended {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// refill sets paragraphs anew, so that they fit a terminal. Indented lines stay
// as they are.
func refill(text string) string {
	var out []string
	paragraph := ""
	flush := func() {
		if paragraph != "" {
			out = append(out, strings.TrimRight(fold(paragraph, columns), "\n"))
		}
		paragraph = ""
	}
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, " "):
			flush()
			out = append(out, line)
		case paragraph == "":
			paragraph = line
		default:
			paragraph += " " + line
		}
	}
	flush()
	return strings.Join(out, "\n")
}

// narrow makes the help of a command and of those below it fit a terminal.
func narrow(c *cobra.Command) {
	c.Long = refill(c.Long)
	for _, sub := range c.Commands() {
		narrow(sub)
	}
}
