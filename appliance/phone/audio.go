package phone

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"bellwether/media/rtp"
	"bellwether/media/tone"
)

const (
	// clearSNR is the signal-to-noise ratio, in dB, from which a tone counts as
	// heard. G.711 leaves more than 30 dB, a tenth of the packets lost 10 dB.
	clearSNR = 6
	// listenWindow is how much of the latest audio is listened to.
	listenWindow = 500 * time.Millisecond
)

// tones are tried beside the phone's own and the far end's, so that a wrong
// tone is named. All lie further apart than the detector's resolution.
var tones = func() (hz []float64) {
	for f := 300.0; f < 3400; f += 150 {
		hz = append(hz, f)
	}
	return hz
}()

// audio is the sound of one call: a socket, and a session once both sides'
// descriptions are known. Its methods are for one goroutine at a time.
type audio struct {
	p       *Phone
	conn    rtp.Conn
	desc    description
	session *rtp.Session
	far     session
	began   time.Time
}

func (p *Phone) openAudio() (*audio, error) {
	conn, addr, err := p.cfg.listen(netip.AddrPortFrom(p.cfg.AudioIP, 0))
	if err != nil {
		return nil, fmt.Errorf("open audio socket: %w", err)
	}
	return &audio{p: p, conn: conn, desc: description{addr: addr, id: rand.Uint32(), toneHz: p.cfg.ToneHz}}, nil
}

// connect begins to play and listen, or follows a new description.
func (a *audio) connect(far session) error {
	a.far = far
	if a.session != nil {
		a.session.Redirect(far.addr, far.laws[0])
		a.session.Mute(!far.hears)
		return nil
	}
	s, err := a.p.clock.Start(rtp.Config{
		Conn: a.conn, Remote: far.addr, Law: far.laws[0],
		ToneHz: float64(a.p.cfg.ToneHz), Window: listenWindow,
	})
	if err != nil {
		return err
	}
	s.Mute(!far.hears)
	a.session, a.began = s, time.Now()
	return nil
}

// close ends the sound and adds what was heard to r. It may be called again.
func (a *audio) close(r *Result) {
	if a.session == nil {
		a.conn.Close() // never used
		return
	}
	a.session.Close()
	st := a.session.Stats()
	r.Talk = time.Since(a.began)
	r.RTPExpected, r.RTPReceived, r.Jitter = st.Expected, st.Received, st.Jitter
	if st.Received == 0 && a.far.sends {
		r.RTPExpected = uint64(r.Talk / rtp.FrameTime)
	}
	r.ToneHz, r.ToneSNR, r.ToneHeard = heard(a.session.PCM(), a.far.toneHz, float64(a.p.cfg.ToneHz))
}

// heard finds the tone that dominates and says whether it is the far end's and
// clear. The phone's own tone is told from it, which would be an echo. From a
// phone that does not say what it plays, any clear tone counts but one's own.
func heard(pcm []int16, far, own float64) (hz, snr float64, ok bool) {
	candidates := make([]float64, 0, len(tones)+2)
	for _, f := range []float64{far, own} {
		if f > 0 {
			candidates = append(candidates, f)
		}
	}
	const near = 2 * tone.Rate / tone.Block
	for _, f := range tones {
		if abs(f-far) > near && abs(f-own) > near {
			candidates = append(candidates, f)
		}
	}
	d, found := tone.Detect(pcm, candidates)
	if !found {
		return 0, 0, false
	}
	ok = d.SNR >= clearSNR && (d.Hz == far || far == 0 && d.Hz != own)
	return d.Hz, d.SNR, ok
}

func abs(f float64) float64 { return max(f, -f) }
