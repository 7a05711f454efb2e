package pcscf

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"

	"bellwether/cscf/sipmsg"
)

// What only the network may say (TS 24.229 §5.2.2.1, §5.2.6.3, RFC 3325 §5,
// RFC 7315 §5), and the identity that a phone asks for, which is for us alone.
// Headers that sipmsg has no name for are removed by theirs.
var (
	networkOnly = [...]sipmsg.Header{
		sipmsg.PAssertedIdentity, sipmsg.PPreferredIdentity, sipmsg.PChargingVector, sipmsg.PChargingFunctionAddresses,
		sipmsg.PServedUser, sipmsg.PCalledPartyID, sipmsg.PAssociatedURI, sipmsg.PVisitedNetworkID,
		sipmsg.ServiceRoute, sipmsg.Path, sipmsg.SecurityClient, sipmsg.SecurityServer, sipmsg.SecurityVerify,
	}
	networkOnlyNamed = [...]string{
		"P-Asserted-Service", "P-Profile-Key", "P-User-Database", "P-Private-Network-Indication",
		"Feature-Caps", "Restoration-Info", "Relayed-Charge", "Service-Interact-Info", "Cellular-Network-Info",
	}
)

// cleanRequestFromPhone removes what an untrusted phone must not say, and the
// security agreement, which ends here.
func cleanRequestFromPhone(m *sipmsg.Message) {
	for _, h := range networkOnly {
		m.Remove(h)
	}
	for _, name := range networkOnlyNamed {
		m.RemoveNamed(name)
	}
	withoutNetworkProvided(m)
	removeOption(m, sipmsg.Require, "sec-agree")
	removeOption(m, sipmsg.ProxyRequire, "sec-agree")
}

// withoutNetworkProvided removes access information that pretends to come from
// the network (TS 24.229 §7.2A.4).
func withoutNetworkProvided(m *sipmsg.Message) {
	for v := range m.Values(sipmsg.PAccessNetworkInfo) {
		if strings.Contains(strings.ToLower(v), "network-provided") {
			m.Remove(sipmsg.PAccessNetworkInfo)
			return
		}
	}
}

// removeOption takes one option tag out of a list header.
func removeOption(m *sipmsg.Message, h sipmsg.Header, tag string) {
	var keep []string
	found := false
	for v := range m.Elements(h) {
		if strings.EqualFold(v, tag) {
			found = true
		} else {
			keep = append(keep, v)
		}
	}
	switch {
	case !found:
	case len(keep) == 0:
		m.Remove(h)
	default:
		m.Set(h, strings.Join(keep, ", "))
	}
}

// unsupported lists the Proxy-Require options that nobody here understands
// (RFC 3261 §16.3 step 5); "" if there are none.
func unsupported(m *sipmsg.Message) string {
	var list []string
	for v := range m.Elements(sipmsg.ProxyRequire) {
		if !strings.EqualFold(v, "sec-agree") {
			list = append(list, v)
		}
	}
	return strings.Join(list, ", ")
}

// withoutIntegrity removes the integrity-protected parameter, by which a
// P-CSCF vouches for how a REGISTER reached it, from credentials.
func withoutIntegrity(m *sipmsg.Message) {
	var values []string
	found := false
	for v := range m.Values(sipmsg.Authorization) {
		if strings.Contains(strings.ToLower(v), "integrity-protected") {
			found = true
			v = dropAuthParams(v, "integrity-protected")
		}
		if v != "" {
			values = append(values, v)
		}
	}
	if !found {
		return
	}
	m.Remove(sipmsg.Authorization)
	for _, v := range values {
		m.Add(sipmsg.Authorization, v)
	}
}

// withoutKeys removes the keys of an AKA challenge, which are for the P-CSCF
// alone, before the challenge goes to the phone (TS 24.229 §5.2.2.2).
func withoutKeys(m *sipmsg.Message) {
	var values []string
	for v := range m.Values(sipmsg.WWWAuthenticate) {
		if v = dropAuthParams(v, "ck", "ik"); v != "" {
			values = append(values, v)
		}
	}
	m.Remove(sipmsg.WWWAuthenticate)
	for _, v := range values {
		m.Add(sipmsg.WWWAuthenticate, v)
	}
}

// dropAuthParams takes parameters out of credentials or a challenge. It is ""
// for one that cannot be read: it is of no use to anybody behind, who might
// read it differently.
func dropAuthParams(v string, names ...string) string {
	scheme, params, err := sipmsg.ParseAuth(v)
	if err != nil {
		return ""
	}
	var keep []string
	for p := range sipmsg.SplitElements(string(params)) {
		name, _, _ := strings.Cut(p, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		if !slices.Contains(names, name) {
			keep = append(keep, p)
		}
	}
	if len(keep) == 0 {
		return ""
	}
	return scheme + " " + strings.Join(keep, ", ")
}

// chargingVector makes a P-Charging-Vector with a fresh icid for a request
// that came over a flow (TS 24.229 §7.2A.5, RFC 7315 §4.6).
func (c *CSCF) chargingVector(flow sipmsg.Flow) string {
	at := c.cfg.ServiceAddr(flow.Remote.Addr()).Addr()
	host := at.String()
	if at.Is6() {
		host = "[" + host + "]"
	}
	var icid [16]byte
	rand.Read(icid[:])
	return "icid-value=" + hex.EncodeToString(icid[:]) + ";icid-generated-at=" + host + ";orig-ioi=" + c.cfg.Domain
}

// cleanTowardsPhone removes what no phone may see: charging, where the other
// phone is (RFC 7315 §5.4), and the asserted identity if its owner asked for
// privacy (RFC 3325 §7, TS 24.229 §5.2.6.4). P-Called-Party-ID is for the
// phone.
func cleanTowardsPhone(m *sipmsg.Message) {
	m.Remove(sipmsg.PAccessNetworkInfo)
	m.Remove(sipmsg.PChargingVector)
	m.Remove(sipmsg.PChargingFunctionAddresses)
	m.Remove(sipmsg.PServedUser)
	m.Remove(sipmsg.PVisitedNetworkID)
	m.RemoveNamed("P-Profile-Key")
	m.RemoveNamed("P-User-Database")
	if wantsPrivacy(m) {
		m.Remove(sipmsg.PAssertedIdentity)
	}
}

// wantsPrivacy reports whether Privacy holds "id" (RFC 3323 §4.2, RFC 3325 §9.3).
func wantsPrivacy(m *sipmsg.Message) bool {
	for v := range m.Values(sipmsg.Privacy) {
		for p := range strings.FieldsFuncSeq(v, func(r rune) bool { return r == ';' || r == ',' || r == ' ' || r == '\t' }) {
			if strings.EqualFold(p, "id") {
				return true
			}
		}
	}
	return false
}

// cleanResponseFromPhone removes what a phone must not say in a response and
// asserts who answered, where that is known (TS 24.229 §5.2.6.4.4).
func (c *CSCF) cleanResponseFromPhone(m *sipmsg.Message, answered string) {
	for _, h := range networkOnly {
		m.Remove(h)
	}
	for _, name := range networkOnlyNamed {
		m.RemoveNamed(name)
	}
	withoutNetworkProvided(m)
	if s := m.Status(); answered != "" && s > 100 && s < 300 {
		m.Add(sipmsg.PAssertedIdentity, "<"+answered+">")
	}
}

// dialogForming are the methods whose requests must come back through us.
func dialogForming(method string) bool {
	return method == "INVITE" || method == "SUBSCRIBE" || method == "REFER"
}
