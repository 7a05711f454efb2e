package acceptance

import (
	"net"
	"testing"
	"time"
)

// RFC 5626 §5.3: a call to a phone whose connection ended fails at once; where
// no NAT is between, a connection to its contact is opened; once it has
// registered again it is reached over the new connection.
func TestConnectionThatEnded(t *testing.T) {
	t.Parallel()
	p := newParties(t, "gone", "UDP", "TCP", always(200))
	request := func(want int) time.Duration {
		t.Helper()
		began := time.Now()
		refused(t, p.caller, text(p.caller.initial("MESSAGE", p.peer), "x"), want)
		return time.Since(began)
	}
	request(200)
	p.callee.take(t, "MESSAGE")

	if err := p.callee.w.conn.(*net.TCPConn).SetLinger(0); err != nil { // its port is free at once
		t.Fatal(err)
	}
	p.callee.w.conn.Close()
	<-p.callee.closed
	if d := request(480); d > 10*time.Second {
		t.Errorf("the caller hears 480 after %v", d)
	}

	// It listens where its contact says.
	l, err := net.Listen("tcp", p.callee.w.local)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	found := make(chan *callee, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			w := &wire{transport: "TCP", conn: c, to: p.callee.w.to, local: p.callee.w.local, user: p.callee.w.user}
			found <- w.serve(t, always(200))
		}
	}()
	request(200)
	(<-found).take(t, "MESSAGE")

	again := openWire(t, "TCP", p.addr(2), p.callee.w.to)
	again.register(t, p.callee.w.user)
	phone := again.serve(t, always(200))
	request(200)
	phone.take(t, "MESSAGE")
}

// A phone that lost its connection calls over a new one before it registers by
// it, and hears the answer there.
func TestCallOverANewConnection(t *testing.T) {
	t.Parallel()
	p := newParties(t, "anew", "TCP", "UDP", always(200))
	user, route := p.caller.user, p.caller.serviceRoute
	p.caller.conn.Close()
	p.caller = dialWire(t, p.addr(1), p.n.P())
	p.caller.user, p.caller.serviceRoute = user, route
	p.deliver(t, text(p.caller.initial("MESSAGE", p.peer), "x"))
}
