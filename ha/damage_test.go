package ha

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// small is a journal of a few sync groups: what it holds after each seq, and
// its files when it was closed and, as a crash leaves them, when it was not.
type small struct {
	states           []map[string]string // by seq
	closed, unclosed *fakeDisk
	name             string // the only segment
}

func newSmall(t *testing.T) small {
	d := newFakeDisk()
	j := mustOpen(t, "d", Options{fs: d})
	s := small{name: filepath.Join("d", fileName(segmentFile, 1))}
	note := func(err error) {
		must(t, err)
		s.states = append(s.states, content(j, 1, 2))
	}
	note(nil)
	note(put(j, 1, "a", "one", time.Time{}))
	note(put(j, 2, "b", "two", time.Now().Add(time.Hour)))
	note(remove(j, 1, "a"))
	note(put(j, 1, "b", strings.Repeat("x", 100), time.Time{}))
	note(put(j, 2, "b", "again", time.Time{}))
	s.unclosed = d.afterPowerCut(nil)
	must(t, j.Close())
	s.closed = d.afterPowerCut(nil)
	return s
}

// with returns the disk with the segment's bytes changed.
func (s small) with(d *fakeDisk, change func([]byte) []byte) *fakeDisk {
	out := d.afterPowerCut(nil)
	n := out.names[s.name]
	n.data = change(n.data)
	n.safe = slices.Clone(n.data)
	return out
}

func tryOpen(d *fakeDisk) (*Journal, error) {
	return OpenJournal("d", Options{Identity: "cluster/a", fs: d, Log: quiet})
}

func TestEveryTruncationIsCutToTheLastWholeRecord(t *testing.T) {
	s := newSmall(t)
	for name, d := range map[string]*fakeDisk{"closed": s.closed, "unclosed": s.unclosed} {
		full := len(d.names[s.name].data)
		header := headerFixed + len("cluster/a") + crcSize
		seen := map[uint64]bool{}
		for size := range full {
			cut := s.with(d, func(b []byte) []byte { return b[:size] })
			before := cut.content()
			j, err := tryOpen(cut)
			if size < header {
				// A name appears only with its whole header, so this is damage.
				if !errors.Is(err, ErrCorrupt) || !maps.Equal(before, cut.content()) {
					t.Fatalf("%s, %d bytes: %v, want ErrCorrupt and no change", name, size, err)
				}
				continue
			}
			must(t, err)
			rep := j.Recovery()
			seen[rep.LastSeq] = true
			if got := content(j, 1, 2); !maps.Equal(got, s.states[rep.LastSeq]) {
				t.Errorf("%s, %d bytes: %v at seq %d", name, size, got, rep.LastSeq)
			}
			if rep.CutOffset+rep.CutBytes != int64(size) && rep.CutFile != "" {
				t.Errorf("%s, %d bytes: report %+v", name, size, rep)
			}
			// It goes on as if nothing had been.
			must(t, put(j, 1, "more", "v", time.Time{}))
			must(t, j.Close())
			j, err = tryOpen(cut)
			must(t, err)
			want := maps.Clone(s.states[rep.LastSeq])
			want["1/more"] = "v"
			if got := content(j, 1, 2); !maps.Equal(got, want) || j.Recovery().CutFile != "" {
				t.Errorf("%s, %d bytes: after going on %v, want %v", name, size, got, want)
			}
			must(t, j.Close())
		}
		if len(seen) != len(s.states)-boolInt(name == "unclosed") {
			t.Errorf("%s: recovered to seqs %v, want all", name, seen)
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestEveryFlippedByteIsNoticed(t *testing.T) {
	s := newSmall(t)
	for name, d := range map[string]*fakeDisk{"closed": s.closed, "unclosed": s.unclosed} {
		full := len(d.names[s.name].data)
		final := len(s.states) - 1
		cuts := 0
		for at := range full {
			for _, mask := range []byte{0x01, 0x80, 0xff} {
				bad := s.with(d, func(b []byte) []byte { b[at] ^= mask; return b })
				before := bad.content()
				j, err := tryOpen(bad)
				if err != nil {
					if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
						t.Fatalf("%s, byte %d: %v", name, at, err)
					}
					if !maps.Equal(before, bad.content()) {
						t.Fatalf("%s, byte %d: refused, but the files changed", name, at)
					}
					continue
				}
				// Only the very last group may be taken for a torn write,
				// and then that is reported.
				cuts++
				rep := j.Recovery()
				lost := final - int(rep.LastSeq)
				if rep.CutFile == "" || lost > 1 || name == "closed" && lost > 0 {
					t.Errorf("%s, byte %d: opened with %+v", name, at, rep)
				}
				if got := content(j, 1, 2); !maps.Equal(got, s.states[rep.LastSeq]) {
					t.Errorf("%s, byte %d: %v", name, at, got)
				}
				must(t, j.Close())
			}
		}
		if cuts == 0 || cuts > 3*(entryPrefix+entryFixed+20) {
			t.Errorf("%s: %d flips were taken for a torn write", name, cuts)
		}
	}
}

func TestEveryFlippedByteOfASnapshotIsNoticed(t *testing.T) {
	d := newFakeDisk()
	j := mustOpen(t, "d", Options{fs: d, CompactAt: 1})
	for i := range 3 {
		must(t, put(j, 1, fmt.Sprint(i), strings.Repeat("v", 20), time.Time{}))
	}
	churn(t, j, 1)
	must(t, j.Close())
	name := ""
	for n := range d.names {
		if strings.HasPrefix(filepath.Base(n), snapshotName) {
			name = n
		}
	}
	whole := d.afterPowerCut(nil)
	for at := range whole.names[name].data {
		bad := whole.afterPowerCut(nil)
		bad.names[name].data[at] ^= 0x10
		if _, err := tryOpen(bad); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatalf("byte %d flipped: %v, want ErrCorrupt", at, err)
		}
		short := whole.afterPowerCut(nil)
		short.names[name].data = short.names[name].data[:at]
		if _, err := tryOpen(short); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut to %d bytes: %v, want ErrCorrupt", at, err)
		}
	}
	j = mustOpen(t, "d", Options{fs: whole.afterPowerCut(nil)})
	want := content(j, 1)
	must(t, j.Close())
	for n := range whole.names {
		missing := whole.afterPowerCut(nil)
		delete(missing.names, n)
		// A segment that the last compaction began may still be empty: without
		// it nothing is missing.
		if j, err := tryOpen(missing); err == nil {
			if got := content(j, 1); !maps.Equal(got, want) {
				t.Errorf("%s is missing and nobody noticed: %+v", n, j.Recovery())
			}
			j.Close()
		}
	}
}

