// Package mesh is the one port over which the nodes of a cluster talk to each
// other: TLS 1.3, both sides with a certificate, several protocols told apart
// by ALPN (RFC 7301).
//
// A peer is who its certificate says: its URI name
// bellwether://CLUSTERID/node/NAME, signed by the cluster's CA. Host names and
// addresses in certificates mean nothing here. A peer of another cluster, CA or
// role is refused on both sides, with one log line that says why.
//
// Who has no certificate yet can speak the protocols of HandleOpen, with Stranger,
// and no other; it knows the cluster's CA by its fingerprint.
//
// The package does not know what the protocols carry, keeps no connections
// alive and does not reconnect. It closes a connection before a certificate
// that it was made with runs out, when half of what was left of it is over: a
// connection that is made instead is made with today's certificates.
//
// Invariants: a connection that Accept or Dial returns has been verified by
// both sides, but for one of a HandleOpen protocol, whose PeerNode may be "";
// at most Config.MaxHandshakes inbound handshakes are under way, and as many
// again of Config.Peers, each for at most Config.HandshakeTimeout; who connects
// and says nothing keeps neither the peers out nor, from fewer addresses than
// that, others; certificates are loaded again for each handshake.
//
// Failure modes: a certificate that does not load fails that handshake, not
// the mesh; a protocol whose accept queue is full, or that nobody handles, is
// refused and Dial says so.
package mesh

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ErrClosed means that the mesh, or the listener, is closed.
var ErrClosed = net.ErrClosed

// ErrRefused means that one side does not accept the other: wrong cluster, CA,
// role or node, or a protocol that is not handled.
var ErrRefused = errors.New("peer refused")

// ErrNotServed is an ErrRefused of a peer that does not, or not yet, serve the
// protocol.
var ErrNotServed = errors.New("it does not serve this protocol")

const (
	defaultHandshakes = 64
	defaultTimeout    = 3 * time.Second
	queueSize         = 64 // accepted connections that a protocol's user has not taken yet
	accepted          = 'k'
	queueFull         = 'q'
)

// Config says who this node is and whom it trusts.
type Config struct {
	Addr             string                           // host:port to listen on; its address, if it is one, is also where connections come from
	Certificate      func() (*tls.Certificate, error) // this node's; called for every handshake
	CA               *x509.CertPool
	CACert           []byte // DER; shown to those who know only its fingerprint
	ClusterID        string
	NodeName         string
	HandshakeTimeout time.Duration // 0: 3 s
	MaxHandshakes    int           // 0: 64
	Peers            []netip.Addr  // where nodes of the cluster connect from
	Log              *slog.Logger  // nil: slog.Default()
}

// Mesh is a node's port and its connections. Its methods may be called from
// any goroutine.
type Mesh struct {
	cfg    Config
	tcp    net.Listener
	dialer net.Dialer
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	log    *slog.Logger
	refuse refusals

	mu        sync.Mutex // nothing is called with it held
	protocols map[string]*listener
	conns     map[*tracked]struct{}
	shaking   []*handshake // inbound, under way; the oldest first
	closed    bool
}

