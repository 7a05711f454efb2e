package aka

import (
	"errors"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func next(t *testing.T, c *Clock, user string, offset int64, at time.Time) uint64 {
	t.Helper()
	seq, err := c.Next(user, offset, at)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// TS 33.102: SEQ is the time, plus the user's difference (§C.1.1.3).
func TestSEQIsTheTime(t *testing.T) {
	c := NewClock()
	if got, want := next(t, c, "alice", 0, start), uint64(start.UnixMilli()); got != want {
		t.Errorf("SEQ %d, want %d", got, want)
	}
	if got, want := next(t, c, "alice", -1000, start.Add(time.Hour)), uint64(start.Add(time.Hour).UnixMilli()-1000); got != want {
		t.Errorf("SEQ %d, want %d", got, want)
	}
	// Another process goes on from there without having been told.
	if got, later := next(t, NewClock(), "alice", 0, start.Add(2*time.Hour)), uint64(start.Add(time.Hour).UnixMilli()); got <= later {
		t.Errorf("SEQ %d after %d", got, later)
	}
}

func TestSEQOfAUserGrowsStrictly(t *testing.T) {
	for _, tt := range []struct {
		name  string
		steps []time.Duration // of the machine's clock
	}{
		{"at one moment", make([]time.Duration, 1000)},
		{"within a unit", []time.Duration{Unit / 4, Unit / 4, Unit / 4, Unit / 4, Unit / 4}},
		{"while the clock steps back", []time.Duration{time.Hour, -2 * time.Hour, time.Second, -time.Hour, 0, time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, at, last := NewClock(), start, uint64(0)
			for i, d := range tt.steps {
				at = at.Add(d)
				seq := next(t, c, "alice", 0, at)
				if seq <= last {
					t.Fatalf("step %d: SEQ %d after %d", i, seq, last)
				}
				last = seq
			}
		})
	}
}

func TestAFloodOfChallengesDoesNotRunAwayFromTheTime(t *testing.T) {
	c, last := NewClock(), uint64(0)
	for range 2 * maxLead {
		last = next(t, c, "alice", 0, start)
	}
	if lead := last - uint64(start.UnixMilli()); lead > maxLead {
		t.Errorf("%d ahead", lead)
	}
	if got := next(t, c, "alice", 0, start.Add(time.Minute)); got <= last {
		t.Errorf("a minute later SEQ is %d after %d", got, last)
	}
}

func TestAVectorTellsItsAge(t *testing.T) {
	for _, offset := range []int64{0, 1 << 41, -1_000_000_000_000} {
		seq := next(t, NewClock(), "alice", offset, start)
		for _, age := range []time.Duration{0, time.Second, time.Hour, -time.Second} { // -1 s: of a clock that is behind
			if got := NewClock().Age(seq, offset, start.Add(age)); got != age {
				t.Errorf("offset %d: age %v, want %v", offset, got, age)
			}
		}
	}
}

// TS 33.102: after a resynchronisation numbers go on above those of the SIM
// (§6.3.5, §C.1.1.3).
func TestResynchronisation(t *testing.T) {
	for name, seq := range map[string]uint64{"a new SIM": 0, "a SIM ahead of the time": uint64(start.UnixMilli()) + 1<<40} {
		c := NewClock()
		offset := c.Resync(NewSQN(seq, 5), time.Minute, start)
		// Also from a clock that is behind by the margin.
		for _, at := range []time.Time{start, start.Add(-time.Minute), start.Add(24 * time.Hour)} {
			got := next(t, NewClock(), "alice", offset, at)
			if got <= seq || got > seq+uint64(25*time.Hour/Unit) {
				t.Errorf("%s, at %v: SEQ %d after %d", name, at.Sub(start), got, seq)
			}
		}
	}
}

func TestSEQDoesNotWrap(t *testing.T) {
	c := NewClock()
	for _, offset := range []int64{MaxSEQ, -MaxSEQ} {
		if seq, err := c.Next("alice", offset, start); !errors.Is(err, ErrExhausted) {
			t.Errorf("offset %d: %d, %v", offset, seq, err)
		}
	}
}

// The numbers go on by the monotonic clock while the wall clock is behind
// what it was.
func TestTimeGoesOnAfterAStepBack(t *testing.T) {
	c := NewClock()
	ahead := start.Add(time.Hour)
	first := next(t, c, "alice", 0, ahead)
	next(t, c, "alice", 0, start)
	if got, want := next(t, c, "bob", 0, start.Add(10*time.Second)), first+10_000; got != want {
		t.Errorf("SEQ %d, want %d", got, want)
	}
}
