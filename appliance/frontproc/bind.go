package frontproc

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// bound explains why an address could not be bound, by the configuration's key
// that names it.
func bound(key string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w; this machine has no such address: write one of %s at %s", err, strings.Join(addresses(), ", "), key)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w; stop what uses it ('ss -lnptu' shows it), or write another one at %s", err, key)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w; ports below 1024 need the right to bind them: write a higher one at %s", err, key)
	}
	return err
}

// addresses are the unicast addresses of this machine.
func addresses() []string {
	var out []string
	all, err := net.InterfaceAddrs()
	if err != nil {
		return []string{"its addresses ('ip address' shows them)"}
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr().String())
		}
	}
	return out
}
