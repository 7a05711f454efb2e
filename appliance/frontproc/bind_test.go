package frontproc

import (
	"net"
	"strings"
	"testing"
)

func TestAnAddressThatCannotBeBoundIsExplained(t *testing.T) {
	taken, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct{ name, addr, want string }{
		{"an address of another machine", "192.0.2.1:0", "this machine has no such address: write one of 127.0.0.1"},
		{"a port in use", taken.LocalAddr().String(), "stop what uses it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.ListenPacket("udp", tt.addr)
			if err == nil {
				c.Close()
				t.Fatal("it could be bound")
			}
			got := bound("sip.address", err).Error()
			if !strings.Contains(got, tt.want) || !strings.HasSuffix(got, "at sip.address") {
				t.Errorf("got %q", got)
			}
		})
	}
}
