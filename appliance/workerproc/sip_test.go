package workerproc

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	icholy "github.com/icholy/digest"

	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/digest"
	"bellwether/cscf/eventrouter"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/transaction"
)

var phone = netip.MustParseAddr("198.51.100.7")

func addrPort(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// request is a request of user alice from a flow.
func request(flow sipmsg.Flow, method, callID string, headers ...string) []byte {
	uri := "sip:ims.test"
	if method == "OPTIONS" {
		uri = "sip:" + service.String()
	}
	return fmt.Appendf(nil, "%[1]s %[2]s SIP/2.0\r\nVia: SIP/2.0/UDP %[3]s;branch=z9hG4bK%[4]s;rport\r\nMax-Forwards: 70\r\n"+
		"From: <sip:alice@ims.test>;tag=a\r\nTo: <sip:alice@ims.test>\r\nCall-ID: %[4]s\r\nCSeq: 1 %[1]s\r\n%[5]sContent-Length: 0\r\n\r\n",
		method, uri, flow.Remote, callID, strings.Join(append(headers, ""), "\r\n"))
}

func frame(group uint32, flow sipmsg.Flow, method, callID string, headers ...string) *link.SIP {
	return &link.SIP{To: group, Entry: 'p', Flow: flow, Raw: request(flow, method, callID, headers...)}
}

// send gives a front a message for a group and returns what went to the wire
// of that front from then on.
func (w *world) send(node string, s *link.SIP) []*sipmsg.Message {
	w.t.Helper()
	w.mu.Lock()
	f := w.fronts[node]
	f.wire = nil
	if err := f.conn.SendSIP(s); err != nil {
		w.t.Error(err)
	}
	w.mu.Unlock()
	sleep(time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*sipmsg.Message
	for _, s := range f.wire {
		m, err := sipmsg.Parse(s.Raw)
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// register registers alice from a flow and returns the last answer.
func (w *world) register(flow sipmsg.Flow, group uint32, callID string) *sipmsg.Message {
	w.t.Helper()
	impi := "alice@ims.test"
	sub := state.Subscriber{
		IMPI: impi, Realm: "ims.test", Identities: []state.Identity{{URI: "sip:alice@ims.test"}},
		HA1: state.HA1{"MD5": ha1(digest.MD5, impi, "secret")},
	}
	w.apply(state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{sub}}})
	sleep(0) // it comes by another link
	headers := []string{"Contact: <sip:alice@" + flow.Remote.String() + ">", "Expires: 600", "Supported: path"}
	got := w.send(flow.Node, frame(group, flow, "REGISTER", callID+"a", headers...))
	if len(got) != 1 || got[0].Status() != 401 {
		w.t.Fatalf("REGISTER was answered %d times, %s", len(got), got[0].Bytes())
	}
	v, _ := got[0].Value(sipmsg.WWWAuthenticate)
	ch, err := icholy.ParseChallenge(v)
	if err != nil {
		w.t.Fatal(err)
	}
	cred, err := icholy.Digest(ch, icholy.Options{Method: "REGISTER", URI: "sip:ims.test", Username: impi, Password: "secret", Count: 1, Cnonce: "c"})
	if err != nil {
		w.t.Fatal(err)
	}
	got = w.send(flow.Node, frame(group, flow, "REGISTER", callID+"b", append(headers, "Authorization: "+cred.String())...))
	if len(got) != 1 {
		w.t.Fatalf("REGISTER with credentials was answered %v", got)
	}
	return got[0]
}

// TestARegistrationOutlivesTheProcess: P, I and S in one process; after a
// restart the front hears of the phone's flow, whatever comes first: its link,
// or the cluster state that starts the engine which loads the binding.
func TestARegistrationOutlivesTheProcess(t *testing.T) {
	for _, tt := range []struct {
		name string
		late string // front that comes when the engines run already; "": none
	}{
		{"and the front is there first", ""},
		{"and the engines are there first", "n2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.begin(configuration(w.dir))
				groups := w.served(p)
				flow := flowAt("n2", 5060)
				resp := w.register(flow, groups[state.PCSCF], "r")
				if resp.Status() != 200 {
					t.Fatalf("REGISTER was answered %s", resp.Bytes())
				}
				if _, ok := w.state().Assignment(state.SCSCF, "alice@ims.test"); !ok {
					t.Error("the 200 came before the assignment")
				}
				p.stop()
				if tt.late != "" {
					w.at(tt.late, func(f *fakeFront) { f.down = true })
				}
				p = w.begin(configuration(w.dir))
				w.served(p)
				if tt.late != "" {
					w.at(tt.late, func(f *fakeFront) { f.down = false })
					sleep(5 * time.Second)
				}
				if got := heard[workerlink.BindMsg](w, "n2", workerlink.Bind); len(got) == 0 || got[0].Flow != flow || got[0].Group != groups[state.PCSCF] {
					t.Errorf("the front heard of the flows %+v", got)
				}
				user := p.bindings(workerlink.UserMsg{AOR: "sip:alice@ims.test", IMPI: "alice@ims.test"})
				kinds := []string{}
				for _, b := range user {
					kinds = append(kinds, b.Worker+" "+b.Kind)
				}
				slices.Sort(kinds)
				if !slices.Equal(kinds, []string{"p1 p-cscf", "s1 s-cscf"}) {
					t.Errorf("after the restart the user is known at %v", kinds)
				}
			})
		})
	}
}

