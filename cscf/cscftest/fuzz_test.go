package cscftest_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/controller/state"
	"bellwether/cscf/aka"
	. "bellwether/cscf/cscftest"
	"bellwether/cscf/digest"
	"bellwether/cscf/hss"
	"bellwether/cscf/icscf"
	"bellwether/cscf/pcscf"
	"bellwether/cscf/scscf"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
	"bellwether/cscf/transaction"
	"bellwether/ha"
)

// rig runs roles on one goroutine and without a clock: it is their Core and
// the Env of their layers.
type rig struct {
	state  *state.State
	sealer *token.Sealer
	posted chan func()
	sent   []packet
}

type packet struct {
	to  transaction.Peer
	raw []byte
}

func (g *rig) Now() time.Time                                                  { return time.Now() }
func (g *rig) Post(fn func())                                                  { g.posted <- fn }
func (g *rig) After(time.Duration, func()) func()                              { return func() {} }
func (g *rig) Send(to transaction.Peer, raw []byte)                            { g.sent = append(g.sent, packet{to, raw}) }
func (g *rig) State() *state.State                                             { return g.state }
func (g *rig) Bind(sipmsg.Flow, time.Time)                                     {}
func (g *rig) Unbind(sipmsg.Flow)                                              {}
func (g *rig) Reserve(_ state.Kind, _ string, done func(state.GroupID, error)) { done(3, nil) }

func (g *rig) Propose(cmd state.Command, done func(state.Result, error)) {
	next, r := g.state.Apply(g.state.Index()+1, []state.Command{cmd})
	g.state = next
	done(r[0], r[0].Check())
}

func (g *rig) Route(kind state.Kind, _ *sipmsg.Message) (transaction.Peer, error) {
	return transaction.Peer{Group: map[state.Kind]state.GroupID{state.PCSCF: 1, state.ICSCF: 2, state.SCSCF: 3}[kind]}, nil
}

// run lets what was posted happen.
func (g *rig) run() {
	for {
		select {
		case fn := <-g.posted:
			fn()
		default:
			return
		}
	}
}

// small is a cluster of one worker of each kind, groups 1 to 3, and a user.
func small(f *testing.F) (*token.Sealer, *state.State) {
	f.Helper()
	sealer, err := token.NewSealer("test", Secret)
	if err != nil {
		f.Fatal(err)
	}
	st := state.New()
	for i, cmd := range []state.Command{
		{Init: &state.Init{ClusterID: "test", Name: "test", Secret: Secret}},
		{PutNode: &state.Node{Name: "a", Service: netip.MustParseAddr("127.0.0.1"), P: 5060, I: 4060, S: 6060}},
		{PutWorker: &state.Worker{ID: "p1", Kind: state.PCSCF, Node: "a"}},
		{PutWorker: &state.Worker{ID: "i1", Kind: state.ICSCF, Node: "a"}},
		{PutWorker: &state.Worker{ID: "s1", Kind: state.SCSCF, Node: "a"}},
		{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{{
			IMPI: "alice", Realm: Domain, Identities: []state.Identity{{URI: "sip:alice@ims.test"}, {URI: "tel:+4930111"}},
			HA1: state.HA1{"MD5": digest.HA1(digest.MD5, "alice", Domain, "alice")},
			AKA: &state.AKA{K: make([]byte, 16), OPc: make([]byte, 16), AMF: [2]byte{0x80}},
		}}}},
	} {
		next, r := st.Apply(uint64(i+1), []state.Command{cmd})
		if err := r[0].Check(); err != nil {
			f.Fatal(err)
		}
		st = next
	}
	return sealer, st
}

func serviceAddr(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
}

