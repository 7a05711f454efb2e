package eventrouter

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// held is a router whose executors are all kept busy until release.
func held(cfg Config, handle func(Class)) (r *Router[Class], release func()) {
	const hold = NumClasses
	gate := make(chan struct{})
	r = New(cfg, func(_ int, c Class) {
		if c == hold {
			<-gate
			return
		}
		if handle != nil {
			handle(c)
		}
	})
	for i := range r.cfg.Floor {
		r.Post(Shards-1-i, hold)
	}
	synctest.Wait()
	return r, func() { close(gate) }
}

func TestLessImportantClassesAreShedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, release := held(Config{Floor: 1, Cap: 1, Queue: 100}, nil)
		var key uint64
		offer := func(c Class) error { key++; return r.Offer(key%500, c, c, 0) }
		fill := func(c Class) (n int) {
			for n < 10_000 && offer(c) == nil {
				n++
			}
			return n
		}
		total := 0
		for _, step := range []struct {
			class Class
			until int // events waiting when the class is refused
		}{{Subscribe, 60}, {Message, 70}, {Register, 80}, {Invite, 90}, {ReRegister, 95}, {Emergency, 100}, {Dialog, 375}, {Heartbeat, 400}} {
			for c := step.class + 1; c < NumClasses; c++ {
				if err := offer(c); !errors.Is(err, ErrShed) {
					t.Errorf("%d waiting: %v was taken (%v)", total, c, err)
				}
			}
			total += fill(step.class)
			if total != step.until {
				t.Errorf("%v refused with %d waiting, want %d", step.class, total, step.until)
			}
		}
		if err := offer(Dialog); !errors.Is(err, ErrHardLimit) || !errors.Is(err, ErrShed) {
			t.Errorf("dialog at the hard limit: %v, want ErrHardLimit", err)
		}
		st := r.Stats()
		if st.Queued != 400 || st.Overflows != 300 || st.Shed[Dialog] != 3 || st.Shed[Subscribe] != 8 {
			t.Errorf("queued %d, overflows %d, shed %v", st.Queued, st.Overflows, st.Shed)
		}
		release()
		r.Close()
		if st := r.Stats(); st.Handled != 401 {
			t.Errorf("handled %d, want all 401 that were taken", st.Handled)
		}
	})
}

func TestOneShardCannotTakeTheRoomOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, release := held(Config{Floor: 1, Cap: 1, Queue: 100, Mailbox: 5}, nil)
		for range 5 {
			if err := r.Offer(1, Invite, Invite, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Offer(1, Invite, Invite, 0); err != ErrShed {
			t.Errorf("sixth event of one shard: %v, want ErrShed", err)
		}
		if err := r.Offer(2, Invite, Invite, 0); err != nil {
			t.Errorf("another shard: %v", err)
		}
		if err := r.Offer(1, Dialog, Dialog, 0); err != nil {
			t.Errorf("in-dialog event of the full shard: %v", err)
		}
		release()
		r.Close()
	})
}

func TestOfferWaitsNoLongerThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, release := held(Config{Floor: 1, Cap: 1, Queue: 10}, nil)
		for key := uint64(0); r.Offer(key, Invite, Invite, 0) == nil; key++ {
		}
		begin := time.Now()
		if err := r.Offer(50, Invite, Invite, 20*time.Millisecond); err != ErrShed {
			t.Errorf("offer to a full router: %v, want ErrShed", err)
		}
		if d := time.Since(begin); d != 20*time.Millisecond {
			t.Errorf("offer waited %v, want 20ms", d)
		}
		begin = time.Now()
		if err := r.Offer(50, Dialog, Dialog, time.Minute); err != nil || time.Since(begin) != 0 {
			t.Errorf("dialog event: %v after %v, want to be taken at once", err, time.Since(begin))
		}
		release()
		r.Close()
		if len(r.offers) != 0 {
			t.Errorf("%d offers were forgotten", len(r.offers))
		}
	})
}

func TestFreeRoomGoesToTheMostImportantWaitingOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, release := held(Config{Floor: 1, Cap: 1, Queue: 10}, func(Class) { time.Sleep(time.Millisecond) })
		for key := uint64(0); r.Offer(key, Emergency, Emergency, 0) == nil; key++ {
		}
		var mu sync.Mutex
		var got []Class
		var all sync.WaitGroup
		for i, c := range []Class{Subscribe, Invite, Emergency, Register, Invite} {
			all.Go(func() {
				if err := r.Offer(uint64(100+i), c, c, time.Second); err != nil {
					t.Errorf("%v: %v", c, err)
				}
				mu.Lock()
				got = append(got, c)
				mu.Unlock()
			})
			synctest.Wait()
		}
		release()
		all.Wait()
		r.Close()
		if want := []Class{Emergency, Invite, Invite, Register, Subscribe}; !slices.Equal(got, want) {
			t.Errorf("served %v, want %v", got, want)
		}
	})
}

func TestHeartbeatsPassAFloodOfAnythingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var after []Class
		r, release := held(Config{Floor: 1, Cap: 1, Queue: 100}, func(c Class) { after = append(after, c) })
		for key := uint64(0); r.Offer(key%900, Dialog, Dialog, 0) == nil; key++ {
		}
		if err := r.Offer(950, Heartbeat, Heartbeat, 0); err != nil {
			t.Errorf("heartbeat in a flood: %v", err)
		}
		release()
		r.Close()
		if at := slices.Index(after, Heartbeat); at < 0 || at > quanta[Dialog] {
			t.Errorf("the heartbeat was run as number %d of %d", at, len(after))
		}
	})
}

func TestClassesShareExecutorsByTheirQuanta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []Class
		r, release := held(Config{Floor: 1, Cap: 1, Queue: 10_000}, func(c Class) { order = append(order, c) })
		for i := range 100 {
			for c := range Class(NumClasses) {
				if err := r.Offer(uint64(i*NumClasses+int(c)), c, c, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		release()
		r.Close()
		round := 0
		for _, q := range quanta {
			round += q
		}
		var got [NumClasses]int
		for _, c := range order[:2*round] {
			got[c]++
		}
		for c, n := range got {
			if diff := n - 2*quanta[c]; diff < -quanta[c] || diff > quanta[c] {
				t.Errorf("%v ran %d times in two rounds, want about %d", Class(c), n, 2*quanta[c])
			}
		}
	})
}

func TestAnUrgentEventPullsThoseBeforeItAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []Class
		r, release := held(Config{Floor: 1, Cap: 1, Queue: 10_000}, func(c Class) { order = append(order, c) })
		for key := range uint64(200) {
			r.Offer(key, Subscribe, Subscribe, 0)
		}
		r.Offer(300, Message, Message, 0)
		r.Offer(300, Dialog, Dialog, 0)
		release()
		r.Close()
		m, d := slices.Index(order, Message), slices.Index(order, Dialog)
		if m > d || d > 5 {
			t.Errorf("the pair ran as numbers %d and %d of %d, want first and in order", m, d, len(order))
		}
	})
}

func TestCloseDrainsWhatIsWaitingAndWhatThatPosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *Router[int]
		var ran atomic.Int64
		r = New(Config{Floor: 2, Cap: 2}, func(shard, n int) {
			time.Sleep(time.Millisecond)
			ran.Add(1)
			if n > 0 {
				r.Post((shard+1)%Shards, n-1)
			}
		})
		for key := range uint64(100) {
			if err := r.Offer(key, Emergency, 3, 0); err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
		r.Close()
		if got := ran.Load(); got != 400 {
			t.Errorf("ran %d events before Close returned, want 400", got)
		}
		if err := r.Offer(1, Dialog, 0, time.Second); err != ErrClosed {
			t.Errorf("offer after Close: %v, want ErrClosed", err)
		}
		r.Post(1, 0)
		r.Submit(1, Invite, 0)
		if st := r.Stats(); st.Dropped != 2 || st.Handled != 400 || st.Executors != 0 || st.Queued != 0 {
			t.Errorf("after Close: %+v", st)
		}
	})
}

func TestCloseEndsWaitingOffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, release := held(Config{Floor: 1, Cap: 1, Queue: 1}, nil)
		r.Offer(1, Emergency, Emergency, 0)
		refused := make(chan error, 1)
		go func() { refused <- r.Offer(2, Emergency, Emergency, time.Hour) }()
		synctest.Wait()
		closed := make(chan struct{})
		go func() { r.Close(); close(closed) }()
		if err := <-refused; err != ErrClosed {
			t.Errorf("waiting offer: %v, want ErrClosed", err)
		}
		release()
		<-closed
	})
}

func TestPanicIsReportedAndTheShardGoesOn(t *testing.T) {
	var reports []string
	ran := 0
	r := New(Config{Floor: 1, Cap: 1, OnPanic: func(shard int, v any, stack []byte) {
		reports = append(reports, fmt.Sprint(shard, " ", v, " ", strings.Contains(string(stack), "TestPanicIsReported")))
	}}, func(_, n int) {
		if n == 1 {
			panic("one")
		}
		ran++
	})
	for n := range 3 {
		r.Post(9, n)
	}
	r.Close()
	if want := []string{"9 one true"}; !slices.Equal(reports, want) {
		t.Errorf("reported %q, want %q", reports, want)
	}
	if st := r.Stats(); ran != 2 || st.Panics != 1 || st.Busy != 0 {
		t.Errorf("ran %d others, stats %+v", ran, st)
	}
}

func TestPanicEndsTheProcessByDefault(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "EVENTROUTER_CRASH=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: handler broke") || !strings.Contains(string(out), "crash.func1") {
		t.Errorf("child: %v, output:\n%s", err, out)
	}
}

func TestPanicOfACallerRunLeavesTheRouterWorking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, release := held(Config{Floor: 1, Cap: 1, Mailbox: 1}, func(c Class) {
			if c == Message {
				panic("broke")
			}
		})
		r.Submit(1, Message, Message)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the caller did not see the panic")
				}
			}()
			r.Submit(1, Invite, Invite)
		}()
		release()
		r.Submit(1, Invite, Invite)
		r.Close()
		if st := r.Stats(); st.Handled != 3 {
			t.Errorf("handled %d, want 3", st.Handled)
		}
	})
}
