package node

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"bellwether/appliance/config"
)

// once keeps a second node from running in the same directories. The function
// that it returns lets go of them; so does the end of the process.
func once(cfg *config.Config) (release func(), err error) {
	data, err := lock(cfg.Node.DataDir)
	if err != nil {
		return nil, refused(err, cfg, "node.data_dir", cfg.Node.DataDir)
	}
	run, err := lock(cfg.Node.RunDir)
	if err != nil {
		data.Close()
		return nil, refused(err, cfg, "node.run_dir", cfg.Node.RunDir)
	}
	return func() { run.Close(); data.Close() }, nil
}

func refused(err error, cfg *config.Config, key, dir string) error {
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("a node runs already in %s %s; bellwether status -c %s shows it", key, dir, cfg.File)
	}
	return fmt.Errorf("lock %s: %w", key, err)
}

// lock locks a directory, and leaves nothing in it.
func lock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
