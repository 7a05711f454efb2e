package ha

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Recovery says what opening a journal found.
type Recovery struct {
	Snapshot uint64 // seq that the snapshot covers; 0: none
	Segments int    // segments read after it
	Records  int    // records that are there now
	Expired  int    // records that were left out, since their time is over
	LastSeq  uint64

	// What an interrupted write left, and was cut off. Nobody had been told
	// that it is safe, unless the disk damaged the very last group.
	CutFile   string // "": nothing was cut
	CutOffset int64
	CutBytes  int64
	CutReason string
}

// File names carry the header's seq, so that they sort by it.
const (
	segmentName  = "journal-"
	snapshotName = "snapshot-"
	tempSuffix   = ".tmp"
)

func fileName(kind fileKind, seq uint64) string {
	if kind == snapshotFile {
		return fmt.Sprintf("%s%016x", snapshotName, seq)
	}
	return fmt.Sprintf("%s%016x", segmentName, seq)
}

// parseName returns what a file of ours is by its name.
func parseName(name string) (kind fileKind, seq uint64, ok bool) {
	hex, isSegment := strings.CutPrefix(name, segmentName)
	kind = segmentFile
	if !isSegment {
		if hex, ok = strings.CutPrefix(name, snapshotName); !ok {
			return 0, 0, false
		}
		kind = snapshotFile
	}
	if _, err := fmt.Sscanf(hex, "%016x", &seq); err != nil || fileName(kind, seq) != name {
		return 0, 0, false
	}
	return kind, seq, true
}

// recovered is a directory as it was found. Nothing in it has been changed.
type recovered struct {
	table    *table
	report   Recovery
	remove   []string // what earlier runs left and nobody needs
	last     string   // segment to go on with; "": there is none
	lastSize int64    // to which it has to be cut
	logBytes int64    // size of the segments
}

