// Package demo runs a cluster of three real nodes on this machine, with a
// hundred subscribers and built-in phones that register and call each other
// until it is told to stop. It judges every call from the phones: answered,
// ended in order, and the far end's tone heard on both sides.
//
// It measures nothing inside the cluster and changes nothing outside its own
// directory. A failed call stays failed: nothing is tried again.
package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/controller/api"
	"bellwether/tui/statusline"
)

// Domain is the home domain of the demo's subscribers.
const Domain = "demo.bellwether.test"

const (
	subscribers = 100
	readyWithin = 15 * time.Second
	endWithin   = 5 * time.Second // for a last look and for unregistering
)

// Options say how to run it.
type Options struct {
	Binary string        // the bellwether program
	For    time.Duration // how long calls are made; 0: until ctx ends
	JSON   bool          // print one Result as JSON at the end
	Plain  bool          // no live line
	Keep   bool          // leave the cluster running at the end
	Out    io.Writer     // the result
	Err    io.Writer     // progress

	// For tests.
	host   func(n int) netip.Addr // of node n and, for 1, of the phones; nil: 127.0.0.n
	tmp    string                 // where the directory is made; "": the system's
	phones int                    // 0: all
}

// Result is what the demo saw.
type Result struct {
	Nodes          int    `json:"nodes"`      // connected at the end
	Leader         string `json:"leader"`     // node that leads the controllers
	Registered     int    `json:"registered"` // phones that registered
	AKA            int    `json:"aka"`        // of these: with a SIM, the others with a password
	TCP            int    `json:"tcp"`        // of these: over TCP, the others over UDP
	CallsOK        int    `json:"calls_ok"`
	CallsFailed    int    `json:"calls_failed"`
	CrossNodeCalls int    `json:"cross_node_calls"` // of calls_ok: caller and callee are served by workers of different nodes
	RTPExpected    uint64 `json:"rtp_expected"`     // packets, both directions
	RTPReceived    uint64 `json:"rtp_received"`
	AudioOK        bool   `json:"audio_ok"` // in every call both sides heard the other's tone and got at least 95 % of the packets
	UpMS           int64  `json:"up_ms"`    // from the start until all nodes served

	Failures []string `json:"failures"` // what failed and how often, the most frequent first
}

// ErrFailed means that the demo ran and something in it failed.
var ErrFailed = errors.New("the demo saw failures")

