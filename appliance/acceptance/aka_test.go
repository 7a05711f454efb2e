package acceptance

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
	"bellwether/controller/api"
	"bellwether/cscf/aka"
)

// usim is the secret of a SIM that the tests made.
type usim struct{ k, opc aka.Key }

// newUSIM draws the keys of a SIM. Nothing of the cluster may print them.
func newUSIM() usim {
	var u usim
	rand.Read(u.k[:])
	rand.Read(u.opc[:])
	u.hide()
	return u
}

func (u usim) hide() {
	secretsMu.Lock()
	defer secretsMu.Unlock()
	secrets[hex.EncodeToString(u.k[:])], secrets[hex.EncodeToString(u.opc[:])] = true, true
}

func (u usim) keys() *api.AKA {
	return &api.AKA{K: hex.EncodeToString(u.k[:]), OPc: hex.EncodeToString(u.opc[:]), AMF: "8000"}
}

// with gives a phone the SIM, and the password if it is to keep it.
func (u usim) with(password string, change func(*phone.Config)) func(*phone.Config) {
	return func(c *phone.Config) {
		c.SIM, c.Password = aka.NewSIM(u.k, u.opc), password
		if change != nil {
			change(c)
		}
	}
}

// subscribeAKA stores a subscriber with a SIM and, if both is set, a password.
func subscribeAKA(t testing.TB, c *localcluster.Cluster, user string, both bool) usim {
	t.Helper()
	u := newUSIM()
	s := subscriber(user)
	if !both {
		s.HA1 = api.Credentials{}
	}
	s.AKA = u.keys()
	if err := c.Nodes[0].Admin.AddSubscriber(within(t, 10*time.Second), s, false); err != nil {
		t.Fatal(err)
	}
	return u
}

// RFC 3310: a phone with a SIM and one with a password call each other, with
// audio both ways.
func TestPhonesWithASIMAndWithAPasswordCallEachOther(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	sim := subscribeAKA(t, c, "sim0000", false)
	user := subscribe(t, c, "nosim", 1)[0]
	heard := make(chan phone.Result, 2)
	a := newPhone(t, c.Node("n1"), "sim0000", sim.with("", func(c *phone.Config) { c.OnCall = func(r phone.Result) { heard <- r } }))
	b := newPhone(t, c.Node("n2"), user, func(c *phone.Config) {
		c.ToneHz = 900
		c.OnCall = func(r phone.Result) { heard <- r }
	})
	ctx := within(t, 20*time.Second)
	for _, p := range []*phone.Phone{a, b} {
		if err := p.Register(ctx); err != nil {
			t.Fatal(err)
		}
	}
	talkWith(t, a, user, heard)
	talkWith(t, b, "sim0000", heard)
	if err := a.Unregister(ctx); err != nil || a.Registered() {
		t.Errorf("unregistered: %v", err)
	}
}

// talkWith calls a user and wants audio both ways.
func talkWith(t testing.TB, caller *phone.Phone, callee string, heard <-chan phone.Result) {
	t.Helper()
	r, err := caller.Call(within(t, 20*time.Second), "sip:"+callee+"@"+domain, phone.CallOptions{Hold: time.Second, Update: true})
	if err != nil || r.Status != 200 {
		t.Fatalf("call to %s: %+v, %v", callee, r, err)
	}
	for _, r := range []phone.Result{r, <-heard} {
		if !r.ToneHeard || r.RTPReceived == 0 {
			t.Errorf("no audio in the call to %s: %+v", callee, r)
		}
	}
}

// TS 33.102 §6.3.5: a SIM that has accepted later challenges, as after a loss
// of the network's memory, sends AUTS, and is in step from then on at every
// node.
func TestSIMThatIsAheadIsResynchronised(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	u := subscribeAKA(t, c, "ahead0000", false)
	sim := aka.NewSIM(u.k, u.opc)
	// A year, in the unit of SEQ.
	far := aka.NewSQN(uint64(time.Now().Add(365*24*time.Hour).UnixMilli()), 7)
	sim.SetSQN(far)
	var log strings.Builder // of one phone at a time
	for i, n := range append(c.Nodes, c.Nodes...) {
		p := newPhone(t, n, "ahead0000", func(c *phone.Config) {
			c.SIM, c.Password, c.Log = sim, "", slog.New(slog.NewTextHandler(&log, nil))
		})
		before := sim.SQN()
		if err := p.Register(within(t, 20*time.Second)); err != nil {
			t.Fatalf("registration %d: %v", i, err)
		}
		if sim.SQN().SEQ() <= before.SEQ() {
			t.Errorf("registration %d was accepted with SEQ %d after %d", i, sim.SQN().SEQ(), before.SEQ())
		}
		p.Close()
	}
	if n := strings.Count(log.String(), aka.ErrSync.Error()); n != 1 {
		t.Errorf("%d of six registrations were resynchronised:\n%s", n, log.String())
	}
}

