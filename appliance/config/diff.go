package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// Change is a key whose value differs between two configurations.
type Change struct {
	Key      string
	Old, New string
	Restart  bool // takes effect only when the node is restarted
}

// Diff says which keys changed from one configuration to the next, in the
// order of the file. A reload applies the log level and the SIP timers;
// everything else needs a restart.
func Diff(old, new *Config) []Change {
	before, after := values(old), values(new)
	var changes []Change
	for i, b := range before {
		if a := after[i]; a.value != b.value {
			changes = append(changes, Change{Key: b.key, Old: b.value, New: a.value, Restart: !b.live})
		}
	}
	return changes
}

// written is an address as the file has it, "" where it has none.
func written(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

type value struct {
	key, value string
	live       bool // a reload applies it
}

func values(c *Config) []value {
	controllers := make([]string, len(c.Cluster.Controllers))
	for i, m := range c.Cluster.Controllers {
		controllers[i] = fmt.Sprintf("%s=%s", m.Name, m.Address)
	}
	workers := make([]string, len(c.Workers))
	for i, w := range c.Workers {
		workers[i] = fmt.Sprintf("%s=%s", w.ID, w.Kind)
	}
	fixed := func(key string, v any) value { return value{key, fmt.Sprint(v), false} }
	live := func(key string, v any) value { return value{key, fmt.Sprint(v), true} }
	return []value{
		fixed("node.name", c.Node.Name),
		fixed("node.data_dir", c.Node.DataDir),
		fixed("node.run_dir", c.Node.RunDir),
		fixed("node.isolation", c.Node.Isolation),
		fixed("cluster.address", c.Cluster.Address),
		fixed("cluster.controllers", strings.Join(controllers, " ")),
		fixed("sip.domain", c.SIP.Domain),
		fixed("sip.address", c.SIP.Address),
		fixed("sip.address6", written(c.SIP.Address6)),
		fixed("sip.p_cscf", c.SIP.PCSCF),
		fixed("sip.i_cscf", c.SIP.ICSCF),
		fixed("sip.s_cscf", c.SIP.SCSCF),
		live("sip.t1_ms", c.SIP.T1.Milliseconds()),
		live("sip.min_expires", int64(c.SIP.MinExpires.Seconds())),
		live("sip.max_expires", int64(c.SIP.MaxExpires.Seconds())),
		live("sip.default_expires", int64(c.SIP.DefaultExpires.Seconds())),
		fixed("sip.digest_without_qop", c.SIP.DigestWithoutQOP),
		fixed("workers", strings.Join(workers, " ")),
		fixed("flood.per_source", c.Flood.PerSource),
		fixed("flood.per_phone", c.Flood.PerPhone),
		fixed("flood.failures", c.Flood.Failures),
		fixed("flood.connections", c.Flood.Connections),
		fixed("flood.strangers", c.Flood.Strangers),
		fixed("flood.ban", int64(c.Flood.Ban.Seconds())),
		fixed("metrics.listen", c.Metrics.Listen),
		live("log.level", c.Log.Level),
		fixed("log.format", c.Log.Format),
	}
}
