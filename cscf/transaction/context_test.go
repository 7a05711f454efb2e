package transaction

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bellwether/cscf/sipmsg"
)

func TestBestResponse(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, next int
		want        int
	}{
		{"the lower class wins", 503, 486, 486},
		{"3xx is better than 4xx", 404, 302, 302},
		{"within a class the first that came", 404, 486, 404},
		{"a challenge is better than other 4xx", 404, 407, 407},
		{"415 is better than 404", 404, 415, 415},
		{"anything of its class is better than 408", 408, 404, 404},
		{"another 5xx is better than 503", 503, 504, 504},
		{"503 alone becomes 500", 503, 503, 500},
		{"6xx wins whenever it comes", 302, 603, 603},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = to(tom, near)
				w.receive(tina, call{}.String())
				w.answer(tom, "INVITE", c.first)
				w.answer(near, "INVITE", c.next)
				w.receive(tina, call{method: "ACK"}.String())
				var got []int
				for _, p := range w.sent {
					if p.to == tina && p.m.Status() >= 200 {
						got = append(got, p.m.Status())
					}
				}
				if !slices.Equal(got, []int{c.want}) {
					t.Errorf("upstream got %d, want %d", got, c.want)
				}
			})
		})
	}
}

func TestChallengesOfAllBranchesAreAggregated(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(bob, carol, tom)
		w.receive(tina, call{}.String())
		w.answer(bob, "INVITE", 401, `WWW-Authenticate: Digest realm="b", nonce="1"`)
		w.answer(carol, "INVITE", 407, `Proxy-Authenticate: Digest realm="c", nonce="2"`, `Proxy-Authenticate: Digest realm="cc", nonce="3"`)
		w.answer(tom, "INVITE", 486, `WWW-Authenticate: Digest realm="no", nonce="4"`)
		w.receive(tina, call{method: "ACK"}.String())
		m := w.last(tina, "401 INVITE")
		got := slices.Concat(slices.Collect(m.Values(sipmsg.WWWAuthenticate)), slices.Collect(m.Values(sipmsg.ProxyAuthenticate)))
		want := []string{`Digest realm="b", nonce="1"`, `Digest realm="c", nonce="2"`, `Digest realm="cc", nonce="3"`}
		if !slices.Equal(got, want) {
			t.Errorf("challenges are %q, want %q", got, want)
		}
	})
}

func TestA6xxCancelsTheOthersAndWaitsForThem(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = serially([]Peer{tom, near}, []Peer{bob})
		w.receive(tina, call{}.String())
		w.answer(tom, "INVITE", 180)
		w.answer(near, "INVITE", 603)
		w.answer(tom, "INVITE", 487)
		w.receive(tina, call{method: "ACK"}.String())
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > near INVITE
			0.0 > tina 180 INVITE
			0.0 > near ACK
			0.0 > tom CANCEL
			0.0 > tom ACK
			0.0 > tina 603 INVITE`)
	})
}

func TestA200BeatsAnEarlier6xx(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom, near)
		w.receive(tina, call{}.String())
		w.answer(tom, "INVITE", 180)
		w.answer(near, "INVITE", 603)
		w.answer(tom, "INVITE", 200)
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > near INVITE
			0.0 > tina 180 INVITE
			0.0 > near ACK
			0.0 > tom CANCEL
			0.0 > tina 200 INVITE`)
	})
}

