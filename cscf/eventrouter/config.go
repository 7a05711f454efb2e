package eventrouter

import (
	"errors"
	"fmt"
	"time"
)

// Shards is the number of virtual shards of a router. It never changes, so
// growing and shrinking never moves a key.
const Shards = 1024

// Errors of Offer.
var (
	// ErrShed means that the event was refused to protect more important ones.
	ErrShed = errors.New("shed")
	// ErrHardLimit is an ErrShed of a class that is otherwise never shed: the
	// memory bound of the router is reached.
	ErrHardLimit = fmt.Errorf("hard memory limit of the event router: %w", ErrShed)
	// ErrClosed means that the router is closing.
	ErrClosed = errors.New("event router is closed")
)

// Config says how large a router may become. Zero fields take the defaults.
type Config struct {
	Floor     int // executors when idle; default 16
	Cap       int // most executors; default 8 × Floor
	Queue     int // waiting events per executor that count as 100 % occupancy; default 64
	Mailbox   int // waiting events of one shard from which it is full; default 256
	HardLimit int // waiting events at which even never-shed classes are refused by Offer; default 4 × Cap × Queue

	// OnPanic is told about a handler that panicked, on the goroutine that ran
	// it; the event is lost, the shard goes on. If nil the panic is not
	// recovered and ends the process.
	OnPanic func(shard int, value any, stack []byte)
}

// Stats are the figures of a router at one moment; counters since New.
type Stats struct {
	Executors  int           // now
	Busy       int           // of them, inside a handler
	Floor, Cap int           // bounds of Executors
	Queued     int           // events waiting
	Occupancy  float64       // events that an executor could start now / (Executors × Queue)
	QueueDelay time.Duration // smoothed wait of an event, or the age of the oldest waiting one if that is longer

	Handled    uint64 // events run
	CallerRuns uint64 // of them, by a caller of Submit
	Overflows  uint64 // events taken beyond a full mailbox or router by Post, Submit in a handler, or as never shed
	HardSheds  uint64 // never-shed events refused at HardLimit
	Panics     uint64 // handlers that panicked
	Dropped    uint64 // events that came after Close had drained the router
	Grown      uint64 // growth steps
	Shrunk     uint64 // shrink steps

	Offered [NumClasses]uint64 // events by class, Post counted as Dialog
	Shed    [NumClasses]uint64 // events refused by class
}
