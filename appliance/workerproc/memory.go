package workerproc

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// spareAtLeast is what a burst must have left behind to be worth a
	// collection, in bytes.
	spareAtLeast = 64 << 20
	// quietBelow is the use of CPU, in cores, below which nobody waits for it.
	quietBelow = 0.2
	// giveBackEvery bounds the collections where bursts and quiet alternate.
	giveBackEvery = 30 * time.Second
)

// memory gives back to the system what a burst of messages has left behind. The
// runtime collects when the heap has grown: a process that is quiet after a
// flood would keep the flood's garbage for minutes.
type memory struct {
	kept uint64 // bytes that were left after something was given back
	last time.Time
}

// spare reports whether a heap that occupies so many bytes, in a process that
// uses so much CPU, should be given back. What stays then belongs to users.
func (m *memory) spare(occupied uint64, cpu float64, now time.Time) bool {
	return cpu < quietBelow && occupied > m.kept+spareAtLeast && now.Sub(m.last) >= giveBackEvery
}

// look does what is due; it is called each second.
func (m *memory) look(cpu float64, now time.Time) {
	have := occupied()
	if m.spare(have, cpu, now) {
		debug.FreeOSMemory()
		have = occupied()
		m.kept, m.last = have, now
	}
	m.kept = min(m.kept, have) // the runtime gives back by itself, too
}

// occupied is the memory of the heap that the system has given and not got back.
func occupied() uint64 {
	s := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	sum := uint64(0)
	for i := range s {
		sum += s[i].Value.Uint64()
	}
	return sum
}
