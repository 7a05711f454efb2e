package phone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bellwether/cscf/sipmsg"
)

// story is two phones, alice with 1004 Hz and bob with 620 Hz, and their core,
// in virtual time.
type story struct {
	net        *network
	core       *core
	alice, bob *Phone
	heard      chan Result // what bob's calls came to
}

// tell runs a story. Its network loses nothing at first.
func tell(t *testing.T, bob func(*Config), f func(t *testing.T, s *story)) {
	synctest.Test(t, func(t *testing.T) {
		s := &story{net: newNetwork(), heard: make(chan Result, 16)}
		s.core = newCore(t, s.net.listen)
		s.alice = s.core.registered(t, s.net.listen, "alice", func(c *Config) { c.ToneHz = 1004 })
		s.bob = s.core.registered(t, s.net.listen, "bob", func(c *Config) {
			c.ToneHz = 620
			c.OnCall = func(r Result) { s.heard <- r }
			if bob != nil {
				bob(c)
			}
		})
		f(t, s)
	})
}

// loseOnce drops the first n datagrams that begin so.
func (s *story) loseFirst(n int, prefix string) {
	s.net.setLoss(func(_, to netip.AddrPort, b []byte) bool {
		if n > 0 && bytes.HasPrefix(b, []byte(prefix)) && to != s.core.s.addr {
			n--
			return true
		}
		return false
	})
}

func wantAnswered(t *testing.T, who string, r Result, talk time.Duration, tone float64) {
	t.Helper()
	if r.Status != 200 || r.Err != nil {
		t.Errorf("%s: %+v", who, r)
	}
	if r.Talk < talk || r.Talk > talk+time.Second {
		t.Errorf("%s talked %v, want %v", who, r.Talk, talk)
	}
	frames := uint64(talk / (20 * time.Millisecond))
	if r.RTPReceived != r.RTPExpected || r.RTPReceived < frames-3 || r.RTPReceived > frames+3 {
		t.Errorf("%s got %d of %d packets, want about %d", who, r.RTPReceived, r.RTPExpected, frames)
	}
	if !r.ToneHeard || r.ToneHz != tone {
		t.Errorf("%s heard %g Hz (%v, %.1f dB), want %g Hz", who, r.ToneHz, r.ToneHeard, r.ToneSNR, tone)
	}
}

func TestPhonesCallEachOtherOverUDP(t *testing.T) {
	c := newCore(t, listenUDP)
	c.algorithms = []string{"MD5", "SHA-256"}
	heard := make(chan Result, 1)
	alice := c.registered(t, listenUDP, "alice", func(c *Config) { c.ToneHz = 1004 })
	bob := c.registered(t, listenUDP, "bob", func(c *Config) {
		c.ToneHz = 620
		c.OnCall = func(r Result) { heard <- r }
	})
	r, err := alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: 400 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	far := <-heard
	for _, r := range []Result{r, far} {
		if r.Status != 200 || r.Err != nil || r.RTPExpected < 10 || r.RTPReceived*100 < r.RTPExpected*95 || !r.ToneHeard {
			t.Errorf("%+v", r)
		}
	}
	if r.ToneHz != 620 || far.ToneHz != 1004 || far.Peer != "sip:alice@ims.test" || far.CallID != r.CallID {
		t.Errorf("alice: %+v, bob: %+v", r, far)
	}
	if r.Setup <= 0 || r.Setup > 5*time.Second {
		t.Errorf("the call was set up in %v", r.Setup)
	}
	if err := alice.Unregister(t.Context()); err != nil || alice.Registered() || !bob.Registered() {
		t.Errorf("unregistered: %v, registered: %v", err, alice.Registered())
	}
}

func TestAnsweredCall(t *testing.T) {
	tell(t, func(c *Config) { c.Ring = 3 * time.Second }, func(t *testing.T, s *story) {
		r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		wantAnswered(t, "alice", r, 5*time.Second, 620)
		wantAnswered(t, "bob", <-s.heard, 5*time.Second, 1004)
		if r.Setup < 3*time.Second || r.Setup > 3100*time.Millisecond {
			t.Errorf("rang for %v, want 3 s", r.Setup)
		}
		for what, want := range map[string]int{"p INVITE": 2, "s INVITE": 1, "p ACK": 2, "s ACK": 1, "p BYE": 2, "s BYE": 1} {
			if got := s.core.count(what); got != want {
				t.Errorf("the core saw %q %d times, want %d", what, got, want)
			}
		}
	})
}