// FuzzRoles gives any message to each role, from each kind of peer, and answers
// what the role sends with the message's own headers. Nothing may panic, and
// nothing malformed may leave.
func FuzzRoles(f *testing.F) {
	sealer, st := small(f)
	flow := sipmsg.Flow{Node: "a", Transport: sipmsg.UDP, Local: netip.MustParseAddrPort("127.0.0.1:5060"), Remote: netip.MustParseAddrPort("192.0.2.1:5060")}
	peers := []transaction.Peer{{Flow: flow}, {Group: 1, InProcess: true}, {Group: 2, InProcess: true}, {Group: 3, InProcess: true}}
	words := strings.NewReplacer(
		"TOKENO", sealer.Seal(token.Token{Mode: token.Orig, Group: 3}), "TOKENT", sealer.Seal(token.Token{Mode: token.Term, Group: 3}),
		"TOKEND", sealer.Seal(token.Token{Mode: token.Dialog, Group: 3}), "TOKENB", sealer.Seal(token.Token{Mode: token.Binding, Group: 1, Binding: 7}),
	)
	store := ha.Memory()
	f.Cleanup(func() { store.Close() })

	v := aka.New(aka.Key{}, aka.Key{}).Vector([16]byte{1}, aka.NewSQN(uint64(time.Now().UnixMilli()), 0), [2]byte{0x80})
	nonce := digest.AKANonce(v.RAND, v.AUTN)
	const head = "Via: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1\r\nFrom: <sip:alice@ims.test>;tag=1\r\nCall-ID: 1\r\n"
	for _, s := range []string{
		"REGISTER sip:ims.test SIP/2.0\r\n" + head + "To: <sip:alice@ims.test>\r\nCSeq: 1 REGISTER\r\nRoute: <sip:TOKENT@x;lr>\r\nPath: <sip:TOKENB@x;lr>\r\n" +
			"Contact: <sip:a@192.0.2.1>;expires=60;q=0.5\r\nService-Route: <sip:TOKENO@x;lr>\r\nP-Associated-URI: <sip:alice@ims.test>\r\n" +
			"Authorization: Digest username=\"alice\", realm=\"ims.test\", nonce=\"\", uri=\"sip:ims.test\", response=\"\", integrity-protected=yes\r\n\r\n",
		"REGISTER sip:ims.test SIP/2.0\r\n" + head + "To: <sip:alice@ims.test>\r\nCSeq: 1 REGISTER\r\nRoute: <sip:TOKENT@x;lr>\r\n" +
			"WWW-Authenticate: Digest realm=\"ims.test\", nonce=\"" + nonce + "\", algorithm=AKAv1-MD5, qop=\"auth\", ck=\"00\", IK = 00\r\n" +
			"Authorization: Digest username=\"alice\", realm=\"ims.test\", nonce=\"" + nonce + "\", uri=\"sip:ims.test\", response=\"00\", algorithm=AKAv1-MD5, auts=\"AAAAAAAAAAAAAAAAAAA=\"\r\n\r\n",
		"REGISTER sip:ims.test SIP/2.0\r\n" + head + "To: <sip:alice@ims.test>\r\nCSeq: 1 REGISTER\r\nRoute: <sip:TOKENT@x;lr>\r\nContact: *\r\nExpires: 0\r\n\r\n",
		"INVITE sip:alice@ims.test SIP/2.0\r\n" + head + "To: <sip:alice@ims.test>\r\nCSeq: 1 INVITE\r\nRoute: <sip:TOKENO@x;lr>, <sip:x;lr>\r\n" +
			"P-Asserted-Identity: <sip:alice@ims.test>\r\nP-Preferred-Identity: <tel:+49-30-111>\r\nPrivacy: id\r\n\r\n",
		"MESSAGE tel:+4930111 SIP/2.0\r\n" + head + "To: <tel:+4930111>\r\nCSeq: 1 MESSAGE\r\nRoute: <sip:TOKENT@x;lr>\r\n\r\n",
		"BYE sip:a@192.0.2.1 SIP/2.0\r\n" + head + "To: <sip:alice@ims.test>;tag=2\r\nCSeq: 1 BYE\r\nRoute: <sip:TOKENB@x;lr>,<sip:TOKEND@x;lr>,<sip:TOKENB@x;lr>\r\n\r\n",
		"ACK sip:a@192.0.2.1 SIP/2.0\r\n" + head + "To: <sip:alice@ims.test>;tag=2\r\nCSeq: 1 ACK\r\nRoute: <sip:TOKEND@x;lr>,<sip:TOKENB@x;lr>\r\n\r\n",
		"OPTIONS sip:ims.test SIP/2.0\r\n" + head + "To: <sip:ims.test>\r\nCSeq: 1 OPTIONS\r\nProxy-Require: sec-agree\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		raw = []byte(words.Replace(string(raw)))
		if _, err := sipmsg.Parse(raw); err != nil {
			return
		}
		g := &rig{state: st, sealer: sealer, posted: make(chan func(), 4096)}
		home := hss.NewEmbedded(hss.Config{State: g.State, Realm: Domain})
		for _, role := range []transaction.User{
			pcscf.New(pcscf.Config{Group: 1, Sealer: sealer, ServiceAddr: func(netip.Addr) netip.AddrPort { return serviceAddr(5060) }, Domain: Domain}, g, store),
			icscf.New(icscf.Config{Group: 2, Sealer: sealer, ServiceAddr: serviceAddr(4060), Domain: Domain, HSS: home}, g),
			scscf.New(scscf.Config{Group: 3, Sealer: sealer, ServiceAddr: serviceAddr(6060), Domain: Domain, HSS: home}, g, store),
		} {
			for _, from := range peers {
				layer := transaction.New(transaction.Config{SentBy: func(transaction.Peer) string { return "127.0.0.1:5060" }, Token: "t", Secret: Secret}, g, role)
				m, err := sipmsg.Parse(raw)
				if err != nil {
					t.Fatal(err)
				}
				layer.Receive(m, from)
				role.Ack(layer, mustParse(t, raw), from)
				role.Stray(layer, mustParse(t, raw), from)
				g.run()
				for i := 0; i < len(g.sent) && i < 16; i++ {
					out, err := sipmsg.Parse(g.sent[i].raw)
					if err != nil {
						t.Fatalf("malformed: %v\n%q", err, g.sent[i].raw)
					}
					if !out.IsRequest() || out.Method() == "ACK" {
						continue
					}
					for _, status := range []int{183, 200} {
						resp := out.Response(status, "", "x")
						for name, value := range mustParse(t, raw).Headers() {
							switch sipmsg.HeaderNamed(name) {
							case sipmsg.ViaHeader, sipmsg.From, sipmsg.To, sipmsg.CallID, sipmsg.CSeq, sipmsg.ContentLength:
							default:
								resp.AddNamed(name, value)
							}
						}
						if resp, err = sipmsg.Parse(resp.Bytes()); err == nil {
							layer.Receive(resp, g.sent[i].to)
						}
						g.run()
					}
				}
				g.sent = g.sent[:0]
			}
		}
	})
}

