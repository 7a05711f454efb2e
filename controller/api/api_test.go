package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

var (
	md5Of    = strings.Repeat("0a", 16)
	sha256Of = strings.Repeat("0b", 32)
)

func TestCheckRefusesWhatCannotBeStored(t *testing.T) {
	with := func(edit func(*NewSubscriber)) NewSubscriber {
		s := NewSubscriber{
			IMPI: "alice@example.test", Realm: "example.test",
			Identities: []Identity{{URI: "sip:alice@example.test"}, {URI: "tel:+49-30-123"}, {URI: "sips:work@example.test", Set: 1}},
			HA1:        Credentials{MD5: md5Of, SHA256: sha256Of},
		}
		edit(&s)
		return s
	}
	impi := func(v string) NewSubscriber { return with(func(s *NewSubscriber) { s.IMPI = v }) }
	identity := func(v string) NewSubscriber { return with(func(s *NewSubscriber) { s.Identities[0].URI = v }) }
	const writeNumber = "write it as tel:+4930123456, or a local one as tel:12;phone-context=example.org"
	tests := []struct {
		name string
		s    NewSubscriber
		want string // "" = accepted
	}{
		{"a good one", with(func(*NewSubscriber) {}), ""},
		{"one algorithm is enough", with(func(s *NewSubscriber) { s.HA1.MD5 = "" }), ""},
		{"an empty IMPI", impi(""), "the IMPI is empty; write it as user@realm"},
		{"an IMPI without realm", impi("alice"), `"alice" is not an IMPI; write it as user@realm, without spaces`},
		{"an IMPI with a space", impi("al ice@x"), `"al ice@x" is not an IMPI; write it as user@realm, without spaces`},
		{"an IMPI with a control character", impi("a\x1b@x"), `"a\x1b@x" is not an IMPI; write it as user@realm, without spaces`},
		{"an IMPI that is too long", impi(strings.Repeat("a", 300) + "@x"), `"` + strings.Repeat("a", 300) + `@x" is not an IMPI; write it as user@realm, without spaces`},
		{"a SIP URI for an IMPI", impi("sip:alice@x"), `the IMPI "sip:alice@x" holds a colon, which digest reserves; write it as user@realm`},
		{"no realm", with(func(s *NewSubscriber) { s.Realm = "" }), `"" is not a realm; write the home domain`},
		{"no identity", with(func(s *NewSubscriber) { s.Identities = nil }), "alice@example.test has no public identity; give at least one, such as sip:alice@example.test"},
		{"too many identities", with(func(s *NewSubscriber) { s.Identities = make([]Identity, 65) }), "alice@example.test has 65 public identities; give at most 64"},
		{"an identity twice", identity("tel:+49-30-123"), "tel:+49-30-123 is given twice; give each public identity once"},
		{"an identity without scheme", identity("alice@example.test"), `"alice@example.test" is not a public identity; write it as sip:user@domain or tel:+number`},
		{"an identity without user", identity("sip:example.test"), `"sip:example.test" is not a public identity; write it as sip:user@domain, without parameters`},
		{"an identity with parameters", identity("sip:a@x;user=phone"), `"sip:a@x;user=phone" is not a public identity; write it as sip:user@domain, without parameters`},
		{"a telephone number with letters", identity("tel:alice"), `"tel:alice" is not a telephone number; ` + writeNumber},
		{"a number that is neither global nor has a context", identity("tel:12"), `"tel:12" is not a telephone number; ` + writeNumber},
		{"a local number with its context", identity("tel:12*#;phone-context=example.test"), ""},
		{"a local number with an empty context", identity("tel:12;phone-context="), `"tel:12;phone-context=" is not a telephone number; ` + writeNumber},
		{"a local number with another parameter", identity("tel:12;phone-context=a;x=y"), `"tel:12;phone-context=a;x=y" is not a telephone number; ` + writeNumber},
		{"a global number with a context", identity("tel:+12;phone-context=a"), `"tel:+12;phone-context=a" is not a telephone number; ` + writeNumber},
		{"a number without digits", identity("tel:+-"), `"tel:+-" is not a telephone number; ` + writeNumber},
		{"a global number with letters", identity("tel:+12ab"), `"tel:+12ab" is not a telephone number; ` + writeNumber},
		{"a negative set", with(func(s *NewSubscriber) { s.Identities[0].Set = -1 }), "sip:alice@example.test is in registration set -1; number the sets from 0"},
		{"a set whose identities are all barred", with(func(s *NewSubscriber) { s.Identities[2].Barred = true }), "every identity in the registration set of sips:work@example.test is barred; leave one of them unbarred"},
		{"no secret", with(func(s *NewSubscriber) { s.HA1 = Credentials{} }), "alice@example.test has no secret; give a password, its HA1, or K and OPc of a USIM"},
		{"an HA1 of the wrong length", with(func(s *NewSubscriber) { s.HA1.SHA256 = md5Of }), "the SHA-256 HA1 of alice@example.test is malformed; write 64 lower-case hex digits"},
		{"an HA1 that is no hex", with(func(s *NewSubscriber) { s.HA1.MD5 = strings.Repeat("x", 32) }), "the MD5 HA1 of alice@example.test is malformed; write 32 lower-case hex digits"},
		{"a USIM instead of a password", with(func(s *NewSubscriber) { s.HA1, s.AKA = Credentials{}, &AKA{K: md5Of, OPc: md5Of, AMF: "8000"} }), ""},
		{"a K that is too long", with(func(s *NewSubscriber) { s.AKA = &AKA{K: sha256Of, OPc: md5Of, AMF: "8000"} }), "K of the USIM of alice@example.test is malformed; write 32 lower-case hex digits"},
		{"no OPc", with(func(s *NewSubscriber) { s.AKA = &AKA{K: md5Of, AMF: "8000"} }), "OPc of the USIM of alice@example.test is malformed; write 32 lower-case hex digits"},
		{"an AMF in capitals", with(func(s *NewSubscriber) { s.AKA = &AKA{K: md5Of, OPc: md5Of, AMF: "B9B9"} }), "AMF of the USIM of alice@example.test is malformed; write 4 lower-case hex digits"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := tt.s.Check(); err != nil {
				got = err.Error()
				var e *Error
				if !errors.As(err, &e) || e.Code != Invalid {
					t.Errorf("Check = %v, want code %s", err, Invalid)
				}
			}
			if got != tt.want {
				t.Errorf("Check = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestCredentialsAreSentButNeverPrinted(t *testing.T) {
	const k, opc = "000102030405060708090a0b0c0d0e0f", "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
	s := NewSubscriber{IMPI: "alice@example.test", HA1: Credentials{MD5: md5Of, SHA256: sha256Of}, AKA: &AKA{K: k, OPc: opc, AMF: "8000"}}
	var b strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		fmt.Fprintf(&b, verb, s)
		fmt.Fprintf(&b, verb, s.HA1)
		fmt.Fprintf(&b, verb, &s.HA1)
		fmt.Fprintf(&b, verb, s.AKA)
		fmt.Fprintf(&b, verb, *s.AKA)
	}
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "subscriber", s, "ha1", s.HA1)
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "subscribers", []NewSubscriber{s}, "ha1", s.HA1, "aka", s.AKA)
	if out := b.String(); strings.Contains(out, md5Of) || strings.Contains(out, sha256Of) || strings.Contains(out, "3061") || strings.Contains(out, k[:8]) || strings.Contains(out, opc[:8]) {
		t.Errorf("printed: %s", out)
	}
	sent, err := json.Marshal(reveal(s))
	if err != nil || !strings.Contains(string(sent), md5Of) || !strings.Contains(string(sent), k) || !strings.Contains(string(sent), opc) {
		t.Errorf("sent: %s, %v", sent, err)
	}
}

func TestAClientThatReachesNobodySaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	absent := filepath.Join(dir, "absent.sock")
	for _, tt := range []struct{ path, want string }{
		{absent, "no node runs here: there is no " + absent + "; start it with bellwether node -c FILE, or name its socket with --socket"},
		{dead, "no node runs here: nobody answers at " + dead + "; start it with bellwether node -c FILE, or name its socket with --socket"},
	} {
		_, err := New(tt.path).Status(t.Context())
		var e *Error
		if !errors.As(err, &e) || e.Code != Unreachable || e.Error() != tt.want {
			t.Errorf("Status = %v, want %s", err, tt.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(dead).Status(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Status after cancel = %v", err)
	}
}

func TestWhoMayUseASocket(t *testing.T) {
	const daemon = 1 // has this number on every Linux
	for _, tt := range []struct {
		name     string
		uid, gid uint32
		group    bool
		want     string
	}{
		{"root's alone", 0, 0, true, "root"},
		{"the group may not", 0, daemon, false, "root"},
		{"the group may", 0, daemon, true, "root, or as a member of the group daemon"},
		{"a user's", daemon, 0, true, "root, as daemon"},
		{"a user's and a group's", daemon, daemon, true, "root, as daemon, or as a member of the group daemon"},
		{"somebody's who has no name", 4000000000, 4000000000, true, "root"},
	} {
		if got := users(tt.uid, tt.gid, tt.group); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestAnAnswerOfSomethingElseIsRecognised(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == PathNodes {
			io.WriteString(w, "<html>")
			return
		}
		http.NotFound(w, r)
	})}
	go s.Serve(l)
	defer s.Close()
	c := New(path)
	defer c.Close()
	_, err = c.Status(t.Context())
	if want := "the node answered 404 Not Found; see whether " + path + " is the socket of a bellwether node"; err == nil || err.Error() != want {
		t.Errorf("Status = %v, want %s", err, want)
	}
	if _, err := c.Nodes(t.Context()); err == nil {
		t.Error("Nodes read HTML")
	}
}
