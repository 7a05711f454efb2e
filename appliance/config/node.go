package config

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	writeName     = "write 1 to 32 lower-case letters, digits and hyphens, such as n1"
	writeEndpoint = "write address and port, such as 10.0.0.1:7400"
	maxExpires    = 365 * 24 * 3600
	maxWorkers    = 64
	maxPerSecond  = 1_000_000
)

// examples show how each section is written.
var examples = map[string]string{
	"node":    "node: {name: n1}",
	"cluster": "cluster: {address: 10.0.0.1:7400, controllers: [{name: n1, address: 10.0.0.1:7400}]}",
	"sip":     "sip: {domain: ims.example.org, address: 10.0.0.1}",
	"workers": "workers: [{id: p1, kind: p-cscf}]",
	"metrics": "metrics: {listen: 127.0.0.1:9090}",
	"log":     "log: {level: debug}",
	"flood":   "flood: {per_source: 2000}",
}

// defaults are the values of all keys that need not be written.
func defaults() *Config {
	return &Config{
		Node: Node{DataDir: "/var/lib/bellwether", RunDir: "/run/bellwether", Isolation: Process},
		SIP: SIP{
			PCSCF: 5060, ICSCF: 4060, SCSCF: 6060,
			T1:         500 * time.Millisecond,
			MinExpires: time.Minute, MaxExpires: 600000 * time.Second, DefaultExpires: time.Hour,
		},
		Flood:   Flood{PerSource: 2000, PerPhone: 2000, Failures: 20, Connections: 100, Strangers: 1000, Ban: time.Minute},
		Metrics: Metrics{Listen: netip.MustParseAddrPort("127.0.0.1:9090")},
		Log:     Log{Level: slog.LevelInfo, Format: "text"},
	}
}

func (r *reader) config(root *yaml.Node) *Config {
	c := defaults()
	seen := r.mapping(root, "", fields{
		"node":    func(n *yaml.Node) { r.node(n, c) },
		"cluster": func(n *yaml.Node) { r.cluster(n, c) },
		"sip":     func(n *yaml.Node) { r.sip(n, c) },
		"workers": func(n *yaml.Node) { r.workers(n, c) },
		"flood":   func(n *yaml.Node) { r.flood(n, &c.Flood) },
		"metrics": func(n *yaml.Node) {
			r.mapping(n, "metrics", fields{
				"listen": parsed(r, "metrics.listen", &c.Metrics.Listen, "write a loopback address and port, such as 127.0.0.1:9090", loopback),
			})
		},
		"log": func(n *yaml.Node) {
			r.mapping(n, "log", fields{
				"level":  parsed(r, "log.level", &c.Log.Level, "write debug, info, warn or error", level),
				"format": parsed(r, "log.format", &c.Log.Format, "write text or json", oneOf("text", "json")),
			})
		},
	})
	for _, need := range []string{"node", "cluster", "sip"} {
		if root.Kind == yaml.MappingNode && seen[need] == nil {
			r.problem(1, need+" is missing", "write "+examples[need])
		}
	}
	if seen["workers"] == nil && c.Node.Name != "" {
		for _, k := range Kinds {
			c.Workers = append(c.Workers, Worker{ID: c.Node.Name + "-" + string(k[0]), Kind: k})
		}
	}
	r.membership(c)
	r.clashes(c)
	return c
}

func (r *reader) node(n *yaml.Node, c *Config) {
	seen := r.mapping(n, "node", fields{
		"name":     parsed(r, "node.name", &c.Node.Name, writeName, name),
		"data_dir": parsed(r, "node.data_dir", &c.Node.DataDir, "write a path such as /var/lib/bellwether", directory(4000)),
		// A unix socket's path has at most 107 bytes.
		"run_dir":   parsed(r, "node.run_dir", &c.Node.RunDir, "write a short path such as /run/bellwether", directory(80)),
		"isolation": parsed(r, "node.isolation", &c.Node.Isolation, "write process or none", oneOf(Process, None)),
	})
	if n.Kind == yaml.MappingNode && seen["name"] == nil {
		r.problem(n.Line, "node.name is missing", writeName)
	}
}

