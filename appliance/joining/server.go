package joining

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

const (
	maxNodes     = 64 // connections of nodes of the cluster at a time
	maxStrangers = 64 // of others
	maxOfSource  = 4  // of others, from one source
	maxRequests  = 16 // of a connection
	serveTime    = 10 * time.Second
)

// Server answers on the founder.
type Server struct {
	Book  Book     // in the CA's directory
	Node  string   // the founder
	Known []Member // cluster.controllers of the founder
	Begun func() bool
	Log   *slog.Logger

	mu        sync.Mutex // nothing slow is done with it held
	failures  failures
	results   map[string]uint64
	known     int // connections that are served
	total     int
	strangers map[netip.Addr]int // total by source
}

// Results counts what was asked, by result: joined, renewed, and the codes of
// refusals.
func (s *Server) Results() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.results)
}

// Serve answers on l until ctx ends. Strangers that hold connections keep
// neither the cluster's nodes nor, from one address, other strangers out.
func (s *Server) Serve(ctx context.Context, l net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
		known := mesh.PeerNode(c) != ""
		if err != nil || !s.enter(remote.Addr(), known) {
			_ = c.Close()
			continue
		}
		wg.Go(func() {
			defer s.leave(remote.Addr(), known)
			defer c.Close()
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			s.serve(c, remote.Addr())
		})
	}
}

// enter counts a connection in, if there is room for it.
func (s *Server) enter(source netip.Addr, known bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	source = sourceOf(source)
	switch {
	case known && s.known >= maxNodes, !known && (s.total >= maxStrangers || s.strangers[source] >= maxOfSource):
		return false
	case known:
		s.known++
	default:
		if s.strangers == nil {
			s.strangers = make(map[netip.Addr]int)
		}
		s.total++
		s.strangers[source]++
	}
	return true
}

func (s *Server) leave(source netip.Addr, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known {
		s.known--
		return
	}
	source = sourceOf(source)
	s.total--
	if s.strangers[source]--; s.strangers[source] == 0 {
		delete(s.strangers, source)
	}
}

func (s *Server) serve(c net.Conn, remote netip.Addr) {
	if err := c.SetDeadline(time.Now().Add(serveTime)); err != nil {
		return
	}
	for range maxRequests {
		var req request
		if err := receive(c, &req); err != nil {
			return
		}
		rep, err := s.answer(req, mesh.PeerNode(c), remote, time.Now())
		var refusal *Refusal
		switch {
		case errors.As(err, &refusal):
			s.count(refusal.Code)
			s.Log.Warn("a request to join is refused", "remote", remote.String(), "node", clip(req.Node), "code", refusal.Code)
			rep = reply{Refused: refusal}
		case err != nil:
			s.count("failed")
			s.Log.Error("answer a request to join", "remote", remote.String(), "node", clip(req.Node), "err", err)
			rep = reply{Refused: &Refusal{Code: "failed", Text: fmt.Sprintf("the founder could not do it; the log of node %s says why", s.Node)}}
		}
		if send(c, rep) != nil || rep.Refused != nil {
			return
		}
	}
}

// clip keeps what a stranger says short and printable in the log.
func clip(s string) string {
	if !plain(s) {
		return ""
	}
	return s
}

func (s *Server) answer(req request, peer string, source netip.Addr, now time.Time) (reply, error) {
	switch req.Ask {
	case askClock:
		return reply{Time: now.UnixNano()}, nil
	case askJoin:
		return s.join(req, source, now)
	case askRenew:
		return s.renew(req, peer, now)
	}
	return reply{}, refusef("no_such_request", "the founder does not know this request; do both machines run the same release?")
}

func (s *Server) join(req request, source netip.Addr, now time.Time) (reply, error) {
	s.mu.Lock()
	allowed := s.failures.allowed(source, now)
	s.mu.Unlock()
	if !allowed {
		return reply{}, refusef("too_many", "the founder refused too many tokens from this address; wait for a minute")
	}
	var rep reply
	err := s.Book.redeem(req.Secret, req.Node, req.Role, now, func() error {
		i := slices.IndexFunc(s.Known, func(m Member) bool { return m.Name == req.Node })
		if !same(s.Known, req.Controllers) || i < 0 {
			return differ(s.Node, s.Known, req.Node, req.Controllers)
		}
		ca, err := pki.LoadCA(s.Book.Dir)
		if err != nil {
			return err
		}
		cert, err := ca.Certify(req.CSR, req.Node, req.Role, addressOf(s.Known[i]))
		if err != nil {
			return refusef("bad_request", "%v", err)
		}
		rep = reply{CA: ca.CertPEM(), Cert: cert, Begun: s.Begun()}
		return nil
	})
	if err != nil {
		if refusal := new(Refusal); errors.As(err, &refusal) {
			s.mu.Lock()
			s.failures.add(source, now)
			s.mu.Unlock()
		}
		return reply{}, err
	}
	s.count("joined")
	s.Log.Info("a node joined", "node", req.Node, "role", req.Role, "remote", source.String())
	return rep, nil
}

// renew certifies a new key of a node that shows a certificate which is good.
func (s *Server) renew(req request, peer string, _ time.Time) (reply, error) {
	if peer == "" {
		return reply{}, refusef("no_certificate", "a certificate is renewed for who shows the present one")
	}
	i := slices.IndexFunc(s.Known, func(m Member) bool { return m.Name == peer })
	if i < 0 {
		return reply{}, refusef("not_listed", "node %s is not among cluster.controllers of node %s", peer, s.Node)
	}
	ca, err := pki.LoadCA(s.Book.Dir)
	if err != nil {
		return reply{}, err
	}
	cert, err := ca.Certify(req.CSR, peer, pki.Controller, addressOf(s.Known[i]))
	if err != nil {
		return reply{}, refusef("bad_request", "%v", err)
	}
	s.count("renewed")
	s.Log.Info("a certificate is renewed", "of", peer)
	return reply{CA: ca.CertPEM(), Cert: cert}, nil
}

func (s *Server) count(result string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.results == nil {
		s.results = make(map[string]uint64)
	}
	s.results[result]++
}

func same(a, b []Member) bool {
	order := func(a, b Member) int { return strings.Compare(a.Name+" "+a.Addr, b.Name+" "+b.Addr) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order))
}

func differ(node string, list []Member, other string, others []Member) error {
	return refusef("controllers_differ", "node %s lists the controllers %s, node %s lists %s; write the same cluster.controllers on every node, then join again", node, Lists(list), other, Lists(others))
}

func addressOf(m Member) []netip.Addr {
	ap, err := netip.ParseAddrPort(m.Addr)
	if err != nil {
		return nil
	}
	return []netip.Addr{ap.Addr()}
}
