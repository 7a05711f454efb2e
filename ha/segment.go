package ha

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// segmentReader reads the entries of one file. It holds no more than one of
// them, whatever the file says.
type segmentReader struct {
	r      *bufio.Reader
	header header
	offset int64 // of the next entry
	buf    []byte
}

// badEntry is an entry that is not what was written.
type badEntry struct {
	offset int64
	cause  error
}

func (b *badEntry) Error() string { return fmt.Sprintf("at byte %d: %v", b.offset, b.cause) }
func (b *badEntry) Unwrap() error { return b.cause }

var errShort = errors.New("the file ends within an entry")

// newSegmentReader reads the header.
func newSegmentReader(r io.Reader) (*segmentReader, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	b, err := br.Peek(headerFixed + maxIdentity + crcSize)
	if err != nil && err != io.EOF {
		return nil, err
	}
	h, size, err := parseHeader(b)
	if err != nil {
		return nil, err
	}
	if _, err := br.Discard(size); err != nil {
		return nil, err
	}
	return &segmentReader{r: br, header: h, offset: int64(size)}, nil
}

// next returns the next entry, whose value is valid until the call after.
// The error is io.EOF at the end, a *badEntry, or that of the disk.
func (s *segmentReader) next() (entry, error) {
	prefix, err := s.r.Peek(4)
	switch {
	case err == io.EOF && len(prefix) == 0:
		return entry{}, io.EOF
	case err == io.EOF:
		return entry{}, &badEntry{s.offset, errShort}
	case err != nil:
		return entry{}, err
	}
	n, err := entryLength(prefix)
	if err != nil {
		return entry{}, &badEntry{s.offset, err}
	}
	if cap(s.buf) < n {
		s.buf = make([]byte, n)
	}
	switch _, err := io.ReadFull(s.r, s.buf[:n]); {
	case err == io.ErrUnexpectedEOF:
		return entry{}, &badEntry{s.offset, errShort}
	case err != nil:
		return entry{}, err
	}
	e, err := parseEntry(s.buf[:n])
	if err != nil {
		return entry{}, &badEntry{s.offset, err}
	}
	s.offset += int64(n)
	return e, nil
}

// laterGroup searches r, which begins at a bad entry with the given seq, for
// a good entry of a later sync group, and returns how many bytes it read.
func laterGroup(r io.Reader, seq uint64) (found bool, size int64, err error) {
	br := bufio.NewReaderSize(r, entryPrefix+maxLength)
	for ; ; size++ {
		b, err := br.Peek(entryPrefix + entryFixed)
		if err == io.EOF {
			return false, size + int64(len(b)), nil
		}
		if err != nil {
			return false, size, err
		}
		if plausible(b, seq) {
			n, _ := entryLength(b)
			if b, err = br.Peek(n); err == nil {
				if _, err := parseEntry(b); err == nil {
					return true, size, nil
				}
			} else if err != io.EOF {
				return false, size, err
			}
		}
		if _, err := br.Discard(1); err != nil {
			return false, size, err
		}
	}
}

// plausible reports, without the cost of a checksum, whether b may begin an
// entry of a sync group that begins after seq.
func plausible(b []byte, seq uint64) bool {
	if _, err := entryLength(b); err != nil {
		return false
	}
	back := uint64(binary.BigEndian.Uint32(b[entryPrefix+1:]))
	s := binary.BigEndian.Uint64(b[entryPrefix+5:])
	return back <= s && s-back > seq
}