func TestSerialGroups(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = serially([]Peer{tom, near}, nil, []Peer{bob}, []Peer{carol})
		w.receive(tina, call{}.String())
		w.answer(tom, "INVITE", 486)
		w.sleep(10 * time.Second)
		w.answer(near, "INVITE", 404)
		w.answer(bob, "INVITE", 200)
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > near INVITE
			0.0 > tom ACK
			10.0 > near ACK
			10.0 > bob INVITE
			10.0 > tina 200 INVITE`)
		branches := map[string]bool{}
		for _, p := range []Peer{tom, near, bob} {
			via, _ := w.last(p, "INVITE").TopVia()
			branches[via.Branch()] = true
		}
		if len(branches) != 3 {
			t.Errorf("%d different branches for 3 targets", len(branches))
		}
	})
}

func TestRoleSeesWhatGoesUpstream(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		var seen []string
		w.request = func(r *Request) {
			f := forward(r, []Peer{tom, near})
			f.Response = func(r *Request, target *Target, m *sipmsg.Message) Verdict {
				seen = append(seen, target.Any.(string)+" "+summary(m))
				m.AddNamed("X-Seen", "yes")
				return Pass
			}
			r.Forward(f)
		}
		w.receive(tina, call{}.String())
		w.answer(tom, "INVITE", 100)
		w.answer(tom, "INVITE", 180)
		w.answer(near, "INVITE", 486)
		w.answer(tom, "INVITE", 503)
		w.receive(tina, call{method: "ACK"}.String())
		if want := []string{"tom 180 INVITE", "near 486 INVITE"}; !slices.Equal(seen, want) {
			t.Errorf("the role saw %q, want %q", seen, want)
		}
		for value := range w.last(tina, "486 INVITE").Named("X-Seen") {
			if value == "yes" {
				return
			}
		}
		t.Error("the role's edit is not in the response")
	})
}

func TestHeldResponsesGoWhenTheRolePassesThem(t *testing.T) {
	for _, method := range []string{"INVITE", "REGISTER"} {
		t.Run(method, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				var held []*sipmsg.Message
				var r *Request
				w.request = func(got *Request) {
					r = got
					f := forward(r, []Peer{tom, near})
					f.Response = func(r *Request, _ *Target, m *sipmsg.Message) Verdict {
						held = append(held, m)
						return Hold
					}
					r.Forward(f)
				}
				w.receive(tina, call{method: method}.String())
				w.answer(tom, method, 200)
				w.answer(near, method, 404)
				w.sleep(20 * time.Second)
				w.do(func() {
					if len(held) != 1 || r.Finished() {
						t.Fatalf("%d responses held, finished %v", len(held), r.Finished())
					}
					w.trace = nil
					w.layer.Env().Post(func() { r.Pass(held[0]) })
				})
				w.sleep(0)
				w.expect(`20.0 > tina 200 ` + method)
			})
		})
	}
}

func TestHeldFinalSurvivesACancel(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		var pass func()
		w.request = func(r *Request) {
			f := forward(r, []Peer{tom})
			f.Response = func(r *Request, _ *Target, m *sipmsg.Message) Verdict {
				pass = func() { r.Pass(m) }
				return Hold
			}
			r.Forward(f)
		}
		w.receive(tina, call{}.String())
		w.answer(tom, "INVITE", 200)
		w.receive(tina, call{method: "CANCEL"}.String())
		w.do(pass)
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > tina 200 CANCEL
			0.0 > tina 200 INVITE`)
	})
}

func TestDroppedFinalLeavesTheRequestToTheRole(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = func(r *Request) {
			f := forward(r, []Peer{tom})
			f.Response = func(r *Request, _ *Target, m *sipmsg.Message) Verdict {
				if m.Status() == 486 {
					r.Forward(forward(r, []Peer{near})) // call forwarding on busy
					return Drop
				}
				return Pass
			}
			r.Forward(f)
		}
		w.receive(tina, call{}.String())
		w.answer(tom, "INVITE", 486)
		w.answer(near, "INVITE", 180)
		w.answer(near, "INVITE", 404)
		w.ack(tina, "404 INVITE")
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > tom ACK
			0.0 > near INVITE
			0.0 > tina 180 INVITE
			0.0 > near ACK
			0.0 > tina 404 INVITE`)
	})
}

func TestHeld200EndsTheOtherBranches(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		var pass func()
		w.request = func(r *Request) {
			f := forward(r, []Peer{tom, near})
			f.Response = func(r *Request, _ *Target, m *sipmsg.Message) Verdict {
				if m.Status() < 200 {
					return Pass
				}
				pass = func() { r.Pass(m) }
				return Hold
			}
			r.Forward(f)
		}
		w.receive(tina, call{}.String())
		w.answer(near, "INVITE", 180)
		w.answer(tom, "INVITE", 200)
		w.answer(near, "INVITE", 183) // overtaken by the decision
		w.answer(near, "INVITE", 487)
		w.do(pass)
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > near INVITE
			0.0 > tina 180 INVITE
			0.0 > near CANCEL
			0.0 > near ACK
			0.0 > tina 200 INVITE`)
		if reason, _ := w.last(near, "CANCEL").Value(sipmsg.ReasonHeader); reason != answeredElsewhere {
			t.Errorf("Reason of the CANCEL is %q", reason)
		}
	})
}

func TestFailedBranches(t *testing.T) {
	type failure struct {
		target string
		status int
	}
	for _, c := range []struct {
		name   string
		act    func(w *world)
		reply  int // by the role in Failed
		failed failure
		want   string
	}{
		{"a silent target counts as 408", func(w *world) {}, 0, failure{"tom", 408}, "408 INVITE"},
		{"an unreachable one as 503, which goes up as 500",
			func(w *world) { w.do(func() { w.layer.Unreachable(tom) }) }, 0, failure{"tom", 503}, "500 INVITE"},
		{"the role may answer instead",
			func(w *world) { w.do(func() { w.layer.Unreachable(tom) }) }, 504, failure{"tom", 503}, "504 INVITE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				var got []failure
				w.request = func(r *Request) {
					f := forward(r, []Peer{tom})
					f.Failed = func(r *Request, target *Target, status int) {
						got = append(got, failure{target.Any.(string), status})
						if c.reply != 0 {
							r.Reply(c.reply, "", nil)
						}
					}
					r.Forward(f)
				}
				w.receive(tina, call{}.String())
				c.act(w)
				w.sleep(33 * time.Second)
				w.receive(tina, call{method: "ACK"}.String())
				if !slices.Equal(got, []failure{c.failed}) {
					t.Errorf("Failed heard %v, want %v", got, c.failed)
				}
				w.last(tina, c.want)
				if n := len(w.sent); n != 3 {
					t.Errorf("%d messages sent, want 100, INVITE and %s", n, c.want)
				}
			})
		})
	}
}

