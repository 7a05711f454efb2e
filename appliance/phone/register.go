package phone

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/emiago/sipgo/sip"

	"bellwether/cscf/sipmsg"
)

const (
	// retryFirst and retryLast bound the pauses after a refresh that did not
	// work; each is about twice the one before.
	retryFirst = time.Second
	retryLast  = 30 * time.Second
	// maxRoutes is how many entries of a Service-Route are kept.
	maxRoutes = 16
)

// registration is the phone's registration. One REGISTER runs at a time.
type registration struct {
	busy chan struct{} // holds a value while a REGISTER runs

	// Of whoever holds busy.
	callID, tag string
	cseq        uint32
	auth        authorization

	mu         sync.Mutex
	wanted     bool     // refreshes go on
	routes     []string // Service-Route, in order
	associated []string // P-Associated-URI, in order
	expires    time.Time
	refresh    *time.Timer // nil: none was ever due
}

func (r *registration) init() {
	r.busy = make(chan struct{}, 1)
}

// want begins or ends the refreshing and drops the refresh that is due.
func (r *registration) want(wanted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = wanted
	if r.refresh != nil {
		r.refresh.Stop()
	}
}

// schedule lets f run after d unless nobody wants the registration any more.
func (r *registration) schedule(d time.Duration, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.wanted {
		return
	}
	if r.refresh != nil {
		r.refresh.Stop()
	}
	r.refresh = time.AfterFunc(d, f)
}

func (r *registration) isWanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wanted
}

func (r *registration) serviceRoute() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.routes
}

// Registered reports whether a registration is current.
func (p *Phone) Registered() bool {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	return time.Now().Before(p.reg.expires)
}

// Associated returns the phone's registered identities, the default one first
// (P-Associated-URI, RFC 7315 §4.1), as URIs.
func (p *Phone) Associated() []string {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	return p.reg.associated
}

// Register registers the AOR, answering a digest challenge, and then keeps the
// registration until Unregister or Close: it refreshes 600 s before the expiry,
// or after half of a time of 1200 s and less (TS 24.229 §5.1.1.4.1), and tries
// again with growing pauses while that does not work. A refusal is a
// *StatusError. Register may be called again to refresh at once.
func (p *Phone) Register(ctx context.Context) error {
	p.reg.want(true)
	return p.register(ctx, p.cfg.Expires)
}

// Unregister removes the registration, and does not refresh it any more even
// if that does not work.
func (p *Phone) Unregister(ctx context.Context) error {
	p.reg.want(false)
	return p.register(ctx, 0)
}

func (p *Phone) register(ctx context.Context, expires time.Duration) error {
	if !p.begin() {
		return ErrClosed
	}
	defer p.tasks.Done()
	ctx, done := p.within(ctx)
	defer done()
	r := &p.reg
	select {
	case r.busy <- struct{}{}:
		defer func() { <-r.busy }()
	case <-ctx.Done():
		return fmt.Errorf("register %s: %w", p.cfg.AOR, context.Cause(ctx))
	}
	if expires > 0 && !r.isWanted() { // a refresh that an Unregister overtook
		return nil
	}
	granted, err := p.exchangeRegister(ctx, expires)
	if err != nil {
		return fmt.Errorf("register %s: %w", p.cfg.AOR, err)
	}
	if granted > 0 {
		r.schedule(refreshAfter(granted), func() { p.refresh(retryFirst) })
	}
	return nil
}

// reconnected registers again over the connection that replaced a broken one
// (RFC 5626 §4.2.1): the P-CSCF reaches the phone by the old one.
func (p *Phone) reconnected() {
	p.reg.mu.Lock()
	once := !p.reg.expires.IsZero()
	p.reg.mu.Unlock()
	if once {
		p.reg.schedule(0, func() { p.refresh(retryFirst) })
	}
}

func refreshAfter(granted time.Duration) time.Duration {
	if granted > 1200*time.Second {
		return granted - 600*time.Second
	}
	return granted / 2
}

// refresh runs in the timer's goroutine.
func (p *Phone) refresh(pause time.Duration) {
	err := p.register(p.ctx, p.cfg.Expires)
	if err == nil || errors.Is(err, ErrClosed) {
		return
	}
	p.log.Warn("registration not refreshed", "err", err, "retry_in", pause)
	jitter := time.Duration(rand.Int64N(int64(pause)/4 + 1))
	p.reg.schedule(pause+jitter, func() { p.refresh(min(2*pause, retryLast)) })
}

