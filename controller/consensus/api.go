package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/controller/mesh"
	"bellwether/controller/state"
)

// What members ask the leader.
const (
	proposePath  = "/v1/propose"
	reservePath  = "/v1/reserve"
	transferPath = "/v1/transfer"
	maxReply     = 8 << 20
	maxRefusal   = 1 << 10 // bytes of a refusal's text
)

type proposeReply struct {
	Index   uint64         `cbor:"i"`
	Results []state.Result `cbor:"r"`
}

type reserveRequest struct {
	Kind state.Kind `cbor:"k"`
	User string     `cbor:"u"`
}

type reserveReply struct {
	Group state.GroupID `cbor:"g"`
	Err   *state.Error  `cbor:"e,omitempty"`
}

type transferRequest struct {
	To string `cbor:"t"`
}

var replyMode = func() cbor.DecMode {
	m, err := cbor.DecOptions{IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden, MaxNestedLevels: 8}.DecMode()
	if err != nil {
		panic(err) // only wrong options reach this, at start
	}
	return m
}()

type peerKey struct{}

// PeerNode is the node that sent a request to a handler on Mux.
func PeerNode(r *http.Request) string {
	name, _ := r.Context().Value(peerKey{}).(string)
	return name
}

// Mux serves HTTP/1.1 over APIProtocol to the cluster's nodes. The paths of
// this package are on it; the caller may add others.
func (c *Controller) Mux() *http.ServeMux { return c.mux }

func (c *Controller) serveAPI() {
	c.mux = http.NewServeMux()
	c.mux.HandleFunc("POST "+proposePath, c.onlyMembers(c.answerPropose))
	c.mux.HandleFunc("POST "+reservePath, c.onlyMembers(c.answerReserve))
	c.mux.HandleFunc("POST "+transferPath, c.onlyMembers(c.answerTransfer))
	c.mux.HandleFunc("POST "+foundingPath, c.answerFounding)
	c.mux.HandleFunc("POST "+rejoinPath, c.onlyMembers(c.answerRejoin))
	c.mux.HandleFunc("POST "+votePath, c.onlyMembers(c.answerVote))
	c.server = &http.Server{
		Handler: c.mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if h, ok := conn.(hidden); ok {
				ctx = context.WithValue(ctx, peerKey{}, mesh.PeerNode(h.Conn))
			}
			return ctx
		},
	}
	l := c.cfg.Mesh.Handle(APIProtocol)
	c.run(func() {
		if err := c.server.Serve(hidingListener{l}); !errors.Is(err, http.ErrServerClosed) && c.ctx.Err() == nil {
			c.log.Error("the cluster port no longer serves the controllers' api", "err", err)
		}
	})
	c.client = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				name, _, _ := net.SplitHostPort(addr)
				m, ok := c.member(name)
				if !ok {
					return nil, fmt.Errorf("node %s is not one of the controllers", name)
				}
				return c.cfg.Mesh.Dial(ctx, m.Addr, m.Name, APIProtocol)
			},
			MaxConnsPerHost: 2 * maxBatchesUnderWay, MaxIdleConnsPerHost: 2 * maxBatchesUnderWay,
			IdleConnTimeout: time.Minute, DisableCompression: true,
		},
	}
}

// hidden keeps net/http from seeing a *tls.Conn, which it would close for the
// sake of an ALPN protocol that it does not know.
type hidden struct{ net.Conn }

type hidingListener struct{ net.Listener }

func (l hidingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return hidden{c}, nil
}

func (c *Controller) onlyMembers(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, ok := c.member(PeerNode(r)); !ok {
			http.Error(w, fmt.Sprintf("node %s is not one of the controllers", PeerNode(r)), http.StatusForbidden)
			return
		}
		h(w, r)
	}
}

func (c *Controller) answerPropose(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, state.MaxBatchSize))
	if err == nil {
		_, err = state.DecodeBatch(data)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), attemptTimeout)
	defer cancel()
	reply, err := c.proposeHere(ctx, data)
	answer(w, reply, err)
}

func (c *Controller) answerReserve(w http.ResponseWriter, r *http.Request) {
	var req reserveRequest
	if !read(w, r, &req) {
		return
	}
	check := state.Command{Assign: &state.Assign{Kind: req.Kind, User: req.User}}
	err := check.Validate()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var reply reserveReply
	reply.Group, err = c.reserveHere(req.Kind, req.User)
	if errors.As(err, &reply.Err) {
		err = nil
	}
	answer(w, reply, err)
}

func (c *Controller) answerTransfer(w http.ResponseWriter, r *http.Request) {
	var req transferRequest
	if !read(w, r, &req) {
		return
	}
	if _, ok := c.member(req.To); !ok && req.To != "" {
		http.Error(w, fmt.Sprintf("node %s is not one of the controllers", req.To), http.StatusBadRequest)
		return
	}
	answer(w, struct{}{}, c.transferHere(r.Context(), req.To))
}

func read(w http.ResponseWriter, r *http.Request, into any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<10))
	if err == nil {
		err = replyMode.Unmarshal(body, into)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

func answer(w http.ResponseWriter, reply any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	body, err := cbor.Marshal(reply)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/cbor")
	_, _ = w.Write(body) // whoever asked is gone if this fails
}

func (c *Controller) askPropose(ctx context.Context, leader string, data []byte) (reply proposeReply, err error) {
	err = c.ask(ctx, leader, proposePath, data, &reply)
	return reply, err
}

func (c *Controller) askReserve(ctx context.Context, leader string, k state.Kind, user string) (state.GroupID, error) {
	body, err := cbor.Marshal(reserveRequest{Kind: k, User: user})
	if err != nil {
		return 0, err
	}
	var reply reserveReply
	if err := c.ask(ctx, leader, reservePath, body, &reply); err != nil {
		return 0, err
	}
	if reply.Err != nil {
		return 0, reply.Err
	}
	return reply.Group, nil
}

func (c *Controller) askTransfer(ctx context.Context, leader, to string) error {
	body, err := cbor.Marshal(transferRequest{To: to})
	if err != nil {
		return err
	}
	return c.ask(ctx, leader, transferPath, body, &struct{}{})
}

func (c *Controller) ask(ctx context.Context, node, path string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+node+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask controller %s: %w", node, err)
	}
	req.Header.Set("Content-Type", "application/cbor")
	resp, err := c.client.Do(req)
	if err != nil {
		return fmt.Errorf("ask controller %s: %w", node, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
		return fmt.Errorf("ask controller %s: %s: %s", node, resp.Status, bytes.TrimSpace(text))
	}
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err == nil {
		err = replyMode.Unmarshal(reply, into)
	}
	if err != nil {
		return fmt.Errorf("ask controller %s: %w", node, err)
	}
	return nil
}
