package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Notify tells systemd a state (sd_notify(3)); without systemd it does nothing.
func Notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("systemd was not notified", "error", err)
	}
}

// Watchdog pings systemd at half of the interval that it asks for, as long as
// alive holds, until ctx ends. Without a watchdog it returns at once.
func Watchdog(ctx context.Context, log *slog.Logger, alive func() bool) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("systemd's watchdog is not served", "error", err)
		return
	}
	if interval <= 0 {
		return
	}
	tick := time.NewTicker(interval / 2)
	defer tick.Stop()
	for {
		if alive() {
			Notify(log, daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Reloads delivers each SIGHUP until ctx ends, which closes the channel; several
// that come at once count as one.
func Reloads(ctx context.Context) <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	context.AfterFunc(ctx, func() {
		signal.Stop(c) // after which nothing more is sent
		close(c)
	})
	return c
}

// reloading is the state that must precede READY=1 when a reload ends.
func reloading() string {
	return fmt.Sprintf("%s\n%s", daemon.SdNotifyReloading, daemon.SdNotifyMonotonicUsec())
}
