package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"time"
)

// Group may use the admin socket, beside root.
const Group = "bellwether"

// Listen opens the unix socket at path for root and for members of Group.
// A socket file that a dead node left is replaced; one that somebody answers
// at is left alone and is an error.
func Listen(path string) (net.Listener, error) {
	l, err := ListenPrivate(path)
	if err != nil {
		return nil, err
	}
	if err := share(path); err != nil {
		l.Close()
		return nil, fmt.Errorf("open socket: %w", err)
	}
	return l, nil
}

// ListenPrivate is Listen for the own user alone.
func ListenPrivate(path string) (net.Listener, error) {
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	// On Linux a socket's file takes the mode that the socket had before bind
	// (unix(7)), so nobody else can connect before share says so.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	return l, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; remove it or choose another run_dir", path)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return fmt.Errorf("another node answers at %s; stop it or choose another run_dir", path)
	} else if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// share lets Group connect, where that group exists and we may give it away.
func share(path string) error {
	g, err := user.LookupGroup(Group)
	if err != nil {
		return nil // not installed as a package: the user's own socket
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return fmt.Errorf("group %s has id %q: %w", Group, g.Gid, err)
	}
	if err := os.Chown(path, -1, gid); err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	}
	return os.Chmod(path, 0o660)
}

// Serve answers h on l until ctx ends; then it ends watches and returns nil.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	base, stop := context.WithCancel(ctx)
	defer stop()
	s := &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		<-base.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(base), time.Second)
		defer cancel()
		if s.Shutdown(ending) != nil {
			s.Close()
		}
	}()
	err := s.Serve(l)
	stop()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", l.Addr(), err)
}
