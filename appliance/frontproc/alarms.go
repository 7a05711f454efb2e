package frontproc

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"bellwether/appliance/config"
	"bellwether/controller/api"
)

// maxEvents bounds the events on the list; the one longest ago goes first.
const maxEvents = 256

const (
	// eventFor is how long an event that mends itself, such as a restarted
	// child, stays on the list after it happened last.
	eventFor = 10 * time.Minute
	// lostFor is how long lost registrations are told: by then the phones,
	// which register for an hour as a rule, are back.
	lostFor = time.Hour

	unstableWithin = time.Minute
	unstableAfter  = 3 // changes of leader within that time
)

// alarms are the alarms that this process knows of: events, which
// stay for some minutes, and conditions, which stay for as long as they hold.
type alarms struct {
	mu         sync.Mutex
	events     map[string]event     // by node and code
	conditions map[string]api.Alarm // by code
}

// event is an alarm about what happened. Its Since is when it happened first.
type event struct {
	api.Alarm
	last time.Time
}

func newAlarms() *alarms {
	return &alarms{events: map[string]event{}, conditions: map[string]api.Alarm{}}
}

// raise puts an event on the list, or renews it.
func (a *alarms) raise(al api.Alarm, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	al.Since = now
	key := al.Node + " " + al.Code
	if old, ok := a.events[key]; ok {
		al.Since = old.Since
	}
	a.events[key] = event{al, now}
	if len(a.events) > maxEvents {
		oldest := slices.MinFunc(slices.Collect(maps.Values(a.events)), func(x, y event) int { return x.last.Compare(y.last) })
		delete(a.events, oldest.Node+" "+oldest.Code)
	}
}

// hold says which conditions there are now. Their Since is when they were
// first said to be.
func (a *alarms) hold(list []api.Alarm, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := make(map[string]api.Alarm, len(list))
	for _, al := range list {
		al.Since = now
		if old, ok := a.conditions[al.Code]; ok {
			al.Since = old.Since
		}
		next[al.Code] = al
	}
	a.conditions = next
}

// severities are those of alarms, the worst first.
var severities = []string{"critical", "warning"}

// current lists the alarms: the worst first, of these the oldest.
func (a *alarms) current(now time.Time) []api.Alarm {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := slices.AppendSeq(make([]api.Alarm, 0, len(a.conditions)+len(a.events)), maps.Values(a.conditions))
	for code, e := range a.events {
		if now.Sub(e.last) > eventFor {
			delete(a.events, code)
			continue
		}
		out = append(out, e.Alarm)
	}
	slices.SortFunc(out, func(x, y api.Alarm) int {
		return cmp.Or(cmp.Compare(slices.Index(severities, x.Severity), slices.Index(severities, y.Severity)), x.Since.Compare(y.Since), cmp.Compare(x.Code, y.Code))
	})
	return out
}

// conditions are the alarms that follow from how things are.
func (p *Process) conditions(now time.Time) []api.Alarm {
	var out []api.Alarm
	warning := func(code, node, text, do string) {
		out = append(out, api.Alarm{Code: code, Severity: "warning", Node: node, Text: text, WhatToDo: do})
	}
	critical := func(code, node, text, do string) {
		out = append(out, api.Alarm{Code: code, Severity: "critical", Node: node, Text: text, WhatToDo: do})
	}
	up := p.workers.nodes()
	up[p.cfg.Node.Name] = true
	standing := p.ctl.Standing()
	leader, led := p.ctl.Leader()
	if n := p.elections.see(leader, now); n > unstableAfter {
		warning("unstable_leader", p.cfg.Node.Name, fmt.Sprintf("the controllers chose a leader %d times within a minute", n),
			"a machine is overloaded, or the network between them loses or delays much: look at the load of the controllers")
	}
	missing := slices.ContainsFunc(p.cfg.Cluster.Controllers, func(c config.Controller) bool { return !up[c.Name] })
	switch {
	case standing.Text != "":
		critical("controllers_"+standing.Phase, p.cfg.Node.Name, standing.Text, standing.WhatToDo)
	case !led && missing:
		critical("no_leader", p.cfg.Node.Name, "no majority of the controllers works together",
			"start the controllers that are down, or mend the network between them")
	case !led:
		critical("no_leader", p.cfg.Node.Name, "the controllers are there, but have no leader just now",
			"nothing, if this passes: they are choosing one; else a machine or the network is too slow")
	}
	down := map[string]bool{}
	for _, n := range p.members() {
		if !up[n] {
			down[n] = true
			critical("node_down:"+n, n, "node "+n+" is not there", "start it, or mend the network to it; its log says more")
		}
	}
	loads := p.workers.loads()
	for w := range p.ctl.State().Workers() {
		if _, ok := loads[w.Group]; !ok && !down[w.Node] {
			critical("worker_down:"+w.ID, w.Node, "worker "+w.ID+" is not connected",
				"look at node "+w.Node+": what does its log say")
		}
	}
	for id, l := range loads {
		if g, ok := p.ctl.State().Group(id); ok && l.Lost > 0 && l.LostAgo < lostFor {
			w, _ := p.ctl.State().Worker(g.Serving)
			warning("registrations_lost:"+w.ID, w.Node, fmt.Sprintf("worker %s has no registration of %s who had one there: lost with its disk, or ended while it was down", w.ID, users(l.Lost)),
				"nothing: calls to them are refused until their phones register again, which they do by themselves; this line goes after an hour")
		}
	}
	for node, r := range p.workers.reports() {
		if r.StoreError != "" {
			critical("store_failed:"+node, node, "the journal of node "+node+" failed: "+r.StoreError,
				"registrations through its workers are refused; mend the disk or free space, then restart the node")
		}
		for id, why := range r.Refused {
			critical("worker_refused:"+node+"/"+id, node, "worker "+id+" of node "+node+": "+why,
				"correct the workers in the configuration of node "+node+", then restart that node")
		}
	}
	for _, node := range p.workers.doubled(now) {
		critical("node_twice:"+node, node, "two machines say that they are node "+node,
			"stop the one that is not meant to be; was a machine cloned with its data_dir")
	}
	out = append(out, familyAlarms(p.ctl.State())...)
	return append(out, p.certificateAlarms(now)...)
}

func users(n int) string {
	if n == 1 {
		return "1 user"
	}
	return fmt.Sprintf("%d users", n)
}

// elections remember when this node saw a new leader.
type elections struct {
	mu   sync.Mutex
	last string
	at   []time.Time // at most maxElections, the newest last
}

const maxElections = 100

// see notes who leads now, "" for nobody, and returns how often a leader was
// seen to begin within the last minute; the first one of all does not count.
func (e *elections) see(leader string, now time.Time) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if leader != "" && leader != e.last {
		if e.last != "" {
			e.at = append(e.at, now)
		}
		e.last = leader
	}
	e.at = slices.DeleteFunc(e.at, func(t time.Time) bool { return now.Sub(t) > unstableWithin })
	if n := len(e.at) - maxElections; n > 0 {
		e.at = slices.Delete(e.at, 0, n)
	}
	return len(e.at)
}

// members are the nodes that ought to be there: the controllers of the
// configuration and the nodes that the state knows.
func (p *Process) members() []string {
	var out []string
	for n := range p.ctl.State().Nodes() {
		out = append(out, n.Name)
	}
	for _, c := range p.cfg.Cluster.Controllers {
		if !slices.Contains(out, c.Name) {
			out = append(out, c.Name)
		}
	}
	slices.Sort(out)
	return out
}
