package demo

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/controller/api"
	"bellwether/cscf/aka"
	"bellwether/cscf/digest"
	"bellwether/cscf/sipmsg"
	"bellwether/media/rtp"
)

const (
	callsAtOnce    = 20
	registerAtOnce = 20
	hold           = 1200 * time.Millisecond // from answer to BYE: long enough to tell a tone
	ring           = 50 * time.Millisecond
	enough         = 0.95 // of the packets must come
	maxReasons     = 20
	registerWithin = 10 * time.Second
	callWithin     = 30 * time.Second
	seenWithin     = 3 * time.Second // until the callee, too, knows that the call is over
)

func credentials(impi, realm, password string) api.Credentials {
	return api.Credentials{
		MD5:    digest.HA1(digest.MD5, impi, realm, password),
		SHA256: digest.HA1(digest.SHA256, impi, realm, password),
	}
}

// hasSIM says whether a phone has a SIM in place of a password: half of them.
func hasSIM(i int) bool { return i%2 == 1 }

// overTCP says whether a phone uses TCP: a quarter of them, with SIM and without.
func overTCP(i int) bool { return i%8 == 3 || i%8 == 6 }

// sim is the secret of a phone's SIM.
type sim struct{ k, opc aka.Key }

// simOf draws the secret from that of the demo.
func simOf(i int, password string) sim {
	sum := sha256.Sum256(fmt.Appendf(nil, "SIM %d %s", i, password))
	return sim{aka.Key(sum[:16]), aka.Key(sum[16:])}
}

// keys is what the network knows of it.
func (s sim) keys() *api.AKA {
	return &api.AKA{K: hex.EncodeToString(s.k[:]), OPc: hex.EncodeToString(s.opc[:]), AMF: "8000"}
}

// fleet is the demo's phones and what became of their calls.
type fleet struct {
	phones []*member
	admin  directory

	mu       sync.Mutex
	idle     []*member
	up       int // calls under way
	res      Result
	audioBad bool
	why      map[string]int // reasons of failures; at most maxReasons
}

// directory knows who serves whom.
type directory interface {
	Workers(ctx context.Context) ([]api.Worker, error)
	User(ctx context.Context, identity string) (api.User, error)
}

// handset is what a member does with its phone.
type handset interface {
	Register(ctx context.Context) error
	Unregister(ctx context.Context) error
	Call(ctx context.Context, target string, opts phone.CallOptions) (phone.Result, error)
	Close()
}

// member is one phone.
type member struct {
	handset
	aor   string
	sim   bool              // it has one
	tcp   bool              // it uses it
	node  string            // that serves it, once registered
	ended chan phone.Result // the last call that came in and is over; capacity 1
}

func newMember(aor string) *member { return &member{aor: aor, ended: make(chan phone.Result, 1)} }

