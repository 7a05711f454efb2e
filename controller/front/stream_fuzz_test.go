package front

import (
	"io"
	"net"
	"testing"
	"time"

	"bellwether/controller/guard"
	"bellwether/cscf/token"
)

// FuzzStream: whatever a connection brings, in whatever pieces, the front goes
// on, forgets the connection with its end, and holds nothing for it.
func FuzzStream(f *testing.F) {
	invite := message("INVITE sip:bob@ims.test SIP/2.0")
	f.Add(invite+"\r\n\r\n"+invite, uint8(7))
	f.Add(message("REGISTER sip:ims.test SIP/2.0", "To: <sip:alice@ims.test>"), uint8(200))
	f.Add(message("OPTIONS sip:127.0.0.1 SIP/2.0", "Content-Length: 5"), uint8(3))
	f.Add(message("SIP/2.0 200 OK", "Via: SIP/2.0/TCP 127.0.0.1;branch="+token.Branch(seal(f, token.Via, p1), "1")), uint8(9))
	f.Add(message("INVITE sip:bob@ims.test SIP/2.0", "Content-Length: -1"), uint8(1))
	fr, _ := newStreamFront(f, Streams{})
	fr.guard.SetLimits(guard.Config{})
	w := connect(f, fr, p1, i1, s1, p2, i2, s2)
	done := make(chan struct{})
	f.Cleanup(func() { close(done) })
	go func() {
		for {
			select {
			case <-w.got:
			case <-done:
				return
			}
		}
	}()
	last := 0
	f.Fuzz(func(t *testing.T, stream string, n uint8) {
		last++ // an address of its own, or the ports of one run out
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(last>>8), byte(last))}}
		c, err := d.Dial("tcp", fr.Addr('p').String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for s := stream; s != ""; {
			k := min(int(n)+1, len(s))
			if _, err := io.WriteString(c, s[:k]); err != nil {
				break // it was closed
			}
			s = s[k:]
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Fatal("the connection is not closed")
			}
		}
		eventually(t, "it is forgotten", func() bool {
			s := fr.Stats()
			return s.Connections == 0 && s.Held == 0 && s.Queued == 0
		})
	})
}
