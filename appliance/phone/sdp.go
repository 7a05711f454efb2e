package phone

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"bellwether/media/g711"
)

// session is what a phone needs of a session description (RFC 8866): one audio
// stream of G.711.
type session struct {
	addr   netip.AddrPort // where the other side wants its audio; invalid while on hold
	laws   []g711.Law     // offered or accepted, best first
	sends  bool           // the other side may send
	hears  bool           // the other side wants to hear
	toneHz float64        // the tone that it plays, if it says so; 0 otherwise
	media  []string       // the values of all m= lines
	audio  int            // which of them is the stream
}

const (
	// toneAttribute tells the far end which tone will be played. Phones that do
	// not know it ignore it (RFC 8866 §6).
	toneAttribute = "x-tone"
	maxMedia      = 16
	maxSDPLines   = 256
)

var errNoAudio = errors.New("no audio stream of PCMA or PCMU over RTP/AVP")

// parseSession reads an offer or answer.
func parseSession(b []byte) (session, error) {
	s := session{audio: -1, sends: true, hears: true}
	var host string
	lines := strings.Split(string(b), "\n")
	if len(lines) > maxSDPLines {
		return s, fmt.Errorf("parse sdp: %d lines", len(lines))
	}
	var port uint16
	for _, line := range lines {
		kind, value, ok := strings.Cut(strings.TrimSuffix(line, "\r"), "=")
		if !ok {
			continue
		}
		here := len(s.media) == 0 || s.audio == len(s.media)-1 // session level, or the audio stream's
		switch {
		case kind == "m":
			if len(s.media) == maxMedia {
				return s, fmt.Errorf("parse sdp: more than %d streams", maxMedia)
			}
			s.media = append(s.media, value)
			if p, laws := parseAudio(value); s.audio < 0 && len(laws) > 0 {
				s.audio, port, s.laws = len(s.media)-1, p, laws
			}
		case kind == "c" && here:
			if f := strings.Fields(value); len(f) == 3 && f[0] == "IN" {
				host, _, _ = strings.Cut(f[2], "/")
			}
		case kind == "a" && here:
			s.attribute(value)
		}
	}
	if s.audio < 0 {
		return s, errNoAudio
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return s, fmt.Errorf("parse sdp: connection address %q is not literal", host)
	}
	if ip.IsUnspecified() { // how RFC 2543 put a call on hold
		s.hears = false
	} else {
		s.addr = netip.AddrPortFrom(ip.Unmap(), port)
	}
	return s, nil
}

// parseAudio reads an m= line: its port and laws, none if it is not for us.
func parseAudio(value string) (port uint16, laws []g711.Law) {
	f := strings.Fields(value)
	if len(f) < 4 || f[0] != "audio" || f[2] != "RTP/AVP" && f[2] != "RTP/AVPF" {
		return 0, nil
	}
	n, err := strconv.ParseUint(f[1], 10, 16)
	if err != nil || n == 0 {
		return 0, nil
	}
	for _, pt := range f[3:] {
		law, err := strconv.ParseUint(pt, 10, 8)
		if err == nil && g711.Law(law).Valid() && !slices.Contains(laws, g711.Law(law)) {
			laws = append(laws, g711.Law(law))
		}
	}
	return uint16(n), laws
}

func (s *session) attribute(value string) {
	switch name, arg, _ := strings.Cut(value, ":"); name {
	case "sendrecv":
		s.sends, s.hears = true, true
	case "sendonly":
		s.sends, s.hears = true, false
	case "recvonly":
		s.sends, s.hears = false, true
	case "inactive":
		s.sends, s.hears = false, false
	case toneAttribute:
		if hz, err := strconv.ParseUint(arg, 10, 12); err == nil && hz < 4000 {
			s.toneHz = float64(hz)
		}
	}
}

// description is the phone's own side of a session.
type description struct {
	addr    netip.AddrPort // of its audio socket
	id      uint32
	version uint32 // grows with each one sent
	toneHz  int
}

// offer offers both laws.
func (d *description) offer() []byte {
	return d.write([]string{audioLine(d.addr.Port(), g711.PCMA, g711.PCMU)}, "sendrecv")
}

// answer accepts the first law and the direction of an offer and refuses all
// other streams (RFC 3264 §6).
func (d *description) answer(offer session) []byte {
	var media []string
	for i, m := range offer.media {
		if i == offer.audio {
			media = append(media, audioLine(d.addr.Port(), offer.laws[0]))
			continue
		}
		f := strings.Fields(m)
		if len(f) > 1 {
			f[1] = "0"
		}
		media = append(media, strings.Join(f, " "))
	}
	direction := "inactive"
	switch {
	case offer.sends && offer.hears:
		direction = "sendrecv"
	case offer.sends:
		direction = "recvonly"
	case offer.hears:
		direction = "sendonly"
	}
	return d.write(media, direction)
}

func audioLine(port uint16, laws ...g711.Law) string {
	line := fmt.Sprintf("audio %d RTP/AVP", port)
	for _, l := range laws {
		line += fmt.Sprintf(" %d", uint8(l))
	}
	return line
}

func (d *description) write(media []string, direction string) []byte {
	d.version++
	family := "IP4"
	if d.addr.Addr().Is6() {
		family = "IP6"
	}
	ip := d.addr.Addr()
	var b strings.Builder
	fmt.Fprintf(&b, "v=0\r\no=- %d %d IN %s %s\r\ns=-\r\nc=IN %s %s\r\nt=0 0\r\n", d.id, d.version, family, ip, family, ip)
	for _, m := range media {
		fmt.Fprintf(&b, "m=%s\r\n", m)
		if !strings.HasPrefix(m, fmt.Sprintf("audio %d ", d.addr.Port())) {
			continue
		}
		for _, l := range []g711.Law{g711.PCMA, g711.PCMU} {
			if slices.Contains(strings.Fields(m)[3:], strconv.Itoa(int(l))) {
				fmt.Fprintf(&b, "a=rtpmap:%d %v/8000\r\n", uint8(l), l)
			}
		}
		fmt.Fprintf(&b, "a=ptime:20\r\na=%s\r\n", direction)
		if d.toneHz > 0 {
			fmt.Fprintf(&b, "a=%s:%d\r\n", toneAttribute, d.toneHz)
		}
	}
	return []byte(b.String())
}
