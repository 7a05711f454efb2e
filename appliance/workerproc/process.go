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
// knows; a front that knows no leader is asked last and feeds nothing while
// another one does; a lost link is redialled; a full link or shard drops
// messages, which is counted, and their retransmission is served. A store that
// failed takes no registration; once its disk is in order again the process
// ends, to be started anew. A worker
// that the cluster does not take, because another node has its id, is left
// out, logged and reported to the fronts.
//
// Lock order: an engine's flowMu or Process.telling, then links.mu, then that
// of copyOfState; no other two are held together.
package workerproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bellwether/appliance/config"
	"bellwether/appliance/workerlink"
	"bellwether/controller/mesh"
	"bellwether/controller/state"
	"bellwether/cscf/aka"
	"bellwether/cscf/eventrouter"
	"bellwether/cscf/transaction"
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
	state   *copyOfState
	router  *eventrouter.Router[event]
	store   *ha.Journal
	links   *links
	tables  *tables
	sims    *aka.Clock      // of the sequence numbers in challenges
	ctx     context.Context // ends with the process; for proposals under way
	calling chan struct{}   // slots for proposals and reservations under way

	registering, refusals *transaction.Budget

	engines atomic.Pointer[map[uint32]*engine] // written by follow only
	refused atomic.Pointer[map[string]string]  // own workers that the state does not take, by id

	telling sync.Mutex // held while groups are told, so that the newest word is the last

	countMu sync.Mutex
	counts  map[string]uint64
}

const (
	maxCalling = 4096 // proposals and reservations under way; more wait

	maxRegistering = 8192  // registrations in progress; about 10 kB each
	maxRefusals    = 16384 // refused requests whose repeats get the same answer; about 1 kB each

	retryEvery   = time.Second // what could not be started or introduced
	retrySlowest = 16 * time.Second
)

// Run serves until ctx ends. It returns an error when it cannot start, when the
// cluster turns out to be another than the configuration is for, or with
// ErrStore.
func Run(ctx context.Context, cfg *config.Config, o Options) error {
	p, err := open(ctx, cfg, o)
	if err != nil {
		return err
	}
	return p.serve(ctx, o.Ready)
}

// ErrDomain means that the configuration's SIP domain is not the cluster's.
var ErrDomain = errors.New("the SIP domain is not the cluster's")

// agree returns ErrDomain if the configuration is for another domain.
func agree(st *state.State, cfg *config.Config) error {
	if have, ok := st.Setting(state.DomainSetting); ok && have != cfg.SIP.Domain {
		return fmt.Errorf("%w: write sip.domain: %s instead of %s in %s, then restart the node", ErrDomain, have, cfg.SIP.Domain, cfg.File)
	}
	return nil
}

// open makes a process with its store.
func open(ctx context.Context, cfg *config.Config, o Options) (*Process, error) {
	p := &Process{
		cfg: cfg, version: o.Version, log: o.Log,
		state:   newCopy(),
		sims:    aka.NewClock(),
		ctx:     ctx,
		calling: make(chan struct{}, maxCalling),

		registering: transaction.NewBudget(maxRegistering),
		refusals:    transaction.NewBudget(maxRefusals),
		counts:      map[string]uint64{},
	}
	if p.now = o.Current; p.now == nil {
		p.now = func() *config.Config { return cfg }
	}
	p.engines.Store(&map[uint32]*engine{})
	p.refused.Store(&map[string]string{})
	p.tables = newTables(p)
	p.links = &links{p: p, dial: dialer(cfg, o.Dialer), up: map[string]*front{}}
	for _, c := range cfg.Cluster.Controllers {
		if c.Name == cfg.Node.Name {
			p.links.order = slices.Insert(p.links.order, 0, c.Name)
		} else {
			p.links.order = append(p.links.order, c.Name)
		}
	}
	var err error
	p.store, err = ha.OpenJournal(filepath.Join(cfg.Node.DataDir, "store"), ha.Options{
		Identity: o.ClusterID + "/" + cfg.Node.Name, Log: o.Log,
		Epoch: func(group uint32) uint64 { g, _ := p.State().Group(group); return g.Epoch },
	})
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	p.router = eventrouter.New(eventrouter.Config{}, handle)
	return p, nil
}

