package loopback

import (
	"net"
	"testing"
)

func TestNetworksDiffer(t *testing.T) {
	a, b := Network(), Network()
	if a(1) == b(1) || a(1) == a(2) || a(1) != a(1) || !a(1).IsLoopback() {
		t.Errorf("addresses %v %v, %v", a(1), a(2), b(1))
	}
	if _, err := net.Listen("tcp4", claim.Addr().String()); err == nil {
		t.Error("the claim holds nobody off")
	}
}
