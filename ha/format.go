package ha

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"
)

// A file is a header and entries, all numbers big endian:
//
//	header  magic[8] version:2 kind:1 len(identity):1 seq:8 identity crc:4
//	entry   length:4 crc:4 type:1 back:4 seq:8 epoch:8 group:4 expires:8 len(key):2 key value
//
// The header's seq is that of the first entry of a segment, and that of the
// last one that a snapshot covers. Both CRCs are CRC32C; an entry's covers
// its length and all behind the CRC, and length counts what is behind it.
//
// back is seq minus the seq of the first entry of the same sync group. A
// group is written only when the one before it is safe; so a good entry of a
// later group behind a bad entry proves that the bad one had been safe and
// was damaged, while a bad one with only its own group behind it may be what
// a power cut left of a write that nobody was told of.
//
// A file that is finished ends with an end entry. Its seq is the next one; in
// a snapshot it is the header's and the value counts the records.
const (
	magic         = "bellwha\n"
	formatVersion = 1

	headerFixed = len(magic) + 2 + 1 + 1 + 8
	crcSize     = 4

	entryPrefix = 4 + crcSize
	entryFixed  = 1 + 4 + 8 + 8 + 4 + 8 + 2
	maxLength   = entryFixed + MaxKey + MaxValue
	maxIdentity = 255
)

type fileKind byte

const (
	segmentFile  fileKind = 1
	snapshotFile fileKind = 2
)

type entryType byte

const (
	putEntry    entryType = 1
	deleteEntry entryType = 2
	endEntry    entryType = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	kind     fileKind
	seq      uint64
	identity string
}

type entry struct {
	kind entryType
	back uint32
	Record
}

// start is the seq of the first entry of the entry's sync group.
func (e entry) start() uint64 { return e.Seq - uint64(e.back) }

func appendHeader(b []byte, h header) []byte {
	from := len(b)
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint16(b, formatVersion)
	b = append(b, byte(h.kind), byte(len(h.identity)))
	b = binary.BigEndian.AppendUint64(b, h.seq)
	b = append(b, h.identity...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

// parseHeader reads a header from the beginning of b, which may be longer,
// and returns its size.
func parseHeader(b []byte) (header, int, error) {
	if len(b) < headerFixed+crcSize || string(b[:len(magic)]) != magic {
		return header{}, 0, fmt.Errorf("no journal file header: %w", ErrCorrupt)
	}
	f := b[len(magic):]
	if v := binary.BigEndian.Uint16(f); v != formatVersion {
		return header{}, 0, fmt.Errorf("format version %d, known is %d: %w", v, formatVersion, ErrVersion)
	}
	h := header{kind: fileKind(f[2]), seq: binary.BigEndian.Uint64(f[4:])}
	size := headerFixed + int(f[3])
	if len(b) < size+crcSize || crc32.Checksum(b[:size], castagnoli) != binary.BigEndian.Uint32(b[size:]) {
		return header{}, 0, fmt.Errorf("file header: %w", ErrCorrupt)
	}
	h.identity = string(b[headerFixed:size])
	return h, size + crcSize, nil
}

// appendEntry encodes an entry whose key and value are within the limits.
func appendEntry(b []byte, e entry) []byte {
	from := len(b)
	b = binary.BigEndian.AppendUint32(b, uint32(entryFixed+len(e.Key)+len(e.Value)))
	b = append(b, 0, 0, 0, 0)
	b = append(b, byte(e.kind))
	b = binary.BigEndian.AppendUint32(b, e.back)
	b = binary.BigEndian.AppendUint64(b, e.Seq)
	b = binary.BigEndian.AppendUint64(b, e.Epoch)
	b = binary.BigEndian.AppendUint32(b, e.Group)
	b = binary.BigEndian.AppendUint64(b, uint64(expiryNanos(e.Expires)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(e.Key)))
	b = append(b, e.Key...)
	b = append(b, e.Value...)
	binary.BigEndian.PutUint32(b[from+4:], entryCRC(b[from:]))
	return b
}

// entryCRC is the CRC of one whole encoded entry.
func entryCRC(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:4], castagnoli), castagnoli, b[entryPrefix:])
}

var (
	errLength = errors.New("impossible entry length")
	errCRC    = errors.New("checksum does not match")
	errEntry  = errors.New("impossible entry")
)

// entryLength returns the size of the whole entry that begins with prefix.
func entryLength(prefix []byte) (int, error) {
	n := binary.BigEndian.Uint32(prefix)
	if n < entryFixed || n > maxLength {
		return 0, errLength
	}
	return entryPrefix + int(n), nil
}

// parseEntry decodes one whole entry. Key and value are views of b.
func parseEntry(b []byte) (entry, error) {
	if n, err := entryLength(b); err != nil || n != len(b) {
		return entry{}, errLength
	}
	if entryCRC(b) != binary.BigEndian.Uint32(b[4:]) {
		return entry{}, errCRC
	}
	f := b[entryPrefix:]
	e := entry{kind: entryType(f[0]), back: binary.BigEndian.Uint32(f[1:])}
	e.Seq = binary.BigEndian.Uint64(f[5:])
	e.Epoch = binary.BigEndian.Uint64(f[13:])
	e.Group = binary.BigEndian.Uint32(f[21:])
	expires := int64(binary.BigEndian.Uint64(f[25:]))
	e.Expires = expiryTime(expires)
	n := int(binary.BigEndian.Uint16(f[33:]))
	rest := f[entryFixed:]
	if n > len(rest) || n > MaxKey || len(rest)-n > MaxValue || expires < 0 || uint64(e.back) > e.Seq {
		return entry{}, errEntry
	}
	e.Key, e.Value = string(rest[:n]), rest[n:]
	switch e.kind {
	case putEntry:
	case deleteEntry:
		if len(e.Value) != 0 {
			return entry{}, errEntry
		}
	case endEntry:
		if n != 0 || len(e.Value) != 8 {
			return entry{}, errEntry
		}
	default:
		return entry{}, errEntry
	}
	return e, nil
}

// endOf returns the end entry of a file with so many records.
func endOf(seq uint64, records int) entry {
	return entry{kind: endEntry, Record: Record{
		Seq: seq, Value: binary.BigEndian.AppendUint64(nil, uint64(records)),
	}}
}

func (e entry) count() uint64 { return binary.BigEndian.Uint64(e.Value) }

// The expiry of a record is kept in Unix nanoseconds; 0 is never.
var lastExpiry = time.Unix(0, math.MaxInt64)

func expiryNanos(t time.Time) int64 {
	switch {
	case t.IsZero() || t.After(lastExpiry):
		return 0
	case t.Unix() < 0 || t.UnixNano() == 0:
		return 1 // long ago
	}
	return t.UnixNano()
}

func expiryTime(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}
