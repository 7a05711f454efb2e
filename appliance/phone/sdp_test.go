package phone

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"bellwether/media/g711"
)

func sdp(lines ...string) []byte {
	return []byte("v=0\r\no=- 1 1 IN IP4 192.0.2.5\r\ns=-\r\n" + strings.Join(lines, "\r\n") + "\r\n")
}

func TestParseSession(t *testing.T) {
	const c = "c=IN IP4 192.0.2.5"
	tests := []struct {
		name         string
		sdp          []byte
		addr         string // empty: refused; "hold": none
		laws         []g711.Law
		sends, hears bool
		tone         float64
	}{
		{"both laws", sdp(c, "t=0 0", "m=audio 4000 RTP/AVP 8 0 101"), "192.0.2.5:4000", []g711.Law{8, 0}, true, true, 0},
		{"the order of the offer counts", sdp(c, "m=audio 4000 RTP/AVP 0 8"), "192.0.2.5:4000", []g711.Law{0, 8}, true, true, 0},
		{"a connection of the stream", sdp(c, "m=audio 4000 RTP/AVP 8", "c=IN IP4 192.0.2.6/127"), "192.0.2.6:4000", []g711.Law{8}, true, true, 0},
		{"another stream's connection does not count", sdp(c, "m=audio 4000 RTP/AVP 8", "m=video 5000 RTP/AVP 31", "c=IN IP4 192.0.2.7"), "192.0.2.5:4000", []g711.Law{8}, true, true, 0},
		{"video comes first", sdp(c, "m=video 5000 RTP/AVP 31", "a=inactive", "m=audio 4000 RTP/AVP 8"), "192.0.2.5:4000", []g711.Law{8}, true, true, 0},
		{"IPv6", sdp("c=IN IP6 2001:db8::1", "m=audio 4000 RTP/AVP 8"), "[2001:db8::1]:4000", []g711.Law{8}, true, true, 0},
		{"it says its tone", sdp(c, "m=audio 4000 RTP/AVP 8", "a=x-tone:1004"), "192.0.2.5:4000", []g711.Law{8}, true, true, 1004},
		{"a tone that is none", sdp(c, "m=audio 4000 RTP/AVP 8", "a=x-tone:4001"), "192.0.2.5:4000", []g711.Law{8}, true, true, 0},
		{"it only sends", sdp(c, "m=audio 4000 RTP/AVP 8", "a=sendonly"), "192.0.2.5:4000", []g711.Law{8}, true, false, 0},
		{"inactive for the session", sdp(c, "a=inactive", "m=audio 4000 RTP/AVP 8"), "192.0.2.5:4000", []g711.Law{8}, false, false, 0},
		{"on hold in the old way", sdp("c=IN IP4 0.0.0.0", "m=audio 4000 RTP/AVP 8"), "hold", []g711.Law{8}, true, false, 0},
		{"lines end with LF", []byte("v=0\nc=IN IP4 192.0.2.5\nm=audio 4000 RTP/AVP 8\n"), "192.0.2.5:4000", []g711.Law{8}, true, true, 0},
		{"no common codec", sdp(c, "m=audio 4000 RTP/AVP 96 3"), "", nil, false, false, 0},
		{"encrypted only", sdp(c, "m=audio 4000 RTP/SAVP 8"), "", nil, false, false, 0},
		{"the stream is refused", sdp(c, "m=audio 0 RTP/AVP 8"), "", nil, false, false, 0},
		{"no connection", sdp("m=audio 4000 RTP/AVP 8"), "", nil, false, false, 0},
		{"a name for an address", sdp("c=IN IP4 phone.example", "m=audio 4000 RTP/AVP 8"), "", nil, false, false, 0},
		{"port out of range", sdp(c, "m=audio 70000 RTP/AVP 8"), "", nil, false, false, 0},
		{"no stream", sdp(c), "", nil, false, false, 0},
		{"nothing", nil, "", nil, false, false, 0},
		{"too many streams", sdp(strings.Repeat("m=audio 1 RTP/AVP 8\r\n", 17)), "", nil, false, false, 0},
		{"too many lines", sdp(strings.Repeat("a=x\r\n", 300), c, "m=audio 4000 RTP/AVP 8"), "", nil, false, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := parseSession(tt.sdp)
			if tt.addr == "" {
				if err == nil {
					t.Errorf("accepted: %+v", s)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var addr netip.AddrPort
			if tt.addr != "hold" {
				addr = netip.MustParseAddrPort(tt.addr)
			}
			if s.addr != addr || !slices.Equal(s.laws, tt.laws) || s.sends != tt.sends || s.hears != tt.hears || s.toneHz != tt.tone {
				t.Errorf("got %+v", s)
			}
		})
	}
}

func TestAnswerHasAStreamForEachOfTheOffer(t *testing.T) {
	offer, err := parseSession(sdp("c=IN IP4 192.0.2.5", "m=video 5000 RTP/AVP 31", "m=audio 4000 RTP/AVP 0 8", "a=sendonly", "m=audio 4002 RTP/AVP 8"))
	if err != nil {
		t.Fatal(err)
	}
	d := description{addr: netip.MustParseAddrPort("192.0.2.1:6000"), id: 7, toneHz: 440}
	const want = "v=0\r\no=- 7 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n" +
		"m=video 0 RTP/AVP 31\r\n" +
		"m=audio 6000 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\na=ptime:20\r\na=recvonly\r\na=x-tone:440\r\n" +
		"m=audio 0 RTP/AVP 8\r\n"
	if got := string(d.answer(offer)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	const wantOffer = "v=0\r\no=- 7 2 IN IP6 2001:db8::1\r\ns=-\r\nc=IN IP6 2001:db8::1\r\nt=0 0\r\n" +
		"m=audio 6000 RTP/AVP 8 0\r\na=rtpmap:8 PCMA/8000\r\na=rtpmap:0 PCMU/8000\r\na=ptime:20\r\na=sendrecv\r\na=x-tone:440\r\n"
	d.addr = netip.MustParseAddrPort("[2001:db8::1]:6000")
	if got := string(d.offer()); got != wantOffer {
		t.Errorf("got\n%s\nwant\n%s", got, wantOffer)
	}
}

func FuzzSession(f *testing.F) {
	f.Add(sdp("c=IN IP4 192.0.2.5", "m=audio 4000 RTP/AVP 8 0", "a=sendonly", "a=x-tone:620"))
	f.Add(sdp("c=IN IP6 ::1", "m=video 1 RTP/AVP 31", "m=", "m=audio 4000 RTP/AVP 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSession(b)
		if err != nil {
			return
		}
		d := description{addr: netip.MustParseAddrPort("192.0.2.1:6000")}
		answer, err := parseSession(d.answer(s))
		if err != nil {
			t.Fatalf("the answer to %q cannot be read: %v", b, err)
		}
		if len(answer.media) != len(s.media) || answer.audio != s.audio || len(answer.laws) != 1 || answer.laws[0] != s.laws[0] ||
			answer.sends != s.hears || answer.hears != s.sends {
			t.Errorf("%q gave %+v, which was answered %+v", b, s, answer)
		}
	})
}
