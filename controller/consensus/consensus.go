// Package consensus keeps the cluster state the same on every controller: it
// runs Raft (hashicorp/raft) over the mesh, with package state as its FSM.
//
// Any member takes a command. Commands are gathered for at most a millisecond
// into one log entry, sent to the leader, and sent again with the same request
// ids, which take effect once, for as long as the outcome is not known and
// somebody still waits for it.
//
// The package does not decide what should change, does not serve the operators'
// API and does not add or remove members for good: all members start with the
// same list of 1, 3 or 5, and a member whose log is empty finds out first
// whether the others list the same.
//
// Invariants: what Propose has acknowledged is on the disks of a majority and
// in the local copy. Reservations live in the leader's memory only; a new
// leader has none. The data directory belongs to one node of one cluster, and
// is refused to any other before anything in it is opened. A cluster begins only
// by a majority that lists the same members, and once: a member that lost its
// log comes back without a vote until it has caught up. Neither a slow
// follower of Follow nor a burst of proposals takes more than a fixed amount
// of memory.
//
// Failure modes: without a majority, Propose and Reserve wait until their
// context ends and then say that the outcome is unknown. A leader whose own
// disk hangs keeps its followers quiet for ever, and no part of Raft notices;
// a watchdog does, after three seconds without progress, and calls OnStall.
package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"bellwether/controller/mesh"
	"bellwether/controller/state"
)

// The protocols on the mesh.
const (
	RaftProtocol = "bw-raft/1"
	APIProtocol  = "bw-api/1"
)

// Timings. Elections end within 0.44 s (p99) with these.
const (
	electionTimeout = 150 * time.Millisecond // also the heartbeat timeout; the leader lease is half of it
	// Followers learn of a commit with the next entry, or after this time to
	// twice of it. Propose on a follower waits for it.
	commitTimeout = 10 * time.Millisecond
	rpcTimeout    = 2 * time.Second
	// Idle connections to a member. When they end, for the age of their
	// certificates, each costs a heartbeat that fails, and the leader can miss
	// one, not several.
	pooledStreams = 1
	closeTimeout  = 5 * time.Second
	keptSnapshots = 2
)

// Errors of a Controller, besides those of contexts.
var (
	// ErrClosed means that the controller is closed.
	ErrClosed = errors.New("controller is closed")
	// ErrNoLeader means that no leader is known at the moment.
	ErrNoLeader = errors.New("no leader")
)

// Member is one controller of the cluster.
type Member struct {
	Name string // the node's name, as in its certificate
	Addr string // host:port of its mesh
}

// Config says who this member is and where it keeps its log.
type Config struct {
	Node      string
	ClusterID string
	DataDir   string // made if need be; belongs to this package
	Members   []Member
	Mesh      *mesh.Mesh // its protocols RaftProtocol and APIProtocol are the controller's; stays the caller's to close
	// Init, if not nil, is proposed until the cluster has an identity. An empty
	// Secret in it is replaced by a random one. Members may all have one: the
	// first to be committed wins.
	Init *state.Init
	// Begun says that the cluster is known to have begun: with an empty log this
	// member only comes back to it.
	Begun   bool
	OnStall func()       // called when the leader makes no progress; nil: os.Exit(3)
	Log     *slog.Logger // nil: slog.Default()

	// For tests.
	logStore               func(raft.LogStore) raft.LogStore // puts a fault in the log's way
	watchPeriod, stallTime time.Duration                     // of the watchdog
	electionTimeout        time.Duration                     // the leader lease is half of it
}

// Controller is this member. Its methods may be called from any goroutine.
type Controller struct {
	cfg      Config
	log      *slog.Logger
	members  []Member // by name
	local    *replica
	raft     *raft.Raft
	trans    *raft.NetworkTransport
	store    *raftboltdb.BoltStore
	mux      *http.ServeMux
	server   *http.Server
	client   *http.Client
	leader   leaderWatch
	door     *door
	founding founding
	batches  chan *proposal
	slots    chan struct{} // one per batch under way

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
	err    error // of Close
}

