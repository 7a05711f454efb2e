// Package config reads the YAML file of a node.
//
// Reading is strict: a key that does not exist, a value of the wrong type, an
// address that cannot work or two ports that clash are problems, and every
// problem of the file is reported at once, with its line and with what to
// write instead. Nothing is guessed and nothing is read from the environment.
//
// The package opens no sockets and does not look at the machine's addresses:
// a well-formed address of another machine passes here and fails where it is
// bound. A Config that Parse returned is complete: defaults are filled in and
// every address, name and range has been checked, so its users check nothing.
// Anchors, aliases and more than one document are refused, so the memory that
// a file costs is bounded by its size (at most MaxSize bytes).
package config

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// MaxSize is the largest file that is read, in bytes.
const MaxSize = 1 << 20

// Isolation says how a node's work is spread over processes.
type Isolation string

const (
	// Process runs a front process and a worker process under the supervisor.
	Process Isolation = "process"
	// None runs everything in one process, for very small machines.
	None Isolation = "none"
)

// Kind is the role of a worker.
type Kind string

// The kinds of worker there are.
const (
	PCSCF Kind = "p-cscf"
	ICSCF Kind = "i-cscf"
	SCSCF Kind = "s-cscf"
)

// Kinds are all kinds, in the order in which a call meets them.
var Kinds = []Kind{PCSCF, ICSCF, SCSCF}

// Config is everything that one node is told.
type Config struct {
	File    string // where it was read from
	Node    Node
	Cluster Cluster
	SIP     SIP
	Workers []Worker // without the key one of each kind, such as n1-p, n1-i and n1-s; none where the list is empty
	Flood   Flood
	Metrics Metrics
	Log     Log
}

// Node names this machine and its directories.
type Node struct {
	Name      string
	DataDir   string // absolute; survives restarts
	RunDir    string // absolute; sockets
	Isolation Isolation
}

// Cluster names the controllers, of which this node is one.
type Cluster struct {
	Address     netip.AddrPort // the one TLS port between nodes
	Controllers []Controller   // 1, 3 or 5
}

// Controller is a member of the cluster's Raft group.
type Controller struct {
	Name    string
	Address netip.AddrPort
}

// SIP is what the node shows to phones and to other SIP networks.
type SIP struct {
	Domain  string     // home network domain, lower case
	Address netip.Addr // service address of this node's groups, IPv4 or IPv6
	// Second service address, IPv6, where Address is IPv4; the zero value if
	// there is none.
	Address6 netip.Addr
	PCSCF    uint16 // entry ports
	ICSCF    uint16
	SCSCF    uint16
	T1       time.Duration // RFC 3261 §17.1.1.1
	// Registration intervals that the S-CSCF grants.
	MinExpires     time.Duration
	MaxExpires     time.Duration
	DefaultExpires time.Duration
	// Whether digest credentials without qop are taken, each challenge for one
	// REGISTER (RFC 2069 phones).
	DigestWithoutQOP bool
}

// Worker is one serving role of this node.
type Worker struct {
	ID   string
	Kind Kind
}

// Flood says how much a front lets in, in messages or connections a second on
// average; more come through in a burst. 0 is no limit.
type Flood struct {
	PerSource   int           // messages of one address outside the flows of registered phones
	PerPhone    int           // messages over the flow of one registered phone
	Failures    int           // messages of one address that were refused or malformed
	Connections int           // attempts of one address
	Strangers   int           // requests of all addresses together from outside known flows that cost a worker something
	Ban         time.Duration // the first automatic ban of an address that goes on; 0: none
}

// Metrics says where /metrics, /livez and /readyz are served.
type Metrics struct {
	Listen netip.AddrPort // loopback
}

// AdminSocket is the path of the admin API's unix socket.
func (c *Config) AdminSocket() string { return filepath.Join(c.Node.RunDir, "admin.sock") }

// Load reads and checks the file at path.
// Errors about its content are Problems.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, data)
}
