package hss

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/aka"
)

var (
	simK   = aka.Key{0: 0x10, 15: 0x01}
	simOPc = aka.Key{0: 0x20, 15: 0x02}
)

// home is a home network: a state and an HSS on each of its nodes, on a clock
// of synctest.
type home struct {
	t        *testing.T
	state    *state.State
	hss      map[string]*Embedded
	failing  error // of proposals
	proposed int
}

// runHome runs a test with the nodes c, a and b, sorted a, b, c, and the
// subscriber alice, who has a SIM.
func runHome(t *testing.T, name string, test func(t *testing.T, h *home)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := &home{t: t, state: state.New(), hss: map[string]*Embedded{}}
			for i, node := range []string{"c", "a", "b"} {
				h.apply(state.Command{PutNode: &state.Node{Name: node, Service: netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), S: 6060}})
				h.hss[node] = NewEmbedded(Config{
					State: func() *state.State { return h.state }, Realm: "ims.test", Node: node,
					Propose: func(cmd state.Command, done func(state.Result, error)) {
						h.proposed++
						if h.failing != nil {
							done(state.Result{}, h.failing)
							return
						}
						r := h.apply(cmd)
						done(r, r.Check())
					},
				})
			}
			for i, impi := range []string{"alice@ims.test", "bob@ims.test"} {
				h.apply(state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{{
					IMPI: impi, Identities: []state.Identity{{URI: "sip:" + impi}},
					AKA: &state.AKA{K: append([]byte{byte(i)}, simK[1:]...), OPc: simOPc[:], AMF: [2]byte{0x80, 0x01}},
				}}}})
			}
			test(t, h)
		})
	})
}

func (h *home) apply(cmd state.Command) state.Result {
	h.t.Helper()
	next, r := h.state.Apply(h.state.Index()+1, []state.Command{cmd})
	if err := r[0].Check(); err != nil {
		h.t.Fatal(err)
	}
	h.state = next
	return r[0]
}

// ask asks about alice at a node.
func (h *home) ask(node string, sent *Challenge, auts *[aka.AUTSSize]byte) MultimediaAuthAnswer {
	h.t.Helper()
	a, err := now(h.t, h.hss[node].MultimediaAuth, MultimediaAuth{IMPU: "sip:alice@ims.test", Sent: sent, AUTS: auts})
	if err != nil || a.Vector == nil {
		h.t.Fatalf("%+v, %v", a, err)
	}
	return a
}

func (h *home) offset() int64 {
	sub, _ := h.state.Subscriber("alice@ims.test")
	return sub.AKA.Offset
}

func alicesSIM() *aka.SIM {
	k := simK
	k[0] = 0
	return aka.NewSIM(k, simOPc)
}

func challenge(a MultimediaAuthAnswer) *Challenge {
	return &Challenge{a.Vector.RAND, a.Vector.AUTN}
}