func TestCalleeHangsUp(t *testing.T) {
	tell(t, nil, func(t *testing.T, s *story) {
		time.AfterFunc(2*time.Second, s.bob.Close)
		r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		wantAnswered(t, "alice", r, 2*time.Second, 620)
		if far := <-s.heard; far.Status != 200 || !errors.Is(far.Err, ErrClosed) || !far.ToneHeard {
			t.Errorf("bob: %+v", far)
		}
		// Bob's BYE went by the routes of the callee's side.
		if got := s.core.count("s BYE"); got != 1 {
			t.Errorf("the S-CSCF saw %d BYE", got)
		}
	})
}

func TestRefusedCalls(t *testing.T) {
	tests := []struct {
		name   string
		bob    func(*Config)
		target string
		opts   CallOptions
		status int
		setup  time.Duration
		far    int // status on the called side; 0: no call came there
	}{
		{"busy", func(c *Config) { c.Mode = Busy }, "sip:bob@ims.test", CallOptions{}, 486, 0, 486},
		{"the answer function says busy", func(c *Config) {
			c.Answer = func(from string) Mode {
				if from == "sip:alice@ims.test" {
					return Busy
				}
				return Answer
			}
		}, "sip:bob@ims.test", CallOptions{}, 486, 0, 486},
		{"cancelled while it rings", func(c *Config) { c.Mode = NoAnswer }, "sip:bob@ims.test", CallOptions{CancelAfter: 7 * time.Second}, 487, 7 * time.Second, 487},
		{"nobody answers, and the callee gives up", func(c *Config) { c.Mode = NoAnswer; c.Answer = nil }, "sip:bob@ims.test", CallOptions{}, 480, ringLimit, 480},
		{"nobody of that name", nil, "sip:carol@ims.test", CallOptions{}, 404, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tell(t, tt.bob, func(t *testing.T, s *story) {
				r, err := s.alice.Call(t.Context(), tt.target, tt.opts)
				if err != nil || r.Status != tt.status || r.Reason == "" {
					t.Errorf("%v, %+v; want status %d", err, r, tt.status)
				}
				if r.Setup < tt.setup || r.Setup > tt.setup+time.Second {
					t.Errorf("the refusal took %v, want %v", r.Setup, tt.setup)
				}
				if r.Talk != 0 || r.RTPExpected != 0 || r.ToneHeard {
					t.Errorf("there was sound in a refused call: %+v", r)
				}
				if tt.far != 0 {
					if far := <-s.heard; far.Status != tt.far {
						t.Errorf("bob: %+v", far)
					}
				}
				// Nothing is left over, and nobody repeats anything.
				time.Sleep(time.Minute)
				synctest.Wait()
				invites := s.core.count("p INVITE")
				acks := s.core.count("p ACK")
				if tt.far != 0 && (invites != 2 || acks != 2) {
					t.Errorf("the P-CSCF saw %d INVITE and %d ACK, want 2 and 2", invites, acks)
				}
			})
		})
	}
}

func TestCallSurvivesLossOf(t *testing.T) {
	tests := []struct {
		name, prefix string
		lost         int
	}{
		{"the INVITE", "INVITE", 2},
		{"the ringing", "SIP/2.0 180", 1},
		{"the answer", "SIP/2.0 200", 3},
		{"the ACK", "ACK", 3},
		{"the BYE", "BYE", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tell(t, nil, func(t *testing.T, s *story) {
				s.loseFirst(tt.lost, tt.prefix)
				r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: 10 * time.Second})
				if err != nil || r.Status != 200 || !r.ToneHeard || r.RTPReceived != r.RTPExpected {
					t.Errorf("alice: %v, %+v", err, r)
				}
				if far := <-s.heard; far.Status != 200 || far.Err != nil || !far.ToneHeard {
					t.Errorf("bob: %+v", far)
				}
			})
		})
	}
}

