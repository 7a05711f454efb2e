package mesh

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Which part of what is left of its certificates a connection lives. The side
// that dialed ends it first, since it is the one that dials again.
const (
	dialedLife   = 0.45
	acceptedLife = 0.5
	lifeSpread   = 0.3         // of the dialing side's part is left to chance: not all connections end at once
	shortestLife = time.Second // of a connection, so that the end of a certificate is no storm
)

// tracked is a TCP connection that the mesh can close.
type tracked struct {
	net.Conn
	mesh  *Mesh
	timer *time.Timer // guarded by mesh.mu; nil: it does not end by itself
}

func (m *Mesh) track(raw net.Conn) (*tracked, error) {
	c := &tracked{Conn: raw, mesh: m}
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.conns[c] = struct{}{}
	}
	m.mu.Unlock()
	if closed {
		_ = raw.Close()
		return nil, ErrClosed
	}
	return c, nil
}

func (c *tracked) Close() error {
	c.mesh.mu.Lock()
	delete(c.mesh.conns, c)
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mesh.mu.Unlock()
	return c.Conn.Close()
}

// retire ends the connection long before one of its certificates does.
func (c *tracked) retire(conn *tls.Conn, own usedCert, part float64) {
	now := time.Now()
	life, known := time.Duration(0), false
	certs := []*x509.Certificate{own.leaf}
	if peer := conn.ConnectionState().PeerCertificates; len(peer) > 0 {
		certs = append(certs, peer[0])
	}
	for _, cert := range certs {
		if cert == nil {
			continue
		}
		if left := cert.NotAfter.Sub(now); !known || left < life {
			life, known = left, true
		}
	}
	if !known {
		return
	}
	if part == dialedLife {
		part *= 1 - lifeSpread*rand.Float64()
	}
	life = max(time.Duration(float64(life)*part), shortestLife)
	c.mesh.mu.Lock()
	defer c.mesh.mu.Unlock()
	if _, ok := c.mesh.conns[c]; ok {
		c.timer = time.AfterFunc(life, func() { _ = c.Close() })
	}
}

// usedCert is the own certificate that a handshake took.
type usedCert struct{ leaf *x509.Certificate }

func (u *usedCert) load(m *Mesh) (*tls.Certificate, error) {
	cert, err := m.certificate()
	if err != nil {
		return nil, err
	}
	u.leaf = cert.Leaf
	if u.leaf == nil && len(cert.Certificate) > 0 {
		u.leaf, err = x509.ParseCertificate(cert.Certificate[0])
	}
	return cert, err
}

// sourceOf is the address of a peer, the zero Addr if it has none.
func sourceOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// handshake is one of a connection that was accepted.
type handshake struct {
	raw     net.Conn
	source  netip.Addr
	peer    bool // source is one of Config.Peers
	gaveWay atomic.Bool
}

var errGaveWay = errors.New("its handshake took long while others waited")

// enter counts an inbound handshake in, nil if there is no room for it. Who has
// most of those under way gives way to who has fewer, and nobody takes the room
// of the cluster's own nodes.
func (m *Mesh) enter(raw net.Conn) *handshake {
	h := &handshake{raw: raw, source: sourceOf(raw.RemoteAddr())}
	h.peer = slices.Contains(m.cfg.Peers, h.source)
	m.mu.Lock()
	defer m.mu.Unlock()
	total, of := 0, make(map[netip.Addr]int)
	for _, o := range m.shaking {
		if o.peer == h.peer {
			total++
			of[o.source]++
		}
	}
	if !h.peer && of[h.source] >= max(1, m.cfg.MaxHandshakes/2) {
		return nil
	}
	if total >= m.cfg.MaxHandshakes {
		var victim *handshake
		for _, o := range m.shaking {
			if o.peer == h.peer && of[o.source] > of[h.source] && (victim == nil || of[o.source] > of[victim.source]) {
				victim = o
			}
		}
		if victim == nil {
			return nil
		}
		m.remove(victim)
		victim.gaveWay.Store(true)
		_ = victim.raw.Close()
	}
	m.shaking = append(m.shaking, h)
	return h
}

func (m *Mesh) leave(h *handshake) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(h)
}

// remove forgets a handshake. The caller holds mu.
func (m *Mesh) remove(h *handshake) {
	if i := slices.Index(m.shaking, h); i >= 0 {
		m.shaking = slices.Delete(m.shaking, i, i+1)
	}
}