// FuzzRecords loads any bytes as stored records. Nothing may panic, then or
// when the records are used.
func FuzzRecords(f *testing.F) {
	sealer, st := small(f)
	type m = map[int]any
	for _, v := range []any{
		m{0: 1, 1: m{1: 7, 2: "sip:alice@ims.test", 3: m{}, 4: []string{"sip:a@x"}, 5: []string{"<sip:x>"}, 6: []m{{1: "sip:alice@ims.test", 2: "sip:alice@ims.test"}}, 7: 1 << 40}},
		m{0: 1, 1: m{1: "alice", 2: map[string]any{"IMPI": "alice", "Identities": []map[string]any{{"u": "sip:alice@ims.test"}}},
			3: []m{{1: 0, 2: "sip:a@x", 3: ";q=1", 4: 1000, 7: 1 << 40, 8: []string{"<sip:x>"}}}, 4: m{1: []m{{1: "n", 2: 1, 3: 1}}}}},
		m{0: 1, 1: m{1: "c", 2: "f", 3: "t", 4: map[string]string{"orig": "confirmed"}, 5: 1 << 40}},
	} {
		b, err := cbor.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		store := ha.Memory()
		defer store.Close()
		never := time.Time{}
		store.Put(1, "binding/0000000000000007", value, never, nil)
		store.Put(3, "user/alice", value, never, nil)
		store.Put(3, "call/00112233445566778899aabbccddeeff", value, never, nil)
		g := &rig{state: st, sealer: sealer, posted: make(chan func(), 4096)}
		p := pcscf.New(pcscf.Config{Group: 1, Sealer: sealer, ServiceAddr: func(netip.Addr) netip.AddrPort { return serviceAddr(5060) }, Domain: Domain}, g, store)
		home := hss.NewEmbedded(hss.Config{State: g.State, Realm: Domain})
		s := scscf.New(scscf.Config{Group: 3, Sealer: sealer, ServiceAddr: serviceAddr(6060), Domain: Domain, HSS: home}, g, store)
		p.Load()
		s.Load()
		p.Figures()
		s.Figures()
		s.Calls()
		for _, user := range p.Users() {
			p.Bindings(user)
		}
		s.Registration("sip:alice@ims.test")
		for role, route := range map[transaction.User]token.Token{
			p: {Mode: token.Binding, Group: 1, Binding: 7}, s: {Mode: token.Term, Group: 3},
		} {
			layer := transaction.New(transaction.Config{SentBy: func(transaction.Peer) string { return "127.0.0.1:5060" }, Token: "t", Secret: Secret}, g, role)
			layer.Receive(mustParse(t, []byte("INVITE sip:alice@ims.test SIP/2.0\r\nVia: SIP/2.0/UDP x;branch=z9hG4bK1\r\nFrom: <sip:b@x>;tag=1\r\n"+
				"To: <sip:alice@ims.test>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\nRoute: <sip:"+sealer.Seal(route)+"@x;lr>\r\n\r\n")),
				transaction.Peer{Group: map[token.Mode]uint32{token.Binding: 3, token.Term: 2}[route.Mode]})
		}
	})
}

func mustParse(t *testing.T, raw []byte) *sipmsg.Message {
	m, err := sipmsg.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