func newFleet(c *localcluster.Cluster, phones int, password string, log *slog.Logger) (*fleet, error) {
	f := &fleet{admin: c.Nodes[0].Admin, why: map[string]int{}}
	clock := new(rtp.Clock)
	for i := range phones {
		impi := user(i) + "@" + Domain
		m := newMember("sip:" + impi)
		cfg := phone.Config{
			AOR: m.aor, IMPI: impi, Domain: Domain,
			Proxy: c.Nodes[i%len(c.Nodes)].P(), LocalIP: c.Nodes[0].Address,
			ToneHz: 400 + 50*(i%40), Ring: ring, Clock: clock, Log: log,
			OnCall: m.over,
		}
		if m.sim = hasSIM(i); m.sim {
			s := simOf(i, password)
			cfg.SIM = aka.NewSIM(s.k, s.opc)
		} else {
			cfg.Password = password
		}
		if m.tcp = overTCP(i); m.tcp {
			cfg.Transport = sipmsg.TCP
		}
		p, err := phone.New(cfg)
		if err != nil {
			f.close()
			return nil, err
		}
		m.handset = p
		f.phones = append(f.phones, m)
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

// register registers every phone and finds out which node serves it. Phones
// that fail are noted and left out; it is an error only if nothing is known.
func (f *fleet) register(ctx context.Context) error {
	errs := make([]error, len(f.phones))
	f.each(func(i int, m *member) {
		rctx, cancel := context.WithTimeout(ctx, registerWithin)
		defer cancel()
		errs[i] = m.Register(rctx)
	})
	workers, err := f.admin.Workers(ctx)
	if err != nil {
		return err
	}
	nodes := map[string]string{}
	for _, w := range workers {
		nodes[w.ID] = w.Node
	}
	for i, m := range f.phones {
		var u api.User
		if errs[i] == nil {
			u, errs[i] = f.admin.User(ctx, m.aor)
		}
		f.mu.Lock()
		if errs[i] != nil {
			f.note("not registered: " + errs[i].Error())
		} else {
			m.node = nodes[u.PCSCF.Serving]
			f.idle = append(f.idle, m)
			f.res.Registered++
			if m.sim {
				f.res.AKA++
			}
			if m.tcp {
				f.res.TCP++
			}
		}
		f.mu.Unlock()
	}
	return nil
}

// each does something with every phone, registerAtOnce at a time.
func (f *fleet) each(do func(i int, m *member)) {
	slots := make(chan struct{}, registerAtOnce)
	var wg sync.WaitGroup
	for i, m := range f.phones {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			do(i, m)
		})
	}
	wg.Wait()
}

// unregister takes the phones off the cluster. What fails expires by itself.
func (f *fleet) unregister(ctx context.Context) {
	f.each(func(_ int, m *member) { _ = m.Unregister(ctx) })
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
	r.Failures = make([]string, 0, len(f.why))
	for _, k := range slices.SortedFunc(maps.Keys(f.why), func(a, b string) int { return cmp.Or(f.why[b]-f.why[a], cmp.Compare(a, b)) }) {
		r.Failures = append(r.Failures, fmt.Sprintf("%d × %s", f.why[k], k))
	}
	return r
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

// over takes the callee's view of a call that is over.
func (m *member) over(r phone.Result) {
	for {
		select {
		case m.ended <- r:
			return
		default:
		}
		select { // of a call that nobody asked about
		case <-m.ended:
		default:
		}
	}
}

// saw returns the callee's view of a call that the caller has ended.
func (m *member) saw(callID string) (phone.Result, error) {
	late := time.After(seenWithin)
	for {
		select {
		case r := <-m.ended:
			if r.CallID == callID {
				return r, r.Err
			}
		case <-late:
			return phone.Result{}, errors.New("the callee did not see the call end")
		}
	}
}

// call makes one call and judges it from both ends.
func (f *fleet) call(a, b *member) {
	ctx, cancel := context.WithTimeout(context.Background(), callWithin)
	defer cancel()
	out, err := a.Call(ctx, b.aor, phone.CallOptions{Hold: hold})
	var in phone.Result
	switch {
	case err != nil:
	case out.Status != 200:
		err = fmt.Errorf("answered %d %s", out.Status, out.Reason)
	default:
		in, err = b.saw(out.CallID)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
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
		if bad := deaf(r); bad != "" {
			f.audioBad = true
			f.note(bad)
		}
	}
}

// deaf says what was wrong with the audio that one end heard, "" if nothing was.
func deaf(r phone.Result) string {
	switch {
	case !r.ToneHeard:
		return fmt.Sprintf("the far end's tone was not heard (%.0f Hz was, %d of %d packets)", r.ToneHz, r.RTPReceived, r.RTPExpected)
	case float64(r.RTPReceived) < enough*float64(r.RTPExpected):
		return fmt.Sprintf("only %d of %d packets came", r.RTPReceived, r.RTPExpected)
	}
	return ""
}

// note counts a reason. f.mu is held.
func (f *fleet) note(reason string) {
	if _, ok := f.why[reason]; ok || len(f.why) < maxReasons {
		f.why[reason]++
	}
}
