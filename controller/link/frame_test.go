package link

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"bellwether/cscf/sipmsg"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func sample() SIP {
	return SIP{
		To: 7, From: 3, Epoch: 1 << 40, Entry: 'p',
		Flow: sipmsg.Flow{
			Node: "node-a", Transport: sipmsg.UDP, Conn: 99,
			Local:  netip.MustParseAddrPort("192.0.2.1:5060"),
			Remote: netip.MustParseAddrPort("198.51.100.7:40000"),
		},
		Raw: []byte("OPTIONS sip:x SIP/2.0\r\n\r\n"),
	}
}

func encode(t *testing.T, f *SIP) []byte {
	t.Helper()
	n, err := sizeSIP(f)
	if err != nil {
		t.Fatal(err)
	}
	b := appendSIP(nil, f, n)
	if len(b) != n {
		t.Fatalf("frame has %d bytes, sizeSIP said %d", len(b), n)
	}
	return b
}

func reader(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }

var byValue = cmpopts.EquateComparable(netip.AddrPort{})

func TestSIPFrameKeepsEveryField(t *testing.T) {
	for name, change := range map[string]func(*SIP){
		"an IPv4 flow":          func(*SIP) {},
		"an IPv6 flow":          func(f *SIP) { f.Flow.Remote = netip.MustParseAddrPort("[2001:db8::1]:5060") },
		"an IPv4-mapped flow":   func(f *SIP) { f.Flow.Remote = netip.MustParseAddrPort("[::ffff:192.0.2.9]:5060") },
		"a flow with a zone":    func(f *SIP) { f.Flow.Local = netip.MustParseAddrPort("[fe80::1%eth0]:5060") },
		"no flow":               func(f *SIP) { f.Flow = sipmsg.Flow{} },
		"no message":            func(f *SIP) { f.Raw = []byte{} },
		"the longest node name": func(f *SIP) { f.Flow.Node = strings.Repeat("n", 255) },
	} {
		t.Run(name, func(t *testing.T) {
			want := sample()
			change(&want)
			typ, body, err := readFrame(reader(encode(t, &want)))
			if err != nil || typ != frameSIP {
				t.Fatalf("readFrame: type %d, %v", typ, err)
			}
			var got SIP
			if err := decodeSIP(&got, body, names{}); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, byValue); d != "" {
				t.Errorf("frame changed (-want +got):\n%s", d)
			}
		})
	}
}

func TestSIPFrameLimit(t *testing.T) {
	f := sample()
	n, err := sizeSIP(&f)
	if err != nil {
		t.Fatal(err)
	}
	f.Raw = make([]byte, MaxSIP-(n-headerLen)+len(f.Raw))
	if _, _, err := readFrame(reader(encode(t, &f))); err != nil {
		t.Errorf("largest frame: %v", err)
	}
	f.Raw = append(f.Raw, 0)
	if _, err := sizeSIP(&f); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte more: %v, want ErrTooLarge", err)
	}
	f = sample()
	f.Flow.Node = strings.Repeat("n", 256)
	if _, err := sizeSIP(&f); !errors.Is(err, ErrTooLarge) {
		t.Errorf("node name of 256 bytes: %v, want ErrTooLarge", err)
	}
}

