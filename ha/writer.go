package ha

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// keptBuffer is the largest buffer of a group that is used again.
const keptBuffer = 4 << 20

// log is the writer's side of a journal: the segment it appends to.
type log struct {
	file     file
	expected int            // records that the next group may have
	took     time.Duration  // by the last sync
	first    uint64         // first seq of the segment
	size     int64          // of the segment
	bytes    int64          // of all segments
	retryAt  int64          // bytes of all before which no compaction is tried
	busy     bool           // a compaction is under way
	finished chan compacted // capacity 1
}

// open prepares the directory that was recovered for appending.
func (l *log) open(j *Journal, rec *recovered) error {
	l.finished = make(chan compacted, 1)
	for _, name := range rec.remove {
		if err := j.o.fs.Remove(filepath.Join(j.dir, name)); err != nil {
			return err
		}
	}
	if rec.last == "" {
		return l.create(j, j.seq+1)
	}
	f, err := j.o.fs.Append(filepath.Join(j.dir, rec.last))
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(rec.lastSize), f.Sync()); err != nil {
		f.Close()
		return fmt.Errorf("cut %s: %w", rec.last, err)
	}
	_, l.first, _ = parseName(rec.last)
	l.file, l.size, l.bytes = f, rec.lastSize, rec.logBytes
	return nil
}

// create begins a new segment. It is there only with its whole header.
func (l *log) create(j *Journal, first uint64) error {
	b := appendHeader(nil, header{segmentFile, first, j.o.Identity})
	name := fileName(segmentFile, first)
	f, err := publish(j.o.fs, j.dir, name, func(f file) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	l.file, l.first, l.size = f, first, int64(len(b))
	l.bytes += l.size
	return nil
}

// publish writes a file so that its name appears only when it is complete and
// safe. The file is returned open.
func publish(fs fileSystem, dir, name string, write func(file) error) (file, error) {
	path := filepath.Join(dir, name)
	f, err := fs.Create(path + tempSuffix)
	if err != nil {
		return nil, err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = fs.Rename(path+tempSuffix, path)
	}
	if err == nil {
		err = fs.SyncDir(dir)
	}
	if err != nil {
		f.Close()
		fs.Remove(path + tempSuffix) // else the next opening does it
		return nil, err
	}
	return f, nil
}

// write is the writer goroutine: one group after the other.
func (j *Journal) write() {
	defer close(j.done)
	var spare group
	for {
		g, compact, ok := j.take(spare)
		if !ok {
			break
		}
		err := j.commit(g)
		if err != nil {
			j.fail(err)
		}
		for i, durable := range g.promises {
			durable(err)
			g.promises[i] = nil
		}
		if err == nil {
			j.tidy(g.first+uint64(g.count), compact)
		}
		spare = group{bytes: g.bytes[:0], promises: g.promises[:0]}
		if cap(g.bytes) > keptBuffer {
			spare = group{}
		}
	}
	j.finish()
}

// take waits for a group and returns it, and what to compact once it is safe.
func (j *Journal) take(spare group) (g group, c *compaction, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.pending.bytes) == 0 {
		if j.closed {
			return group{}, nil, false
		}
		j.wake.Wait()
	}
	j.gather()
	g, j.pending = j.pending, spare
	if j.err == nil && j.due(int64(len(g.bytes))) {
		c = &compaction{seq: j.seq, view: j.table.freezeAll()}
	}
	return g, c, true
}

// gather waits a little for those who waited for the last group, since they
// are about to come again, together with those who came during its sync.
// Otherwise the two would take turns, and each wait for the other's sync. A
// lone caller waits for nobody, and nobody longer than the last sync took,
// since a sync more would cost no more.
func (j *Journal) gather() {
	if j.o.Gather < 0 || j.closed || j.pending.count >= j.expected {
		return
	}
	j.goal = j.expected
	j.mu.Unlock()
	timer := time.NewTimer(min(j.o.Gather, j.took))
	select {
	case <-j.enough:
	case <-timer.C:
	}
	timer.Stop()
	j.mu.Lock()
	j.goal = 0
	select {
	case <-j.enough: // it came together with the timer
	default:
	}
}

// commit makes a group safe.
func (j *Journal) commit(g group) error {
	if err := j.Err(); err != nil {
		return err
	}
	begin := time.Now()
	if _, err := j.file.Write(g.bytes); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("sync journal: %w", err)
	}
	j.took = time.Since(begin)
	j.size += int64(len(g.bytes))
	j.log.bytes += int64(len(g.bytes))

	j.mu.Lock()
	defer j.mu.Unlock()
	s := &j.stats
	j.expected = g.count + j.pending.count
	s.Durable = g.first + uint64(g.count) - 1
	s.LogBytes = j.log.bytes
	s.Syncs++
	s.SyncTime += j.took
	s.SlowestSync = max(s.SlowestSync, j.took)
	return nil
}

// tidy ends a segment that is large enough, or at which a compaction begins.
func (j *Journal) tidy(next uint64, c *compaction) {
	select {
	case done := <-j.finished:
		j.settle(done)
	default:
	}
	if c == nil && j.size < j.o.SegmentSize {
		return
	}
	before := j.log.bytes
	if err := j.rotate(next); err != nil {
		j.fail(err)
		return
	}
	if c != nil {
		j.busy = true
		go func() { j.finished <- compacted{before, j.compact(*c)} }()
	}
}

// rotate finishes the segment and begins the one that starts at next.
func (j *Journal) rotate(next uint64) error {
	if err := j.seal(next); err != nil {
		return err
	}
	return j.create(j, next)
}

// seal writes the end entry, so that no damage can pass for a torn tail.
func (j *Journal) seal(next uint64) error {
	_, err := j.file.Write(appendEntry(nil, endOf(next, int(next-j.first))))
	if err == nil {
		err = j.file.Sync()
	}
	if err := errors.Join(err, j.file.Close()); err != nil {
		return fmt.Errorf("finish %s: %w", fileName(segmentFile, j.first), err)
	}
	return nil
}

// fail turns the journal failed. What waits is answered by the writer.
func (j *Journal) fail(err error) {
	j.mu.Lock()
	first := j.err == nil
	if first {
		j.err = err
	}
	j.mu.Unlock()
	if !first {
		return
	}
	j.o.Log.Error("journal: failed, nothing more is stored", "dir", j.dir, "err", err)
	if j.o.OnFail != nil {
		go j.o.OnFail(err)
	}
}

// finish ends the writer.
func (j *Journal) finish() {
	if j.busy {
		j.settle(<-j.finished)
	}
	if j.Err() == nil {
		if err := j.seal(j.seq + 1); err != nil { // nothing changes seq any more
			j.fail(err)
		}
	} else {
		j.file.Close()
	}
	j.lock.Close()
}
