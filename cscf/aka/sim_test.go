package aka

import (
	"errors"
	"math"
	"testing"
)

// TS 33.102: a sequence number is SEQ, 43 bits, and IND, five bits (§C.1.1.1).
func TestSequenceNumbersAreSEQAndIND(t *testing.T) {
	for _, tt := range []struct {
		seq  uint64
		ind  int
		want string
	}{
		{0, 0, "000000000000"}, {1, 0, "000000000020"}, {0, 31, "00000000001f"}, {MaxSEQ, 31, "ffffffffffff"},
		{MaxSEQ + 2, 33, "000000000021"}, {0x123456789a, 7, "02468acf1347"},
	} {
		n := NewSQN(tt.seq, tt.ind)
		if n.String() != tt.want || n.SEQ() != tt.seq&MaxSEQ || n.IND() != tt.ind%Inds || sqnOf(n.Bytes()) != n {
			t.Errorf("%d and %d are %s with SEQ %d and IND %d, want %s", tt.seq, tt.ind, n, n.SEQ(), n.IND(), tt.want)
		}
	}
}

// TS 33.102: a SIM accepts what is newer than the last of the same IND, within
// its limits (§C.2).
func TestFreshness(t *testing.T) {
	type step struct {
		seq   uint64
		ind   int
		fresh bool
	}
	for _, tt := range []struct {
		name         string
		delta, limit uint64
		steps        []step
	}{
		{"numbers grow", 0, 0, []step{{5, 0, true}, {6, 0, true}, {6, 0, false}, {5, 0, false}, {100, 0, true}}},
		{"zero is never new", 0, 0, []step{{0, 0, false}, {0, 4, false}}},
		{"two generators do not hinder each other", 0, 0, []step{{100, 1, true}, {90, 2, true}, {95, 1, false}, {95, 2, true}, {101, 2, true}, {101, 1, true}}},
		{"a jump is not believed", 1000, 0, []step{{1000, 0, true}, {2001, 0, false}, {2000, 3, true}, {3000, 0, true}}},
		{"an old number is not, from whomever", 0, 50, []step{{100, 0, true}, {50, 1, false}, {51, 1, true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, _ := example(t)
			sim := &SIM{Milenage: m, Delta: tt.delta, Limit: tt.limit}
			for i, s := range tt.steps {
				highest := sim.SQN()
				v := m.Vector([16]byte{byte(i)}, NewSQN(s.seq, s.ind), [2]byte{0x80})
				r, auts, err := sim.Challenge(v.RAND, v.AUTN)
				switch {
				case s.fresh:
					if err != nil || string(r.RES) != string(v.XRES) || r.CK != v.CK || r.IK != v.IK {
						t.Errorf("%d of %d: %v", s.seq, s.ind, err)
					}
				case !errors.Is(err, ErrSync) || r.RES != nil:
					t.Errorf("%d of %d: %v", s.seq, s.ind, err)
				default:
					if got, ok := m.OpenAUTS(v.RAND, auts); !ok || got != highest {
						t.Errorf("%d of %d: AUTS says %v, %t, want %v", s.seq, s.ind, got, ok, highest)
					}
				}
			}
		})
	}
}

func TestASIMBelievesNobodyElse(t *testing.T) {
	m, _ := example(t)
	sim := &SIM{Milenage: m}
	v := New(Key{1}, Key{2}).Vector([16]byte{3}, NewSQN(9, 0), [2]byte{})
	if r, auts, err := sim.Challenge(v.RAND, v.AUTN); !errors.Is(err, ErrMAC) || r.RES != nil || auts != [AUTSSize]byte{} || sim.SQN() != 0 {
		t.Errorf("%v %x %v, at %v", r, auts, err, sim.SQN())
	}
}

func FuzzChallenge(f *testing.F) {
	m, s := example(f)
	v := m.Vector(block(f, s.rand), NewSQN(math.MaxUint32, 3), [2]byte{0x80})
	f.Add(v.RAND[:], v.AUTN[:])
	f.Fuzz(func(t *testing.T, random, autn []byte) {
		if len(random) != 16 || len(autn) != 16 {
			return
		}
		sim := &SIM{Milenage: m}
		r, auts, err := sim.Challenge([16]byte(random), [16]byte(autn))
		switch {
		case err == nil:
			if len(r.RES) != 8 || sim.SQN() == 0 {
				t.Fatalf("answer %x at %v", r.RES, sim.SQN())
			}
			if _, auts, err = sim.Challenge([16]byte(random), [16]byte(autn)); !errors.Is(err, ErrSync) {
				t.Fatalf("answered twice: %v", err)
			}
			if sqn, ok := m.OpenAUTS([16]byte(random), auts); !ok || sqn != sim.SQN() {
				t.Fatalf("AUTS says %v, %t", sqn, ok)
			}
		case errors.Is(err, ErrSync):
			if _, ok := m.OpenAUTS([16]byte(random), auts); !ok {
				t.Fatal("its AUTS cannot be opened")
			}
		case !errors.Is(err, ErrMAC) || sim.SQN() != 0:
			t.Fatalf("%v at %v", err, sim.SQN())
		}
	})
}
