package phone

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/fnv"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/icholy/digest"

	"bellwether/cscf/sipmsg"
	"bellwether/media/rtp"
)

const domain = "ims.test"

// core is a small IMS core: a P-CSCF and an S-CSCF as stateless proxies that
// record routes and check the routes they get, and a registrar with digest.
type core struct {
	p, s *hop

	mu         sync.Mutex
	secrets    map[string]string // by private identity
	usims      map[string]*usim  // by private identity
	bindings   map[string]string // contact URI by address of record
	algorithms []string          // challenged with
	nonces     map[string]bool   // issued and still good
	least      int               // Min-Expires, in seconds
	grant      int               // registrations are granted this long at most, in seconds; 0: as asked
	refuse     int               // every REGISTER is answered with this status; 0: none
	seen       []string
	// edit, if set, changes what the P-CSCF sends to phones.
	edit func(m *sipmsg.Message)
}

// hop is one proxy of the core.
type hop struct {
	name string
	conn rtp.Conn
	addr netip.AddrPort
	done chan struct{}
}

type listener func(netip.AddrPort) (rtp.Conn, netip.AddrPort, error)

func newCore(t testing.TB, listen listener) *core {
	t.Helper()
	c := &core{secrets: make(map[string]string), bindings: make(map[string]string), nonces: make(map[string]bool), algorithms: []string{"MD5"}}
	for name, serve := range map[string]func(*sipmsg.Message, netip.AddrPort) *sipmsg.Message{"p": c.atP, "s": c.atS} {
		conn, addr, err := listen(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		h := &hop{name: name, conn: conn, addr: addr, done: make(chan struct{})}
		if name == "p" {
			c.p = h
		} else {
			c.s = h
		}
		defer func() { go c.run(h, serve) }()
		t.Cleanup(func() {
			conn.Close()
			<-h.done
		})
	}
	return c
}

func (c *core) run(h *hop, serve func(*sipmsg.Message, netip.AddrPort) *sipmsg.Message) {
	defer close(h.done)
	buf := make([]byte, 64<<10)
	for {
		n, from, err := h.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		m, err := sipmsg.Parse(append([]byte(nil), buf[:n]...))
		if err != nil {
			panic(fmt.Sprintf("the core got %q: %v", buf[:n], err))
		}
		if !m.IsRequest() {
			m.Pop(sipmsg.ViaHeader)
			via, _ := m.TopVia()
			c.send(h, m, netip.MustParseAddrPort(via.SentBy()))
			continue
		}
		c.note(h.name + " " + m.Method())
		// Before the Via is changed: a stateless proxy's branch must be the
		// same for a CANCEL and for each repetition.
		via, _ := m.TopVia()
		if via.SentBy() != from.String() {
			panic(fmt.Sprintf("Via %s came from %v", via, from))
		}
		f := fnv.New64()
		f.Write([]byte(via.Branch() + h.name))
		if out := serve(m, from); out != nil {
			if out.IsRequest() {
				out.Push(sipmsg.ViaHeader, fmt.Sprintf("SIP/2.0/UDP %v;branch=z9hG4bK%x", h.addr, f.Sum64()))
				c.send(h, out, nextHop(out))
			} else {
				c.send(h, out, from)
			}
		}
	}
}

func (c *core) send(h *hop, m *sipmsg.Message, to netip.AddrPort) {
	if c.edit != nil && h == c.p && to != c.s.addr {
		c.edit(m)
	}
	h.conn.WriteToUDPAddrPort(m.Bytes(), to)
}

func (c *core) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, what)
}

// count is how often the core saw a request, as "p INVITE".
func (c *core) count(what string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.seen {
		if s == what {
			n++
		}
	}
	return n
}

func nextHop(m *sipmsg.Message) netip.AddrPort {
	uri := m.RequestURI()
	if r, ok := m.TopRoute(); ok {
		uri = r.URI
	}
	u, err := sipmsg.ParseURI(uri)
	if err != nil {
		panic(err)
	}
	addr, ok := u.HostPort()
	if !ok {
		panic("no address in " + uri)
	}
	return addr
}

func (h *hop) route(user string) string { return fmt.Sprintf("<sip:%s@%v;lr>", user, h.addr) }

// popRoute removes the top Route and returns its user, if it is one of h.
func (h *hop) popRoute(m *sipmsg.Message) (user string, ok bool) {
	r, ok := m.TopRoute()
	if !ok {
		return "", false
	}
	u, err := sipmsg.ParseURI(r.URI)
	if err != nil || strings.Trim(u.Host, "[]") != h.addr.Addr().String() || u.Port != int(h.addr.Port()) {
		return "", false
	}
	m.Pop(sipmsg.Route)
	return u.User, true
}

// atP is the P-CSCF: "" is the route that phones know, "out" and "in" are those
// that it records towards and from the core, "term" is the Path.
func (c *core) atP(m *sipmsg.Message, from netip.AddrPort) *sipmsg.Message {
	if m.Method() == "REGISTER" {
		return c.register(m)
	}
	user, ok := c.p.popRoute(m)
	if !ok {
		return reject(m, 400, "No Route Through the P-CSCF")
	}
	switch user {
	case "":
		want := c.s.route("orig")
		if got, _ := m.Value(sipmsg.Route); got != want {
			return reject(m, 403, "Route Is Not the Service-Route")
		}
		id, _ := m.Value(sipmsg.PPreferredIdentity)
		if m.Method() != "ACK" && m.Method() != "CANCEL" {
			if id == "" {
				return reject(m, 403, "No Identity Preferred")
			}
			m.Set(sipmsg.PAssertedIdentity, id)
			m.Remove(sipmsg.PPreferredIdentity)
			m.Push(sipmsg.RecordRoute, c.p.route("out"))
		}
	case "term":
		m.Push(sipmsg.RecordRoute, c.p.route("in"))
	case "out", "in":
		if next, ok := m.TopRoute(); ok && next.URI == "sip:p@"+c.s.addr.String() {
			return reject(m, 400, "Routes Out of Order")
		}
	}
	return m
}

