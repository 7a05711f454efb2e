package phone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/emiago/sipgo/sip"

	"bellwether/cscf/aka"
	"bellwether/cscf/sipmsg"
	"bellwether/media/rtp"
)

// Mode says what a phone does with a call that comes in.
type Mode uint8

// The modes.
const (
	Answer   Mode = iota // rings and answers
	Busy                 // 486 Busy Here
	NoAnswer             // rings until the caller gives up, or 480 after ringLimit
)

const (
	// maxCalls is how many calls a phone has at once; it is busy for more.
	maxCalls = 8
	// maxMessages is how many messages may wait for Config.OnMessage.
	maxMessages = 16
	// ringLimit is how long a phone rings.
	ringLimit = 2 * time.Minute
	// patience is how long a caller lets the far end ring (RFC 3261 §16.6, Timer C).
	patience = 3 * time.Minute
	// talkLimit ends a call whose far end vanished.
	talkLimit = 2 * time.Hour
)

// ErrClosed means that the phone was closed.
var ErrClosed = errors.New("phone is closed")

// StatusError is a final response that refused a request.
type StatusError struct {
	Method string
	Status int
	Reason string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: answered %d %s", strings.ToLower(e.Method), e.Status, e.Reason)
}

// Config describes a phone. AOR, Domain, Proxy and LocalIP are required.
type Config struct {
	AOR      string         // public identity, as "sip:alice@ims.test"
	IMPI     string         // private identity, as "alice@ims.test"; empty: AOR without its scheme
	Password string         // digest secret; never logged
	SIM      *aka.SIM       // answers AKA challenges to a REGISTER; the phone's alone; nil: none
	Domain   string         // home domain: the registrar is "sip:" + Domain
	Proxy    netip.AddrPort // the P-CSCF
	LocalIP  netip.Addr     // where the SIP socket is bound; of the same family
	AudioIP  netip.Addr     // where RTP sockets are bound; zero: LocalIP
	Port     uint16         // of SIP; 0 is any

	Transport sipmsg.Transport // to the P-CSCF: UDP or TCP; 0 is UDP

	ToneHz int                    // the tone played in calls, 1 to 3999; 0 is silence
	Mode   Mode                   // what to do with calls
	Answer func(from string) Mode // asked instead of Mode, if set; must not block

	Ring     time.Duration // how long an answered call rings first
	Reliable bool          // send 180 reliably (RFC 3262) to callers that can
	Expires  time.Duration // registration asked for; 0 is 600 s

	OnCall    func(Result)            // each incoming call, when it is over
	OnMessage func(from, text string) // each MESSAGE, on a goroutine of its own

	Clock *rtp.Clock // paces the audio; phones may share one; nil: the phone's own
	Log   *slog.Logger

	listen func(netip.AddrPort) (rtp.Conn, netip.AddrPort, error) // nil: UDP
	dial   dialer                                                 // nil: TCP
}

// CallOptions say how to call.
type CallOptions struct {
	Hold        time.Duration // from the answer to the BYE, unless the far end hangs up before
	CancelAfter time.Duration // CANCEL this long after the INVITE if there is no answer; 0: never
	Update      bool          // send an UPDATE when the call was answered
}

// Result is what became of a call.
type Result struct {
	CallID string
	Peer   string // identity of the far end, as "sip:bob@ims.test"
	Status int    // final status of the INVITE; 0: none came
	Reason string

	Setup time.Duration // from the INVITE to its final response
	Talk  time.Duration // from the answer to the end

	RTPExpected uint64        // packets that the far end sent, by their sequence numbers; if none came, by the time
	RTPReceived uint64        // of these
	Jitter      time.Duration // interarrival jitter
	ToneHz      float64       // the tone that dominated; 0: none
	ToneSNR     float64       // in dB
	ToneHeard   bool          // it was the far end's tone, and clear

	Err error // why the call went wrong other than by a refusal
}

// Phone is one SIP user agent. Its methods may be called by several goroutines.
type Phone struct {
	cfg   Config
	log   *slog.Logger
	clock *rtp.Clock
	ep    *endpoint
	from  sip.Uri
	ctx   context.Context
	stop  context.CancelCauseFunc
	tasks sync.WaitGroup // goroutines other than the reader
	reg   registration

	mu       sync.Mutex
	closed   bool
	calls    map[string]*call // by dialogKey
	messages int              // waiting for OnMessage
}

