package ha

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// churn overwrites one key until the journal has compacted n times.
func churn(t *testing.T, j *Journal, n uint64) {
	t.Helper()
	for i := 0; j.Stats().Compactions < n; i++ {
		if i > 200_000 {
			t.Fatalf("no compaction: %+v", j.Stats())
		}
		must(t, put(j, 9, "churn", fmt.Sprint(i), time.Time{}))
	}
}

func TestCompactionKeepsWhatLivesAndDropsTheRest(t *testing.T) {
	d := newFakeDisk()
	var mu sync.Mutex
	now := time.Now()
	o := Options{fs: d, CompactAt: 2000, now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }}
	j := mustOpen(t, "d", o)
	want := map[string]string{}
	for i := range 20 {
		must(t, put(j, 1, fmt.Sprint("stays", i), "v", now.Add(time.Hour)))
		want[fmt.Sprint("1/stays", i)] = "v"
	}
	must(t, put(j, 1, "expires", "v", now.Add(time.Second)))
	must(t, put(j, 1, "deleted", "v", time.Time{}))
	must(t, remove(j, 1, "deleted"))
	mu.Lock()
	now = now.Add(time.Minute)
	mu.Unlock()
	churn(t, j, 3)
	wantContent(t, j, want, 1)
	st := j.Stats()
	if st.LogBytes > 40_000 || st.Records != 21 {
		t.Errorf("after compaction: %+v", st)
	}
	must(t, j.Close())
	for name, b := range d.content() {
		if strings.Contains(b, "expires") || strings.Contains(b, "deleted") {
			t.Errorf("%s still holds a dead record", name)
		}
	}
	again := mustOpen(t, "d", o)
	wantContent(t, again, want, 1)
	if rep := again.Recovery(); rep.Snapshot == 0 || rep.LastSeq != st.Seq {
		t.Errorf("recovery %+v, want a snapshot and seq %d", rep, st.Seq)
	}
}

func TestCompactionDoesNotHoldUpPuts(t *testing.T) {
	d := newFakeDisk()
	j := mustOpen(t, "d", Options{fs: d, CompactAt: 2000})
	inside, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.hook = func(op, name string) error {
		if op == "write" && strings.HasPrefix(filepath.Base(name), snapshotName) {
			once.Do(func() { close(inside); <-gate })
		}
		return nil
	}
	n := 0
	for stuck := false; !stuck; n++ {
		must(t, put(j, 1, fmt.Sprint(n%10), fmt.Sprint(n), time.Time{}))
		select {
		case <-inside:
			stuck = true
		default:
		}
	}
	// The snapshot is stuck. Records still become safe, and are not in it.
	for range 300 {
		must(t, put(j, 1, fmt.Sprint(n%10), fmt.Sprint(n), time.Time{}))
		n++
	}
	crash := d.afterPowerCut(nil)
	close(gate)
	want := content(j, 1)
	must(t, j.Close())
	for name, disk := range map[string]*fakeDisk{"during": crash, "after": d} {
		again := mustOpen(t, "d", Options{fs: disk})
		if got := content(again, 1); !maps.Equal(got, want) {
			t.Errorf("%s the compaction: %v, want %v", name, got, want)
		}
		must(t, again.Close())
	}
}

func TestFailedCompactionLeavesTheJournalWorking(t *testing.T) {
	for _, op := range []string{"create", "write", "sync", "rename", "remove"} {
		t.Run("in "+op, func(t *testing.T) {
			d := newFakeDisk()
			var log bytes.Buffer
			j := mustOpen(t, "d", Options{fs: d, CompactAt: 1000, Log: slog.New(slog.NewTextHandler(&log, nil))})
			var once sync.Once
			d.hook = func(o, name string) (err error) {
				if o == op && (op == "remove" || strings.HasPrefix(filepath.Base(name), snapshotName)) {
					once.Do(func() { err = errInjected })
				}
				return err
			}
			for i := 0; j.Stats().Compactions+j.Stats().Uncompacted < 2; i++ {
				must(t, put(j, 1, fmt.Sprint(i%10), fmt.Sprint(i), time.Time{}))
			}
			want := content(j, 1)
			if st := j.Stats(); st.Uncompacted != 1 || st.Compactions != 1 {
				t.Errorf("stats %+v, want one failure, then one compaction", st)
			}
			must(t, j.Close())
			if !strings.Contains(log.String(), "compaction failed") {
				t.Errorf("log %q", log.String())
			}
			wantContent(t, mustOpen(t, "d", Options{fs: d.afterPowerCut(nil)}), want, 1)
		})
	}
}

// A power cut or a disk error at each single call to the disk: what was
// promised is there afterwards, and what is there is a prefix of the history.
func TestPowerCutAtEveryCall(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, cut := range []bool{true, false} {
		for call := 1; ; call++ {
			d := newFakeDisk()
			d.failAt, d.cut = call, cut
			promised, states, ended := history(t, d)
			if ended && call > d.calls {
				if call < 100 {
					t.Errorf("only %d calls to the disk", call)
				}
				break
			}
			for variant := range 4 {
				var tearing *rand.Rand
				if variant > 0 {
					tearing = rng
				}
				after := d.afterPowerCut(tearing)
				j, err := tryOpen(after)
				if err != nil {
					t.Fatalf("cut=%v at call %d, variant %d: %v", cut, call, variant, err)
				}
				seq := j.Recovery().LastSeq
				if seq < promised {
					t.Fatalf("cut=%v at call %d, variant %d: recovered to %d, promised %d", cut, call, variant, seq, promised)
				}
				if got := content(j, 1); !maps.Equal(got, states[seq]) {
					t.Fatalf("cut=%v at call %d, variant %d: at seq %d %v, want %v", cut, call, variant, seq, got, states[seq])
				}
				must(t, put(j, 1, "more", "v", time.Time{}))
				must(t, j.Close())
				for name := range after.names {
					if strings.HasSuffix(name, tempSuffix) {
						t.Errorf("%s was left behind", name)
					}
				}
				j, err = tryOpen(after)
				must(t, err)
				if j.Recovery().LastSeq != seq+1 {
					t.Errorf("went on to %d, want %d", j.Recovery().LastSeq, seq+1)
				}
				must(t, j.Close())
			}
		}
	}
}

// history runs a journal through rotations and compactions until the disk
// fails, and returns the last seq that was promised and the content after each.
func history(t *testing.T, d *fakeDisk) (promised uint64, states []map[string]string, ended bool) {
	states = []map[string]string{{}}
	o := Options{Identity: "cluster/a", fs: d, Log: quiet, SegmentSize: 600, CompactAt: 900, Gather: -1}
	for range 2 {
		j, err := OpenJournal("d", o)
		if err != nil {
			return promised, states, false
		}
		for range 12 {
			results := make(chan error, 3)
			for range 3 {
				state := maps.Clone(states[len(states)-1])
				n := len(states)
				key := fmt.Sprint(n % 5)
				if n%7 == 0 {
					delete(state, "1/"+key)
					states = append(states, state)
					j.Delete(1, key, func(err error) { results <- err })
				} else {
					state["1/"+key] = fmt.Sprint(n)
					states = append(states, state)
					j.Put(1, key, []byte(fmt.Sprint(n)), time.Time{}, func(err error) { results <- err })
				}
			}
			for range 3 {
				if err := <-results; err == nil {
					promised++
				} else if !errors.Is(err, errInjected) {
					t.Fatal(err)
				}
			}
			if j.Err() != nil {
				j.Close()
				return promised, states, false
			}
		}
		if err := j.Close(); err != nil {
			return promised, states, false
		}
	}
	return promised, states, true
}
