package front

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bellwether/controller/link"
	"bellwether/controller/state"
	"bellwether/cscf/sipmsg"
	"bellwether/cscf/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Groups of the test cluster, in the order in which their workers came.
const (
	p1, i1, s1 = 1, 2, 3 // on node a, which is the front's
	p2, i2, s2 = 4, 5, 6 // on node b
)

var secret = []byte("0123456789abcdef0123456789abcdef")

// cluster stands for the controller: a state and a way to reserve.
type cluster struct {
	state   atomic.Pointer[state.State]
	reserve func(ctx context.Context, kind state.Kind, user string) (state.GroupID, error)
}

func (c *cluster) State() *state.State { return c.state.Load() }

func (c *cluster) Reserve(ctx context.Context, kind state.Kind, user string) (state.GroupID, error) {
	return c.reserve(ctx, kind, user)
}

// newCluster has two nodes with a worker of each kind. Alice is assigned to p2
// and s2, Dora to nobody.
func newCluster(t testing.TB) *cluster {
	t.Helper()
	cmds := []state.Command{{Init: &state.Init{ClusterID: "c1", Name: "test", Secret: secret}}}
	for i, name := range []string{"a", "b"} {
		cmds = append(cmds, state.Command{PutNode: &state.Node{
			Name: name, ClusterAddr: fmt.Sprintf("10.0.0.%d:7000", i+1),
			Service: netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}), P: 5060, I: 4060, S: 6060, Controller: true,
		}})
		for _, k := range state.Kinds {
			cmds = append(cmds, state.Command{PutWorker: &state.Worker{ID: string(k[:1]) + "-" + name, Kind: k, Node: name}})
		}
	}
	for _, name := range []string{"alice", "dora", "erin"} {
		cmds = append(cmds, state.Command{PutSubscribers: &state.PutSubscribers{Subscribers: []state.Subscriber{{
			IMPI: name + "@ims.test", Realm: "ims.test", Identities: []state.Identity{{URI: "sip:" + name + "@ims.test"}},
		}}}})
	}
	cmds = append(cmds,
		state.Command{Assign: &state.Assign{Kind: state.PCSCF, User: "sip:alice@ims.test", Hint: p2}},
		state.Command{Assign: &state.Assign{Kind: state.SCSCF, User: "alice@ims.test", Hint: s2}},
	)
	st, results := state.New().Apply(1, cmds)
	for i, r := range results {
		if err := r.Check(); err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	cl := &cluster{reserve: func(context.Context, state.Kind, string) (state.GroupID, error) {
		return 0, fmt.Errorf("no reservation in this test")
	}}
	cl.state.Store(st)
	return cl
}

// newFront listens at free ports of 127.0.0.1.
func newFront(t testing.TB, cl Cluster) *Front {
	t.Helper()
	any := netip.MustParseAddrPort("127.0.0.1:0")
	f, err := New(Config{Node: "a", Entries: []Entry{{'p', any}, {'i', any}, {'s', any}}}, cl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// process is a worker process: its end of a link, and what came over it.
type process struct {
	near *link.Conn // the front's end
	far  *link.Conn
	got  chan link.SIP
}

func (p *process) SIP(_ *link.Conn, f *link.SIP)                   { p.got <- *f }
func (p *process) Call(*link.Conn, string, []byte) ([]byte, error) { return nil, nil }
func (p *process) Notify(*link.Conn, string, []byte)               {}

type nearEnd struct{ f *Front }

func (n nearEnd) SIP(_ *link.Conn, s *link.SIP)                 { n.f.FromWorker(s) }
func (nearEnd) Call(*link.Conn, string, []byte) ([]byte, error) { return nil, nil }
func (nearEnd) Notify(*link.Conn, string, []byte)               {}

// connect attaches a worker process over a unix socket.
func connect(t testing.TB, f *Front, groups ...uint32) *process {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "link"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{got: make(chan link.SIP, 4096)}
	p.near, p.far = link.New(near, nearEnd{f}, link.Options{}), link.New(far, p, link.Options{})
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.near.Run() })
	wg.Go(func() { _ = p.far.Run() })
	f.Attach(p.near, groups)
	t.Cleanup(func() {
		f.Detach(p.near)
		p.near.Close()
		p.far.Close()
		wg.Wait()
	})
	return p
}

// next returns the next frame that the worker process gets.
func (p *process) next(t testing.TB) link.SIP {
	t.Helper()
	select {
	case s := <-p.got:
		return s
	case <-time.After(10 * time.Second):
		t.Fatal("no frame came")
	}
	panic("unreachable")
}

// nothing fails if a frame is there.
func (p *process) nothing(t testing.TB) {
	t.Helper()
	select {
	case s := <-p.got:
		t.Errorf("unexpected frame for group %d:\n%s", s.To, s.Raw)
	default:
	}
}

// phone is a UDP socket of an outsider.
type phone struct {
	*net.UDPConn
	t    testing.TB
	addr netip.AddrPort
}

func newPhone(t testing.TB) *phone {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &phone{c, t, c.LocalAddr().(*net.UDPAddr).AddrPort()}
}

func (p *phone) send(to netip.AddrPort, msg string) {
	p.t.Helper()
	if _, err := p.WriteToUDPAddrPort([]byte(msg), to); err != nil {
		p.t.Fatal(err)
	}
}

// receive returns the next message that the phone gets, and from where.
func (p *phone) receive() (*sipmsg.Message, netip.AddrPort) {
	p.t.Helper()
	if err := p.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		p.t.Fatal(err)
	}
	buf := make([]byte, maxDatagram)
	n, from, err := p.ReadFromUDPAddrPort(buf)
	if err != nil {
		p.t.Fatal(err)
	}
	m, err := sipmsg.Parse(buf[:n])
	if err != nil {
		p.t.Fatalf("%v:\n%s", err, buf[:n])
	}
	return m, from
}

// flow is the phone's flow to an entry.
func (p *phone) flow(f *Front, entry byte) sipmsg.Flow {
	return sipmsg.Flow{Node: "a", Transport: sipmsg.UDP, Local: f.Addr(entry), Remote: p.addr}
}

// message builds a message with the headers given; what is not given has a
// plain value.
func message(start string, headers ...string) string {
	var b strings.Builder
	b.WriteString(start + "\r\n")
	method, _, _ := strings.Cut(start, " ")
	if method == "SIP/2.0" {
		method = "INVITE"
	}
next:
	for _, h := range []string{
		"Via: SIP/2.0/UDP 127.0.0.1:5099;rport;branch=z9hG4bKphone", "Max-Forwards: 70",
		"From: <sip:nobody@elsewhere.test>;tag=f", "To: <sip:bob@ims.test>", "Call-ID: call-1",
		"CSeq: 1 " + method, "Content-Length: 0",
	} {
		name, _, _ := strings.Cut(h, ":")
		for _, given := range headers {
			if strings.HasPrefix(given, name+":") {
				continue next
			}
		}
		b.WriteString(h + "\r\n")
	}
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String() + "\r\n"
}

func seal(t testing.TB, mode token.Mode, group uint32) string {
	t.Helper()
	s, err := token.NewSealer("c1", secret)
	if err != nil {
		t.Fatal(err)
	}
	return s.Seal(token.Token{Mode: mode, Group: group})
}

// eventually waits until ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
