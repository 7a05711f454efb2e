package scscf_test

import (
	"fmt"
	"testing"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

const (
	caller = "<sip:x@ims.test>;tag=x" // as the bench writes it
	callee = "<" + bob + ">;tag=b"
)

// initial sends a request for bob, who is registered, and returns it and what
// his P-CSCF received.
func initial(b *bench, method string, headers ...string) (sent, got *sipmsg.Message) {
	b.register("bob", bob, "Contact: <sip:1@192.0.2.1>;expires=86400")
	sent = b.request(b.i, token.Term, method, bob, headers...)
	b.i.Send(b.e, sent)
	if method == "INVITE" {
		b.i.Next() // 100
	}
	return sent, b.p.Next()
}

// inside sends a request inside the dialog that sent began, and says what
// became of it: 0 if it went on, else the status of the answer. A request that
// went on is answered 200.
func inside(b *bench, method string, sent *sipmsg.Message, from, to string, headers ...string) int {
	b.t.Helper()
	m := b.request(b.p, token.Dialog, method, "sip:y@192.0.2.9", append(headers, "From: "+from, "To: "+to, "Call-ID: "+sent.CallID())...)
	m.Add(sipmsg.Route, b.path(9))
	b.p.Send(b.e, m)
	if method == "ACK" {
		if b.p.Pending() == 0 {
			return 481
		}
		b.p.Next()
		return 0
	}
	resp := b.p.Next()
	if !resp.IsRequest() {
		return resp.Status()
	}
	b.p.Send(b.e, resp.Response(200, "", ""))
	b.p.Next()
	return 0
}

func expect(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %d, want %d", what, got, want)
	}
}

