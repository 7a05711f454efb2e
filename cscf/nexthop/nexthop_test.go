package nexthop_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/controller/state"
	. "bellwether/cscf/cscftest"
	"bellwether/cscf/nexthop"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

// role forwards every request to the S-CSCF.
type role struct {
	core *Engine
	lost []error
}

func (r *role) Request(req *transaction.Request) {
	nexthop.Send(req, nexthop.Hop{
		Message: req.Message.Clone(),
		Route:   func(m *sipmsg.Message) (transaction.Peer, error) { return r.core.Route(state.SCSCF, m) },
		Lost: func(err error) {
			r.lost = append(r.lost, err)
			req.Reply(504, "", nil)
		},
	})
}
func (r *role) Ack(*transaction.Layer, *sipmsg.Message, transaction.Peer)   {}
func (r *role) Stray(*transaction.Layer, *sipmsg.Message, transaction.Peer) {}

// simulate gives a phone, an engine with the role, and one behind it.
func simulate(t *testing.T, test func(c *Cluster, phone *Phone, e, behind *Engine, r *role)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := New(t)
		e := c.NewEngine(c.AddGroup(state.PCSCF, "a"))
		behind := c.NewEngine(c.AddGroup(state.SCSCF, "b"))
		r := &role{core: e}
		e.Start(r)
		behind.Start(nil)
		test(c, c.NewPhone("a", "192.0.2.1:5060", "u", "sip:u@ims.test"), e, behind, r)
		c.Sleep(5 * time.Minute)
		if !e.Idle() {
			t.Error("transactions are left")
		}
	})
}

func TestSend(t *testing.T) {
	t.Run("a request waits until somebody serves the group", func(t *testing.T) {
		simulate(t, func(c *Cluster, phone *Phone, e, behind *Engine, r *role) {
			c.Isolate(behind.Group, true)
			phone.Call("INVITE", "sip:v@ims.test")
			c.Sleep(time.Second)
			if behind.Pending() != 0 {
				t.Fatal("sent nowhere")
			}
			c.Isolate(behind.Group, false)
			c.Sleep(100 * time.Millisecond)
			req := behind.Next()
			behind.Send(e, req.Response(486, "", "x"))
			phone.Expect(486, "INVITE")
		})
	})
	t.Run("patience ends", func(t *testing.T) {
		simulate(t, func(c *Cluster, phone *Phone, _, behind *Engine, r *role) {
			c.Isolate(behind.Group, true)
			phone.Call("MESSAGE", "sip:v@ims.test")
			c.Sleep(nexthop.Patience - time.Millisecond)
			phone.Silent()
			c.Sleep(time.Millisecond)
			phone.Expect(504, "MESSAGE")
			if len(r.lost) != 1 || errors.Is(r.lost[0], nexthop.ErrEnded) {
				t.Errorf("lost %v", r.lost)
			}
		})
	})
	t.Run("a CANCEL ends the wait", func(t *testing.T) {
		simulate(t, func(c *Cluster, phone *Phone, _, behind *Engine, r *role) {
			c.Isolate(behind.Group, true)
			invite := phone.Call("INVITE", "sip:v@ims.test")
			phone.Cancel(invite)
			phone.Expect(200, "CANCEL")
			phone.Expect(487, "INVITE")
			c.Isolate(behind.Group, false)
			c.Sleep(time.Second)
			if behind.Pending() != 0 || len(r.lost) != 1 || !errors.Is(r.lost[0], nexthop.ErrEnded) {
				t.Errorf("%d sent, lost %v", behind.Pending(), r.lost)
			}
		})
	})
	t.Run("an engine that is gone is replaced, twice", func(t *testing.T) {
		simulate(t, func(c *Cluster, phone *Phone, e, behind *Engine, r *role) {
			phone.Call("MESSAGE", "sip:v@ims.test")
			branches := map[string]bool{}
			for range 3 {
				via, _ := behind.Next().TopVia()
				branches[via.Branch()] = true
				e.Unreachable(transaction.Peer{Group: behind.Group})
			}
			if len(branches) != 3 || behind.Pending() != 0 {
				t.Errorf("%d branches, %d more", len(branches), behind.Pending())
			}
			phone.Expect(504, "MESSAGE")
		})
	})
	t.Run("the answer of the replacement counts", func(t *testing.T) {
		simulate(t, func(c *Cluster, phone *Phone, e, behind *Engine, r *role) {
			phone.Call("MESSAGE", "sip:v@ims.test")
			behind.Next()
			e.Unreachable(transaction.Peer{Group: behind.Group})
			behind.Send(e, behind.Next().Response(404, "", "x"))
			phone.Expect(404, "MESSAGE")
		})
	})
}
