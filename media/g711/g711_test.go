package g711

import (
	"math"
	"testing"
)

func TestKnownLevelsOfBothLaws(t *testing.T) {
	tests := []struct {
		name string
		law  Law
		oct  byte
		pcm  int16
	}{
		{"mu-law positive zero is 0xFF", PCMU, 0xff, 0},
		{"mu-law largest positive level", PCMU, 0x80, 32124},
		{"mu-law largest negative level", PCMU, 0x00, -32124},
		{"mu-law smallest positive step", PCMU, 0xfe, 8},
		{"A-law smallest positive level", PCMA, 0xd5, 8},
		{"A-law smallest negative level", PCMA, 0x55, -8},
		{"A-law largest positive level", PCMA, 0xaa, 32256},
		{"A-law largest negative level", PCMA, 0x2a, -32256},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.law.Decode(nil, []byte{tt.oct}); got[0] != tt.pcm {
				t.Errorf("Decode(%#02x) = %d, want %d", tt.oct, got[0], tt.pcm)
			}
			if got := tt.law.Encode(nil, []int16{tt.pcm}); got[0] != tt.oct {
				t.Errorf("Encode(%d) = %#02x, want %#02x", tt.pcm, got[0], tt.oct)
			}
		})
	}
}

func TestEveryOctetSurvivesDecodeAndEncode(t *testing.T) {
	for _, law := range []Law{PCMU, PCMA} {
		for i := range 256 {
			o := byte(i)
			want := o
			if law == PCMU && o == 0x7f {
				want = 0xff // the negative zero
			}
			pcm := law.Decode(nil, []byte{o})
			if got := law.Encode(nil, pcm)[0]; got != want {
				t.Errorf("%v: Encode(Decode(%#02x)) = %#02x, want %#02x", law, o, got, want)
			}
		}
	}
}

// The levels lie in the middle of their steps (G.711 tables 1 and 2), so that
// no sample is further from its level than half a step of its segment.
func TestNoSampleMovesFurtherThanHalfAStep(t *testing.T) {
	const clipped = 32124 // the largest level of mu-law
	for _, law := range []Law{PCMU, PCMA} {
		for s := math.MinInt16; s <= math.MaxInt16; s++ {
			o := law.Encode(nil, []int16{int16(s)})
			got := int(law.Decode(nil, o)[0])
			seg := int(^o[0]>>4) & 7
			step := 8 << seg
			if law == PCMA {
				seg = int((o[0]^invertA)>>4) & 7
				step = 16 << max(seg-1, 0)
			}
			half := step / 2
			if law == PCMU && abs(s) > clipped {
				half = math.MaxInt16 + 1 - clipped
			}
			if abs(s-got) > half {
				t.Fatalf("%v: %d became %d, further than half of its step of %d", law, s, got, step)
			}
			if s > math.MinInt16 {
				before := int(law.Decode(nil, law.Encode(nil, []int16{int16(s - 1)}))[0])
				if before > got {
					t.Fatalf("%v: %d became %d but %d became %d", law, s-1, before, s, got)
				}
			}
		}
	}
}

func TestSilenceIsTheLevelNearestToZero(t *testing.T) {
	for _, law := range []Law{PCMU, PCMA} {
		if got := law.Decode(nil, []byte{law.Silence()})[0]; got < 0 || got > 8 {
			t.Errorf("%v silence decodes to %d", law, got)
		}
	}
}

func TestEncodeAndDecodeAppend(t *testing.T) {
	b := PCMA.Encode([]byte{1, 2}, []int16{0, 0})
	if len(b) != 4 || b[0] != 1 || b[1] != 2 {
		t.Errorf("Encode gave %v", b)
	}
	p := PCMA.Decode([]int16{7}, b[2:])
	if len(p) != 3 || p[0] != 7 {
		t.Errorf("Decode gave %v", p)
	}
}

func TestLawNamesAndValidity(t *testing.T) {
	if PCMA.String() != "PCMA" || PCMU.String() != "PCMU" {
		t.Errorf("names are %v and %v", PCMA, PCMU)
	}
	if !PCMA.Valid() || !PCMU.Valid() || Law(9).Valid() {
		t.Error("Valid is wrong")
	}
}

func BenchmarkFrame(b *testing.B) {
	pcm, oct := make([]int16, 160), make([]byte, 0, 160)
	for i := range pcm {
		pcm[i] = int16(i * 200)
	}
	for b.Loop() {
		oct = PCMA.Encode(oct[:0], pcm)
		pcm = PCMA.Decode(pcm[:0], oct)
	}
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}
