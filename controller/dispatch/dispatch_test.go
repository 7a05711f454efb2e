package dispatch

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"

	"github.com/google/go-cmp/cmp"
)

// The cluster of the tests. Groups are numbered in the order of the workers.
const (
	p1, i1, s1 = 1, 2, 3 // on node a
	p2, i2, s2 = 4, 5, 6 // on node b
)

var (
	secret = []byte("0123456789abcdef0123456789abcdef")
	phone  = sipmsg.Flow{
		Node: "a", Transport: sipmsg.UDP,
		Local:  netip.MustParseAddrPort("192.0.2.1:5060"),
		Remote: netip.MustParseAddrPort("198.51.100.9:40000"),
	}
	stranger = sipmsg.Flow{
		Node: "a", Transport: sipmsg.UDP,
		Local:  netip.MustParseAddrPort("192.0.2.1:5060"),
		Remote: netip.MustParseAddrPort("203.0.113.66:6666"),
	}
)

func cluster(t testing.TB) *state.State {
	t.Helper()
	cmds := []state.Command{{Init: &state.Init{ClusterID: "c1", Name: "test", Secret: secret}}}
	for i, name := range []string{"a", "b"} {
		cmds = append(cmds, state.Command{PutNode: &state.Node{
			Name: name, ClusterAddr: fmt.Sprintf("10.0.0.%d:7000", i+1),
			Service: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), Service6: netip.MustParseAddr(fmt.Sprintf("2001:db8::a%d", i+1)),
			P: 5060, I: 4060, S: 6060, Controller: true,
		}})
	}
	for _, node := range []string{"a", "b"} {
		for _, k := range state.Kinds {
			cmds = append(cmds, state.Command{PutWorker: &state.Worker{ID: string(k[:1]) + "-" + node, Kind: k, Node: node}})
		}
	}
	sub := func(name string) state.Subscriber {
		return state.Subscriber{IMPI: name + "@ims.test", Realm: "ims.test", Identities: []state.Identity{
			{URI: "sip:" + name + "@ims.test"}, {URI: "tel:+49" + fmt.Sprint(len(name))}, {URI: "sip:" + name + "-other@ims.test", Set: 1},
		}}
	}
	cmds = append(cmds,
		state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{sub("alice"), sub("dorothea")}}},
		state.Command{Assign: &state.Assign{Kind: state.PCSCF, User: "sip:alice@ims.test", Hint: p2}},
		state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice@ims.test", Hint: s2}},
	)
	s, results := state.New().Apply(1, cmds)
	for i, r := range results {
		if err := r.Check(); err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	for id, want := range map[state.GroupID]state.Kind{p1: "p-cscf", i1: "i-cscf", s1: "s-cscf", p2: "p-cscf", i2: "i-cscf", s2: "s-cscf"} {
		if g, ok := s.Group(id); !ok || g.Kind != want {
			t.Fatalf("group %d is %v, want %s", id, g, want)
		}
	}
	return s
}

// tables is the knowledge of a caller, spelled out.
type tables struct {
	flows map[sipmsg.Flow]state.GroupID
	calls map[string]state.GroupID
	least state.GroupID // 0: none
	gone  map[state.GroupID]bool
}

func (t tables) Flow(f sipmsg.Flow) (state.GroupID, bool) { g, ok := t.flows[f]; return g, ok }
func (t tables) Call(id string) (state.GroupID, bool)     { g, ok := t.calls[id]; return g, ok }
func (t tables) LeastLoaded() (state.GroupID, bool)       { return t.least, t.least != 0 }
func (t tables) Reachable(g state.GroupID) bool           { return !t.gone[g] }

