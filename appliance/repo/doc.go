// Package repo holds the rules of the source tree, as tests: which folders
// there are, which package may import which, that every package says what it
// is for, that every dependency is accounted for, and that no file names a
// path of somebody's machine.
//
// It has no code. A rule that stands in the way is changed here, in the table,
// together with docs/architecture.md, not worked around.
package repo
