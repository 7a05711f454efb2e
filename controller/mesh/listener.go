package mesh

import (
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"
)

// listener gives out the connections of one protocol.
type listener struct {
	mesh  *Mesh
	alpn  string
	open  bool // to those without a certificate
	queue chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// offer never waits: serve has looked for room, and if others took it since,
// the connection is closed.
func (l *listener) offer(c net.Conn) {
	select {
	case <-l.done:
		_ = c.Close()
		return
	default:
	}
	select {
	case l.queue <- c:
	default:
		_ = c.Close()
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
	default:
		select {
		case c := <-l.queue:
			return c, nil
		case <-l.done:
		}
	}
	l.drain()
	return nil, fmt.Errorf("accept %s: %w", l.alpn, ErrClosed)
}

// Close ends Accept. Connections that were accepted stay open.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.mesh.mu.Lock()
		if l.mesh.protocols[l.alpn] == l {
			delete(l.mesh.protocols, l.alpn)
		}
		l.mesh.mu.Unlock()
		close(l.done)
	})
	l.drain()
	return nil
}

func (l *listener) drain() {
	for {
		select {
		case c := <-l.queue:
			_ = c.Close()
		default:
			return
		}
	}
}

func (l *listener) Addr() net.Addr { return l.mesh.Addr() }

// refusals keeps a peer that tries again and again from filling the log: the
// same reason from the same address is logged once a minute.
type refusals struct {
	mu   sync.Mutex
	last map[string]time.Time
}

const (
	refusalPause = time.Minute
	maxRefusals  = 256
)

// momentary is what differs each time in the text of an expired certificate.
var momentary = regexp.MustCompile(`current time \S+`)

func (r *refusals) log(log *slog.Logger, remote net.Addr, err error, now time.Time) {
	host, _, splitErr := net.SplitHostPort(remote.String())
	if splitErr != nil {
		host = remote.String()
	}
	key := host + " " + momentary.ReplaceAllString(err.Error(), "")
	key = key[:min(len(key), 512)]
	r.mu.Lock()
	last, known := r.last[key]
	if known && now.Sub(last) < refusalPause {
		r.mu.Unlock()
		return
	}
	if r.last == nil || len(r.last) >= maxRefusals {
		r.last = make(map[string]time.Time)
	}
	r.last[key] = now
	r.mu.Unlock()
	if strings.HasPrefix(err.Error(), notServedByUs) {
		// Nodes that start ask for what this one does not serve yet.
		log.Info("mesh is asked for a protocol that it does not serve", "remote", host)
		return
	}
	log.Warn("mesh refuses a connection", "remote", host, "err", err)
}