// message builds a message with the headers given; what is not given has a
// plain value.
func message(start string, headers ...string) string {
	var b strings.Builder
	b.WriteString(start + "\r\n")
	has := func(name string) bool {
		for _, h := range headers {
			if strings.HasPrefix(h, name+":") {
				return true
			}
		}
		return false
	}
	method, _, _ := strings.Cut(start, " ")
	if method == "SIP/2.0" {
		method = "INVITE"
	}
	for _, h := range []string{
		"Via: SIP/2.0/UDP 198.51.100.9:40000;branch=z9hG4bKphone", "Max-Forwards: 70",
		"From: <sip:nobody@elsewhere.test>;tag=f", "To: <sip:bob@ims.test>", "Call-ID: call-1",
		"CSeq: 1 " + method, "Content-Length: 0",
	} {
		if name, _, _ := strings.Cut(h, ":"); !has(name) {
			b.WriteString(h + "\r\n")
		}
	}
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String() + "\r\n"
}

func TestDecide(t *testing.T) {
	st := cluster(t)
	sealer, err := token.NewSealer("c1", secret)
	if err != nil {
		t.Fatal(err)
	}
	other, err := token.NewSealer("c2", secret)
	if err != nil {
		t.Fatal(err)
	}
	seal := func(mode token.Mode, g uint32) string {
		return sealer.Seal(token.Token{Mode: mode, Group: g, Binding: 7})
	}
	route := func(tok string) string { return "Route: <sip:" + tok + "@192.0.2.2:5060;lr>" }
	via := func(branch string) string { return "Via: SIP/2.0/UDP 192.0.2.2:5060;branch=" + branch }
	alice, dora := "To: <sip:alice@ims.test>", "To: <sip:dorothea@ims.test>"
	fromAlice := "From: \"Alice\" <sip:alice@ims.test>;tag=f"
	known := tables{flows: map[sipmsg.Flow]state.GroupID{phone: p1}, least: i1}

	to := func(g state.GroupID) Decision { return Decision{Verdict: To, Group: g} }
	asAlice := Decision{Verdict: To, Group: p2, User: "sip:alice@ims.test"}
	chosen := func(g state.GroupID) Decision { return Decision{Verdict: To, Group: g, Chosen: true} }
	dropped := func(r Reason) Decision { return Decision{Drop: r} }
	reply := func(status int, reason string) Decision {
		return Decision{Verdict: Reply, Status: status, Reason: reason}
	}
	forbidden := reply(403, "")
	noCall := reply(481, "Call/Transaction Does Not Exist")

	for _, tc := range []struct {
		name  string
		entry byte
		flow  sipmsg.Flow
		msg   string
		tab   tables
		want  Decision
	}{
		// Requests and responses that carry a token.
		{"a request goes to the group of its Route's token, whatever the flow says", 'p', phone,
			message("BYE sip:bob@198.51.100.7 SIP/2.0", route(seal(token.Binding, p2))), known, to(p2)},
		{"the token counts at every front, whosever address the Route shows", 'p', stranger,
			message("BYE sip:bob@198.51.100.7 SIP/2.0", "Route: <sip:"+seal(token.Dialog, p1)+"@198.51.100.200;lr>"), known, to(p1)},
		{"the token may have changed its letter case", 'p', stranger,
			message("BYE sip:bob@198.51.100.7 SIP/2.0", route(strings.ToUpper(seal(token.Dialog, p1)))), known, to(p1)},
		{"only the first Route counts", 'p', stranger,
			message("BYE sip:bob@198.51.100.7 SIP/2.0", route(seal(token.Dialog, p1))+",<sip:"+seal(token.Dialog, p2)+"@192.0.2.2;lr>"), known, to(p1)},
		{"an S-CSCF's token leads to the S-CSCF at its entry", 's', stranger,
			message("INVITE sip:bob@ims.test SIP/2.0", route(seal(token.Orig, s2))), known, to(s2)},
		{"a strict router's request is found by its Request-URI", 'p', stranger,
			message("BYE sip:" + seal(token.Dialog, p2) + "@192.0.2.2:5060;lr SIP/2.0"), known, to(p2)},
		{"the Request-URI comes before the Route, as the hops do", 's', stranger,
			message("BYE sip:"+seal(token.Dialog, s1)+"@192.0.2.1 SIP/2.0", route(seal(token.Dialog, s2))), known, to(s1)},
		{"an ACK follows its token", 'p', stranger,
			message("ACK sip:bob@198.51.100.7 SIP/2.0", route(seal(token.Dialog, p2))), known, to(p2)},
		{"a CANCEL follows its token", 's', stranger,
			message("CANCEL sip:bob@ims.test SIP/2.0", route(seal(token.Term, s1))), known, to(s1)},
		{"a response goes to the group of its top Via", 'p', stranger,
			message("SIP/2.0 180 Ringing", via(token.Branch(seal(token.Via, p2), "abc"))), known, to(p2)},
		{"a response to an I-CSCF that is gone goes to another", 'i', stranger,
			message("SIP/2.0 200 OK", via(token.Branch(seal(token.Via, i2), "abc"))),
			tables{least: i1, gone: map[state.GroupID]bool{i2: true}}, chosen(i1)},
		{"a response whose token names the cluster goes to the I-CSCF of the call", 'i', stranger,
			message("SIP/2.0 200 OK", via(token.Branch(seal(token.Via, 0), "abc"))),
			tables{least: i1, calls: map[string]state.GroupID{"call-1": i2}}, to(i2)},

		// Tokens that do not count.
		{"a response without a token is dropped", 'p', phone, message("SIP/2.0 200 OK"), known, dropped(NoToken)},
		{"a response with a token of another cluster is dropped", 'p', phone,
			message("SIP/2.0 200 OK", via(token.Branch(other.Seal(token.Token{Mode: token.Via, Group: p1}), "abc"))), known, dropped(Forged)},
		{"a response with a token from a Route is dropped", 'p', phone,
			message("SIP/2.0 200 OK", via(token.Branch(seal(token.Dialog, p1), "abc"))), known, dropped(Forged)},
		{"a response past the P-CSCF is dropped", 'p', phone,
			message("SIP/2.0 200 OK", via(token.Branch(seal(token.Via, s1), "abc"))), known, dropped(Forged)},
		{"a response for any I-CSCF past the P-CSCF is dropped", 'p', phone,
			message("SIP/2.0 200 OK", via(token.Branch(seal(token.Via, 0), "abc"))), known, dropped(Forged)},
		{"a request with a forged token at our address is dropped", 'p', phone,
			message("BYE sip:bob@198.51.100.7 SIP/2.0", route("x"+seal(token.Dialog, p2)[1:])), known, dropped(Forged)},
		{"a request with another cluster's token at our address is dropped", 'p', phone,
			message("BYE sip:bob@198.51.100.7 SIP/2.0", route(other.Seal(token.Token{Mode: token.Dialog, Group: p1}))), known, dropped(Forged)},
		{"a request with a token from a Via is dropped", 's', stranger,
			message("BYE sip:bob@198.51.100.7 SIP/2.0", route(seal(token.Via, s1))), known, dropped(Forged)},
		{"so it is in the Request-URI", 's', stranger,
			message("BYE sip:" + seal(token.Via, s1) + "@192.0.2.1 SIP/2.0"), known, dropped(Forged)},
		{"a stranger's request with an S-CSCF's token at the P entry is a stranger's", 'p', stranger,
			message("INVITE sip:bob@ims.test SIP/2.0", route(seal(token.Orig, s1))), known, forbidden},
		{"a phone that only shows its Service-Route goes by its P-CSCF", 'p', phone,
			message("INVITE sip:bob@ims.test SIP/2.0", route(seal(token.Orig, s1))), known, to(p1)},
		{"a Route of somebody else is no token", 'p', phone,
			message("INVITE sip:bob@ims.test SIP/2.0", "Route: <sip:pretty@proxy.example;lr>"), known, to(p1)},
		{"a Route that only names our address is no forgery", 'p', phone,
			message("INVITE sip:bob@ims.test SIP/2.0", "Route: <sip:192.0.2.1:5060;lr>"), known, to(p1)},

		// Groups that nobody serves.
		{"a request for a group whose worker is away is dropped", 'p', stranger,
			message("BYE sip:bob@198.51.100.7 SIP/2.0", route(seal(token.Dialog, p2))),
			tables{gone: map[state.GroupID]bool{p2: true}}, dropped(Unserved)},
		{"a response for a group whose worker is away is dropped", 's', stranger,
			message("SIP/2.0 200 OK", via(token.Branch(seal(token.Via, s1), "abc"))),
			tables{gone: map[state.GroupID]bool{s1: true}}, dropped(Unserved)},
		{"a token of a group that is gone leads nowhere", 'p', stranger,
			message("BYE sip:bob@198.51.100.7 SIP/2.0", route(seal(token.Dialog, 99))), known, dropped(UnknownGroup)},
		{"a REGISTER for a group whose worker is away is dropped", 'p', stranger,
			message("REGISTER sip:ims.test SIP/2.0", alice), tables{gone: map[state.GroupID]bool{p2: true}}, dropped(Unserved)},
		{"an initial request of such a phone is dropped", 'p', phone, message("INVITE sip:bob@ims.test SIP/2.0"),
			tables{flows: known.flows, gone: map[state.GroupID]bool{p1: true}}, dropped(Unserved)},
		{"no I-CSCF at all: dropped", 'i', stranger, message("INVITE sip:bob@ims.test SIP/2.0"), tables{}, dropped(NoWorker)},

		// REGISTER at the P-CSCF.
		{"a REGISTER on a known flow goes to the flow's group", 'p', phone,
			message("REGISTER sip:ims.test SIP/2.0", alice), known, to(p1)},
		{"a REGISTER of an assigned user goes to the user's group", 'p', stranger,
			message("REGISTER sip:ims.test SIP/2.0", alice), known, asAlice},
		{"the user is the one of To, however it is written", 'p', stranger,
			message("REGISTER sip:ims.test SIP/2.0", fromAlice, "To: <sip:%61lice@IMS.test:5060;transport=udp>"), known, asAlice},
		{"a REGISTER does not choose its P-CSCF by a token in its Route", 'p', stranger,
			message("REGISTER sip:ims.test SIP/2.0", alice, route(seal(token.Binding, p1))), known, asAlice},
		{"nor by one in its Request-URI", 'p', stranger,
			message("REGISTER sip:"+seal(token.Binding, p1)+"@192.0.2.1 SIP/2.0", alice), known, asAlice},
		{"a REGISTER of a known user without a group reserves one", 'p', stranger,
			message("REGISTER sip:ims.test SIP/2.0", dora), known,
			Decision{Verdict: Reserve, Kind: state.PCSCF, User: "sip:dorothea@ims.test"}},
		{"a REGISTER of an unknown user reserves nothing", 'p', stranger,
			message("REGISTER sip:ims.test SIP/2.0", "To: <sip:mallory@ims.test>"),
			tables{gone: map[state.GroupID]bool{p2: true}}, to(p1)},
		{"and is dropped if nobody can take it", 'p', stranger,
			message("REGISTER sip:ims.test SIP/2.0", "To: <sip:mallory@ims.test>"),
			tables{gone: map[state.GroupID]bool{p1: true, p2: true}}, dropped(NoWorker)},
		{"a flow whose group is gone is an unknown one", 'p', phone,
			message("REGISTER sip:ims.test SIP/2.0", alice), tables{flows: map[sipmsg.Flow]state.GroupID{phone: 99}}, asAlice},
		{"a flow of another kind's group is an unknown one", 'p', phone,
			message("REGISTER sip:ims.test SIP/2.0", alice), tables{flows: map[sipmsg.Flow]state.GroupID{phone: s1}}, asAlice},

		// Initial requests at the P-CSCF.
		{"an initial request goes to the flow's group", 'p', phone,
			message("INVITE sip:bob@ims.test SIP/2.0", fromAlice), known, to(p1)},
		{"on an unknown flow it goes to the group of the user it claims to be from", 'p', stranger,
			message("INVITE sip:bob@ims.test SIP/2.0", fromAlice), known, to(p2)},
		{"or to that of the preferred identity", 'p', stranger,
			message("INVITE sip:bob@ims.test SIP/2.0", "From: <sip:anonymous@anonymous.invalid>;tag=f",
				"P-Preferred-Identity: <tel:+1>, <sip:alice@ims.test>"), known, to(p2)},
		{"or to that of an identity registered together with it", 'p', stranger,
			message("INVITE sip:bob@ims.test SIP/2.0", "From: <tel:+49-5>;tag=f"), known, to(p2)},
		{"but not to that of another set's identity", 'p', stranger,
			message("INVITE sip:bob@ims.test SIP/2.0", "From: <sip:alice-other@ims.test>;tag=f"), known, forbidden},
		{"a stranger is refused", 'p', stranger, message("INVITE sip:alice@ims.test SIP/2.0"), known, forbidden},
		{"so is a user without a group", 'p', stranger,
			message("MESSAGE sip:bob@ims.test SIP/2.0", "From: <sip:dorothea@ims.test>;tag=f"), known, forbidden},
		{"a stranger's CANCEL has nothing to cancel", 'p', stranger, message("CANCEL sip:alice@ims.test SIP/2.0"), known, noCall},
		{"a stranger's ACK is not answered", 'p', stranger, message("ACK sip:alice@ims.test SIP/2.0"), known, dropped(StrayACK)},
		{"a CANCEL goes where its INVITE went", 'p', phone, message("CANCEL sip:bob@ims.test SIP/2.0"), known, to(p1)},
		{"so does the ACK of a failed INVITE", 'p', stranger,
			message("ACK sip:bob@ims.test SIP/2.0", fromAlice), known, to(p2)},

		// OPTIONS to ourselves.
		{"OPTIONS to our address goes to a P-CSCF of this node", 'p', stranger,
			message("OPTIONS sip:192.0.2.1 SIP/2.0"), known, to(p1)},
		{"also to another node's address", 'p', stranger, message("OPTIONS sip:192.0.2.2:5060 SIP/2.0"), known, to(p1)},
		{"or to another node's P-CSCF if this one has none", 'p', stranger,
			message("OPTIONS sip:192.0.2.1 SIP/2.0"), tables{gone: map[state.GroupID]bool{p1: true}}, to(p2)},
		{"OPTIONS to the S-CSCF's address goes to one of this node", 's', stranger,
			message("OPTIONS sip:192.0.2.1:6060 SIP/2.0"), known, to(s1)},
		{"an emergency call of a stranger goes to a P-CSCF of this node, which sends it elsewhere", 'p', stranger,
			message("INVITE urn:service:sos SIP/2.0"), known, to(p1)},
		{"that of a phone to its own", 'p', phone, message("INVITE urn:service:sos.fire SIP/2.0"), known, to(p1)},
		{"our IPv6 address is ours in any spelling", 'p', stranger, message("OPTIONS sip:[2001:DB8:0::00A2]:5060 SIP/2.0"), known, to(p1)},
		{"our IPv4 address, too", 'p', stranger, message("OPTIONS sip:[::FFFF:192.0.2.2] SIP/2.0"), known, to(p1)},
		{"a token that is not genuine at our IPv6 address goes nowhere", 'p', stranger,
			message("BYE sip:x@y.test SIP/2.0", "Route: <sip:forged@[2001:DB8::A1];lr>"), known, dropped(Forged)},
		{"another IPv6 address is not ours", 'p', stranger, message("OPTIONS sip:[2001:db8::ff] SIP/2.0"), known, forbidden},
		{"OPTIONS to a user is an initial request", 'p', stranger, message("OPTIONS sip:alice@192.0.2.1 SIP/2.0"), known, forbidden},
		{"OPTIONS to a domain is an initial request", 'p', stranger, message("OPTIONS sip:ims.test SIP/2.0"), known, forbidden},

		// The I-CSCF.
		{"a new call goes to the I-CSCF with the least load", 'i', stranger,
			message("INVITE sip:bob@ims.test SIP/2.0"), known, chosen(i1)},
		{"a call that was seen goes where it went", 'i', stranger,
			message("INVITE sip:bob@ims.test SIP/2.0"), tables{least: i1, calls: map[string]state.GroupID{"call-1": i2}}, to(i2)},
		{"unless that I-CSCF is away", 'i', stranger, message("INVITE sip:bob@ims.test SIP/2.0"),
			tables{least: i1, calls: map[string]state.GroupID{"call-1": i2}, gone: map[state.GroupID]bool{i2: true}}, chosen(i1)},
		{"a REGISTER goes the same way", 'i', stranger, message("REGISTER sip:ims.test SIP/2.0", alice), known, chosen(i1)},
		{"so does a CANCEL", 'i', stranger, message("CANCEL sip:bob@ims.test SIP/2.0"),
			tables{least: i1, calls: map[string]state.GroupID{"call-1": i2}}, to(i2)},
		{"and OPTIONS to its address", 'i', stranger, message("OPTIONS sip:192.0.2.1:4060 SIP/2.0"), known, chosen(i1)},

		// The S-CSCF without a token.
		{"a REGISTER of a user who has an S-CSCF is refused", 's', stranger, message("REGISTER sip:ims.test SIP/2.0", alice), known, forbidden},
		{"like that of one who has none", 's', stranger, message("REGISTER sip:ims.test SIP/2.0", dora), known, forbidden},
		{"and of an unknown one", 's', stranger, message("REGISTER sip:ims.test SIP/2.0", "To: <sip:mallory@ims.test>"), known, forbidden},
		{"a request for a user who has an S-CSCF is refused", 's', stranger, message("INVITE sip:alice@ims.test SIP/2.0"), known, forbidden},
		{"like one by telephone number", 's', stranger, message("INVITE tel:+49-5 SIP/2.0"), known, forbidden},
		{"for a user who has none", 's', stranger, message("INVITE sip:dorothea@ims.test SIP/2.0"), known, forbidden},
		{"for an unknown one", 's', stranger, message("INVITE sip:mallory@ims.test SIP/2.0"), known, forbidden},
		{"and on behalf of a user", 's', stranger,
			message("INVITE sip:dorothea@ims.test SIP/2.0", "P-Served-User: <sip:alice@ims.test>;sescase=orig;regstate=reg"), known, forbidden},
		{"a CANCEL has nothing to cancel", 's', stranger, message("CANCEL sip:mallory@ims.test SIP/2.0"), known, noCall},
		{"an ACK is not answered", 's', stranger, message("ACK sip:mallory@ims.test SIP/2.0"), known, dropped(StrayACK)},

		{"an entry that does not exist leads nowhere", 'x', stranger, message("INVITE sip:alice@ims.test SIP/2.0"), known, dropped(NoWorker)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := sipmsg.Parse([]byte(tc.msg))
			if err != nil {
				t.Fatalf("parse: %v\n%s", err, tc.msg)
			}
			got := Decide(Input{Message: m, Entry: tc.entry, Flow: tc.flow, State: st, Sealer: sealer, Tables: tc.tab})
			if d := cmp.Diff(got, tc.want); d != "" {
				t.Errorf("decision (-got +want):\n%s%s", d, tc.msg)
			}
		})
	}
}

