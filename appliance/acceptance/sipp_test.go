package acceptance

import (
	"encoding/csv"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/controller/api"
)

// sippLimit is how long a run of sipp may take.
const sippLimit = 60 * time.Second

// sipp is a run of sipp: one process with one scenario behind one address.
type sipp struct {
	scenario string            // file in testdata
	replace  map[string]string // in its text
	at       netip.AddrPort    // where it sends from and listens
	to       netip.AddrPort    // P-CSCF; none for a scenario that waits for calls
	rows     [][]string        // fields of the scenario, a row for each call; none for one that waits
	calls    int               // to make or to take
	rate     int               // of calls, a second
	trace    bool              // write every message to the file messages
}

// sippFigures are what sipp counted itself.
type sippFigures struct {
	Created, Successful, Failed int
}

// sippRun is a process of sipp.
type sippRun struct {
	sipp
	dir   string
	ended chan struct{}
	err   error // valid when ended is closed
}

// start starts the process; it does not outlive the test. One that waits for
// calls is ready for them when start returns.
func (s sipp) start(t testing.TB) *sippRun {
	t.Helper()
	r := &sippRun{sipp: s, dir: t.TempDir(), ended: make(chan struct{})}
	raw, err := os.ReadFile(filepath.Join("testdata", s.scenario))
	if err != nil {
		t.Fatal(err)
	}
	scenario := string(raw)
	for from, to := range s.replace {
		scenario = strings.ReplaceAll(scenario, from, to)
	}
	r.write(t, "scenario.xml", scenario)
	args := []string{
		"-sf", "scenario.xml", "-i", s.at.Addr().String(), "-p", strconv.Itoa(int(s.at.Port())), "-bind_local",
		"-m", strconv.Itoa(s.calls), "-timeout", strconv.Itoa(int(sippLimit.Seconds())), "-timeout_error",
		"-nostdin", "-trace_stat", "-stf", "figures.csv", "-fd", "1", "-trace_err", "-error_file", "errors",
	}
	if s.trace {
		args = append(args, "-trace_msg", "-message_file", "messages")
	}
	if s.to.IsValid() {
		rows := "SEQUENTIAL\n"
		for _, row := range s.rows {
			rows += strings.Join(row, ";") + "\n"
		}
		r.write(t, "fields.csv", rows)
		args = append(args, "-auth_uri", domain, "-inf", "fields.csv", "-r", strconv.Itoa(s.rate), s.to.String())
	}
	cmd := exec.CommandContext(t.Context(), "sipp", args...)
	cmd.Dir = r.dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.err = cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() { <-r.ended })
	if !s.to.IsValid() {
		eventually(t, 10*time.Second, func() string {
			select {
			case <-r.ended:
				t.Fatalf("%s at %v: %v\n%s", s.scenario, s.at, r.err, r.errors())
			default:
			}
			if !udpBound(t, s.at) {
				return fmt.Sprintf("%s does not listen at %v", s.scenario, s.at)
			}
			return ""
		})
	}
	return r
}

func (r *sippRun) write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// errors is what sipp complained of.
func (r *sippRun) errors() string {
	b, _ := os.ReadFile(filepath.Join(r.dir, "errors")) // there is none if it did not complain
	return fmt.Sprintf("%.6000s", b)
}

// finish waits for the end of the run: every call must have gone as the
// scenario says, by sipp's exit code and by its figures.
func (r *sippRun) finish(t testing.TB) {
	t.Helper()
	<-r.ended
	got, err := r.figures()
	want := sippFigures{Created: r.calls, Successful: r.calls}
	if err = errors.Join(r.err, err); err != nil || got != want {
		t.Errorf("%s at %v: %+v, want %+v; %v\n%s", r.scenario, r.at, got, want, err, r.errors())
	}
}

