package acceptance

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

// overBoth runs a test with phones over UDP and with phones over TCP.
func overBoth(t *testing.T, test func(t *testing.T, transport string)) {
	t.Helper()
	for _, transport := range []string{"UDP", "TCP"} {
		t.Run("phones over "+transport, func(t *testing.T) {
			t.Parallel()
			test(t, transport)
		})
	}
}

// Check 27 (RFC 3261 §17.2.1): an INVITE is answered 100 within 200 ms.
func TestCheck27TryingInTime(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, sharedCluster(t), "c27-"+transport, transport)
		quickest := time.Hour
		for range 5 { // the machine may be busy for a moment
			sent := time.Now()
			invite := caller.call("INVITE", called.uri())
			quickest = min(quickest, caller.take(to(invite, 100)).at.Sub(sent))
			called.answer(called.requested("INVITE"), 486)
			caller.refused(invite, 486)
			if quickest <= 200*time.Millisecond {
				return
			}
		}
		t.Errorf("100 came after %v at best", quickest)
	})
}

// Check 28 (RFC 4320 §4.1, §4.2): a request other than INVITE gets neither 100 nor 408, only what the called phone answers.
func TestCheck28NonInvite(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, quickCluster(t), "c28-"+transport, transport)
		m := caller.call("MESSAGE", called.uri())
		called.requested("MESSAGE")
		caller.none(6*time.Second, to(m, 0)) // 64*T1 is 3.2 s
		m = caller.call("MESSAGE", called.uri())
		callID := m.CallID()
		got := called.take(func(m *sipmsg.Message) bool { return m.CallID() == callID })
		caller.none(time.Second, to(m, 0))
		called.answer(got.Message, 200)
		caller.expect(m, 200)
	})
}

// Check 29 (RFC 3261 §17.2.1): a final response other than 2xx to an INVITE is repeated over UDP at growing intervals until its ACK comes, at most for 64*T1; over TCP it is sent once.
func TestCheck29FinalRepeated(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, quickCluster(t), "c29-"+transport, transport)
		invite := caller.call("INVITE", called.uri())
		called.answer(called.requested("INVITE"), 486)
		first := caller.take(to(invite, 486))
		if transport == "TCP" {
			caller.none(2*time.Second, func(m *sipmsg.Message) bool { return m.Status() >= 200 && to(invite, 0)(m) })
			caller.hop("ACK", invite, first.Message)
			return
		}
		last := first.at
		var gaps []time.Duration
		for {
			again, ok := caller.within(4*time.Second, to(invite, 486))
			if !ok {
				break
			}
			gaps = append(gaps, again.at.Sub(last).Round(time.Millisecond))
			last = again.at
		}
		// 50, 100, 200, 400, 800, 1600 ms; 64*T1 is 3.2 s.
		if total := last.Sub(first.at); len(gaps) < 5 || len(gaps) > 7 || total > 4*time.Second || gaps[len(gaps)-1] < 4*gaps[0] {
			t.Errorf("repeated after %v, for %v in all", gaps, total)
		}

		invite = caller.call("INVITE", called.uri())
		callID := invite.CallID()
		got := called.take(func(m *sipmsg.Message) bool { return m.CallID() == callID && m.Method() == "INVITE" })
		called.answer(got.Message, 486)
		resp := caller.expect(invite, 486)
		caller.expect(invite, 486)
		caller.hop("ACK", invite, resp)
		<-time.After(300 * time.Millisecond) // what was on its way
		caller.all(to(invite, 486))
		caller.none(4*time.Second, to(invite, 486))
	})
}