// New opens the phone's socket and starts answering requests. It fails if the
// configuration is incomplete or the socket cannot be bound.
func New(cfg Config) (*Phone, error) {
	p := &Phone{cfg: cfg, log: cfg.Log, clock: cfg.Clock, calls: make(map[string]*call)}
	if err := sip.ParseUri(cfg.AOR, &p.from); err != nil || p.from.Scheme != "sip" || p.from.User == "" || p.from.Host == "" {
		return nil, fmt.Errorf("new phone: public identity %q is no sip:user@domain", cfg.AOR)
	}
	switch {
	case cfg.Domain == "":
		return nil, fmt.Errorf("new phone %s: no home domain", cfg.AOR)
	case !cfg.Proxy.IsValid() || cfg.Proxy.Port() == 0:
		return nil, fmt.Errorf("new phone %s: P-CSCF address %v is not usable", cfg.AOR, cfg.Proxy)
	case !cfg.LocalIP.IsValid():
		return nil, fmt.Errorf("new phone %s: no local address", cfg.AOR)
	case cfg.LocalIP.Is4() != cfg.Proxy.Addr().Is4():
		return nil, fmt.Errorf("new phone %s: %v cannot reach %v: one is IPv4, the other IPv6", cfg.AOR, cfg.LocalIP, cfg.Proxy)
	case cfg.Transport != 0 && cfg.Transport != sipmsg.UDP && cfg.Transport != sipmsg.TCP:
		return nil, fmt.Errorf("new phone %s: transport %v is neither UDP nor TCP", cfg.AOR, cfg.Transport)
	case cfg.ToneHz < 0 || cfg.ToneHz >= 4000:
		return nil, fmt.Errorf("new phone %s: a tone of %d Hz cannot be played at 8 kHz", cfg.AOR, cfg.ToneHz)
	}
	if p.cfg.IMPI == "" {
		p.cfg.IMPI = strings.TrimPrefix(cfg.AOR, "sip:")
	}
	if p.cfg.Expires <= 0 {
		p.cfg.Expires = 600 * time.Second
	}
	if !p.cfg.AudioIP.IsValid() {
		p.cfg.AudioIP = cfg.LocalIP
	}
	if p.cfg.listen == nil {
		p.cfg.listen = listenUDP
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.log = p.log.With("phone", cfg.AOR)
	if p.clock == nil {
		p.clock = new(rtp.Clock)
	}
	wire, err := p.open()
	if err != nil {
		return nil, fmt.Errorf("new phone %s: %w", cfg.AOR, err)
	}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.reg.init()
	p.ep = &endpoint{
		wire: wire, log: p.log, handler: p, ended: make(chan struct{}),
		clients: make(map[string]*client), servers: make(map[string]*sip.ServerTx),
	}
	go p.ep.read()
	return p, nil
}

// open opens the phone's wire.
func (p *Phone) open() (wire, error) {
	local := netip.AddrPortFrom(p.cfg.LocalIP, p.cfg.Port)
	if p.cfg.Transport == sipmsg.TCP {
		return newStream(p.cfg.dial, local, p.cfg.Proxy, p.log, p.reconnected, func() { p.ep.abandon() })
	}
	conn, addr, err := p.cfg.listen(local)
	if err != nil {
		return nil, err
	}
	return &datagrams{conn, addr, p.log}, nil
}

// contact is where the phone is reached, as "<sip:alice@192.0.2.1:5070>".
func (p *Phone) contact() string {
	return "<sip:" + p.from.User + "@" + p.Addr().String() + transportParam(p.cfg.Transport) + ">"
}

// transportParam is what a URI needs to be reached by a transport; UDP is what
// is meant without it (RFC 3261 §19.1.2).
func transportParam(t sipmsg.Transport) string {
	if t == sipmsg.TCP {
		return ";transport=tcp"
	}
	return ""
}

func listenUDP(addr netip.AddrPort) (rtp.Conn, netip.AddrPort, error) {
	network := "udp4"
	if addr.Addr().Is6() {
		network = "udp6"
	}
	c, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	return c, c.LocalAddr().(*net.UDPAddr).AddrPort(), nil
}

// Addr is the address of the phone's SIP socket, over TCP that from which it
// connects.
func (p *Phone) Addr() netip.AddrPort { return p.ep.wire.local() }

// Close hangs up, ends every goroutine of the phone and returns when they have
// ended. It does not remove the registration: see Unregister. It may be called
// again.
func (p *Phone) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if first {
		p.reg.want(false)
		p.stop(ErrClosed)
	}
	p.tasks.Wait()
	if first {
		p.ep.close()
	}
	<-p.ep.ended
}

// begin counts a goroutine, so that Close waits for it; it reports false when
// the phone is closed. The goroutine calls tasks.Done.
func (p *Phone) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.tasks.Add(1)
	return true
}

