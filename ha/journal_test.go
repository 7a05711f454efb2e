package ha

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("HA_WRITE_UNTIL_KILLED"); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}

var quiet = slog.New(slog.DiscardHandler)

// mustOpen opens a journal that the test closes.
func mustOpen(t *testing.T, dir string, o Options) *Journal {
	t.Helper()
	if o.Identity == "" {
		o.Identity = "cluster/a"
	}
	if o.Log == nil {
		o.Log = quiet
	}
	j, err := OpenJournal(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

// put stores a value and waits until it is safe.
func put(s Store, group uint32, key, value string, expires time.Time) error {
	done := make(chan error, 1)
	s.Put(group, key, []byte(value), expires, func(err error) { done <- err })
	return <-done
}

func remove(s Store, group uint32, key string) error {
	done := make(chan error, 1)
	s.Delete(group, key, func(err error) { done <- err })
	return <-done
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// content returns the records of some groups as "group/key" -> "value".
func content(s Store, groups ...uint32) map[string]string {
	out := map[string]string{}
	for _, g := range groups {
		s.Range(g, func(r Record) bool {
			out[fmt.Sprintf("%d/%s", r.Group, r.Key)] = string(r.Value)
			return true
		})
	}
	return out
}

func wantContent(t *testing.T, s Store, want map[string]string, groups ...uint32) {
	t.Helper()
	if got := content(s, groups...); !maps.Equal(got, want) {
		t.Errorf("records %v, want %v", got, want)
	}
}

func TestEveryStoreKeepsRecords(t *testing.T) {
	stores := map[string]func(t *testing.T) Store{
		"a journal on disk": func(t *testing.T) Store { return mustOpen(t, t.TempDir(), Options{}) },
		"memory":            func(t *testing.T) Store { return Memory() },
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			expires := time.Now().Add(time.Hour)
			must(t, put(s, 1, "a", "one", expires))
			must(t, put(s, 1, "a", "two", time.Time{}))
			must(t, put(s, 1, "b", "", expires))
			must(t, put(s, 2, "a", "other group", expires))
			must(t, put(s, 1, "c", "gone", expires))
			must(t, remove(s, 1, "c"))
			must(t, remove(s, 1, "never there"))
			must(t, remove(s, 9, "no such group"))
			wantContent(t, s, map[string]string{"1/a": "two", "1/b": "", "2/a": "other group"}, 1, 2, 9)

			var seqs []uint64
			s.Range(1, func(r Record) bool {
				seqs = append(seqs, r.Seq)
				if r.Key == "b" && (!r.Expires.Equal(expires) || r.Expired(expires.Add(-1)) || !r.Expired(expires)) {
					t.Errorf("b expires %v, want %v", r.Expires, expires)
				}
				if r.Key == "a" && (!r.Expires.IsZero() || r.Expired(expires)) {
					t.Errorf("a expires %v, want never", r.Expires)
				}
				return true
			})
			slices.Sort(seqs)
			if !slices.Equal(seqs, []uint64{2, 3}) {
				t.Errorf("seqs %v, want [2 3]", seqs)
			}

			if err := put(s, 1, strings.Repeat("k", MaxKey+1), "", expires); err != ErrTooLarge {
				t.Errorf("huge key: %v, want ErrTooLarge", err)
			}
			if err := put(s, 1, "k", strings.Repeat("v", MaxValue+1), expires); err != ErrTooLarge {
				t.Errorf("huge value: %v, want ErrTooLarge", err)
			}
			must(t, put(s, 3, strings.Repeat("k", MaxKey), strings.Repeat("v", MaxValue), expires))

			must(t, s.Close())
			must(t, s.Close())
			if err := put(s, 1, "a", "late", expires); err != ErrClosed {
				t.Errorf("put after Close: %v, want ErrClosed", err)
			}
			if err := remove(s, 1, "a"); err != ErrClosed {
				t.Errorf("delete after Close: %v, want ErrClosed", err)
			}
			wantContent(t, s, map[string]string{"1/a": "two", "1/b": ""}, 1)
		})
	}
}

func TestStoreCopiesWhatItIsGiven(t *testing.T) {
	for name, s := range map[string]Store{"journal": mustOpen(t, t.TempDir(), Options{}), "memory": Memory()} {
		t.Run(name, func(t *testing.T) {
			value := []byte("before")
			s.Put(1, "k", value, time.Time{}, nil)
			copy(value, "AFTER!")
			wantContent(t, s, map[string]string{"1/k": "before"}, 1)
			must(t, s.Close())
		})
	}
}

func TestRangeShowsOneMomentAndMayUseTheStore(t *testing.T) {
	for name, s := range map[string]Store{"journal": mustOpen(t, t.TempDir(), Options{}), "memory": Memory()} {
		t.Run(name, func(t *testing.T) {
			for i := range 1000 {
				s.Put(1, fmt.Sprint(i), []byte("old"), time.Time{}, nil)
			}
			n := 0
			s.Range(1, func(r Record) bool {
				if string(r.Value) != "old" {
					t.Fatalf("%s was changed while ranging", r.Key)
				}
				n++
				for _, k := range []string{r.Key, fmt.Sprint((n * 7) % 1000), fmt.Sprint("new", n)} {
					s.Put(1, k, []byte("new"), time.Time{}, nil)
				}
				s.Delete(1, fmt.Sprint(n), nil)
				return n < 999
			})
			if n != 999 {
				t.Errorf("saw %d records, want to stop at 999", n)
			}
			must(t, s.Close())
		})
	}
}

func TestRecordsSurviveReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "dir")
	o := Options{Epoch: func(g uint32) uint64 { return uint64(g) * 10 }}
	want := map[string]string{}
	var last uint64
	for round := range 5 {
		j := mustOpen(t, dir, o)
		rep := j.Recovery()
		if rep.CutFile != "" || rep.Records != len(want) || rep.LastSeq != last {
			t.Errorf("round %d: recovery %+v, want %d records up to %d", round, rep, len(want), last)
		}
		wantContent(t, j, want, 1, 2)
		for i := range round { // the first round writes nothing
			key := fmt.Sprint(round, "-", i)
			must(t, put(j, 1+uint32(i%2), key, key, time.Now().Add(time.Hour)))
			want[fmt.Sprint(1+i%2, "/", key)] = key
		}
		if round == 3 {
			must(t, remove(j, 1, "1-0"))
			delete(want, "1/1-0")
		}
		last = j.Stats().Seq
		j.Range(2, func(r Record) bool {
			if r.Epoch != 20 {
				t.Errorf("record %s has epoch %d, want 20", r.Key, r.Epoch)
			}
			return true
		})
		must(t, j.Close())
	}
	if last != 11 {
		t.Errorf("last seq %d, want 11", last)
	}
}

