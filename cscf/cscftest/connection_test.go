package cscftest_test

import (
	"strings"
	"testing"
	"time"

	. "bellwether/cscf/cscftest"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// ended tells the engines that a phone's connection ended, as its front would
// when something is sent over it.
func (c *ims) ended(p *Phone) {
	for _, e := range c.e {
		e.Unreachable(transaction.Peer{Flow: p.Flow})
	}
}

func TestConnectionsThatAreGone(t *testing.T) {
	// bob has two phones behind a NAT, over TCP; the first is preferred.
	phones := func(c *ims) (first, second *Phone) {
		for i, q := range []string{"0.9", "0.1"} {
			addr := []string{"192.0.2.11:40011", "192.0.2.12:40012"}[i]
			p := c.NewPhone([]string{"a", "b"}[i], addr, "bob", "sip:bob@ims.test")
			p.Reconnect(addr)
			p.Contact = "<sip:bob@10.0.0." + q[2:] + ";transport=tcp>;q=" + q
			p.Register("Call-ID: phone" + q)
			first, second = second, p
		}
		return first, second
	}
	lose := func(c *ims, phones ...*Phone) {
		c.Lose(func(to transaction.Peer, m *sipmsg.Message) bool {
			for _, p := range phones {
				if to.Flow == p.Flow {
					return true
				}
			}
			return false
		})
	}
	run(t, "the next phone rings at once", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		first, second := phones(c)
		lose(c, first)
		began := time.Now()
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		second.Silent()
		c.ended(first)
		second.Answer(second.Expect(0, "INVITE"), 486)
		second.Expect(0, "ACK")
		alice.AckRefusal(invite, alice.Expect(486, "INVITE"))
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
	})
	run(t, "no phone is left: 480 at once", func(t *testing.T, c *ims) {
		alice := c.alice()
		registered(alice)
		first, second := phones(c)
		lose(c, first, second)
		began := time.Now()
		for _, method := range []string{"INVITE", "MESSAGE"} {
			req := alice.Call(method, "sip:bob@ims.test")
			c.ended(first)
			c.ended(second)
			resp := alice.Expect(480, method)
			if method == "INVITE" {
				alice.AckRefusal(req, resp)
			}
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// A caller over TCP and IPv6 and a callee over UDP and IPv4: each sees only
// what it can reach as its first hop.
func TestCallBetweenTransportsAndFamilies(t *testing.T) {
	run(t, "a call", func(t *testing.T, c *ims) {
		alice := c.NewPhone("a", "[2001:db8::77]:40000", "alice", "sip:alice@ims.test")
		alice.Reconnect("[2001:db8::77]:40000")
		bob := c.bob()
		registered(alice, bob)
		invite := alice.Call("INVITE", "sip:bob@ims.test")
		in := bob.Expect(0, "INVITE")
		via, _ := in.TopVia()
		if via.Transport != "UDP" || via.Host != "127.0.0.2" {
			t.Errorf("bob's top Via is %s", via)
		}
		routes := values(in, sipmsg.RecordRoute)
		if top := routes[0]; !strings.Contains(top, "@127.0.0.2:5060;lr") {
			t.Errorf("bob's first hop is %s", top)
		}
		if far := routes[len(routes)-1]; !strings.Contains(far, "@[2001:db8::1]:5060;transport=tcp;lr") {
			t.Errorf("alice's first hop is %s", far)
		}
		ok := bob.Answer(in, 200)
		alice.Expect(200, "INVITE")
		alice.Send(alice.InDialog("ACK", invite, ok))
		bob.Expect(0, "ACK")
		alice.Send(alice.InDialog("BYE", invite, ok))
		bob.Answer(bob.Expect(0, "BYE"), 200)
		alice.Expect(200, "BYE")
	})
}