func TestNothingIsDecidedBeforeTheClusterExists(t *testing.T) {
	m, err := sipmsg.Parse([]byte(message("INVITE sip:alice@ims.test SIP/2.0")))
	if err != nil {
		t.Fatal(err)
	}
	if got := Decide(Input{Message: m, Entry: 'p'}); got.Verdict != Drop || got.Drop != NotReady {
		t.Errorf("got %+v", got)
	}
}

func TestUnknownUsersAreSpreadAndStay(t *testing.T) {
	st := cluster(t)
	sealer, _ := token.NewSealer("c1", secret)
	at := func(user string, tab tables) state.GroupID {
		m, err := sipmsg.Parse([]byte(message("REGISTER sip:ims.test SIP/2.0", "To: <sip:"+user+"@ims.test>")))
		if err != nil {
			t.Fatal(err)
		}
		d := Decide(Input{Message: m, Entry: 'p', Flow: stranger, State: st, Sealer: sealer, Tables: tab})
		if d.Verdict != To {
			t.Fatalf("%s: %+v", user, d)
		}
		return d.Group
	}
	const users = 1000
	count := map[state.GroupID]int{}
	for i := range users {
		user := fmt.Sprint("guess", i)
		g := at(user, tables{})
		count[g]++
		if again := at(user, tables{gone: map[state.GroupID]bool{p1 + p2 - g: true}}); again != g {
			t.Fatalf("%s moved from %d to %d when the other went away", user, g, again)
		}
	}
	if n := count[p1]; n < users*2/5 || n > users*3/5 {
		t.Errorf("spread %v, want about half each", count)
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range reasons {
		s := r.String()
		if s == "" || s == "unknown" || seen[s] {
			t.Errorf("reason %d is called %q", r, s)
		}
		seen[s] = true
	}
	if s := Reason(200).String(); s != "unknown" {
		t.Errorf("got %q", s)
	}
}

// FuzzDecide gives it whatever sipmsg accepts. What is checked is what must
// hold for every message.
func FuzzDecide(f *testing.F) {
	st := cluster(f)
	sealer, _ := token.NewSealer("c1", secret)
	tok := sealer.Seal(token.Token{Mode: token.Dialog, Group: p2})
	branch := token.Branch(sealer.Seal(token.Token{Mode: token.Via, Group: s1}), "x")
	for _, m := range []string{
		message("REGISTER sip:ims.test SIP/2.0", "To: <sip:alice@ims.test>"),
		message("INVITE sip:bob@ims.test SIP/2.0", "Route: <sip:"+tok+"@192.0.2.2;lr>"),
		message("INVITE tel:+49-5 SIP/2.0", "P-Served-User: <sip:alice@ims.test>"),
		message("OPTIONS sip:[2001:db8::1] SIP/2.0", "P-Preferred-Identity: sip:x, tel:+1"),
		message("ACK sip:" + tok + "@192.0.2.1 SIP/2.0"),
		message("SIP/2.0 200 OK", "Via: SIP/2.0/UDP 192.0.2.1:6060;branch="+branch),
	} {
		f.Add([]byte(m), byte('p'))
		f.Add([]byte(m), byte('i'))
		f.Add([]byte(m), byte('s'))
	}
	tab := tables{flows: map[sipmsg.Flow]state.GroupID{phone: p1}, least: i1, gone: map[state.GroupID]bool{s2: true}}
	f.Fuzz(func(t *testing.T, raw []byte, entry byte) {
		m, err := sipmsg.Parse(raw)
		if err != nil {
			return
		}
		d := Decide(Input{Message: m, Entry: entry, Flow: stranger, State: st, Sealer: sealer, Tables: tab})
		switch d.Verdict {
		case To:
			if g, ok := st.Group(d.Group); !ok || tab.gone[d.Group] {
				t.Errorf("to group %d, which nobody serves", d.Group)
			} else if entry == 'p' && g.Kind != state.PCSCF {
				t.Errorf("to a %s past the P-CSCF", g.Kind)
			}
		case Reserve:
			if m.Method() != "REGISTER" || d.User == "" || !d.Kind.HasUsers() {
				t.Errorf("reserve %+v for %s", d, m.Method())
			}
		case Reply:
			if !m.IsRequest() || m.Method() == "ACK" || d.Status < 300 || d.Status > 699 {
				t.Errorf("answer %d to %s", d.Status, m.Method())
			}
		case Drop:
			if d.Drop == NoReason {
				t.Error("dropped without a reason")
			}
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	st := cluster(b)
	sealer, _ := token.NewSealer("c1", secret)
	tok := sealer.Seal(token.Token{Mode: token.Dialog, Group: p2})
	raw := []byte(message("BYE sip:bob@198.51.100.7 SIP/2.0", "Route: <sip:"+tok+"@192.0.2.2:5060;lr>"))
	var tab Tables = tables{}
	var m sipmsg.Message
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Parse(raw); err != nil {
			b.Fatal(err)
		}
		d := Decide(Input{Message: &m, Entry: 'p', Flow: stranger, State: st, Sealer: sealer, Tables: tab})
		if d.Verdict != To {
			b.Fatal(d)
		}
	}
}