func TestAMissingOrMisplacedSegmentIsNoticed(t *testing.T) {
	d := newFakeDisk()
	j := mustOpen(t, "d", Options{fs: d, SegmentSize: 200})
	for i := range 8 {
		must(t, put(j, 1, fmt.Sprint(i), strings.Repeat("v", 80), time.Time{}))
	}
	must(t, j.Close())
	if len(d.names) < 4 {
		t.Fatalf("only %d segments", len(d.names))
	}
	names := slices.Sorted(maps.Keys(d.names))
	for _, name := range names[:len(names)-1] {
		missing := d.afterPowerCut(nil)
		delete(missing.names, name)
		if _, err := tryOpen(missing); !errors.Is(err, ErrCorrupt) {
			t.Errorf("without %s: %v, want ErrCorrupt", name, err)
		}
		short := d.afterPowerCut(nil)
		n := short.names[name]
		n.data = n.data[:len(n.data)-1]
		if _, err := tryOpen(short); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s without its last byte: %v, want ErrCorrupt", name, err)
		}
	}
	swapped := d.afterPowerCut(nil)
	swapped.names[names[0]], swapped.names[names[1]] = swapped.names[names[1]], swapped.names[names[0]]
	if _, err := tryOpen(swapped); !errors.Is(err, ErrCorrupt) {
		t.Errorf("two segments swapped: %v, want ErrCorrupt", err)
	}
}

func TestHolesInTheLastGroupAreATornWrite(t *testing.T) {
	d := newFakeDisk()
	j := mustOpen(t, "d", Options{fs: d})
	must(t, put(j, 1, "safe", "v", time.Time{}))
	size := len(d.names["d/journal-0000000000000001"].data)

	// While the disk writes x, one group of three comes together.
	gate, writing := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.hook = func(op, _ string) error {
		once.Do(func() { close(writing); <-gate })
		return nil
	}
	j.Put(1, "x", []byte("first"), time.Time{}, nil)
	<-writing
	for _, k := range []string{"x", "y"} {
		j.Put(1, k, []byte("group"), time.Time{}, nil)
	}
	last := make(chan error, 1)
	j.Put(1, "x", []byte("last of the group"), time.Time{}, func(err error) { last <- err })
	close(gate)
	must(t, <-last)
	torn := d.afterPowerCut(nil)
	must(t, j.Close())

	// Its first record did not reach the disk, the others did.
	n := torn.names["d/journal-0000000000000001"]
	at := size + entryPrefix + entryFixed + len("x") + len("first")
	clear(n.data[at : at+30])
	rest := int64(len(n.data) - at)
	again, err := tryOpen(torn)
	must(t, err)
	wantContent(t, again, map[string]string{"1/safe": "v", "1/x": "first"}, 1)
	if rep := again.Recovery(); rep.CutOffset != int64(at) || rep.CutBytes != rest {
		t.Errorf("report %+v, want a cut at %d of %d bytes", rep, at, rest)
	}
	must(t, again.Close())
}

func TestReadErrorIsNotTakenForATornWrite(t *testing.T) {
	s := newSmall(t)
	for call := 1; ; call++ {
		d := s.unclosed.afterPowerCut(nil)
		before := d.content()
		d.failAt = call
		j, err := tryOpen(d)
		d.mu.Lock()
		d.failAt = 0
		d.mu.Unlock()
		if err == nil {
			must(t, j.Close())
			if call < 8 {
				t.Errorf("only %d calls to the disk could fail", call)
			}
			return
		}
		if !errors.Is(err, errInjected) || errors.Is(err, ErrCorrupt) {
			t.Errorf("call %d fails: %v, want the disk's error", call, err)
		}
		if !maps.Equal(before, d.content()) {
			t.Errorf("call %d fails: the files changed", call)
		}
		if j, err := tryOpen(d); err != nil {
			t.Errorf("call %d failed once: %v", call, err)
		} else {
			must(t, j.Close())
		}
	}
}