func TestAnotherIdentityIsRefusedAndNothingIsWritten(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, Options{Identity: "home/a"})
	must(t, put(j, 1, "k", "v", time.Time{}))
	must(t, j.Close())
	must(t, os.WriteFile(filepath.Join(dir, "journal-0000000000000009.tmp"), nil, 0o600))
	before := snapshotDir(t, dir)
	_, err := OpenJournal(dir, Options{Identity: "home/b"})
	if !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), `it belongs to "home/a", not to "home/b"`) || !strings.Contains(err.Error(), dir) {
		t.Errorf("open with another identity: %v", err)
	}
	if after := snapshotDir(t, dir); !maps.Equal(before, after) {
		t.Errorf("the directory changed:\n%v\n%v", before, after)
	}
	for _, id := range []string{"", strings.Repeat("x", 256)} {
		if _, err := OpenJournal(dir, Options{Identity: id}); err == nil {
			t.Errorf("identity of %d bytes was accepted", len(id))
		}
	}
	must(t, mustOpen(t, dir, Options{Identity: "home/a"}).Close())
}

// snapshotDir returns name -> size, time and content of a directory's files.
func snapshotDir(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	out := map[string]string{}
	for _, e := range list {
		info, err := e.Info()
		must(t, err)
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		must(t, err)
		out[e.Name()] = fmt.Sprint(info.ModTime(), info.Mode(), string(b))
	}
	return out
}