// Check 30 (RFC 3261 §17.1.1.3): the ACK of a refused INVITE is made and absorbed hop by hop: the called phone gets one for its own response, with the branch of its INVITE, and never the caller's.
func TestCheck30AckOfRefusal(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, sharedCluster(t), "c30-"+transport, transport)
		invite := caller.call("INVITE", called.uri())
		got := called.requested("INVITE")
		called.answer(got, 486)
		ack := called.requested("ACK")
		a, _ := ack.TopVia()
		b, _ := got.TopVia()
		if a.Branch() != b.Branch() {
			t.Errorf("ACK with branch %s for an INVITE with %s", a.Branch(), b.Branch())
		}
		resp := caller.expect(invite, 486)
		for range 3 {
			caller.hop("ACK", invite, resp)
		}
		m := caller.call("MESSAGE", called.uri())
		called.answer(called.requested("MESSAGE"), 200)
		caller.expect(m, 200)
		called.none(200*time.Millisecond, is(0, "ACK"))
	})
}

// Check 31 (RFC 3261 §13.2.2.4): the ACK of a 2xx goes along the route set to the phone that answered, as a transaction of its own, each time it is sent, and nobody answers it.
func TestCheck31AckOfSuccess(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, sharedCluster(t), "c31-"+transport, transport)
		invite := caller.call("INVITE", called.uri())
		got := called.requested("INVITE")
		called.answer(got, 200)
		ok := caller.expect(invite, 200)
		ack := caller.ack(invite, ok)
		end := called.requested("ACK")
		if end.RequestURI() != called.contact(called.user) {
			t.Errorf("Request-URI %s", end.RequestURI())
		}
		if routes := elements(end, sipmsg.Route); len(routes) != 0 {
			t.Errorf("Route %q is left", routes)
		}
		a, _ := end.TopVia()
		b, _ := got.TopVia()
		if a.Branch() == b.Branch() {
			t.Error("the ACK has the branch of the INVITE")
		}
		if n, vias := 5, elements(end, sipmsg.ViaHeader); len(vias) != n { // P S S P and the caller
			t.Errorf("%d Via entries, want %d", len(vias), n)
		}
		caller.post(ack)
		called.requested("ACK")
		caller.none(500*time.Millisecond, func(m *sipmsg.Message) bool { _, of := m.CSeq(); return !m.IsRequest() && of == "ACK" })
		hangUp(caller, called, invite, ok)
	})
}

// Check 32 (RFC 6026 §7.1, §8.3): every repeat of a 2xx reaches the caller, repeats of the INVITE behind it are absorbed, and a refusal that comes after it reaches nobody.
func TestCheck32AfterSuccess(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, sharedCluster(t), "c32-"+transport, transport)
		invite := caller.call("INVITE", called.uri())
		got := called.requested("INVITE")
		called.answer(got, 200)
		ok := caller.expect(invite, 200)
		for range 3 {
			called.answer(got, 200)
			caller.expect(invite, 200)
		}
		before := called.repeats(got)
		caller.send(t, string(invite.Append(nil)))
		called.none(time.Second, is(0, "INVITE"))
		if n := called.repeats(got); n != before {
			t.Errorf("a repeat of the INVITE went on")
		}
		called.answer(got, 486)
		caller.none(time.Second, func(m *sipmsg.Message) bool { return m.Status() >= 300 })
		caller.ack(invite, ok)
		called.requested("ACK")
		// Nor does a refusal of an INVITE that never was.
		stray := got.Clone()
		via, _ := stray.TopVia()
		via.Params = via.Params.With("branch", via.Branch()+"x")
		stray.ReplaceTop(sipmsg.ViaHeader, via.String())
		stray.Set(sipmsg.CallID, "stray-"+got.CallID())
		called.answer(stray, 486)
		hangUp(caller, called, invite, ok)
		caller.none(200*time.Millisecond, func(m *sipmsg.Message) bool { return strings.HasPrefix(m.CallID(), "stray-") })
	})
}

