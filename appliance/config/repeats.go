package config

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// How many lines with the same message a process logs: at once, and then on
// average. Whoever can provoke a line by sending something must not fill a disk.
const (
	repeatsAtOnce = 50
	repeatEvery   = time.Second
	maxMessages   = 512 // that are told apart; messages are texts of ours, so there are fewer
	auditPrefix   = "audit: "
)

// repeats leaves out lines whose message was logged too often of late, whatever
// their attributes. The next line that is logged says how many were left out.
// What is for debugging, and what operators did, is always logged.
type repeats struct {
	next slog.Handler
	seen *seenMessages
}

type seenMessages struct {
	mu  sync.Mutex // nothing slow is done with it held
	all map[string]*seenMessage
}

type seenMessage struct {
	full    time.Time // when it may be logged repeatsAtOnce times again
	leftOut int
}

func quieten(next slog.Handler) slog.Handler {
	return repeats{next, &seenMessages{all: make(map[string]*seenMessage)}}
}

// take says whether a message is logged, and how many were not before it.
func (s *seenMessages) take(message string, now time.Time) (ok bool, leftOut int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.all[message]
	if m == nil {
		if len(s.all) >= maxMessages {
			clear(s.all)
		}
		m = new(seenMessage)
		s.all[message] = m
	}
	if m.full.Before(now) {
		m.full = now
	}
	if m.full.Sub(now) > (repeatsAtOnce-1)*repeatEvery {
		m.leftOut++
		return false, 0
	}
	m.full = m.full.Add(repeatEvery)
	leftOut, m.leftOut = m.leftOut, 0
	return true, leftOut
}

// Enabled implements slog.Handler.
func (h repeats) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h repeats) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && !strings.HasPrefix(r.Message, auditPrefix) {
		ok, leftOut := h.seen.take(r.Message, r.Time)
		if !ok {
			return nil
		}
		if leftOut > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("left_out_before", leftOut))
		}
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h repeats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return repeats{h.next.WithAttrs(attrs), h.seen}
}

// WithGroup implements slog.Handler.
func (h repeats) WithGroup(name string) slog.Handler { return repeats{h.next.WithGroup(name), h.seen} }