func TestJournalIsOpenOnlyOnce(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, Options{})
	if _, err := OpenJournal(dir, Options{Identity: "cluster/a"}); !errors.Is(err, ErrLocked) {
		t.Errorf("second open: %v, want ErrLocked", err)
	}
	must(t, j.Close())
	must(t, mustOpen(t, dir, Options{}).Close())
}

func TestJournalOfANewerVersionIsRefused(t *testing.T) {
	d := newFakeDisk()
	must(t, mustOpen(t, "d", Options{fs: d}).Close())
	for _, n := range d.names {
		n.data[len(magic)+1]++
	}
	if _, err := OpenJournal("d", Options{Identity: "cluster/a", fs: d}); !errors.Is(err, ErrVersion) {
		t.Errorf("open: %v, want ErrVersion", err)
	}
}

func TestExpiredRecordsAreSkippedAtOpeningAndDoNotUncoverOlderOnes(t *testing.T) {
	d := newFakeDisk()
	now := time.Now()
	o := Options{fs: d, now: func() time.Time { return now }}
	j := mustOpen(t, "d", o)
	must(t, put(j, 1, "short", "v", now.Add(time.Second)))
	must(t, put(j, 1, "long", "v", now.Add(time.Hour)))
	must(t, put(j, 1, "shortened", "old", now.Add(time.Hour)))
	must(t, put(j, 1, "shortened", "new", now.Add(time.Second)))
	must(t, put(j, 1, "past", "v", time.Unix(-5, 0)))
	must(t, put(j, 1, "far", "v", time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))
	must(t, j.Close())
	now = now.Add(time.Minute)
	j = mustOpen(t, "d", o)
	wantContent(t, j, map[string]string{"1/long": "v", "1/far": "v"}, 1)
	if rep := j.Recovery(); rep.Expired != 3 || rep.Records != 2 {
		t.Errorf("recovery %+v, want 3 expired, 2 records", rep)
	}
}

func TestPromisesAreKeptInOrder(t *testing.T) {
	for name, open := range map[string]func() Store{
		"a journal on disk": func() Store { return mustOpen(t, t.TempDir(), Options{SegmentSize: 4 << 10, CompactAt: 16 << 10}) },
		"memory":            func() Store { return Memory() },
	} {
		t.Run(name, func(t *testing.T) {
			s := open()
			const callers, each = 8, 500
			var all sync.WaitGroup
			var mu sync.Mutex
			next := make([]int, callers)
			for c := range callers {
				all.Go(func() {
					for i := range each {
						all.Add(1)
						s.Put(1, fmt.Sprint("k", c), []byte(fmt.Sprint(i)), time.Time{}, func(err error) {
							defer all.Done()
							mu.Lock()
							defer mu.Unlock()
							if err != nil || next[c] != i {
								t.Errorf("caller %d: promise %d (%v), want %d", c, i, err, next[c])
							}
							next[c] = i + 1
						})
					}
				})
			}
			all.Wait()
			want := map[string]string{}
			for c := range callers {
				want[fmt.Sprint("1/k", c)] = fmt.Sprint(each - 1)
			}
			wantContent(t, s, want, 1)
			must(t, s.Close())
			if j, ok := s.(*Journal); ok {
				again := mustOpen(t, j.dir, Options{})
				wantContent(t, again, want, 1)
				if st := j.Stats(); st.Syncs >= callers*each || st.Seq != callers*each {
					t.Errorf("%d syncs for %d records", st.Syncs, st.Seq)
				}
			}
		})
	}
}