// Start opens the data directory and joins, or with the other members begins,
// the cluster. It does not wait for a leader: see Wait.
func Start(ctx context.Context, cfg Config) (*Controller, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start controller: %w", err)
	}
	c, err := start(cfg)
	if err != nil {
		return nil, fmt.Errorf("start controller %s: %w", cfg.Node, err)
	}
	return c, nil
}

func start(cfg Config) (*Controller, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.OnStall == nil {
		cfg.OnStall = func() { os.Exit(3) }
	}
	if cfg.watchPeriod == 0 {
		cfg.watchPeriod, cfg.stallTime = watchPeriod, stallTime
	}
	if cfg.electionTimeout == 0 {
		cfg.electionTimeout = electionTimeout
	}
	members, err := checkMembers(cfg.Node, cfg.Members)
	if err != nil {
		return nil, err
	}
	if err := claim(cfg.DataDir, cfg.ClusterID, cfg.Node, members); err != nil {
		return nil, err
	}
	c := &Controller{
		cfg: cfg, log: cfg.Log, members: members, local: newReplica(cfg.Log),
		door: newDoor(cfg.Mesh), batches: make(chan *proposal), slots: make(chan struct{}, maxBatchesUnderWay),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.open(); err != nil {
		c.cancel()
		return nil, err
	}
	c.leader.watch(c.raft)
	c.serveAPI()
	c.run(c.gather)
	c.run(c.followLeadership)
	c.run(c.guard)
	c.run(c.keepStanding)
	if !c.founding.took.Load() {
		c.run(c.found)
	}
	if cfg.Init != nil {
		c.run(c.initialise)
	}
	return c, nil
}

func (c *Controller) run(fn func()) {
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		fn()
	}()
}

func checkMembers(node string, members []Member) ([]Member, error) {
	if n := len(members); n != 1 && n != 3 && n != 5 {
		return nil, fmt.Errorf("the cluster has %d controllers; it must have 1, 3 or 5", n)
	}
	sorted := slices.Clone(members)
	slices.SortFunc(sorted, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	addrs := make(map[string]string)
	self := false
	for i, m := range sorted {
		if m.Name == "" || i > 0 && sorted[i-1].Name == m.Name {
			return nil, fmt.Errorf("controller name %q is empty or given twice", m.Name)
		}
		if _, _, err := net.SplitHostPort(m.Addr); err != nil {
			return nil, fmt.Errorf("address %q of controller %s is not host:port", m.Addr, m.Name)
		}
		if other, ok := addrs[m.Addr]; ok {
			return nil, fmt.Errorf("controllers %s and %s have the same address %s", other, m.Name, m.Addr)
		}
		addrs[m.Addr] = m.Name
		self = self || m.Name == node
	}
	if !self {
		return nil, fmt.Errorf("node %s is not one of the controllers", node)
	}
	return sorted, nil
}

// open opens the log and starts Raft.
func (c *Controller) open() (err error) {
	path := filepath.Join(c.cfg.DataDir, "raft.db")
	c.store, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{
		// Without these, each append rewrites the list of free pages, which
		// after a burst and a truncation is long.
		NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		Timeout: time.Second,
	}})
	if errors.Is(err, bbolt.ErrTimeout) {
		return fmt.Errorf("open %s: another process uses it", path)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.store.Close())
		}
	}()
	logger := raftLogger(c.log)
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(c.cfg.DataDir, keptSnapshots, logger)
	if err != nil {
		return fmt.Errorf("open snapshots in %s: %w", c.cfg.DataDir, err)
	}
	var logs raft.LogStore = c.store
	if c.cfg.logStore != nil {
		logs = c.cfg.logStore(logs)
	}
	logs, err = raft.NewLogCache(512, logs)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(c.cfg.Node)
	conf.HeartbeatTimeout, conf.ElectionTimeout = c.cfg.electionTimeout, c.cfg.electionTimeout
	conf.LeaderLeaseTimeout, conf.CommitTimeout = c.cfg.electionTimeout/2, commitTimeout
	conf.Logger, conf.NoLegacyTelemetry = logger, true

	streams := c.newStreams()
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: streams, Logger: logger, Stream: streams, MaxPool: pooledStreams, Timeout: rpcTimeout,
	})
	// Without it, raft would quietly do without pre-vote, and a member that
	// comes back would depose the leader.
	var _ raft.WithPreVote = transport
	defer func() {
		if err != nil {
			err = errors.Join(err, transport.Close())
		}
	}()
	exists, err := raft.HasExistingState(logs, c.store, snapshots)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	if !exists && len(c.members) == 1 {
		if c.cfg.Begun {
			return fmt.Errorf("%s is empty, but the cluster has begun, and no other controller has its state: restore a backup, or remove the file pki/begun in node.data_dir to begin with nothing", path)
		}
		if err := raft.BootstrapCluster(conf, logs, c.store, snapshots, transport, c.configuration()); err != nil {
			return fmt.Errorf("begin log: %w", err)
		}
		exists = true
	}
	if exists {
		if err := settle(c.cfg.DataDir); err != nil {
			return err
		}
		c.takePart()
	}
	c.trans = transport
	if c.raft, err = raft.NewRaft(conf, c.local, logs, c.store, snapshots, transport); err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	return nil
}