// serve works until ctx ends, and ends in the order in which things build on
// each other: engines, links, what waits in the router, the store.
func (p *Process) serve(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, node := range p.links.order {
		wg.Go(func() { p.links.keep(ctx, node) })
	}
	wg.Go(func() { p.introduce(ctx) })
	wg.Go(func() { p.report(ctx) })
	wg.Go(func() { watchStore(ctx, p.store, cancel) })
	if ready != nil {
		ready()
	}
	failed := p.follow(ctx)
	for _, e := range *p.engines.Load() {
		e.stop(p.log)
	}
	if cause := context.Cause(ctx); failed == nil && errors.Is(cause, ErrStore) {
		failed = cause
	}
	cancel(nil)
	wg.Wait()
	p.router.Close()
	if err := p.store.Close(); err != nil {
		p.log.Error("close the store", "err", err)
	}
	return failed
}

// ErrStore means that the store had failed, its disk is in order again, and the
// process has to begin anew to use it.
var ErrStore = errors.New("the store failed and its disk is in order again: start anew")

// probeEvery is how often the disk of a store that failed is tried.
const probeEvery = 2 * time.Second

// failing is a store that may fail: Err says why it did, Probe why it would again.
type failing interface {
	Err() error
	Probe() error
}

// watchStore ends the process once a store that failed could be opened again.
// Until then registered users are served on from memory: with a disk that stays
// broken a new process could not do even that.
func watchStore(ctx context.Context, store failing, end context.CancelCauseFunc) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if store.Err() != nil && store.Probe() == nil {
			end(ErrStore)
			return
		}
	}
}

// State returns the newest copy of the cluster state.
func (p *Process) State() *state.State { return p.state.current() }

// follow keeps engines as the state wants them until ctx ends, or the state
// shows that this node does not belong here.
func (p *Process) follow(ctx context.Context) error {
	failing := map[uint32]string{} // why groups could not be started
	for ctx.Err() == nil {
		st := p.State()
		if err := agree(st, p.cfg); err != nil {
			return err
		}
		if st.ClusterID() != "" {
			p.reconcile(st, failing)
		}
		wait, cancel := ctx, context.CancelFunc(func() {})
		if len(failing) > 0 {
			wait, cancel = context.WithTimeout(ctx, retryEvery)
		}
		_ = p.state.await(wait, st.Index()+1) // the end of the wait is all that counts
		cancel()
	}
	return nil
}

// reconcile starts and stops engines.
func (p *Process) reconcile(st *state.State, failing map[uint32]string) {
	have := *p.engines.Load()
	next := map[uint32]*engine{}
	var begun []*engine
	for g := range st.Groups() {
		if w, ok := st.Worker(g.Serving); !ok || w.Node != p.cfg.Node.Name {
			delete(failing, g.ID)
			continue
		}
		if e := have[g.ID]; e != nil && e.group.Serving == g.Serving && e.group.Epoch == g.Epoch {
			next[g.ID] = e
			continue
		}
		if e := have[g.ID]; e != nil {
			e.stop(p.log) // what it sends shows an epoch that has passed
		}
		e, err := p.start(st, g)
		if err != nil {
			if failing[g.ID] != err.Error() {
				p.log.Error("start serving a group", "group", g.ID, "worker", g.Serving, "err", err)
				failing[g.ID] = err.Error()
			}
			continue
		}
		delete(failing, g.ID)
		next[g.ID] = e
		begun = append(begun, e)
		p.log.Info("group served", "group", g.ID, "worker", g.Serving, "kind", g.Kind, "epoch", g.Epoch)
	}
	for id, e := range have {
		if next[id] == nil {
			e.stop(p.log)
		}
	}
	if !maps.Equal(have, next) {
		p.publish(next, begun)
	}
}

// publish makes a list of engines that which counts, and tells the fronts.
func (p *Process) publish(list map[uint32]*engine, begun []*engine) {
	p.engines.Store(&list)
	fronts := p.links.fronts()
	p.tellGroups(fronts...)
	// A front may have come between the start of an engine and this moment,
	// and was told only the flows of the engines that were listed then.
	for _, e := range begun {
		for _, f := range fronts {
			e.tellFlows(f)
		}
	}
}

