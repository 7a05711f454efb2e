package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"bellwether/cscf/sipmsg"
)

// A frame is
//
//	length  4 bytes, big endian, of what follows
//	version 1 byte: the layout of the frame
//	type    1 byte
//	body
//
// The first frame of each side is its hello. The layout of header and hello
// never changes; everything else belongs to the version that the hellos agree
// on, the highest that both sides speak.
const (
	headerLen  = 6
	versionMin = 1
	versionMax = 1

	// MaxSIP limits the body of a SIP frame, in bytes: raw message, flow and
	// routing.
	MaxSIP = 256 << 10
	// MaxCall limits the body of a call, an answer or a notification, in
	// bytes.
	MaxCall = 16 << 20

	maxHello  = 1 << 10
	maxMethod = 255
	maxName   = 255
)

const (
	frameHello byte = iota + 1
	frameAlive
	frameSIP
	frameCall
	frameAnswer
	frameCancel
	frameNotify
)

const helloMagic = "bw-link\n"

// SIP is one SIP message on its way between a front and a worker, or between
// two workers by way of a front.
type SIP struct {
	To    uint32      // receiving group; 0: the wire
	From  uint32      // sending group; 0: the wire
	Epoch uint64      // of the group From, or of To when From is the wire
	Entry byte        // entry point: 'p', 'i' or 's'
	Flow  sipmsg.Flow // where on the wire it came from or goes to
	Raw   []byte
}

// fixedSIP is To, From, Epoch, Entry, transport, connection.
const fixedSIP = 4 + 4 + 8 + 1 + 1 + 8

func appendHeader(dst []byte, typ byte, body int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(body+headerLen-4))
	return append(dst, versionMax, typ)
}

func appendHello(dst []byte, lowest, highest byte) []byte {
	dst = appendHeader(dst, frameHello, len(helloMagic)+2)
	dst = append(dst, helloMagic...)
	return append(dst, lowest, highest)
}

// sizeSIP returns the length of f as a frame.
func sizeSIP(f *SIP) (int, error) {
	n := fixedSIP + sizeAddr(f.Flow.Local) + sizeAddr(f.Flow.Remote) + 1 + len(f.Flow.Node) + len(f.Raw)
	if n > MaxSIP || len(f.Flow.Node) > maxName ||
		len(f.Flow.Local.Addr().Zone()) > maxName || len(f.Flow.Remote.Addr().Zone()) > maxName {
		return 0, ErrTooLarge
	}
	return headerLen + n, nil
}

// appendSIP appends f, whose length as a frame is n.
func appendSIP(dst []byte, f *SIP, n int) []byte {
	dst = slices.Grow(dst, n)
	dst = appendHeader(dst, frameSIP, n-headerLen)
	dst = binary.BigEndian.AppendUint32(dst, f.To)
	dst = binary.BigEndian.AppendUint32(dst, f.From)
	dst = binary.BigEndian.AppendUint64(dst, f.Epoch)
	dst = append(dst, f.Entry, byte(f.Flow.Transport))
	dst = binary.BigEndian.AppendUint64(dst, f.Flow.Conn)
	dst = appendAddr(dst, f.Flow.Local)
	dst = appendAddr(dst, f.Flow.Remote)
	dst = append(dst, byte(len(f.Flow.Node)))
	dst = append(dst, f.Flow.Node...)
	return append(dst, f.Raw...)
}

// Kinds of address: the length of the address in bytes, or zoned.
const (
	noAddr = 0
	addr4  = 4
	addr6  = 16
	zoned6 = 17 // followed by the length and text of the zone
)

func sizeAddr(a netip.AddrPort) int {
	switch {
	case !a.Addr().IsValid():
		return 1
	case a.Addr().Is4():
		return 1 + 4 + 2
	case a.Addr().Zone() == "":
		return 1 + 16 + 2
	}
	return 1 + 16 + 1 + len(a.Addr().Zone()) + 2
}

func appendAddr(dst []byte, a netip.AddrPort) []byte {
	switch {
	case !a.Addr().IsValid():
		return append(dst, noAddr)
	case a.Addr().Is4():
		ip := a.Addr().As4()
		dst = append(append(dst, addr4), ip[:]...)
	default:
		ip, zone := a.Addr().As16(), a.Addr().Zone()
		if zone == "" {
			dst = append(append(dst, addr6), ip[:]...)
			break
		}
		dst = append(append(dst, zoned6), ip[:]...)
		dst = append(append(dst, byte(len(zone))), zone...)
	}
	return binary.BigEndian.AppendUint16(dst, a.Port())
}

// cursor takes a body apart; short tells that it was too short.
type cursor struct {
	b     []byte
	short bool
}