// Check 33 (RFC 3261 §16.7 step 5): the 2xx of two branches both reach the caller, who acknowledges and ends each as a dialog of its own.
func TestCheck33TwoSuccesses(t *testing.T) {
	t.Parallel()
	caller, first, second := twoPhones(t, sharedCluster(t), "c33-", "UDP")
	invite := caller.call("INVITE", first.uri())
	got := []*sipmsg.Message{first.requested("INVITE"), second.requested("INVITE")}
	second.answer(got[1], 180)
	caller.expect(invite, 180)
	first.answer(got[0], 200)
	one := caller.expect(invite, 200)
	second.answer(second.requested("CANCEL"), 200)
	second.answer(got[1], 200) // it had been answered already
	two := caller.take(func(m *sipmsg.Message) bool { return to(invite, 200)(m) && m.ToTag() != one.ToTag() }).Message
	for phone, ok := range map[*party]*sipmsg.Message{first: one, second: two} {
		caller.ack(invite, ok)
		phone.requested("ACK")
		hangUp(caller, phone, invite, ok)
	}
}

// Check 34 (RFC 3261 §16.7 steps 6 and 7): of the refusals of several phones a 6xx is chosen first, else one of the lowest class; the challenges of all go upstream together.
func TestCheck34BestResponse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		first, then int
		want        int
	}{
		{"6xx before all", 404, 603, 603},
		{"6xx before 3xx", 302, 600, 600},
		{"3xx before 4xx", 486, 302, 302},
		{"4xx before 5xx", 500, 404, 404},
		{"4xx before 503", 480, 503, 480},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			caller, first, second := twoPhones(t, sharedCluster(t), "c34-"+strings.ReplaceAll(c.name, " ", ""), "UDP")
			invite := caller.call("INVITE", first.uri())
			got := second.requested("INVITE")
			first.answer(first.requested("INVITE"), c.first)
			first.requested("ACK")
			second.answer(got, c.then)
			caller.refused(invite, c.want)
		})
	}
	t.Run("challenges are gathered", func(t *testing.T) {
		t.Parallel()
		caller, first, second := twoPhones(t, sharedCluster(t), "c34-401", "UDP")
		invite := caller.call("INVITE", first.uri())
		first.answer(first.requested("INVITE"), 401, `WWW-Authenticate: Digest realm="one", nonce="1"`)
		second.answer(second.requested("INVITE"), 407, `Proxy-Authenticate: Digest realm="two", nonce="2"`)
		resp := caller.answered(invite)
		caller.hop("ACK", invite, resp)
		one, _ := resp.Value(sipmsg.WWWAuthenticate)
		two, _ := resp.Value(sipmsg.ProxyAuthenticate)
		if !strings.Contains(one, `"one"`) || !strings.Contains(two, `"two"`) || resp.Status() != 401 && resp.Status() != 407 {
			t.Errorf("%s", resp.Bytes())
		}
	})
}

// Check 35 (RFC 3261 §16.7 step 6): a 503 that is the only response reaches the caller as 500.
func TestCheck35LoneServiceUnavailable(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, sharedCluster(t), "c35-"+transport, transport)
		invite := caller.call("INVITE", called.uri())
		called.answer(called.requested("INVITE"), 503, "Retry-After: 1")
		caller.refused(invite, 500)
		m := caller.call("MESSAGE", called.uri())
		called.answer(called.requested("MESSAGE"), 503)
		caller.expect(m, 500)
	})
}

// Check 36 (RFC 3261 §16.10): a CANCEL is answered 200 at once; the INVITE ends only by what its branch answers, a 487 or a 200 that crossed the CANCEL.
func TestCheck36Cancel(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, sharedCluster(t), "c36-"+transport, transport)
		ring := func() (invite, got *sipmsg.Message) {
			invite = caller.call("INVITE", called.uri())
			callID := invite.CallID()
			got = called.take(func(m *sipmsg.Message) bool { return m.CallID() == callID && m.Method() == "INVITE" }).Message
			called.answer(got, 180)
			caller.expect(invite, 180)
			caller.expect(caller.cancel(invite), 200)
			called.answer(called.requested("CANCEL"), 200)
			caller.none(time.Second, func(m *sipmsg.Message) bool { return m.Status() >= 200 && to(invite, 0)(m) })
			return invite, got
		}
		invite, got := ring()
		tag := called.answer(got, 487).ToTag()
		if resp := caller.refused(invite, 487); resp.ToTag() != tag {
			t.Errorf("To tag %q is not the phone's, %q", resp.ToTag(), tag)
		}
		invite, got = ring()
		called.answer(got, 200)
		ok := caller.expect(invite, 200)
		caller.ack(invite, ok)
		called.take(func(m *sipmsg.Message) bool { return m.Method() == "ACK" && m.CallID() == invite.CallID() })
		hangUp(caller, called, invite, ok)
	})
}

