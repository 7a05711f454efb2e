package transaction

import (
	"net/netip"
	"strings"
	"testing"

	"bellwether/cscf/sipmsg"
)

func TestResponsesGoBackByViaAndFlow(t *testing.T) {
	const source = "198.51.100.1:5062"
	at := func(remote string) Peer { return wire(sipmsg.UDP, remote, 0) }
	for _, c := range []struct {
		name, via string
		from, to  Peer
		received  string // "" for none
		rport     string
	}{
		{"rport: source address and port, from the receiving socket", "SIP/2.0/UDP 10.0.0.1:5070;rport",
			at(source), at(source), "198.51.100.1", "5062"},
		{"rport with a false value is overwritten", "SIP/2.0/UDP 10.0.0.1;rport=1;received=192.0.2.66",
			at(source), at(source), "198.51.100.1", "5062"},
		{"rport though sent-by is right: received is written too", "SIP/2.0/UDP 198.51.100.1:5062;rport",
			at(source), at(source), "198.51.100.1", "5062"},
		{"no rport: received address, port of sent-by", "SIP/2.0/UDP 10.0.0.1:5070",
			at(source), at("198.51.100.1:5070"), "198.51.100.1", ""},
		{"no rport, no port: 5060", "SIP/2.0/UDP ua.test",
			at(source), at("198.51.100.1:5060"), "198.51.100.1", ""},
		{"over UDP the default is 5060, whatever the Via claims", "SIP/2.0/TLS ua.test",
			at(source), at("198.51.100.1:5060"), "198.51.100.1", ""},
		{"sent-by is the source: no received", "SIP/2.0/UDP 198.51.100.1:5062",
			at(source), at(source), "", ""},
		{"a false received is removed", "SIP/2.0/UDP 198.51.100.1:5062;received=192.0.2.66",
			at(source), at(source), "", ""},
		{"maddr is not obeyed", "SIP/2.0/UDP 198.51.100.1:5062;maddr=224.0.1.75",
			at(source), at(source), "", ""},
		{"IPv6 sent-by in brackets is the source", "SIP/2.0/UDP [2001:db8::1]:5062",
			at("[2001:db8::1]:5062"), at("[2001:db8::1]:5062"), "", ""},
		{"IPv6 received without brackets", "SIP/2.0/UDP [2001:db8::2]:5062",
			at("[2001:db8::1]:9"), at("[2001:db8::1]:5062"), "2001:db8::1", ""},
		{"TCP: the same connection", "SIP/2.0/TCP 10.0.0.1:5070", tina, tina, "198.51.100.9", "40000"},
		{"TCP: the same connection, though sent-by is right", "SIP/2.0/TCP 198.51.100.9", tina, tina, "198.51.100.9", "40000"},
		{"IPv6 over TCP", "SIP/2.0/TCP [2001:db8::2]", wire(sipmsg.TCP, "[2001:db8::1]:40001", 3), wire(sipmsg.TCP, "[2001:db8::1]:40001", 3), "2001:db8::1", "40001"},
		{"IPv4 that came as IPv6", "SIP/2.0/UDP 198.51.100.1:5062", at("[::ffff:198.51.100.1]:5062"), at("[::ffff:198.51.100.1]:5062"), "", ""},
		{"an engine: back to it, its Via untouched", "SIP/2.0/UDP 10.0.0.1:5070;rport", near, near, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = func(r *Request) { r.Reply(200, "", nil) }
				w.receive(c.from, call{method: "OPTIONS", via: c.via}.String())
				if len(w.sent) != 1 {
					t.Fatalf("%d responses", len(w.sent))
				}
				if got := w.sent[0].to; got != c.to {
					t.Errorf("the response goes to %v, want %v", got, c.to)
				}
				via, _ := w.sent[0].m.TopVia()
				if got, _ := via.Params.Value("received"); got != c.received {
					t.Errorf("received is %q, want %q", got, c.received)
				}
				if got, _ := via.Params.Value("rport"); got != c.rport {
					t.Errorf("rport is %q, want %q", got, c.rport)
				}
			})
		})
	}
}