// Run runs the demo. It returns ErrFailed if a phone, a call or its audio failed,
// and ctx's error if it was interrupted before the first call. Unless it ran to
// the end with Keep, nothing of it is left when it returns.
func Run(ctx context.Context, o Options) (err error) {
	if o.phones == 0 {
		o.phones = subscribers
	}
	if o.host == nil {
		o.host = func(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(n)}) }
	}
	dir, err := os.MkdirTemp(o.tmp, "bellwether-demo-")
	if err != nil {
		return fmt.Errorf("make a directory for the demo: %w", err)
	}
	left := false
	defer func() {
		if !left {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	c, err := localcluster.Create(localcluster.Spec{
		Dir: dir, Binary: o.Binary, Domain: Domain, Detached: o.Keep,
		Nodes: []localcluster.NodeSpec{
			{Name: "n1", Address: o.host(1), Workers: []string{"p1", "i1", "s1"}},
			{Name: "n2", Address: o.host(2), Workers: []string{"p2", "i2"}},
			{Name: "n3", Address: o.host(3), Workers: []string{"s2"}},
		},
		PortP: 5060, PortI: 4060, PortS: 6060, PortNode: 7400, PortHTTP: metricsPort(o),
	})
	if err != nil {
		return err
	}
	defer func() {
		if !left {
			err = errors.Join(err, c.Stop())
		}
	}()
	password := rand.Text()
	res, err := play(ctx, o, c, password)
	if err != nil {
		return err
	}
	if err := print(o, res); err != nil {
		return err
	}
	if o.Keep {
		left = true
		kept(o.Err, c, dir, password)
	}
	return res.verdict(len(c.Nodes), o.phones)
}

// metricsPort is one that is free at all nodes, the usual one if it is: that is
// also Prometheus' own, and nobody needs it to find the demo.
func metricsPort(o Options) uint16 {
	const usual, last = 9090, 9190
	for port := uint16(usual); port < last; port++ {
		free := true
		for n := 1; n <= 3 && free; n++ {
			l, err := net.Listen("tcp", netip.AddrPortFrom(o.host(n), port).String())
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			return port
		}
	}
	return usual
}

// play starts the nodes, registers the phones and lets them call each other.
func play(ctx context.Context, o Options, c *localcluster.Cluster, password string) (res Result, err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = ctx.Err() // not what the interruption made of it
		}
	}()
	began := time.Now()
	say := func(format string, args ...any) { fmt.Fprintf(o.Err, format+"\n", args...) }
	say("Starting three nodes on %v, %v and %v ...", o.host(1), o.host(2), o.host(3))
	if err := c.Start(); err != nil {
		return res, err
	}
	wctx, cancel := context.WithTimeout(ctx, readyWithin)
	err = c.WaitReady(wctx)
	cancel()
	if err != nil {
		return res, err
	}
	up := time.Since(began)
	say("The cluster is up after %.1f s; %s leads. Adding %d subscribers and registering their phones ...", up.Seconds(), c.Leader(ctx), o.phones)
	if err := provision(ctx, c, o.phones, password); err != nil {
		return res, err
	}
	f, err := newFleet(c, o.phones, password, slog.New(slog.DiscardHandler))
	if err != nil {
		return res, err
	}
	defer f.close()
	if err := f.register(ctx); err != nil {
		return res, err
	}
	if err := ctx.Err(); err != nil {
		return res, err
	}
	say("%d of %d phones are registered after %.1f s. Calling ...", f.registered(), o.phones, time.Since(began).Seconds())

	cctx, cancel := ctx, context.CancelFunc(func() {})
	if o.For > 0 {
		cctx, cancel = context.WithTimeout(ctx, o.For)
	}
	var wg sync.WaitGroup
	if !o.Plain {
		wg.Go(func() { show(cctx, o.Err, f, time.Now()) })
	}
	f.callUntil(cctx)
	cancel()
	wg.Wait()

	// From here on an interruption is the way in which the demo ends.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	res = f.result()
	res.UpMS = up.Milliseconds()
	if st, err := c.Nodes[0].Admin.Status(ending); err == nil {
		res.Leader = st.Leader
		for _, n := range st.Nodes {
			if n.Connected {
				res.Nodes++
			}
		}
	}
	if o.Keep {
		f.unregister(ending) // nobody is to ring phones that are gone
	}
	return res, nil
}

// verdict is ErrFailed with all that failed, nil if nothing did.
func (r Result) verdict(nodes, phones int) error {
	if r.CallsFailed == 0 && r.Registered == phones && r.AudioOK && r.Nodes == nodes {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrFailed, strings.Join(append([]string{
		fmt.Sprintf("%d calls failed, %d of %d phones registered, %d of %d nodes up", r.CallsFailed, r.Registered, phones, r.Nodes, nodes),
	}, r.Failures...), "; "))
}

// provision stores the subscribers of the demo.
func provision(ctx context.Context, c *localcluster.Cluster, phones int, password string) error {
	var all []api.NewSubscriber
	for i := range phones {
		impi := user(i) + "@" + Domain
		n := api.NewSubscriber{
			IMPI: impi, Realm: Domain,
			Identities: []api.Identity{{URI: "sip:" + impi}, {URI: "tel:" + number(i)}},
		}
		if hasSIM(i) {
			n.AKA = simOf(i, password).keys()
		} else {
			n.HA1 = credentials(impi, Domain, password)
		}
		all = append(all, n)
	}
	for _, name := range guests {
		all = append(all, guest(name, password))
	}
	_, err := c.Nodes[0].Admin.ImportSubscribers(ctx, all)
	return err
}

// guests are the accounts for phones of the user's own.
var guests = []string{"alice", "bob"}

