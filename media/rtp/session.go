package rtp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	pion "github.com/pion/rtp"

	"bellwether/media/g711"
	"bellwether/media/tone"
)

const (
	maxWindow = 10 * time.Second
	maxPacket = 1500 // octets read of a datagram; frames up to 180 ms fit
)

// Session is one running audio session. Its methods may be called by several
// goroutines.
type Session struct {
	clock *Clock
	conn  Conn
	began time.Time
	ended chan struct{} // closed when the reader has ended
	once  sync.Once

	// Of the clock's goroutine.
	header pion.Header
	tone   *tone.Generator

	mu     sync.Mutex
	mute   bool
	remote netip.AddrPort
	law    g711.Law
	sent   uint64
	strays uint64
	locked bool   // ssrc is known
	ssrc   uint32 // of the far end
	count  counter
	window window
}

// frameBuffer is the scratch of one frame.
type frameBuffer struct {
	pcm    [frameSamples]int16
	packet [12 + frameSamples]byte
}

// Start begins a session, which sends its first frame at the clock's next tick
// and receives from now on, including what the socket already holds. It fails
// without a socket, a remote address or a known law; the caller then still
// owns the socket.
func (c *Clock) Start(cfg Config) (*Session, error) {
	switch {
	case cfg.Conn == nil:
		return nil, fmt.Errorf("start rtp session: no socket")
	case !cfg.Remote.IsValid() || cfg.Remote.Port() == 0:
		return nil, fmt.Errorf("start rtp session: remote address %v is not usable", cfg.Remote)
	case !cfg.Law.Valid():
		return nil, fmt.Errorf("start rtp session: payload type %d is not G.711", uint8(cfg.Law))
	}
	if cfg.Window <= 0 {
		cfg.Window = time.Second
	}
	s := &Session{
		clock: c, conn: cfg.Conn, began: time.Now(), ended: make(chan struct{}),
		header: pion.Header{
			Version:        2,
			Marker:         true, // the first packet of a talkspurt (RFC 3551 §4.1)
			SequenceNumber: uint16(rand.Uint32()),
			Timestamp:      rand.Uint32(),
			SSRC:           rand.Uint32(),
		},
		tone:   tone.NewGenerator(cfg.ToneHz, amplitude),
		remote: unmapped(cfg.Remote),
		law:    cfg.Law,
		window: newWindow(int(min(cfg.Window, maxWindow).Seconds() * g711.Rate)),
	}
	go s.read()
	c.add(s)
	return s, nil
}

// Redirect changes the remote address and the law sent, as a new offer or
// answer asks. The counts go on.
func (s *Session) Redirect(remote netip.AddrPort, law g711.Law) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if remote = unmapped(remote); remote.IsValid() && remote.Port() != 0 && remote != s.remote {
		s.remote, s.locked = remote, false
	}
	if law.Valid() {
		s.law = law
	}
}

// Mute stops sending, or goes on with it. The timestamps go on meanwhile.
func (s *Session) Mute(mute bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mute = mute
}

// Stats returns the counts so far.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.count.stats()
	st.Sent, st.Strays = s.sent, s.strays
	return st
}

// PCM returns a copy of the audio received last, at most Config.Window rounded
// up to a power of two of samples. Lost packets are silent in it.
func (s *Session) PCM() []int16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.window.pcm()
}

// Close stops sending and receiving, closes the socket and returns when the
// session's goroutine has ended. Stats and PCM stay readable. It may be called
// again.
func (s *Session) Close() {
	s.once.Do(func() {
		s.clock.remove(s)
		s.conn.Close() // the reader's only way out; nothing to do about an error
	})
	<-s.ended
}

// send sends one frame. Only the clock calls it.
func (s *Session) send(b *frameBuffer) {
	s.mu.Lock()
	remote, law, mute := s.remote, s.law, s.mute
	if !mute {
		s.sent++
	}
	s.mu.Unlock()
	if mute {
		s.skip(1)
		return
	}

	s.header.PayloadType = uint8(law)
	n, err := s.header.MarshalTo(b.packet[:])
	if err != nil {
		return // cannot be: the buffer holds a header without extensions
	}
	s.tone.Fill(b.pcm[:])
	packet := law.Encode(b.packet[:n], b.pcm[:])
	// A datagram that the kernel refuses is one lost, which the far end counts.
	_, _ = s.conn.WriteToUDPAddrPort(packet, remote)
	s.header.Marker = false
	s.header.SequenceNumber++
	s.header.Timestamp += frameSamples
}

// skip leaves out frames whose time has passed.
func (s *Session) skip(frames int) {
	s.header.Timestamp += uint32(frames) * frameSamples
	s.header.Marker = true
}

func (s *Session) read() {
	defer close(s.ended)
	var buf [maxPacket]byte
	var pcm [maxPacket]int16
	var p pion.Packet
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buf[:])
		if err != nil {
			return // closed; UDP sockets that are not connected know no other lasting error
		}
		s.receive(&p, buf[:n], from, time.Since(s.began), pcm[:0])
	}
}

// receive judges and counts one datagram that came at at. p and pcm are scratch.
func (s *Session) receive(p *pion.Packet, b []byte, from netip.AddrPort, at time.Duration, pcm []int16) {
	err := p.Unmarshal(b)
	law := g711.Law(p.PayloadType)

	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || !law.Valid() || p.Version != 2 || len(p.Payload) == 0 ||
		unmapped(from) != s.remote || s.locked && p.SSRC != s.ssrc {
		s.strays++
		return
	}
	s.locked, s.ssrc = true, p.SSRC
	if !s.count.add(p.SequenceNumber) {
		return
	}
	s.count.arrive(p.Timestamp, at)
	s.window.put(p.Timestamp, law.Decode(pcm, p.Payload))
}

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