// Check 37 (RFC 3261 §9.1): a CANCEL waits for the first provisional response of the phone, and then reaches it.
func TestCheck37CancelHeld(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, sharedCluster(t), "c37-"+transport, transport)
		invite := caller.call("INVITE", called.uri())
		got := called.requested("INVITE")
		caller.expect(invite, 100)
		caller.expect(caller.cancel(invite), 200)
		called.none(time.Second, is(0, "CANCEL"))
		called.answer(got, 180)
		cancel := called.requested("CANCEL")
		a, _ := cancel.TopVia()
		b, _ := got.TopVia()
		if a.Branch() != b.Branch() || cancel.RequestURI() != got.RequestURI() {
			t.Errorf("%s\ncancels\n%s", cancel.Bytes(), got.Bytes())
		}
		called.answer(cancel, 200)
		called.answer(got, 487)
		caller.refused(invite, 487)
	})
}

// Check 38 (RFC 3261 §9.2): a CANCEL that matches no transaction is answered 481; it matches by its branch, whatever the method, and has no effect on other methods than INVITE.
func TestCheck38CancelOfNothing(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, sharedCluster(t), "c38-"+transport, transport)
		never := caller.make("INVITE", called.uri())
		caller.expect(caller.cancel(never), 481)
		m := caller.call("MESSAGE", called.uri())
		got := called.requested("MESSAGE")
		caller.expect(caller.cancel(m), 200)
		called.answer(got, 200)
		caller.expect(m, 200)
		called.none(200*time.Millisecond, is(0, "CANCEL"))
		// Another branch of the same call cancels nothing.
		invite := caller.call("INVITE", called.uri())
		got = called.requested("INVITE")
		called.answer(got, 180)
		caller.expect(invite, 180)
		other := invite.Clone()
		via, _ := other.TopVia()
		via.Params = via.Params.With("branch", via.Branch()+"-other")
		other.ReplaceTop(sipmsg.ViaHeader, via.String())
		caller.expect(caller.cancel(other), 481)
		called.none(500*time.Millisecond, is(0, "CANCEL"))
		called.answer(got, 486)
		caller.refused(invite, 486)
	})
}

// Check 39 (RFC 3261 §16.7 steps 5 and 10): when one phone answers 2xx or 6xx the others are cancelled.
func TestCheck39OthersCancelled(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 603} {
		t.Run("one phone answers "+map[int]string{200: "200", 603: "603"}[status], func(t *testing.T) {
			t.Parallel()
			overBoth(t, func(t *testing.T, transport string) {
				caller, first, second := twoPhones(t, sharedCluster(t), "c39-"+transport+map[int]string{200: "ok", 603: "no"}[status], transport)
				invite := caller.call("INVITE", first.uri())
				one, two := first.requested("INVITE"), second.requested("INVITE")
				first.answer(one, 180)
				second.answer(two, 180)
				caller.expect(invite, 180)
				caller.expect(invite, 180)
				first.answer(one, status)
				cancel := second.requested("CANCEL")
				second.answer(cancel, 200)
				second.answer(two, 487)
				second.requested("ACK")
				if status == 603 {
					caller.refused(invite, 603)
					return
				}
				if reason, _ := cancel.Value(sipmsg.ReasonHeader); !strings.Contains(reason, "cause=200") {
					t.Errorf("Reason %q", reason)
				}
				ok := caller.expect(invite, 200)
				caller.ack(invite, ok)
				first.requested("ACK")
				hangUp(caller, first, invite, ok)
				caller.none(200*time.Millisecond, func(m *sipmsg.Message) bool { return m.Status() >= 300 })
			})
		})
	}
}

