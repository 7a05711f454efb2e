package acceptance

import (
	"bufio"
	"bytes"
	endian "encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// datagram is one UDP datagram that was captured.
type datagram struct {
	from, to netip.AddrPort
	payload  []byte
}

// capture is what tcpdump sees on the loopback interface.
type capture struct {
	mu    sync.Mutex
	seen  []datagram
	wrong error // what is no UDP datagram, or no capture file
}

// startCapture captures what a filter of tcpdump lets through, until the test
// ends. It returns when the capture runs.
func startCapture(t *testing.T, filter string) *capture {
	t.Helper()
	c := &capture{}
	cmd := exec.Command("tcpdump", "-i", "lo", "-n", "-s", "0", "-B", "8192", "--immediate-mode", "-U", "-Z", "root", "-w", "-", filter)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	listening := make(chan string, 1)
	var complaints strings.Builder
	readers.Go(func() {
		lines := bufio.NewScanner(said)
		for lines.Scan() {
			complaints.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), "listening on") {
				listening <- ""
			}
		}
		select {
		case listening <- complaints.String(): // it ended before it listened
		default:
		}
	})
	readers.Go(func() {
		if err := c.read(out); err != nil {
			c.fail(err)
			_, _ = io.Copy(io.Discard, out) // or tcpdump would wait
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		readers.Wait()
		_ = cmd.Wait()
		if c.wrong != nil {
			t.Errorf("capture: %v", c.wrong)
		}
		if !strings.Contains(complaints.String(), "\n0 packets dropped by kernel") {
			t.Errorf("the capture is not complete: %s", complaints.String())
		}
	})
	if failed := <-listening; failed != "" {
		t.Fatalf("tcpdump: %s", failed)
	}
	return c
}

func (c *capture) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = errors.Join(c.wrong, err)
}

// datagrams returns what was seen so far.
func (c *capture) datagrams() []datagram {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[:len(c.seen):len(c.seen)]
}

// wait waits until a datagram that ok accepts was seen.
func (c *capture) wait(t testing.TB, what string, ok func(datagram) bool) {
	t.Helper()
	eventually(t, 10*time.Second, func() string {
		for _, d := range c.datagrams() {
			if ok(d) {
				return ""
			}
		}
		return "the capture does not show " + what
	})
}

// read reads a capture file of Ethernet frames until its end.
func (c *capture) read(r io.Reader) error {
	var header [24]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return fmt.Errorf("read the capture's header: %w", err)
	}
	const microseconds, ethernet = 0xa1b2c3d4, 1
	if endian.NativeEndian.Uint32(header[:]) != microseconds || endian.NativeEndian.Uint32(header[20:]) != ethernet {
		return fmt.Errorf("capture of an unknown kind: % x", header)
	}
	for {
		var record [16]byte
		if _, err := io.ReadFull(r, record[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the capture: %w", err)
		}
		stored, long := endian.NativeEndian.Uint32(record[8:]), endian.NativeEndian.Uint32(record[12:])
		if stored != long || stored > 1<<18 {
			return fmt.Errorf("captured %d of %d bytes", stored, long)
		}
		frame := make([]byte, stored)
		if _, err := io.ReadFull(r, frame); err != nil {
			return fmt.Errorf("read the capture: %w", err)
		}
		d, err := parseFrame(frame)
		if err != nil {
			c.fail(err)
			continue
		}
		c.mu.Lock()
		c.seen = append(c.seen, d)
		c.mu.Unlock()
	}
}

// parseFrame takes a UDP datagram out of an Ethernet frame with an IPv4 packet
// (RFC 791, RFC 768). The loopback interface fragments nothing that SIP sends.
func parseFrame(b []byte) (datagram, error) {
	const ethernet, ipv4, udp = 14, 0x0800, 17
	if len(b) < ethernet+20 || endian.BigEndian.Uint16(b[12:]) != ipv4 {
		return datagram{}, fmt.Errorf("no IPv4 packet: % .40x", b)
	}
	b = b[ethernet:]
	header, total := int(b[0]&0x0f)*4, int(endian.BigEndian.Uint16(b[2:]))
	from, to := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	switch fragment := endian.BigEndian.Uint16(b[6:]) &^ 0x4000; {
	case b[9] != udp || fragment != 0:
		return datagram{}, fmt.Errorf("packet of protocol %d, fragment %#x, from %v to %v", b[9], fragment, from, to)
	case header < 20 || total < header+8 || total > len(b):
		return datagram{}, fmt.Errorf("damaged packet from %v to %v", from, to)
	}
	b = b[header:total]
	return datagram{
		from:    netip.AddrPortFrom(from, endian.BigEndian.Uint16(b)),
		to:      netip.AddrPortFrom(to, endian.BigEndian.Uint16(b[2:])),
		payload: bytes.Clone(b[8:]),
	}, nil
}
