package config

import (
	"maps"
	"slices"
	"strings"
)

// suggest says which key was probably meant, or which there are.
func suggest(key string, f fields) string {
	best, dist := "", 3
	all := slices.Sorted(maps.Keys(f))
	for _, k := range all {
		if d := distance(clip(key), k); d < dist || d == dist && best == "" && d < len(k)/2 {
			best, dist = k, d
		}
	}
	if best != "" {
		return "write " + best
	}
	return "remove it, or write one of " + strings.Join(all, ", ")
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
