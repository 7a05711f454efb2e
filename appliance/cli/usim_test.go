package cli

import (
	"strings"
	"testing"

	"bellwether/controller/api"
)

// TS 35.208 §4.3, test set 2.
const (
	testK   = "0396eb317b6d1c36f19c1c84cd6ffd16"
	testOP  = "ff53bade17df5d4e793073ce9d7579fa"
	testOPc = "53c15671c60a4b731c55b4a441c0bde2"
)

func TestAUSIMIsStoredWithItsOPc(t *testing.T) {
	for _, tt := range []struct {
		name, stdin string
		args        []string
		amf         string
	}{
		{"K and OPc", "K=" + testK + " OPc=" + testOPc, nil, "8000"},
		{"OP becomes OPc", "k=" + strings.ToUpper(testK) + "\nop=" + testOP + "\n", nil, "8000"},
		{"another AMF", "OPC=" + testOPc + " K=" + testK, []string{"--amf", "B9b9"}, "b9b9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			do, stored := provision(t)
			do(tt.stdin, append([]string{"add", "alice@example.test", "--aka-stdin"}, tt.args...)...).is(t,
				"alice@example.test is stored with sip:alice@example.test\n", "", OK)
			want := api.AKA{K: testK, OPc: testOPc, AMF: tt.amf}
			if got := *stored; len(got) != 1 || got[0].AKA == nil || *got[0].AKA != want || got[0].HA1 != (api.Credentials{}) {
				t.Error("the keys are wrong")
			}
			do("", "show", "alice@example.test").is(t, "IMPI                REALM         SECRET  AKA             IDENTITIES\n"+
				"alice@example.test  example.test  -       yes (AMF "+tt.amf+")  sip:alice@example.test\n", "", OK)
			for _, args := range [][]string{{"show", "alice@example.test", "--json"}, {"export", "--json"}, {"export"}} {
				r := do("", args...)
				if r.code != OK || strings.Contains(r.out, testK) || strings.Contains(r.out, testOPc) {
					t.Errorf("%v prints %q", args, r.out)
				}
			}
		})
	}
}

func TestUSIMKeysThatAreRefused(t *testing.T) {
	const none = "standard input holds no keys of a USIM; write K=HEX and OPc=HEX, or K=HEX and OP=HEX"
	do, stored := provision(t)
	for _, tt := range []struct{ name, stdin, want string }{
		{"nothing", "", "K of the USIM of alice@example.test is missing; write its 32 hex digits"},
		{"no name", testK, none},
		{"K twice", "K=" + testK + " K=" + testK, none},
		{"K alone", "K=" + testK, "OPc of the USIM of alice@example.test is missing; write its 32 hex digits, or OP"},
		{"OPc alone", "OPc=" + testOPc, "K of the USIM of alice@example.test is missing; write its 32 hex digits"},
		{"OP and OPc", "K=" + testK + " OP=" + testOP + " OPc=" + testOPc, "the USIM of alice@example.test has both OPc and OP; give one of them"},
		{"a K that is too short", "K=" + testK[1:] + " OPc=" + testOPc, "K of the USIM of alice@example.test is malformed; write 32 hex digits"},
		{"an OP that is no hex", "K=" + testK + " OP=x" + testOP[1:], "OP of the USIM of alice@example.test is malformed; write 32 hex digits"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := do(tt.stdin, "add", "alice@example.test", "--aka-stdin")
			r.is(t, "", "bellwether: "+tt.want+"\n", Failed)
		})
	}
	for _, tt := range []struct{ args, want string }{
		{"--aka", "there is no terminal to ask for K and OPc at; give --aka-stdin"},
		{"--aka --aka-stdin", "--aka and --aka-stdin exclude each other; give one of them"},
		{"--aka-stdin --password-stdin", "one command stores a USIM or a password; for both, import a file with the columns k, opc and password"},
		{"--aka --algorithm MD5", "one command stores a USIM or a password; for both, import a file with the columns k, opc and password"},
		{"--amf 8000", "--amf is for a USIM; give --aka or --aka-stdin as well"},
		{"--aka-stdin --amf 80000", `AMF "80000" is malformed; write 4 hex digits, such as 8000`},
	} {
		r := do("", append([]string{"add", "alice@example.test"}, strings.Fields(tt.args)...)...)
		if r.code != Usage || !strings.Contains(r.err, tt.want) {
			t.Errorf("%s: %+v, want %q", tt.args, r, tt.want)
		}
	}
	if len(*stored) > 0 {
		t.Errorf("stored %v", *stored)
	}
}

