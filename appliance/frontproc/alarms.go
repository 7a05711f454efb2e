package frontproc

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"bellwether/controller/api"
)

// maxAlarms bounds the list; the oldest goes first.
const maxAlarms = 256

// alarmFor is how long an event that mends itself, such as a restarted child,
// stays on the list.
const alarmFor = time.Hour

// alarms are the alarms that this process knows of, by code.
type alarms struct {
	mu   sync.Mutex
	list map[string]api.Alarm
	seen map[string]time.Time // last raised
}

func newAlarms() *alarms {
	return &alarms{list: map[string]api.Alarm{}, seen: map[string]time.Time{}}
}

// raise puts an alarm on the list, or renews it.
func (a *alarms) raise(node, code string, at time.Time, text, do string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	since := at
	if old, ok := a.list[code]; ok {
		since = old.Since
	}
	a.list[code] = api.Alarm{Code: code, Severity: "warning", Node: node, Since: since, Text: text, WhatToDo: do}
	a.seen[code] = at
	for len(a.list) > maxAlarms {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(a.seen)), func(x, y string) int { return a.seen[x].Compare(a.seen[y]) })
		delete(a.list, oldest)
		delete(a.seen, oldest)
	}
}

// current lists the alarms, oldest first.
func (a *alarms) current(now time.Time) []api.Alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]api.Alarm, 0, len(a.list))
	for code, al := range a.list {
		if now.Sub(a.seen[code]) > alarmFor {
			delete(a.list, code)
			delete(a.seen, code)
			continue
		}
		out = append(out, al)
	}
	slices.SortFunc(out, func(x, y api.Alarm) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Code, y.Code))
	})
	return out
}