func (r *reader) cluster(n *yaml.Node, c *Config) {
	seen := r.mapping(n, "cluster", fields{
		"address":     parsed(r, "cluster.address", &c.Cluster.Address, writeEndpoint, endpoint),
		"controllers": func(n *yaml.Node) { r.controllers(n, c) },
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	if seen["address"] == nil {
		r.problem(n.Line, "cluster.address is missing", writeEndpoint)
	}
	if seen["controllers"] == nil {
		r.problem(n.Line, "cluster.controllers is missing", "write a list of 1, 3 or 5, such as [{name: n1, address: 10.0.0.1:7400}]")
	}
}

func (r *reader) controllers(n *yaml.Node, c *Config) {
	if !r.is(n, yaml.SequenceNode, "cluster.controllers") {
		return
	}
	names, addresses := map[string]int{}, map[netip.AddrPort]int{}
	for i, item := range n.Content {
		path := fmt.Sprintf("cluster.controllers[%d]", i)
		var m Controller
		seen := r.mapping(item, path, fields{
			"name":    parsed(r, path+".name", &m.Name, writeName, name),
			"address": parsed(r, path+".address", &m.Address, writeEndpoint, endpoint),
		})
		if item.Kind == yaml.MappingNode && (seen["name"] == nil || seen["address"] == nil) {
			r.problem(item.Line, path+" needs a name and an address", "write {name: n1, address: 10.0.0.1:7400}")
		}
		if line, twice := names[m.Name]; twice && m.Name != "" {
			r.problem(item.Line, fmt.Sprintf("controller %s is named twice, first on line %d", m.Name, line), "write each controller once")
		}
		if line, twice := addresses[m.Address]; twice && m.Address.IsValid() {
			r.problem(item.Line, fmt.Sprintf("address %s is given twice, first on line %d", m.Address, line), "write each node's own address")
		}
		names[m.Name], addresses[m.Address] = item.Line, item.Line
		c.Cluster.Controllers = append(c.Cluster.Controllers, m)
	}
	if k := len(n.Content); k != 1 && k != 3 && k != 5 {
		r.problem(n.Line, fmt.Sprintf("there are %d controllers", k), "write 1, 3 or 5 of them")
	}
}

// membership checks that this node is among the controllers, at its address.
func (r *reader) membership(c *Config) {
	if c.Node.Name == "" || !c.Cluster.Address.IsValid() || len(c.Cluster.Controllers) == 0 {
		return
	}
	for _, m := range c.Cluster.Controllers {
		if m.Name != c.Node.Name {
			continue
		}
		if m.Address.IsValid() && m.Address != c.Cluster.Address {
			r.problem(r.lines["cluster.address"], fmt.Sprintf("cluster.address is %s, but the controllers list has %s for %s", c.Cluster.Address, m.Address, m.Name), "write the same address in both")
		}
		return
	}
	r.problem(r.lines["node.name"], fmt.Sprintf("this node, %s, is not among cluster.controllers", c.Node.Name),
		fmt.Sprintf("add {name: %s, address: %s} or mend node.name", c.Node.Name, c.Cluster.Address))
}

func (r *reader) sip(n *yaml.Node, c *Config) {
	s := &c.SIP
	entry := func(path string, dst *uint16) func(*yaml.Node) {
		return parsed(r, path, dst, "write a port from 1 to 65535", func(s string) (uint16, error) {
			n, err := number(1, 65535)(s)
			return uint16(n), err
		})
	}
	seen := r.mapping(n, "sip", fields{
		"domain":             parsed(r, "sip.domain", &s.Domain, "write the home domain, such as ims.example.org", domain),
		"address":            parsed(r, "sip.address", &s.Address, "write this node's own IP address, such as 10.0.0.1", serviceAddress),
		"address6":           parsed(r, "sip.address6", &s.Address6, "write this node's own IPv6 address, such as 2001:db8::1, or leave it out", serviceAddress),
		"p_cscf":             entry("sip.p_cscf", &s.PCSCF),
		"i_cscf":             entry("sip.i_cscf", &s.ICSCF),
		"s_cscf":             entry("sip.s_cscf", &s.SCSCF),
		"t1_ms":              r.span("sip.t1_ms", &s.T1, time.Millisecond, 50, 4000),
		"min_expires":        r.span("sip.min_expires", &s.MinExpires, time.Second, 1, maxExpires),
		"max_expires":        r.span("sip.max_expires", &s.MaxExpires, time.Second, 1, maxExpires),
		"default_expires":    r.span("sip.default_expires", &s.DefaultExpires, time.Second, 1, maxExpires),
		"digest_without_qop": parsed(r, "sip.digest_without_qop", &s.DigestWithoutQOP, "write true or false", strconv.ParseBool),
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	if seen["domain"] == nil {
		r.problem(n.Line, "sip.domain is missing", "write the home domain, such as ims.example.org")
	}
	if seen["address"] == nil {
		r.problem(n.Line, "sip.address is missing", "write this node's own IP address, such as 10.0.0.1")
	}
	if s.Address6.IsValid() && s.Address.IsValid() {
		switch {
		case !s.Address6.Is6():
			r.problem(r.lines["sip.address6"], fmt.Sprintf("sip.address6 %s is not an IPv6 address", s.Address6), "write an IPv4 address at sip.address")
		case s.Address.Is6():
			r.problem(r.lines["sip.address6"], "sip.address is an IPv6 address already", "write the node's IPv4 address at sip.address, or leave sip.address6 out")
		}
	}
	if s.MinExpires > s.DefaultExpires || s.DefaultExpires > s.MaxExpires {
		r.problem(n.Line, fmt.Sprintf("registration intervals are out of order: min_expires %.0f, default_expires %.0f, max_expires %.0f",
			s.MinExpires.Seconds(), s.DefaultExpires.Seconds(), s.MaxExpires.Seconds()),
			"write min_expires <= default_expires <= max_expires")
	}
}

func (r *reader) flood(n *yaml.Node, f *Flood) {
	limit := func(key string, dst *int) func(*yaml.Node) {
		return parsed(r, "flood."+key, dst, "write how many a second, or 0 for no limit", func(s string) (int, error) {
			n, err := number(0, maxPerSecond)(s)
			return int(n), err
		})
	}
	r.mapping(n, "flood", fields{
		"per_source":  limit("per_source", &f.PerSource),
		"per_phone":   limit("per_phone", &f.PerPhone),
		"failures":    limit("failures", &f.Failures),
		"connections": limit("connections", &f.Connections),
		"strangers":   limit("strangers", &f.Strangers),
		"ban":         r.span("flood.ban", &f.Ban, time.Second, 0, 24*3600),
	})
}

func (r *reader) workers(n *yaml.Node, c *Config) {
	if !r.is(n, yaml.SequenceNode, "workers") {
		return
	}
	if len(n.Content) > maxWorkers {
		r.problem(n.Line, fmt.Sprintf("there are %d workers", len(n.Content)), fmt.Sprintf("write at most %d", maxWorkers))
		return
	}
	ids := map[string]int{}
	for i, item := range n.Content {
		path := fmt.Sprintf("workers[%d]", i)
		var w Worker
		seen := r.mapping(item, path, fields{
			"id":   parsed(r, path+".id", &w.ID, writeName, name),
			"kind": parsed(r, path+".kind", &w.Kind, "write p-cscf, i-cscf or s-cscf", oneOf(Kinds...)),
		})
		if item.Kind == yaml.MappingNode && (seen["id"] == nil || seen["kind"] == nil) {
			r.problem(item.Line, path+" needs an id and a kind", "write {id: p1, kind: p-cscf}")
		}
		if line, twice := ids[w.ID]; twice && w.ID != "" {
			r.problem(item.Line, fmt.Sprintf("worker id %s is used twice, first on line %d", w.ID, line), "give each worker an id of its own, unique in the cluster")
		}
		ids[w.ID] = item.Line
		c.Workers = append(c.Workers, w)
	}
}