func TestRefusalSurvivesALostACK(t *testing.T) {
	tell(t, func(c *Config) { c.Mode = Busy }, func(t *testing.T, s *story) {
		s.loseFirst(2, "ACK")
		r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{})
		if err != nil || r.Status != 486 {
			t.Fatalf("%v, %+v", err, r)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		// Two were lost on their way to the P-CSCF, which saw the third go to the
		// core and come back.
		if got := s.core.count("p ACK"); got != 2 {
			t.Errorf("the P-CSCF saw %d ACK, want 2", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := s.core.count("p ACK"); got != 2 {
			t.Errorf("the refusal was repeated after its ACK: %d ACK", got)
		}
	})
}

func TestUnreachableCoreEndsACallAfterTimerB(t *testing.T) {
	tell(t, nil, func(t *testing.T, s *story) {
		s.net.setLoss(func(_, _ netip.AddrPort, _ []byte) bool { return true })
		began := time.Now()
		r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{CancelAfter: time.Second})
		if err == nil || r.Status != 0 || r.Err == nil {
			t.Errorf("%v, %+v", err, r)
		}
		if d := time.Since(began); d != 32*time.Second {
			t.Errorf("gave up after %v, want 32 s", d)
		}
	})
}

func TestCallWhoseContextEnds(t *testing.T) {
	tests := []struct {
		name   string
		mode   Mode
		far    int
		status int
	}{
		{"is cancelled while it rings", NoAnswer, 487, 487},
		{"is hung up while it talks", Answer, 200, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tell(t, func(c *Config) { c.Mode = tt.mode }, func(t *testing.T, s *story) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				r, err := s.alice.Call(ctx, "sip:bob@ims.test", CallOptions{Hold: time.Hour})
				if !errors.Is(err, context.DeadlineExceeded) || r.Status != tt.status {
					t.Errorf("%v, %+v", err, r)
				}
				if far := <-s.heard; far.Status != tt.far {
					t.Errorf("bob: %+v", far)
				}
			})
		})
	}
}

func TestCloseEndsACallOnBothSides(t *testing.T) {
	for _, mode := range []Mode{Answer, NoAnswer} {
		tell(t, func(c *Config) { c.Mode = mode }, func(t *testing.T, s *story) {
			time.AfterFunc(3*time.Second, s.alice.Close)
			began := time.Now()
			_, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: time.Hour})
			if !errors.Is(err, ErrClosed) || time.Since(began) != 3*time.Second {
				t.Errorf("mode %d: %v after %v", mode, err, time.Since(began))
			}
			<-s.heard
			if d := time.Since(began); d > 4*time.Second {
				t.Errorf("mode %d: bob noticed after %v", mode, d)
			}
			if _, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{}); !errors.Is(err, ErrClosed) {
				t.Errorf("a closed phone calls: %v", err)
			}
		})
	}
}

func TestReliableRinging(t *testing.T) {
	for _, lost := range []string{"nothing", "SIP/2.0 180", "PRACK"} {
		t.Run("with loss of "+lost, func(t *testing.T) {
			tell(t, func(c *Config) { c.Reliable = true; c.Ring = time.Second }, func(t *testing.T, s *story) {
				s.loseFirst(2, lost)
				r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: 2 * time.Second, Update: true})
				if err != nil {
					t.Fatal(err)
				}
				wantAnswered(t, "alice", r, 2*time.Second, 620)
				wantAnswered(t, "bob", <-s.heard, 2*time.Second, 1004)
				if s.core.count("s PRACK") == 0 || s.core.count("s UPDATE") != 1 {
					t.Errorf("the S-CSCF saw %d PRACK, %d UPDATE", s.core.count("s PRACK"), s.core.count("s UPDATE"))
				}
			})
		})
	}
}

func TestReliableRingingWithoutPRACKEndsTheCall(t *testing.T) {
	tell(t, func(c *Config) { c.Reliable = true }, func(t *testing.T, s *story) {
		s.loseFirst(1000, "PRACK")
		r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{})
		if err != nil || r.Status != 504 {
			t.Errorf("%v, %+v; want status 504", err, r)
		}
	})
}

