package ha

import (
	"errors"
	"time"
)

// Errors of a Store, handed to durable or returned by OpenJournal.
var (
	// ErrClosed means that the store was closed before the call.
	ErrClosed = errors.New("store is closed")
	// ErrBacklog means that the disk is too far behind to take more.
	ErrBacklog = errors.New("too much is waiting for the disk")
	// ErrFull means that the records would exceed the memory they may use.
	ErrFull = errors.New("store is full")
	// ErrTooLarge means that a key exceeds MaxKey or a value MaxValue.
	ErrTooLarge = errors.New("record is too large")
	// ErrCorrupt means that stored bytes are not what was written.
	ErrCorrupt = errors.New("journal is damaged")
	// ErrIdentity means that the directory belongs to another cluster or node.
	ErrIdentity = errors.New("journal of another identity")
	// ErrLocked means that another process has the journal open.
	ErrLocked = errors.New("journal is in use by another process")
	// ErrVersion means that the journal was written by a newer version.
	ErrVersion = errors.New("journal format is not known to this version")
)

// Limits of one record, in bytes.
const (
	MaxKey   = 4 << 10
	MaxValue = 1 << 20
)

// Record is one piece of a group's state.
type Record struct {
	Group   uint32
	Key     string
	Epoch   uint64    // epoch of the group when it was written
	Seq     uint64    // position in the store's history, from 1
	Expires time.Time // absolute; zero: never
	Value   []byte    // not to be modified
}

// Expired reports whether the record has ended at t.
func (r Record) Expired(t time.Time) bool {
	return !r.Expires.IsZero() && !r.Expires.After(t)
}

// Store holds records by group and key. It is safe for concurrent use.
type Store interface {
	// Put stores value, which the store copies, under group and key. Range
	// sees it at once. It does not block; durable, which may be nil, is
	// called once, on another goroutine, when the record is safe or with the
	// reason why it is not. durable has to be quick and must not call Close.
	Put(group uint32, key string, value []byte, expires time.Time, durable func(error))
	// Delete removes the record, if there is one; durable as in Put.
	Delete(group uint32, key string, durable func(error))
	// Range calls fn for the records that the group held when Range was
	// called, in no order, until fn returns false. Records past their expiry
	// may be among them. fn may use the store.
	Range(group uint32, fn func(Record) bool)
	// Close makes everything put before it durable and releases the store.
	Close() error
}