// endless is a file without end, of zeros.
type endless struct{ n int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.n <= 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), e.n)]
	clear(p)
	e.n -= int64(len(p))
	return len(p), nil
}

func TestReadingAHugeFileTakesLittleMemory(t *testing.T) {
	allocated := testing.AllocsPerRun(1, func() {
		found, size, err := laterGroup(&endless{4 << 20}, 1)
		if found || size != 4<<20 || err != nil {
			t.Errorf("laterGroup: %v, %d, %v", found, size, err)
		}
	})
	if allocated > 10 {
		t.Errorf("%v allocations", allocated)
	}
	b := appendHeader(nil, header{segmentFile, 1, "x"})
	b = append(b, 0x7f, 0xff, 0xff, 0xff)
	r, err := newSegmentReader(io.MultiReader(bytes.NewReader(b), &endless{1 << 30}))
	must(t, err)
	if _, err := r.next(); !errors.Is(err, errLength) {
		t.Errorf("an entry of 2 GiB: %v, want errLength", err)
	}
}

func FuzzSegment(f *testing.F) {
	whole := appendHeader(nil, header{segmentFile, 1, "cluster/a"})
	for _, e := range []entry{
		{kind: putEntry, Record: Record{Group: 7, Key: "k", Seq: 1, Epoch: 3, Expires: time.Unix(5, 6), Value: []byte("v")}},
		{kind: deleteEntry, back: 1, Record: Record{Group: 7, Key: "k", Seq: 2}},
		endOf(3, 2),
	} {
		whole = appendEntry(whole, e)
		f.Add(whole)
	}
	f.Add(whole[:len(whole)-1])
	f.Add(append(bytes.Clone(whole), make([]byte, 100)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := newSegmentReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		// What is read is what would be written.
		out := appendHeader(nil, s.header)
		for {
			e, err := s.next()
			var bad *badEntry
			if errors.As(err, &bad) {
				if bad.offset != int64(len(out)) {
					t.Fatalf("bad entry at %d, want %d", bad.offset, len(out))
				}
				if _, _, err := laterGroup(bytes.NewReader(b[bad.offset:]), e.Seq); err != nil {
					t.Fatal(err)
				}
				break
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			out = appendEntry(out, e)
		}
		if !bytes.HasPrefix(b, out) {
			t.Fatal("reading and writing changed the bytes")
		}
		// And a whole journal of these bytes is opened or refused.
		d := newFakeDisk()
		name := filepath.Join("d", fileName(s.header.kind, s.header.seq))
		d.names[name] = &inode{data: bytes.Clone(b), safe: bytes.Clone(b)}
		if j, err := OpenJournal("d", Options{Identity: s.header.identity, fs: d, Log: quiet}); err == nil {
			j.Close()
		}
	})
}

// FuzzEntries opens journals whose checksums are right and whose entries are
// anything.
func FuzzEntries(f *testing.F) {
	body := func(e entry) []byte { return appendEntry(nil, e)[entryPrefix:] }
	p := body(entry{kind: putEntry, Record: Record{Group: 7, Key: "k", Seq: 1, Expires: time.Unix(5, 6), Value: []byte("v")}})
	f.Add(p, body(entry{kind: deleteEntry, back: 1, Record: Record{Group: 7, Key: "k", Seq: 2}}))
	f.Add(p, body(endOf(2, 1)))
	f.Add(body(endOf(1, 0)), p)
	f.Fuzz(func(t *testing.T, one, two []byte) {
		for _, kind := range []fileKind{segmentFile, snapshotFile} {
			data := appendHeader(nil, header{kind, 1, "x"})
			for _, body := range [][]byte{one, two} {
				at := len(data)
				data = binary.BigEndian.AppendUint32(data, uint32(len(body)))
				data = append(append(data, 0, 0, 0, 0), body...)
				binary.BigEndian.PutUint32(data[at+4:], entryCRC(data[at:]))
				if e, err := parseEntry(data[at:]); err == nil && !bytes.Equal(appendEntry(nil, e), data[at:]) {
					t.Fatalf("entry %+v is written differently", e)
				}
			}
			d := newFakeDisk()
			d.names[filepath.Join("d", fileName(kind, 1))] = &inode{data: data, safe: bytes.Clone(data)}
			if kind == snapshotFile {
				next := appendHeader(nil, header{segmentFile, 2, "x"})
				d.names[filepath.Join("d", fileName(segmentFile, 2))] = &inode{data: next, safe: next}
			}
			if j, err := OpenJournal("d", Options{Identity: "x", fs: d, Log: quiet}); err == nil {
				j.Close()
			} else if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
		}
	})
}
