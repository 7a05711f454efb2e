package workerproc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// sick is a store that is broken between two moments.
type sick struct{ begins, ends time.Time }

var errDisk = errors.New("no space left on device")

func (s sick) Err() error {
	if time.Now().Before(s.begins) {
		return nil
	}
	return errDisk // a journal that failed stays so
}

func (s sick) Probe() error {
	if time.Now().Before(s.ends) {
		return errDisk
	}
	return nil
}

func TestAProcessWhoseStoreFailedEndsWhenItsDiskIsInOrderAgain(t *testing.T) {
	for _, tt := range []struct {
		name         string
		begins, ends time.Duration
		want         time.Duration // 0: it goes on
	}{
		{"a store that works", time.Hour, 0, 0},
		{"a disk that stays broken", time.Minute, time.Hour, 0},
		{"a disk that has room again", time.Minute, 5 * time.Minute, 5 * time.Minute},
		{"a write that failed once", time.Minute, 0, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				began := time.Now()
				go watchStore(ctx, sick{began.Add(tt.begins), began.Add(tt.ends)}, cancel)
				select {
				case <-ctx.Done():
					if took := time.Since(began); tt.want == 0 || took < tt.want || took > tt.want+probeEvery || !errors.Is(context.Cause(ctx), ErrStore) {
						t.Errorf("ended after %v, %v", took, context.Cause(ctx))
					}
				case <-time.After(30 * time.Minute):
					if tt.want != 0 {
						t.Error("it goes on")
					}
				}
				cancel(nil)
				synctest.Wait()
			})
		})
	}
}
