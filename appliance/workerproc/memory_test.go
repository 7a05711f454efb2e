package workerproc

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestMemoryIsGivenBackAfterABurst(t *testing.T) {
	var m memory
	debug.FreeOSMemory()
	before := occupied()
	m.kept = before
	burst := make([][]byte, 128)
	for i := range burst {
		burst[i] = make([]byte, 1<<20)
		burst[i][0] = 1
	}
	m.look(1, time.Now())
	if now := occupied(); now < before+100<<20 {
		t.Errorf("a busy process went from %d to %d bytes", before, now)
	}
	runtime.KeepAlive(burst)
	m.look(0, time.Now())
	if now := occupied(); now > before+spareAtLeast {
		t.Errorf("a quiet process keeps %d bytes, %d before the burst", now, before)
	}
}

func TestMemoryThatIsInUseIsAskedForOnce(t *testing.T) {
	start := time.Now()
	m := memory{kept: 10 << 20, last: start}
	for _, tt := range []struct {
		name     string
		occupied uint64
		cpu      float64
		after    time.Duration
		want     bool
	}{
		{"little was added", 50 << 20, 0, time.Hour, false},
		{"a burst, and it is quiet", 200 << 20, 0.1, time.Minute, true},
		{"a burst that goes on", 200 << 20, 0.9, time.Minute, false},
		{"a burst just after another", 200 << 20, 0.1, time.Second, false},
	} {
		if got := m.spare(tt.occupied, tt.cpu, start.Add(tt.after)); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
	m.kept = 200 << 20 // it turned out to be users
	if m.spare(210<<20, 0, start.Add(time.Hour)) {
		t.Error("what users need is looked for again")
	}
}
