package api

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"
)

// Status is the cluster as the answering node sees it.
type Status struct {
	Cluster string   `json:"cluster"` // cluster id; empty: the cluster has not begun
	Name    string   `json:"name"`    // of the cluster, for people
	Domain  string   `json:"domain"`  // home network domain
	Node    string   `json:"node"`    // the node that answers
	Version string   `json:"version"` // of that node
	Leader  string   `json:"leader"`  // empty: none is known
	Term    uint64   `json:"term"`
	Quorum  bool     `json:"quorum"` // a majority of the controllers works together
	Nodes   []Node   `json:"nodes"`
	Workers []Worker `json:"workers"`
	// Subscribers that are provisioned.
	Subscribers int     `json:"subscribers"`
	Users       int     `json:"users"` // registered private identities (IMPI)
	Calls       int     `json:"calls"` // in progress
	Alarms      []Alarm `json:"alarms"`
	// What the answering node did not let in since its start, by reason, and
	// how many sources it bans by itself now.
	Refused  map[string]uint64 `json:"refused"`
	Received uint64            `json:"received"` // messages that came to its SIP ports since then
	Bans     int               `json:"bans"`
}

// Node is one machine.
type Node struct {
	Name       string `json:"name"`
	Address    string `json:"address"`            // of the port between nodes
	Service    string `json:"service"`            // address that phones use
	Service6   string `json:"service6,omitempty"` // second one, IPv6
	Controller bool   `json:"controller"`
	Leader     bool   `json:"leader"`
	Connected  bool   `json:"connected"` // the answering node reaches it
	Version    string `json:"version"`
}

// Worker is one serving role.
type Worker struct {
	ID        string  `json:"id"`
	Kind      string  `json:"kind"` // p-cscf, i-cscf or s-cscf
	Node      string  `json:"node"`
	Group     uint32  `json:"group"`   // its own group
	Serving   string  `json:"serving"` // worker that serves the group now
	Users     int     `json:"users"`
	Calls     *int    `json:"calls,omitempty"` // nil: this kind keeps no calls
	Load      float64 `json:"load"`            // requests in flight plus CPU cores in use, as min-load sees it
	Connected bool    `json:"connected"`
}

// User is a registered public identity.
type User struct {
	Identity     string    `json:"identity"`
	IMPI         string    `json:"impi"`
	Identities   []string  `json:"identities"` // implicit registration set, default first
	PCSCF        Serving   `json:"p_cscf"`
	SCSCF        Serving   `json:"s_cscf"`
	Contacts     []Contact `json:"contacts"`
	Path         []string  `json:"path"`
	ServiceRoute []string  `json:"service_route"`
	Expires      time.Time `json:"expires"` // of the longest contact
}

// Registration is a registered public identity in the list of users.
type Registration struct {
	Identity string  `json:"identity"` // that the phone registered, or the default one where our P-CSCFs do not know it
	IMPI     string  `json:"impi"`
	PCSCF    Serving `json:"p_cscf"` // zero: none of ours
	SCSCF    Serving `json:"s_cscf"`
}

// UserPage is a part of the list of users, ordered by IMPI.
type UserPage struct {
	Users []Registration `json:"users"`
	Next  string         `json:"next,omitempty"` // pass as after to go on; empty: this was the last page
}

// Serving says whose a user is, and who serves it now.
type Serving struct {
	Home    string `json:"home"`    // worker id
	Serving string `json:"serving"` // worker id
}

// Contact is one registered phone.
type Contact struct {
	URI     string    `json:"uri"`
	Flow    string    `json:"flow"` // how the phone is reached, such as "udp 10.0.0.1:5060 192.0.2.7:5060"
	Q       float64   `json:"q"`    // RFC 3261 §20.10, 0 to 1
	Expires time.Time `json:"expires"`
}

// Call is a call in progress.
type Call struct {
	CallID  string    `json:"call_id"`
	From    string    `json:"from"`
	To      string    `json:"to"`
	State   string    `json:"state"` // trying, ringing or confirmed
	Started time.Time `json:"started"`
	// Workers that the call runs through; empty where it does not.
	POrig string `json:"p_orig,omitempty"`
	SOrig string `json:"s_orig,omitempty"`
	I     string `json:"i,omitempty"`
	STerm string `json:"s_term,omitempty"`
	PTerm string `json:"p_term,omitempty"`
}

// Alarm is something that an operator should know or mend.
type Alarm struct {
	Code     string    `json:"code"`     // stable, such as child_crashed
	Severity string    `json:"severity"` // warning or critical
	Node     string    `json:"node"`
	Since    time.Time `json:"since"`
	Text     string    `json:"text"`
	WhatToDo string    `json:"what_to_do"`
}

