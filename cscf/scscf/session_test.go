package scscf_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/cscftest"
	"bellwether/cscf/scscf"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

const from = "P-Asserted-Identity: <sip:alice@ims.test>"

func states(r *scscf.CSCF) (out []string) {
	for _, c := range r.Calls() {
		out = append(out, c.Role+" "+c.State)
	}
	return out
}

func TestWhoMaySend(t *testing.T) {
	run(t, "each kind has its own way in", func(t *testing.T, b *bench) {
		b.register("alice", alice, "Contact: <sip:a@192.0.2.1>")
		for _, c := range []struct {
			name    string
			from    string
			mode    token.Mode
			method  string
			headers []string
			status  int
		}{
			{"REGISTER from a P-CSCF", "p", token.Term, "REGISTER", nil, 403},
			{"REGISTER by the Service-Route", "i", token.Orig, "REGISTER", nil, 403},
			{"originating from an I-CSCF", "i", token.Orig, "MESSAGE", []string{from}, 403},
			{"terminating from a P-CSCF", "p", token.Term, "MESSAGE", nil, 403},
			{"dialog without To tag", "p", token.Dialog, "MESSAGE", []string{from}, 403},
			{"dialog from an I-CSCF", "i", token.Dialog, "BYE", []string{"To: <sip:x@x>;tag=1"}, 403},
			{"a token of the wrong kind", "p", token.Binding, "MESSAGE", []string{from}, 403},
			{"a token of another group", "p", token.Orig, "MESSAGE", []string{from, "Route: " + b.Route(token.Token{Mode: token.Orig, Group: b.i.Group})}, 403},
			{"no Route", "p", token.Orig, "MESSAGE", []string{from, "Route: <sip:127.0.0.1:6060;lr>"}, 403},
			{"originating without identity", "p", token.Orig, "MESSAGE", nil, 403},
			{"originating by nobody", "p", token.Orig, "MESSAGE", []string{"P-Asserted-Identity: <sip:nobody@ims.test>"}, 403},
			{"originating by an unregistered user", "p", token.Orig, "MESSAGE", []string{"P-Asserted-Identity: <sip:bob@ims.test>"}, 403},
			{"terminating to an unregistered user", "i", token.Term, "MESSAGE", []string{}, 480},
			{"a dialog that nobody knows", "p", token.Dialog, "BYE", []string{"To: <sip:x@x>;tag=1"}, 481},
			{"an invented To tag by the Service-Route", "p", token.Orig, "MESSAGE", []string{from, "To: <sip:x@x>;tag=1"}, 481},
			{"an invented To tag by way of the I-CSCF", "i", token.Term, "MESSAGE", []string{"To: <sip:x@x>;tag=1"}, 481},
		} {
			e := map[string]*cscftest.Engine{"p": b.p, "i": b.i}[c.from]
			resp := b.ask(e, b.request(e, c.mode, c.method, "sip:bob@ims.test", c.headers...))
			if resp.Status() != c.status {
				t.Errorf("%s: %d, want %d", c.name, resp.Status(), c.status)
			}
		}
	})
	run(t, "the wire is answered OPTIONS and nothing else", func(t *testing.T, b *bench) {
		wire := b.NewPhone("a", "192.0.2.66:5060", "x", "sip:x@ims.test")
		for uri, status := range map[string]int{"sip:127.0.0.1:6060": 200, "sip:alice@ims.test": 403} {
			m := wire.Request("OPTIONS", uri, from, "Route: "+b.route(token.Orig))
			parsed, err := sipmsg.Parse(m.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			b.e.Deliver(transaction.Peer{Flow: wire.Flow}, parsed)
			wire.Expect(status, "OPTIONS")
		}
	})
}

func TestOriginating(t *testing.T) {
	run(t, "the caller's other identity is added, the rest goes to the I-CSCF", func(t *testing.T, b *bench) {
		b.register("alice", alice, "Contact: <sip:a@192.0.2.1>")
		for pai, want := range map[string][]string{
			"<sip:alice@ims.test>":                    {"<sip:alice@ims.test>", "<tel:+4930111>"},
			"<tel:+4930111>":                          {"<tel:+4930111>", "<sip:alice@ims.test>"},
			"<sip:alice@ims.test>, <tel:+4930111>":    {"<sip:alice@ims.test>", "<tel:+4930111>"},
			`"Alice" <sip:alice@IMS.test;user=phone>`: {`"Alice" <sip:alice@IMS.test;user=phone>`, "<tel:+4930111>"},
		} {
			m := b.request(b.p, token.Orig, "MESSAGE", "sip:bob@ims.test", "P-Asserted-Identity: "+pai)
			m.Add(sipmsg.Route, "<sip:192.0.2.66;lr>")
			b.p.Send(b.e, m)
			got := b.i.Next()
			if ids := slices.Collect(got.Elements(sipmsg.PAssertedIdentity)); !slices.Equal(ids, want) {
				t.Errorf("%s: %q, want %q", pai, ids, want)
			}
			if _, ok := got.Value(sipmsg.Route); ok || got.RequestURI() != "sip:bob@ims.test" {
				t.Errorf("went on as:\n%s", got.Bytes())
			}
			b.i.Send(b.e, got.Response(200, "", "b"))
			b.p.Next()
		}
	})
	run(t, "foreign targets are not found", func(t *testing.T, b *bench) {
		b.register("alice", alice, "Contact: <sip:a@192.0.2.1>")
		for _, uri := range []string{"sip:bob@elsewhere.test", "sip:127.0.0.1", "sip:+4930222@elsewhere.test;user=phone"} {
			if resp := b.ask(b.p, b.request(b.p, token.Orig, "MESSAGE", uri, from)); resp.Status() != 404 {
				t.Errorf("%s: %d", uri, resp.Status())
			}
		}
	})
	run(t, "without an I-CSCF it is 504, and no call is listed", func(t *testing.T, b *bench) {
		b.register("alice", alice, "Contact: <sip:a@192.0.2.1>")
		b.Isolate(b.i.Group, true)
		b.p.Send(b.e, b.request(b.p, token.Orig, "INVITE", "sip:bob@ims.test", from))
		b.Sleep(3 * time.Second)
		b.p.Next() // 100
		if resp := b.p.Next(); resp.Status() != 504 {
			t.Errorf("status %d", resp.Status())
		}
		if s := states(b.r); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "with Max-Forwards 0 it is 483, and no call is listed", func(t *testing.T, b *bench) {
		b.register("alice", alice, "Contact: <sip:a@192.0.2.1>")
		if resp := b.ask(b.p, b.request(b.p, token.Orig, "INVITE", "sip:bob@ims.test", from, "Max-Forwards: 0")); resp.Status() != 483 {
			t.Errorf("status %d", resp.Status())
		}
		if s := states(b.r); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
}

func TestTerminating(t *testing.T) {
	run(t, "a request goes along the Path of each contact, by q", func(t *testing.T, b *bench) {
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1?x=y>;q=0.3", "Path: "+b.path(1))
		b.register("bob", bob, "Contact: <sip:2@192.0.2.2>", "Path: "+b.path(2)+", <sip:edge;lr>")
		b.register("bob", bob, "Contact: <sip:3@192.0.2.3>;q=0.3", "Path: "+b.path(3))
		b.i.Send(b.e, b.request(b.i, token.Term, "MESSAGE", "sip:bob@ims.test;x=y"))
		first := b.p.Next()
		if first.RequestURI() != "sip:2@192.0.2.2" || b.p.Pending() != 0 {
			t.Fatalf("first:\n%s", first.Bytes())
		}
		if got := slices.Collect(first.Elements(sipmsg.Route)); !slices.Equal(got, []string{b.path(2), "<sip:edge;lr>"}) {
			t.Errorf("Route %q", got)
		}
		if v, _ := first.Value(sipmsg.PCalledPartyID); v != "<sip:bob@ims.test;x=y>" {
			t.Errorf("P-Called-Party-ID %s", v)
		}
		b.p.Send(b.e, first.Response(480, "", "x"))
		var uris []string
		for range 2 {
			m := b.p.Next()
			uris = append(uris, m.RequestURI())
			b.p.Send(b.e, m.Response(404, "", "x"))
		}
		if slices.Sort(uris); !slices.Equal(uris, []string{"sip:1@192.0.2.1", "sip:3@192.0.2.3"}) {
			t.Errorf("then %q", uris)
		}
		if resp := b.i.Next(); resp.Status()/100 != 4 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "a barred identity is not found", func(t *testing.T, b *bench) {
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1>")
		if resp := b.ask(b.i, b.request(b.i, token.Term, "MESSAGE", "sip:mute@ims.test")); resp.Status() != 404 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "a user who was assigned elsewhere is not served", func(t *testing.T, b *bench) {
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1>")
		other := b.AddGroup(state.SCSCF, "b")
		b.Apply(state.Command{Unassign: &state.Unassign{Kind: state.SCSCF, User: "bob", Group: b.cfg.Group}})
		b.Apply(state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "bob", Hint: other}})
		if resp := b.ask(b.i, b.request(b.i, token.Term, "MESSAGE", bob)); resp.Status() != 480 {
			t.Errorf("status %d", resp.Status())
		}
	})
	run(t, "without a P-CSCF it is 480 after a while", func(t *testing.T, b *bench) {
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1>")
		b.Isolate(b.p.Group, true)
		b.i.Send(b.e, b.request(b.i, token.Term, "INVITE", bob))
		b.Sleep(3 * time.Second)
		b.i.Next() // 100
		if resp := b.i.Next(); resp.Status() != 480 {
			t.Errorf("status %d", resp.Status())
		}
		if s := states(b.r); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
}

func TestCalls(t *testing.T) {
	invite := func(b *bench) (*sipmsg.Message, *sipmsg.Message) {
		m := b.request(b.i, token.Term, "INVITE", bob)
		b.i.Send(b.e, m)
		if trying := b.i.Next(); trying.Status() != 100 {
			b.t.Fatalf("status %d", trying.Status())
		}
		return m, b.p.Next()
	}
	bye := func(b *bench, m *sipmsg.Message) *sipmsg.Message {
		from, _ := m.Value(sipmsg.From)
		out := b.request(b.p, token.Dialog, "BYE", "sip:x@192.0.2.9", "To: "+from, "From: <"+bob+">;tag=b", "Call-ID: "+m.CallID())
		out.Add(sipmsg.Route, b.path(9))
		return out
	}
	run(t, "a confirmed call survives a restart and ends with its BYE", func(t *testing.T, b *bench) {
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1>")
		m, got := invite(b)
		b.p.Send(b.e, got.Response(180, "", "x"))
		if s := states(b.r); !slices.Equal(s, []string{"term ringing"}) {
			t.Errorf("calls %v", s)
		}
		b.p.Send(b.e, got.Response(200, "", "b"))
		b.start()
		calls := b.r.Calls()
		if len(calls) != 1 || calls[0].State != scscf.Confirmed || calls[0].CallID != m.CallID() || calls[0].To != bob || calls[0].From != "sip:x@ims.test" {
			t.Fatalf("calls %+v", calls)
		}
		b.p.Send(b.e, bye(b, m))
		b.p.Send(b.e, b.p.Next().Response(200, "", "")) // the BYE, on its way to the other phone
		if s := states(b.r); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
		b.start()
		if s := states(b.r); len(s) != 0 {
			t.Errorf("calls after the restart %v", s)
		}
	})
	run(t, "a call whose end nobody saw is forgotten", func(t *testing.T, b *bench) {
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1>;expires=86400")
		_, got := invite(b)
		b.p.Send(b.e, got.Response(200, "", "b"))
		b.Sleep(12*time.Hour + time.Second)
		if s := states(b.r); len(s) != 0 {
			t.Errorf("calls %v", s)
		}
	})
	run(t, "beyond what can be remembered a call is refused, until another ends", func(t *testing.T, b *bench) {
		b.cfg.MaxDialogs = 1
		b.start()
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1>")
		m, first := invite(b)
		b.p.Send(b.e, first.Response(200, "", "b"))
		if s := states(b.r); !slices.Equal(s, []string{"term confirmed"}) {
			t.Errorf("calls %v", s)
		}
		if f := b.r.Figures(); f.Calls != 1 {
			t.Errorf("figures %+v", f)
		}
		b.i.Next() // 200
		if resp := b.ask(b.i, b.request(b.i, token.Term, "INVITE", bob, "From: <sip:y@ims.test>;tag=y")); resp.Status() != 503 {
			t.Errorf("status %d", resp.Status())
		}
		b.p.Send(b.e, bye(b, m))
		b.p.Send(b.e, b.p.Next().Response(200, "", ""))
		b.Sleep(time.Minute)
		invite(b)
	})
	run(t, "an ACK and a response of a lost transaction find their way", func(t *testing.T, b *bench) {
		b.register("bob", bob, "Contact: <sip:1@192.0.2.1>")
		m, got := invite(b)
		b.start()
		b.p.Send(b.e, got.Response(200, "", "b"))
		if resp := b.i.Next(); resp.Status() != 200 {
			t.Errorf("status %d", resp.Status())
		}
		from, _ := m.Value(sipmsg.From)
		ack := b.request(b.p, token.Dialog, "ACK", "sip:1@192.0.2.1", "From: "+from, "To: <"+bob+">;tag=b", "Call-ID: "+m.CallID())
		ack.Add(sipmsg.Route, b.path(1))
		b.p.Send(b.e, ack)
		relayed := b.p.Next()
		if relayed.Method() != "ACK" || strings.Contains(string(relayed.Bytes()), "Route: "+b.route(token.Dialog)) {
			t.Errorf("relayed:\n%s", relayed.Bytes())
		}
		b.p.Send(b.e, b.request(b.p, token.Orig, "ACK", "sip:1@192.0.2.1"))
		if n := b.p.Pending(); n != 0 {
			t.Errorf("%d messages for an ACK without a way", n)
		}
	})
}
