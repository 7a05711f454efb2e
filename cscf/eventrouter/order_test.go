package eventrouter

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// step is one event of an activity.
type step struct{ key, n int }

// witness checks that the steps of every key come in order and alone.
type witness struct {
	t       *testing.T
	inside  []atomic.Int32 // by shard
	next    []int          // by key; unguarded on purpose, so that the race detector sees an overlap
	handled atomic.Int64
	work    func(step)
}

func newWitness(t *testing.T, keys int, work func(step)) *witness {
	return &witness{t: t, inside: make([]atomic.Int32, Shards), next: make([]int, keys), work: work}
}

func (w *witness) handle(shard int, e step) {
	if n := w.inside[shard].Add(1); n != 1 {
		w.t.Errorf("shard %d: %d events at once", shard, n)
	}
	if w.next[e.key] != e.n {
		w.t.Errorf("key %d: got event %d, want %d", e.key, e.n, w.next[e.key])
	}
	w.next[e.key]++
	if w.work != nil {
		w.work(e)
	}
	w.inside[shard].Add(-1)
	w.handled.Add(1)
}

func TestOrderHoldsWhileExecutorsGrowAndShrink(t *testing.T) {
	const (
		keys      = 400
		producers = 8
		rounds    = 4
		burst     = 40 // events of a key at once
		trickle   = 10 // events of a key over 40 s
	)
	synctest.Test(t, func(t *testing.T) {
		w := newWitness(t, keys, func(e step) {
			if e.n%7 == e.key%7 {
				time.Sleep(time.Duration(e.key%5) * time.Millisecond)
			}
		})
		r := New(Config{Floor: 4, Cap: 32, Queue: 4, Mailbox: 16}, w.handle)
		sent := make([]int, keys)
		send := func(rng *rand.Rand, key int) {
			e := step{key, sent[key]}
			sent[key]++
			k := uint64(key) * 0x9E3779B97F4A7C15
			switch rng.IntN(4) {
			case 0:
				r.Submit(k, Class(rng.IntN(NumClasses)), e)
			case 1:
				r.Post(r.Shard(k), e)
			case 2:
				if err := r.Offer(k, Invite, e, time.Hour); err != nil {
					t.Errorf("key %d: offer: %v", key, err)
				}
			default:
				if err := r.Offer(k, Dialog, e, 0); err != nil {
					t.Errorf("key %d: offer: %v", key, err)
				}
			}
		}
		var all sync.WaitGroup
		for p := range producers {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(p)))
				for range rounds {
					for range burst {
						for key := p; key < keys; key += producers {
							send(rng, key)
						}
					}
					for range trickle {
						for key := p; key < keys; key += producers {
							send(rng, key)
							time.Sleep(40 * time.Second / (trickle * keys / producers))
						}
					}
				}
			})
		}
		all.Wait()
		r.Close()
		if got, want := w.handled.Load(), int64(keys*rounds*(burst+trickle)); got != want || want != 80_000 {
			t.Errorf("handled %d events, want %d", got, want)
		}
		st := r.Stats()
		if st.Grown < rounds || st.Shrunk < rounds || st.CallerRuns == 0 {
			t.Errorf("grown %d, shrunk %d, caller-runs %d: the test did not exercise them", st.Grown, st.Shrunk, st.CallerRuns)
		}
		t.Logf("grown %d, shrunk %d, caller-runs %d, overflows %d", st.Grown, st.Shrunk, st.CallerRuns, st.Overflows)
	})
}

func TestOrderHoldsAtFullSpeed(t *testing.T) {
	const keys, each = 400, 200
	w := newWitness(t, keys, nil)
	r := New(Config{Floor: 2, Cap: 16, Queue: 2, Mailbox: 4}, w.handle)
	var all sync.WaitGroup
	for p := range 4 {
		all.Go(func() {
			for n := range each {
				for key := p; key < keys; key += 4 {
					r.Submit(uint64(key), Invite, step{key, n})
				}
			}
		})
	}
	all.Wait()
	r.Close()
	if got := w.handled.Load(); got != keys*each {
		t.Errorf("handled %d events, want %d", got, keys*each)
	}
	if r.Stats().CallerRuns == 0 {
		t.Error("no event was run by its caller")
	}
}

func TestCallerRunsTheHeadNotItsOwnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []int
		gate := make(chan struct{})
		r := New(Config{Floor: 1, Cap: 1, Mailbox: 2}, func(_, n int) {
			if n < 0 {
				<-gate
				return
			}
			got = append(got, n)
		})
		r.Post(1, -1) // holds the only executor
		synctest.Wait()
		for n := range 5 {
			r.Submit(2, Invite, n)
		}
		// The mailbox keeps two; for each further one the caller ran the head.
		if len(got) != 3 || got[0] != 0 || got[1] != 1 || got[2] != 2 {
			t.Errorf("the caller ran %v, want [0 1 2]", got)
		}
		close(gate)
		r.Close()
		if len(got) != 5 || got[4] != 4 {
			t.Errorf("ran %v, want 0 to 4 in order", got)
		}
		if n := r.Stats().CallerRuns; n != 3 {
			t.Errorf("caller-runs %d, want 3", n)
		}
	})
}

func TestSubmitWaitsWhileAnotherRunsTheHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []int
		r := New(Config{Floor: 1, Cap: 1, Mailbox: 1}, func(_, n int) {
			time.Sleep(time.Second)
			got = append(got, n)
		})
		r.Submit(2, Invite, 0)
		synctest.Wait()
		r.Submit(2, Invite, 1)
		begin := time.Now()
		r.Submit(2, Invite, 2)
		if d := time.Since(begin); d < time.Second || d > 2*time.Second {
			t.Errorf("submit to a full running shard took %v, want about 1s", d)
		}
		r.Close()
		if !slices.Equal(got, []int{0, 1, 2}) {
			t.Errorf("ran %v, want [0 1 2]", got)
		}
	})
}

func TestHandlersNeverWaitForEachOther(t *testing.T) {
	const keys = 6
	tests := []struct {
		name string
		hand func(r *Router[step], shard int, e step)
	}{
		{"posting into its own shard", func(r *Router[step], shard int, e step) {
			r.Post(shard, e)
		}},
		{"submitting to its own full shard", func(r *Router[step], shard int, e step) {
			r.Submit(uint64(shard), Invite, e)
		}},
		{"submitting to every other full shard", func(r *Router[step], shard int, e step) {
			r.Submit(uint64((shard+1)%keys), Invite, e)
		}},
		{"submitting from deep inside", func(r *Router[step], shard int, e step) {
			deep(200, func() { r.Submit(uint64((shard+1)%keys), Invite, e) })
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // a deadlock ends the bubble with a report
				var r *Router[step]
				var ran atomic.Int64
				r = New(Config{Floor: 3, Cap: 3, Queue: 1, Mailbox: 1}, func(shard int, e step) {
					ran.Add(1)
					time.Sleep(time.Millisecond) // lets the others get in as well
					if e.n > 0 {
						e.n--
						tt.hand(r, shard, e)
						tt.hand(r, shard, step{n: 0})
					}
				})
				var all sync.WaitGroup
				for k := range keys {
					all.Go(func() {
						for range 5 {
							r.Submit(uint64(k), Invite, step{n: 4})
						}
					})
				}
				all.Wait()
				r.Close()
				if got, want := ran.Load(), int64(keys*5*9); got != want {
					t.Errorf("ran %d events, want %d", got, want)
				}
			})
		})
	}
}

//go:noinline
func deep(n int, fn func()) {
	if n == 0 {
		fn()
		return
	}
	deep(n-1, fn)
}

func TestMailboxIsFIFOThroughGrowth(t *testing.T) {
	var m mailbox[int]
	rng := rand.New(rand.NewPCG(3, 4))
	in, out := 0, 0
	for range 10_000 {
		if m.n == 0 || rng.IntN(5) < 3 {
			m.push(item[int]{event: in})
			in++
			continue
		}
		if got := m.pop().event; got != out {
			t.Fatalf("popped %d, want %d", got, out)
		}
		out++
	}
}