// recoverDir reads a directory.
func recoverDir(fs fileSystem, dir, identity string, now time.Time) (*recovered, error) {
	names, err := fs.Names(dir)
	if err != nil {
		return nil, err
	}
	rec := &recovered{table: newTable()}
	var segments, snapshots []uint64
	for _, name := range names {
		kind, seq, ok := parseName(name)
		switch {
		case ok && kind == segmentFile:
			segments = append(segments, seq)
		case ok:
			snapshots = append(snapshots, seq)
		default:
			if _, _, ours := parseName(strings.TrimSuffix(name, tempSuffix)); ours {
				rec.remove = append(rec.remove, name)
			}
			continue
		}
		if err := checkHeader(fs, dir, name, header{kind, seq, identity}); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	slices.Sort(segments)
	slices.Sort(snapshots)

	if n := len(snapshots); n > 0 {
		for _, seq := range snapshots[:n-1] {
			rec.remove = append(rec.remove, fileName(snapshotFile, seq))
		}
		if err := rec.readSnapshot(fs, dir, snapshots[n-1]); err != nil {
			return nil, err
		}
	}
	// A snapshot is taken where one segment ends and the next begins.
	for len(segments) > 0 && segments[0] <= rec.report.Snapshot {
		rec.remove = append(rec.remove, fileName(segmentFile, segments[0]))
		segments = segments[1:]
	}
	if len(segments) == 0 && rec.report.Snapshot > 0 {
		return nil, fmt.Errorf("%s is missing: %w", fileName(segmentFile, rec.report.LastSeq+1), ErrCorrupt)
	}
	for i, seq := range segments {
		if seq != rec.report.LastSeq+1 {
			return nil, fmt.Errorf("%s is missing: %w", fileName(segmentFile, rec.report.LastSeq+1), ErrCorrupt)
		}
		if err := rec.readSegment(fs, dir, seq, i == len(segments)-1); err != nil {
			return nil, err
		}
	}
	// Only now: an expired record may be the one that replaced a longer lived.
	for _, r := range rec.table.freezeAll().expired(now) {
		rec.table.remove(r.Group, r.Key)
		rec.report.Expired++
	}
	rec.report.Records = rec.table.count
	return rec, nil
}

// checkHeader compares a file's header with what it should be.
func checkHeader(fs fileSystem, dir, name string, want header) error {
	f, err := fs.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := newSegmentReader(f)
	switch {
	case err != nil:
		return err
	case s.header.identity != want.identity:
		return fmt.Errorf("it belongs to %q, not to %q: %w", s.header.identity, want.identity, ErrIdentity)
	case s.header != want:
		return fmt.Errorf("name and header disagree: %w", ErrCorrupt)
	}
	return nil
}

func (rec *recovered) readSnapshot(fs fileSystem, dir string, seq uint64) error {
	name := fileName(snapshotFile, seq)
	f, err := fs.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := newSegmentReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for n := uint64(0); ; n++ {
		e, err := s.next()
		switch bad := (*badEntry)(nil); {
		case err == io.EOF:
			return fmt.Errorf("%s ends early: %w", name, ErrCorrupt)
		case errors.As(err, &bad):
			return fmt.Errorf("%s: %v: %w", name, err, ErrCorrupt)
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		}
		switch {
		case e.kind == endEntry && e.Seq == seq && e.count() == n:
			if _, err := s.next(); err != io.EOF {
				return fmt.Errorf("%s goes on after its end: %w", name, ErrCorrupt)
			}
			rec.report.Snapshot, rec.report.LastSeq = seq, seq
			return nil
		case e.kind != putEntry || e.Seq > seq:
			return fmt.Errorf("%s: entry %d does not belong there: %w", name, n, ErrCorrupt)
		}
		rec.apply(e)
	}
}

func (rec *recovered) readSegment(fs fileSystem, dir string, first uint64, last bool) error {
	name := fileName(segmentFile, first)
	f, err := fs.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := newSegmentReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	rec.report.Segments++
	expect, group := first, first
	for {
		at := s.offset
		e, err := s.next()
		switch bad := (*badEntry)(nil); {
		case err == io.EOF && !last:
			return fmt.Errorf("%s ends early: %w", name, ErrCorrupt)
		case err == io.EOF:
			rec.goOn(name, at)
			return nil
		case errors.As(err, &bad) && last:
			return rec.cut(fs, dir, name, bad, expect)
		case errors.As(err, &bad):
			return fmt.Errorf("%s: %v: %w", name, err, ErrCorrupt)
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		}
		if e.Seq != expect || e.start() != group && e.back != 0 {
			return fmt.Errorf("%s: at byte %d: entry %d where %d belongs: %w", name, at, e.Seq, expect, ErrCorrupt)
		}
		if e.kind == endEntry {
			if _, err := s.next(); err != io.EOF || e.count() != expect-first {
				return fmt.Errorf("%s: at byte %d: wrong end: %w", name, at, ErrCorrupt)
			}
			rec.goOn(name, at)
			return nil
		}
		rec.apply(e)
		rec.report.LastSeq = e.Seq
		expect, group = e.Seq+1, e.start()
	}
}

// goOn notes where a segment's records end. Only that of the last one counts.
func (rec *recovered) goOn(name string, size int64) {
	rec.last, rec.lastSize = name, size
	rec.logBytes += size
}

// cut decides whether a bad entry is a torn tail, and notes what to cut.
func (rec *recovered) cut(fs fileSystem, dir, name string, bad *badEntry, seq uint64) error {
	f, err := fs.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyN(io.Discard, f, bad.offset); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	damaged, size, err := laterGroup(f, seq)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if damaged {
		return fmt.Errorf("%s: %v, with whole entries behind it: %w", name, bad, ErrCorrupt)
	}
	rec.report.CutFile, rec.report.CutOffset = name, bad.offset
	rec.report.CutBytes, rec.report.CutReason = size, bad.cause.Error()
	rec.goOn(name, bad.offset)
	return nil
}

func (rec *recovered) apply(e entry) {
	if e.kind == deleteEntry {
		rec.table.remove(e.Group, e.Key)
		return
	}
	r := e.Record
	r.Value = slices.Clone(r.Value)
	rec.table.put(r)
}
