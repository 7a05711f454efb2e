package eventrouter

import (
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkOffer is the cost of an event from reader to handler, 400 keys.
func BenchmarkOffer(b *testing.B) {
	var n atomic.Int64
	r := New(Config{}, func(int, *int) { n.Add(1) })
	defer r.Close()
	e := new(int)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := r.Offer(uint64(i%400)*2654435761, Invite, e, time.Second); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSubmit is the same for a caller that pays when the router is full.
func BenchmarkSubmit(b *testing.B) {
	var n atomic.Int64
	r := New(Config{}, func(int, *int) { n.Add(1) })
	defer r.Close()
	e := new(int)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r.Submit(uint64(i%400)*2654435761, Invite, e)
	}
}

// BenchmarkSubmitParallel has a caller on every core.
func BenchmarkSubmitParallel(b *testing.B) {
	var n atomic.Int64
	r := New(Config{}, func(int, *int) { n.Add(1) })
	defer r.Close()
	e := new(int)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			r.Submit(uint64(i%400)*2654435761, Invite, e)
		}
	})
}

// BenchmarkPostChain is a handler that posts into its own shard.
func BenchmarkPostChain(b *testing.B) {
	done := make(chan struct{})
	var r *Router[int]
	r = New(Config{}, func(shard int, left int) {
		if left == 0 {
			close(done)
			return
		}
		r.Post(shard, left-1)
	})
	defer r.Close()
	b.ReportAllocs()
	b.ResetTimer()
	r.Post(7, b.N)
	<-done
}
