package pki

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// maxFile is far above any file of ours, and keeps a wrong path from being
// read into memory.
const maxFile = 1 << 20

type file struct {
	name    string
	content []byte
	mode    fs.FileMode
}

// writeNew writes files into dir, which it makes if need be, and refuses to
// replace any: it looks at all names before it writes the first.
func writeNew(dir string, files ...file) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(dir, f.name)); err == nil {
			return fmt.Errorf("%s exists and is not overwritten", filepath.Join(dir, f.name))
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, f := range files {
		if err := writeFile(filepath.Join(dir, f.name), f); err != nil {
			return err
		}
	}
	return nil
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