// RFC 3310: a SIM with another key refuses the network's challenge, and is
// refused.
func TestSIMWithAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	u := subscribeAKA(t, c, "wrongk0000", false)
	for name, key := range map[string]usim{"K": {newUSIM().k, u.opc}, "OPc": {u.k, newUSIM().opc}} {
		p := newPhone(t, c.Node("n1"), "wrongk0000", key.with("", nil))
		err := p.Register(within(t, 20*time.Second))
		var refused *phone.StatusError
		if !errors.As(err, &refused) || refused.Status != 403 || !errors.Is(err, aka.ErrMAC) {
			t.Errorf("with another %s: %v", name, err)
		}
	}
	p := newPhone(t, c.Node("n1"), "wrongk0000", u.with("", nil))
	if err := p.Register(within(t, 20*time.Second)); err != nil {
		t.Errorf("the right SIM afterwards: %v", err)
	}
}

// RFC 3310: a subscriber who has a SIM and a password registers a phone with
// either.
func TestSubscriberWithASIMAndAPassword(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	u := subscribeAKA(t, c, "mixed0000", true)
	for _, tt := range []struct {
		name   string
		change func(*phone.Config)
		ok     bool
	}{
		{"the password", nil, true},
		{"the SIM", u.with("", nil), true},
		{"both", u.with(password, nil), true},
		{"a wrong password", func(c *phone.Config) { c.Password = "guess" }, false},
		{"the SIM of somebody else", newUSIM().with("", nil), false},
	} {
		p := newPhone(t, c.Node("n2"), "mixed0000", tt.change)
		if err := p.Register(within(t, 20*time.Second)); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		p.Close()
	}
}

var akaNonce = regexp.MustCompile(`nonce="([^"]+)"`)

// RFC 3310: the challenge holds RAND and AUTN, and the keys CK and IK stay in
// the network (TS 24.229 §5.2.2.2).
func TestCKAndIKDoNotReachThePhone(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	u := subscribeAKA(t, c, "keys0000", false)
	w := newWire(t, freshNet()(1), c.Node("n1").P())
	first := w.final(t, text(append(w.request("REGISTER", "sip:"+domain, "keys0000"), fmt.Sprintf(
		`Authorization: Digest username="keys0000@%s", realm="%s", nonce="", uri="sip:%s", response=""`, domain, domain, domain)), ""))
	if first.status != 401 || !strings.Contains(first.raw, "algorithm=AKAv1-MD5") {
		t.Fatalf("answered\n%s", first.raw)
	}
	nonce, err := base64.StdEncoding.DecodeString(akaNonce.FindStringSubmatch(first.raw)[1])
	if err != nil || len(nonce) != 32 {
		t.Fatalf("the nonce has %d bytes, %v", len(nonce), err)
	}
	_, ck, ik, _, amf, err := aka.New(u.k, u.opc).Answer([16]byte(nonce), [16]byte(nonce[16:]))
	if err != nil || amf != [2]byte{0x80, 0} {
		t.Errorf("AMF %x, %v", amf, err)
	}
	low := strings.ToLower(first.raw)
	for _, secret := range []string{"ck=", "ik=", hex.EncodeToString(ck[:]), hex.EncodeToString(ik[:])} {
		if strings.Contains(low, secret) {
			t.Errorf("the phone sees %s in\n%s", secret, first.raw)
		}
	}
}

// TestUSIMKeysAreStoredByTheCommandLine: keys come by standard input, and no
// command shows them.
func TestUSIMKeysAreStoredByTheCommandLine(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	n := c.Node("n3")
	u := newUSIM()
	k := u.keys()
	impi := "typed0000@" + domain
	stored := bellwether(t, "K="+k.K+"\nOPc="+k.OPc+"\n", "subscriber", "add", impi, "--aka-stdin", "--socket", n.AdminSocket())
	if want := impi + " is stored with sip:" + impi + "\n"; stored.code != 0 || stored.out != want {
		t.Fatalf("%+v", stored)
	}
	if shown, asJSON := cli(t, n, "subscriber", "show", impi); !strings.Contains(shown, "yes (AMF 8000)") || !strings.Contains(asJSON, `"amf": "8000"`) {
		t.Errorf("shown as\n%s%s", shown, asJSON)
	}
	if all := bellwether(t, "", "subscriber", "export", "--socket", n.AdminSocket()); all.code != 0 || !strings.Contains(all.out, impi) {
		t.Errorf("exported as %+v", all)
	}
	p := newPhone(t, c.Node("n1"), "typed0000", u.with("", nil))
	if err := p.Register(within(t, 20*time.Second)); err != nil {
		t.Error(err)
	}
}

