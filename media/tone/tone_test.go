package tone

import (
	"math"
	"math/rand/v2"
	"testing"

	"bellwether/media/g711"
)

var candidates = []float64{400, 440, 500, 620, 770, 1004, 1209, 1633, 2040, 3140}

func made(hz float64, amplitude int16, n int) []int16 {
	pcm := make([]int16, n)
	NewGenerator(hz, amplitude).Fill(pcm)
	return pcm
}

func TestEveryCandidateIsFoundThroughG711(t *testing.T) {
	for _, law := range []g711.Law{g711.PCMA, g711.PCMU} {
		for _, hz := range candidates {
			pcm := made(hz, 8000, 2*Block)
			pcm = law.Decode(nil, law.Encode(nil, pcm))
			d, ok := Detect(pcm, candidates)
			if !ok || d.Hz != hz || d.SNR < 30 {
				t.Errorf("%v, %g Hz: found %+v, %v; want an SNR of 30 dB", law, hz, d, ok)
			}
			if want := 20 * math.Log10(8000.0/32767); math.Abs(d.Level-want) > 0.5 {
				t.Errorf("%v, %g Hz: level %.2f dB, want %.2f dB", law, hz, d.Level, want)
			}
		}
	}
}

func TestToneOutsideTheCandidatesHasALowSNR(t *testing.T) {
	d, ok := Detect(made(900, 8000, 2*Block), candidates)
	if ok && d.SNR > 0 {
		t.Errorf("900 Hz was taken for %g Hz with %.1f dB", d.Hz, d.SNR)
	}
}

func TestStrongerOfTwoTonesDominates(t *testing.T) {
	pcm, weak := made(620, 8000, 2*Block), made(1004, 4000, 2*Block)
	for i := range pcm {
		pcm[i] += weak[i]
	}
	d, ok := Detect(pcm, candidates)
	if !ok || d.Hz != 620 || math.Abs(d.SNR-6) > 0.5 {
		t.Errorf("found %+v, %v; want 620 Hz with 6 dB", d, ok)
	}
}

func TestNoiseHasALowSNR(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pcm := make([]int16, 5*Block)
	for i := range pcm {
		pcm[i] = int16(r.IntN(16000) - 8000)
	}
	if d, ok := Detect(pcm, candidates); ok && d.SNR > -10 {
		t.Errorf("noise was taken for %+v", d)
	}
}

func TestToneIsFoundAfterJumpsOfPhaseAndLostFrames(t *testing.T) {
	const frame = 160
	pcm := made(1209, 8000, 50*frame)
	for f := range 50 {
		if f%20 == 7 { // 5 % of the frames are silent
			clear(pcm[f*frame : (f+1)*frame])
		}
	}
	pcm = append(pcm[:10*frame:10*frame], pcm[10*frame+33:]...)
	d, ok := Detect(pcm, candidates)
	if !ok || d.Hz != 1209 || d.SNR < 8 {
		t.Errorf("found %+v, %v; want 1209 Hz with 8 dB", d, ok)
	}
}

func TestNothingIsFoundWhereNothingIs(t *testing.T) {
	tests := []struct {
		name       string
		pcm        []int16
		candidates []float64
	}{
		{"no samples", nil, candidates},
		{"less than a block", made(440, 8000, Block-1), candidates},
		{"silence", make([]int16, 2*Block), candidates},
		{"a tone below the quiet level", made(440, 60, 2*Block), candidates},
		{"no candidates", made(440, 8000, 2*Block), nil},
		{"candidates that are no audio frequencies", made(440, 8000, 2*Block), []float64{0, -5, 4000, 9000}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d, ok := Detect(tt.pcm, tt.candidates); ok || d != (Detection{}) {
				t.Errorf("found %+v", d)
			}
		})
	}
}

func TestPhaseGoesOnBetweenFills(t *testing.T) {
	whole := made(1004, 10000, 800)
	g := NewGenerator(1004, 10000)
	parts := make([]int16, 800)
	for i := 0; i < 800; i += 160 {
		g.Fill(parts[i : i+160])
	}
	for i := range whole {
		if d := int(whole[i]) - int(parts[i]); d < -1 || d > 1 {
			t.Fatalf("sample %d is %d in one piece and %d in five", i, whole[i], parts[i])
		}
	}
}

func TestToneKeepsItsLevel(t *testing.T) {
	g := NewGenerator(997, 12000)
	pcm := make([]int16, Rate)
	for range 300 {
		g.Fill(pcm)
	}
	var peak int16
	for _, s := range pcm {
		peak = max(peak, s)
	}
	if peak < 11990 || peak > 12000 {
		t.Errorf("the peak after five minutes is %d, want 12000", peak)
	}
}

func TestGeneratorOfNoAudioFrequencyIsSilent(t *testing.T) {
	for _, g := range []*Generator{{}, NewGenerator(0, 100), NewGenerator(4000, 100), NewGenerator(440, -1)} {
		pcm := []int16{9, 9, 9}
		g.Fill(pcm)
		if pcm[0] != 0 || pcm[1] != 0 || pcm[2] != 0 {
			t.Errorf("filled %v", pcm)
		}
	}
}

func BenchmarkFill(b *testing.B) {
	g, pcm := NewGenerator(1004, 8000), make([]int16, 160)
	for b.Loop() {
		g.Fill(pcm)
	}
}

func BenchmarkDetectOneSecondAmong20(b *testing.B) {
	pcm := made(1004, 8000, Rate)
	hz := make([]float64, 20)
	for i := range hz {
		hz[i] = 400 + 100*float64(i)
	}
	for b.Loop() {
		Detect(pcm, hz)
	}
}

func TestSilenceDoesNotMakeAToneUnclear(t *testing.T) {
	for _, silent := range []int{0, 1, 5, 9} { // of ten blocks
		pcm := make([]int16, 10*Block)
		NewGenerator(1000, 8000).Fill(pcm[silent*Block:])
		d, ok := Detect(pcm, []float64{500, 1000})
		if !ok || d.Hz != 1000 || d.SNR < 40 {
			t.Errorf("%d of 10 blocks silent: heard %+v, %v", silent, d, ok)
		}
	}
	if d, ok := Detect(make([]int16, 10*Block), []float64{500}); ok {
		t.Errorf("heard %+v in silence", d)
	}
}

// A sender that the machine holds up leaves holes, and goes on at another phase.
func TestHolesDoNotMakeAToneUnclear(t *testing.T) {
	var pcm []int16
	g := NewGenerator(1004, 8000)
	for range 10 { // of each 200 ms, 20 ms are lost
		before, after := make([]int16, 480), make([]int16, 960)
		g.Fill(before)
		g.Fill(make([]int16, 37)) // any other phase
		g.Fill(after)
		pcm = append(append(append(pcm, before...), make([]int16, 160)...), after...)
	}
	if d, ok := Detect(pcm, candidates); !ok || d.Hz != 1004 || d.SNR < 30 {
		t.Errorf("found %+v, %v; want 1004 Hz with 30 dB", d, ok)
	}
}
