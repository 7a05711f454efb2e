// Package loopback gives tests loopback networks of their own, so that several
// of them, and several packages at the same time, can run nodes with the usual
// ports. It is no part of the product.
//
// Linux answers at every address of 127.0.0.0/8, so nothing has to be set up.
// A process claims a network 127.B.0.0/16 by a listener that it keeps; a claim
// ends with the process, however that came about.
package loopback

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

const (
	firstClaim = 78
	lastClaim  = 253
)

var (
	claim    net.Listener // kept for as long as the process lives
	networks atomic.Int32
)

// own is the second byte of all addresses of this process.
var own = sync.OnceValue(func() byte {
	for b := firstClaim; b <= lastClaim; b++ {
		l, err := net.Listen("tcp4", fmt.Sprintf("127.%d.255.254:7400", b))
		if err == nil {
			claim = l
			return byte(b)
		}
	}
	panic("all loopback networks are in use")
})

// Network returns a network that nobody else has: host(n) is its host n, 1 to
// 254.
func Network() (host func(n int) netip.Addr) {
	net := byte(networks.Add(1))
	return func(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, own(), net, byte(n)}) }
}