// TestAnEngineThatStartsTellsTheFrontsOfItsFlows: a front that is greeted
// while an engine starts asks the list of engines before the engine is in it.
func TestAnEngineThatStartsTellsTheFrontsOfItsFlows(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		groups := w.served(p)
		flow := flowAt("n2", 5060)
		w.register(flow, groups[state.PCSCF], "r")
		p.stop()

		for n := range w.fronts {
			w.at(n, func(f *fakeFront) { f.cut, f.down = true, true }) // nothing comes by itself
		}
		p = w.begin(configuration(w.dir))
		sleep(0)
		g, _ := w.state().Group(groups[state.PCSCF])
		e, err := p.Process.start(w.state(), g)
		if err != nil {
			t.Fatal(err)
		}
		defer e.role.Stop()
		w.at("n2", func(f *fakeFront) { f.down = false })
		sleep(5 * time.Second)
		p.publish(map[uint32]*engine{g.ID: e}, []*engine{e})
		sleep(0)
		if got := heard[workerlink.BindMsg](w, "n2", workerlink.Bind); len(got) != 1 || got[0].Flow != flow {
			t.Errorf("the front heard of the flows %+v", got)
		}
		if got := w.groups("n2"); !slices.Equal(got, []uint32{g.ID}) {
			t.Errorf("the front knows the groups %v", got)
		}
	})
}

func TestMessagesThatGoNowhereAreCounted(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		groups := w.served(p)
		g := groups[state.PCSCF]
		if got := w.send("n1", frame(g, flowAt("n1", 1), "OPTIONS", "o")); len(got) != 1 || got[0].Status() != 200 {
			t.Errorf("OPTIONS was answered %v", got)
		}
		if got := w.send("n1", frame(99, flowAt("n1", 1), "OPTIONS", "x")); len(got) != 0 {
			t.Errorf("a message for a group that is not here was answered %v", got)
		}
		if got := w.send("n1", &link.SIP{To: g, Entry: 'p', Flow: flowAt("n1", 1), Raw: []byte("nonsense\r\n\r\n")}); len(got) != 0 {
			t.Errorf("nonsense was answered %v", got)
		}
		w.at("n3", func(f *fakeFront) { f.down = true; f.conn.Close() })
		sleep(time.Second)
		if got := w.send("n1", frame(g, flowAt("n3", 1), "OPTIONS", "y")); len(got) != 0 {
			t.Errorf("an answer for the flow of another front left here: %v", got)
		}
		p.countMu.Lock()
		defer p.countMu.Unlock()
		for _, why := range []string{"not_ours", "malformed", "front_unreachable"} {
			if p.counts[why] != 1 {
				t.Errorf("counts are %v, want one %s", p.counts, why)
			}
		}
	})
}

