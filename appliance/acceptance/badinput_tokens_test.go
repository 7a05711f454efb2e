package acceptance

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"bellwether/appliance/joining"
	"bellwether/appliance/pki"
)

// forgeToken changes a token's body and makes its checksum right again.
func forgeToken(t testing.TB, token string, change func(body []byte)) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, joining.Prefix))
	if err != nil {
		t.Fatal(err)
	}
	body := raw[:len(raw)-4]
	change(body)
	sum := sha256.Sum256(body)
	return joining.Prefix + base64.RawURLEncoding.EncodeToString(append(body, sum[:4]...))
}

// Bad input (forged join tokens): five hundred forged tokens, garbage, huge lengths
// and connections that say nothing at the founder's cluster port certify
// nobody, are counted, and cost bounded memory; phones call, nodes renew
// their certificates, and the cluster keeps its leader meanwhile.
func TestBadInputForgedJoinTokens(t *testing.T) {
	t.Parallel()
	c := sharedCluster(t)
	n1 := c.Nodes[0]
	addr := n1.Address.String() + ":7400"
	users := subscribe(t, c, "forged", 2)
	phones := phonesAt(t, users, c.Nodes...)
	register(t, phones...)
	good := tokenFor(t, c, "n2")
	var list []joining.Member
	for _, n := range c.Nodes {
		list = append(list, joining.Member{Name: n.Name, Addr: n.Address.String() + ":7400"})
	}
	before := rss(t, n1)

	var wg sync.WaitGroup
	for worker := range 8 {
		random := rand.New(rand.NewPCG(1, uint64(worker)))
		wg.Go(func() {
			for range 60 {
				forged := forgeToken(t, good, func(b []byte) { b[len(b)-1-random.IntN(16)] ^= byte(1 + random.IntN(255)) })
				token, err := joining.ParseToken(forged)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = joining.Join(within(t, 15*time.Second), token, joining.Machine{Node: "n2", Role: pki.Controller, Controllers: list})
				if err == nil {
					t.Error("a forged token is taken")
				}
			}
		})
		wg.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(worker)))
			for i := range 60 {
				raw, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
				if i%3 == 0 { // no TLS at all
					noise := make([]byte, 4000)
					for j := range noise {
						noise[j] = byte(random.Uint32())
					}
					_, _ = raw.Write(noise)
				} else if conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{joining.Protocol}, MinVersion: tls.VersionTLS13}); conn.Handshake() == nil {
					_, _ = conn.Write([]byte{byte(random.Uint32() * uint32(i%2)), 0xff, byte(random.Uint32()), byte(random.Uint32()), 0xa1, 0x63})
					_ = conn.CloseWrite()
				}
				_, _ = io.Copy(io.Discard, raw)
				_ = raw.Close()
			}
		})
	}
	var silent []net.Conn
	for range 100 {
		if raw, err := net.Dial("tcp", addr); err == nil {
			defer raw.Close()
			silent = append(silent, raw)
		}
	}
	talk(t, phones[0], users[1])
	for _, n := range c.Nodes {
		eventually(t, upWithin, func() string {
			if r := bellwether(t, "", "cluster", "renew", "-c", n.ConfigFile()); r.code != 0 {
				return r.err
			}
			return ""
		})
	}
	wg.Wait()
	talk(t, phones[1], users[0])

	for _, s := range silent { // each is cut off
		_ = s.SetReadDeadline(time.Now().Add(10 * time.Second))
		var timeout net.Error
		if _, err := s.Read(make([]byte, 1)); errors.As(err, &timeout) && timeout.Timeout() {
			t.Error("a silent connection is still open")
		}
	}
	metrics := fetch(t, n1.HTTP()+"/metrics")
	for _, result := range []string{"unknown_token", "too_many", "renewed"} {
		if !regexp.MustCompile(`bellwether_join_requests_total\{result="` + result + `"\} [1-9]`).MatchString(metrics) {
			t.Errorf("%s is not counted", result)
		}
	}
	if strings.Contains(metrics, `bellwether_join_requests_total{result="joined"}`) {
		t.Error("somebody joined")
	}
	after := rss(t, n1)
	t.Logf("front: %d MB before, %d MB after", before["front"]>>20, after["front"]>>20)
	if grown := after["front"] - before["front"]; grown > 64<<20 {
		t.Errorf("the front process grew by %d MB", grown>>20)
	}
	st, err := n1.Admin.Status(within(t, 5*time.Second))
	if err != nil || !st.Quorum {
		t.Errorf("status %+v, %v", st, err)
	}
	for _, a := range st.Alarms {
		if strings.HasPrefix(a.Code, "certificate") || strings.HasPrefix(a.Code, "no_leader") {
			t.Errorf("alarm %+v", a)
		}
	}
}
