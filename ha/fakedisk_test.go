package ha

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

var errInjected = errors.New("injected disk error")

// fakeDisk is a disk in memory that knows what would survive a power cut.
// Its call number failAt fails; if cut is set, so does every later one.
type fakeDisk struct {
	mu     sync.Mutex
	names  map[string]*inode // as programs see them
	safe   map[string]*inode // as they are after a power cut
	calls  int
	failAt int // 0: never
	cut    bool
	locked bool
	hook   func(op, name string) error // if set, called before each call; may block it or fail it
}

type inode struct {
	data []byte
	safe []byte
}

func newFakeDisk() *fakeDisk {
	return &fakeDisk{names: map[string]*inode{}, safe: map[string]*inode{}}
}

// call counts a call and decides its fate.
func (d *fakeDisk) call(op, name string) error {
	if d.hook != nil {
		if err := d.hook(op, name); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.failAt > 0 && (d.calls == d.failAt || d.cut && d.calls > d.failAt) {
		return errInjected
	}
	return nil
}

// afterPowerCut returns what the next start may find. Without rng that is
// only what was made safe; with it also some of what was not, torn anywhere.
func (d *fakeDisk) afterPowerCut(rng *rand.Rand) *fakeDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := d.safe
	if rng != nil && rng.IntN(2) == 0 {
		names = d.names
	}
	out := newFakeDisk()
	for name, n := range names {
		data := slices.Clone(n.safe)
		if rng != nil && len(n.data) >= len(n.safe) {
			data = tear(rng, n.safe, n.data)
		}
		out.names[name] = &inode{data: data, safe: slices.Clone(data)}
	}
	out.safe = maps.Clone(out.names)
	return out
}

// tear keeps a random part of what was appended, in blocks of any order.
func tear(rng *rand.Rand, safe, data []byte) []byte {
	out := slices.Clone(data[:len(safe)+rng.IntN(len(data)-len(safe)+1)])
	for at := len(safe); at < len(out); {
		n := min(1+rng.IntN(64), len(out)-at)
		if rng.IntN(3) == 0 {
			clear(out[at : at+n])
		}
		at += n
	}
	return out
}

func (d *fakeDisk) MakeDir(dir string) error { return d.call("mkdir", dir) }

func (d *fakeDisk) Lock(dir string) (io.Closer, error) {
	if err := d.call("lock", dir); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locked {
		return nil, ErrLocked
	}
	d.locked = true
	return fakeLock{d}, nil
}

type fakeLock struct{ d *fakeDisk }

func (l fakeLock) Close() error {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.d.locked = false
	return nil
}

func (d *fakeDisk) Names(dir string) ([]string, error) {
	if err := d.call("names", dir); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for name := range d.names {
		out = append(out, filepath.Base(name))
	}
	slices.Sort(out)
	return out, nil
}

func (d *fakeDisk) open(op, name string, create bool) (file, error) {
	if err := d.call(op, name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if create {
		d.names[name] = &inode{}
	}
	n := d.names[name]
	if n == nil {
		return nil, os.ErrNotExist
	}
	return &fakeFile{d: d, name: name, inode: n}, nil
}

func (d *fakeDisk) Open(name string) (file, error)   { return d.open("open", name, false) }
func (d *fakeDisk) Create(name string) (file, error) { return d.open("create", name, true) }
func (d *fakeDisk) Append(name string) (file, error) { return d.open("append", name, false) }

func (d *fakeDisk) Rename(from, to string) error {
	if err := d.call("rename", to); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[to] = d.names[from]
	delete(d.names, from)
	return nil
}

func (d *fakeDisk) Remove(name string) error {
	if err := d.call("remove", name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, name)
	return nil
}

func (d *fakeDisk) SyncDir(dir string) error {
	if err := d.call("syncdir", dir); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.safe = maps.Clone(d.names)
	return nil
}

type fakeFile struct {
	d    *fakeDisk
	name string
	*inode
	at int
}

func (f *fakeFile) Read(p []byte) (int, error) {
	if err := f.d.call("read", f.name); err != nil {
		return 0, err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.at >= len(f.data) {
		return 0, io.EOF
	}
	n := copy(p, f.data[f.at:])
	f.at += n
	return n, nil
}

// Write that fails leaves half of its bytes.
func (f *fakeFile) Write(p []byte) (int, error) {
	err := f.d.call("write", f.name)
	if err != nil {
		p = p[:len(p)/2]
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.data = append(f.data, p...)
	return len(p), err
}

func (f *fakeFile) Truncate(size int64) error {
	if err := f.d.call("truncate", f.name); err != nil {
		return err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.data = slices.Clone(f.data[:size])
	return nil
}

func (f *fakeFile) Sync() error {
	if err := f.d.call("sync", f.name); err != nil {
		return err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.safe = slices.Clone(f.data)
	return nil
}

func (f *fakeFile) Close() error { return nil }

// content returns every file's bytes.
func (d *fakeDisk) content() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]string{}
	for name, n := range d.names {
		out[filepath.Base(name)] = string(n.data)
	}
	return out
}