// Listen opens the node's port. The certificate must load and belong to
// NodeName of ClusterID.
func Listen(cfg Config) (*Mesh, error) {
	m, err := Dialer(cfg)
	if err != nil {
		return nil, fmt.Errorf("listen on mesh %s: %w", cfg.Addr, err)
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	tcp, err := lc.Listen(m.ctx, "tcp", cfg.Addr)
	if err != nil {
		m.cancel()
		return nil, fmt.Errorf("listen on mesh %s: %w", cfg.Addr, err)
	}
	m.tcp = tcp
	m.wg.Add(1)
	go m.accept()
	return m, nil
}

// Dialer returns a mesh without a port, for a process that only dials. Addr
// gives the address that it dials from.
func Dialer(cfg Config) (*Mesh, error) {
	if cfg.HandshakeTimeout == 0 {
		cfg.HandshakeTimeout = defaultTimeout
	}
	if cfg.MaxHandshakes == 0 {
		cfg.MaxHandshakes = defaultHandshakes
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	m := &Mesh{
		cfg: cfg, log: cfg.Log,
		protocols: make(map[string]*listener), conns: make(map[*tracked]struct{}),
		dialer: net.Dialer{KeepAliveConfig: keepAlive, LocalAddr: sourceAddr(cfg.Addr)},
	}
	if err := m.checkOwn(); err != nil {
		return nil, err
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m, nil
}

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 3}

// sourceAddr makes a node with several addresses speak from the one that its
// peers and packet filters know.
func sourceAddr(addr string) net.Addr {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil || ap.Addr().IsUnspecified() {
		return nil
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ap.Addr(), 0))
}

func (m *Mesh) checkOwn() error {
	cert, err := m.certificate()
	if err != nil {
		return err
	}
	chain := make([]*x509.Certificate, len(cert.Certificate))
	for i, der := range cert.Certificate {
		if chain[i], err = x509.ParseCertificate(der); err != nil {
			return fmt.Errorf("own certificate: %w", err)
		}
	}
	if err := m.verify(chain, m.cfg.NodeName, x509.ExtKeyUsageServerAuth); err != nil {
		return fmt.Errorf("own certificate: %w", err)
	}
	return nil
}

func (m *Mesh) certificate() (*tls.Certificate, error) {
	cert, err := m.cfg.Certificate()
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	return cert, nil
}

// Addr is the address listened on, nil of a mesh without a port.
func (m *Mesh) Addr() net.Addr {
	if m.tcp == nil {
		return nil
	}
	return m.tcp.Addr()
}

// NodeName is this node's name.
func (m *Mesh) NodeName() string { return m.cfg.NodeName }

// Handle returns the listener for a protocol. The connections that it accepts
// are *tls.Conn. A protocol can be handled once at a time; a second Handle
// before the first listener's Close gives a listener that is closed.
func (m *Mesh) Handle(alpn string) net.Listener { return m.handle(alpn, false) }

// HandleOpen is Handle for a protocol that is spoken also by those who have no
// certificate: PeerNode of their connections is "".
func (m *Mesh) HandleOpen(alpn string) net.Listener { return m.handle(alpn, true) }

func (m *Mesh) handle(alpn string, open bool) net.Listener {
	l := &listener{mesh: m, alpn: alpn, open: open, queue: make(chan net.Conn, queueSize), done: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.protocols[alpn]; taken || m.closed {
		l.once.Do(func() { close(l.done) })
		return l
	}
	m.protocols[alpn] = l
	return l
}

// Dial opens a connection for a protocol to a node, and verifies that it is
// that node. Without a deadline in ctx it takes at most the handshake timeout.
func (m *Mesh) Dial(ctx context.Context, addr, node, alpn string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(m.ctx, cancel)
	defer stop()
	conn, err := m.dial(ctx, addr, node, alpn)
	if err != nil {
		return nil, fmt.Errorf("dial node %s at %s for %s: %w", node, addr, alpn, err)
	}
	return conn, nil
}

func (m *Mesh) dial(ctx context.Context, addr, node, alpn string) (net.Conn, error) {
	raw, err := m.dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	tc, err := m.track(raw)
	if err != nil {
		return nil, err
	}
	var own usedCert
	conn := tls.Client(tc, m.clientConfig(node, alpn, &own))
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = tc.Close()
		return nil, describe(err)
	}
	if err := admitted(ctx, conn, alpn); err != nil {
		_ = tc.Close()
		return nil, describe(err)
	}
	tc.retire(conn, own, dialedLife)
	return conn, nil
}

// admitted waits for the server's word. In TLS 1.3 the client is done before
// the server has looked at its certificate, so only this byte says that the
// server took it.
func admitted(ctx context.Context, conn *tls.Conn, alpn string) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.NetConn().Close() })
	var answer [1]byte
	_, err := conn.Read(answer[:])
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil && answer[0] != accepted {
		err = fmt.Errorf("%w: the peer has no room for another %s connection", ErrRefused, alpn)
	}
	return err
}

// What crypto/tls calls a protocol that the server does not have; it has no
// type that could be asked for.
const (
	notServed     = "tls: no application protocol"
	notServedByUs = "tls: client requested unsupported application protocols"
)

// describe marks what the other side refused.
func describe(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		if op.Err.Error() == notServed {
			return fmt.Errorf("%w: %w", ErrRefused, ErrNotServed)
		}
		return fmt.Errorf("%w by it: %w; its log says why", ErrRefused, err)
	}
	return err
}

