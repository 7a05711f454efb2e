package phone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/emiago/sipgo/sip"

	"bellwether/cscf/sipmsg"
)

// maxServers is how many requests a phone keeps for their repetitions, for 32 s
// each. More are dropped.
const maxServers = 512

// parser leaves the headers that carry routes and contacts as they came: sipgo
// would drop parameters after the ">" and cut lists at commas within quotes.
var parser = sip.NewParser(sip.WithHeadersParsers(func() sip.HeadersParser {
	h := maps.Clone(sip.DefaultHeadersParser())
	for _, name := range []string{"route", "record-route", "contact", "m", "via", "v", "refer-to", "referred-by"} {
		delete(h, name)
	}
	return h
}()))

// endpoint is a phone's wire with its transactions. Requests and responses are
// handled in the reader's goroutine, one by one.
type endpoint struct {
	wire    wire
	log     *slog.Logger
	handler handler
	ended   chan struct{}  // closed when the reader has ended
	scan    sipmsg.Message // of the reader

	mu      sync.Mutex
	clients map[string]*client
	servers map[string]*sip.ServerTx
}

// handler gets what comes in, in order, in the reader's goroutine. Its methods
// must not block.
type handler interface {
	request(req *sip.Request, tx *sip.ServerTx)        // a new one
	ack(req *sip.Request)                              // of a 2xx
	cancel(req *sip.Request, tx, invite *sip.ServerTx) // invite is nil if it is not known
}

// client is a client transaction.
type client struct {
	tx       *sip.ClientTx
	flow     flow
	rejected bool // an INVITE got a final response other than 2xx; of the reader only
}

