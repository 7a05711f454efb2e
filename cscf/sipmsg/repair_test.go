package sipmsg

import (
	"slices"
	"testing"
)

func TestATopViaIsRepairedForTheAnswer(t *testing.T) {
	for _, tt := range []struct {
		name, via string
		want      []string // the Vias of the answer; nil: there is none
	}{
		{"RFC 4475 §3.1.2.1", "SIP/2.0/UDP 192.0.2.15;;,;,,", []string{"SIP/2.0/UDP 192.0.2.15"}},
		{"the branch stays", "SIP/2.0/UDP a:5070;;branch=z9hG4bKx;rport;=", []string{"SIP/2.0/UDP a:5070;branch=z9hG4bKx;rport"}},
		{"elements behind it stay", "SIP/2.0/UDP a;x=\x01, SIP/2.0/TCP b;branch=z9hG4bKy", []string{"SIP/2.0/UDP a", "SIP/2.0/TCP b;branch=z9hG4bKy"}},
		{"a good one stays as it is", "SIP / 2.0/UDP a ;branch = z9hG4bKx", []string{"SIP / 2.0/UDP a ;branch = z9hG4bKx"}},
		{"no sent-by", "SIP/2.0/UDP ;branch=z9hG4bKx", nil},
		{"a port that is none", "SIP/2.0/UDP a:x;branch=z9hG4bKx", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Parse([]byte("OPTIONS sip:a@b SIP/2.0\r\nVia: " + tt.via + "\r\nFrom: <sip:a@b>;tag=1\r\nCall-ID: x\r\nCSeq: 1 OPTIONS\r\n\r\n")) // no To
			if err == nil {
				t.Fatal("accepted")
			}
			if !m.Answerable() {
				if tt.want != nil {
					t.Error("cannot be answered")
				}
				return
			}
			if got := slices.Collect(m.Response(400, "", "t").Elements(ViaHeader)); !slices.Equal(got, tt.want) {
				t.Errorf("Vias %q, want %q", got, tt.want)
			}
		})
	}
}
