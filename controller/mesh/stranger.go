package mesh

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
)

// ErrFingerprint means that the other side does not belong to the CA that was
// asked for.
var ErrFingerprint = errors.New("the other side shows another certificate authority")

// Stranger opens a connection for a HandleOpen protocol from a machine that
// has no certificate. The other side must have one of the cluster, signed by
// the CA whose certificate has the fingerprint (SHA-256), and shows that too.
// Without a deadline in ctx it takes at most 3 s.
func Stranger(ctx context.Context, addr, clusterID string, fingerprint [sha256.Size]byte, alpn string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	raw, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{alpn},
		InsecureSkipVerify: true, // VerifyConnection does it, by the fingerprint
		VerifyConnection: func(cs tls.ConnectionState) error {
			return verifyByFingerprint(cs.PeerCertificates, clusterID, fingerprint)
		},
		SessionTicketsDisabled: true,
	})
	if err = conn.HandshakeContext(ctx); err == nil {
		err = admitted(ctx, conn, alpn)
	}
	if err != nil {
		_ = raw.Close()
		return nil, describe(err)
	}
	return conn, nil
}

func verifyByFingerprint(chain []*x509.Certificate, clusterID string, fingerprint [sha256.Size]byte) error {
	for _, c := range chain {
		sum := sha256.Sum256(c.Raw)
		if !c.IsCA || subtle.ConstantTimeCompare(sum[:], fingerprint[:]) != 1 {
			continue
		}
		pool := x509.NewCertPool()
		pool.AddCert(c)
		m := Mesh{cfg: Config{CA: pool, ClusterID: clusterID}}
		return m.verifyPeer(chain[:1], "", x509.ExtKeyUsageServerAuth)
	}
	return ErrFingerprint
}
