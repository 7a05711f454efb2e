package phone

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/emiago/sipgo/sip"

	"bellwether/cscf/sipmsg"
)

// allow lists the methods that a phone answers.
const allow = "INVITE, ACK, CANCEL, BYE, OPTIONS, MESSAGE, PRACK, UPDATE, INFO"

// dialog is one side of a dialog (RFC 3261 §12). Only seq changes.
type dialog struct {
	p         *Phone
	callID    string
	local     sip.FromHeader // with tag
	remote    sip.ToHeader   // with tag
	remoteTag string
	target    sip.Uri
	routes    []string // in the order in which they are sent
	seq       atomic.Uint32
}

// dialOut makes the dialog of a response to invite (RFC 3261 §12.1.2).
func (p *Phone) dialOut(invite *sip.Request, res *sip.Response) *dialog {
	d := &dialog{p: p, callID: string(*invite.CallID()), local: *invite.From(), remote: *res.To()}
	d.remoteTag, _ = res.To().Params.Get("tag")
	d.routes = elements(res, "Record-Route", 64)
	slices.Reverse(d.routes)
	d.target = contactOf(res, invite.Recipient)
	d.seq.Store(invite.CSeq().SeqNo)
	return d
}

// dialIn makes the dialog of a request, with the phone's tag (RFC 3261 §12.1.1).
func (p *Phone) dialIn(invite *sip.Request, tag string) *dialog {
	d := &dialog{p: p, callID: string(*invite.CallID())}
	d.local = invite.To().AsFrom()
	d.local.Params.Add("tag", tag)
	d.remote = invite.From().AsTo()
	d.remoteTag, _ = invite.From().Params.Get("tag")
	d.routes = elements(invite, "Record-Route", 64)
	d.target = contactOf(invite, invite.From().Address)
	return d
}

// contactOf returns the URI of the Contact, or otherwise if there is none.
func contactOf(m sip.Message, otherwise sip.Uri) sip.Uri {
	for _, c := range elements(m, "Contact", 1) {
		var uri sip.Uri
		if n, err := sipmsg.ParseNameAddr(c); err == nil && sip.ParseUri(n.URI, &uri) == nil {
			return uri
		}
	}
	return otherwise
}

// request builds a request within the dialog (RFC 3261 §12.2.1.1). Routes are
// taken for loose ones.
func (d *dialog) request(method sip.RequestMethod, headers ...sip.Header) *sip.Request {
	return d.numbered(method, d.seq.Add(1), headers...)
}

func (d *dialog) numbered(method sip.RequestMethod, seq uint32, headers ...sip.Header) *sip.Request {
	req := sip.NewRequest(method, d.target)
	id := sip.CallIDHeader(d.callID)
	local, remote := d.local, d.remote
	req.AppendHeader(d.p.ep.via())
	req.AppendHeader(sip.NewHeader("Max-Forwards", "70"))
	for _, r := range d.routes {
		req.AppendHeader(sip.NewHeader("Route", r))
	}
	req.AppendHeader(&local)
	req.AppendHeader(&remote)
	req.AppendHeader(&id)
	req.AppendHeader(&sip.CSeqHeader{SeqNo: seq, MethodName: method})
	for _, h := range headers {
		req.AppendHeader(h)
	}
	req.SetBody(nil)
	return req
}

// hop is where requests of the dialog go: to the first route, or the far end if
// there is none. What is no literal address is left to the phone's P-CSCF.
func (d *dialog) hop() netip.AddrPort {
	uri := d.target.String()
	if len(d.routes) > 0 {
		n, err := sipmsg.ParseNameAddr(d.routes[0])
		if err != nil {
			return d.p.cfg.Proxy
		}
		uri = n.URI
	}
	u, err := sipmsg.ParseURI(uri)
	if err != nil {
		return d.p.cfg.Proxy
	}
	if addr, ok := u.HostPort(); ok {
		return addr
	}
	return d.p.cfg.Proxy
}

// dialogKey finds a phone's call by its own side of the dialog.
func dialogKey(callID, localTag string) string { return callID + " " + localTag }

// hasOption reports whether a header such as Supported lists an option tag.
func hasOption(m sip.Message, header, option string) bool {
	return slices.ContainsFunc(elements(m, header, 64), func(o string) bool { return strings.EqualFold(o, option) })
}
