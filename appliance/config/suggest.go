package config

import (
	"maps"
	"slices"
	"strings"
)

// suggest says which key was probably meant, or which there are.
func suggest(key string, f fields) string {
	all := slices.Sorted(maps.Keys(f))
	if near, ok := Nearest(key, all); ok {
		return "write " + near
	}
	return "remove it, or write one of " + strings.Join(all, ", ")
}

// Nearest returns the one of the known words that a misspelt one probably
// means: at most two edits, and less than half of it, away.
func Nearest(word string, known []string) (string, bool) {
	best, found := 3, ""
	for _, k := range known {
		if d := distance(clip(word), k); d < best && 2*d < len(k) {
			best, found = d, k
		}
	}
	return found, found != ""
}

// distance is the number of edits between two short words: of a character, or
// of two that changed places.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := last[j]
			if a[i] != b[j] {
				cost++
			}
			row[j+1] = min(cost, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