// Check 41 (RFC 3261 §16.4, §16.6 step 6): a request of a strict router, whose Request-URI is our own route, gets its target back from the last Route entry; towards a next hop without lr the Request-URI and Route are written as that hop wants them.
func TestCheck41StrictRouters(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		caller, called := pairOf(t, sharedCluster(t), "c41-"+transport, transport)
		invite, ok, _ := talkBetween(caller, called)
		info := caller.inDialog("INFO", invite, ok)
		routes := elements(info, sipmsg.Route)
		own, err := sipmsg.ParseNameAddr(routes[0])
		if err != nil {
			t.Fatal(err)
		}
		target := info.RequestURI()
		info.Set(sipmsg.Route, strings.Join(append(routes[1:], "<"+target+">"), ", "))
		info.SetRequestURI(own.URI)
		caller.post(info)
		got := called.requested("INFO")
		if got.RequestURI() != target || len(elements(got, sipmsg.Route)) != 0 {
			t.Errorf("of a strict router came\n%s", got.Bytes())
		}
		called.answer(got, 200)
		caller.expect(info, 200)

		// The called phone sits behind a proxy of its own, a strict router.
		edge := "<sip:edge@" + called.local + ">"
		info = caller.inDialog("INFO", invite, ok)
		target = info.RequestURI()
		info.Set(sipmsg.Route, strings.Join(append(elements(info, sipmsg.Route), edge), ", "))
		caller.post(info)
		got = called.requested("INFO")
		if last := elements(got, sipmsg.Route); "<"+got.RequestURI()+">" != edge || !slices.Equal(last, []string{"<" + target + ">"}) {
			t.Errorf("for a strict router came\n%s", got.Bytes())
		}
		called.answer(got, 200)
		caller.expect(info, 200)
		hangUp(caller, called, invite, ok)
	})
}

// Check 42 (RFC 3261 §16.4, RFC 5658): a Route entry of ours is removed under every name, address, port and transport that leads to us, and where a call passes the same proxy twice, each entry once.
func TestCheck42OwnRoutes(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, transport string) {
		c := sharedCluster(t)
		caller, called := pairOf(t, c, "c42-"+transport, transport)
		one, other := c.Nodes[0].P().String(), c.Nodes[1].P().Addr().String()
		for _, own := range []string{
			"", "<sip:" + one + ";lr>", "<sip:" + c.Nodes[0].Address.String() + ";lr>", "<sip:" + other + ";lr>", "<sip:" + other + ":5060;lr;transport=tcp>",
			"<sip:" + domain + ";lr>", "<SIP:" + strings.ToUpper(domain) + ";LR>", "<sip:" + one + ";transport=udp;lr>, <sip:" + one + ";transport=tcp;lr>",
		} {
			m := caller.make("MESSAGE", called.uri(), "Route: "+strings.TrimPrefix(own+", ", ", ")+caller.serviceRoute)
			caller.post(m)
			got := called.requested("MESSAGE")
			if routes := elements(got, sipmsg.Route); len(routes) != 0 {
				t.Errorf("by %s came Route %q", own, routes)
			}
			called.answer(got, 200)
			caller.expect(m, 200)
		}
		invite, ok, _ := talkBetween(caller, called)
		for name, write := range map[string]func(route string) string{
			"as given":                    func(r string) string { return r },
			"with the address of another": func(r string) string { return strings.Replace(r, "@"+one, "@"+other+":5060", 1) },
			"over another transport": func(r string) string {
				return strings.Replace(strings.Replace(r, ";transport=tcp", "", 1), ";lr", map[string]string{"TCP": ";lr", "UDP": ";lr;transport=tcp"}[transport], 1)
			},
			"by a name":                      func(r string) string { return strings.Replace(r, "@"+one, "@"+domain, 1) },
			"behind that of the outer proxy": func(r string) string { return "<sip:" + one + ";lr>, " + r },
		} {
			info := caller.inDialog("INFO", invite, ok)
			routes := elements(info, sipmsg.Route)
			routes[0] = write(routes[0])
			info.Set(sipmsg.Route, strings.Join(routes, ", "))
			caller.post(info)
			got := called.requested("INFO")
			if left := elements(got, sipmsg.Route); len(left) != 0 {
				t.Errorf("%s: came Route %q", name, left)
			}
			called.answer(got, 200)
			caller.expect(info, 200)
		}
		hangUp(caller, called, invite, ok)
	})
	t.Run("the same proxy twice", func(t *testing.T) {
		t.Parallel()
		host, c := freshNet(), sharedCluster(t)
		user := subscribe(t, c, unique("c42-self", host), 1)[0]
		caller := partyOf(t, newWire(t, host(1), c.Nodes[0].P()), user)
		called := partyOf(t, newWire(t, host(2), c.Nodes[0].P()), user) // the same P- and S-CSCF, the user's
		caller.enrol("Contact: <"+caller.contact(user)+">", "Expires: 0")
		caller.enrol("Contact: <" + caller.contact(user) + ">;q=0.1")
		invite, ok, got := talkBetween(caller, called)
		if n := len(elements(got, sipmsg.RecordRoute)); n != 4 {
			t.Errorf("%d Record-Route entries", n)
		}
		hangUp(caller, called, invite, ok)
	})
}