// flow sends to one peer. It is the sip.Connection of a transaction, which so
// needs no look-up of addresses when it repeats a message.
type flow struct {
	e  *endpoint
	to netip.AddrPort
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (f flow) WriteMsg(m sip.Message) error {
	buf := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(buf)
	buf.Reset()
	m.StringWrite(buf)
	return f.e.wire.send(buf.Bytes(), f.to)
}

func (f flow) LocalAddr() net.Addr    { return net.UDPAddrFromAddrPort(f.e.wire.local()) }
func (f flow) Ref(int) int            { return 1 }
func (f flow) TryClose() (int, error) { return 1, nil }
func (f flow) Close() error           { return nil }

// silent is the log of sipgo's transactions: what they say is what networks do.
var silent = slog.New(slog.DiscardHandler)

func (e *endpoint) read() {
	defer close(e.ended)
	e.wire.read(e.receive)
}

// receive handles one message, whose bytes it keeps. sipmsg's strict scan comes
// first: it refuses what sipgo would accept silently or take seconds for.
func (e *endpoint) receive(b []byte, from netip.AddrPort) {
	if len(bytes.Trim(b, "\r\n\x00")) == 0 {
		return // keep-alive
	}
	if err := e.scan.Parse(b); err != nil {
		e.log.Debug("message refused", "from", from, "err", err)
		var fault *sipmsg.Error
		if errors.As(err, &fault) && fault.Status != 0 && e.scan.Answerable() {
			_ = e.wire.send(e.scan.Response(fault.Status, fault.Reason, sip.GenerateTagN(8)).Bytes(), from)
		}
		return
	}
	msg, err := parser.ParseSIP(b)
	if err == nil {
		setVias(msg, &e.scan)
	}
	if err != nil || !complete(msg) {
		e.log.Debug("message refused", "from", from, "err", err)
		return
	}
	switch m := msg.(type) {
	case *sip.Response:
		e.response(m)
	case *sip.Request:
		m.SetTransport(e.wire.transport())
		m.SetSource(from.String())
		e.serve(m, flow{e, answerTo(m.Via(), from)})
	}
}

// setVias gives sipgo the top Via in its own form and leaves the others, which
// responses carry back, byte for byte.
func setVias(msg sip.Message, scan *sipmsg.Message) {
	top, ok := scan.TopVia()
	if !ok {
		return
	}
	h := &sip.ViaHeader{
		ProtocolName: "SIP", ProtocolVersion: "2.0",
		Transport: top.Transport, Host: strings.Trim(top.Host, "[]"), Port: top.Port,
	}
	for name, value := range top.Params.All() {
		if strings.ContainsAny(value, " \t") {
			value = sipmsg.Unquote(value) // sipgo puts the quotes back
		}
		h.Params = append(h.Params, sip.HeaderKV{K: strings.ToLower(name), V: value})
	}
	vias := []sip.Header{h}
	i := 0
	for v := range scan.Elements(sipmsg.ViaHeader) {
		if i++; i > 1 {
			vias = append(vias, sip.NewHeader("Via", v))
		}
	}
	for _, name := range []string{"via", "v"} {
		for _, old := range msg.GetHeaders(name) {
			msg.(interface{ RemoveHeader(string) bool }).RemoveHeader(old.Name())
		}
	}
	msg.PrependHeader(vias...)
}

// complete reports whether sipgo found what the scan found.
func complete(m sip.Message) bool {
	return m.Via() != nil && m.From() != nil && m.To() != nil && m.CallID() != nil && m.CSeq() != nil
}

// answerTo returns where responses go, and notes in the Via what the next
// hops need (RFC 3261 §18.2.1, §18.2.2, RFC 3581 §4).
func answerTo(via *sip.ViaHeader, from netip.AddrPort) netip.AddrPort {
	if host, err := netip.ParseAddr(via.Host); err != nil || host.Unmap() != from.Addr() {
		via.Params.Add("received", from.Addr().String())
	}
	if via.Params.Has("rport") {
		via.Params.Add("rport", strconv.Itoa(int(from.Port())))
		via.Params.Add("received", from.Addr().String())
		return from
	}
	if via.Port > 0 && via.Port < 1<<16 {
		return netip.AddrPortFrom(from.Addr(), uint16(via.Port))
	}
	return netip.AddrPortFrom(from.Addr(), 5060)
}

// serve matches a request to its transaction (RFC 3261 §17.2.3) or begins one.
func (e *endpoint) serve(req *sip.Request, f flow) {
	via := req.Via()
	branch, _ := via.Params.Get("branch")
	id := branch + " " + via.Host + " " + strconv.Itoa(via.Port) + " "
	method := req.Method
	if method == sip.ACK {
		method = sip.INVITE
	}
	key := id + string(method)

	e.mu.Lock()
	tx := e.servers[key]
	invite := e.servers[id+string(sip.INVITE)]
	if tx == nil && req.Method != sip.ACK && len(e.servers) == maxServers {
		e.mu.Unlock()
		e.log.Debug("too many requests", "method", req.Method)
		return
	}
	if tx == nil && req.Method != sip.ACK {
		tx = sip.NewServerTx(key, req, f, silent)
		tx.OnTerminate(func(key string, _ error) {
			e.mu.Lock()
			delete(e.servers, key)
			e.mu.Unlock()
		})
		e.servers[key] = tx
		e.mu.Unlock()
		if err := tx.Init(); err != nil { // starts the timer of 100 Trying
			e.log.Debug("request refused", "method", req.Method, "err", err)
			tx.Terminate()
			return
		}
		if req.Method == sip.CANCEL {
			// Not left to sipgo, which would answer the INVITE as well, with
			// another To tag, and lose a 200 that is on its way.
			e.handler.cancel(req, tx, invite)
		} else {
			e.handler.request(req, tx)
		}
		return
	}
	e.mu.Unlock()

	if tx == nil { // an ACK for a 2xx has a branch of its own
		e.handler.ack(req)
		return
	}
	if err := tx.Receive(req); err != nil { // a repeated request, or the ACK of a refusal
		e.log.Debug("request refused", "method", req.Method, "err", err)
	}
}

// response matches a response to its transaction (RFC 3261 §17.1.3) and waits
// until the goroutine that began it has taken it.
func (e *endpoint) response(res *sip.Response) {
	key, err := sip.ClientTxKeyMake(res)
	if err != nil {
		return
	}
	e.mu.Lock()
	c := e.clients[key]
	e.mu.Unlock()
	if c == nil {
		return
	}
	invite := c.tx.Origin()
	if c.rejected {
		// sipgo would repeat the ACK after 4 s only and hold up the reader for it.
		if res.StatusCode >= 300 {
			_ = c.flow.WriteMsg(refusalACK(invite, res))
		}
		return
	}
	c.rejected = invite.IsInvite() && res.StatusCode >= 300
	c.tx.Receive(res)
}

// refusalACK acknowledges a final response other than 2xx (RFC 3261 §17.1.1.3).
func refusalACK(invite *sip.Request, res *sip.Response) *sip.Request {
	ack := sip.NewRequest(sip.ACK, invite.Recipient)
	ack.AppendHeader(invite.Via().Clone())
	sip.CopyHeaders("Route", invite, ack)
	ack.AppendHeader(sip.NewHeader("Max-Forwards", "70"))
	ack.AppendHeader(invite.From())
	ack.AppendHeader(res.To())
	ack.AppendHeader(invite.CallID())
	ack.AppendHeader(&sip.CSeqHeader{SeqNo: invite.CSeq().SeqNo, MethodName: sip.ACK})
	ack.SetBody(nil)
	return ack
}

// online waits for the wire, as long as for a final response.
func (e *endpoint) online(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 64*sip.T1, errUnreachable)
	defer cancel()
	return e.wire.online(ctx)
}