// Subscriber is one provisioned subscription. Its secret never leaves the node.
type Subscriber struct {
	IMPI       string     `json:"impi"`
	Realm      string     `json:"realm"`
	Identities []Identity `json:"identities"`
	Algorithms []string   `json:"algorithms"` // for which a secret is stored: MD5, SHA-256
	AKA        *StoredAKA `json:"aka,omitempty"`
}

// StoredAKA says that a subscriber has a USIM, and nothing of its secrets.
type StoredAKA struct {
	AMF string `json:"amf"` // 4 hex digits
}

// Identity is a public identity (IMPU) of a subscriber.
type Identity struct {
	URI    string `json:"uri"` // sip: or tel:
	Set    int    `json:"set"` // number of its implicit registration set
	Barred bool   `json:"barred,omitempty"`
}

// NewSubscriber is a subscriber to store; one of the same IMPI is replaced.
type NewSubscriber struct {
	IMPI       string      `json:"impi"`
	Realm      string      `json:"realm"`
	Identities []Identity  `json:"identities"`
	HA1        Credentials `json:"ha1"`           // zero: no password
	AKA        *AKA        `json:"aka,omitempty"` // nil: no USIM
	// Line it came from in an import file, for error messages; 0: none.
	Line int `json:"line,omitempty"`
}

// Credentials are the digest secrets of a subscriber, H(IMPI:realm:password)
// in lower-case hex (RFC 7616 §3.4.2). At least one is set, or AKA is. Printing,
// logging and JSON hide them; only the client sends them, with ImportSubscribers
// and AddSubscriber.
type Credentials struct {
	MD5    string `json:"md5,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

const hidden = "[hidden]"

// String hides the secrets.
func (Credentials) String() string { return hidden }

// Format hides the secrets from every verb.
func (Credentials) Format(s fmt.State, _ rune) { fmt.Fprint(s, hidden) }

// LogValue hides the secrets.
func (Credentials) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalJSON hides the secrets.
func (Credentials) MarshalJSON() ([]byte, error) { return json.Marshal(hidden) }

// AKA is what the network knows of a USIM (TS 33.102 §6.3, TS 35.206), in
// lower-case hex. OPc stands for the operator's OP, which is not kept. K and OPc
// are hidden like Credentials, and sent by the same two calls only.
type AKA struct {
	K   string `json:"k"`   // 32 digits
	OPc string `json:"opc"` // 32 digits
	AMF string `json:"amf"` // 4 digits, no secret
}

// String hides the secrets.
func (AKA) String() string { return hidden }

// Format hides the secrets from every verb.
func (AKA) Format(s fmt.State, _ rune) { fmt.Fprint(s, hidden) }

// LogValue hides the secrets.
func (AKA) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalJSON hides the secrets.
func (AKA) MarshalJSON() ([]byte, error) { return json.Marshal(hidden) }

// SubscriberPage is a part of the list of subscribers, ordered by IMPI.
type SubscriberPage struct {
	Subscribers []Subscriber `json:"subscribers"`
	Next        string       `json:"next,omitempty"` // pass as after to go on; empty: this was the last page
}

// ImportResult says what an import did.
type ImportResult struct {
	Added    int `json:"added"`
	Replaced int `json:"replaced"`
}

// Reload says what a reload of the configuration changed.
type Reload struct {
	Applied []Change `json:"applied"`
	// Pending changes take effect when the node is restarted.
	Pending []Change `json:"pending"`
}

// Change is one key of the configuration that has a new value.
type Change struct {
	Key string `json:"key"`
	Old string `json:"old"`
	New string `json:"new"`
}

// Version names what a node runs.
type Version struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Node    string `json:"node,omitempty"`
}

// Event is one line of the watch: what Type names is set, the others are not.
// A watch begins with a status event; one event may stand for several changes.
type Event struct {
	Type   string    `json:"type"` // status, alarm, user, call, worker, node
	Time   time.Time `json:"time"`
	Status *Status   `json:"status,omitempty"`
	Alarm  *Alarm    `json:"alarm,omitempty"`
	User   *User     `json:"user,omitempty"`
	Call   *Call     `json:"call,omitempty"`
	Worker *Worker   `json:"worker,omitempty"`
	Node   *Node     `json:"node,omitempty"`
	// Gone means that the named user, call, worker, node or alarm ended.
	Gone bool `json:"gone,omitempty"`
}
