package config

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestALogIsNotFilledByWhoProvokesLines: of ten thousand lines that differ only
// in what a peer sent some are left, and how many are not is said.
func TestALogIsNotFilledByWhoProvokesLines(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				level := new(slog.LevelVar)
				log := slog.New(Log{Format: format}.Handler(&out, level)).With("node", "n1")
				for i := range 10_000 {
					log.With("role", "i-cscf").Warn("reserve an S-CSCF", "user", fmt.Sprint("u", i))
				}
				if n := strings.Count(out.String(), "\n"); n == 0 || n > 100 {
					t.Errorf("10,000 lines left %d", n)
				}
				out.Reset()
				log.Info("group served")
				for range 200 {
					log.Info("audit: ban added")
				}
				if n := strings.Count(out.String(), "\n"); n != 201 {
					t.Errorf("of other messages, and of what operators did, there are %d lines", n)
				}
				out.Reset()
				<-time.After(time.Minute)
				log.Warn("reserve an S-CSCF")
				log.Warn("reserve an S-CSCF")
				if s := out.String(); strings.Count(s, "\n") != 2 || strings.Count(s, "left_out_before") != 1 || !strings.Contains(s, "9950") {
					t.Errorf("a minute later: %s", s)
				}
				out.Reset()
				level.Set(slog.LevelDebug)
				for range 200 {
					log.Debug("a message")
				}
				if n := strings.Count(out.String(), "\n"); n != 200 {
					t.Errorf("of lines for debugging there are %d", n)
				}
			})
		})
	}
}
