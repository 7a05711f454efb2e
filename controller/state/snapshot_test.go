package state_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"bellwether/controller/state"
)

func snapshot(t testing.TB, s *state.State) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := state.EncodeSnapshot(&buf, s); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func restored(t testing.TB, s *state.State) *state.State {
	t.Helper()
	back, err := state.DecodeSnapshot(bytes.NewReader(snapshot(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	return back
}

// large is a state whose snapshot needs several parts.
func large(t testing.TB) *state.State {
	t.Helper()
	s := small(t)
	for i := range 10 {
		var cmds []state.Command
		for j := range 200 {
			u := fmt.Sprintf("u%d-%d@d", i, j)
			a := assign(u, 0)
			a.RequestID = u
			cmds = append(cmds, a, put(subscriber(u, "sip:"+u, fmt.Sprintf("tel:+49%d%03d", i, j))))
		}
		s = apply(t, s, cmds...)
	}
	return s
}

func TestSnapshotsComeBackEqual(t *testing.T) {
	for name, s := range map[string]*state.State{"empty": state.New(), "small": small(t), "large": large(t)} {
		back := restored(t, s)
		if !bytes.Equal(snapshot(t, s), snapshot(t, back)) {
			t.Errorf("%s: the snapshot of the restored state differs", name)
		}
		// And go on alike.
		cmds := []state.Command{assign("new", 0), node("z", 9), put(subscriber("n@d", "sip:n@d")), unassign("alice@d", 3)}
		a, ra := s.Apply(s.Index()+1, cmds)
		b, rb := back.Apply(s.Index()+1, cmds)
		if !bytes.Equal(snapshot(t, a), snapshot(t, b)) || fmt.Sprint(ra) != fmt.Sprint(rb) {
			t.Errorf("%s: the restored state goes on differently", name)
		}
	}
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	whole := snapshot(t, small(t))
	for n := range whole {
		if _, err := state.DecodeSnapshot(bytes.NewReader(whole[:n])); !errors.Is(err, state.ErrSnapshot) {
			t.Fatalf("cut at %d of %d: %v", n, len(whole), err)
		}
	}
	if _, err := state.DecodeSnapshot(bytes.NewReader(append(bytes.Clone(whole), 0))); !errors.Is(err, state.ErrSnapshot) {
		t.Errorf("a byte too much: %v", err)
	}
	// alice's assignment to a group that is not there.
	lost := bytes.Replace(whole, []byte("galice@d\x03"), []byte("galice@d\x09"), 1)
	if bytes.Equal(lost, whole) {
		t.Fatal("the test does not find the assignment")
	}
	if _, err := state.DecodeSnapshot(bytes.NewReader(lost)); !errors.Is(err, state.ErrSnapshot) {
		t.Errorf("assignment to an unknown group: %v", err)
	}
}

type brokenWriter struct{ room int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

func TestEncodeSnapshotReportsWriteErrors(t *testing.T) {
	for _, room := range []int{0, 70_000} {
		if err := state.EncodeSnapshot(&brokenWriter{room}, large(t)); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("room for %d bytes: %v", room, err)
		}
	}
}

func updates(t testing.TB, s *state.State) []state.Update {
	t.Helper()
	var all []state.Update
	for u, err := range state.SnapshotUpdates(s) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
	return all
}

func batch(t testing.TB, index, prev uint64, cmds ...state.Command) state.Update {
	t.Helper()
	b, err := state.EncodeBatch(cmds)
	if err != nil {
		t.Fatal(err)
	}
	return state.Update{Index: index, Prev: prev, Data: b}
}

func TestAMirrorFollows(t *testing.T) {
	s := large(t)
	var m state.Mirror
	if m.State() == nil || m.State().Index() != 0 {
		t.Fatal("the zero mirror has no empty state")
	}
	parts := updates(t, s)
	if len(parts) < 2 {
		t.Fatalf("the snapshot has %d parts", len(parts))
	}
	for _, u := range parts {
		if len(u.Data) > 512<<10 {
			t.Errorf("a part has %d bytes", len(u.Data))
		}
		wire, err := u.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if u, err = state.DecodeUpdate(wire); err != nil {
			t.Fatal(err)
		}
		if err := m.Apply(u); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(snapshot(t, m.State()), snapshot(t, s)) {
		t.Fatal("the mirror differs after the snapshot")
	}
	u := batch(t, s.Index()+5, s.Index(), assign("new", 0))
	done := make(chan error, 1)
	go func() {
		_, err := m.Wait(t.Context(), func(s *state.State) bool { _, ok := s.Assignment(state.SCSCF, "new"); return ok })
		done <- err
	}()
	if err := m.Apply(u); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want, _ := s.Apply(s.Index()+5, []state.Command{assign("new", 0)})
	if !bytes.Equal(snapshot(t, m.State()), snapshot(t, want)) {
		t.Error("the mirror differs after the batch")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Wait(ended, func(*state.State) bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
}

func TestAMirrorRefusesWhatDoesNotFollow(t *testing.T) {
	parts := updates(t, large(t))
	first, last := parts[0], parts[len(parts)-1]
	cut := last
	cut.Data = last.Data[:len(last.Data)-1]
	early := first
	early.More = false
	garbage := batch(t, 2, 1)
	garbage.Data = []byte{0xff}
	for _, tt := range []struct {
		name string
		send []state.Update
		want error
	}{
		{"a batch of the past", []state.Update{batch(t, 1, 0)}, state.ErrGap},
		{"a batch after a gap", []state.Update{batch(t, 9, 8)}, state.ErrGap},
		{"a batch that is garbage", []state.Update{garbage}, nil},
		{"a snapshot without its beginning", []state.Update{last}, state.ErrSnapshot},
		{"a snapshot that breaks off", append(parts[:len(parts)-1:len(parts)-1], cut), state.ErrSnapshot},
		{"a snapshot that ends too early", []state.Update{early}, state.ErrSnapshot},
		{"a snapshot with a batch in between", []state.Update{first, batch(t, 2, 1), last}, state.ErrSnapshot},
		{"a part after the last", append(parts[:len(parts):len(parts)], last), state.ErrSnapshot},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var m state.Mirror
			for _, u := range updates(t, small(t)) {
				if err := m.Apply(u); err != nil {
					t.Fatal(err)
				}
			}
			var err error
			for _, u := range tt.send {
				if err = m.Apply(u); err != nil {
					break
				}
			}
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			// It keeps a whole state and can begin again.
			if m.State().ClusterID() != "c1" {
				t.Error("the mirror lost its state")
			}
			for _, u := range parts {
				if err := m.Apply(u); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