func (c *cursor) take(n int) []byte {
	if len(c.b) < n {
		c.short, c.b = true, nil
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) u8() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) addr() netip.AddrPort {
	var a netip.Addr
	switch c.u8() {
	case noAddr:
		return netip.AddrPort{}
	case addr4:
		if b := c.take(4); b != nil {
			a = netip.AddrFrom4([4]byte(b))
		}
	case addr6:
		if b := c.take(16); b != nil {
			a = netip.AddrFrom16([16]byte(b))
		}
	case zoned6:
		b, zone := c.take(16), c.take(int(c.u8()))
		if b != nil {
			a = netip.AddrFrom16([16]byte(b)).WithZone(string(zone))
		}
	default:
		c.short = true
	}
	if b := c.take(2); b != nil && a.IsValid() {
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b))
	}
	return netip.AddrPort{}
}

// names holds the node names that a connection has carried, so that they are
// not allocated for each frame. It is bounded: a cluster has few nodes.
type names map[string]string

const maxNames = 64

func (ns names) of(b []byte) string {
	if s, ok := ns[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(ns) < maxNames {
		ns[s] = s
	}
	return s
}

// decodeSIP fills f from body; f.Raw is the rest of body.
func decodeSIP(f *SIP, body []byte, nodes names) error {
	if len(body) > MaxSIP {
		return fmt.Errorf("sip frame of %d bytes: %w", len(body), ErrTooLarge)
	}
	c := cursor{b: body}
	f.To, f.From, f.Epoch = c.u32(), c.u32(), c.u64()
	f.Entry = c.u8()
	f.Flow.Transport = sipmsg.Transport(c.u8())
	f.Flow.Conn = c.u64()
	f.Flow.Local, f.Flow.Remote = c.addr(), c.addr()
	f.Flow.Node = nodes.of(c.take(int(c.u8())))
	f.Raw = c.b
	if c.short {
		return fmt.Errorf("sip frame of %d bytes: %w", len(body), ErrGarbage)
	}
	return nil
}

// decodeMethod takes the method off a body.
func decodeMethod(body []byte) (method string, payload []byte, err error) {
	c := cursor{b: body}
	m := c.take(int(c.u8()))
	if c.short {
		return "", nil, ErrGarbage
	}
	return string(m), c.b, nil
}

// readHello reads the first frame of the peer.
func readHello(br *bufio.Reader) error {
	h, err := br.Peek(headerLen)
	if err != nil {
		return noEOF(err)
	}
	n := int64(binary.BigEndian.Uint32(h)) - (headerLen - 4)
	if h[5] != frameHello || n < int64(len(helloMagic))+2 || n > maxHello {
		return fmt.Errorf("first frame is no hello: %w", ErrGarbage)
	}
	body, err := readBody(br, headerLen+int(n))
	if err != nil {
		return err
	}
	body = body[headerLen:]
	if string(body[:len(helloMagic)]) != helloMagic {
		return fmt.Errorf("first frame is no hello: %w", ErrGarbage)
	}
	lowest, highest := body[len(helloMagic)], body[len(helloMagic)+1]
	if lowest > versionMax || highest < versionMin {
		return fmt.Errorf("peer speaks versions %d to %d, this side %d to %d: %w",
			lowest, highest, versionMin, versionMax, ErrVersion)
	}
	return nil
}

// readFrame reads one frame after the hello. The body is the caller's.
func readFrame(br *bufio.Reader) (typ byte, body []byte, err error) {
	h, err := br.Peek(headerLen)
	if err != nil {
		if len(h) > 0 {
			err = noEOF(err)
		}
		return 0, nil, err
	}
	n, version, typ := int64(binary.BigEndian.Uint32(h))-(headerLen-4), h[4], h[5]
	if version != versionMax {
		return 0, nil, fmt.Errorf("frame of version %d: %w", version, ErrVersion)
	}
	limit := int64(0)
	switch typ {
	case frameAlive:
	case frameSIP:
		limit = MaxSIP
	case frameCall, frameAnswer, frameNotify:
		limit = MaxCall
	case frameCancel:
		limit = 9
	default:
		return 0, nil, fmt.Errorf("frame of type %d: %w", typ, ErrGarbage)
	}
	if n < 0 {
		return 0, nil, fmt.Errorf("frame of type %d without header: %w", typ, ErrGarbage)
	}
	if n > limit {
		return 0, nil, fmt.Errorf("frame of type %d with %d bytes: %w", typ, n, ErrTooLarge)
	}
	if _, err := br.Discard(headerLen); err != nil {
		return 0, nil, noEOF(err)
	}
	body, err = readBody(br, int(n))
	return typ, body, err
}

// readBody reads n bytes. Memory for a long body is taken as its bytes arrive,
// not because of the announced length.
func readBody(br *bufio.Reader, n int) ([]byte, error) {
	const step = MaxSIP
	if n == 0 {
		return nil, nil
	}
	body := make([]byte, min(n, step))
	for have := 0; ; {
		if _, err := io.ReadFull(br, body[have:]); err != nil {
			return nil, noEOF(err)
		}
		have = len(body)
		if have == n {
			return body, nil
		}
		body = append(body, make([]byte, min(n-have, have))...)
	}
}

// noEOF marks an end inside a frame.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
