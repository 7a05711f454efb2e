package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"bellwether/appliance/supervisor"
	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
)

const (
	maxExits   = 16 // reports that wait for the front; the oldest goes first
	tellAgain  = 100 * time.Millisecond
	tellWithin = time.Minute // for the front to be back
)

// exits reports the ends of child processes to the node's front, which may
// itself be on its way back up.
type exits struct {
	socket string
	log    *slog.Logger
	queue  chan supervisor.Exit // capacity maxExits
}

func newExits(socket string, log *slog.Logger) *exits {
	return &exits{socket: socket, log: log, queue: make(chan supervisor.Exit, maxExits)}
}

// add queues a report. It does not wait.
func (x *exits) add(e supervisor.Exit) {
	for {
		select {
		case x.queue <- e:
			return
		default:
		}
		select {
		case <-x.queue:
		default:
		}
	}
}

// run sends reports, one after the other, until ctx ends.
func (x *exits) run(ctx context.Context) {
	for {
		select {
		case e := <-x.queue:
			x.tell(ctx, e)
		case <-ctx.Done():
			return
		}
	}
}

func (x *exits) tell(ctx context.Context, e supervisor.Exit) {
	within, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	msg := workerlink.Encode(workerlink.ChildExitMsg{Child: e.Child, Reason: e.Cause(), Restarts: e.Restarts, At: e.At})
	for {
		err := x.send(within, msg)
		if err == nil {
			return
		}
		select {
		case <-within.Done():
			if ctx.Err() == nil {
				x.log.Warn("report the end of a process to the front", "child", e.Child, "err", err)
			}
			return
		case <-time.After(tellAgain):
		}
	}
}

func (x *exits) send(ctx context.Context, msg []byte) error {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", x.socket)
	if err != nil {
		return err
	}
	c := link.New(nc, nobody{}, link.Options{})
	done := make(chan error, 1)
	go func() { done <- c.Run() }()
	defer func() { c.Close(); <-done }()
	// A call, not a notification: its answer proves that the front has it.
	_, err = c.Call(ctx, workerlink.ChildExit, msg)
	return err
}

// nobody ignores what a front says to the supervisor.
type nobody struct{}

func (nobody) SIP(*link.Conn, *link.SIP)         {}
func (nobody) Notify(*link.Conn, string, []byte) {}
func (nobody) Call(*link.Conn, string, []byte) ([]byte, error) {
	return nil, errors.New("a supervisor answers no calls")
}
