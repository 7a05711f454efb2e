package config

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The page of keys names each key with its default and what a change takes, and
// its example is a file.
func TestThePageOfKeysIsTrue(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	c := defaults()
	rows := regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\| ([^|]+) \\| (restart|reload) \\|").FindAllStringSubmatch(string(text), -1)
	byKey := map[string][]string{}
	for _, r := range rows {
		byKey[r[1]] = r[2:]
	}
	all := values(c)
	for _, v := range all {
		row := byKey[v.key]
		if row == nil {
			t.Errorf("%s is not on the page", v.key)
			continue
		}
		want := map[bool]string{true: "reload", false: "restart"}[v.live]
		if row[1] != want {
			t.Errorf("a change of %s takes a %s, the page says %s", v.key, want, row[1])
		}
		if row[0] != "none" && row[0] != "one of each kind" && !strings.EqualFold(row[0], v.value) {
			t.Errorf("%s is %s by default, the page says %s", v.key, v.value, row[0])
		}
	}
	if len(rows) != len(all) {
		t.Errorf("%d rows, %d keys", len(rows), len(all))
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	if _, err := Parse("example.yaml", []byte(example)); err != nil {
		t.Errorf("the example: %v", err)
	}
}