// configuration is the same on every member.
func (c *Controller) configuration() raft.Configuration {
	var conf raft.Configuration
	for _, m := range c.members {
		conf.Servers = append(conf.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(m.Name), Address: raft.ServerAddress(m.Addr)})
	}
	return conf
}

func (c *Controller) member(name string) (Member, bool) {
	for _, m := range c.members {
		if m.Name == name {
			return m, true
		}
	}
	return Member{}, false
}

// State returns the local copy, which may be behind the leader's by the time
// that a message takes, and, on a member that is cut off, by any time.
func (c *Controller) State() *state.State { return c.local.current() }

// Wait returns the local copy once ok holds for it.
func (c *Controller) Wait(ctx context.Context, ok func(*state.State) bool) (*state.State, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	s, err := c.local.wait(ctx, ok)
	if err != nil {
		return nil, fmt.Errorf("wait for cluster state: %w", c.reason(err))
	}
	return s, nil
}

// Follow sends the local copy as a snapshot and then every batch in order,
// until ctx ends, send fails or the controller is closed, and returns why. A
// send that is too slow is not waited for: it gets a new snapshot instead of
// the batches it missed.
func (c *Controller) Follow(ctx context.Context, send func(state.Update) error) error {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	return fmt.Errorf("follow cluster state: %w", c.reason(c.local.follow(ctx, send)))
}

// bound ends ctx with the controller.
func (c *Controller) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// reason tells a context that ended with the controller from one that ended by itself.
func (c *Controller) reason(err error) error {
	if c.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return ErrClosed
	}
	return err
}

// Close leaves the cluster without handing leadership over; call
// TransferLeadership before to spare it an election. Calls that are under way
// end with ErrClosed.
func (c *Controller) Close() error {
	c.once.Do(func() {
		c.cancel()
		c.err = c.shutdown()
	})
	return c.err
}

func (c *Controller) shutdown() error {
	_ = c.server.Close()
	c.client.CloseIdleConnections()
	c.leader.stop(c.raft)
	done := make(chan error, 1)
	go func() { done <- c.raft.Shutdown().Error() }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("close controller: %w", err)
		}
	case <-time.After(closeTimeout):
		// A hanging disk; closing the store under raft's hands would hang too.
		return fmt.Errorf("close controller: raft does not stop within %v", closeTimeout)
	}
	c.trans.CloseStreams()
	c.wg.Wait()
	if err := c.store.Close(); err != nil {
		return fmt.Errorf("close controller: %w", err)
	}
	return nil
}
