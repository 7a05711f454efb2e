package ha

import (
	"bufio"
	"errors"
	"path/filepath"
)

// syncEvery bounds what a snapshot leaves for the kernel to write at once,
// since the journal's own syncs have to wait for that.
const syncEvery = 4 << 20

var errStopped = errors.New("the journal is closing")

// compaction is the content of the store after the record seq.
type compaction struct {
	seq  uint64
	view view
}

// compacted is how a compaction ended.
type compacted struct {
	before int64 // bytes of the segments that it replaces
	err    error
}

// due reports whether, with so many bytes more, a compaction is to begin.
func (j *Journal) due(more int64) bool {
	size := j.log.bytes + more
	return !j.busy && size >= j.retryAt && size > j.o.CompactAt+2*j.table.bytes
}

// settle takes note of a compaction that has ended.
func (j *Journal) settle(c compacted) {
	j.busy = false
	if c.err == nil {
		j.log.bytes -= c.before
	} else if c.err != errStopped {
		j.retryAt = j.log.bytes + j.o.CompactAt
		j.o.Log.Warn("journal: compaction failed, the segments stay", "dir", j.dir, "err", c.err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stats.LogBytes = j.log.bytes
	if c.err == nil {
		j.stats.Compactions++
	} else {
		j.stats.Uncompacted++
	}
}

// compact writes a snapshot and removes what it makes superfluous, beside the
// writer.
func (j *Journal) compact(c compaction) error {
	now := j.o.now()
	f, err := publish(j.o.fs, j.dir, fileName(snapshotFile, c.seq), func(f file) error {
		return j.writeSnapshot(f, c, func(r Record) bool { return !r.Expired(now) })
	})
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	for _, r := range c.view.expired(now) {
		j.mu.Lock()
		if cur, ok := j.table.record(r.Group, r.Key); ok && cur.Seq == r.Seq {
			j.table.remove(r.Group, r.Key)
		}
		j.mu.Unlock()
	}
	names, err := j.o.fs.Names(j.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		kind, seq, ok := parseName(name)
		if !ok || seq > c.seq || kind == snapshotFile && seq == c.seq {
			continue
		}
		if err := j.o.fs.Remove(filepath.Join(j.dir, name)); err != nil {
			return err
		}
	}
	return j.o.fs.SyncDir(j.dir)
}

// writeSnapshot writes the records that are to be kept.
func (j *Journal) writeSnapshot(f file, c compaction, keep func(Record) bool) error {
	w := bufio.NewWriterSize(f, 256<<10)
	if _, err := w.Write(appendHeader(nil, header{snapshotFile, c.seq, j.o.Identity})); err != nil {
		return err
	}
	var (
		buf   []byte
		count int
		since int // bytes since the last sync
		err   error
	)
	c.view.each(func(r Record) bool {
		if !keep(r) {
			return true
		}
		count++
		buf = appendEntry(buf[:0], entry{kind: putEntry, Record: r})
		_, err = w.Write(buf)
		if since += len(buf); err == nil && since >= syncEvery {
			since = 0
			err = errors.Join(w.Flush(), f.Sync())
		}
		if err == nil && j.stopping.Load() {
			err = errStopped
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	if _, err := w.Write(appendEntry(nil, endOf(c.seq, count))); err != nil {
		return err
	}
	return w.Flush()
}
