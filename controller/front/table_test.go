package front

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"bellwether/controller/state"
)

func TestTableForgetsTheLeastRecentlyUsed(t *testing.T) {
	var tab table[string]
	tab.init(3)
	now := time.Unix(1000, 0)
	later := now.Add(time.Hour)
	for i, k := range []string{"a", "b", "c"} {
		tab.put(k, state.GroupID(i), now, later)
	}
	tab.get("a", now, time.Time{})
	tab.put("d", 9, now, later)
	for k, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if _, ok := tab.get(k, now, time.Time{}); ok != want {
			t.Errorf("%s known: %v, want %v", k, ok, want)
		}
	}
}

func TestTableForgetsWhatIsOutOfTime(t *testing.T) {
	var tab table[string]
	tab.init(100)
	now := time.Unix(1000, 0)
	tab.put("a", 1, now, now.Add(time.Second))
	tab.put("b", 2, now, now.Add(time.Second))
	if _, ok := tab.get("a", now.Add(999*time.Millisecond), now.Add(time.Minute)); !ok {
		t.Error("a is forgotten before its time")
	}
	if _, ok := tab.get("b", now.Add(time.Second), time.Time{}); ok {
		t.Error("b is known after its time")
	}
	if _, ok := tab.get("a", now.Add(59*time.Second), now.Add(2*time.Second)); !ok {
		t.Error("a is forgotten though it was kept on")
	}
	if _, ok := tab.get("a", now.Add(60*time.Second), time.Time{}); ok {
		t.Error("a is known after its time")
	}
	// What nobody asks for goes when others come.
	for i := range 50 {
		tab.put(fmt.Sprint("old", i), 1, now, now.Add(time.Second))
	}
	for i := range 50 {
		tab.put(fmt.Sprint("new", i), 1, now.Add(time.Minute), now.Add(time.Hour))
	}
	if n := tab.len(); n != 50 {
		t.Errorf("%d entries, want the 50 new ones", n)
	}
}

// TestTableAgainstAList compares it with a list that does the same slowly.
func TestTableAgainstAList(t *testing.T) {
	type entry struct {
		key   int
		group state.GroupID
		until time.Time
	}
	const size = 8
	rnd := rand.New(rand.NewPCG(3, 4))
	var tab table[int]
	tab.init(size)
	var list []entry // the newest first
	find := func(k int) int {
		for i, e := range list {
			if e.key == k {
				return i
			}
		}
		return -1
	}
	now := time.Unix(1000, 0)
	for step := range 20_000 {
		now = now.Add(time.Duration(rnd.IntN(50)) * time.Millisecond)
		k := rnd.IntN(3 * size)
		i := find(k)
		switch rnd.IntN(4) {
		case 0, 1:
			g, until := state.GroupID(step), now.Add(time.Duration(rnd.IntN(1000))*time.Millisecond)
			tab.put(k, g, now, until)
			for range 2 {
				if n := len(list); n > 0 && !list[n-1].until.After(now) {
					list = list[:n-1]
				}
			}
			if i = find(k); i >= 0 {
				list = append(list[:i], list[i+1:]...)
			} else if len(list) == size {
				list = list[:size-1]
			}
			list = append([]entry{{k, g, until}}, list...)
		case 2:
			tab.remove(k)
			if i >= 0 {
				list = append(list[:i], list[i+1:]...)
			}
		case 3:
			g, ok := tab.get(k, now, time.Time{})
			want := i >= 0 && list[i].until.After(now)
			if ok != want || want && g != list[i].group {
				t.Fatalf("step %d: get %d gives %d, %v; want %v of %v", step, k, g, ok, want, list)
			}
			if i >= 0 {
				e := list[i]
				list = append(list[:i], list[i+1:]...)
				if want {
					list = append([]entry{e}, list...)
				}
			}
		}
		if tab.len() != len(list) {
			t.Fatalf("step %d: %d entries, want %d", step, tab.len(), len(list))
		}
		if n := len(tab.slots) - 1; n > size {
			t.Fatalf("step %d: %d slots, want at most %d", step, n, size)
		}
	}
}

func TestCausesHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for c := range causes {
		s := c.String()
		if s == "" || s == "unknown" || seen[s] {
			t.Errorf("cause %d is called %q", c, s)
		}
		seen[s] = true
	}
}
