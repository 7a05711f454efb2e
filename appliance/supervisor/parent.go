package supervisor

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// supervised is set in the environment of a child.
const supervised = "BELLWETHER_SUPERVISED"

// Descriptors that a child inherits.
const (
	readyFD = 3 // written by the child
	lifeFD  = 4 // ends with the supervisor
)

// Parent is what a child knows of its supervisor.
type Parent struct{ ready *os.File }

// Attach connects a child with its supervisor. The context that it returns
// ends, beside with ctx, when the supervisor is gone. In a process that was
// started by hand there is no supervisor: the context is ctx, and Ready does
// nothing. Attach must be called once, early, before anything opens files.
func Attach(ctx context.Context) (context.Context, *Parent) {
	if os.Getenv(supervised) == "" {
		return ctx, &Parent{}
	}
	os.Unsetenv(supervised)
	syscall.CloseOnExec(readyFD)
	syscall.CloseOnExec(lifeFD)
	life := os.NewFile(lifeFD, "supervisor")
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		io.Copy(io.Discard, life) // returns when the supervisor is gone
		cancel()
	}()
	return ctx, &Parent{ready: os.NewFile(readyFD, "ready")}
}

// Ready tells the supervisor that the child serves. It may be called once.
func (p *Parent) Ready() error {
	if p.ready == nil {
		return nil
	}
	defer p.ready.Close()
	if _, err := io.WriteString(p.ready, "ready\n"); err != nil {
		return fmt.Errorf("tell the supervisor: %w", err)
	}
	return nil
}

// environment is that of a child: the service manager is the supervisor's
// matter alone.
func environment(base, more []string) []string {
	var env []string
	for _, kv := range base {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", supervised:
		default:
			env = append(env, kv)
		}
	}
	return append(append(env, supervised+"=1"), more...)
}
