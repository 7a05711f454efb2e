package acceptance

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/icholy/digest"

	"bellwether/appliance/localcluster"
	"bellwether/cscf/sipmsg"
)

// wire is a UDP socket or a TCP connection of somebody who writes SIP, or
// something else, by hand. One goroutine at a time may use it.
type wire struct {
	transport string // as a Via names it: UDP or TCP
	conn      net.Conn
	to        netip.AddrPort // where UDP goes, and TCP went
	local     string         // address and port
	in        []byte         // TCP: what came and was not received yet
	from      netip.AddrPort // UDP: who sent what was received last
	number    int

	user         string // registered over it; see register
	serviceRoute string
}

// newWire opens a UDP socket on any port of an address.
func newWire(t testing.TB, local netip.Addr, to netip.AddrPort) *wire {
	return newWireAt(t, netip.AddrPortFrom(local, 0), to)
}

// newWireAt opens a UDP socket on an address and port.
func newWireAt(t testing.TB, local, to netip.AddrPort) *wire {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetReadBuffer(1 << 20) // a smaller one does, on a machine that is quicker
	return &wire{transport: "UDP", conn: c, to: to, local: c.LocalAddr().String()}
}

// dialWire opens a TCP connection from any port of an address.
func dialWire(t testing.TB, local netip.Addr, to netip.AddrPort) *wire {
	t.Helper()
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &wire{transport: "TCP", conn: c, to: to, local: c.LocalAddr().String()}
}

// openWire is newWire or dialWire.
func openWire(t testing.TB, transport string, local netip.Addr, to netip.AddrPort) *wire {
	t.Helper()
	if transport == "TCP" {
		return dialWire(t, local, to)
	}
	return newWire(t, local, to)
}

// send sends bytes as they are: one datagram, or a part of the stream.
func (w *wire) send(t testing.TB, text string) {
	t.Helper()
	var err error
	if c, ok := w.conn.(*net.UDPConn); ok {
		_, err = c.WriteToUDPAddrPort([]byte(text), w.to)
	} else {
		_, err = w.conn.Write([]byte(text))
	}
	if err != nil {
		t.Error(err)
	}
}

// contact is the URI of this wire's phone.
func (w *wire) contact(user string) string {
	uri := "sip:" + user + "@" + w.local
	if w.transport == "TCP" {
		uri += ";transport=tcp"
	}
	return uri
}

// request is a correct request outside of a dialog, as lines without their ends.
// Its first six lines after the request line are Via, From, To, Call-ID, CSeq
// and Max-Forwards.
func (w *wire) request(method, uri, user string) []string {
	w.number++
	self := fmt.Sprintf("sip:%s@%s", user, domain)
	to := self
	if method != "REGISTER" {
		to = uri
	}
	return []string{
		fmt.Sprintf("%s %s SIP/2.0", method, uri),
		fmt.Sprintf("Via: SIP/2.0/%s %s;branch=z9hG4bK-%d;rport", w.transport, w.local, w.number),
		fmt.Sprintf("From: <%s>;tag=%d", self, w.number),
		fmt.Sprintf("To: <%s>", to),
		fmt.Sprintf("Call-ID: %d-%s", w.number, w.local),
		fmt.Sprintf("CSeq: %d %s", w.number, method),
		"Max-Forwards: 70",
		fmt.Sprintf("Contact: <%s>", w.contact(user)),
	}
}

