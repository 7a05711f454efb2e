// Package tone makes sine tones in 8 kHz linear PCM and finds which of a set
// of frequencies dominates in it.
//
// It tells one test call from another by ear: each phone plays its own tone,
// and the far end says which one it heard and how clean it was. It is not a
// DTMF detector: it looks for one lasting tone and does not time its edges.
// Nothing here holds state except a Generator's phase.
package tone

import "math"

// Rate is the sampling rate, in Hz.
const Rate = 8000

// Block is the number of samples (100 ms) over which Detect sums coherently.
// Frequencies closer together than Rate/Block = 10 Hz are not told apart; a
// jump of phase, such as a lost packet leaves, costs one block at most.
const Block = Rate / 10

// Generator makes one sine tone whose phase goes on from call to call.
// The zero value is silent.
type Generator struct {
	amplitude float64
	re, im    float64 // the phasor
	cos, sin  float64 // its turn per sample
}

// NewGenerator returns a generator of a tone of hz, which must be within
// (0, Rate/2), at peak amplitude, of 32767 at most. It is silent otherwise.
func NewGenerator(hz float64, amplitude int16) *Generator {
	if hz <= 0 || hz >= Rate/2 || amplitude <= 0 {
		return &Generator{}
	}
	sin, cos := math.Sincos(2 * math.Pi * hz / Rate)
	return &Generator{amplitude: float64(amplitude), re: 1, cos: cos, sin: sin}
}

// Fill writes the next len(pcm) samples of the tone.
func (g *Generator) Fill(pcm []int16) {
	re, im := g.re, g.im
	for i := range pcm {
		pcm[i] = int16(math.Round(g.amplitude * im))
		re, im = re*g.cos-im*g.sin, re*g.sin+im*g.cos
	}
	// Rounding errors would let the phasor grow or shrink over hours.
	if m := math.Hypot(re, im); m > 0 {
		re, im = re/m, im/m
	}
	g.re, g.im = re, im
}

// Detection says which tone was found.
type Detection struct {
	Hz    float64 // the dominating one of the candidates; 0 if there was nothing to hear
	Level float64 // its power in dB below that of a full-scale sine; 0 or less
	SNR   float64 // its power over all the rest, in dB, within ±60
}

// Quiet is the level, in dB of a full-scale sine, below which Detect hears nothing.
const Quiet = -50

// Detect finds which of the candidate frequencies (Hz) has most power in pcm,
// by the Goertzel algorithm over blocks whose powers are added up. Blocks that
// are quieter than Quiet say nothing, and while there are others, nor do those
// with a hole: silence between words, lost packets, or a sender that was held
// up do not make a tone unclear. It reports false if no block is louder than
// Quiet, or if there are no candidates. The caller judges Detection.SNR: a
// wrong tone or noise gives some candidate the most power, but a low SNR.
func Detect(pcm []int16, candidates []float64) (Detection, bool) {
	var total float64
	var blocks, whole [][]int16
	for b := 0; b+Block <= len(pcm); b += Block {
		block := pcm[b : b+Block]
		var sum float64
		for _, s := range block {
			sum += float64(s) * float64(s)
		}
		if decibel(sum/Block, fullScale) < Quiet {
			continue
		}
		blocks = append(blocks, block)
		if !holed(block) {
			whole = append(whole, block)
		}
	}
	if len(whole) > 0 {
		blocks = whole
	}
	if len(blocks) == 0 {
		return Detection{}, false
	}
	for _, block := range blocks {
		for _, s := range block {
			total += float64(s) * float64(s) / Block
		}
	}
	total /= float64(len(blocks))

	var best Detection
	var power float64
	for _, hz := range candidates {
		var p float64
		for _, block := range blocks {
			p += goertzel(block, hz)
		}
		if p /= float64(len(blocks)); p > power {
			best.Hz, power = hz, p
		}
	}
	if power == 0 {
		return Detection{}, false
	}
	best.Level = min(decibel(power, fullScale), 0)
	best.SNR = decibel(power, total-power)
	return best, true
}

// hole is how many samples of silence (10 ms) make a block useless: its tone
// begins anew behind them, at any phase.
const hole = Rate / 100

func holed(block []int16) bool {
	silent := 0
	for _, s := range block {
		if silent++; s != 0 {
			silent = 0
		}
		if silent == hole {
			return true
		}
	}
	return false
}

const fullScale = 32767.0 * 32767.0 / 2

// goertzel returns the mean power of the component of pcm at hz.
func goertzel(pcm []int16, hz float64) float64 {
	if hz <= 0 || hz >= Rate/2 {
		return 0
	}
	k := 2 * math.Cos(2*math.Pi*hz/Rate)
	var s1, s2 float64
	for _, x := range pcm {
		s1, s2 = float64(x)+k*s1-s2, s1
	}
	n := float64(len(pcm))
	return 2 * (s1*s1 + s2*s2 - k*s1*s2) / (n * n)
}

// decibel returns the ratio a/b in dB, within ±60.
func decibel(a, b float64) float64 {
	const limit = 60
	if b <= 0 {
		return limit
	}
	if a <= 0 {
		return -limit
	}
	return max(-limit, min(limit, 10*math.Log10(a/b)))
}