func (p *Process) engine(group uint32) *engine { return (*p.engines.Load())[group] }

// tellGroups tells fronts which groups are served here.
func (p *Process) tellGroups(fronts ...*front) {
	p.telling.Lock()
	defer p.telling.Unlock()
	m := workerlink.GroupsMsg{Groups: slices.Sorted(maps.Keys(*p.engines.Load()))}
	for _, f := range fronts {
		f.tell(workerlink.Groups, m)
	}
}

// introduce makes the state know this node and its workers, until ctx ends.
// Everything that is proposed is an entry in the log of the whole cluster, so
// what is refused, or undone by somebody else, is not proposed again at once.
func (p *Process) introduce(ctx context.Context) {
	pause, said := retryEvery, ""
	for ctx.Err() == nil {
		st := p.State()
		missing := p.unknown(st)
		if len(missing) == 0 {
			pause, said = retryEvery, ""
			p.refused.Store(&map[string]string{})
			_ = p.state.await(ctx, st.Index()+1) // the end of the wait is all that counts
			continue
		}
		err := p.present(ctx, missing)
		if err != nil && err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			p.log.Error("the cluster does not take this node as it is", "err", strings.ReplaceAll(said, "\n", "; "))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
			pause = min(2*pause, retrySlowest)
		}
	}
}

// present proposes commands one after the other and returns what was refused.
func (p *Process) present(ctx context.Context, cmds []state.Command) error {
	refused := map[string]string{}
	var errs []error
	for _, c := range cmds {
		pctx, cancel := context.WithTimeout(ctx, commitWithin)
		_, err := p.propose(pctx, c)
		cancel()
		var refusal *state.Error
		switch {
		case err == nil:
		case !errors.As(err, &refusal):
			return fmt.Errorf("introduce it: %w", err) // the others would fare alike
		default:
			errs = append(errs, err)
			switch {
			case c.PutWorker != nil:
				refused[c.PutWorker.ID] = "it does not serve: " + err.Error()
			case c.RemoveWorker != nil:
				refused[c.RemoveWorker.ID] = "it is no longer in the configuration, but still serves: " + err.Error()
			}
		}
	}
	p.refused.Store(&refused)
	return errors.Join(errs...)
}

// unknown lists the commands that bring the state in step with the
// configuration of this node.
func (p *Process) unknown(st *state.State) []state.Command {
	if st.ClusterID() == "" {
		return nil // no front has told anything yet
	}
	var out []state.Command
	want := NodeOf(p.cfg, p.version)
	// A controller's front keeps the entry of its node up to date itself.
	if n, ok := st.Node(want.Name); !ok || !want.Controller && n != want {
		out = append(out, state.Command{PutNode: &want})
	}
	for _, w := range p.cfg.Workers {
		if have, ok := st.Worker(w.ID); !ok || have.Node != want.Name || string(have.Kind) != string(w.Kind) {
			out = append(out, state.Command{PutWorker: &state.Worker{ID: w.ID, Kind: state.Kind(w.Kind), Node: want.Name}})
		}
	}
	// One that the configuration has lost is removed as soon as it has no users.
	for w := range st.Workers() {
		if w.Node == want.Name && !slices.ContainsFunc(p.cfg.Workers, func(c config.Worker) bool { return c.ID == w.ID }) {
			out = append(out, state.Command{RemoveWorker: &state.RemoveWorker{ID: w.ID}})
		}
	}
	return out
}

// NodeOf is a node as its configuration describes it.
func NodeOf(cfg *config.Config, version string) state.Node {
	n := state.Node{
		Name: cfg.Node.Name, ClusterAddr: cfg.Cluster.Address.String(), Service: cfg.SIP.Address, Service6: cfg.SIP.Address6,
		P: cfg.SIP.PCSCF, I: cfg.SIP.ICSCF, S: cfg.SIP.SCSCF, Version: version, Domain: cfg.SIP.Domain,
	}
	for _, c := range cfg.Cluster.Controllers {
		if c.Name == n.Name {
			n.Controller = true
		}
	}
	return n
}

func (p *Process) count(what string) {
	p.countMu.Lock()
	p.counts[what]++
	p.countMu.Unlock()
}