// figures reads the last line of sipp's statistics.
func (r *sippRun) figures() (f sippFigures, err error) {
	file, err := os.Open(filepath.Join(r.dir, "figures.csv"))
	if err != nil {
		return f, err
	}
	defer file.Close()
	in := csv.NewReader(file)
	in.Comma, in.FieldsPerRecord = ';', -1
	lines, err := in.ReadAll()
	if err != nil {
		return f, err
	}
	if len(lines) < 2 {
		return f, errors.New("sipp wrote no statistics")
	}
	last := lines[len(lines)-1]
	for name, to := range map[string]*int{"TotalCallCreated": &f.Created, "SuccessfulCall(C)": &f.Successful, "FailedCall(C)": &f.Failed} {
		i := slices.Index(lines[0], name)
		if i < 0 || i >= len(last) {
			return f, fmt.Errorf("sipp's statistics have no %s", name)
		}
		n, err := strconv.Atoi(last[i])
		if err != nil {
			return f, err
		}
		*to = n
	}
	return f, nil
}

// udpBound reports whether a socket is bound to an IPv4 address.
func udpBound(t testing.TB, a netip.AddrPort) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		t.Fatal(err)
	}
	ip := a.Addr().As4()
	return strings.Contains(string(b), fmt.Sprintf(" %02X%02X%02X%02X:%04X ", ip[3], ip[2], ip[1], ip[0], a.Port()))
}

// desk is many phones behind one address, as sipp plays them. A P-CSCF reaches
// a phone at the address that it registered from, so a desk registers, calls
// and is called from the same one.
type desk struct {
	at    netip.AddrPort
	node  *localcluster.Node // whose P-CSCF entry it uses
	users []string
}

// registration is a run that registers some of the desk's users; 0 seconds
// remove their contacts.
func (d desk) registration(users []string, seconds, rate int) sipp {
	s := sipp{scenario: "register.xml", at: d.at, to: d.node.P(), calls: len(users), rate: rate}
	for _, u := range users {
		s.rows = append(s.rows, []string{u, credentials(u), strconv.Itoa(seconds)})
	}
	return s
}

// register registers every user, as fast as sipp can: they share a flow, so
// they must come to the same P-CSCF even if none is registered yet.
func (d desk) register(t testing.TB) {
	t.Helper()
	d.registration(d.users, 600, 1000).start(t).finish(t)
}

// credentials has sipp answer a challenge as that user.
func credentials(user string) string {
	return "[authentication username=" + user + "@" + domain + " password=" + password + "]"
}

// calls is a run in which each user of the desk calls one of the callees.
func (d desk) calls(scenario string, callees []string, rate int, replace map[string]string) sipp {
	s := sipp{scenario: scenario, replace: replace, at: d.at, to: d.node.P(), calls: len(d.users), rate: rate}
	for i, u := range d.users {
		s.rows = append(s.rows, []string{u, callees[i%len(callees)]})
	}
	return s
}

// subscribeMD5 is subscribe for phones that know no SHA-256, as sipp does.
func subscribeMD5(t testing.TB, c *localcluster.Cluster, prefix string, n int) []string {
	t.Helper()
	var users []string
	var all []api.NewSubscriber
	for i := range n {
		s := subscriber(fmt.Sprintf("%s%04d", prefix, i))
		s.HA1.SHA256 = ""
		all = append(all, s)
		users = append(users, strings.TrimSuffix(s.IMPI, "@"+domain))
	}
	if _, err := c.Nodes[0].Admin.ImportSubscribers(within(t, 20*time.Second), all); err != nil {
		t.Fatal(err)
	}
	return users
}

