//go:build !race

// The race detector makes sync.Pool forget on purpose, so allocations are
// counted without it.

package token

import (
	"strings"
	"testing"
)

func TestOpenDoesNotAllocate(t *testing.T) {
	s := newSealer(t, "c1", secret)
	text := s.Seal(Token{Mode: Term, Group: 9, Binding: 8})
	forged := strings.Repeat("a", Size)
	branch := Branch(text, "abc")
	n := testing.AllocsPerRun(200, func() {
		tok, _ := FromBranch(branch)
		s.Open(tok)
		s.Open(forged)
	})
	if n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
