package ha

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

func openBench(b *testing.B, o Options) *Journal {
	o.Identity = "bench"
	j, err := OpenJournal(b.TempDir(), o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { j.Close() })
	return j
}

func keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("reg/sip:user%05d@example.org", i)
	}
	return out
}

// BenchmarkPut is what a Put costs its caller; it does not wait for the disk.
func BenchmarkPut(b *testing.B) {
	j := openBench(b, Options{})
	k, v, expires := keys(10_000), make([]byte, 300), time.Now().Add(time.Hour)
	slots := make(chan struct{}, 10_000)
	free := func(err error) {
		if err != nil {
			b.Error(err)
		}
		<-slots
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		slots <- struct{}{}
		j.Put(1, k[i%len(k)], v, expires, free)
	}
}

// BenchmarkDurable is how many records a second become safe, and how soon,
// when each of so many callers waits for its record before the next.
func BenchmarkDurable(b *testing.B) {
	for _, gather := range []time.Duration{-1, time.Millisecond, 2 * time.Millisecond} {
		for _, callers := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("gather=%v/callers=%d", gather, callers), func(b *testing.B) {
				j := openBench(b, Options{Gather: gather})
				k, v := keys(callers), make([]byte, 300)
				var all sync.WaitGroup
				b.ResetTimer()
				for c := range callers {
					all.Go(func() {
						safe := make(chan error, 1)
						for i := c; i < b.N; i += callers {
							j.Put(1, k[c], v, time.Time{}, func(err error) { safe <- err })
							if err := <-safe; err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
				b.ReportMetric(float64(b.Elapsed().Microseconds())*float64(callers)/float64(b.N), "µs/wait")
			})
		}
	}
}

// BenchmarkArrivals is how long a record waits to be safe when records come
// at a steady rate, whoever else waits.
func BenchmarkArrivals(b *testing.B) {
	for _, gather := range []time.Duration{-1, time.Millisecond, 2 * time.Millisecond} {
		for _, rate := range []int{500, 5000} {
			b.Run(fmt.Sprintf("gather=%v/rate=%d", gather, rate), func(b *testing.B) {
				j := openBench(b, Options{Gather: gather})
				k, v := keys(1000), make([]byte, 300)
				waits := make([]time.Duration, b.N)
				var all sync.WaitGroup
				b.ResetTimer()
				arrival := time.NewTicker(time.Second / time.Duration(rate))
				defer arrival.Stop()
				for i := range b.N {
					<-arrival.C
					all.Add(1)
					at := time.Now()
					j.Put(1, k[i%len(k)], v, time.Time{}, func(err error) {
						waits[i] = time.Since(at)
						all.Done()
					})
				}
				all.Wait()
				slices.Sort(waits)
				b.ReportMetric(float64(waits[b.N/2].Microseconds()), "µs-p50")
				b.ReportMetric(float64(waits[b.N*99/100].Microseconds()), "µs-p99")
				b.ReportMetric(float64(b.N)/float64(j.Stats().Syncs), "records/sync")
			})
		}
	}
}
