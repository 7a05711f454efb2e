package config

import (
	"io"
	"log/slog"
)

// Log says how much is logged and in which form.
type Log struct {
	Level  slog.Level
	Format string // text or json
}

// Handler returns a handler that writes to w in the configured form.
// The level is the caller's, since a reload changes it. Lines that repeat are
// left out, see repeats.
func (l Log) Handler(w io.Writer, level slog.Leveler) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return quieten(slog.NewJSONHandler(w, o))
	}
	return quieten(slog.NewTextHandler(w, o))
}
