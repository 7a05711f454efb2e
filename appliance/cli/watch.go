package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"bellwether/controller/api"
)

// watchAgain is how long a watch waits before it asks a node again that ended.
const watchAgain = time.Second

// watch shows each status that the node tells. Once one was shown it goes on
// also when the node is restarted.
func (a *app) watch(cmd *cobra.Command) error {
	c, err := a.client(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	w := a.watcher()
	for first, lost := true, false; ; {
		err := watchOnce(cmd.Context(), c, func(e api.Event) error {
			first, lost = false, false
			return errors.Join(w.draw(e), a.out.Flush())
		})
		switch {
		case cmd.Context().Err() != nil:
			return nil // it was asked to end
		case first:
			return err
		case !lost:
			lost = true
			if err := errors.Join(w.lost(), a.out.Flush()); err != nil {
				return err
			}
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(watchAgain):
		}
	}
}

// watchOnce watches until the node or ctx ends. The first status must come in
// time.
func watchOnce(ctx context.Context, c *api.Client, draw func(api.Event) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(lookIn, func() { cancel(context.DeadlineExceeded) })
	defer patience.Stop()
	err := c.Watch(ctx, func(e api.Event) error {
		patience.Stop()
		if e.Status == nil {
			return nil
		}
		return draw(e)
	})
	switch {
	case ctx.Err() != nil:
		return late(context.Cause(ctx), lookIn)
	case err == nil:
		return errors.New("the node ended; see its log")
	}
	return err
}

// watcher is a way of showing what a watch sees.
type watcher struct {
	draw func(api.Event) error
	lost func() error // says that the node does not answer any more
}

const goesOn = "the node ended, or was restarted; waiting for it"

func (a *app) watcher() watcher {
	said := func() error {
		_, err := fmt.Fprintln(a.err, "bellwether: "+goesOn)
		return err
	}
	tty, ok := a.direct.(*os.File)
	switch {
	case a.json:
		return watcher{func(e api.Event) error { return json.NewEncoder(a.out).Encode(e.Status) }, said}
	case ok && isTerminal(tty):
		return watcher{func(e api.Event) error { return a.redraw(tty, e) }, func() error {
			_, err := fmt.Fprintf(a.out, "\x1b[H\x1b[2J%s (Ctrl+C ends)\n\n%s\n", stamp(time.Now()), goesOn)
			return err
		}}
	}
	return watcher{a.lines(), said}
}

// redraw fills a terminal with the status: the cluster and its alarms first,
// and of the rest what there is room for.
func (a *app) redraw(tty *os.File, e api.Event) error {
	width, height := size(tty)
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s (Ctrl+C ends)\n\n", stamp(e.Time))
	head(&text, *e.Status)
	fmt.Fprintln(&text)
	if len(e.Status.Alarms) > 0 {
		printAlarms(&text, e.Status.Alarms)
		fmt.Fprintln(&text)
	}
	if err := printNodes(&text, e.Status.Nodes); err != nil {
		return err
	}
	fmt.Fprintln(&text)
	if err := printWorkers(&text, e.Status.Workers); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimRight(fold(text.String(), width), "\n"), "\n")
	if over := len(lines) - (height - 1); over > 0 {
		lines = append(lines[:height-2], fmt.Sprintf("... and %d more lines: make the window higher", over+1))
	}
	_, err := fmt.Fprintf(a.out, "\x1b[H\x1b[2J%s\n", strings.Join(lines, "\n"))
	return err
}

// size is that of a terminal, in columns and lines, or what most have at least.
func size(tty *os.File) (width, height int) {
	w, err := unix.IoctlGetWinsize(int(tty.Fd()), unix.TIOCGWINSZ)
	if err != nil || w.Col < 20 || w.Row < 4 {
		return 80, 24
	}
	return int(w.Col), int(w.Row)
}

// lines prints a status in a line, unless it would be the same as the last, and
// a line for each alarm that begins or is over.
func (a *app) lines() func(api.Event) error {
	last := ""
	alarms := map[string]api.Alarm{}
	return func(e api.Event) error {
		var out strings.Builder
		say := func(format string, args ...any) { fmt.Fprintf(&out, stamp(e.Time)+": "+format+"\n", args...) }
		if text := oneLine(*e.Status); text != last {
			last = text
			say("%s", text)
		}
		now := map[string]api.Alarm{}
		for _, al := range e.Status.Alarms {
			now[al.Code] = al
			if _, known := alarms[al.Code]; !known {
				say("%s", alarmText(al))
			}
		}
		for _, al := range sortedAlarms(alarms) {
			if _, still := now[al.Code]; !still {
				say("over: %s", clean(al.Text))
			}
		}
		alarms = now
		_, err := io.WriteString(a.out, out.String())
		return err
	}
}

func oneLine(s api.Status) string {
	nodes, workers := 0, 0
	for _, n := range s.Nodes {
		if n.Connected {
			nodes++
		}
	}
	for _, w := range s.Workers {
		if w.Connected {
			workers++
		}
	}
	return fmt.Sprintf("%s, nodes %d of %d, workers %d of %d, users %d, calls %d, alarms %d",
		leader(s), nodes, len(s.Nodes), workers, len(s.Workers), s.Users, s.Calls, len(s.Alarms))
}
