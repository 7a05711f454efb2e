package supervisor

import (
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Exit is the end of a child that nobody asked for.
type Exit struct {
	Child    string
	PID      int
	Code     int            // exit code; -1 if a signal ended it
	Signal   syscall.Signal // 0 if it exited by itself
	At       time.Time
	Ran      time.Duration
	Output   []string      // the last lines that it wrote, at most 20
	Restarts int           // exits of this child since the supervisor started, with this one
	Pause    time.Duration // until it is started again
}

func exitOf(name string, p *os.ProcessState) Exit {
	e := Exit{Child: name, PID: p.Pid(), Code: p.ExitCode()}
	if ws, ok := p.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal()
	}
	return e
}

// Cause is how it ended, such as "exit code 1" or "signal SIGKILL".
func (e Exit) Cause() string {
	if e.Signal != 0 {
		return "signal " + unix.SignalName(e.Signal)
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// logLines of the output go into the log, where all of it stands already.
const logLines = 3

// LogValue holds what a log line needs.
func (e Exit) LogValue() slog.Value {
	last := e.Output[max(0, len(e.Output)-logLines):]
	return slog.GroupValue(
		slog.String("child", e.Child), slog.Int("pid", e.PID), slog.String("cause", e.Cause()),
		slog.Duration("ran", e.Ran.Round(time.Millisecond)), slog.Int("restarts", e.Restarts),
		slog.Duration("pause", e.Pause), slog.Any("output", last),
	)
}
