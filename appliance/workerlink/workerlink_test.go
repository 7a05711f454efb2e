package workerlink

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
)

// messages are one of each kind, with every field set.
var messages = []any{
	HelloMsg{Node: "n1", Version: "v1", PID: 7, Front: true},
	GroupsMsg{Groups: []uint32{1, 2}},
	FollowMsg{Feed: 3},
	UpdateMsg{Feed: 3, Update: state.Update{Index: 9, Snapshot: true, More: true, Prev: 8, Data: []byte("x")}},
	BindMsg{Flow: sipmsg.Flow{
		Node: "n1", Transport: sipmsg.UDP, Conn: 5,
		Local: netip.MustParseAddrPort("127.0.0.1:5060"), Remote: netip.MustParseAddrPort("[2001:db8::1]:5070"),
	}, Group: 4, Until: 1700000000000},
	LoadMsg{
		Groups: []GroupLoad{{Group: 1, Load: 2.5, Users: 3, Calls: 4, InFlight: 5, Messages: 6}}, CPU: 0.5, StoreError: "full",
		Dropped: map[string]uint64{"shed": 1}, Executors: 2, Queued: 3, Delay: time.Second, Refused: map[string]string{"p1": "why"},
	},
	LoadsMsg{Loads: map[uint32]float64{1: 0.5}, Leader: true},
	ReserveMsg{Kind: "s-cscf", User: "u"},
	ReserveReply{Group: 1, Err: &state.Error{Code: state.NoWorker, Text: "none"}},
	UserMsg{AOR: "sip:u@x", IMPI: "u@x"},
	UserReply{Bindings: []Binding{{
		Worker: "p1", Kind: "p-cscf", Contact: "sip:c", Path: []string{"a"}, ServiceRoute: []string{"b"}, Flow: "udp", Expires: time.Unix(1, 5000), Q: 0.5,
	}}},
	CallsReply{Calls: []Call{{CallID: "c", From: "a", To: "b", State: "ringing", Worker: "s1", Started: time.Unix(2, 0), Role: "orig", PCSCF: 6}}},
	AwaitMsg{Index: 5},
	ChildExitMsg{Child: "front", Reason: "signal", Restarts: 2, At: time.Unix(3, 0)},
}

func TestWhatIsSentIsWhatCame(t *testing.T) {
	for _, m := range messages {
		got := reflect.New(reflect.TypeOf(m))
		if err := Decode(Encode(m), got.Interface()); err != nil {
			t.Errorf("%T: %v", m, err)
		} else if got := got.Elem().Interface(); !reflect.DeepEqual(got, m) {
			t.Errorf("%T: sent %+v, got %+v", m, m, got)
		}
	}
}

func TestPayloadsOfOtherVersions(t *testing.T) {
	newer, err := cbor.Marshal(map[any]any{1: "n1", 2: "v2", 99: []int{1}, "name": true})
	if err != nil {
		t.Fatal(err)
	}
	var m HelloMsg
	if err := Decode(newer, &m); err != nil || m.Node != "n1" || m.Version != "v2" {
		t.Errorf("from a newer version: %+v, %v", m, err)
	}
	older, err := cbor.Marshal(map[any]any{1: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	m = HelloMsg{}
	if err := Decode(older, &m); err != nil || m != (HelloMsg{Node: "n1"}) {
		t.Errorf("from an older version: %+v, %v", m, err)
	}
}

func TestNonsense(t *testing.T) {
	for _, b := range [][]byte{nil, {0xff}, []byte("text"), Encode([]int{1}), append(Encode(HelloMsg{}), 0)} {
		if err := Decode(b, new(HelloMsg)); !errors.Is(err, ErrPayload) {
			t.Errorf("%x: %v", b, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for i, m := range messages {
		f.Add(byte(i), Encode(m))
	}
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		typ := reflect.TypeOf(messages[int(kind)%len(messages)])
		m := reflect.New(typ)
		if Decode(b, m.Interface()) != nil {
			return
		}
		// What was understood can be said again.
		again := reflect.New(typ)
		if err := Decode(Encode(m.Elem().Interface()), again.Interface()); err != nil {
			t.Errorf("%s: %v", typ, err)
		}
	})
}