// guest is one more subscriber, for a real phone beside the built-in ones. It
// is challenged with MD5 only: many phones, Debian's baresip among them, give
// up at a challenge that names another algorithm as well, though RFC 7616 §3.3
// tells them to ignore it.
func guest(name, password string) api.NewSubscriber {
	impi := name + "@" + Domain
	ha1 := credentials(impi, Domain, password)
	ha1.SHA256 = ""
	return api.NewSubscriber{IMPI: impi, Realm: Domain, HA1: ha1, Identities: []api.Identity{{URI: "sip:" + impi}}}
}

func user(i int) string   { return fmt.Sprintf("u%03d", i) }
func number(i int) string { return fmt.Sprintf("+1555%07d", i) }

// show keeps the status line until ctx ends.
func show(ctx context.Context, w io.Writer, f *fleet, began time.Time) {
	line := statusline.New(w)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		r := f.result()
		n := strconv.Itoa
		items := []statusline.Item{
			{Value: time.Since(began).Round(time.Second).String()},
			{Value: n(r.CallsOK), Label: "calls ok"},
			{Value: n(r.CallsFailed), Label: "failed", Bad: r.CallsFailed > 0},
			{Value: n(f.active()), Label: "up"},
			{Value: share(r.RTPReceived, r.RTPExpected), Label: "audio", Bad: r.CallsOK > 0 && !r.AudioOK},
			{Value: "ctrl+c", Label: "ends"},
			{Value: n(r.Registered), Label: "registered", Bad: r.Registered < len(f.phones)},
			{Value: n(r.AKA), Label: "with AKA"},
			{Value: n(r.TCP), Label: "over TCP"},
			{Value: n(r.CrossNodeCalls), Label: "across nodes"},
		}
		if line.Show(time.Now(), items...) != nil {
			return // nobody reads: the demo goes on
		}
		select {
		case <-ctx.Done():
			_ = line.End()
			return
		case <-tick.C:
		}
	}
}

func share(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// print writes the result as asked.
func print(o Options, r Result) error {
	if o.JSON {
		return json.NewEncoder(o.Out).Encode(r)
	}
	audio := "every call had audio both ways"
	if !r.AudioOK {
		audio = "audio was missing in some calls"
	}
	_, err := fmt.Fprintf(o.Out, "%d nodes, %s leads, %d phones registered (%d with AKA, %d over TCP)\n%d calls succeeded (%d across nodes), %d failed\n%d of %d audio packets arrived (%s); %s\n",
		r.Nodes, r.Leader, r.Registered, r.AKA, r.TCP, r.CallsOK, r.CrossNodeCalls, r.CallsFailed, r.RTPReceived, r.RTPExpected, share(r.RTPReceived, r.RTPExpected), audio)
	for _, s := range r.Failures {
		fmt.Fprintln(o.Out, " ", s)
	}
	return err
}

// kept says how to use the cluster that goes on running.
func kept(w io.Writer, c *localcluster.Cluster, dir, password string) {
	var pids []string
	for _, n := range c.Nodes {
		pids = append(pids, strconv.Itoa(n.PID()))
	}
	n := c.Nodes[0]
	binary := c.Spec.Binary
	if here, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(here, binary); err == nil && filepath.IsLocal(rel) {
			binary = "./" + rel
		}
	}
	fmt.Fprintf(w, `
The cluster goes on running in %[1]s.
Register phones:   alice and bob (user alice@%[2]s and so on), password %[3]s, MD5 digest,
                   outbound proxy %[4]s, %[8]s or %[9]s over UDP or TCP
  with baresip:    <sip:alice@%[2]s>;auth_user=alice@%[2]s;auth_pass=%[3]s;outbound="sip:%[4]s";regint=600
                   (a line of ~/.baresip/accounts; a second phone as bob, then dial sip:bob@%[2]s)
Look at it:        %[5]s status --socket %[6]s
                   (also user show alice, call list, worker list)
Stop it:           kill %[7]s; rm -r %[1]s
`, dir, Domain, password, n.P(), binary, n.AdminSocket(), strings.Join(pids, " "), c.Nodes[1].P(), c.Nodes[2].P())
}