func TestAKAVectors(t *testing.T) {
	runHome(t, "a SIM answers challenges of any node, in any order, each of them once", func(t *testing.T, h *home) {
		sim := alicesSIM()
		var all []MultimediaAuthAnswer
		for range 3 {
			for _, node := range []string{"b", "c", "a"} {
				all = append(all, h.ask(node, nil, nil))
			}
		}
		for _, i := range []int{2, 1, 0, 3, 5, 4, 8, 7, 6} {
			v := all[i].Vector
			r, _, err := sim.Challenge(v.RAND, v.AUTN)
			if err != nil || string(r.RES) != string(v.XRES) || r.CK != v.CK || r.IK != v.IK {
				t.Errorf("challenge %d: %v", i, err)
			}
			if _, _, err := sim.Challenge(v.RAND, v.AUTN); !errors.Is(err, aka.ErrSync) {
				t.Errorf("challenge %d again: %v", i, err)
			}
		}
	})
	runHome(t, "the vector holds the time, the node's place and the subscriber's AMF", func(t *testing.T, h *home) {
		for place, node := range []string{"a", "b", "c"} {
			v := h.ask(node, nil, nil).Vector
			_, _, _, sqn, amf, err := alicesSIM().Answer(v.RAND, v.AUTN)
			if err != nil || sqn.IND() != place || amf != [2]byte{0x80, 0x01} || sqn.SEQ() != uint64(time.Now().UnixMilli()) {
				t.Errorf("node %s: IND %d, SEQ %d, AMF %x, %v", node, sqn.IND(), sqn.SEQ(), amf, err)
			}
		}
	})
	runHome(t, "a challenge is known again at any node, with its age, and nothing else is", func(t *testing.T, h *home) {
		a := h.ask("a", nil, nil)
		if a.Sent != nil || a.Resynced {
			t.Errorf("%+v of a question without challenge", a)
		}
		made := time.Now()
		time.Sleep(30 * time.Second)
		got := h.ask("b", challenge(a), nil)
		if got.Sent == nil || string(got.Sent.XRES) != string(a.Vector.XRES) || !got.Sent.Made.Equal(made) {
			t.Errorf("known again as %+v", got.Sent)
		}
		forged := challenge(a)
		forged.AUTN[15] ^= 1
		bobs, err := now(t, h.hss["a"].MultimediaAuth, MultimediaAuth{IMPU: "sip:bob@ims.test"})
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]*Challenge{"forged": forged, "another user's": challenge(bobs), "zero": {}} {
			if got := h.ask("a", c, nil); got.Sent != nil || got.Resynced {
				t.Errorf("%s: %+v", name, got.Sent)
			}
		}
		if h.proposed != 0 {
			t.Errorf("%d commands", h.proposed)
		}
	})
	runHome(t, "a subscriber without a SIM has no vector", func(t *testing.T, h *home) {
		h.apply(state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{{
			IMPI: "alice@ims.test", Identities: []state.Identity{{URI: "sip:alice@ims.test"}},
		}}}})
		a, err := now(t, h.hss["a"].MultimediaAuth, MultimediaAuth{IMPU: "sip:alice@ims.test", Sent: &Challenge{}})
		if err != nil || a.Vector != nil || a.Sent != nil {
			t.Errorf("%+v, %v", a, err)
		}
	})
	runHome(t, "a SIM whose numbers are used up is an error, not a refusal", func(t *testing.T, h *home) {
		h.apply(state.Command{ResyncAKA: &state.ResyncAKA{IMPI: "alice@ims.test", To: aka.MaxSEQ}})
		_, err := now(t, h.hss["a"].MultimediaAuth, MultimediaAuth{IMPU: "sip:alice@ims.test"})
		if !errors.Is(err, aka.ErrExhausted) {
			t.Errorf("%v", err)
		}
	})
}

