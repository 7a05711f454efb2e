// Package workerlink says what a worker process and a front process tell each
// other over a link beside SIP: the method names and the payloads, in CBOR.
//
// A worker process connects to every front process of the cluster. It says
// hello, names the groups that it serves now, proposes state commands, asks for
// soft reservations, reports its load and the flows of its phones. The front
// feeds it the cluster state, the load of all I-CSCFs, and asks it about users
// and calls for the admin API.
//
// The package holds no connection and no state. Payloads are forward
// compatible: an unknown field is skipped, a missing one is its zero value.
package workerlink

import (
	"errors"
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// Methods of calls and notifications. The comment names payload and answer.
const (
	Hello   = "hello"   // worker to front, notification: HelloMsg
	Groups  = "groups"  // worker to front, notification: GroupsMsg
	Bind    = "bind"    // worker to front, notification: BindMsg
	Load    = "load"    // worker to front, notification: LoadMsg
	Follow  = "follow"  // worker to front, notification: FollowMsg
	Propose = "propose" // worker to front, call: encoded state.Command, state.Result
	Reserve = "reserve" // worker to front, call: ReserveMsg, ReserveReply

	StateUpdate = "state" // front to worker, notification: UpdateMsg
	Loads       = "loads" // front to worker, notification: LoadsMsg
	FlowGone    = "gone"  // front to worker, notification: FlowGoneMsg

	User  = "user"  // front to worker, call: UserMsg, UserReply
	Calls = "calls" // front to worker, call: empty, CallsReply
	Await = "await" // front to worker, call: AwaitMsg, empty answer when the index is there

	Bans  = "bans"  // front to front, call: empty, BansReply
	Unban = "unban" // front to front, call: UnbanMsg, UnbanReply

	ChildExit = "child-exit" // supervisor to front, call: ChildExitMsg, empty answer; front to front, notification
)

// MaxCalls bounds the calls that one worker process lists in a CallsReply.
const MaxCalls = 20_000

// HelloMsg is the first thing that a worker process says on a link. The front
// process of another node says it too, to show that its node is there.
type HelloMsg struct {
	Node    string `cbor:"1,keyasint"`
	Version string `cbor:"2,keyasint"`
	PID     int    `cbor:"3,keyasint"`
	Front   bool   `cbor:"4,keyasint"` // a front, not a worker process
}

// GroupsMsg names the groups that the worker process serves now; it replaces
// what was said before on the same link.
type GroupsMsg struct {
	Groups []uint32 `cbor:"1,keyasint"`
}

// FollowMsg asks the front to feed the cluster state from a snapshot on, in
// place of what it fed before on the same link. Feed is the number of the feed,
// different for each one that a worker process asks for; 0 ends feeding.
type FollowMsg struct {
	Feed uint64 `cbor:"1,keyasint"`
}

// UpdateMsg is the next step of a feed.
type UpdateMsg struct {
	Feed   uint64       `cbor:"1,keyasint"`
	Update state.Update `cbor:"2,keyasint"`
}

// BindMsg tells the front that a flow of its own belongs to a group until a
// time (Unix milliseconds); 0 forgets the flow.
type BindMsg struct {
	Flow  sipmsg.Flow `cbor:"1,keyasint"`
	Group uint32      `cbor:"2,keyasint"`
	Until int64       `cbor:"3,keyasint"`
}

// GroupLoad is the load of one group's worker.
type GroupLoad struct {
	Group    uint32  `cbor:"1,keyasint"`
	Load     float64 `cbor:"2,keyasint"` // requests in flight plus CPU, the figure of min-load
	Users    int     `cbor:"3,keyasint"` // registered users that the worker holds
	Calls    int     `cbor:"4,keyasint"` // calls up or ringing
	InFlight int     `cbor:"5,keyasint"` // server transactions without a final response
	Messages uint64  `cbor:"6,keyasint"` // SIP messages received since the start

	Lost    int           `cbor:"7,keyasint,omitempty"` // users who were assigned without a registration in the store, since the start
	LostAgo time.Duration `cbor:"8,keyasint,omitempty"` // how long ago the last of them was found

	Rejected uint64 `cbor:"9,keyasint,omitempty"` // of an S-CSCF: REGISTERs whose credentials were wrong, since the start
}

// LoadMsg is sent every second by each worker process to each front.
type LoadMsg struct {
	Groups []GroupLoad `cbor:"1,keyasint"`
	CPU    float64     `cbor:"2,keyasint"` // cores in use by the process over the last second

	StoreError string            `cbor:"3,keyasint"` // why the journal failed; empty while it works
	Dropped    map[string]uint64 `cbor:"4,keyasint"` // messages dropped by the process since its start, by cause
	Executors  int               `cbor:"5,keyasint"` // of the event router, now
	Queued     int               `cbor:"6,keyasint"` // events that wait in it
	Delay      time.Duration     `cbor:"7,keyasint"` // how long they do

	Refused map[string]string `cbor:"8,keyasint"` // workers of this node that the cluster does not take, by id, and why
}

// LoadsMsg is sent every second by each front to each worker process.
type LoadsMsg struct {
	Loads  map[uint32]float64 `cbor:"1,keyasint"` // of the I-CSCFs whose worker processes are linked to the front
	Leader bool               `cbor:"2,keyasint"` // the front knows who leads the controllers
}

// FlowGoneMsg tells that nothing can be sent over a flow of the front any more:
// its connection ended, or none could be opened. It goes to the process that
// serves the group the flow was bound to, and to the one that sent a request
// over it in vain; Flow is as that process gave it.
type FlowGoneMsg struct {
	Flow sipmsg.Flow `cbor:"1,keyasint"`
}

// ReserveMsg asks for a soft reservation of a worker of a kind for a user.
type ReserveMsg struct {
	Kind string `cbor:"1,keyasint"`
	User string `cbor:"2,keyasint"`
}

// ReserveReply names the reserved group, or why the state gives none. As with
// a refused command, that is an answer: it would be the same at any front.
type ReserveReply struct {
	Group uint32       `cbor:"1,keyasint"`
	Err   *state.Error `cbor:"2,keyasint"`
}

// UserMsg asks what a worker process knows of a user.
type UserMsg struct {
	AOR  string `cbor:"1,keyasint"` // canonical public identity
	IMPI string `cbor:"2,keyasint"`
}

// Binding is a contact of a user at one worker.
type Binding struct {
	Worker       string    `cbor:"1,keyasint"`
	Kind         string    `cbor:"2,keyasint"`
	Contact      string    `cbor:"3,keyasint"`
	Path         []string  `cbor:"4,keyasint"`
	ServiceRoute []string  `cbor:"5,keyasint"`
	Flow         string    `cbor:"6,keyasint"` // at a P-CSCF: where the phone is reached
	Expires      time.Time `cbor:"7,keyasint"`
	Q            float64   `cbor:"8,keyasint"` // at an S-CSCF: RFC 3261 §20.10
}

// UserReply lists the contacts that a worker process holds for a user.
type UserReply struct {
	Bindings []Binding `cbor:"1,keyasint"`
}

// Call is one call as an S-CSCF sees it.
type Call struct {
	CallID  string    `cbor:"1,keyasint"`
	From    string    `cbor:"2,keyasint"`
	To      string    `cbor:"3,keyasint"`
	State   string    `cbor:"4,keyasint"`
	Worker  string    `cbor:"5,keyasint"`
	Started time.Time `cbor:"6,keyasint"`
	Role    string    `cbor:"7,keyasint"` // "orig" or "term": the half that this worker serves
	PCSCF   uint32    `cbor:"8,keyasint"` // group of that half's phone; 0: not known
}

// CallsReply lists calls, at most MaxCalls.
type CallsReply struct {
	Calls []Call `cbor:"1,keyasint"`
}

// AwaitMsg asks to wait for a state index. The answer also tells that all
// notifications before the question were taken.
type AwaitMsg struct {
	Index uint64 `cbor:"1,keyasint"`
}

// ChildExitMsg reports that a child process of a node ended on its own.
type ChildExitMsg struct {
	Child    string    `cbor:"1,keyasint"` // "front" or "worker"
	Reason   string    `cbor:"2,keyasint"` // "signal: killed", "exit status 2"
	Restarts int       `cbor:"3,keyasint"` // since the node started
	At       time.Time `cbor:"4,keyasint"`
}

// AutoBan is a source that a front banned by itself.
type AutoBan struct {
	Source string    `cbor:"1,keyasint"` // as a prefix
	Since  time.Time `cbor:"2,keyasint"`
	Until  time.Time `cbor:"3,keyasint"`
	Hits   uint64    `cbor:"4,keyasint"`
	Reason string    `cbor:"5,keyasint"`
}

// BansReply says what a front banned by itself, and how often each ban of an
// operator refused something there.
type BansReply struct {
	Bans []AutoBan         `cbor:"1,keyasint"`
	Hits map[string]uint64 `cbor:"2,keyasint"` // by prefix
}

// UnbanMsg asks a front to end what it banned by itself within a prefix.
type UnbanMsg struct {
	Prefix string `cbor:"1,keyasint"`
}

// UnbanReply says how many bans ended.
type UnbanReply struct {
	Ended int `cbor:"1,keyasint"`
}

// ErrPayload means that a payload is not what its method carries.
var ErrPayload = errors.New("malformed payload")

var (
	enc = must(cbor.EncOptions{Time: cbor.TimeUnixMicro}.EncMode())
	dec = must(cbor.DecOptions{MaxArrayElements: 1 << 20, MaxMapPairs: 1 << 16, MaxNestedLevels: 16}.DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // options are constants: a programming error, seen by every test
	}
	return v
}

// Encode returns the payload for v, one of the types of this package.
func Encode(v any) []byte {
	b, err := enc.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // the types above always encode
	}
	return b
}

// Decode reads a payload into v.
func Decode(b []byte, v any) error {
	if err := dec.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode %T: %w: %w", v, ErrPayload, err)
	}
	return nil
}
