package eventrouter

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestExecutorsGrowInStepsToTheCapAndReturnWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Floor: 50, Cap: 400, Queue: 10}, func(int, int) { time.Sleep(time.Second) })
		defer r.Close()
		for i := range 1000 {
			for range 4 {
				r.Post(i, 0)
			}
		}
		var sizes []int
		for range 8 {
			synctest.Wait()
			sizes = append(sizes, r.Stats().Executors)
			time.Sleep(50 * time.Millisecond)
		}
		if want := []int{100, 100, 200, 200, 400, 400, 400, 400}; !slices.Equal(sizes, want) {
			t.Errorf("executors every 50 ms: %v, want %v", sizes, want)
		}
		time.Sleep(11 * time.Second) // the last event has run
		if st := r.Stats(); st.Executors != 400 || st.Handled != 4000 {
			t.Errorf("after the work: %d executors, %d handled, want 400, 4000", st.Executors, st.Handled)
		}
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if st := r.Stats(); st.Executors != 50 || st.Grown != 3 {
			t.Errorf("after 30 s idle: %d executors, %d steps up, want 50, 3", st.Executors, st.Grown)
		}
	})
}

func TestOneHotKeyDoesNotMakeExecutorsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Floor: 2, Cap: 64, Queue: 10}, func(int, int) { time.Sleep(time.Millisecond) })
		defer r.Close()
		r.Post(5, 0)
		synctest.Wait()
		for range 2000 {
			r.Post(5, 0)
		}
		time.Sleep(time.Second)
		if st := r.Stats(); st.Executors > 4 {
			t.Errorf("%d executors for one key, want no more than one step", st.Executors)
		}
	})
}

func TestExecutorsDoNotShrinkBelowThoseThatAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Floor: 2, Cap: 64, Queue: 4}, func(_ int, d int) { time.Sleep(time.Duration(d) * time.Second) })
		defer r.Close()
		for i := range 64 {
			r.Post(i, 1)
		}
		time.Sleep(5 * time.Second)
		grown := r.Stats().Executors
		for i := range 12 {
			r.Post(i, 100)
		}
		time.Sleep(60 * time.Second)
		if st := r.Stats(); grown < 32 || st.Executors < 12 || st.Executors >= grown {
			t.Errorf("%d executors, then %d with 12 of them busy", grown, st.Executors)
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		if st := r.Stats(); st.Executors != 2 {
			t.Errorf("%d executors in the end, want 2", st.Executors)
		}
	})
}

func TestStatsShowWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, release := held(Config{Floor: 2, Cap: 2, Queue: 10}, nil)
		for key := range uint64(10) {
			r.Offer(key, Invite, Invite, 0)
		}
		time.Sleep(70 * time.Millisecond)
		st := r.Stats()
		if st.Executors != 2 || st.Busy != 2 || st.Queued != 10 || st.Occupancy != 0.5 || st.QueueDelay != 70*time.Millisecond || st.Offered[Invite] != 10 {
			t.Errorf("while held: %+v", st)
		}
		release()
		synctest.Wait()
		if st := r.Stats(); st.Busy != 0 || st.Queued != 0 || st.Occupancy != 0 || st.QueueDelay != 0 {
			t.Errorf("when idle: %+v", st)
		}
		r.Close()
	})
}

func TestRouterLetsGoOfWhatABurstMadeLarge(t *testing.T) {
	r := New(Config{Mailbox: 16}, func(int, int) {})
	for range 10_000 {
		r.Post(1, 0)
	}
	r.Close()
	if n := len(r.shards[1].box.ring); n > 16 {
		t.Errorf("an empty mailbox keeps room for %d events", n)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	done := make(chan struct{})
	r := New(Config{}, func(int, int) { done <- struct{}{} })
	defer r.Close()
	if n := testing.AllocsPerRun(1000, func() {
		if r.Offer(77, Invite, 1, time.Second) != nil {
			t.Error("refused")
		}
		<-done
	}); n != 0 {
		t.Errorf("%v allocations an event, want 0", n)
	}
}

func TestKeysOfOneNameAreEqual(t *testing.T) {
	if Key("a84b4c76e66710@pc33") != Key("a84b4c76e66710@"+"pc33") {
		t.Error("the same Call-ID has two keys")
	}
	r := New(Config{}, func(int, int) {})
	defer r.Close()
	for _, k := range []uint64{0, 1, Shards, 1<<64 - 1, Key("x")} {
		if s := r.Shard(k); s < 0 || s >= Shards {
			t.Errorf("shard of %d is %d", k, s)
		}
	}
}
