package workerproc

import (
	"strconv"
	"testing"
	"time"

	"bellwether/controller/state"
	"bellwether/cscf/transaction"
)

// kept counts the transactions of all engines.
func (p *process) kept() (servers, clients int) {
	for _, e := range *p.engines.Load() {
		for shard := range e.layers {
			done := make(chan struct{})
			p.router.Post(shard, event{eng: e, fn: func() {
				defer close(done)
				if l := e.layers[shard]; l != nil {
					s, c := l.Len()
					servers, clients = servers+s, clients+c
				}
			}})
			<-done
		}
	}
	return servers, clients
}

// What strangers send, each request from another address, leaves little behind
// and nothing for long, whatever method they choose.
func TestFloodOfStrangersIsForgotten(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		p := w.begin(configuration(w.dir))
		g := w.served(p)[state.PCSCF]
		e := p.engine(g)
		const n = 2000
		for _, method := range []string{"INVITE", "MESSAGE", "SUBSCRIBE", "OPTIONS", "BYE", "CANCEL", "ACK", "FOO"} {
			for i := range n / 4 {
				flow := flowAt("n1", uint16(1+i))
				for _, at := range *p.engines.Load() {
					p.deliver(at, request(flow, method, method+strconv.Itoa(i)), transaction.Peer{Flow: flow}, false)
				}
			}
			sleep(time.Second)
			if s, c := p.kept(); s+c != 0 {
				t.Errorf("%s leaves %d and %d transactions", method, s, c)
			}
		}
		for i := range n {
			flow := flowAt("n1", uint16(1+i))
			p.deliver(e, request(flow, "REGISTER", "r"+strconv.Itoa(i)), transaction.Peer{Flow: flow}, false)
		}
		sleep(time.Second)
		if s, _ := p.kept(); s == 0 || s > n {
			t.Errorf("REGISTER leaves %d transactions, want up to %d", s, n)
		}
		if used := e.layerCfg.Registering.Used(); used != 0 {
			t.Errorf("%d registrations are in progress", used)
		}
		sleep(time.Minute)
		if s, c := p.kept(); s+c != 0 {
			t.Errorf("after a minute there are %d and %d transactions", s, c)
		}
		if used := e.layerCfg.Refusals.Used(); used != 0 {
			t.Errorf("%d refusals are counted", used)
		}
	})
}
