package frontproc

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"bellwether/appliance/identity"
	"bellwether/appliance/joining"
	"bellwether/controller/api"
	"bellwether/controller/mesh"
	"bellwether/controller/state"
)

// lookForCA is how often a node looks whether it became one that certifies.
const lookForCA = time.Second

// certificates prepares what renews this node's certificate.
func (p *Process) certificates(dir string, m *mesh.Mesh) {
	caDir := identity.CADir(p.cfg.Node.DataDir)
	_, others := joining.Members(p.cfg)
	p.renewer = &joining.Renewer{
		Dir: dir, CADir: caDir, Node: p.cfg.Node.Name, Addresses: []netip.Addr{p.cfg.Cluster.Address.Addr()},
		Others: others, Dial: m.Dial, Log: p.log,
	}
}

// serveJoins certifies nodes from when the CA is here: a copy of it may be
// brought to a node that runs.
func (p *Process) serveJoins(ctx context.Context, m *mesh.Mesh) {
	caDir := identity.CADir(p.cfg.Node.DataDir)
	for look := time.Tick(lookForCA); !joining.Founder(caDir); {
		select {
		case <-ctx.Done():
			return
		case <-look:
		}
	}
	known, _ := joining.Members(p.cfg)
	s := &joining.Server{
		Book: joining.Book{Dir: caDir}, Node: p.cfg.Node.Name, Known: known, Log: p.log,
		Begun: func() bool { return p.ctl.State().ClusterID() != "" },
	}
	p.joins.Store(s)
	s.Serve(ctx, m.HandleOpen(joining.Protocol))
}

// markBegun remembers on disk that the cluster has begun, once it has.
func (p *Process) markBegun(ctx context.Context) {
	if _, err := p.ctl.Wait(ctx, func(s *state.State) bool { return s.ClusterID() != "" }); err != nil {
		return // this process ends
	}
	if err := identity.MarkBegun(p.cfg.Node.DataDir); err != nil {
		p.log.Error("remember that the cluster has begun", "err", err)
	}
}

// certificateAlarms tell of a certificate that was not renewed in time.
func (p *Process) certificateAlarms(now time.Time) []api.Alarm {
	out := p.ownCertificate(now)
	for node, end := range p.workers.stale(now) {
		out = append(out, api.Alarm{
			Code: "certificate_not_renewed:" + node, Severity: "warning", Node: node, WhatToDo: renewNow(node),
			Text: fmt.Sprintf("node %s still uses a certificate that runs out on %s", node, end.UTC().Format(time.DateTime)),
		})
	}
	return out
}

func renewNow(node string) string {
	return "run 'bellwether cluster renew' on node " + node + ", with the node that founded the cluster up"
}

func (p *Process) ownCertificate(now time.Time) []api.Alarm {
	node := p.cfg.Node.Name
	c, last, err := p.renewer.Status()
	why := ""
	if last != nil {
		why = ": " + last.Error()
	}
	al := api.Alarm{Node: node, Severity: "critical", WhatToDo: renewNow(node)}
	switch {
	case err != nil:
		al.Code, al.Text = "certificate_unreadable:"+node, err.Error()
		al.WhatToDo = "node " + node + " can open no connection to other nodes: restore the file from a backup"
	case c.Expired(now):
		al.Code, al.Text = "certificate_expired:"+node, fmt.Sprintf("the certificate of node %s ran out on %s%s", node, c.NotAfter.UTC().Format(time.DateTime), why)
		al.WhatToDo = "run 'bellwether cluster token " + node + "' on the node that founded the cluster, and here 'bellwether cluster join' with what it prints"
	case c.Overdue(now):
		al.Code, al.Severity = "certificate_not_renewed:"+node, "warning"
		al.Text = fmt.Sprintf("the certificate of node %s runs out on %s and was not renewed%s", node, c.NotAfter.UTC().Format(time.DateTime), why)
	default:
		return nil
	}
	return []api.Alarm{al}
}
