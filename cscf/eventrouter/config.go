package eventrouter

import (
	"errors"
	"fmt"
)

// Shards is the number of virtual shards of a router.
const Shards = 1024

// Errors of Offer.
var (
	// ErrShed means that the event was refused to protect more important ones.
	ErrShed = errors.New("shed")
	// ErrHardLimit is the ErrShed of a class that is otherwise never shed: the
	// router has reached Config.HardLimit.
	ErrHardLimit = fmt.Errorf("event router is at its hard limit: %w", ErrShed)
	// ErrClosed means that the router is closing.
	ErrClosed = errors.New("event router is closed")
)

// Config says how large a router may become. Zero fields take the defaults.
type Config struct {
	Floor     int // executors when idle; default 16
	Cap       int // most executors; default 8 × Floor
	Queue     int // startable events per executor that make 100 % occupancy; default 64
	Mailbox   int // waiting events at which one shard is full; default 256
	HardLimit int // waiting events at which Offer refuses even what is never shed; default and least 4 × Cap × Queue

	// OnPanic is told of a handler that panicked, on the goroutine that ran
	// it; that event is lost, its shard goes on. If nil, the panic is not
	// recovered and ends the process with its trace.
	OnPanic func(shard int, value any, stack []byte)
}

func (c Config) withDefaults() Config {
	if c.Floor <= 0 {
		c.Floor = 16
	}
	if c.Cap <= 0 {
		c.Cap = 8 * c.Floor
	}
	c.Cap = max(c.Cap, c.Floor)
	if c.Queue <= 0 {
		c.Queue = 64
	}
	if c.Mailbox <= 0 {
		c.Mailbox = 256
	}
	c.HardLimit = max(c.HardLimit, 4*c.Cap*c.Queue)
	return c
}

// limits returns how many events may wait for one more of a class to be taken.
func (c Config) limits() (l [NumClasses]int) {
	for class := range l {
		l[class] = max(1, c.Cap*c.Queue*shares[class]/100)
	}
	// Heartbeats have the last part for themselves, so that a flood of
	// anything else never looks like death.
	l[Heartbeat] = c.HardLimit
	l[Dialog] = c.HardLimit - c.HardLimit/16
	return l
}
