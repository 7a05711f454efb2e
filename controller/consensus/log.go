package consensus

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// raftLogger gives raft's messages to log: its errors as warnings, its warnings
// as information, the rest for debugging. A member that is down makes raft say
// the same several times a second; here it is said once in logPause.
func raftLogger(log *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Off, Output: io.Discard})
	l.RegisterSink(&logSink{log: log.With("component", "raft"), last: make(map[string]time.Time)})
	return l
}

const (
	logPause    = 30 * time.Second
	maxMessages = 512 // raft's messages are a fixed few; its variables are arguments
)

type logSink struct {
	log  *slog.Logger
	mu   sync.Mutex
	last map[string]time.Time
}

// Accept implements hclog.SinkAdapter.
func (s *logSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case hclog.Warn:
		to = slog.LevelInfo
	case hclog.Error:
		to = slog.LevelWarn
	}
	ctx := context.Background()
	if !s.log.Enabled(ctx, to) || to > slog.LevelDebug && !s.due(msg, time.Now()) {
		return
	}
	s.log.Log(ctx, to, msg, args...)
}

func (s *logSink) due(msg string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[msg]; ok && now.Sub(last) < logPause {
		return false
	}
	if len(s.last) >= maxMessages {
		clear(s.last)
	}
	s.last[msg] = now
	return true
}