func TestAKAResynchronisation(t *testing.T) {
	// far is a number that the time reaches in a thousand years.
	far := func() aka.SQN { return aka.NewSQN(uint64(time.Now().UnixMilli())+1<<42, 4) }
	for name, sim := range map[string]func() *aka.SIM{
		"a SIM that is ahead of the time": func() *aka.SIM { s := alicesSIM(); s.SetSQN(far()); return s },
		"a SIM that believes no jump":     func() *aka.SIM { s := alicesSIM(); s.Delta = 1 << 28; return s },
	} {
		runHome(t, name+" is brought in step, and stays", func(t *testing.T, h *home) {
			sim := sim()
			a := h.ask("a", nil, nil)
			_, auts, err := sim.Challenge(a.Vector.RAND, a.Vector.AUTN)
			if !errors.Is(err, aka.ErrSync) {
				t.Fatal(err)
			}
			next := h.ask("b", challenge(a), &auts)
			if !next.Resynced || h.proposed != 1 || h.offset() == 0 {
				t.Fatalf("%+v, %d commands, offset %d", next, h.proposed, h.offset())
			}
			for i, node := range []string{"b", "a", "c", "b"} {
				if i > 0 {
					next = h.ask(node, nil, nil)
				}
				if _, _, err := sim.Challenge(next.Vector.RAND, next.Vector.AUTN); err != nil {
					t.Errorf("the next challenge of %s: %v", node, err)
				}
				if got := h.ask("a", challenge(next), nil).Sent; got == nil || !got.Made.Equal(time.Now()) {
					t.Errorf("known again as %+v", got)
				}
				time.Sleep(time.Hour)
			}
			if h.proposed != 1 {
				t.Errorf("%d commands", h.proposed)
			}
		})
	}
	runHome(t, "a SIM that has only seen a later challenge gets one that is later still", func(t *testing.T, h *home) {
		sim := alicesSIM()
		early := h.ask("a", nil, nil)
		time.Sleep(time.Second)
		late := h.ask("a", nil, nil)
		if _, _, err := sim.Challenge(late.Vector.RAND, late.Vector.AUTN); err != nil {
			t.Fatal(err)
		}
		_, auts, err := sim.Challenge(early.Vector.RAND, early.Vector.AUTN)
		if !errors.Is(err, aka.ErrSync) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		next := h.ask("a", challenge(early), &auts)
		if !next.Resynced || h.proposed != 0 {
			t.Errorf("resynced %t with %d commands", next.Resynced, h.proposed)
		}
		if _, _, err := sim.Challenge(next.Vector.RAND, next.Vector.AUTN); err != nil {
			t.Error(err)
		}
	})
	runHome(t, "only the SIM's answer to a fresh challenge of ours counts", func(t *testing.T, h *home) {
		sim := alicesSIM()
		sim.SetSQN(far())
		a := h.ask("a", nil, nil)
		_, auts, _ := sim.Challenge(a.Vector.RAND, a.Vector.AUTN)
		forged := auts
		forged[13] ^= 1
		other := h.ask("a", nil, nil)
		for name, got := range map[string]MultimediaAuthAnswer{
			"forged":                h.ask("a", challenge(a), &forged),
			"of another challenge":  h.ask("a", challenge(other), &auts),
			"of nobody's challenge": h.ask("a", &Challenge{}, &auts),
			"without a challenge":   h.ask("a", nil, &auts),
		} {
			if got.Resynced || h.proposed != 0 {
				t.Errorf("%s: resynced %t with %d commands", name, got.Resynced, h.proposed)
			}
		}
		time.Sleep(41 * time.Second)
		if got := h.ask("a", challenge(a), &auts); got.Resynced || h.proposed != 0 {
			t.Errorf("late: resynced %t with %d commands", got.Resynced, h.proposed)
		}
	})
	runHome(t, "one answer is taken once, whoever repeats it", func(t *testing.T, h *home) {
		sim := alicesSIM()
		sim.SetSQN(far())
		a := h.ask("a", nil, nil)
		_, auts, _ := sim.Challenge(a.Vector.RAND, a.Vector.AUTN)
		h.ask("a", challenge(a), &auts)
		offset := h.offset()
		time.Sleep(time.Second)
		if got := h.ask("b", challenge(a), &auts); got.Resynced || h.offset() != offset {
			t.Errorf("resynced %t, offset %d, before %d", got.Resynced, h.offset(), offset)
		}
	})
	runHome(t, "what cannot be committed is an error", func(t *testing.T, h *home) {
		sim := alicesSIM()
		sim.SetSQN(far())
		a := h.ask("a", nil, nil)
		_, auts, _ := sim.Challenge(a.Vector.RAND, a.Vector.AUTN)
		h.failing = errors.New("no majority")
		_, err := now(t, h.hss["a"].MultimediaAuth, MultimediaAuth{IMPU: "sip:alice@ims.test", Sent: challenge(a), AUTS: &auts})
		if !errors.Is(err, h.failing) {
			t.Errorf("%v", err)
		}
		readOnly := NewEmbedded(Config{State: func() *state.State { return h.state }, Realm: "ims.test", Node: "a"})
		if a, err := now(t, readOnly.MultimediaAuth, MultimediaAuth{IMPU: "sip:alice@ims.test", Sent: challenge(a), AUTS: &auts}); err == nil {
			t.Errorf("an HSS that cannot change anything: %+v", a)
		}
	})
}
