package token

import (
	"math"
	"strings"
	"testing"
)

func newSealer(t testing.TB, clusterID, secret string) *Sealer {
	t.Helper()
	s, err := NewSealer(clusterID, []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const secret = "0123456789abcdef0123456789abcdef"

var tokens = []Token{
	{Mode: Via},
	{Mode: Orig, Group: 1},
	{Mode: Term, Group: 7, Binding: 1},
	{Mode: Dialog, Group: math.MaxUint32, Binding: 0},
	{Mode: Binding, Group: math.MaxUint32, Binding: math.MaxUint64},
}

func TestSealedTokensOpen(t *testing.T) {
	s := newSealer(t, "c1", secret)
	seen := map[string]bool{}
	for _, want := range tokens {
		text := s.Seal(want)
		if len(text) != Size || Size > 40 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			t.Errorf("text %q", text)
		}
		if seen[text] {
			t.Errorf("%q twice", text)
		}
		seen[text] = true
		for _, spelling := range []string{text, strings.ToUpper(text)} {
			if got, ok := s.Open(spelling); !ok || got != want {
				t.Errorf("%q is %+v, %v, want %+v", spelling, got, ok, want)
			}
		}
	}
}

func TestForeignTokensDoNotOpen(t *testing.T) {
	ours := newSealer(t, "c1", secret)
	for _, tt := range []struct {
		name string
		by   *Sealer
	}{
		{"another cluster with the same secret", newSealer(t, "c2", secret)},
		{"another secret", newSealer(t, "c1", secret+"x")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, tok := range tokens {
				if got, ok := ours.Open(tt.by.Seal(tok)); ok {
					t.Errorf("opened as %+v", got)
				}
			}
		})
	}
}

func TestChangedTokensDoNotOpen(t *testing.T) {
	s := newSealer(t, "c1", secret)
	text := s.Seal(Token{Mode: Binding, Group: 3, Binding: 99})
	for i := range text {
		for _, c := range alphabet + "0189.-_ \x00" {
			changed := text[:i] + string(c) + text[i+1:]
			if changed == text {
				continue
			}
			if got, ok := s.Open(changed); ok {
				t.Errorf("%q opened as %+v", changed, got)
			}
		}
	}
	for _, other := range []string{"", text[:Size-1], text + "a", " " + text[1:], strings.Repeat("a", Size), strings.Repeat("\xff", Size)} {
		if got, ok := s.Open(other); ok {
			t.Errorf("%q opened as %+v", other, got)
		}
	}
}

func TestUnknownModesAndVersionsDoNotOpen(t *testing.T) {
	s := newSealer(t, "c1", secret)
	for _, mode := range []Mode{0, modeEnd, 15} {
		if got, ok := s.Open(s.Seal(Token{Mode: mode, Group: 1})); ok {
			t.Errorf("mode %d opened as %+v", mode, got)
		}
	}
	for v := range byte(16) {
		tok := Token{Mode: Dialog, Group: 1}
		if got, ok := s.Open(s.seal(v, tok)); ok != (v == version) {
			t.Errorf("version %d: %+v, %v", v, got, ok)
		}
	}
}

func TestSealerNeedsSecretAndCluster(t *testing.T) {
	for _, tt := range []struct{ cluster, secret string }{{"", secret}, {"c1", ""}, {"c1", "too short"}} {
		if _, err := NewSealer(tt.cluster, []byte(tt.secret)); err != ErrSecret {
			t.Errorf("cluster %q, secret of %d bytes: %v", tt.cluster, len(tt.secret), err)
		}
	}
}

func TestBranches(t *testing.T) {
	s := newSealer(t, "c1", secret)
	tok := s.Seal(Token{Mode: Via, Group: 5})
	tests := []struct {
		name, branch, want string
		ok                 bool
	}{
		{"ours", Branch(tok, "5f1c0d9a"), tok, true},
		{"ours in lower case", strings.ToLower(Branch(tok, "5f1c0d9a")), tok, true},
		{"a hash with dots", Branch("a", "b.c"), "a", true},
		{"no dot", "z9hG4bK776asdhds", "", false},
		{"no token", "z9hG4bK.x", "", false},
		{"no magic cookie", "390skdjuw.x", "", false},
		{"short", "z9h", "", false},
		{"empty", "", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := FromBranch(tt.branch); got != tt.want || ok != tt.ok {
				t.Errorf("got %q, %v, want %q, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestManyGoroutinesShareASealer(t *testing.T) {
	s := newSealer(t, "c1", secret)
	done := make(chan bool)
	for g := range 4 {
		go func() {
			good := true
			for i := range 500 {
				want := Token{Mode: Dialog, Group: uint32(g), Binding: uint64(i)}
				got, ok := s.Open(s.Seal(want))
				good = good && ok && got == want
			}
			done <- good
		}()
	}
	for range 4 {
		if !<-done {
			t.Error("a token did not open")
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	s := newSealer(b, "c1", secret)
	text := s.Seal(Token{Mode: Term, Group: 9, Binding: 8})
	b.ReportAllocs()
	for b.Loop() {
		s.Open(text)
	}
}

func BenchmarkSeal(b *testing.B) {
	s := newSealer(b, "c1", secret)
	b.ReportAllocs()
	for b.Loop() {
		s.Seal(Token{Mode: Term, Group: 9, Binding: 8})
	}
}

// FuzzOpen checks that nothing opens but what Seal writes.
func FuzzOpen(f *testing.F) {
	s := newSealer(f, "c1", secret)
	for _, tok := range tokens {
		f.Add(s.Seal(tok))
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		FromBranch(text)
		tok, ok := s.Open(text)
		if ok && s.Seal(tok) != strings.ToLower(text) {
			t.Fatalf("%q opened as %+v, which is %q", text, tok, s.Seal(tok))
		}
	})
}
