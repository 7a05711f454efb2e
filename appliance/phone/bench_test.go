package phone

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"bellwether/media/rtp"
)

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// BenchmarkHundredPhones says what 100 registered phones cost while they are
// idle, and during 20 calls at once with audio both ways, over real UDP. The
// figures include the test's core. One iteration takes about 8 s.
func BenchmarkHundredPhones(b *testing.B) {
	for b.Loop() {
		c := newCore(b, listenUDP)
		goroutines, bytes := runtime.NumGoroutine(), heap()
		began := cpu()
		var clock rtp.Clock
		phones := make([]*Phone, 100)
		for i := range phones {
			phones[i] = c.registered(b, listenUDP, fmt.Sprint("user", i), func(c *Config) {
				c.ToneHz = 400 + 20*i
				c.Clock = &clock
			})
		}
		b.ReportMetric(float64(cpu()-began)/1e6/100, "cpu-ms/registration")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines-idle")
		b.ReportMetric(float64(heap()-bytes)/1024/100, "KiB/phone")
		began = cpu()
		<-time.After(2 * time.Second)
		b.ReportMetric(float64(cpu()-began)/2e7, "cpu-%-idle")

		const hold = 5 * time.Second
		began = cpu()
		start := time.Now()
		var calls sync.WaitGroup
		for i := range 20 {
			calls.Go(func() {
				r, err := phones[i].Call(b.Context(), fmt.Sprintf("sip:user%d@ims.test", 50+i), CallOptions{Hold: hold})
				if err != nil || !r.ToneHeard || r.RTPReceived != r.RTPExpected {
					b.Errorf("%v, %+v", err, r)
				}
			})
		}
		<-time.After(hold / 2)
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines-20-calls")
		b.ReportMetric(float64(heap()-bytes)/1024/1024, "MiB-20-calls")
		calls.Wait()
		b.ReportMetric(float64(cpu()-began)/float64(time.Since(start))*100, "cpu-%-20-calls")

		// Call set-up alone.
		began = cpu()
		const n = 200
		for i := range n {
			if _, err := phones[i%50].Call(b.Context(), fmt.Sprintf("sip:user%d@ims.test", 50+i%50), CallOptions{}); err != nil {
				b.Error(err)
			}
		}
		b.ReportMetric(float64(cpu()-began)/1e6/n, "cpu-ms/call")
		for _, p := range phones {
			p.Close()
		}
	}
}
