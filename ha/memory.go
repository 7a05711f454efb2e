package ha

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// MemoryStore is a Store that forgets everything when the process ends.
type MemoryStore struct {
	mu      sync.Mutex
	wake    sync.Cond
	table   *table
	seq     uint64
	pending []func(error)
	closed  bool
	done    chan struct{}
}

// Memory returns a Store without a disk, for tests and for running without
// one: what is put is at once as durable as it will ever be. Close ends its
// goroutine.
func Memory() *MemoryStore {
	m := &MemoryStore{table: newTable(), done: make(chan struct{})}
	m.wake.L = &m.mu
	go m.notify()
	return m
}

// notify calls the durable functions in order.
func (m *MemoryStore) notify() {
	defer close(m.done)
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		for len(m.pending) == 0 {
			if m.closed {
				return
			}
			m.wake.Wait()
		}
		batch := m.pending
		m.pending = nil
		m.mu.Unlock()
		for _, durable := range batch {
			durable(nil)
		}
		m.mu.Lock()
	}
}

// Put implements Store.
func (m *MemoryStore) Put(group uint32, key string, value []byte, expires time.Time, durable func(error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := Record{
		Group: group, Key: key, Seq: m.seq + 1, Expires: expiryTime(expiryNanos(expires)), Value: value,
	}
	err := m.refusal(key, value)
	if err == nil && m.table.bytes+m.table.growth(r) > defaultMaxBytes {
		err = ErrFull
	}
	if err != nil {
		refuse(durable, err)
		return
	}
	m.seq++
	r.Key, r.Value = strings.Clone(key), slices.Clone(value)
	m.table.put(r)
	m.promise(durable)
}

// Delete implements Store.
func (m *MemoryStore) Delete(group uint32, key string, durable func(error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refusal(key, nil); err != nil {
		refuse(durable, err)
		return
	}
	m.seq++
	m.table.remove(group, key)
	m.promise(durable)
}

func (m *MemoryStore) refusal(key string, value []byte) error {
	if m.closed {
		return ErrClosed
	}
	return checkSize(key, value)
}

func (m *MemoryStore) promise(durable func(error)) {
	if durable != nil {
		m.pending = append(m.pending, durable)
		m.wake.Signal()
	}
}

// Range implements Store.
func (m *MemoryStore) Range(group uint32, fn func(Record) bool) {
	m.mu.Lock()
	v := m.table.freeze(group)
	m.mu.Unlock()
	v.each(fn)
}

// Close implements Store.
func (m *MemoryStore) Close() error {
	m.mu.Lock()
	m.closed = true
	m.wake.Broadcast()
	m.mu.Unlock()
	<-m.done
	return nil
}

func checkSize(key string, value []byte) error {
	if len(key) > MaxKey || len(value) > MaxValue {
		return ErrTooLarge
	}
	return nil
}

// refuse tells a caller on a goroutine of its own, since Put must not.
func refuse(durable func(error), err error) {
	if durable != nil {
		go durable(err)
	}
}