func (m *Mesh) accept() {
	defer m.wg.Done()
	for {
		raw, err := m.tcp.Accept()
		if err != nil {
			if m.ctx.Err() != nil {
				return
			}
			// Out of file descriptors, most likely: neither spin nor give up.
			m.log.Warn("mesh cannot accept", "err", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-m.ctx.Done():
			}
			continue
		}
		h := m.enter(raw)
		if h == nil {
			_ = raw.Close()
			continue
		}
		m.wg.Add(1)
		go func() {
			defer m.wg.Done()
			defer m.leave(h)
			m.serve(h)
		}()
	}
}

// serve does an inbound handshake and hands the connection to its protocol.
func (m *Mesh) serve(h *handshake) {
	tc, err := m.track(h.raw)
	if err != nil {
		return
	}
	remote := h.raw.RemoteAddr()
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.HandshakeTimeout)
	defer cancel()
	var own usedCert
	conn := tls.Server(tc, m.serverConfig(&own))
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = tc.Close()
		if h.gaveWay.Load() {
			err = errGaveWay
		}
		if m.ctx.Err() == nil {
			m.refuse.log(m.log, remote, err, time.Now())
		}
		return
	}
	state := conn.ConnectionState()
	m.mu.Lock()
	l := m.protocols[state.NegotiatedProtocol]
	m.mu.Unlock()
	answer := byte(queueFull)
	if l != nil && len(l.queue) < cap(l.queue) {
		answer = accepted
	}
	_ = conn.SetDeadline(time.Now().Add(m.cfg.HandshakeTimeout))
	if _, err = conn.Write([]byte{answer}); err == nil && answer != accepted {
		err = fmt.Errorf("no room for a %s connection of node %s", state.NegotiatedProtocol, NodeOf(&state))
	}
	if err != nil {
		_ = tc.Close()
		m.refuse.log(m.log, remote, err, time.Now())
		return
	}
	_ = conn.SetDeadline(time.Time{})
	tc.retire(conn, own, acceptedLife)
	l.offer(conn)
}

func (m *Mesh) serverConfig(own *usedCert) *tls.Config {
	m.mu.Lock()
	protocols := make([]string, 0, len(m.protocols))
	open := make(map[string]bool)
	for alpn, l := range m.protocols {
		protocols = append(protocols, alpn)
		open[alpn] = l.open
	}
	m.mu.Unlock()
	slices.Sort(protocols)
	if len(protocols) == 0 {
		protocols = []string{"none"} // with an empty list TLS would accept any protocol
	}
	closed := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return own.load(m)
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			if cs.NegotiatedProtocol == "" {
				return fmt.Errorf("%w: it asks for no protocol", ErrRefused)
			}
			if open[cs.NegotiatedProtocol] && len(cs.PeerCertificates) == 0 {
				return nil
			}
			return m.verifyPeer(cs.PeerCertificates, "", x509.ExtKeyUsageClientAuth)
		},
		SessionTicketsDisabled: true, // every connection proves itself with today's certificates
	}
	stranger := closed.Clone()
	stranger.ClientAuth = tls.RequestClientCert
	stranger.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := own.load(m)
		if err != nil || m.cfg.CACert == nil {
			return cert, err
		}
		chain := *cert
		chain.Certificate = append(slices.Clone(cert.Certificate), m.cfg.CACert)
		return &chain, nil
	}
	closed.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if len(hello.SupportedProtos) == 1 && open[hello.SupportedProtos[0]] {
			return stranger, nil
		}
		return nil, nil
	}
	return closed
}

func (m *Mesh) clientConfig(node, alpn string, own *usedCert) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{alpn},
		InsecureSkipVerify: true, // VerifyConnection does it: names are not host names here
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return own.load(m)
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			return m.verifyPeer(cs.PeerCertificates, node, x509.ExtKeyUsageServerAuth)
		},
		SessionTicketsDisabled: true,
	}
}

// Close closes the port, the listeners and every connection.
func (m *Mesh) Close() error {
	m.mu.Lock()
	m.closed = true
	listeners := make([]*listener, 0, len(m.protocols))
	for _, l := range m.protocols {
		listeners = append(listeners, l)
	}
	conns := make([]*tracked, 0, len(m.conns))
	for c := range m.conns {
		conns = append(conns, c)
	}
	m.mu.Unlock()
	m.cancel()
	var err error
	if m.tcp != nil {
		err = m.tcp.Close()
	}
	for _, l := range listeners {
		_ = l.Close()
	}
	for _, c := range conns {
		_ = c.Close()
	}
	m.wg.Wait()
	if err != nil {
		return fmt.Errorf("close mesh: %w", err)
	}
	return nil
}
