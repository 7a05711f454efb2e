package digest

import (
	"slices"
	"strings"
	"time"
)

// maxUses bounds the nonces remembered per user, several phones included.
const maxUses = 8

// Uses remembers which nonce counts of one user were used, so that no request
// can be replayed (RFC 7616 §3.4, nc). The zero value remembers nothing. It is
// part of what is stored about a user.
type Uses struct {
	Seen []Use `cbor:"1,keyasint,omitempty"`
	// Floor is the time, in Unix milliseconds, up to which nonces are refused
	// because their use was forgotten to keep Seen short.
	Floor int64 `cbor:"2,keyasint,omitempty"`
}

// Use is the highest count seen of one nonce.
type Use struct {
	Nonce string `cbor:"1,keyasint"`
	Count uint32 `cbor:"2,keyasint"`
	Made  int64  `cbor:"3,keyasint"` // Unix milliseconds
}

// take notes a use; false if it, or a later one, was seen before. oldest is
// when the oldest nonces were made that are still accepted.
func (u *Uses) take(nonce string, count uint32, made, oldest time.Time) bool {
	u.Seen = slices.DeleteFunc(u.Seen, func(s Use) bool { return s.Made < oldest.UnixMilli() })
	for i := range u.Seen {
		if s := &u.Seen[i]; s.Nonce == nonce {
			if count <= s.Count {
				return false
			}
			s.Count = count
			return true
		}
	}
	if made.UnixMilli() <= u.Floor {
		return false
	}
	if len(u.Seen) >= maxUses {
		first := 0
		for i := range u.Seen {
			if u.Seen[i].Made < u.Seen[first].Made {
				first = i
			}
		}
		u.Floor = max(u.Floor, u.Seen[first].Made)
		u.Seen = slices.Delete(u.Seen, first, first+1)
		if made.UnixMilli() <= u.Floor {
			return false
		}
	}
	// A copy, or the request would stay in memory with its nonce.
	u.Seen = append(u.Seen, Use{Nonce: strings.Clone(nonce), Count: count, Made: made.UnixMilli()})
	return true
}

// Until is when the last remembered nonce ends, given their lifetime; zero if
// there is none.
func (u Uses) Until(lifetime time.Duration) time.Time {
	var last int64
	for _, s := range u.Seen {
		last = max(last, s.Made)
	}
	if last = max(last, u.Floor); last == 0 {
		return time.Time{}
	}
	return time.UnixMilli(last).Add(lifetime)
}
