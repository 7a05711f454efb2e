package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/controller/api"
	"bellwether/cscf/digest"
	"bellwether/media/rtp"
)

const (
	callsAtOnce    = 20
	registerAtOnce = 20
	hold           = 1200 * time.Millisecond // from answer to BYE: long enough to tell a tone
	ring           = 50 * time.Millisecond
	enough         = 0.95 // of the packets must come
	maxReasons     = 20
)

var phoneAddr = netip.MustParseAddr("127.0.0.1")

func credentials(impi, realm, password string) api.Credentials {
	return api.Credentials{
		MD5:    digest.HA1(digest.MD5, impi, realm, password),
		SHA256: digest.HA1(digest.SHA256, impi, realm, password),
	}
}

// fleet is the demo's phones and what became of their calls.
type fleet struct {
	phones []*member
	admin  *api.Client
	clock  *rtp.Clock

	mu       sync.Mutex
	idle     []*member
	up       int // calls under way
	res      Result
	audioBad bool
	why      map[string]int               // reasons of failures
	heard    map[string]chan phone.Result // callee's view, by Call-ID of calls under way
}

// member is one phone.
type member struct {
	*phone.Phone
	aor        string
	node       string // that serves it, once registered
	registered bool
}

func newFleet(ctx context.Context, c *localcluster.Cluster, password string, log *slog.Logger) (*fleet, error) {
	f := &fleet{admin: c.Nodes[0].Admin, clock: new(rtp.Clock), why: map[string]int{}, heard: map[string]chan phone.Result{}}
	for i := range subscribers {
		impi := user(i) + "@" + Domain
		p, err := phone.New(phone.Config{
			AOR: "sip:" + impi, IMPI: impi, Password: password, Domain: Domain,
			Proxy: c.Nodes[i%len(c.Nodes)].P(), LocalIP: phoneAddr,
			ToneHz: 400 + 50*(i%40), Ring: ring, Clock: f.clock, Log: log,
			OnCall: f.answered,
		})
		if err != nil {
			f.close()
			return nil, err
		}
		f.phones = append(f.phones, &member{Phone: p, aor: "sip:" + impi})
	}
	return f, nil
}

func (f *fleet) close() {
	var wg sync.WaitGroup
	for _, m := range f.phones {
		wg.Go(m.Close)
	}
	wg.Wait()
}

// register registers every phone and finds out which node serves it.
func (f *fleet) register(ctx context.Context) error {
	slots := make(chan struct{}, registerAtOnce)
	errs := make([]error, len(f.phones))
	var wg sync.WaitGroup
	for i, m := range f.phones {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			rctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			if errs[i] = m.Register(rctx); errs[i] != nil {
				errs[i] = fmt.Errorf("register %s: %w", m.aor, errs[i])
			}
		})
	}
	wg.Wait()
	nodes := map[string]string{}
	workers, err := f.admin.Workers(ctx)
	if err != nil {
		return err
	}
	for _, w := range workers {
		nodes[w.ID] = w.Node
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, m := range f.phones {
		if errs[i] != nil {
			continue
		}
		u, err := f.admin.User(ctx, m.aor)
		if err != nil {
			errs[i] = fmt.Errorf("look %s up: %w", m.aor, err)
			continue
		}
		m.registered, m.node = true, nodes[u.PCSCF.Serving]
		f.idle = append(f.idle, m)
		f.res.Registered++
	}
	return errors.Join(errs...)
}

// unregister takes the phones off the cluster.
func (f *fleet) unregister(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	slots := make(chan struct{}, registerAtOnce)
	var wg sync.WaitGroup
	for _, m := range f.phones {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			_ = m.Unregister(ctx) // it expires by itself otherwise
		})
	}
	wg.Wait()
}

func (f *fleet) registered() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.res.Registered
}

func (f *fleet) active() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.up
}

func (f *fleet) result() Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.res
	r.AudioOK = !f.audioBad && r.CallsOK > 0
	return r
}

// reasons lists why calls failed, the most frequent first.
func (f *fleet) reasons() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(f.why), func(a, b string) int { return f.why[b] - f.why[a] })
	var out []string
	for _, k := range keys[:min(len(keys), maxReasons)] {
		out = append(out, fmt.Sprintf("%d × %s", f.why[k], k))
	}
	return out
}

// callUntil makes calls between idle phones until ctx ends, and lets those
// that are up end in order.
func (f *fleet) callUntil(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, callsAtOnce)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if ctx.Err() != nil {
			return
		}
		a, b, ok := f.pair()
		if !ok {
			<-slots
			select { // every phone is busy or none is registered
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			f.call(a, b)
		})
	}
}

// pair takes two phones out of the idle ones.
func (f *fleet) pair() (a, b *member, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.idle) < 2 {
		return nil, nil, false
	}
	take := func() *member {
		i := rand.IntN(len(f.idle))
		m := f.idle[i]
		f.idle[i] = f.idle[len(f.idle)-1]
		f.idle = f.idle[:len(f.idle)-1]
		return m
	}
	f.up++
	return take(), take(), true
}

// answered takes the callee's view of a call that is over.
func (f *fleet) answered(r phone.Result) {
	f.mu.Lock()
	ch := f.view(r.CallID)
	f.mu.Unlock()
	ch <- r
}

// view is where the callee's view of a call arrives. f.mu is held.
func (f *fleet) view(callID string) chan phone.Result {
	ch := f.heard[callID]
	if ch == nil {
		ch = make(chan phone.Result, 1)
		f.heard[callID] = ch
	}
	return ch
}

// call makes one call and judges it from both ends.
func (f *fleet) call(a, b *member) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := a.Call(ctx, b.aor, phone.CallOptions{Hold: hold})
	var in phone.Result
	if err == nil && out.Status == 200 {
		f.mu.Lock()
		ch := f.view(out.CallID)
		f.mu.Unlock()
		select {
		case in = <-ch:
		case <-time.After(3 * time.Second):
			err = errors.New("the callee did not see the call end")
		}
	} else if err == nil {
		err = fmt.Errorf("answered %d %s", out.Status, out.Reason)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.heard, out.CallID)
	f.up--
	f.idle = append(f.idle, a, b)
	if err != nil {
		f.res.CallsFailed++
		f.note(err.Error())
		return
	}
	f.res.CallsOK++
	if a.node != b.node {
		f.res.CrossNodeCalls++
	}
	for _, r := range []phone.Result{out, in} {
		f.res.RTPExpected += r.RTPExpected
		f.res.RTPReceived += r.RTPReceived
		switch {
		case !r.ToneHeard:
			f.audioBad = true
			f.note(fmt.Sprintf("the far end's tone was not heard (%.0f Hz was, %d of %d packets)", r.ToneHz, r.RTPReceived, r.RTPExpected))
		case float64(r.RTPReceived) < enough*float64(r.RTPExpected):
			f.audioBad = true
			f.note(fmt.Sprintf("only %d of %d packets came", r.RTPReceived, r.RTPExpected))
		}
	}
}

// note counts a reason. f.mu is held.
func (f *fleet) note(reason string) {
	if _, ok := f.why[reason]; ok || len(f.why) < maxReasons {
		f.why[reason]++
	}
}