// engineOf is the part of a branch that says which worker wrote it.
func engineOf(via sipmsg.Via) string {
	engine, _, _ := strings.Cut(via.Branch(), ".")
	return engine
}

// Check 43 (RFC 3261 §12.2): re-INVITE, UPDATE and BYE reach the worker that has the call, whatever node they come in at, also after its process was restarted.
func TestCheck43InsideDialog(t *testing.T) {
	t.Parallel()
	t.Run("from any node", func(t *testing.T) {
		t.Parallel()
		c := sharedCluster(t)
		caller, called := pairOf(t, c, "c43", "UDP")
		invite, ok, got := talkBetween(caller, called)
		first, _ := got.TopVia()
		for i, n := range c.Nodes {
			caller.at(n.P())
			update := caller.inDialog("UPDATE", invite, ok)
			caller.post(update)
			m := called.requested("UPDATE")
			if via, _ := m.TopVia(); engineOf(via) != engineOf(first) {
				t.Errorf("at node %d another P-CSCF sends: %s, %s before", i+1, via.Branch(), first.Branch())
			}
			called.answer(m, 200)
			caller.expect(update, 200)
			again := caller.inDialog("INVITE", invite, ok)
			caller.post(again)
			called.answer(called.requested("INVITE"), 200)
			caller.expect(again, 200)
			number, _ := again.CSeq()
			caller.post(caller.inDialog("ACK", invite, ok, fmt.Sprintf("CSeq: %d ACK", number)))
			called.requested("ACK")
		}
		hangUp(caller.at(c.Nodes[2].P()), called, invite, ok)
	})
	t.Run("after a restart of the worker process", func(t *testing.T) {
		t.Parallel()
		c := start(t, alone, nil)
		host := freshNet()
		users := subscribe(t, c, unique("c43r", host), 2)
		caller := partyOf(t, newWire(t, host(1), c.Nodes[0].P()), users[0])
		called := partyOf(t, newWire(t, host(2), c.Nodes[0].P()), users[1])
		invite, ok, got := talkBetween(caller, called)
		old := end(t, c.Nodes[0], "worker", syscall.SIGKILL)
		eventually(t, 10*time.Second, func() string {
			if pids := children(t, c.Nodes[0], "worker"); len(pids) != 1 || pids[0] == old {
				return fmt.Sprintf("worker processes: %v", pids)
			}
			return ""
		})
		ready(t, c)
		for _, method := range []string{"UPDATE", "INFO"} {
			m := caller.inDialog(method, invite, ok)
			caller.post(m)
			called.answer(called.requested(method), 200)
			caller.expect(m, 200)
		}
		bye := called.inDialog("BYE", got, ok)
		called.post(bye)
		caller.answer(caller.requested("BYE"), 200)
		called.expect(bye, 200)
	})
}