// exchangeRegister sends REGISTER until it gets a final answer that stands, and
// returns for how long the registration was granted; 0 if it was removed.
func (p *Phone) exchangeRegister(ctx context.Context, expires time.Duration) (time.Duration, error) {
	r := &p.reg
	if r.callID == "" {
		r.callID, r.tag = newCallID(p), sip.GenerateTagN(10)
	}
	cred := p.password()
	cred.sim, r.auth.failure = p.cfg.SIM, nil
	raised := false
	for {
		r.cseq++
		req := p.registerRequest(expires)
		r.auth.apply(req, cred)
		if req.GetHeader("Authorization") == nil {
			// Names the user in the first request (TS 24.229 §5.1.1.2.3).
			value := fmt.Sprintf(`Digest username=%s, realm=%s, uri="sip:%s", nonce="", response=""`,
				sipmsg.Quote(p.cfg.IMPI), sipmsg.Quote(p.cfg.Domain), p.cfg.Domain)
			if cred.sim != nil {
				value += ", algorithm=" + akaMD5
			}
			req.AppendHeader(sip.NewHeader("Authorization", value))
		}
		res, err := p.ep.exchange(ctx, req, p.cfg.Proxy)
		if err != nil {
			return 0, err
		}
		if r.auth.again(res, cred) {
			if r.auth.failure != nil {
				p.log.Info("the SIM does not take the challenge", "err", r.auth.failure)
			}
			continue
		}
		if least := seconds(res.GetHeader("Min-Expires")); res.StatusCode == 423 && !raised && least > expires && expires > 0 {
			raised, expires = true, least
			continue
		}
		if !res.IsSuccess() {
			err := error(&StatusError{"REGISTER", res.StatusCode, res.Reason})
			if r.auth.failure != nil {
				err = fmt.Errorf("%w: %w", err, r.auth.failure)
			}
			return 0, err
		}
		return p.registered(res, expires), nil
	}
}

func (p *Phone) registerRequest(expires time.Duration) *sip.Request {
	var registrar sip.Uri
	registrar.Scheme, registrar.Host = "sip", p.cfg.Domain
	req := p.newRequest(sip.REGISTER, registrar, p.from, p.reg.callID, p.reg.tag, p.reg.cseq)
	id := sha256.Sum256([]byte(p.cfg.AOR))
	req.AppendHeader(sip.NewHeader("Contact", fmt.Sprintf(`%s;+sip.instance="<urn:uuid:%x-%x-4%x-8%x-%x>"`,
		p.contact(), id[:4], id[4:6], id[6:8], id[8:10], id[10:16])))
	req.AppendHeader(sip.NewHeader("Expires", strconv.Itoa(int(expires.Seconds()))))
	req.AppendHeader(sip.NewHeader("Supported", "path"))
	req.AppendHeader(sip.NewHeader("Allow", allow))
	req.SetBody(nil)
	return req
}

// registered keeps what a 200 says.
func (p *Phone) registered(res *sip.Response, asked time.Duration) time.Duration {
	granted := asked
	if h := res.GetHeader("Expires"); h != nil {
		granted = min(granted, seconds(h))
	}
	if asked > 0 {
		granted = p.granted(res, granted)
	}
	r := &p.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expires = time.Now().Add(granted)
	r.routes, r.associated = nil, nil
	if granted == 0 {
		return 0
	}
	r.routes = elements(res, "Service-Route", maxRoutes)
	for _, a := range elements(res, "P-Associated-URI", maxRoutes) {
		if n, err := sipmsg.ParseNameAddr(a); err == nil {
			r.associated = append(r.associated, n.URI)
		}
	}
	return granted
}

// granted looks for the phone's own contact among those of the 200.
func (p *Phone) granted(res *sip.Response, otherwise time.Duration) time.Duration {
	own, err := sipmsg.ParseURI(strings.Trim(p.contact(), "<>"))
	if err != nil {
		return otherwise
	}
	for _, c := range elements(res, "Contact", 64) {
		n, err := sipmsg.ParseNameAddr(c)
		if err != nil {
			continue
		}
		uri, err := sipmsg.ParseURI(n.URI)
		if err != nil || !uri.Equal(own) {
			continue
		}
		if v, ok := n.Params.Value("expires"); ok {
			return parseSeconds(v)
		}
	}
	return otherwise
}

func seconds(h sip.Header) time.Duration {
	if h == nil {
		return 0
	}
	return parseSeconds(h.Value())
}

func parseSeconds(s string) time.Duration {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}

// elements returns the comma-separated elements of all lines of a header, in
// order, at most limit.
func elements(m sip.Message, name string, limit int) []string {
	var all []string
	for _, h := range m.GetHeaders(name) {
		for e := range sipmsg.SplitElements(h.Value()) {
			if len(all) == limit {
				return all
			}
			all = append(all, e)
		}
	}
	return all
}
