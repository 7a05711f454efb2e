package frontproc

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bellwether/controller/state"
)

var (
	descUsers     = prometheus.NewDesc("bellwether_users", "Registered users assigned to a worker.", []string{"worker", "kind", "node"}, nil)
	descCalls     = prometheus.NewDesc("bellwether_calls", "Calls at a worker.", []string{"worker", "kind", "node"}, nil)
	descLoad      = prometheus.NewDesc("bellwether_worker_load", "Requests in flight plus CPU cores in use, as min-load sees it.", []string{"worker", "kind", "node"}, nil)
	descUp        = prometheus.NewDesc("bellwether_worker_connected", "1 while the worker is connected to this node.", []string{"worker", "kind", "node"}, nil)
	descMessages  = prometheus.NewDesc("bellwether_worker_messages_total", "SIP messages that a worker received.", []string{"worker", "kind", "node"}, nil)
	descRejected  = prometheus.NewDesc("bellwether_credentials_rejected_total", "REGISTERs that an S-CSCF did not take because of a wrong password or SIM.", []string{"worker", "node"}, nil)
	descCPU       = prometheus.NewDesc("bellwether_worker_cpu_cores", "CPU cores in use by a node's worker process.", []string{"node"}, nil)
	descExecutors = prometheus.NewDesc("bellwether_router_executors", "Executors of a worker process's event router.", []string{"node"}, nil)
	descQueued    = prometheus.NewDesc("bellwether_router_queued", "Events waiting in a worker process's event router.", []string{"node"}, nil)
	descDelay     = prometheus.NewDesc("bellwether_router_delay_seconds", "How long events wait in a worker process's event router.", []string{"node"}, nil)
	descLost      = prometheus.NewDesc("bellwether_worker_dropped_total", "SIP messages that a worker process dropped, by cause.", []string{"node", "cause"}, nil)
	descReceived  = prometheus.NewDesc("bellwether_front_received_total", "Datagrams and TCP messages that came to this node's SIP ports.", nil, nil)
	descSent      = prometheus.NewDesc("bellwether_front_sent_total", "Datagrams and TCP messages that left this node's SIP ports.", nil, nil)
	descRelayed   = prometheus.NewDesc("bellwether_front_relayed_total", "SIP messages that this node passed between workers.", nil, nil)
	descDropped   = prometheus.NewDesc("bellwether_front_dropped_total", "SIP messages that this node's front could not pass on, by cause.", []string{"cause"}, nil)
	descRefused   = prometheus.NewDesc("bellwether_front_refused_total", "Messages and connections that this node's front did not let in, by reason.", []string{"reason"}, nil)
	descBans      = prometheus.NewDesc("bellwether_front_bans", "Sources that this node's front bans by itself.", nil, nil)
	descReplied   = prometheus.NewDesc("bellwether_front_replied_total", "Stateless answers of this node's front, by status.", []string{"status"}, nil)
	descConns     = prometheus.NewDesc("bellwether_front_connections", "TCP connections at this node's SIP ports; bound ones belong to registered phones.", []string{"state"}, nil)
	descAccepted  = prometheus.NewDesc("bellwether_front_connections_accepted_total", "TCP connections that this node's SIP ports accepted.", nil, nil)
	descDialled   = prometheus.NewDesc("bellwether_front_connections_dialled_total", "TCP connections that this node's front opened.", nil, nil)
	descEnded     = prometheus.NewDesc("bellwether_front_connections_ended_total", "TCP connections of this node's front that ended or were refused, by cause.", []string{"cause"}, nil)
	descBuffered  = prometheus.NewDesc("bellwether_front_connections_bytes", "Bytes of incomplete messages (held), and of those that wait to be sent (queued), over TCP.", []string{"what"}, nil)
	descFlows     = prometheus.NewDesc("bellwether_front_flows", "Flows of phones that this node's front knows.", nil, nil)
	descLeader    = prometheus.NewDesc("bellwether_leader", "1 while this node leads the controllers.", nil, nil)
	descQuorum    = prometheus.NewDesc("bellwether_quorum", "1 while a leader is known.", nil, nil)
	descTerm      = prometheus.NewDesc("bellwether_raft_term", "Raft term.", nil, nil)
	descApplied   = prometheus.NewDesc("bellwether_raft_applied_index", "Last log index in this node's copy of the state.", nil, nil)
	descSubs      = prometheus.NewDesc("bellwether_subscribers", "Provisioned subscribers.", nil, nil)
	descJoin      = prometheus.NewDesc("bellwether_join_requests_total", "Requests of machines to join or to renew a certificate, by result.", []string{"result"}, nil)
	descCertEnd   = prometheus.NewDesc("bellwether_certificate_end_seconds", "When this node's certificate runs out, in seconds since 1970.", nil, nil)
	descReady     = prometheus.NewDesc("bellwether_ready", "1 while SIP through this node's P-CSCF port is answered.", nil, nil)
)

