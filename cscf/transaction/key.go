package transaction

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash/maphash"
	"strings"

	"bellwether/cscf/sipmsg"
)

// cookie starts every branch that is unique (RFC 3261 §8.1.1.7).
const cookie = "z9hG4bK"

// key identifies a transaction in a layer's tables. It is a hash of 128 bits
// under seeds that nobody outside knows, so it holds no message in memory and
// nobody can choose two transactions that collide.
type key [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func makeKey(parts ...string) (k key) {
	var h maphash.Hash
	for i, seed := range seeds {
		h.SetSeed(seed)
		for _, p := range parts {
			h.WriteString(p)
			h.WriteByte(0)
		}
		k[i] = h.Sum64()
	}
	return k
}

// serverKey is that of the server transaction a request belongs to, apart
// from the method: branch and sent-by (RFC 3261 §17.2.3), and the source, since
// everybody on the way of a request reads the rest: nobody cancels for another.
// Without the cookie the older rules stand in for an unusable branch.
func serverKey(m *sipmsg.Message, via sipmsg.Via, from Peer) key {
	host := strings.ToLower(via.Host)
	port := viaPort(via)
	ports := string([]byte{byte(port >> 8), byte(port)})
	source := ""
	if from.Group == 0 {
		received, rport := origin(via)
		source = received + " " + rport
	}
	if branch := via.Branch(); strings.HasPrefix(branch, cookie) {
		return makeKey(branch, host, ports, source)
	}
	number, _ := m.CSeq()
	var seq [4]byte
	binary.BigEndian.PutUint32(seq[:], number)
	return makeKey(via.Branch(), host, ports, source, m.RequestURI(), m.CallID(), m.FromTag(), string(seq[:]))
}

// origin is where a request came from, as stamp wrote it into the Via. On a
// stream a client may go on over a new connection, from another port.
func origin(via sipmsg.Via) (received, rport string) {
	received, _ = via.Params.Value("received")
	if strings.EqualFold(via.Transport, "UDP") {
		rport, _ = via.Params.Value("rport")
	}
	return received, rport
}

// of is the key of a transaction of another method under the same branch.
// Branches are unique, so this is for clients that break the rule.
func (k key) of(method string) key {
	k[0] ^= maphash.String(seeds[0], method)
	return k
}

// clientKey is that of the client transaction with this branch of ours and
// this CSeq method (RFC 3261 §17.1.3). Some elements fold the case.
func clientKey(branch, method string) key {
	return makeKey(strings.ToLower(branch), method)
}

// What a digest is for. The values are part of what nodes of different
// versions must agree on.
const (
	forBranch byte = 'b'
	forTag    byte = 't'
)

const alphabet = "abcdefghijklmnopqrstuvwxyz234567"

var base32Lower = base32.NewEncoding(alphabet).WithPadding(base32.NoPadding)

// digest hashes what makes a request's transaction unique, whatever layer,
// node or connection it arrives at: sent-by, branch, source, Call-ID, CSeq
// number. The source is what stamp wrote into the Via. The method is not in
// it: an INVITE, its CANCEL and the ACK of its non-2xx get the same. The
// result is 16 lower-case letters and digits, 80 bits.
func (l *Layer) digest(purpose byte, m *sipmsg.Message, via sipmsg.Via, index int) string {
	if l.mac == nil {
		l.mac = hmac.New(sha256.New, l.cfg.Secret)
	}
	b := append(l.scratch[:0], purpose)
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	number, _ := m.CSeq()
	branch := via.Branch()
	received, rport := origin(via)
	text(via.Host)
	b = binary.BigEndian.AppendUint16(b, viaPort(via))
	text(branch)
	text(received)
	text(rport)
	text(m.CallID())
	b = binary.BigEndian.AppendUint32(b, number)
	b = binary.AppendUvarint(b, uint64(index))
	if !strings.HasPrefix(branch, cookie) {
		text(m.FromTag())
		text(m.RequestURI())
	}
	l.scratch = b
	l.mac.Reset()
	l.mac.Write(b)
	var sum [sha256.Size]byte
	return base32Lower.EncodeToString(l.mac.Sum(sum[:0])[:10])
}

// branch is that of request m, received with Via via, on its way to a target
// of that index as out: the hash of the upstream transaction, then what loops
// are found by, as received and, on its way out of the cluster, as sent.
func (l *Layer) branch(m *sipmsg.Message, via sipmsg.Via, index int, received string, out *sipmsg.Message, to Peer) string {
	id := l.digest(forBranch, m, via, index) + received
	if to.Group == 0 {
		id += loopPart(out)
	}
	if l.cfg.Token == "" {
		return cookie + id
	}
	return cookie + l.cfg.Token + "." + id
}

// ours reports whether a response's top Via is one that we wrote. The token,
// whose signature was checked at the door, proves it better than sent-by,
// which differs where an engine carries on for another.
func (l *Layer) ours(via sipmsg.Via, from Peer) bool {
	if l.cfg.Token == "" {
		return strings.EqualFold(via.SentBy(), l.cfg.SentBy(from))
	}
	branch := via.Branch()
	n := len(cookie)
	return len(branch) > n+len(l.cfg.Token) &&
		strings.EqualFold(branch[:n+len(l.cfg.Token)], cookie+l.cfg.Token) &&
		branch[n+len(l.cfg.Token)] == '.'
}
