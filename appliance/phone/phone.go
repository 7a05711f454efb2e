package phone

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"bellwether/media/rtp"
)

// Mode says what a phone does with a call that comes in.
type Mode uint8

// The modes.
const (
	Answer   Mode = iota // rings and answers
	Busy                 // 486 Busy Here
	NoAnswer             // rings until the caller gives up, or 480 after RingLimit
)

// Config describes a phone. AOR, Domain, Proxy and LocalIP are required.
type Config struct {
	AOR      string         // public identity, as "sip:alice@ims.test"
	IMPI     string         // private identity; empty: AOR without its scheme
	Password string         // digest secret; never logged
	Domain   string         // home domain: the registrar's URI is "sip:" + Domain
	Proxy    netip.AddrPort // the P-CSCF, over UDP
	LocalIP  netip.Addr     // where SIP and RTP sockets are bound
	Port     uint16         // of SIP; 0 is any

	ToneHz int                    // the tone played in calls, 1 to 3999; 0 is silence
	Mode   Mode                   // what to do with calls
	Answer func(from string) Mode // asked instead of Mode, if set; must not block

	Ring     time.Duration // how long an answered call rings first
	Reliable bool          // send 180 reliably (RFC 3262) to callers that can
	Expires  time.Duration // registration asked for; 0 is 600 s

	OnCall    func(Result)            // each incoming call, when it is over
	OnMessage func(from, text string) // each MESSAGE

	Clock *rtp.Clock // paces the audio; phones may share one; nil: the phone's own
	Log   *slog.Logger
}

// CallOptions say how to call.
type CallOptions struct {
	Hold        time.Duration // from the answer to the BYE; a BYE of the far end comes first
	CancelAfter time.Duration // CANCEL this long after the INVITE if there is no answer; 0: never
}

// Result is what became of a call.
type Result struct {
	CallID string
	Peer   string // identity of the far end, as "sip:bob@ims.test"
	Status int    // final status of the INVITE; 0: none came
	Reason string

	Setup time.Duration // from the INVITE to its final response
	Talk  time.Duration // from the answer to the end

	RTPExpected uint64        // packets that the far end sent, by sequence numbers
	RTPReceived uint64        // of these
	Jitter      time.Duration // interarrival jitter
	ToneHz      float64       // the tone that dominated; 0: none
	ToneHeard   bool          // it was the far end's tone, and clear
}

// Phone is one SIP user agent.
type Phone struct{}

// New opens the phone's socket and starts answering.
func New(cfg Config) (*Phone, error) { return &Phone{}, nil }

// Register registers the AOR.
func (p *Phone) Register(ctx context.Context) error { return nil }

// Unregister removes the registration.
func (p *Phone) Unregister(ctx context.Context) error { return nil }

// Registered reports whether a registration is current.
func (p *Phone) Registered() bool { return false }

// Call calls target.
func (p *Phone) Call(ctx context.Context, target string, opts CallOptions) (Result, error) {
	return Result{}, nil
}

// Message sends text to target.
func (p *Phone) Message(ctx context.Context, target, text string) (status int, err error) {
	return 0, nil
}

// Close ends everything and returns when all goroutines of the phone have ended.
func (p *Phone) Close() {}