func (c *core) atS(m *sipmsg.Message, _ netip.AddrPort) *sipmsg.Message {
	user, ok := c.s.popRoute(m)
	if !ok {
		return reject(m, 400, "No Route Through the S-CSCF")
	}
	if user != "orig" {
		return m
	}
	u, err := sipmsg.ParseURI(m.RequestURI())
	if err != nil {
		return reject(m, 400, "")
	}
	c.mu.Lock()
	contact := c.bindings[u.AOR()]
	c.mu.Unlock()
	if contact == "" {
		return reject(m, 404, "")
	}
	m.SetRequestURI(contact)
	m.Push(sipmsg.Route, c.p.route("term"))
	m.Push(sipmsg.RecordRoute, c.s.route("mid"))
	return m
}

func reject(m *sipmsg.Message, status int, reason string) *sipmsg.Message {
	if m.Method() == "ACK" {
		return nil
	}
	return m.Response(status, reason, "core")
}

func (c *core) register(m *sipmsg.Message) *sipmsg.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != 0 {
		return m.Response(c.refuse, "", "reg")
	}
	value, _ := m.Value(sipmsg.Authorization)
	cred, err := digest.ParseCredentials(value)
	if err != nil {
		return m.Response(400, "Authorization Is Missing", "reg")
	}
	usim := c.usims[cred.Username]
	usim.take(value)
	if !c.nonces[cred.Nonce] || cred.Response == "" || usim.resynchronised() {
		nonce := fmt.Sprintf("nonce-%d", len(c.nonces))
		res := m.Response(401, "", "reg")
		for _, a := range c.algorithms {
			if a == akaMD5 && usim != nil {
				nonce = usim.challenge()
			}
			c.nonces[nonce] = true
			res.Add(sipmsg.WWWAuthenticate, fmt.Sprintf(`Digest realm="%s", nonce="%s", algorithm=%s, qop="auth", stale=%v`,
				domain, nonce, a, cred.Nonce != ""))
		}
		return res
	}
	if cred.Response != c.expected(cred, m.Method()) {
		return m.Response(403, "Wrong Password", "reg")
	}
	expires, _ := m.Value(sipmsg.Expires)
	n, _ := strconv.Atoi(expires)
	if n > 0 && n < c.least {
		res := m.Response(423, "", "reg")
		res.Add(sipmsg.MinExpires, strconv.Itoa(c.least))
		return res
	}
	if c.grant > 0 {
		n = min(n, c.grant)
	}
	to, _ := m.To()
	contact, _ := m.Value(sipmsg.Contact)
	addr, err := sipmsg.ParseNameAddr(contact)
	if err != nil {
		return m.Response(400, "", "reg")
	}
	aor, _ := sipmsg.ParseURI(to.URI)
	res := m.Response(200, "", "reg")
	if n == 0 {
		delete(c.bindings, aor.AOR())
		return res
	}
	c.bindings[aor.AOR()] = addr.URI
	res.Add(sipmsg.Contact, fmt.Sprintf("<sip:other@192.0.2.9>;expires=7, %s;expires=%d", contact, n))
	res.Add(sipmsg.ServiceRoute, c.s.route("orig"))
	res.Add(sipmsg.PAssociatedURI, fmt.Sprintf("<%s>, <tel:+4930%s>", to.URI, aor.User))
	return res
}

// expected computes the response of RFC 7616 §3.4.1 anew.
func (c *core) expected(cred *digest.Credentials, method string) string {
	var h hash.Hash
	secret := c.secrets[cred.Username]
	switch cred.Algorithm {
	case "MD5":
		h = md5.New()
	case "SHA-256":
		h = sha256.New()
	case akaMD5:
		h, secret = md5.New(), c.usims[cred.Username].xres[cred.Nonce]
	default:
		return "no such algorithm"
	}
	sum := func(parts ...string) string {
		h.Reset()
		h.Write([]byte(strings.Join(parts, ":")))
		return hex.EncodeToString(h.Sum(nil))
	}
	if cred.URI != "sip:"+domain || cred.Realm != domain {
		return "wrong uri or realm"
	}
	a1 := sum(cred.Username, cred.Realm, secret)
	return sum(a1, cred.Nonce, fmt.Sprintf("%08x", cred.Nc), cred.Cnonce, cred.QOP, sum(method, cred.URI))
}

// phone makes a phone of the core's, registered unless it is told not to.
func (c *core) phone(t testing.TB, listen listener, user string, edit func(*Config)) *Phone {
	t.Helper()
	cfg := Config{
		AOR: "sip:" + user + "@" + domain, IMPI: user + "@" + domain, Password: "secret of " + user,
		Domain: domain, Proxy: c.p.addr, LocalIP: netip.MustParseAddr("127.0.0.1"), listen: listen,
	}
	if edit != nil {
		edit(&cfg)
	}
	c.mu.Lock()
	c.secrets[cfg.IMPI] = "secret of " + user
	c.mu.Unlock()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func (c *core) registered(t testing.TB, listen listener, user string, edit func(*Config)) *Phone {
	t.Helper()
	p := c.phone(t, listen, user, edit)
	if err := p.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}
