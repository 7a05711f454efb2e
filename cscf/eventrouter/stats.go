package eventrouter

import "time"

// Stats are the figures of a router at one moment. Counters are since New.
type Stats struct {
	Executors  int           // now
	Busy       int           // of them, inside a handler
	Floor, Cap int           // bounds of Executors
	Queued     int           // events waiting
	Occupancy  float64       // events that an executor could start now, per Executors × Queue
	QueueDelay time.Duration // smoothed wait of events, or the age of one that is first in line, if that is more; 0 when none wait

	Handled    uint64 // events run
	CallerRuns uint64 // of them, by a caller of Submit
	Overflows  uint64 // events taken in beyond a limit: posted, submitted by a handler, or never shed
	Panics     uint64 // handlers that panicked and were recovered
	Dropped    uint64 // events that came when Close had drained the router
	Grown      uint64 // growth steps
	Shrunk     uint64 // shrink steps

	Offered [NumClasses]uint64 // events by class; posted ones are Dialog
	Shed    [NumClasses]uint64 // of them, refused; Heartbeat and Dialog only at the hard limit
}
