package aka

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func block(t testing.TB, s string) [16]byte { t.Helper(); return [16]byte(unhex(t, s)) }

// set is a test set of TS 35.208 §4.
type set struct {
	k, rand, sqn, amf, op, opc   string
	f1, f1s, f2, f5, f3, f4, f5s string
}

var sets = []set{
	{"465b5ce8b199b49faa5f0a2ee238a6bc", "23553cbe9637a89d218ae64dae47bf35", "ff9bb4d0b607", "b9b9",
		"cdc202d5123e20f62b6d676ac72cb318", "cd63cb71954a9f4e48a5994e37a02baf",
		"4a9ffac354dfafb3", "01cfaf9ec4e871e9", "a54211d5e3ba50bf", "aa689c648370",
		"b40ba9a3c58b2a05bbf0d987b21bf8cb", "f769bcd751044604127672711c6d3441", "451e8beca43b"},
	{"0396eb317b6d1c36f19c1c84cd6ffd16", "c00d603103dcee52c4478119494202e8", "fd8eef40df7d", "af17",
		"ff53bade17df5d4e793073ce9d7579fa", "53c15671c60a4b731c55b4a441c0bde2",
		"5df5b31807e258b0", "a8c016e51ef4a343", "d3a628ed988620f0", "c47783995f72",
		"58c433ff7a7082acd424220f2b67c556", "21a8c1f929702adb3e738488b9f5c5da", "30f1197061c1"},
	{"fec86ba6eb707ed08905757b1bb44b8f", "9f7c8d021accf4db213ccff0c7f71a6a", "9d0277595ffc", "725c",
		"dbc59adcb6f9a0ef735477b7fadf8374", "1006020f0a478bf6b699f15c062e42b3",
		"9cabc3e99baf7281", "95814ba2b3044324", "8011c48c0c214ed2", "33484dc2136b",
		"5dbdbb2954e8f3cde665b046179a5098", "59a92d3b476a0443487055cf88b2307b", "deacdd848cc6"},
	{"9e5944aea94b81165c82fbf9f32db751", "ce83dbc54ac0274a157c17f80d017bd6", "0b604a81eca8", "9e09",
		"223014c5806694c007ca1eeef57f004f", "a64a507ae1a2a98bb88eb4210135dc87",
		"74a58220cba84c49", "ac2cc74a96871837", "f365cd683cd92e96", "f0b9c08ad02e",
		"e203edb3971574f5a94b0d61b816345d", "0c4524adeac041c4dd830d20854fc46b", "6085a86c6f63"},
	{"4ab1deb05ca6ceb051fc98e77d026a84", "74b0cd6031a1c8339b2b6ce2b8c4a186", "e880a1b580b6", "9f07",
		"2d16c5cd1fdf6b22383584e3bef2a8d8", "dcf07cbd51855290b92a07a9891e523e",
		"49e785dd12626ef2", "9e85790336bb3fa2", "5860fc1bce351e7e", "31e11a609118",
		"7657766b373d1c2138f307e3de9242f9", "1c42e960d89b8fa99f2744e0708ccb53", "fe2555e54aa9"},
	{"6c38a116ac280c454f59332ee35c8c4f", "ee6466bc96202c5a557abbeff8babf63", "414b98222181", "4464",
		"1ba00a1a7c6700ac8c3ff3e96ad08725", "3803ef5363b947c6aaa225e58fae3934",
		"078adfb488241a57", "80246b8d0186bcf1", "16c8233f05a0ac28", "45b0f69ab06c",
		"3f8c7587fe8e4b233af676aede30ba3b", "a7466cc1e6b2a1337d49d3b66e95d7b4", "1f53cd2b1113"},
}