func TestReadFrameRefuses(t *testing.T) {
	frame := func(length uint32, version, typ byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, length), version, typ)
	}
	whole := sample()
	for name, tc := range map[string]struct {
		in   []byte
		want error
	}{
		"a SIP frame above its limit":         {frame(MaxSIP+3, 1, frameSIP), ErrTooLarge},
		"a call above its limit":              {frame(MaxCall+3, 1, frameCall), ErrTooLarge},
		"four gigabytes":                      {frame(1<<32-1, 1, frameNotify), ErrTooLarge},
		"a keep-alive with a body":            {frame(3, 1, frameAlive), ErrTooLarge},
		"a length below the header":           {frame(1, 1, frameSIP), ErrGarbage},
		"a type that nobody knows":            {frame(2, 1, 99), ErrGarbage},
		"a second hello":                      {appendHello(nil, 1, 1), ErrGarbage},
		"a frame of another layout":           {frame(2, 2, frameAlive), ErrVersion},
		"an end inside the header":            {frame(2, 1, frameAlive)[:5], io.ErrUnexpectedEOF},
		"an end inside the body":              {encode(t, &whole)[:40], io.ErrUnexpectedEOF},
		"an announced call that never comes":  {frame(MaxCall, 1, frameCall), io.ErrUnexpectedEOF},
		"an end between two frames, silently": {nil, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := readFrame(reader(tc.in)); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestMemoryComesWithBytesNotWithPromises(t *testing.T) {
	promise := append(binary.BigEndian.AppendUint32(nil, MaxCall+2), 1, frameCall)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		if _, _, err := readFrame(reader(promise)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / 100; n > 1<<20 {
		t.Errorf("%d kB taken for a call that never came", n>>10)
	}
}

func TestReadHelloRefuses(t *testing.T) {
	long := appendHeader(nil, frameHello, maxHello+1)
	for name, tc := range map[string]struct {
		in   []byte
		want error
	}{
		"a version from the future": {appendHello(nil, 2, 3), ErrVersion},
		"a version from the past":   {appendHello(nil, 0, 0), ErrVersion},
		"another protocol":          {[]byte("GET / HTTP/1.1\r\n\r\n"), ErrGarbage},
		"another frame":             {appendHeader(nil, frameAlive, 0), ErrGarbage},
		"another magic":             {append(appendHeader(nil, frameHello, 10), "bw-raft\n\x01\x01"...), ErrGarbage},
		"a hello above its limit":   {long, ErrGarbage},
		"an end inside":             {appendHello(nil, 1, 1)[:12], io.ErrUnexpectedEOF},
		"nothing":                   {nil, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			if err := readHello(reader(tc.in)); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	for name, in := range map[string][]byte{
		"a newer peer that still speaks ours": appendHello(nil, 1, 9),
		"a hello with fields of later days":   append(appendHeader(nil, frameHello, 13), "bw-link\n\x01\x01new"...),
	} {
		if err := readHello(reader(in)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNamesAreBounded(t *testing.T) {
	ns := names{}
	for i := range 10 * maxNames {
		name := strings.Repeat("x", i)
		if got := ns.of([]byte(name)); got != name {
			t.Fatalf("got %q, want %q", got, name)
		}
	}
	if len(ns) > maxNames {
		t.Errorf("%d names kept, want at most %d", len(ns), maxNames)
	}
}

func FuzzReadFrame(f *testing.F) {
	s := sample()
	n, _ := sizeSIP(&s)
	f.Add(appendSIP(appendHello(nil, 1, 1), &s, n))
	f.Add(append(appendHello(nil, 1, 1), appendHeader(nil, frameAlive, 0)...))
	call := append(appendHeader(nil, frameCall, 17), make([]byte, 12)...)
	f.Add(append(appendHello(nil, 1, 1), append(call, "\x04name"...)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		br := reader(in)
		if readHello(br) != nil {
			return
		}
		c := New(nopConn{}, nopHandler{}, Options{})
		defer c.Close()
		nodes := names{}
		for {
			typ, body, err := readFrame(br)
			if err != nil {
				return
			}
			switch typ {
			case frameAlive:
			case frameSIP:
				var got SIP
				if decodeSIP(&got, body, nodes) != nil {
					return
				}
				// What was read can be written, and reads the same.
				n, err := sizeSIP(&got)
				if errors.Is(err, ErrTooLarge) {
					continue
				}
				_, again, err := readFrame(reader(appendSIP(nil, &got, n)))
				if err != nil {
					t.Fatal(err)
				}
				var back SIP
				if err := decodeSIP(&back, again, nodes); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(got, back, byValue, cmpopts.EquateEmpty()); d != "" {
					t.Fatalf("frame changed:\n%s", d)
				}
			case frameNotify:
				if _, _, err := decodeMethod(body); err != nil {
					return
				}
			default:
				if c.handleCall(typ, body) != nil {
					return
				}
			}
		}
	})
}