// text ends lines, adds a body and its length.
func text(lines []string, body string) string {
	return strings.Join(lines, "\r\n") + fmt.Sprintf("\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// initial is a request that a registered phone sends outside of a dialog, by
// its Service-Route, with further lines.
func (w *wire) initial(method, uri string, more ...string) []string {
	lines := append(w.request(method, uri, w.user), "Route: <sip:"+w.to.String()+";lr>, "+w.serviceRoute)
	return append(lines, more...)
}

// receive returns the next datagram or the next message of the stream as it
// came, "" if none comes in time. What a stream brings between messages, such
// as a pong, is given as if it were one; its end is an error of the test.
func (w *wire) receive(t testing.TB, within time.Duration) string {
	t.Helper()
	got, err := w.read(within)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// read is receive; io.EOF or a reset is the end of the stream.
func (w *wire) read(within time.Duration) (string, error) {
	_ = w.conn.SetReadDeadline(time.Now().Add(within)) // a closed socket fails at the read
	buf := make([]byte, 1<<16)
	for {
		if n := w.framed(); n > 0 {
			got := string(w.in[:n])
			w.in = w.in[n:]
			return got, nil
		}
		n, err := w.fill(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		if w.transport == "UDP" {
			return string(buf[:n]), nil
		}
		w.in = append(w.in, buf[:n]...)
	}
}

func (w *wire) fill(buf []byte) (n int, err error) {
	if c, ok := w.conn.(*net.UDPConn); ok {
		n, w.from, err = c.ReadFromUDPAddrPort(buf)
		return n, err
	}
	return w.conn.Read(buf)
}

var lengthLine = regexp.MustCompile(`(?im)^(?:content-length|l)[ \t]*:[ \t]*([0-9]+)`)

// framed is the length of the first message that came over a stream as a whole.
func (w *wire) framed() int {
	if len(w.in) > 1 && string(w.in[:2]) == "\r\n" {
		return 2
	}
	head := bytes.Index(w.in, []byte("\r\n\r\n")) + 4
	if head < 4 {
		return 0
	}
	if m := lengthLine.FindSubmatch(w.in[:head]); m != nil {
		n, _ := strconv.Atoi(string(m[1]))
		head += n
	}
	if head > len(w.in) {
		return 0
	}
	return head
}

// closed waits for the far end to close the stream, and returns what came
// before.
func (w *wire) closed(t testing.TB, within time.Duration) (before string) {
	t.Helper()
	for end := time.Now().Add(within); ; {
		got, err := w.read(time.Until(end))
		if err != nil {
			return before + string(w.in)
		}
		if got == "" {
			t.Fatalf("the connection is open after %v; it brought %.300q", within, before)
		}
		before += got
	}
}

// answer is a final response, which may lack what its request lacks.
type answer struct {
	status int
	raw    string
	sipmsg.Message
}

var branchOf = regexp.MustCompile(`(?i)branch[ \t]*=[ \t]*([^;,\s]+)`)

// final returns the final response to a request, which it repeats as a phone
// does, and acknowledges it if it must be.
func (w *wire) final(t testing.TB, request string) *answer {
	t.Helper()
	a := w.ask(t, request, 32*time.Second)
	if a == nil {
		t.Fatalf("no answer to %.300q", request)
	}
	return a
}

// ask is final with a limit of time; nil if no final response comes.
func (w *wire) ask(t testing.TB, request string, within time.Duration) *answer {
	t.Helper()
	w.send(t, request)
	return w.await(t, request, within)
}

// await returns the final response to a request that was sent before; over UDP
// it repeats the request.
func (w *wire) await(t testing.TB, request string, within time.Duration) *answer {
	t.Helper()
	branch := ""
	if m := branchOf.FindStringSubmatch(request); m != nil {
		branch = m[1]
	}
	end := time.Now().Add(within)
	pause := 500 * time.Millisecond
	for time.Now().Before(end) {
		got := w.receive(t, min(pause, max(time.Until(end), time.Millisecond)))
		if got == "" && w.transport == "UDP" && time.Now().Before(end) {
			w.send(t, request)
			pause = min(2*pause, 4*time.Second)
		}
		var a answer
		if _, err := fmt.Sscanf(got, "SIP/2.0 %d ", &a.status); err != nil || a.status < 200 {
			continue
		}
		if m := branchOf.FindStringSubmatch(got); branch != "" && (m == nil || m[1] != branch) {
			continue
		}
		a.raw = got
		_ = a.Parse([]byte(got)) // may be as wrong as the request
		if strings.HasPrefix(request, "INVITE ") && a.status >= 300 {
			w.acknowledge(t, request, &a)
		}
		return &a
	}
	return nil
}

var toLine = regexp.MustCompile(`(?im)^(?:to|t)[ \t]*:[^\r]*`)

// acknowledge sends the ACK for a refused INVITE.
func (w *wire) acknowledge(t testing.TB, invite string, a *answer) {
	t.Helper()
	to, _ := a.Value(sipmsg.To)
	head, _, _ := strings.Cut(invite, "\r\n\r\n")
	ack := toLine.ReplaceAllLiteralString(head, "To: "+to)
	ack = lengthLine.ReplaceAllLiteralString(ack, "Content-Length: 0")
	w.send(t, "ACK"+strings.TrimPrefix(strings.Replace(ack, " INVITE\r\n", " ACK\r\n", 1), "INVITE")+"\r\n\r\n")
}

// register registers a user whose phone this wire is, and returns the Service-Route.
func (w *wire) register(t testing.TB, user string, more ...string) (serviceRoute string) {
	t.Helper()
	return w.registerBy(t, user, "SHA-256", more...)
}

// registerBy registers by a digest algorithm, with further lines in the
// request, such as other contacts.
func (w *wire) registerBy(t testing.TB, user, algorithm string, more ...string) (serviceRoute string) {
	t.Helper()
	m := w.registration(t, user, algorithm, append([]string{"Contact: <" + w.contact(user) + ">", "Expires: 600"}, more...)...)
	if m.status != 200 {
		t.Fatalf("REGISTER of %s: %d %s", user, m.status, m.Reason())
	}
	serviceRoute, ok := m.Value(sipmsg.ServiceRoute)
	if !ok {
		t.Fatalf("no Service-Route in the 200 for %s", user)
	}
	w.user, w.serviceRoute = user, serviceRoute
	return serviceRoute
}

// registration sends a REGISTER that is challenged, and again with credentials;
// all its lines behind Max-Forwards are the given ones. It returns the answer
// to the second, or to the first if that is not challenged.
func (w *wire) registration(t testing.TB, user, algorithm string, more ...string) *answer {
	t.Helper()
	impi := user + "@" + domain
	lines := func(auth string) []string {
		return append(append(w.request("REGISTER", "sip:"+domain, user)[:7:7], auth), more...)
	}
	m := w.final(t, text(lines(fmt.Sprintf(`Authorization: Digest username="%s", realm="%s", uri="sip:%s", nonce="", response=""`, impi, domain, domain)), ""))
	if m.status != 401 {
		return m
	}
	return w.final(t, text(lines(w.authorize(t, m, user, algorithm)), ""))
}

// authorize is the Authorization line that answers a 401 to a REGISTER.
func (w *wire) authorize(t testing.TB, m *answer, user, algorithm string) string {
	t.Helper()
	for v := range m.Values(sipmsg.WWWAuthenticate) {
		challenge, err := digest.ParseChallenge(v)
		if err != nil {
			t.Fatalf("challenge %q: %v", v, err)
		}
		if challenge.Algorithm != algorithm {
			continue
		}
		cred, err := digest.Digest(challenge, digest.Options{
			Method: "REGISTER", URI: "sip:" + domain, Username: user + "@" + domain, Password: password, Count: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		return "Authorization: " + cred.String()
	}
	t.Fatalf("no challenge for %s in\n%s", algorithm, m.raw)
	return ""
}

// ping proves that a P-CSCF entry answers.
func ping(t testing.TB, local netip.Addr, n *localcluster.Node) {
	t.Helper()
	w := newWire(t, local, n.P())
	if m := w.final(t, text(w.request("OPTIONS", "sip:"+n.P().String(), "ping"), "")); m.status != 200 {
		t.Errorf("OPTIONS to node %s: %d", n.Name, m.status)
	}
}