// TS 35.208: f1 to f5* and OPc give the values of test sets 1 to 6.
func TestMilenageGivesTheValuesOfTheTestSets(t *testing.T) {
	for i, s := range sets {
		t.Run(fmt.Sprintf("test set %d", i+1), func(t *testing.T) {
			k, rand, sqn, amf := Key(block(t, s.k)), block(t, s.rand), sqnOf([6]byte(unhex(t, s.sqn))), [2]byte(unhex(t, s.amf))
			opc := OPc(k, Key(block(t, s.op)))
			m := New(k, opc)
			macA, macS := m.f1(rand, sqn, amf)
			res, ck, ik, ak := m.f2345(rand)
			akStar := m.f5star(rand)
			for _, v := range []struct {
				name string
				got  []byte
				want string
			}{
				{"OPc", opc[:], s.opc}, {"f1", macA[:], s.f1}, {"f1*", macS[:], s.f1s}, {"f2", res[:], s.f2},
				{"f3", ck[:], s.f3}, {"f4", ik[:], s.f4}, {"f5", ak[:], s.f5}, {"f5*", akStar[:], s.f5s},
			} {
				if got := hex.EncodeToString(v.got); got != v.want {
					t.Errorf("%s is %s, want %s", v.name, got, v.want)
				}
			}
		})
	}
}

func example(t testing.TB) (*Milenage, set) {
	s := sets[1]
	return New(Key(block(t, s.k)), Key(block(t, s.opc))), s
}

func TestTheSIMOpensWhatTheHomeNetworkMade(t *testing.T) {
	m, s := example(t)
	rand, sqn, amf := block(t, s.rand), sqnOf([6]byte(unhex(t, s.sqn))), [2]byte(unhex(t, s.amf))
	v := m.Vector(rand, sqn, amf)
	res, ck, ik, gotSQN, gotAMF, err := m.Answer(v.RAND, v.AUTN)
	if err != nil || !bytes.Equal(res, v.XRES) || ck != v.CK || ik != v.IK || gotSQN != sqn || gotAMF != amf {
		t.Errorf("answer %x %x %x %v %x %v to %v", res, ck, ik, gotSQN, gotAMF, err, v)
	}
	for i := range 8 * len(v.AUTN) {
		autn := v.AUTN
		autn[i/8] ^= 1 << (i % 8)
		if res, _, _, _, _, err := m.Answer(v.RAND, autn); err != ErrMAC || res != nil {
			t.Errorf("with bit %d changed: %v", i, err)
		}
	}
	if _, _, _, _, _, err := New(Key{1}, Key{2}).Answer(v.RAND, v.AUTN); err != ErrMAC {
		t.Errorf("another SIM: %v", err)
	}
}

func TestTheHomeNetworkOpensAnAUTS(t *testing.T) {
	m, s := example(t)
	rand, sqn := block(t, s.rand), sqnOf([6]byte(unhex(t, s.sqn)))
	auts := m.AUTS(rand, sqn)
	if got, ok := m.OpenAUTS(rand, auts); !ok || got != sqn {
		t.Errorf("opened %v, %t, want %v", got, ok, sqn)
	}
	for i := range 8 * len(auts) {
		changed := auts
		changed[i/8] ^= 1 << (i % 8)
		if _, ok := m.OpenAUTS(rand, changed); ok {
			t.Errorf("opened with bit %d changed", i)
		}
	}
	rand[0] ^= 1
	if _, ok := m.OpenAUTS(rand, auts); ok {
		t.Error("opened as the answer to another challenge")
	}
}

func TestNoSecretIsPrinted(t *testing.T) {
	k := Key([]byte("5ec2e75ec2e75ec2"))
	m := New(k, k)
	v := Vector{XRES: []byte("5ec2e7"), CK: k, IK: k}
	r := Response{RES: []byte("5ec2e7"), CK: k, IK: k}
	var out strings.Builder
	for _, x := range []any{k, &k, []Key{k}, struct{ K Key }{k}, map[string]Key{"k": k}, m.opc, v, &v, []Vector{v}, r, &r} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			fmt.Fprintf(&out, verb+"\n", x)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", x)
	}
	fmt.Fprintf(&out, "%x %X %d", k, k, k)
	j, err := json.Marshal([]any{k, map[string]Key{"k": k}})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(j)
	for _, leak := range []string{"5ec2e7", "3565633265", "53 101 99", "53, 101, 99", "0x35, 0x65", "NWVjMmU3"} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("printed %q:\n%s", leak, out.String())
		}
	}
}