func TestAskingTheFronts(t *testing.T) {
	set := state.Command{Set: &state.Set{Name: "k", Value: "v"}}
	t.Run("another one where the nearest cannot", func(t *testing.T) {
		in(t, func(t *testing.T, w *world) {
			p := w.begin(configuration(w.dir))
			w.served(p)
			w.at("n1", func(f *fakeFront) { f.answer = "cannot" })
			w.requests = nil
			began := time.Now()
			if _, err := p.propose(t.Context(), set); err != nil || time.Since(began) > 100*time.Millisecond {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
			if v, _ := p.State().Setting("k"); v != "v" {
				t.Error("the own copy does not have it yet")
			}
		})
	})
	t.Run("another one where the nearest hangs, with the same request id", func(t *testing.T) {
		in(t, func(t *testing.T, w *world) {
			p := w.begin(configuration(w.dir))
			w.served(p)
			w.at("n1", func(f *fakeFront) { f.answer = "never" })
			began := time.Now()
			ended := make(chan error, 1)
			core{p.engine(1)}.Propose(set, func(_ state.Result, err error) { ended <- err })
			if err := <-ended; err != nil || time.Since(began) > attemptWithin+100*time.Millisecond {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
			if last := w.requests[len(w.requests)-1]; last.RequestID == "" {
				t.Error("it has no request id")
			}
		})
	})
	t.Run("a refusal is an answer and is not asked again", func(t *testing.T) {
		in(t, func(t *testing.T, w *world) {
			cfg := configuration(w.dir)
			cfg.Workers = cfg.Workers[:2] // no S-CSCF
			p := w.begin(cfg)
			sleep(2 * time.Second)
			w.at("n1", func(f *fakeFront) { f.asked = 0 })
			began := time.Now()
			_, err := p.reserve(t.Context(), state.SCSCF, "u")
			if !errors.Is(err, &state.Error{Code: state.NoWorker}) || time.Since(began) > 0 || w.fronts["n1"].asked > 2 {
				t.Errorf("after %v and %d questions: %v", time.Since(began), w.fronts["n1"].asked, err)
			}
			_, err = p.propose(t.Context(), state.Command{RemoveSubscriber: &state.RemoveSubscriber{IMPI: "nobody"}})
			if !errors.Is(err, &state.Error{Code: state.NotFound}) || time.Since(began) > 0 {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		})
	})
	t.Run("nobody there", func(t *testing.T) {
		in(t, func(t *testing.T, w *world) {
			p := w.begin(configuration(w.dir))
			w.served(p)
			for n := range w.fronts {
				w.at(n, func(f *fakeFront) { f.down = true; f.conn.Close() })
			}
			sleep(time.Second)
			began := time.Now()
			ended := make(chan error, 1)
			core{p.engine(1)}.Reserve(state.SCSCF, "u", func(_ uint32, err error) { ended <- err })
			if err := <-ended; !errors.Is(err, errNoFront) || time.Since(began) != commitWithin {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		})
	})
}

func TestOrderAndClass(t *testing.T) {
	flow := flowAt("n1", 1)
	for _, tt := range []struct {
		name  string
		raw   []byte
		key   string
		class eventrouter.Class
	}{
		{"a registration goes by its address of record", request(flow, "REGISTER", "c"), "sip:alice@ims.test", eventrouter.Register},
		{"a call by its Call-ID", request(flow, "INVITE", "c"), "c", eventrouter.Invite},
		{"what ends something is never shed", request(flow, "CANCEL", "c"), "c", eventrouter.Dialog},
		{"a text", request(flow, "MESSAGE", "c"), "c", eventrouter.Message},
		{"a subscription", request(flow, "SUBSCRIBE", "c"), "c", eventrouter.Subscribe},
		{"a request inside a dialog", []byte(strings.Replace(string(request(flow, "INVITE", "c")), "To: <sip:alice@ims.test>", "To: <sip:alice@ims.test>;tag=b", 1)), "c", eventrouter.Dialog},
		{"an answer to a registration", []byte(strings.Replace(string(request(flow, "REGISTER", "c")), "REGISTER sip:ims.test SIP/2.0", "SIP/2.0 200 OK", 1)), "sip:alice@ims.test", eventrouter.Dialog},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := sipmsg.Parse(tt.raw)
			if err != nil {
				t.Fatal(err)
			}
			if got := orderKey(m); got != tt.key {
				t.Errorf("order key %q, want %q", got, tt.key)
			}
			if got := (&engine{}).class(m, transaction.Peer{Group: 9}); got != tt.class {
				t.Errorf("class %v, want %v", got, tt.class)
			}
		})
	}
}

func TestATimerThatWasStoppedInItsShardNeverRuns(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		e := p.engine(w.served(p)[state.ICSCF])
		env := &shardEnv{e, 3}
		var stop func()
		var ran []string
		post := func(fn func()) { p.router.Post(3, event{eng: e, fn: fn}) }
		post(func() {
			stop = env.After(time.Second, func() { ran = append(ran, "stopped too late") })
			env.After(time.Second, func() { ran = append(ran, "due") })
		})
		post(func() { time.Sleep(2 * time.Second) }) // the timers fire and queue meanwhile
		post(func() { stop() })
		sleep(5 * time.Second)
		if !slices.Equal(ran, []string{"due"}) {
			// The stop was queued before the timers fired, so it came first.
			t.Errorf("ran %v", ran)
		}
	})
}

func TestAStoppedEngineTakesNoMessages(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		g := w.served(p)[state.PCSCF]
		e := p.engine(g)
		e.stop(p.Process.log)
		e.stop(p.Process.log) // once more does nothing
		if got := w.send("n1", frame(g, flowAt("n1", 1), "OPTIONS", "o")); len(got) != 0 {
			t.Errorf("it answered %v", got)
		}
		contains(t, p.log, "group released", 1)
	})
}