func TestUnreachableSparesBranchesThatWereHeard(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom, near)
		w.receive(tina, call{}.String())
		w.do(func() { w.layer.Unreachable(near) })
		w.answer(tom, "INVITE", 180)
		w.do(func() { w.layer.Unreachable(tom) })
		w.answer(tom, "INVITE", 200)
		w.last(tina, "200 INVITE")
	})
}

func TestFinalReplyCancelsPendingBranches(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		var r *Request
		w.request = func(got *Request) { r = got; to(tom)(r) }
		w.receive(tina, call{}.String())
		w.answer(tom, "INVITE", 180)
		w.do(func() { r.Reply(480, "Gone home", nil); r.Reply(200, "", nil) })
		w.answer(tom, "INVITE", 487)
		w.receive(tina, call{method: "ACK"}.String())
		w.expect(`
			0.0 > tina 100 INVITE
			0.0 > tom INVITE
			0.0 > tina 180 INVITE
			0.0 > tina 480 INVITE
			0.0 > tom CANCEL
			0.0 > tom ACK`)
		if m := w.last(tina, "480 INVITE"); m.Reason() != "Gone home" || m.ToTag() == "" {
			t.Errorf("the reply is %q with To tag %q", m.Reason(), m.ToTag())
		}
	})
}

// TestRequestThatOutgrowsADatagram: our Via can make a request too large for
// UDP (RFC 3261 §21.5.7).
func TestRequestThatOutgrowsADatagram(t *testing.T) {
	for _, c := range []struct {
		name    string
		targets []Peer
		want    string
	}{
		{"towards a phone over UDP alone", []Peer{bob}, "513 MESSAGE"},
		{"towards another one that has a connection", []Peer{bob, tom}, "200 MESSAGE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = func(r *Request) { r.Forward(forward(r, c.targets)) }
				w.receive(tina, call{method: "MESSAGE", extra: []string{"Subject: " + strings.Repeat("x", 65_150)}}.String())
				for _, p := range slices.Clone(w.sent) {
					if p.to == tom {
						w.receive(tom, string(p.m.Response(200, "", "t").Bytes()))
					}
				}
				w.last(tina, c.want)
			})
		})
	}
}

func TestForwardWithoutTargetsIsAnswered480(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to()
		w.receive(tina, call{method: "MESSAGE"}.String())
		w.expect(`0.0 > tina 480 MESSAGE`)
	})
}

func TestForgottenRequestsEnd(t *testing.T) {
	for _, c := range []struct{ method, trace string }{
		{"INVITE", `
			0.2 > tina 100 INVITE
			181.0 > tina 500 INVITE`},
		{"MESSAGE", ``},
	} {
		t.Run(c.method, func(t *testing.T) {
			simulate(t, testConfig, func(w *world) {
				w.request = func(r *Request) {}
				w.receive(tina, call{method: c.method}.String())
				w.sleep(10 * time.Minute)
				w.expect(c.trace)
			})
		})
	}
}

func TestForwardedCopyLeavesTheRequestAlone(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = func(r *Request) {
			r.Forward(Forward{Groups: [][]Target{{{Message: r.Message, To: tom}}}})
			r.Reply(183, "", nil)
		}
		w.receive(tina, call{}.String())
		vias := slices.Collect(w.last(tina, "183 INVITE").Values(sipmsg.ViaHeader))
		if len(vias) != 1 || !strings.Contains(vias[0], "198.51.100.1") {
			t.Errorf("Vias of the reply are %q", vias)
		}
		w.answer(tom, "INVITE", 200)
	})
}

func TestResponseThatLostItsOtherViasIsDropped(t *testing.T) {
	simulate(t, testConfig, func(w *world) {
		w.request = to(tom)
		w.receive(tina, call{method: "MESSAGE"}.String())
		resp := w.last(tom, "MESSAGE").Response(200, "", "t")
		resp.Set(sipmsg.ViaHeader, must(resp.Value(sipmsg.ViaHeader)))
		w.do(func() { w.layer.Receive(resp, tom) })
		w.expect(`0.0 > tom MESSAGE`)
		w.answer(tom, "MESSAGE", 200)
		w.expect(`0.0 > tina 200 MESSAGE`)
	})
}
