// Package frontproc is the front process of a controller node: the Raft member
// with the cluster state, the SIP front, the admin API, and the links to the
// worker processes of the whole cluster.
//
// It holds no registrations, transactions or dialogs: those are the workers'.
// It can die without a registration being lost; its phones on UDP are served
// again when it is back.
//
// Failure modes: an address that cannot be bound, a data directory of another
// cluster or node, a certificate that is missing or foreign stop it at the
// start, with one line that says what to do. Without a leader it serves
// registered users and holds back new assignments.
package frontproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"bellwether/appliance/config"
	"bellwether/appliance/identity"
	"bellwether/appliance/joining"
	"bellwether/appliance/workerlink"
	"bellwether/appliance/workerproc"
	"bellwether/controller/admin"
	"bellwether/controller/api"
	"bellwether/controller/consensus"
	"bellwether/controller/front"
	"bellwether/controller/guard"
	"bellwether/controller/link"
	"bellwether/controller/mesh"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

const (
	handOver        = time.Second // how long a stopping leader tries to hand the lead over
	introduceWithin = 5 * time.Second
	introduceAgain  = time.Second
	patience        = 2 // failures in spite of a leader before they are worth a word
)

// Options are what the node gives beside its configuration.
type Options struct {
	Version string
	Log     *slog.Logger
	Ready   func() // called once the sockets are open
	// Reload applies the configuration file again; nil where the node cannot.
	Reload func() (applied, pending []config.Change, err error)
}

// Process is a running front process.
type Process struct {
	cfg       *config.Config
	version   string
	log       *slog.Logger
	ctl       *consensus.Controller
	front     *front.Front
	guard     *guard.Guard
	workers   *workers
	alarms    *alarms
	elections elections
	shown     fronts
	joins     atomic.Pointer[joining.Server] // nil while the CA is not here
	renewer   *joining.Renewer
	ready     *prober
	reload    func() (applied, pending []config.Change, err error)
}

// Run serves until ctx ends. It returns an error only when it cannot start, or
// not close the log.
func Run(ctx context.Context, cfg *config.Config, id *identity.Identity, o Options) (err error) {
	p := &Process{cfg: cfg, version: o.Version, log: o.Log, alarms: newAlarms(), reload: o.Reload, guard: guard.New(limits(cfg.Flood))}
	mc := id.Mesh(cfg.Cluster.Address.String(), o.Log)
	for _, c := range cfg.Cluster.Controllers {
		mc.Peers = append(mc.Peers, c.Address.Addr().Unmap())
	}
	m, err := mesh.Listen(mc)
	if err != nil {
		return fmt.Errorf("open the cluster port: %w", bound("cluster.address", err))
	}
	defer m.Close()
	remote := m.Handle(workerproc.ALPN) // at once: workers dial while the controller starts
	members := make([]consensus.Member, 0, len(cfg.Cluster.Controllers))
	for _, c := range cfg.Cluster.Controllers {
		members = append(members, consensus.Member{Name: c.Name, Addr: c.Address.String()})
	}
	p.ctl, err = consensus.Start(ctx, consensus.Config{
		Node: cfg.Node.Name, ClusterID: id.ClusterID, DataDir: filepath.Join(cfg.Node.DataDir, "raft"), Members: members, Mesh: m,
		Init: &state.Init{ClusterID: id.ClusterID, Name: id.ClusterName}, Begun: identity.Begun(cfg.Node.DataDir), Log: o.Log,
	})
	if err != nil {
		return fmt.Errorf("start the controller: %w", err)
	}
	defer func() { err = errors.Join(err, p.ctl.Close()) }()
	p.front, err = front.New(front.Config{Node: cfg.Node.Name, Entries: entries(cfg), Guard: p.guard, Log: o.Log, Gone: flowGone}, p.ctl)
	if err != nil {
		return fmt.Errorf("open the SIP ports: %w", bound("sip.address or sip.address6", err))
	}
	defer p.front.Close()
	p.certificates(id.Dir(), m)
	p.workers = &workers{p: p, conns: map[*link.Conn]*peer{}}
	p.ready = &prober{}
	for _, a := range serviceAddrs(cfg) {
		p.ready.entries = append(p.ready.entries, netip.AddrPortFrom(a, cfg.SIP.PCSCF))
	}

	// Everything that uses the above ends before it is closed.
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	local, err := admin.ListenPrivate(filepath.Join(cfg.Node.RunDir, workerproc.SocketName))
	if err != nil {
		return err
	}
	wg.Go(func() { p.workers.accept(ctx, local, cfg.Node.Name) })
	wg.Go(func() { p.workers.accept(ctx, remote, "") })
	wg.Go(func() { p.workers.tick(ctx) })
	wg.Go(func() { p.renewer.Run(ctx) })
	wg.Go(func() { p.markBegun(ctx) })
	wg.Go(func() { p.serveJoins(ctx, m) })
	wg.Go(func() { p.ready.run(ctx) })
	adm, err := admin.Listen(cfg.AdminSocket())
	if err != nil {
		return err
	}
	p.serve(ctx, &wg, adm, admin.Handler(source{p}))
	if cfg.Metrics.Listen.IsValid() {
		l, err := net.Listen("tcp", cfg.Metrics.Listen.String())
		if err != nil {
			return fmt.Errorf("open the metrics port: %w", bound("metrics.listen", err))
		}
		reg := prometheus.NewRegistry()
		reg.MustRegister(newCollector(p))
		p.serve(ctx, &wg, l, admin.Health(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}), p.live, p.ready.ready))
	}
	wg.Go(func() { p.show(ctx, m) })
	wg.Go(func() {
		if err := p.introduce(ctx); err != nil {
			cancel(err)
		}
	})
	if o.Ready != nil {
		o.Ready()
	}
	<-ctx.Done()
	// A leader that goes hands over first, which spares the others an election.
	tctx, tcancel := context.WithTimeout(context.WithoutCancel(ctx), handOver)
	defer tcancel()
	if leader, _ := p.ctl.Leader(); leader == cfg.Node.Name && len(members) > 1 {
		if err := p.ctl.TransferLeadership(tctx, ""); err != nil {
			p.log.Warn("hand the lead over", "err", err)
		}
	}
	var refusal *state.Error
	if err := context.Cause(ctx); errors.As(err, &refusal) {
		return err
	}
	return nil
}