func TestUSIMKeysAreAskedForWithoutEcho(t *testing.T) {
	for _, opc := range []string{testOPc, "OP=" + testOP, "opc = " + testOPc} {
		r, stored := typed(t, testK, testK+"\n"+opc+"\n", "--aka")
		r.is(t, "alice@example.test is stored with sip:alice@example.test\n", "\n", OK)
		if len(stored) != 1 || stored[0].AKA == nil || *stored[0].AKA != (api.AKA{K: testK, OPc: testOPc, AMF: "8000"}) {
			t.Errorf("with %s the keys are wrong", opc[:3])
		}
	}
	r, stored := typed(t, testK, testK+"\n1234\n", "--aka")
	r.is(t, "", "\nbellwether: OPc of the USIM of alice@example.test is malformed; write 32 hex digits\n", Failed)
	if len(stored) != 0 {
		t.Errorf("stored %v", stored)
	}
}

func TestUSIMsAreImported(t *testing.T) {
	do, stored := provision(t)
	do("impi,k,op,opc,amf,password\n"+
		"a@example.test,"+testK+","+testOP+",,,\n"+
		"b@example.test,"+strings.ToUpper(testK)+",, "+testOPc+" ,0000,secret\n"+
		"c@example.test,,,,,secret\n", "import", "-").is(t, "3 subscribers added, 0 replaced\n", "", OK)
	got := *stored
	if len(got) != 3 || got[0].AKA == nil || *got[0].AKA != (api.AKA{K: testK, OPc: testOPc, AMF: "8000"}) || got[0].HA1 != (api.Credentials{}) ||
		got[1].AKA == nil || *got[1].AKA != (api.AKA{K: testK, OPc: testOPc, AMF: "0000"}) || got[1].HA1.MD5 == "" ||
		got[2].AKA != nil || got[2].HA1.MD5 == "" {
		t.Errorf("stored %v", got)
	}
	for _, tt := range []struct{ name, csv, want string }{
		{"no column for OPc", "impi,k\n", "1: there is a column k, but no opc; add a column opc, or op"},
		{"K without OPc", "impi,k,opc\na@b.test," + testK + ",\n", "2: OPc of the USIM of a@b.test is missing; write its 32 hex digits, or OP"},
		{"OPc without K", "impi,k,opc\na@b.test,," + testOPc + "\n", "2: K of the USIM of a@b.test is missing; write its 32 hex digits"},
		{"AMF without K", "impi,k,opc,amf\na@b.test,,,8000\n", "2: K of the USIM of a@b.test is missing; write its 32 hex digits"},
		{"both", "impi,k,opc,op\na@b.test," + testK + "," + testOPc + "," + testOP + "\n", "2: the USIM of a@b.test has both OPc and OP; give one of them"},
		{"a bad K", "impi,k,opc\na@b.test," + testK + "00," + testOPc + "\n", "2: K of the USIM of a@b.test is malformed; write 32 hex digits"},
		{"a bad AMF", "impi,k,opc,amf\na@b.test," + testK + "," + testOPc + ",8\n", `2: AMF "8" is malformed; write 4 hex digits, such as 8000`},
		{"no secret at all", "impi,k,opc\na@b.test,,\n", "2: a@b.test has no secret; give a password, its HA1, or K and OPc of a USIM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := do(tt.csv, "import", "-")
			if !strings.Contains(r.err, ":"+tt.want+"\n") || strings.Contains(r.err, testK) || strings.Contains(r.err, testOPc) || r.code != Failed {
				t.Errorf("%+v, want %q", r, tt.want)
			}
		})
	}
}
