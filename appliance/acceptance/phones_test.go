package acceptance

import (
	"context"
	"testing"
	"time"

	"bellwether/appliance/localcluster"
	"bellwether/appliance/phone"
)

// newPhone opens a built-in phone of a subscriber at a node.
func newPhone(t testing.TB, n *localcluster.Node, user string, change func(*phone.Config)) *phone.Phone {
	t.Helper()
	cfg := phone.Config{
		AOR: "sip:" + user + "@" + domain, IMPI: user + "@" + domain, Password: password, Domain: domain,
		Proxy: n.P(), LocalIP: n.Address, ToneHz: 700,
	}
	if change != nil {
		change(&cfg)
	}
	p, err := phone.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestBuiltInPhonesCallAcrossNodes(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	users := subscribe(t, c, "built", 2)
	a := newPhone(t, c.Node("n1"), users[0], nil)
	heard := make(chan phone.Result, 1)
	b := newPhone(t, c.Node("n2"), users[1], func(cfg *phone.Config) {
		cfg.ToneHz = 900
		cfg.OnCall = func(r phone.Result) { heard <- r }
	})
	ctx := within(t, 20*time.Second)
	for _, p := range []*phone.Phone{a, b} {
		if err := p.Register(ctx); err != nil {
			t.Fatal(err)
		}
	}
	r, err := a.Call(ctx, "sip:"+users[1]+"@"+domain, phone.CallOptions{Hold: time.Second, Update: true})
	if err != nil || r.Status != 200 {
		t.Fatalf("call: %+v, %v", r, err)
	}
	for _, r := range []phone.Result{r, <-heard} {
		if !r.ToneHeard || r.RTPReceived == 0 {
			t.Errorf("no audio: %+v", r)
		}
	}
	if status, err := a.Message(ctx, "sip:"+users[1]+"@"+domain, "hello"); err != nil || status != 200 {
		t.Errorf("message: %d, %v", status, err)
	}
}