func TestLostAudioIsCounted(t *testing.T) {
	tell(t, nil, func(t *testing.T, s *story) {
		sent := make(map[netip.AddrPort]int)
		s.net.setLoss(func(from, _ netip.AddrPort, b []byte) bool {
			if b[0] != 0x80 {
				return false
			}
			sent[from]++
			return sent[from]%10 == 5 // none of the first or last
		})
		r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for who, r := range map[string]Result{"alice": r, "bob": <-s.heard} {
			if r.RTPExpected < 498 || r.RTPExpected > 500 || r.RTPExpected-r.RTPReceived != 50 || !r.ToneHeard {
				t.Errorf("%s: got %d of %d packets, want 50 lost of 500; %+v", who, r.RTPReceived, r.RTPExpected, r)
			}
		}
	})
}

func TestSilentSideIsNotHeard(t *testing.T) {
	bob := netip.MustParseAddr("127.0.0.2")
	tell(t, func(c *Config) { c.LocalIP = bob }, func(t *testing.T, s *story) {
		s.net.setLoss(func(from, _ netip.AddrPort, b []byte) bool { return b[0] == 0x80 && from.Addr() == bob })
		r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: 2 * time.Second})
		if err != nil || r.RTPReceived != 0 || r.RTPExpected != 100 || r.ToneHeard {
			t.Errorf("alice: %v, %+v; want 0 of 100 packets", err, r)
		}
		wantAnswered(t, "bob", <-s.heard, 2*time.Second, 1004)
	})
}

func TestWrongToneIsNotHeard(t *testing.T) {
	tell(t, nil, func(t *testing.T, s *story) {
		s.core.edit = func(m *sipmsg.Message) {
			if body := string(m.Body()); strings.Contains(body, "x-tone:620") {
				m.SetBody("application/sdp", []byte(strings.Replace(body, "x-tone:620", "x-tone:770", 1)))
			}
		}
		r, err := s.alice.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: time.Second})
		if err != nil || r.Status != 200 || r.ToneHeard || r.RTPReceived != r.RTPExpected || r.RTPReceived == 0 {
			t.Errorf("alice was told of 770 Hz: %v, %+v", err, r)
		}
		wantAnswered(t, "bob", <-s.heard, time.Second, 1004)
	})
}

func TestPhoneHasAFewCallsAtOnce(t *testing.T) {
	tell(t, nil, func(t *testing.T, s *story) {
		results := make(chan int, maxCalls+2)
		for i := range maxCalls + 2 {
			c := s.core.registered(t, s.net.listen, fmt.Sprint("carol", i), nil)
			go func() {
				r, err := c.Call(t.Context(), "sip:bob@ims.test", CallOptions{Hold: 5 * time.Second})
				if err != nil {
					t.Error(err)
				}
				results <- r.Status
			}()
		}
		got := map[int]int{}
		for range maxCalls + 2 {
			got[<-results]++
		}
		if got[200] != maxCalls || got[486] != 2 {
			t.Errorf("statuses %v, want %d times 200 and twice 486", got, maxCalls)
		}
	})
}

func TestMessage(t *testing.T) {
	type received struct{ from, text string }
	got := make(chan received, 1)
	tell(t, func(c *Config) {
		c.OnMessage = func(from, text string) { got <- received{from, text} }
	}, func(t *testing.T, s *story) {
		got = make(chan received, 1)
		s.loseFirst(1, "MESSAGE")
		status, err := s.alice.Message(t.Context(), "sip:bob@ims.test", "Grüße\r\nan alle")
		if err != nil || status != 200 {
			t.Fatalf("status %d, %v", status, err)
		}
		if m := <-got; m.from != "sip:alice@ims.test" || m.text != "Grüße\r\nan alle" {
			t.Errorf("bob got %+v", m)
		}
		if status, err := s.bob.Message(t.Context(), "sip:alice@ims.test", "back"); err != nil || status != 200 {
			t.Errorf("to a phone without a taker: %d, %v", status, err)
		}
		if status, err := s.alice.Message(t.Context(), "sip:nobody@ims.test", "x"); err != nil || status != 404 {
			t.Errorf("to nobody: %d, %v", status, err)
		}
		if _, err := s.alice.Message(t.Context(), "", "x"); err == nil {
			t.Error("a message to nothing was sent")
		}
	})
}
