package ha

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// fileSystem is what the journal asks of a disk, so that a test can cut the
// power between any two calls.
type fileSystem interface {
	// MakeDir creates a directory and those above it, unless they are there,
	// and makes them durable.
	MakeDir(dir string) error
	// Lock keeps other processes out until the closer is closed. It writes nothing.
	Lock(dir string) (io.Closer, error)
	Names(dir string) ([]string, error)
	Open(name string) (file, error)   // for reading
	Create(name string) (file, error) // empty, for writing
	Append(name string) (file, error) // as it is, for writing at its end
	Rename(from, to string) error
	Remove(name string) error
	SyncDir(dir string) error
}

type file interface {
	io.ReadWriteCloser
	Truncate(size int64) error
	Sync() error // data and size
}

// disk is the fileSystem of the machine.
type disk struct{}

type diskFile struct{ *os.File }

func (f diskFile) Sync() error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

func openDisk(name string, flag int) (file, error) {
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{f}, nil
}

func (disk) Open(name string) (file, error) { return openDisk(name, os.O_RDONLY) }
func (disk) Create(name string) (file, error) {
	return openDisk(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
}
func (disk) Append(name string) (file, error) { return openDisk(name, os.O_WRONLY|os.O_APPEND) }
func (disk) Rename(from, to string) error     { return os.Rename(from, to) }
func (disk) Remove(name string) error         { return os.Remove(name) }

func (d disk) MakeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := d.MakeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return d.SyncDir(parent)
}

func (disk) Lock(dir string) (io.Closer, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}

func (disk) Names(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, err
}

func (disk) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
