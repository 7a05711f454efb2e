package pki

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxFile is far above any file of ours, and keeps a wrong path from being
// read into memory.
const maxFile = 1 << 20

type file struct {
	name    string
	content []byte
	mode    fs.FileMode
}

// unfinished marks a directory in which writeNew has begun and not ended.
const unfinished = "unfinished"

// writeNew writes files into dir, which it makes if need be, and refuses to
// replace any. The last one appears whole and after the others, so where it is
// all of them are; what an attempt left that was cut short is removed.
func writeNew(dir string, files ...file) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := makeRoom(dir, files, true); err != nil {
		return err
	}
	mark := filepath.Join(dir, unfinished)
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	if err := lock.Sync(); err != nil {
		return err
	}
	last := len(files) - 1
	for _, f := range files[:last] {
		if err := writeFile(filepath.Join(dir, f.name), f); err != nil {
			return err
		}
	}
	path := filepath.Join(dir, files[last].name)
	if err := writeFile(path+newSuffix, files[last]); err != nil {
		return err
	}
	if err := lock.Sync(); err != nil {
		return err
	}
	if err := os.Rename(path+newSuffix, path); err != nil {
		return err
	}
	if err := os.Remove(mark); err != nil {
		return err
	}
	return lock.Sync()
}

// makeRoom makes room for files, and refuses if there is one that an attempt
// which was cut short has not left.
func makeRoom(dir string, files []file, remove bool) error {
	_, err := os.Lstat(filepath.Join(dir, unfinished))
	cut := err == nil
	last := len(files) - 1
	for i := last; i >= 0; i-- {
		path := filepath.Join(dir, files[i].name)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		if i == last || !cut {
			return fmt.Errorf("%s exists and is not overwritten", path)
		}
		if !remove {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	if !remove {
		return nil
	}
	if err := os.Remove(filepath.Join(dir, files[last].name+newSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lockDir keeps other processes from changing the files in dir until the result
// is closed.
func lockDir(dir string) (*os.File, error) {
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return lock, nil
}

func writeFile(path string, f file) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
	if err != nil {
		return err
	}
	_, err = out.Write(f.content)
	if err == nil {
		err = out.Sync()
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		// What is half written is ours, and would block the next attempt.
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func readSmall(path string) ([]byte, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxFile)
	}
	return text, nil
}