func TestSippRegistersAThousandUsersWhoCallEachOther(t *testing.T) {
	// Alone on the machine: the other tests run when it has ended.
	const desks, each = 8, 125
	c := start(t, usual, nil)
	users := subscribeMD5(t, c, "thousand", desks*each)
	at := freshNet()
	var all []desk
	for i := range desks {
		all = append(all, desk{
			at: netip.AddrPortFrom(at(i+1), 5060), node: c.Nodes[i%len(c.Nodes)],
			users: users[i*each : (i+1)*each],
		})
	}
	finish := func(runs []*sippRun) {
		t.Helper()
		for _, r := range runs {
			r.finish(t)
		}
	}
	status := func() api.Status {
		st, err := c.Nodes[0].Admin.Status(within(t, 5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	began, term := time.Now(), status().Term
	var runs []*sippRun
	for _, d := range all {
		runs = append(runs, d.registration(d.users, 600, 15).start(t))
	}
	finish(runs)
	t.Logf("%d registrations took %v", desks*each, time.Since(began))

	// By min-user the S-CSCFs have the same number of fresh users. What a leader
	// reserved is forgotten with it, and on a busy machine leaders change.
	apart := 1
	if status().Term != term {
		apart = desks * each / 10
	}
	// Workers report their figures from time to time.
	eventually(t, 10*time.Second, func() string {
		st := status()
		held := map[string][]int{}
		for _, w := range st.Workers {
			held[w.Kind] = append(held[w.Kind], w.Users)
		}
		s, p := held["s-cscf"], held["p-cscf"]
		switch {
		case st.Users != desks*each:
			return fmt.Sprintf("%d users are registered, want %d", st.Users, desks*each)
		case len(s) != 2 || s[0]+s[1] != desks*each || max(s[0], s[1])-min(s[0], s[1]) > apart:
			return fmt.Sprintf("users of the S-CSCFs: %v, want %d, at most %d apart", s, desks*each, apart)
		case len(p) != 2 || p[0]+p[1] != desks*each:
			return fmt.Sprintf("users of the P-CSCFs: %v, want %d together", p, desks*each)
		}
		return ""
	})

	// The first half of the desks calls the second.
	runs = nil
	began = time.Now()
	const called = 20 // of each desk
	for _, d := range all[desks/2:] {
		runs = append(runs, sipp{scenario: "answer_uas.xml", at: d.at, calls: called}.start(t))
	}
	for i, d := range all[:desks/2] {
		d.users = d.users[:called]
		runs = append(runs, d.calls("answer_uac.xml", all[desks/2+i].users, 10, nil).start(t))
	}
	finish(runs)
	t.Logf("%d calls took %v", desks/2*called, time.Since(began))
	noCallsLeft(t, c, "thousand")
}

// noCallsLeft checks that nothing of finished calls is left in the cluster.
func noCallsLeft(t testing.TB, c *localcluster.Cluster, prefix string) {
	t.Helper()
	eventually(t, 10*time.Second, func() string {
		calls, err := c.Nodes[0].Admin.Calls(within(t, 5*time.Second))
		if err != nil {
			return err.Error()
		}
		for _, call := range calls {
			if strings.Contains(call.From, prefix) {
				return fmt.Sprintf("a call is still listed: %+v", call)
			}
		}
		return ""
	})
}

func TestSippCalls(t *testing.T) {
	t.Parallel()
	const users = 10
	const nobody = "" // no phone waits: the network answers
	for _, tt := range []struct {
		name, prefix   string
		caller, callee string // scenarios
		status         string // STATUS in them
		dialled        string // instead of the callees
	}{
		{"the callee answers, the caller hangs up", "answer", "answer_uac.xml", "answer_uas.xml", "", ""},
		{"the callee answers and hangs up", "hangup", "hungup_uac.xml", "hangup_uas.xml", "", ""},
		{"the callee is busy", "busy", "refused_uac.xml", "busy_uas.xml", "486", ""},
		{"nobody answers, the caller gives up", "noanswer", "cancel_uac.xml", "cancel_uas.xml", "", ""},
		{"the caller gives up before it rings", "giveup", "cancel_early_uac.xml", "cancel_early_uas.xml", "", ""},
		{"early media, PRACK and UPDATE before the answer", "early", "early_uac.xml", "early_uas.xml", "", ""},
		{"a message", "message", "message_uac.xml", "message_uas.xml", "200", ""},
		{"what the caller claims of itself is not believed", "claim", "forged_uac.xml", "forged_uas.xml", "", ""},
		{"a caller who wants to stay unknown", "hidden", "hidden_uac.xml", "hidden_uas.xml", "", ""},
		{"the callee is not registered", "absent", "refused_uac.xml", nobody, "480", ""},
		{"a message to somebody who is not registered", "unheard", "message_uac.xml", nobody, "480", ""},
		{"nobody is called that", "unknown", "refused_uac.xml", nobody, "604", "nobody@acceptance.test"},
		{"a user of another network", "abroad", "refused_uac.xml", nobody, "404", "somebody@elsewhere.test"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := sharedCluster(t)
			all := subscribeMD5(t, c, tt.prefix, 2*users)
			at := freshNet()
			caller := desk{netip.AddrPortFrom(at(1), 5060), c.Node("n1"), all[:users]}
			callee := desk{netip.AddrPortFrom(at(2), 5060), c.Node("n2"), all[users:]}
			caller.register(t)
			replace := map[string]string{"STATUS": tt.status, "HIDDEN": tt.prefix}
			if tt.dialled != "" {
				replace["[field1]@"+domain] = tt.dialled
			}
			var waits *sippRun
			if tt.callee != nobody {
				callee.register(t)
				waits = sipp{scenario: tt.callee, replace: replace, at: callee.at, calls: users}.start(t)
			}
			caller.calls(tt.caller, callee.users, 10, replace).start(t).finish(t)
			if waits != nil {
				waits.finish(t)
			}
			noCallsLeft(t, c, tt.prefix)
		})
	}
}

func TestSippRefreshesAndRemovesRegistrations(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	at := freshNet()
	all := subscribeMD5(t, c, "refresh", 3)
	caller := desk{netip.AddrPortFrom(at(1), 5060), c.Node("n1"), all[:1]}
	callee := desk{netip.AddrPortFrom(at(2), 5060), c.Node("n2"), all[1:2]}
	other := desk{netip.AddrPortFrom(at(3), 5060), c.Node("n3"), all[2:]}
	caller.register(t)

	refresh := sipp{scenario: "refresh.xml", at: other.at, to: other.node.P(), calls: 1, rate: 1}
	refresh.rows = [][]string{{other.users[0], credentials(other.users[0])}}
	refresh.start(t).finish(t)

	// With a new Call-ID, as a phone that was restarted.
	callee.register(t)
	contacts := func(want int) {
		t.Helper()
		// Not every node knows at once what a worker holds.
		eventually(t, 5*time.Second, func() string {
			u, err := c.Node("n3").Admin.User(within(t, 5*time.Second), "sip:"+callee.users[0]+"@"+domain)
			var no *api.Error
			if errors.As(err, &no) && want == 0 {
				return ""
			}
			if err != nil || len(u.Contacts) != want {
				return fmt.Sprintf("contacts: %+v, %v, want %d", u.Contacts, err, want)
			}
			return ""
		})
	}
	contacts(1)
	waits := sipp{scenario: "answer_uas.xml", at: callee.at, calls: 1}.start(t)
	caller.calls("answer_uac.xml", callee.users, 1, nil).start(t).finish(t)
	waits.finish(t)
	callee.registration(callee.users, 600, 1).start(t).finish(t)
	contacts(1)
	callee.registration(callee.users, 0, 1).start(t).finish(t)
	contacts(0)
	absent := map[string]string{"STATUS": "480"}
	caller.calls("refused_uac.xml", callee.users, 1, absent).start(t).finish(t)
	caller.calls("refused_uac.xml", other.users, 1, absent).start(t).finish(t)

	// Who has removed its registration may not call either.
	callee.calls("refused_uac.xml", caller.users, 1, map[string]string{"STATUS": "403"}).start(t).finish(t)
}

func TestSippStrangersAreNotRegistered(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	at := freshNet()
	user := subscribeMD5(t, c, "stranger", 1)[0]
	for i, tt := range []struct {
		name, user, credentials string
		scenario                string
		replace                 map[string]string
	}{
		{"a wrong password is challenged again", user, strings.ReplaceAll(credentials(user), password, "guess"),
			"register.xml", map[string]string{`response="200"`: `response="401"`}},
		{"so are the credentials of another user", user, credentials("elsewhere"),
			"register.xml", map[string]string{`response="200"`: `response="401"`}},
		{"a user whom nobody knows is challenged too", "elsewhere", credentials("elsewhere"),
			"register_refused.xml", map[string]string{"STATUS": "401"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sipp{
				scenario: tt.scenario, replace: tt.replace, at: netip.AddrPortFrom(at(i+1), 5060), to: c.Node("n1").P(),
				rows: [][]string{{tt.user, tt.credentials, "600"}}, calls: 1, rate: 1,
			}.start(t).finish(t)
		})
	}
	var no *api.Error
	if u, err := c.Node("n1").Admin.User(within(t, 5*time.Second), "sip:"+user+"@"+domain); !errors.As(err, &no) {
		t.Errorf("user: %+v, %v", u, err)
	}
}
