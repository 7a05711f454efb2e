package ha

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const defaultMaxBytes = 512 << 20

// Options says how a journal is kept. Only Identity is required; zero fields
// take the defaults.
type Options struct {
	Identity string                    // cluster and node that own the directory, 1 to 255 bytes
	Epoch    func(group uint32) uint64 // epoch to note in a record of the group, quick and without use of the store; nil: 0
	OnFail   func(error)               // called once, on another goroutine, if the journal turns failed
	Log      *slog.Logger              // default slog.Default()

	Gather      time.Duration // longest wait for callers of the last sync group to come again; default 1 ms, negative: none
	SegmentSize int64         // bytes at which a segment ends; default 16 MiB
	CompactAt   int64         // bytes of segments, beyond twice the live records, that cause a compaction; default 8 MiB
	MaxPending  int64         // bytes that may wait for the disk, else ErrBacklog; default 16 MiB
	MaxBytes    int64         // bytes of records in memory, else ErrFull; default 512 MiB

	fs  fileSystem
	now func() time.Time
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		field *int64
		value int64
	}{{&o.SegmentSize, 16 << 20}, {&o.CompactAt, 8 << 20}, {&o.MaxPending, 16 << 20}, {&o.MaxBytes, defaultMaxBytes}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if o.Gather == 0 {
		o.Gather = time.Millisecond
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Epoch == nil {
		o.Epoch = func(uint32) uint64 { return 0 }
	}
	if o.fs == nil {
		o.fs = disk{}
	}
	if o.now == nil {
		o.now = time.Now
	}
	return o
}

// Journal is a Store on one disk.
type Journal struct {
	dir      string
	o        Options
	recovery Recovery
	lock     io.Closer     // of the directory
	done     chan struct{} // the writer has ended
	stopping atomic.Bool   // compaction is to be given up

	mu      sync.Mutex
	wake    sync.Cond // the writer has something to do
	table   *table
	seq     uint64 // of the newest record
	pending group  // to be written next
	goal    int    // records in it at which the writer is to be told; 0: it does not wait for any
	closed  bool
	err     error // why the journal failed
	stats   JournalStats

	enough chan struct{} // capacity 1: pending has reached goal
	log                  // of the writer goroutine
}

// group is what one sync makes safe.
type group struct {
	bytes    []byte
	first    uint64 // seq of its first record
	count    int
	promises []func(error)
}

// JournalStats are the figures of a journal. Counters are since opening.
type JournalStats struct {
	Records     int           // in memory
	Bytes       int64         // of them, with an allowance for what holds them
	Seq         uint64        // of the newest record
	Durable     uint64        // seq up to which all is safe
	Pending     int           // bytes that wait for the disk
	LogBytes    int64         // size of the segments on disk
	Syncs       uint64        // sync groups written
	SyncTime    time.Duration // spent writing and syncing them
	SlowestSync time.Duration
	Refused     uint64 // records that were not taken
	Compactions uint64
	Uncompacted uint64 // compactions that went wrong
}

// OpenJournal opens the journal in dir, or creates it there. Errors are
// ErrIdentity, ErrLocked, ErrVersion, ErrCorrupt or those of the disk; then
// nothing in the directory has been changed.
func OpenJournal(dir string, o Options) (*Journal, error) {
	j, err := openJournal(dir, o.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", dir, err)
	}
	return j, nil
}

func openJournal(dir string, o Options) (*Journal, error) {
	if o.Identity == "" || len(o.Identity) > maxIdentity {
		return nil, errors.New("the identity needs 1 to 255 bytes")
	}
	if err := o.fs.MakeDir(dir); err != nil {
		return nil, err
	}
	lock, err := o.fs.Lock(dir)
	if err != nil {
		return nil, err
	}
	rec, err := recoverDir(o.fs, dir, o.Identity, o.now())
	if err != nil {
		lock.Close()
		return nil, err
	}
	j := &Journal{
		dir: dir, o: o, recovery: rec.report, lock: lock, done: make(chan struct{}), enough: make(chan struct{}, 1),
		table: rec.table, seq: rec.report.LastSeq,
	}
	j.wake.L = &j.mu
	j.stats.Durable = j.seq
	if err := j.log.open(j, rec); err != nil {
		lock.Close()
		return nil, err
	}
	j.stats.LogBytes = j.log.bytes
	if c := rec.report; c.CutFile != "" {
		o.Log.Warn("journal: cut off an incomplete write", "file", c.CutFile,
			"offset", c.CutOffset, "bytes", c.CutBytes, "reason", c.CutReason)
	}
	go j.write()
	return j, nil
}

// Recovery says what opening the journal found.
func (j *Journal) Recovery() Recovery { return j.recovery }

// Put implements Store.
func (j *Journal) Put(group uint32, key string, value []byte, expires time.Time, durable func(error)) {
	r := Record{
		Group: group, Key: strings.Clone(key), Epoch: j.o.Epoch(group),
		Expires: expiryTime(expiryNanos(expires)), Value: slices.Clone(value),
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.refusal(key, value); err != nil {
		j.stats.Refused++
		refuse(durable, err)
		return
	}
	if j.table.bytes+j.table.growth(r) > j.o.MaxBytes {
		j.stats.Refused++
		refuse(durable, ErrFull)
		return
	}
	r.Seq = j.add(entry{kind: putEntry, Record: r}, durable)
	j.table.put(r)
}

// Delete implements Store.
func (j *Journal) Delete(group uint32, key string, durable func(error)) {
	epoch := j.o.Epoch(group)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.refusal(key, nil); err != nil {
		j.stats.Refused++
		refuse(durable, err)
		return
	}
	j.add(entry{kind: deleteEntry, Record: Record{Group: group, Key: key, Epoch: epoch}}, durable)
	j.table.remove(group, key)
}

// refusal returns why a record cannot be taken.
func (j *Journal) refusal(key string, value []byte) error {
	switch size := int64(len(j.pending.bytes) + entryPrefix + entryFixed + len(key) + len(value)); {
	case j.closed:
		return ErrClosed
	case j.err != nil:
		return j.err
	case size > j.o.MaxPending:
		return ErrBacklog
	}
	return checkSize(key, value)
}

// add gives an entry the next seq and puts it into the pending group.
func (j *Journal) add(e entry, durable func(error)) uint64 {
	j.seq++
	p := &j.pending
	if len(p.bytes) == 0 {
		p.first = j.seq
		j.wake.Signal()
	}
	if p.count++; p.count == j.goal {
		j.enough <- struct{}{}
	}
	e.Seq, e.back = j.seq, uint32(j.seq-p.first)
	p.bytes = appendEntry(p.bytes, e)
	if durable != nil {
		p.promises = append(p.promises, durable)
	}
	return j.seq
}

// Range implements Store.
func (j *Journal) Range(group uint32, fn func(Record) bool) {
	j.mu.Lock()
	v := j.table.freeze(group)
	j.mu.Unlock()
	v.each(fn)
}

// Err returns why the journal turned failed, or nil.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// probeSize is what has to find room before a disk counts as usable again.
const probeSize = 1 << 20

// Probe tries whether a journal that failed would find its disk in order if it
// were opened anew: nil means that a megabyte can be made safe there. It changes
// nothing that counts, and the journal stays failed.
func (j *Journal) Probe() error {
	name := filepath.Join(j.dir, fileName(segmentFile, 0)+tempSuffix) // what is left of it goes at the next opening
	f, err := j.o.fs.Create(name)
	if err == nil {
		_, err = f.Write(make([]byte, probeSize))
		err = errors.Join(err, f.Sync(), f.Close(), j.o.fs.Remove(name))
	}
	if err != nil {
		return fmt.Errorf("probe the disk of journal %s: %w", j.dir, err)
	}
	return nil
}

// Stats returns the figures of now.
func (j *Journal) Stats() JournalStats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.stats
	s.Records, s.Bytes, s.Seq, s.Pending = j.table.count, j.table.bytes, j.seq, len(j.pending.bytes)
	return s
}

// Close makes what was put before safe and releases the directory. It returns
// the error of a journal that failed.
func (j *Journal) Close() error {
	j.mu.Lock()
	j.closed = true
	j.wake.Signal()
	j.mu.Unlock()
	j.stopping.Store(true)
	<-j.done
	return j.Err()
}
