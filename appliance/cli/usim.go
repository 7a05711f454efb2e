package cli

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"bellwether/controller/api"
	"bellwether/cscf/aka"
)

// defaultAMF has the separation bit set, as LTE and IMS operators have it
// (TS 33.102 Annex H).
const defaultAMF = "8000"

// usimText is what an operator writes of a USIM: hex digits, in any letter case.
type usimText struct {
	k       string
	opc, op string // one of them
	amf     string // empty: defaultAMF
}

// keys reads the text. Its error is one line that says what to write, and
// nothing of the secrets.
func (u usimText) keys(impi string) (*api.AKA, error) {
	wrong := func(format string, args ...any) (*api.AKA, error) {
		return nil, fmt.Errorf(format, args...)
	}
	k, ok := key(u.k)
	switch {
	case u.k == "":
		return wrong("K of the USIM of %s is missing; write its 32 hex digits", impi)
	case !ok:
		return wrong("K of the USIM of %s is malformed; write 32 hex digits", impi)
	case u.opc == "" && u.op == "":
		return wrong("OPc of the USIM of %s is missing; write its 32 hex digits, or OP", impi)
	case u.opc != "" && u.op != "":
		return wrong("the USIM of %s has both OPc and OP; give one of them", impi)
	}
	name, text := "OPc", u.opc
	if u.op != "" {
		name, text = "OP", u.op
	}
	opc, ok := key(text)
	if !ok {
		return wrong("%s of the USIM of %s is malformed; write 32 hex digits", name, impi)
	}
	if u.op != "" {
		opc = aka.OPc(k, opc)
	}
	amf, err := amfOf(u.amf)
	if err != nil {
		return nil, err
	}
	return &api.AKA{K: hex.EncodeToString(k[:]), OPc: hex.EncodeToString(opc[:]), AMF: amf}, nil
}

// amfOf checks an AMF, which is no secret.
func amfOf(text string) (string, error) {
	b, err := hex.DecodeString(cmp.Or(text, defaultAMF))
	if err != nil || len(b) != 2 {
		return "", fmt.Errorf("AMF %q is malformed; write 4 hex digits, such as %s", text, defaultAMF)
	}
	return hex.EncodeToString(b), nil
}

// key reads 16 bytes.
func key(text string) (aka.Key, bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(aka.Key{}) {
		return aka.Key{}, false
	}
	return aka.Key(b), true
}

// usim gets the keys of a USIM from standard input or the terminal.
func (a *app) usim(ctx context.Context, from secretFlags, impi string) (*api.AKA, error) {
	u := usimText{amf: from.amf}
	if from.akaIn {
		text, err := readSecret(a.in)
		if err != nil {
			return nil, err
		}
		if u.k, u.opc, u.op, err = parseKeys(text); err != nil {
			return nil, err
		}
		return u.keys(impi)
	}
	tty, ok := a.in.(*os.File)
	if !ok || !isTerminal(tty) {
		return nil, usagef("there is no terminal to ask for K and OPc at; give --aka-stdin")
	}
	answers, err := a.prompt(ctx, tty, "K of the USIM of "+clean(impi)+", 32 hex digits: ")
	if err != nil {
		return nil, err
	}
	u.k = strings.TrimSpace(answers[0])
	if _, ok := key(u.k); !ok {
		return u.keys(impi) // nobody should type OPc for what is refused anyway
	}
	if answers, err = a.prompt(ctx, tty, "OPc, or OP= and the operator's OP: "); err != nil {
		return nil, err
	}
	u.opc = strings.TrimSpace(answers[0])
	if name, value, ok := strings.Cut(u.opc, "="); ok {
		switch strings.ToUpper(strings.TrimSpace(name)) {
		case "OP":
			u.opc, u.op = "", strings.TrimSpace(value)
		case "OPC":
			u.opc = strings.TrimSpace(value)
		}
	}
	return u.keys(impi)
}

// parseKeys reads K=HEX and OPc=HEX or OP=HEX, white space between them.
func parseKeys(text string) (k, opc, op string, err error) {
	for _, f := range strings.Fields(text) {
		name, value, _ := strings.Cut(f, "=")
		var dst *string
		switch strings.ToUpper(name) {
		case "K":
			dst = &k
		case "OPC":
			dst = &opc
		case "OP":
			dst = &op
		}
		if dst == nil || *dst != "" || value == "" {
			// The text may be a secret: it is not repeated.
			return "", "", "", errors.New("standard input holds no keys of a USIM; write K=HEX and OPc=HEX, or K=HEX and OP=HEX")
		}
		*dst = value
	}
	return k, opc, op, nil
}
