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

// distance is the number of single-character edits between two short words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