func TestDialogs(t *testing.T) {
	run(t, "nothing passes that is in no dialog", func(t *testing.T, b *bench) {
		sent, got := initial(b, "INVITE")
		expect(t, "before any answer", inside(b, "UPDATE", sent, caller, callee), 481)
		b.p.Send(b.e, got.Response(183, "", "b"))
		expect(t, "the caller in the early dialog", inside(b, "PRACK", sent, caller, callee), 0)
		expect(t, "the called phone in the early dialog", inside(b, "UPDATE", sent, callee, caller), 0)
		b.p.Send(b.e, got.Response(200, "", "b"))
		expect(t, "the ACK", inside(b, "ACK", sent, caller, callee), 0)
		for _, c := range []struct {
			name, method, from, to string
			status                 int
		}{
			{"a MESSAGE of the caller", "MESSAGE", caller, callee, 0},
			{"a MESSAGE of the called phone", "MESSAGE", callee, caller, 0},
			{"an equal URI", "MESSAGE", `"X" <sip:%78@IMS.test>;tag=x`, callee, 0},
			{"an invented To tag", "MESSAGE", caller, "<" + bob + ">;tag=c", 481},
			{"an invented From tag", "MESSAGE", "<sip:x@ims.test>;tag=z", callee, 481},
			{"invented tags", "MESSAGE", "<sip:x@ims.test>;tag=1", "<" + bob + ">;tag=2", 481},
			{"the caller under another name", "MESSAGE", "<sip:president@ims.test>;tag=x", callee, 403},
			{"the called one under another name", "MESSAGE", "<sip:president@ims.test>;tag=b", caller, 403},
			{"a NOTIFY from nowhere", "NOTIFY", "<" + bob + ">;tag=c", caller, 481},
			{"an ACK of nothing", "ACK", caller, "<" + bob + ">;tag=c", 481},
		} {
			expect(t, c.name, inside(b, c.method, sent, c.from, c.to), c.status)
		}
		b.start()
		expect(t, "after a restart", inside(b, "INFO", sent, callee, caller), 0)
		other := sent.Clone()
		other.Set(sipmsg.CallID, "another")
		expect(t, "another call", inside(b, "INFO", other, callee, caller), 481)
		expect(t, "the BYE", inside(b, "BYE", sent, caller, callee), 0)
		expect(t, "a BYE that crossed it", inside(b, "BYE", sent, callee, caller), 0)
		b.Sleep(time.Minute)
		expect(t, "a minute later", inside(b, "BYE", sent, callee, caller), 481)
		if f := b.r.Figures(); f.Calls != 0 {
			t.Errorf("figures %+v", f)
		}
	})
	run(t, "a call that was refused leaves nothing", func(t *testing.T, b *bench) {
		sent, got := initial(b, "INVITE")
		b.p.Send(b.e, got.Response(183, "", "b"))
		b.p.Send(b.e, got.Response(486, "", "b"))
		b.p.Next() // ACK
		expect(t, "UPDATE", inside(b, "UPDATE", sent, callee, caller), 481)
	})
	run(t, "a call that rings goes on after a restart", func(t *testing.T, b *bench) {
		sent, got := initial(b, "INVITE")
		b.p.Send(b.e, got.Response(183, "", "b"))
		b.start()
		expect(t, "UPDATE", inside(b, "UPDATE", sent, callee, caller), 0)
		b.p.Send(b.e, got.Response(200, "", "b"))
		expect(t, "the ACK", inside(b, "ACK", sent, caller, callee), 0)
		b.Sleep(time.Hour)
		expect(t, "an hour later", inside(b, "INFO", sent, callee, caller), 0)
	})
	run(t, "a restart does not keep a call that nobody answers", func(t *testing.T, b *bench) {
		_, got := initial(b, "INVITE")
		b.p.Send(b.e, got.Response(183, "", "b"))
		b.start()
		b.Sleep(6 * time.Minute)
		if s := states(b.r); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "each fork is a dialog of its own", func(t *testing.T, b *bench) {
		sent, got := initial(b, "INVITE")
		second := "<" + bob + ">;tag=c"
		b.p.Send(b.e, got.Response(180, "", "b"))
		b.p.Send(b.e, got.Response(180, "", "c"))
		b.p.Send(b.e, got.Response(200, "", "b"))
		b.p.Send(b.e, got.Response(200, "", "c"))
		expect(t, "BYE of the first", inside(b, "BYE", sent, caller, callee), 0)
		b.Sleep(time.Minute)
		expect(t, "INFO in the first", inside(b, "INFO", sent, caller, callee), 481)
		expect(t, "INFO in the second", inside(b, "INFO", sent, second, caller), 0)
		if f := b.r.Figures(); f.Calls != 1 {
			t.Errorf("figures %+v", f)
		}
		expect(t, "BYE of the second", inside(b, "BYE", sent, second, caller), 0)
		if f := b.r.Figures(); f.Calls != 0 {
			t.Errorf("figures %+v", f)
		}
	})
	run(t, "the forks of one request are limited", func(t *testing.T, b *bench) {
		sent, got := initial(b, "INVITE")
		for i := range 20 {
			b.p.Send(b.e, got.Response(180, "", fmt.Sprint("b", i)))
		}
		expect(t, "the first", inside(b, "INFO", sent, "<"+bob+">;tag=b0", caller), 0)
		expect(t, "the last", inside(b, "INFO", sent, "<"+bob+">;tag=b19", caller), 481)
		b.p.Send(b.e, got.Response(486, "", "b"))
	})
	run(t, "a call lives while something is heard of it", func(t *testing.T, b *bench) {
		sent, got := initial(b, "INVITE")
		b.p.Send(b.e, got.Response(200, "", "b"))
		for range 3 {
			b.Sleep(8 * time.Hour)
			expect(t, "UPDATE", inside(b, "UPDATE", sent, callee, caller), 0)
		}
		b.Sleep(12 * time.Hour)
		expect(t, "after twelve silent hours", inside(b, "UPDATE", sent, callee, caller), 481)
	})
	run(t, "a subscription is a dialog until its end", func(t *testing.T, b *bench) {
		sent, got := initial(b, "SUBSCRIBE", "Expires: 600")
		active := "Subscription-State: active;expires=600"
		expect(t, "a NOTIFY before the answer", inside(b, "NOTIFY", sent, callee, caller, active), 0)
		expect(t, "a NOTIFY of the subscriber", inside(b, "NOTIFY", sent, caller, "<"+bob+">;tag=z", active), 481)
		expect(t, "anything but a NOTIFY", inside(b, "MESSAGE", sent, "<"+bob+">;tag=z", caller), 481)
		b.p.Send(b.e, got.Response(200, "", "b"))
		b.i.Next()
		b.start()
		b.Sleep(9 * time.Minute)
		expect(t, "a refresh after a restart", inside(b, "SUBSCRIBE", sent, caller, callee, "Expires: 1200"), 0)
		b.Sleep(19 * time.Minute)
		expect(t, "a NOTIFY that prolongs it", inside(b, "NOTIFY", sent, callee, caller, "Subscription-State: Active ; Expires=3600"), 0)
		b.Sleep(time.Hour)
		expect(t, "the last NOTIFY", inside(b, "NOTIFY", sent, callee, caller, "Subscription-State: terminated;reason=timeout"), 0)
		b.Sleep(time.Minute)
		expect(t, "one more", inside(b, "NOTIFY", sent, callee, caller, active), 481)
		if f := b.r.Figures(); f.Calls != 0 {
			t.Errorf("figures %+v", f)
		}
	})
	run(t, "a subscription that nobody refreshes ends", func(t *testing.T, b *bench) {
		sent, got := initial(b, "SUBSCRIBE", "Expires: 600")
		b.p.Send(b.e, got.Response(200, "", "b"))
		b.Sleep(11 * time.Minute)
		expect(t, "a NOTIFY", inside(b, "NOTIFY", sent, callee, caller, "Subscription-State: active"), 481)
	})
	run(t, "a subscription that was refused forms no dialog", func(t *testing.T, b *bench) {
		sent, got := initial(b, "SUBSCRIBE")
		b.p.Send(b.e, got.Response(489, "", "b"))
		expect(t, "a NOTIFY", inside(b, "NOTIFY", sent, callee, caller, "Subscription-State: active"), 481)
	})
	run(t, "the outcome of a transfer is told after the BYE", func(t *testing.T, b *bench) {
		sent, got := initial(b, "INVITE")
		b.p.Send(b.e, got.Response(200, "", "b"))
		expect(t, "REFER", inside(b, "REFER", sent, callee, caller, "Refer-To: <sip:z@ims.test>"), 0)
		expect(t, "BYE", inside(b, "BYE", sent, callee, caller), 0)
		if f := b.r.Figures(); f.Calls != 0 {
			t.Errorf("figures %+v", f)
		}
		b.Sleep(3 * time.Minute)
		b.start()
		expect(t, "NOTIFY", inside(b, "NOTIFY", sent, caller, callee, "Subscription-State: terminated"), 0)
		b.Sleep(time.Minute)
		expect(t, "one more", inside(b, "NOTIFY", sent, caller, callee), 481)
	})
	run(t, "one user cannot fill the table", func(t *testing.T, b *bench) {
		b.cfg.MaxOwned = 2
		b.start()
		b.register("alice", alice, "Contact: <sip:a@192.0.2.1>")
		b.nonce = ""
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1>")
		subscribe := func(by string, tag int) *sipmsg.Message {
			return b.request(b.p, token.Orig, "SUBSCRIBE", bob, "P-Asserted-Identity: <"+by+">", fmt.Sprint("From: <", by, ">;tag=", tag))
		}
		for i := range 2 {
			b.p.Send(b.e, subscribe(alice, i))
			b.i.Send(b.e, b.i.Next().Response(200, "", "b"))
			b.p.Next()
		}
		if resp := b.ask(b.p, subscribe(alice, 3)); resp.Status() != 503 {
			t.Errorf("one too many: %d", resp.Status())
		}
		b.start()
		if resp := b.ask(b.p, subscribe(alice, 4)); resp.Status() != 503 {
			t.Errorf("after a restart: %d", resp.Status())
		}
		b.p.Send(b.e, subscribe(bob, 5))
		b.i.Send(b.e, b.i.Next().Response(489, "", "b"))
		if resp := b.p.Next(); resp.Status() != 489 {
			t.Errorf("another user: %d", resp.Status())
		}
	})
	run(t, "an early dialog may be ended before the call is", func(t *testing.T, b *bench) {
		sent, got := initial(b, "INVITE")
		b.p.Send(b.e, got.Response(183, "", "b"))
		expect(t, "BYE", inside(b, "BYE", sent, caller, callee), 0)
		b.p.Send(b.e, got.Response(487, "", "b"))
		b.p.Next() // ACK
		if s := states(b.r); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "a response of a lost transaction that belongs to no dialog forms none", func(t *testing.T, b *bench) {
		sent, got := initial(b, "MESSAGE")
		forged := got.Response(200, "", "b")
		forged.Set(sipmsg.CSeq, "1 INVITE")
		b.start()
		b.p.Send(b.e, forged)
		expect(t, "MESSAGE", inside(b, "MESSAGE", sent, callee, caller), 481)
		if b.r.Calls() != nil {
			t.Errorf("calls %v", states(b.r))
		}
	})
}

func TestRegistrationOfAnotherSubscription(t *testing.T) {
	run(t, "who is removed and added again must register again", func(t *testing.T, b *bench) {
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1>")
		b.Apply(state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "bob"}})
		b.Subscriber("bob", bob)
		if resp := b.ask(b.i, b.request(b.i, token.Term, "MESSAGE", bob)); resp.Status() != 480 {
			t.Errorf("a request for him: %d", resp.Status())
		}
		if resp := b.ask(b.p, b.request(b.p, token.Orig, "MESSAGE", alice, "P-Asserted-Identity: <"+bob+">")); resp.Status() != 403 {
			t.Errorf("a request of his: %d", resp.Status())
		}
		b.start()
		if _, ok := b.r.Registration(bob); ok {
			t.Error("registered after a restart")
		}
		resp := b.register("bob", bob, "Contact: <sip:2@192.0.2.2>")
		if got := contacts(resp); len(got) != 1 || got[0] != "<sip:2@192.0.2.2>;expires=3600" {
			t.Errorf("contacts %q", got)
		}
		b.Subscriber("bob", bob, "tel:+4930333") // changed, not removed
		if r, ok := b.r.Registration(bob); !ok || len(r.Contacts) != 1 {
			t.Errorf("registration %+v", r)
		}
	})
}
