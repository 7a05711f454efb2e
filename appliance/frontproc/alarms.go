package frontproc

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"bellwether/controller/api"
)

// maxEvents bounds the events on the list; the one longest ago goes first.
const maxEvents = 256

// eventFor is how long an event that mends itself, such as a restarted child,
// stays on the list after it happened last.
const eventFor = time.Hour

// alarms are the alarms that this process knows of: events, which
// stay for an hour, and conditions, which stay for as long as they hold.
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

// current lists the alarms, oldest first.
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
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Code, y.Code))
	})
	return out
}

// conditions are the alarms that follow from how things are.
func (p *Process) conditions(now time.Time) []api.Alarm {
	var out []api.Alarm
	critical := func(code, node, text, do string) {
		out = append(out, api.Alarm{Code: code, Severity: "critical", Node: node, Text: text, WhatToDo: do})
	}
	standing := p.ctl.Standing()
	if standing.Text != "" {
		critical("controllers_"+standing.Phase, p.cfg.Node.Name, standing.Text, standing.WhatToDo)
	} else if _, ok := p.ctl.Leader(); !ok {
		critical("no_leader", p.cfg.Node.Name, "no majority of the controllers works together",
			"start the controllers that are down, or mend the network between them")
	}
	up := p.workers.nodes()
	up[p.cfg.Node.Name] = true
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