func TestStoreWithoutRoomRefuses(t *testing.T) {
	gate := make(chan struct{})
	writing := make(chan struct{}, 100)
	d := newFakeDisk()
	j := mustOpen(t, "d", Options{fs: d, MaxPending: 1000, MaxBytes: 4 * (recordOverhead + 500)})
	d.hook = func(op, name string) error {
		if op == "write" {
			writing <- struct{}{}
			<-gate
		}
		return nil
	}
	value := strings.Repeat("v", 499)
	results := make(chan error, 10)
	send := func(key string) {
		j.Put(1, key, []byte(value), time.Time{}, func(err error) { results <- err })
	}
	send("a")
	<-writing // the disk is stuck, what comes now has to wait
	send("b")
	send("c")
	if err := <-results; err != ErrBacklog {
		t.Errorf("third put with a stuck disk: %v, want ErrBacklog", err)
	}
	close(gate)
	must(t, <-results)
	must(t, <-results)
	must(t, put(j, 1, "c", value, time.Time{}))
	must(t, put(j, 1, "d", value, time.Time{}))
	if err := put(j, 1, "e", value, time.Time{}); err != ErrFull {
		t.Errorf("put into a full store: %v, want ErrFull", err)
	}
	must(t, put(j, 1, "d", value[1:], time.Time{})) // needs no more
	must(t, remove(j, 1, "a"))
	must(t, put(j, 1, "e", value, time.Time{}))
	if st := j.Stats(); st.Refused != 2 || st.Records != 4 {
		t.Errorf("stats %+v, want 2 refused, 4 records", st)
	}
}

func TestDiskErrorTurnsTheJournalFailedAndEverybodyIsTold(t *testing.T) {
	for _, op := range []string{"write", "sync"} {
		t.Run("in "+op, func(t *testing.T) {
			d := newFakeDisk()
			var out bytes.Buffer
			failed := make(chan error, 2)
			j := mustOpen(t, "d", Options{fs: d, OnFail: func(err error) { failed <- err }, Log: slog.New(slog.NewTextHandler(&out, nil))})
			must(t, put(j, 1, "safe", "v", time.Time{}))
			d.hook = func(o, _ string) error {
				if o == op {
					return errInjected
				}
				return nil
			}
			if err := put(j, 1, "lost", "v", time.Time{}); !errors.Is(err, errInjected) {
				t.Errorf("put: %v, want the disk's error", err)
			}
			if err := put(j, 1, "later", "v", time.Time{}); !errors.Is(err, errInjected) {
				t.Errorf("later put: %v, want the disk's error", err)
			}
			if err := j.Probe(); !errors.Is(err, errInjected) {
				t.Errorf("probe of a broken disk: %v", err)
			}
			d.hook = nil
			if err := errors.Join(j.Probe(), j.Probe()); err != nil {
				t.Errorf("probe of a disk that is in order again: %v", err)
			}
			if err := put(j, 1, "still", "v", time.Time{}); !errors.Is(err, errInjected) {
				t.Errorf("put after a probe: %v, want the disk's error", err)
			}
			if err := <-failed; !errors.Is(err, errInjected) || !errors.Is(j.Err(), errInjected) {
				t.Errorf("told %v, Err %v, want the disk's error", err, j.Err())
			}
			if err := j.Close(); !errors.Is(err, errInjected) {
				t.Errorf("close: %v, want the disk's error", err)
			}
			if !strings.Contains(out.String(), "nothing more is stored") || len(failed) != 0 {
				t.Errorf("log %q, %d more calls of OnFail", out.String(), len(failed))
			}
			again := mustOpen(t, "d", Options{fs: d.afterPowerCut(nil)})
			wantContent(t, again, map[string]string{"1/safe": "v"}, 1)
		})
	}
}

func TestSyncGroupsGatherThoseWhoWaitTogether(t *testing.T) {
	const rounds, oneSync = 50, 2 * time.Millisecond
	for _, tt := range []struct {
		name    string
		callers int
		syncs   uint64
		longest time.Duration
	}{
		{"a lone caller never waits for others", 1, rounds, rounds * oneSync},
		// By turns they would need twice as many.
		{"several share every sync", 4, rounds + 1, (rounds+1)*oneSync + 3*time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newFakeDisk()
				j := mustOpen(t, "d", Options{fs: d})
				d.hook = func(op, _ string) error {
					if op == "sync" {
						time.Sleep(oneSync)
					}
					return nil
				}
				begin := time.Now()
				var all sync.WaitGroup
				for c := range tt.callers {
					all.Go(func() {
						for i := range rounds {
							if err := put(j, 1, fmt.Sprint(c), fmt.Sprint(i), time.Time{}); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
				took := time.Since(begin)
				if st := j.Stats(); st.Syncs > tt.syncs || took > tt.longest {
					t.Errorf("%d syncs in %v, want at most %d in %v", st.Syncs, took, tt.syncs, tt.longest)
				}
			})
		})
	}
}
