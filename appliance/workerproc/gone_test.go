package workerproc

import (
	"strings"
	"testing"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/eventrouter"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
)

// connection is a flow of a phone over TCP at a node.
func connection(node string, port uint16, conn uint64) sipmsg.Flow {
	f := flowAt(node, port)
	f.Transport, f.Conn = sipmsg.TCP, conn
	return f
}

// toAlice is a MESSAGE to alice from a flow of hers.
func toAlice(group uint32, flow sipmsg.Flow) *link.SIP {
	f := frame(group, flow, "MESSAGE", "m")
	f.Raw = []byte(strings.Replace(string(f.Raw), "MESSAGE sip:ims.test", "MESSAGE sip:alice@ims.test", 1))
	return f
}

// sentOver returns what went out over a flow of a front.
func (w *world) sentOver(flow sipmsg.Flow) []*sipmsg.Message {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*sipmsg.Message
	f := w.fronts[flow.Node]
	for _, s := range f.wire {
		if s.Flow != flow {
			continue
		}
		m, err := sipmsg.Parse(s.Raw)
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

func statuses(all []*sipmsg.Message) (out []int) {
	for _, m := range all {
		if !m.IsRequest() {
			out = append(out, m.Status())
		}
	}
	return out
}

func TestARequestOverAConnectionThatIsGoneFailsAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		g := w.served(p)[state.PCSCF]
		flow := connection("n2", 40000, 7)
		if resp := w.register(flow, g, "r"); resp.Status() != 200 {
			t.Fatalf("REGISTER was answered %s", resp.Bytes())
		}
		tell := func(gone sipmsg.Flow) {
			w.at("n2", func(f *fakeFront) { f.notify(workerlink.FlowGone, workerlink.FlowGoneMsg{Flow: gone}) })
			sleep(10 * time.Millisecond)
		}
		w.send("n2", toAlice(g, flow)) // she writes to herself
		began := time.Now()
		tell(connection("n2", 40000, 99)) // not hers
		tell(flow)
		// No NAT is between: her contact is tried.
		again := flow
		again.Conn = 0
		if got := w.sentOver(again); len(got) != 1 || got[0].Method() != "MESSAGE" {
			t.Fatalf("over a new connection went %v", got)
		}
		tell(again)
		if got := statuses(w.sentOver(flow)); len(got) != 1 || got[0] != 480 {
			t.Errorf("MESSAGE was answered %v, want 480", got)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
		if _, bound := p.engine(g).flows[flow]; bound {
			t.Error("the flow is still told to fronts")
		}
	})
}

func TestARequestThatCannotLeaveFailsAtOnceOnlyOverAConnection(t *testing.T) {
	for _, tt := range []struct {
		name string
		flow sipmsg.Flow
		want bool
	}{
		{"over a connection nobody repeats it", connection("n2", 40000, 7), true},
		{"over UDP it is repeated, and the front may be back", flowAt("n2", 5060), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				p := w.begin(configuration(w.dir))
				g := w.served(p)[state.PCSCF]
				if resp := w.register(tt.flow, g, "r"); resp.Status() != 200 {
					t.Fatalf("REGISTER was answered %s", resp.Bytes())
				}
				from := flowAt("n1", 5070)
				if resp := w.register(from, g, "r2"); resp.Status() != 200 {
					t.Fatalf("REGISTER was answered %s", resp.Bytes())
				}
				w.at("n2", func(f *fakeFront) { f.down = true; f.conn.Close() })
				sleep(time.Second)
				var ringing *sipmsg.Message
				for _, m := range w.send("n1", toAlice(g, from)) { // she writes to herself
					if m.Method() == "MESSAGE" {
						ringing = m
					}
				}
				if ringing == nil {
					t.Fatal("MESSAGE does not come to the other phone")
				}
				busy := &link.SIP{To: g, Entry: 'p', Flow: from, Raw: ringing.Response(486, "", "b").Bytes()}
				if got := len(w.send("n1", busy)) > 0; got != tt.want {
					t.Errorf("it is over: %t, want %t", got, tt.want)
				}
			})
		})
	}
}

// Only phones that are known have requests that are never shed.
func TestStrangersCannotClaimToBeInADialog(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		groups := w.served(p)
		e := p.engine(groups[state.PCSCF])
		known, unknown := flowAt("n1", 5060), flowAt("n1", 5061)
		if resp := w.register(known, e.group.ID, "r"); resp.Status() != 200 {
			t.Fatalf("REGISTER was answered %s", resp.Bytes())
		}
		own := "<sip:" + p.tables.sealer.Load().Seal(token.Token{Mode: token.Binding, Group: e.group.ID, Binding: 1}) + "@192.0.2.10;lr>"
		forged := strings.Replace(own, "<sip:c", "<sip:d", 1)
		for _, tt := range []struct {
			name, method string
			from         transaction.Peer
			route        string
			want         eventrouter.Class
		}{
			{"a phone that is registered", "INVITE", transaction.Peer{Flow: known}, "", eventrouter.Dialog},
			{"a stranger with an invented To tag", "INVITE", transaction.Peer{Flow: unknown}, "", eventrouter.Invite},
			{"a stranger's MESSAGE with one", "MESSAGE", transaction.Peer{Flow: unknown}, "", eventrouter.Message},
			{"a stranger's BYE", "BYE", transaction.Peer{Flow: unknown}, "", eventrouter.Message},
			{"a stranger's ACK", "ACK", transaction.Peer{Flow: unknown}, "", eventrouter.Message},
			{"a stranger with a forged token", "BYE", transaction.Peer{Flow: unknown}, forged, eventrouter.Message},
			{"a phone that moved, by its token", "BYE", transaction.Peer{Flow: unknown}, own, eventrouter.Dialog},
			{"an engine", "BYE", transaction.Peer{Group: groups[state.SCSCF]}, "", eventrouter.Dialog},
		} {
			var headers []string
			if tt.route != "" {
				headers = append(headers, "Route: "+tt.route)
			}
			raw := strings.Replace(string(request(unknown, tt.method, "c", headers...)), "To: <sip:alice@ims.test>", "To: <sip:alice@ims.test>;tag=b", 1)
			m, err := sipmsg.Parse([]byte(raw))
			if err != nil {
				t.Fatal(err)
			}
			if got := e.class(m, tt.from); got != tt.want {
				t.Errorf("%s: class %v, want %v", tt.name, got, tt.want)
			}
		}
	})
}

func TestAwaitedShardsAreForgotten(t *testing.T) {
	var a awaited
	const keep = time.Minute
	start := time.Now()
	flow := func(i int) sipmsg.Flow { return connection("n1", 1, uint64(i)) }
	a.note(flow(1), 3, start, keep)
	a.note(flow(1), 3, start, keep)
	a.note(flow(1), 5, start.Add(keep), keep) // another generation
	if got := a.take(flow(1)); len(got) != 2 {
		t.Errorf("shards %v, want 3 and 5", got)
	}
	if got := a.take(flow(1)); got != nil {
		t.Errorf("shards %v are told twice", got)
	}
	for i := range 3 * maxAwaited {
		a.note(flow(i), 1, start.Add(keep), keep)
	}
	if n := len(a.now) + len(a.old); n > 2*maxAwaited {
		t.Errorf("%d flows are remembered", n)
	}
	a.note(flow(1), 1, start.Add(10*keep), keep)
	if n := len(a.now) + len(a.old); n != 1 {
		t.Errorf("%d flows are remembered after a pause, want 1", n)
	}
}
