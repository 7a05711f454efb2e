// Package workerproc is the worker process of a node: it serves the groups that
// the cluster state gives to this node's workers.
//
// Per group it runs an engine: the P-, I- or S-CSCF role on transaction layers,
// one layer a shard of the event router, so that everything of one call runs in
// order and without locks. It keeps a read-only mirror of the cluster state,
// fed by a front process, and links to the fronts of all controllers.
//
// It owns no public socket: what goes to a phone leaves through the front that
// holds the phone's flow. It decides nothing about who serves what: it starts
// an engine when the state names one of its workers as serving, and stops it
// when the state names another.
//
// Failure modes: without any front it serves nothing new and keeps what it
// knows; a lost link is redialled; a full link or shard drops messages, which
// is counted, and their retransmission is served.
package workerproc

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"bellwether/appliance/config"
	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/controller/mesh"
	"bellwether/controller/state"
	"bellwether/cscf/eventrouter"
	"bellwether/ha"
)

// Options are what the node gives beside its configuration.
type Options struct {
	Version   string
	ClusterID string
	Dialer    *mesh.Mesh // for links to other nodes
	// Current is the configuration as reloads have left it; its SIP timers
	// apply to what starts from then on. nil: it never changes.
	Current func() *config.Config
	Log     *slog.Logger
	Ready   func() // called once the store is open; the groups follow with the cluster state
}

// Process is a running worker process.
type Process struct {
	cfg     *config.Config
	now     func() *config.Config
	version string
	log     *slog.Logger
	mesh    *mesh.Mesh
	state   *copyOfState
	router  *eventrouter.Router[event]
	store   *ha.Journal
	links   *links
	tables  *tables
	ctx     context.Context // ends with the process; for proposals under way
	calling chan struct{}   // slots for proposals and reservations under way

	engines atomic.Pointer[map[uint32]*engine]

	countMu sync.Mutex
	counts  map[string]uint64
}

// maxCalling bounds proposals and reservations under way; more wait in order.
const maxCalling = 4096

// Run serves until ctx ends. It returns an error only when it cannot start.
func Run(ctx context.Context, cfg *config.Config, o Options) error {
	p := &Process{
		cfg: cfg, version: o.Version, log: o.Log, mesh: o.Dialer,
		state:   newCopy(),
		ctx:     ctx,
		calling: make(chan struct{}, maxCalling),
		counts:  map[string]uint64{},
	}
	if p.now = o.Current; p.now == nil {
		p.now = func() *config.Config { return cfg }
	}
	p.engines.Store(&map[uint32]*engine{})
	p.tables = newTables(p)
	store, err := ha.OpenJournal(filepath.Join(cfg.Node.DataDir, "store"), ha.Options{
		Identity: o.ClusterID + "/" + cfg.Node.Name, Log: o.Log,
		Epoch: func(group uint32) uint64 { g, _ := p.State().Group(group); return g.Epoch },
	})
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	defer store.Close()
	p.store = store
	p.router = eventrouter.New(eventrouter.Config{}, handle)
	defer p.router.Close()
	p.links = &links{p: p, up: map[string]*link.Conn{}}

	var wg sync.WaitGroup
	defer wg.Wait()
	for _, c := range cfg.Cluster.Controllers {
		p.links.order = append(p.links.order, c.Name)
	}
	for _, c := range cfg.Cluster.Controllers {
		addr := c.Address.String()
		if c.Name == cfg.Node.Name {
			addr = filepath.Join(cfg.Node.RunDir, SocketName)
		}
		wg.Go(func() { p.links.keep(ctx, c.Name, addr) })
	}
	wg.Go(func() { p.report(ctx) })
	if o.Ready != nil {
		o.Ready()
	}
	p.follow(ctx)
	for _, e := range *p.engines.Load() {
		e.stop(p.log)
	}
	return nil
}

// State returns the newest copy of the cluster state.
func (p *Process) State() *state.State { return p.state.current() }

// follow keeps engines as the state wants them until ctx ends.
func (p *Process) follow(ctx context.Context) {
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for {
		if st := p.State(); st.ClusterID() != "" {
			p.reconcile(st)
			if missing := p.unknown(st); len(missing) > 0 {
				p.introduce(ctx, missing)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-p.state.wake:
		case <-retry.C:
		}
	}
}

// unknown lists the commands that make the state know this node's workers.
func (p *Process) unknown(st *state.State) []state.Command {
	var out []state.Command
	if n, ok := st.Node(p.cfg.Node.Name); !ok || !n.Controller {
		if want := NodeOf(p.cfg, p.version); n != want {
			out = append(out, state.Command{PutNode: &want})
		}
	}
	for _, w := range p.cfg.Workers {
		if have, ok := st.Worker(w.ID); !ok || have.Node != p.cfg.Node.Name {
			out = append(out, state.Command{PutWorker: &state.Worker{ID: w.ID, Kind: state.Kind(w.Kind), Node: p.cfg.Node.Name}})
		}
	}
	return out
}

// introduce proposes commands one after the other; what fails is tried again
// with the next change or tick.
func (p *Process) introduce(ctx context.Context, cmds []state.Command) {
	for _, c := range cmds {
		if _, err := p.propose(ctx, c); err != nil {
			p.log.Warn("introduce this node to the cluster", "err", err)
			return
		}
	}
}

// NodeOf is a node as its configuration describes it.
func NodeOf(cfg *config.Config, version string) state.Node {
	n := state.Node{
		Name: cfg.Node.Name, ClusterAddr: cfg.Cluster.Address.String(), Service: cfg.SIP.Address,
		P: cfg.SIP.PCSCF, I: cfg.SIP.ICSCF, S: cfg.SIP.SCSCF, Version: version,
	}
	for _, c := range cfg.Cluster.Controllers {
		if c.Name == n.Name {
			n.Controller = true
		}
	}
	return n
}

// reconcile starts and stops engines.
func (p *Process) reconcile(st *state.State) {
	have := *p.engines.Load()
	next := maps.Clone(have)
	for g := range st.Groups() {
		w, ok := st.Worker(g.Serving)
		mine := ok && w.Node == p.cfg.Node.Name
		e := next[g.ID]
		switch {
		case mine && e == nil:
			e, err := p.start(st, g)
			if err != nil {
				p.log.Error("start serving a group", "group", g.ID, "worker", g.Serving, "err", err)
				continue
			}
			next[g.ID] = e
			p.log.Info("group served", "group", g.ID, "worker", g.Serving, "kind", g.Kind, "epoch", g.Epoch)
		case !mine && e != nil:
			e.stop(p.log)
			delete(next, g.ID)
		}
	}
	if maps.Equal(have, next) {
		return
	}
	p.engines.Store(&next)
	for _, c := range p.links.all() {
		p.sendGroups(c)
	}
}

func (p *Process) engine(group uint32) *engine { return (*p.engines.Load())[group] }

func (p *Process) sendGroups(c *link.Conn) {
	var m workerlink.GroupsMsg
	for id := range *p.engines.Load() {
		m.Groups = append(m.Groups, id)
	}
	_ = c.Notify(workerlink.Groups, workerlink.Encode(m))
}

func (p *Process) count(what string) {
	p.countMu.Lock()
	p.counts[what]++
	p.countMu.Unlock()
}