// testSet2 is test set 2 of TS 35.208 §4.3, of which no byte of K and OP is 00
// or 5b: with those, sipp computes nonsense.
var testSet2 = struct{ k, op string }{"0396eb317b6d1c36f19c1c84cd6ffd16", "ff53bade17df5d4e793073ce9d7579fa"}

// TS 35.208: stock sipp registers with AKA, again and again. Where RES has a
// byte 00, sipp answers wrongly, and only there.
//
// sipp reads hex digits into memory that it has not cleared, and takes what
// follows for text up to the next byte 00: an address with a byte 5b in it, a
// matter of luck for each process, is a syntax error then. So the digits end
// with 00 here.
func TestSippRegistersWithAKA(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	u := usim{k: keyOf(t, testSet2.k)}
	u.opc = aka.OPc(u.k, keyOf(t, testSet2.op))
	u.hide()
	var users []string
	var all []api.NewSubscriber
	for i := range 60 {
		user := fmt.Sprintf("sippaka%04d", i)
		s := subscriber(user)
		s.HA1, s.AKA = api.Credentials{}, u.keys()
		users, all = append(users, user), append(all, s)
	}
	if _, err := c.Nodes[0].Admin.ImportSubscribers(within(t, 20*time.Second), all); err != nil {
		t.Fatal(err)
	}
	addr := freshNet()
	registrations, failures := 0, 0
	for round := 0; len(users) > 0; round++ {
		if round == 6 {
			t.Fatalf("%v did not register in %d rounds", users, round)
		}
		d := desk{netip.AddrPortFrom(addr(round+1), 5060), c.Nodes[round%len(c.Nodes)], users}
		s := d.registration(users, 600, 20)
		for i := range s.rows {
			s.rows[i][1] = fmt.Sprintf("[authentication username=%s@%s aka_K=0x%s00 aka_OP=0x%s00 aka_AMF=0x800000]", users[i], domain, testSet2.k, testSet2.op)
		}
		s.trace = true
		r := s.start(t)
		<-r.ended // it is a failure for sipp if one call failed
		good, bad := r.answers(t, u)
		if figures, err := r.figures(); err != nil || figures.Created != len(users) || figures.Failed != len(bad) {
			t.Errorf("sipp counts %+v of %d, its messages show %d failures; %v\n%s", figures, len(users), len(bad), err, r.errors())
		}
		registrations, failures = registrations+len(good), failures+len(bad)
		users = bad
	}
	t.Logf("%d registrations, %d more were wrong because RES had a byte 00", registrations, failures)
	if registrations != 60 {
		t.Errorf("%d registrations", registrations)
	}
}

func keyOf(t testing.TB, digits string) aka.Key {
	t.Helper()
	b, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return aka.Key(b)
}

var userOf = regexp.MustCompile(`(?m)^To: <sip:(\w+)@`)

// answers reads the messages of a run of registrations: which users were
// registered, and which not. Those not must be just those whose RES has a byte
// 00.
func (r *sippRun) answers(t testing.TB, u usim) (good, bad []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(r.dir, "messages"))
	if err != nil {
		t.Fatal(err)
	}
	registered, zero := map[string]bool{}, map[string]bool{}
	for _, m := range strings.Split(string(raw), "message received")[1:] {
		m, _, _ = strings.Cut(m, "-----------------------------------------------")
		user := userOf.FindStringSubmatch(m)
		switch {
		case user == nil:
		case strings.Contains(m, "SIP/2.0 200 "):
			registered[user[1]] = true
		case strings.Contains(m, "SIP/2.0 401 ") && !strings.Contains(m, "CSeq: 2 "):
			nonce, err := base64.StdEncoding.DecodeString(akaNonce.FindStringSubmatch(m)[1])
			if err != nil || len(nonce) != 32 {
				t.Fatalf("the nonce of %s has %d bytes, %v", user[1], len(nonce), err)
			}
			res, _, _, _, _, err := aka.New(u.k, u.opc).Answer([16]byte(nonce), [16]byte(nonce[16:]))
			if err != nil {
				t.Errorf("challenge to %s: %v", user[1], err)
			}
			zero[user[1]] = strings.Contains(string(res), "\x00")
		}
	}
	for _, row := range r.rows {
		user := row[0]
		if registered[user] == zero[user] {
			t.Errorf("%s registered: %v, RES has a byte 00: %v", user, registered[user], zero[user])
		}
		if registered[user] {
			good = append(good, user)
		} else {
			bad = append(bad, user)
		}
	}
	return good, bad
}
