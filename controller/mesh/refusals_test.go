package mesh

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
)

// An expired certificate's error names the time of day.
func TestTheSameRefusalIsLoggedOnceThoughItsTextNamesTheTime(t *testing.T) {
	var out bytes.Buffer
	var r refusals
	log := slog.New(slog.NewTextHandler(&out, nil))
	now := time.Now()
	for i := range 3 {
		at := now.Add(time.Duration(i) * time.Second)
		_, err := (&x509.Certificate{Raw: []byte{0}, NotAfter: now.Add(-time.Hour)}).Verify(x509.VerifyOptions{Roots: x509.NewCertPool(), CurrentTime: at})
		if err == nil || !strings.Contains(err.Error(), "current time") {
			t.Fatalf("got %v", err)
		}
		r.log(log, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, err, at)
	}
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}