// start sends a request that has all headers. Whoever calls it takes Responses
// until a final one or Done, and must not change req again.
func (e *endpoint) start(req *sip.Request, to netip.AddrPort) (*sip.ClientTx, error) {
	key, err := sip.ClientTxKeyMake(req)
	if err != nil {
		return nil, fmt.Errorf("send %s: %w", req.Method, err)
	}
	// sipgo finds these two when it needs them, and keeps what it found: once
	// the reader and timers have the request, that would be a race.
	req.SetTransport(e.wire.transport())
	req.Contact()
	f := flow{e, to}
	tx := sip.NewClientTx(key, req, f, silent)
	tx.OnTerminate(func(key string, _ error) {
		e.mu.Lock()
		delete(e.clients, key)
		e.mu.Unlock()
	})
	e.mu.Lock()
	e.clients[key] = &client{tx: tx, flow: f}
	e.mu.Unlock()
	if err := tx.Init(); err != nil {
		tx.Terminate()
		return nil, fmt.Errorf("send %s to %v: %w", req.Method, to, err)
	}
	return tx, nil
}

// abandon ends the client transactions whose responses cannot come any more.
func (e *endpoint) abandon() {
	e.mu.Lock()
	var txs []sip.Transaction
	for _, c := range e.clients {
		txs = append(txs, c.tx)
	}
	e.mu.Unlock()
	for _, tx := range txs {
		tx.Terminate()
	}
}

// cause is why a client transaction ended without a final response.
func cause(tx *sip.ClientTx) error {
	switch err := tx.Err(); {
	case err == nil: // sipgo says that it is over before it says why
	case errors.Is(err, sip.ErrTransactionCanceled), errors.Is(err, sip.ErrTransactionTerminated):
	default:
		return err
	}
	return errConnectionLost // nobody else ends one that is waited for
}

// exchange sends a request other than INVITE and returns its final response.
func (e *endpoint) exchange(ctx context.Context, req *sip.Request, to netip.AddrPort) (*sip.Response, error) {
	if err := e.online(ctx); err != nil {
		return nil, fmt.Errorf("%s to %v: %w", req.Method, to, err)
	}
	tx, err := e.start(req, to)
	if err != nil {
		return nil, err
	}
	defer tx.Terminate()
	for {
		select {
		case res := <-tx.Responses():
			if !res.IsProvisional() {
				return res, nil
			}
		case <-tx.Done():
			return nil, fmt.Errorf("%s to %v: %w", req.Method, to, cause(tx))
		case <-ctx.Done():
			return nil, fmt.Errorf("%s to %v: %w", req.Method, to, context.Cause(ctx))
		}
	}
}

// via is the header of a new transaction.
func (e *endpoint) via() *sip.ViaHeader {
	local := e.wire.local()
	return &sip.ViaHeader{
		ProtocolName: "SIP", ProtocolVersion: "2.0", Transport: e.wire.transport(),
		Host: local.Addr().String(), Port: int(local.Port()),
		Params: sip.HeaderParams{{K: "branch", V: sip.GenerateBranchN(24)}, {K: "rport"}},
	}
}

// close ends all transactions, the wire and the reader.
func (e *endpoint) close() {
	e.wire.close()
	e.abandon()
	e.refuse()
	<-e.ended
	e.refuse() // the reader may have begun one more
}

// refuse ends the server transactions.
func (e *endpoint) refuse() {
	e.mu.Lock()
	var txs []sip.Transaction
	for _, tx := range e.servers {
		txs = append(txs, tx)
	}
	e.mu.Unlock()
	for _, tx := range txs {
		tx.Terminate()
	}
}
