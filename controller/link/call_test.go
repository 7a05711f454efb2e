package link

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"
)

func TestCallIsAnswered(t *testing.T) {
	na, nb := unixPair(t)
	a := New(na, nopHandler{}, Options{})
	b := New(nb, handler{call: func(m string, p []byte) ([]byte, error) {
		switch m {
		case "echo":
			return p, nil
		case "huge":
			return make([]byte, MaxCall), nil
		}
		return nil, errors.New("no such method")
	}}, Options{})
	start(t, a, b)

	big := bytes.Repeat([]byte("0123456789abcdef"), (MaxCall-100)/16)
	for _, p := range [][]byte{nil, []byte("x"), big} {
		out, err := a.Call(t.Context(), "echo", p)
		if err != nil || !bytes.Equal(out, p) {
			t.Fatalf("echo of %d bytes: %d bytes, %v", len(p), len(out), err)
		}
	}
	var remote RemoteError
	if _, err := a.Call(t.Context(), "other", nil); !errors.As(err, &remote) || remote != "no such method" {
		t.Errorf("error of the peer: %v", err)
	}
	if _, err := a.Call(t.Context(), "huge", nil); !errors.As(err, &remote) || remote != "answer is too large" {
		t.Errorf("too large answer: %v", err)
	}
	if _, err := a.Call(t.Context(), "echo", make([]byte, MaxCall)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large call: %v", err)
	}
}

func TestCallsRunAtTheSameTimeUpToALimit(t *testing.T) {
	release := make(chan struct{})
	entered := make(chan struct{}, 2)
	na, nb := unixPair(t)
	a := New(na, nopHandler{}, Options{Pending: 3})
	b := New(nb, handler{call: func(string, []byte) ([]byte, error) {
		entered <- struct{}{}
		<-release
		return nil, nil
	}}, Options{Calls: 2})
	start(t, a, b)
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := a.Call(t.Context(), "wait", nil)
			errs <- err
		}()
	}
	<-entered
	<-entered
	if _, err := a.Call(t.Context(), "wait", nil); !errors.Is(err, ErrBusy) {
		t.Errorf("third call: %v, want ErrBusy", err)
	}
	close(release)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestOwnCallsAreBounded(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	na, nb := unixPair(t)
	a := New(na, nopHandler{}, Options{Pending: 1})
	b := New(nb, handler{call: func(string, []byte) ([]byte, error) {
		close(entered)
		<-release
		return nil, nil
	}}, Options{})
	start(t, a, b)
	done := make(chan error, 1)
	go func() {
		_, err := a.Call(t.Context(), "wait", nil)
		done <- err
	}()
	<-entered
	if _, err := a.Call(t.Context(), "wait", nil); !errors.Is(err, ErrFull) {
		t.Errorf("second call: %v, want ErrFull", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	ended := make(chan error, 1)
	entered := make(chan struct{}, 1)
	na, nb := unixPair(t)
	a := New(na, nopHandler{}, Options{})
	b := New(nb, contextHandler{call: func(ctx context.Context) ([]byte, error) {
		entered <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, nil
	}}, Options{})
	start(t, a, b)

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	if _, err := a.Call(ctx, "wait", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled call: %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("handler of the cancelled call: %v", err)
	}

	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := a.Call(ctx, "wait", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("late call: %v", err)
	}
	<-entered
	<-ended // by the deadline that was sent, or by the cancellation

	if _, err := a.Call(ctx, "wait", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("call after the deadline: %v", err)
	}
}
