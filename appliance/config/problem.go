package config

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong in a file.
type Problem struct {
	File  string
	Line  int    // from 1
	What  string // what is wrong
	Write string // what to write instead
}

// Error is one line: file:line: what is wrong; what to write.
func (p Problem) Error() string {
	return fmt.Sprintf("%s:%d: %s; %s", p.File, p.Line, p.What, p.Write)
}

// Problems are all problems of a file, in the order of its lines.
type Problems []Problem

// Error has one line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}
