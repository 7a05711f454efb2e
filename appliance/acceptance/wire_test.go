package acceptance

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/icholy/digest"

	"bellwether/appliance/localcluster"
	"bellwether/cscf/sipmsg"
)

// wire is a UDP socket of somebody who writes SIP, or something else, by hand.
type wire struct {
	conn   *net.UDPConn
	to     netip.AddrPort
	local  string
	number int
}

func newWire(t testing.TB, local netip.Addr, to netip.AddrPort) *wire {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &wire{conn: c, to: to, local: c.LocalAddr().String()}
}

func (w *wire) send(t testing.TB, text string) {
	t.Helper()
	if _, err := w.conn.WriteToUDPAddrPort([]byte(text), w.to); err != nil {
		t.Error(err)
	}
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
		fmt.Sprintf("Via: SIP/2.0/UDP %s;branch=z9hG4bK-%d;rport", w.local, w.number),
		fmt.Sprintf("From: <%s>;tag=%d", self, w.number),
		fmt.Sprintf("To: <%s>", to),
		fmt.Sprintf("Call-ID: %d-%s", w.number, w.local),
		fmt.Sprintf("CSeq: %d %s", w.number, method),
		"Max-Forwards: 70",
		fmt.Sprintf("Contact: <sip:%s@%s>", user, w.local),
	}
}

// text ends lines, adds a body and its length.
func text(lines []string, body string) string {
	return strings.Join(lines, "\r\n") + fmt.Sprintf("\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// receive returns the next datagram, "" if none comes in time.
func (w *wire) receive(t testing.TB, within time.Duration) string {
	t.Helper()
	buf := make([]byte, 1<<16)
	_ = w.conn.SetReadDeadline(time.Now().Add(within)) // a closed socket fails at the read
	n, err := w.conn.Read(buf)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// answer is a final response, which may lack what its request lacks.
type answer struct {
	status int
	sipmsg.Message
}

// final returns the final response to a request, which it repeats as a phone
// does, and acknowledges it if it must be.
func (w *wire) final(t testing.TB, request string) *answer {
	t.Helper()
	branch := regexp.MustCompile(`z9hG4bK[-0-9]*`).FindString(request)
	w.send(t, request)
	for pause := 500 * time.Millisecond; pause <= 4*time.Second; {
		got := w.receive(t, pause)
		var a answer
		_, err := fmt.Sscanf(got, "SIP/2.0 %d ", &a.status)
		switch {
		case got == "":
			w.send(t, request)
			pause *= 2
		case err == nil && a.status >= 200 && strings.Contains(got, branch+";"):
			_ = a.Parse([]byte(got)) // may be as wrong as the request
			if strings.HasPrefix(request, "INVITE ") {
				w.acknowledge(t, request, &a)
			}
			return &a
		}
	}
	t.Fatalf("no answer to %.300q", request)
	return nil
}

// acknowledge sends the ACK for a refused INVITE.
func (w *wire) acknowledge(t testing.TB, invite string, a *answer) {
	t.Helper()
	to, _ := a.Value(sipmsg.To)
	ack := regexp.MustCompile("(?m)^To: .*$").ReplaceAllString(invite, "To: "+to+"\r")
	w.send(t, strings.NewReplacer("INVITE sip:", "ACK sip:", " INVITE\r\n", " ACK\r\n").Replace(ack))
}

// register registers a user whose phone this wire is, and returns the Service-Route.
func (w *wire) register(t testing.TB, user string) (serviceRoute string) {
	t.Helper()
	impi := user + "@" + domain
	lines := w.request("REGISTER", "sip:"+domain, user)
	first := append(lines[:len(lines):len(lines)], fmt.Sprintf(`Authorization: Digest username="%s", realm="%s", uri="sip:%s", nonce="", response=""`, impi, domain, domain))
	m := w.final(t, text(first, ""))
	if m.status != 401 {
		t.Fatalf("first REGISTER of %s: %d", user, m.status)
	}
	v, _ := m.Value(sipmsg.WWWAuthenticate)
	challenge, err := digest.ParseChallenge(v)
	if err != nil {
		t.Fatalf("challenge %q: %v", v, err)
	}
	cred, err := digest.Digest(challenge, digest.Options{Method: "REGISTER", URI: "sip:" + domain, Username: impi, Password: password, Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	again := w.request("REGISTER", "sip:"+domain, user)
	m = w.final(t, text(append(again, "Authorization: "+cred.String(), "Expires: 600"), ""))
	if m.status != 200 {
		t.Fatalf("second REGISTER of %s: %d", user, m.status)
	}
	serviceRoute, ok := m.Value(sipmsg.ServiceRoute)
	if !ok {
		t.Fatalf("no Service-Route in the 200 for %s", user)
	}
	return serviceRoute
}

// ping proves that a P-CSCF entry answers.
func ping(t testing.TB, local netip.Addr, n *localcluster.Node) {
	t.Helper()
	w := newWire(t, local, n.P())
	if m := w.final(t, text(w.request("OPTIONS", "sip:"+n.P().String(), "ping"), "")); m.status != 200 {
		t.Errorf("OPTIONS to node %s: %d", n.Name, m.status)
	}
}
