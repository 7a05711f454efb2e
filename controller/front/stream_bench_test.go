package front

import (
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bellwether/controller/guard"
	"bellwether/controller/link"
	"bellwether/cscf/sipmsg"
)

// rawDial opens a connection that costs this process a file descriptor, to be
// closed, and no memory.
func rawDial(t testing.TB, from [4]byte, to netip.AddrPort) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The port is chosen at connect, where the same one may serve again.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// memory is what the heap and the stacks take.
func memory() int64 {
	runtime.GC() // stacks shrink by half each time
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// BenchmarkIdleConnection tells what a connection takes that has carried a
// message and waits.
func BenchmarkIdleConnection(b *testing.B) {
	const n = 5000
	f, _ := newStreamFront(b, Streams{Connections: 2 * n, Unbound: 2 * n, PerSource: n})
	f.guard.SetLimits(guard.Config{})
	msg := []byte(message("INVITE sip:bob@ims.test SIP/2.0", "Subject: "+strings.Repeat("x", 1000)))
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	open := func(from, to int) {
		for i := from; i < to; i++ {
			fd := rawDial(b, [4]byte{127, 0, 1, byte(i % 200)}, f.Addr('p'))
			fds = append(fds, fd)
			if _, err := unix.Write(fd, msg); err != nil {
				b.Fatal(err)
			}
		}
		eventually(b, "all are answered", func() bool { return f.Stats().Replied[403] == uint64(to) })
	}
	open(0, 100)
	before := memory()
	open(100, n+100)
	took := memory() - before
	for b.Loop() {
	}
	b.ReportMetric(float64(took)/n, "B/connection")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkTransports takes messages in, hands them to a worker process over a
// link and sends its frames out, by UDP and by TCP.
func BenchmarkTransports(b *testing.B) {
	for _, transport := range []string{"UDP", "TCP"} {
		b.Run(transport, func(b *testing.B) {
			f, _ := newStreamFront(b, Streams{})
			f.guard.SetLimits(guard.Config{})
			w := connect(b, f, p1)
			msg := []byte(message("INVITE sip:bob@ims.test SIP/2.0", "Subject: "+strings.Repeat("x", 1000)))
			var write func(n int)
			var read func(n int)
			var flow sipmsg.Flow
			buf := make([]byte, 1<<16)
			if transport == "UDP" {
				ph := newPhone(b)
				flow = ph.flow(f, 'p')
				f.Bind(flow, p1, time.Now().Add(time.Hour))
				write = func(n int) {
					for range n {
						ph.send(f.Addr('p'), string(msg))
					}
				}
				read = func(n int) {
					for range n {
						if _, _, err := ph.ReadFromUDPAddrPort(buf); err != nil {
							b.Fatal(err)
						}
					}
				}
			} else {
				var c *caller
				c, flow = bound(b, f, w)
				write = func(n int) {
					for range n { // a segment each, as phones send
						c.write(string(msg))
					}
				}
				read = func(n int) {
					for got := 0; got < n*len(msg); {
						m, err := c.Read(buf)
						if err != nil {
							b.Fatal(err)
						}
						got += m
					}
				}
			}
			const window = 64 // messages under way
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; {
				n := min(window, b.N-done)
				write(n)
				for range n {
					s := <-w.got
					if err := w.far.SendSIP(&link.SIP{From: p1, Epoch: 1, Entry: 'p', Flow: flow, Raw: s.Raw}); err != nil {
						b.Fatal(err)
					}
				}
				read(n)
				done += n
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
