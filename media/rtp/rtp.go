// Package rtp runs audio sessions over UDP: it sends a tone as G.711 frames of
// 20 ms and counts and keeps what the far end sends (RFC 3550, RFC 3551).
//
// It is made for built-in phones: no RTCP, no jitter buffer, no playout, no
// concealment, no encryption. One Clock paces any number of sessions with one
// goroutine; each session has one more that reads its socket.
//
// Invariants: a session sends one frame per 20 ms of the clock, whatever the
// load, and after a stall it catches up by at most catchUp frames. Memory is
// bounded by Config.Window. Whatever arrives on the socket, a session counts
// only packets of its remote address, one synchronisation source and a G.711
// payload type; all others are strays.
package rtp

import (
	"net/netip"
	"time"

	"bellwether/media/g711"
)

// FrameTime is the audio in one packet that a session sends.
const FrameTime = 20 * time.Millisecond

// frameSamples is the number of samples, and of octets, in one frame.
const frameSamples = g711.Rate / 50

// amplitude is the peak of the tones sent, about 12 dB below full scale.
const amplitude = 8000

// Conn is the socket of a session. *net.UDPConn is one.
type Conn interface {
	ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
	Close() error
}

// Config describes one session.
type Config struct {
	Conn   Conn           // the session owns it and closes it
	Remote netip.AddrPort // where to send, and the only source accepted
	Law    g711.Law       // of the packets sent; both laws are received
	ToneHz float64        // the tone sent; 0 sends silence
	Window time.Duration  // of received audio kept; 0 is one second, at most 10 s
}

// Stats counts the packets of a session.
type Stats struct {
	Sent     uint64
	Expected uint64 // by sequence numbers, from the lowest to the highest received (RFC 3550 §A.3)
	Received uint64 // of these, each counted once

	Duplicates uint64        // received again
	Strays     uint64        // not of this session, or not G.711
	Jitter     time.Duration // interarrival jitter (RFC 3550 §6.4.1)
}

// Lost is Expected less Received.
func (s Stats) Lost() uint64 { return s.Expected - s.Received }