func TestOurViaNamesTheTransport(t *testing.T) {
	six := wire(sipmsg.TCP, "[2001:db8::2]:5060", 9)
	names[six] = "six"
	for peer, want := range map[Peer]string{
		bob: "SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKtok1.", tom: "SIP/2.0/TCP 192.0.2.1:5060;branch=z9hG4bKtok1.",
		near: "SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKtok1.", six: "SIP/2.0/TCP [2001:db8::1]:5060;branch=z9hG4bKtok1.",
	} {
		simulate(t, testConfig, func(w *world) {
			w.request = to(peer)
			w.receive(tina, call{method: "OPTIONS"}.String())
			via, _ := w.last(peer, "OPTIONS").Value(sipmsg.ViaHeader)
			length := hashSize + loopSize
			if peer.Group == 0 {
				length += loopSize
			}
			if hash, ok := strings.CutPrefix(via, want); !ok || len(hash) != length {
				t.Errorf("Via towards %s is %q", nameOf(peer), via)
			}
			w.answer(peer, "OPTIONS", 200)
		})
	}
}

func TestResponsesThatAreNotOursAreDropped(t *testing.T) {
	plain := testConfig
	plain.Token = ""
	for _, c := range []struct {
		name string
		cfg  Config
		via  string
	}{
		{"another sent-by and branch", testConfig, "SIP/2.0/UDP 192.0.2.77:5060;branch=z9hG4bKx"},
		{"our sent-by with a branch that has no token", testConfig, "SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKx"},
		{"our sent-by with another token", testConfig, "SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKtok2.abc"},
		{"our sent-by with a longer token", testConfig, "SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKtok11.abc"},
		{"without tokens, another sent-by", plain, "SIP/2.0/UDP 192.0.2.77:5060;branch=z9hG4bKx"},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, c.cfg, func(w *world) {
				w.receive(bob, "SIP/2.0 200 OK\r\nVia: "+c.via+"\r\nVia: SIP/2.0/UDP 198.51.100.1;branch=z9hG4bKa\r\n"+
					"From: <sip:a@b.test>;tag=1\r\nTo: <sip:c@d.test>;tag=2\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n")
				if len(w.strays) != 0 {
					t.Errorf("strays: %q", w.strays)
				}
				w.expect(``)
			})
		})
	}
}

func TestResponseWithAFoldedBranchIsMatched(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom)
		w.receive(tina, call{method: "OPTIONS"}.String())
		resp := string(w.last(tom, "OPTIONS").Response(200, "", "t").Bytes())
		w.receive(tom, strings.Replace(resp, "z9hG4bKtok1", "z9hg4bktok1", 1))
		w.last(tina, "200 OPTIONS")
	})
}

func TestResponseAddr(t *testing.T) {
	for via, want := range map[string]string{
		"SIP/2.0/UDP 10.0.0.1:5070;branch=z9hG4bKa;received=192.0.2.1;rport=99": "192.0.2.1:99",
		"SIP/2.0/UDP ua.test:5070;branch=z9hG4bKa;received=192.0.2.1":           "192.0.2.1:5070",
		"SIP/2.0/UDP 10.0.0.1;branch=z9hG4bKa;rport":                            "10.0.0.1:5060",
		"SIP/2.0/TLS [2001:db8::1];branch=z9hG4bKa":                             "[2001:db8::1]:5061",
		"SIP/2.0/UDP 10.0.0.1;branch=z9hG4bKa;rport=70000":                      "10.0.0.1:5060",
		"SIP/2.0/UDP ua.test;branch=z9hG4bKa":                                   "",
	} {
		v, err := sipmsg.ParseVia(via)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := ResponseAddr(v)
		if ok != (want != "") || ok && got != netip.MustParseAddrPort(want) {
			t.Errorf("%s leads to %v, want %q", via, got, want)
		}
	}
}
