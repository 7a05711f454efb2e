package demo

import "testing"

func TestGuestIsChallengedWithMD5Only(t *testing.T) {
	g := guest("alice", "secret")
	if err := g.Check(); err != nil {
		t.Fatal(err)
	}
	if g.HA1.MD5 == "" || g.HA1.SHA256 != "" {
		t.Error("a phone that knows only MD5 cannot register as the guest")
	}
}