func entries(cfg *config.Config) []front.Entry {
	var out []front.Entry
	for _, a := range serviceAddrs(cfg) {
		out = append(out,
			front.Entry{Kind: 'p', Addr: netip.AddrPortFrom(a, cfg.SIP.PCSCF)},
			front.Entry{Kind: 'i', Addr: netip.AddrPortFrom(a, cfg.SIP.ICSCF)},
			front.Entry{Kind: 's', Addr: netip.AddrPortFrom(a, cfg.SIP.SCSCF)},
		)
	}
	return out
}

// serviceAddrs are the node's service addresses, the main one first.
func serviceAddrs(cfg *config.Config) []netip.Addr {
	out := []netip.Addr{cfg.SIP.Address}
	if cfg.SIP.Address6.IsValid() {
		out = append(out, cfg.SIP.Address6)
	}
	return out
}

// flowGone tells a worker process that a flow of this front is gone.
func flowGone(to *link.Conn, flow sipmsg.Flow) {
	// One that is lost is told again when something is sent over the flow.
	_ = to.Notify(workerlink.FlowGone, workerlink.Encode(workerlink.FlowGoneMsg{Flow: flow}))
}

// limits are those of the configuration. Twice the rate passes at once; ten
// times, where a rate is low; and of strangers four times, who may be phones
// that come back after a power cut.
func limits(f config.Flood) guard.Config {
	rate := func(perSecond, burst int) guard.Rate {
		return guard.Rate{PerSecond: perSecond, Burst: burst * perSecond}
	}
	return guard.Config{
		Messages: rate(f.PerSource, 2), Failures: rate(f.Failures, 10), Connections: rate(f.Connections, 10),
		Flow: rate(f.PerPhone, 2), Strangers: rate(f.Strangers, 4), Ban: f.Ban,
	}
}

// serve answers HTTP on l until ctx ends.
func (p *Process) serve(ctx context.Context, wg *sync.WaitGroup, l net.Listener, h http.Handler) {
	wg.Go(func() {
		if err := admin.Serve(ctx, l, h, p.log); err != nil {
			p.log.Error("serve HTTP", "err", err)
		}
	})
}

// introduce makes the state know this node. It returns an error if the cluster
// refuses the node.
func (p *Process) introduce(ctx context.Context) error {
	want := workerproc.NodeOf(p.cfg, p.version)
	said, failed := "", 0
	for ctx.Err() == nil {
		if have, ok := p.ctl.State().Node(want.Name); ok && have == want {
			return nil
		}
		pctx, cancel := context.WithTimeout(ctx, introduceWithin)
		_, err := p.ctl.Propose(pctx, state.Command{PutNode: &want})
		cancel()
		var refusal *state.Error
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refusal):
			return fmt.Errorf("the cluster does not take this node: %w; correct %s, then restart the node", err, p.cfg.File)
		case ctx.Err() == nil:
			// While the cluster begins, or chooses a leader, this is normal.
			say, level := "this node waits until a majority of the controllers is up", slog.LevelInfo
			if _, led := p.ctl.Leader(); led {
				if failed++; failed > patience {
					say, level = "introduce this node to the cluster: "+err.Error(), slog.LevelWarn
				} else {
					say = said
				}
			}
			if say != said {
				said = say
				p.log.Log(ctx, level, say)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(introduceAgain):
		}
	}
	return nil
}

// live answers if the process works at all: a lock that is never released, or
// a controller that hangs, keeps it from answering.
func (p *Process) live() error {
	p.workers.nodes()
	p.ctl.Status()
	return nil
}

// childExit records what a node's supervisor saw.
func (p *Process) childExit(node string, m workerlink.ChildExitMsg) {
	p.alarms.raise(api.Alarm{
		Code: "child_crashed:" + m.Child, Severity: "warning", Node: node,
		Text:     fmt.Sprintf("%s process of node %s ended (%s) at %s, restart %d", m.Child, node, m.Reason, m.At.UTC().Format(time.DateTime), m.Restarts),
		WhatToDo: "read the log of node " + node + " from that time; the process was restarted by itself, and this line goes after ten minutes",
	}, time.Now())
}