func (p *Phone) spawn(f func()) bool {
	if !p.begin() {
		return false
	}
	go func() {
		defer p.tasks.Done()
		f()
	}()
	return true
}

// within returns ctx bounded by the phone's own life.
func (p *Phone) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.ctx, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// newRequest begins a request outside of a dialog with the headers that all
// have (RFC 3261 §8.1.1).
func (p *Phone) newRequest(method sip.RequestMethod, uri, to sip.Uri, callID, fromTag string, cseq uint32) *sip.Request {
	req := sip.NewRequest(method, uri)
	id := sip.CallIDHeader(callID)
	req.AppendHeader(p.ep.via())
	req.AppendHeader(sip.NewHeader("Max-Forwards", "70"))
	req.AppendHeader(&sip.FromHeader{Address: p.from, Params: sip.HeaderParams{{K: "tag", V: fromTag}}})
	req.AppendHeader(&sip.ToHeader{Address: to})
	req.AppendHeader(&id)
	req.AppendHeader(&sip.CSeqHeader{SeqNo: cseq, MethodName: method})
	return req
}

// initial adds what a UE adds to an initial request (TS 24.229 §5.1.2A.1.1):
// its route through its own P-CSCF and S-CSCF, and who it prefers to be.
func (p *Phone) initial(req *sip.Request) {
	req.AppendHeader(sip.NewHeader("Route", "<sip:"+p.cfg.Proxy.String()+transportParam(p.cfg.Transport)+";lr>"))
	for _, r := range p.reg.serviceRoute() {
		req.AppendHeader(sip.NewHeader("Route", r))
	}
	req.AppendHeader(sip.NewHeader("P-Preferred-Identity", "<"+p.cfg.AOR+">"))
}

// Message sends text to target, as "sip:bob@ims.test" or "tel:+4930123456"
// (RFC 3428), and returns the final status.
func (p *Phone) Message(ctx context.Context, target, text string) (status int, err error) {
	if !p.begin() {
		return 0, ErrClosed
	}
	defer p.tasks.Done()
	ctx, done := p.within(ctx)
	defer done()
	var uri sip.Uri
	if err := sip.ParseUri(target, &uri); err != nil {
		return 0, fmt.Errorf("message to %q: %w", target, err)
	}
	if err := p.ep.wire.online(ctx); err != nil {
		return 0, fmt.Errorf("message to %q: %w", target, err)
	}
	var auth authorization
	callID, tag := newCallID(p), sip.GenerateTagN(10)
	for cseq := uint32(1); ; cseq++ {
		req := p.newRequest(sip.MESSAGE, uri, uri, callID, tag, cseq)
		p.initial(req)
		auth.apply(req, p.password())
		req.AppendHeader(sip.NewHeader("Content-Type", "text/plain;charset=UTF-8"))
		req.SetBody([]byte(text))
		res, err := p.ep.exchange(ctx, req, p.cfg.Proxy)
		if err != nil {
			return 0, err
		}
		if !auth.again(res, p.password()) {
			return res.StatusCode, nil
		}
	}
}

// password is what the phone proves itself with to other requests than REGISTER.
func (p *Phone) password() credentials {
	return credentials{user: p.cfg.IMPI, password: p.cfg.Password}
}

func newCallID(p *Phone) string {
	return sip.GenerateTagN(20) + "@" + p.Addr().Addr().String()
}

// newResponse answers req (RFC 3261 §8.2.6). An empty tag is chosen by sipgo.
func newResponse(req *sip.Request, status int, tag string, headers ...sip.Header) *sip.Response {
	res := sip.NewResponseFromRequest(req, status, sipmsg.ReasonPhrase(status), nil)
	if old, _ := req.To().Params.Get("tag"); old == "" && tag != "" {
		res.To().Params.Add("tag", tag)
	}
	for _, h := range headers {
		res.AppendHeader(h)
	}
	return res
}

// reply sends a response.
func (p *Phone) reply(tx *sip.ServerTx, res *sip.Response) {
	if err := tx.Respond(res); err != nil {
		p.log.Debug("response not sent", "status", res.StatusCode, "err", err)
	}
}

// conclude refuses a request. The ACK of a refused INVITE needs a taker, or
// sipgo keeps a goroutine that offers it.
func (p *Phone) conclude(req *sip.Request, tx *sip.ServerTx, res *sip.Response) {
	p.reply(tx, res)
	if !req.IsInvite() {
		return
	}
	p.spawn(func() {
		select {
		case <-tx.Acks():
		case <-tx.Done():
		case <-p.ctx.Done():
		}
	})
}
