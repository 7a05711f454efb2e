package joining

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	bookFile = "tokens.json"
	lockFile = "tokens.lock"
	keepFor  = 24 * time.Hour // tokens that are over, so that it can be said what became of one
	maxKept  = 64
	maxBook  = 1 << 20
)

// Longest is the longest time for which a token can be good.
const Longest = 7 * 24 * time.Hour

// Why a token is refused.
const (
	unknownToken = "unknown_token"
	expiredToken = "expired_token"
	usedToken    = "used_token"
	otherNode    = "other_node"
	otherRole    = "other_role"
)

// Entry is a token as the founder knows it: without its secret.
type Entry struct {
	Node    string    `json:"node"`
	Role    string    `json:"role"`
	Hash    string    `json:"hash,omitempty"` // SHA-256 of the secret, in hex
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
	Used    time.Time `json:"used,omitzero"`
}

// State says in one word whether a token can be used.
func (e Entry) State(now time.Time) string {
	switch {
	case !e.Used.IsZero():
		return "used"
	case now.After(e.Expires):
		return "expired"
	}
	return "open"
}

// forgotten tells of tokens whether they are over for long enough.
func forgotten(now time.Time) func(Entry) bool {
	return func(e Entry) bool {
		over := e.Expires
		if !e.Used.IsZero() {
			over = e.Used
		}
		return now.Sub(over) > keepFor
	}
}

// Book is the list of tokens beside the CA, in a file of mode 0600. Several
// processes may work on it: each change is made with a lock on the file.
type Book struct{ Dir string }

// issue writes down a new token for a node and returns its secret. One that
// the node has and did not use is replaced.
func (b Book) issue(node, role string, good time.Duration, now time.Time) (secret [secretSize]byte, err error) {
	if good <= 0 || good > Longest {
		return secret, fmt.Errorf("issue token: it can be good for at most %v", Longest)
	}
	if _, err := rand.Read(secret[:]); err != nil {
		return secret, fmt.Errorf("issue token: %w", err)
	}
	hash := sha256.Sum256(secret[:])
	err = b.change(now, func(all []Entry) ([]Entry, error) {
		all = slices.DeleteFunc(all, func(e Entry) bool { return e.Node == node && e.State(now) == "open" })
		return append(all, Entry{Node: node, Role: role, Hash: hex.EncodeToString(hash[:]), Made: now.UTC(), Expires: now.Add(good).UTC()}), nil
	})
	if err != nil {
		return secret, fmt.Errorf("issue token: %w", err)
	}
	return secret, nil
}

// List returns the tokens, without their hashes.
func (b Book) List() ([]Entry, error) {
	all, err := b.read()
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	all = slices.DeleteFunc(all, forgotten(time.Now()))
	for i := range all {
		all[i].Hash = ""
	}
	return all, nil
}

// Revoke removes the tokens of a node that are still good, and says how many.
func (b Book) Revoke(node string, now time.Time) (n int, err error) {
	err = b.change(now, func(all []Entry) ([]Entry, error) {
		before := len(all)
		all = slices.DeleteFunc(all, func(e Entry) bool { return e.Node == node && e.State(now) == "open" })
		n = before - len(all)
		return all, nil
	})
	if err != nil {
		return 0, fmt.Errorf("revoke token: %w", err)
	}
	return n, nil
}

// redeem uses a token: use is called with it found good, and unless it fails,
// the token is used from then on, whatever becomes of the answer.
func (b Book) redeem(secret []byte, node, role string, now time.Time, use func() error) error {
	hash := sha256.Sum256(secret)
	text := []byte(hex.EncodeToString(hash[:]))
	return b.change(now, func(all []Entry) ([]Entry, error) {
		found := -1
		for i := range all { // all of them, so that the time says nothing
			if subtle.ConstantTimeCompare(text, []byte(all[i].Hash)) == 1 {
				found = i
			}
		}
		if found < 0 {
			return nil, refusef(unknownToken, "the founder does not know this token: it was revoked, replaced by a newer one, is over since yesterday, or is none of its tokens; make one there with 'bellwether cluster token %s'", node)
		}
		e := &all[found]
		switch {
		case e.Node != node:
			return nil, refusef(otherNode, "this token is for node %s, not for node %s; make one on the founder with 'bellwether cluster token %s'", e.Node, node, node)
		case e.Role != role:
			return nil, refusef(otherRole, "this token is for a %s, not for a %s", e.Role, role)
		case e.State(now) == "used":
			return nil, refusef(usedToken, "this token was used at %s, and each is good for one time; make a new one on the founder with 'bellwether cluster token %s'", e.Used.Format(time.DateTime)+" UTC", node)
		case e.State(now) == "expired":
			return nil, refusef(expiredToken, "this token was good until %s; make a new one on the founder with 'bellwether cluster token %s'", e.Expires.Format(time.DateTime)+" UTC", node)
		}
		if err := use(); err != nil {
			return nil, err
		}
		e.Used = now.UTC()
		return all, nil
	})
}

// change reads, changes and writes the file with the lock held.
func (b Book) change(now time.Time, change func([]Entry) ([]Entry, error)) error {
	lock, err := os.OpenFile(filepath.Join(b.Dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	all, err := b.read()
	if err != nil {
		return err
	}
	if all, err = change(all); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, forgotten(now))
	return b.write(all[max(0, len(all)-maxKept):])
}

func (b Book) read() ([]Entry, error) {
	path := filepath.Join(b.Dir, bookFile)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBook))
	if err != nil {
		return nil, err
	}
	var all []Entry
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w; remove it, which revokes all tokens", path, err)
	}
	return all, nil
}

func (b Book) write(all []Entry) error {
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(b.Dir, bookFile)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(b.Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
