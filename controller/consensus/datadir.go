package consensus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// ErrForeign means that a data directory belongs to another node or cluster.
var ErrForeign = errors.New("data directory is not this node's")

const ownerFile = "member.json"

// owner is whose data directory it is.
type owner struct {
	ClusterID string   `json:"cluster_id"`
	Node      string   `json:"node"`
	Members   []string `json:"members"`
	Waiting   bool     `json:"waiting,omitempty"` // the log has not begun: the members may still change
}

// claim makes the directory this member's, or finds that it is.
func claim(dir, clusterID, node string, members []Member) error {
	want := owner{ClusterID: clusterID, Node: node, Waiting: true}
	for _, m := range members {
		want.Members = append(want.Members, m.Name)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("open data directory: %w", err)
	}
	path := filepath.Join(dir, ownerFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		// Files of Raft without it are of nobody knows whom.
		for _, name := range []string{"raft.db", "snapshots"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				return fmt.Errorf("%w: %s holds %s but no %s", ErrForeign, dir, name, ownerFile)
			}
		}
		return write(dir, path, want)
	}
	if err != nil {
		return fmt.Errorf("open data directory: %w", err)
	}
	var have owner
	if err := json.Unmarshal(text, &have); err != nil {
		return fmt.Errorf("open data directory: %s: %w", path, err)
	}
	switch {
	case have.ClusterID != want.ClusterID:
		return fmt.Errorf("%w: %s is of cluster %s, this is cluster %s", ErrForeign, dir, have.ClusterID, want.ClusterID)
	case have.Node != want.Node:
		return fmt.Errorf("%w: %s is node %s's, this is node %s", ErrForeign, dir, have.Node, want.Node)
	case have.Waiting && !slices.Equal(have.Members, want.Members):
		return write(dir, path, want)
	case !slices.Equal(have.Members, want.Members):
		return fmt.Errorf("%s was begun with the controllers %v, the configuration says %v", dir, have.Members, want.Members)
	}
	return nil
}

// settle fixes the members, for the log is about to begin.
func settle(dir string) error {
	path := filepath.Join(dir, ownerFile)
	text, err := os.ReadFile(path)
	var have owner
	if err == nil {
		err = json.Unmarshal(text, &have)
	}
	if err != nil {
		return fmt.Errorf("settle data directory: %w", err)
	}
	if !have.Waiting {
		return nil
	}
	have.Waiting = false
	return write(dir, path, have)
}

func write(dir, path string, o owner) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("claim data directory: %w", err)
	}
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("claim data directory: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("claim data directory: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