// collector reads the figures when it is asked.
type collector struct{ p *Process }

func newCollector(p *Process) prometheus.Collector { return collector{p} }

func (c collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	st, loads := c.p.ctl.State(), c.p.workers.loads()
	for w := range st.Workers() {
		g, _ := st.Group(w.Group)
		l, up := loads[w.Group]
		labels := []string{w.ID, string(w.Kind), w.Node}
		if w.Kind != state.ICSCF {
			gauge(descUsers, float64(g.Users), labels...)
		}
		if keepsCalls(w.Kind) {
			gauge(descCalls, float64(l.Calls), labels...)
		}
		gauge(descLoad, l.Load, labels...)
		gauge(descUp, number(up), labels...)
		ch <- prometheus.MustNewConstMetric(descMessages, prometheus.CounterValue, float64(l.Messages), labels...)
		if w.Kind == state.SCSCF {
			ch <- prometheus.MustNewConstMetric(descRejected, prometheus.CounterValue, float64(l.Rejected), w.ID, w.Node)
		}
	}
	for node, r := range c.p.workers.reports() {
		gauge(descCPU, r.CPU, node)
		gauge(descExecutors, float64(r.Executors), node)
		gauge(descQueued, float64(r.Queued), node)
		gauge(descDelay, r.Delay.Seconds(), node)
		for why, n := range r.Dropped {
			ch <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(n), node, why)
		}
	}
	fs := c.p.front.Stats()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	count(descReceived, fs.Received)
	count(descSent, fs.Sent)
	count(descRelayed, fs.Relayed)
	refused, bans := c.p.refusals(time.Now())
	for why, n := range fs.Dropped {
		if _, other := refused[why]; !other {
			count(descDropped, n, why)
		}
	}
	for why, n := range refused {
		count(descRefused, n, why)
	}
	gauge(descBans, float64(bans))
	for status, n := range fs.Replied {
		count(descReplied, n, strconv.Itoa(status))
	}
	gauge(descFlows, float64(fs.Flows))
	if s := c.p.joins.Load(); s != nil {
		for result, n := range s.Results() {
			count(descJoin, n, result)
		}
	}
	if cert, _, err := c.p.renewer.Status(); err == nil {
		gauge(descCertEnd, float64(cert.NotAfter.Unix()))
	}
	gauge(descConns, float64(fs.Connections-fs.Unbound), "bound")
	gauge(descConns, float64(fs.Unbound), "unbound")
	count(descAccepted, fs.Accepted)
	count(descDialled, fs.Dialled)
	for why, n := range fs.Ended {
		count(descEnded, n, why)
	}
	gauge(descBuffered, float64(fs.Held), "held")
	gauge(descBuffered, float64(fs.Queued), "queued")
	leader, ok := c.p.ctl.Leader()
	gauge(descLeader, number(leader == c.p.cfg.Node.Name))
	gauge(descQuorum, number(ok))
	cs := c.p.ctl.Status()
	gauge(descTerm, float64(cs.Term))
	gauge(descApplied, float64(cs.AppliedIndex))
	gauge(descSubs, float64(st.SubscriberCount()))
	gauge(descReady, number(c.p.ready.ready() == nil))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
