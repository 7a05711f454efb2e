package state_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"bellwether/controller/state"
)

// Every way of printing that people use, over every value that holds a secret.
func TestSecretsAreNeverPrinted(t *testing.T) {
	ha1 := strings.Repeat("5ec2e7", 5) + "aa"
	sub := subscriber("x@d", "sip:x@d")
	sub.HA1 = map[string]string{"MD5": ha1}
	sub.AKA = &state.AKA{K: []byte("5ec2e75ec2e75ec2"), OPc: []byte("5ec2e75ec2e75ec2"), AMF: [2]byte{0x80}}
	init := state.Init{ClusterID: "c1", Name: "n", Secret: []byte("5ec2e75ec2e75ec2e75ec2e75ec2e7xx")}
	s := apply(t, state.New(), state.Command{Init: &init}, put(sub))
	for _, v := range []any{
		sub, &sub, sub.HA1, sub.AKA, *sub.AKA, sub.AKA.K, []state.Subscriber{sub}, init, &init, init.Secret, s,
		put(sub), *put(sub).PutSubscribers, put(sub).PutSubscribers, state.Command{Init: &init}, struct{ S state.Subscriber }{sub},
	} {
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		if j, err := json.Marshal(v); err == nil {
			out.Write(j)
		}
		text := out.String()
		if strings.Contains(text, "5ec2e7") || strings.Contains(text, "53, 101, 99") || strings.Contains(text, "53 101 99") ||
			strings.Contains(text, "NWVjMmU3") || strings.Contains(text, fmt.Sprintf("%x", "5ec2e7")) {
			t.Errorf("%T shows its secret:\n%s", v, text)
		}
	}
	if got := fmt.Sprintf("%x %X %d", init.Secret, init.Secret, init.Secret); got != "(hidden) (hidden) (hidden)" {
		t.Errorf("the secret prints as %s", got)
	}
}

func TestJSONShowsAlgorithmsAndReadsSecrets(t *testing.T) {
	sub := subscriber("x@d", "sip:x@d")
	j, err := json.Marshal(sub)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"impi":"x@d","realm":"example.org","identities":[{"uri":"sip:x@d","set":0}],"ha1":["MD5"]}`
	if string(j) != want {
		t.Errorf("json is %s, want %s", j, want)
	}
	var back state.Subscriber
	if err := json.Unmarshal(j, &back); err == nil {
		t.Error("hidden output was read as if it were the secret")
	}
	if err := json.Unmarshal([]byte(`{"impi":"x@d","aka":{"amf":"8000"}}`), &back); err == nil {
		t.Error("hidden AKA keys were read as if they were keys")
	}
	if err := json.Unmarshal([]byte(`{"impi":"x@d","ha1":{"MD5":"00"}}`), &back); err != nil || back.HA1["MD5"] != "00" {
		t.Errorf("input: %v, %v", back, err)
	}
}

func TestCBORKeepsSecrets(t *testing.T) {
	sub := subscriber("x@d", "sip:x@d")
	b, err := put(sub).Encode()
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := state.DecodeCommand(b)
	if err != nil {
		t.Fatal(err)
	}
	if got := cmd.PutSubscribers.Subscribers[0].HA1["MD5"]; got != sub.HA1["MD5"] {
		t.Errorf("the secret comes back with %d characters", len(got))
	}
}
