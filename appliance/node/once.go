package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"bellwether/appliance/config"
)

// lockFile, in the data directory, is locked while the node runs.
const lockFile = "node.lock"

// once keeps a second node from running with the same data. What it returns
// holds the lock until it is closed, or its process ends in any way.
func once(cfg *config.Config) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(cfg.Node.DataDir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock node.data_dir: %w", err)
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("node %s runs already, with %s; bellwether status -c %s shows it", cfg.Node.Name, cfg.Node.DataDir, cfg.File)
		return nil, errors.Join(err, f.Close())
	default:
		return nil, errors.Join(fmt.Errorf("lock node.data_dir: %w", err), f.Close())
	}
}
