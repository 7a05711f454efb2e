package sipmsg

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

const streamed = "INFO sip:bob@ims.test SIP/2.0\r\nVia: SIP/2.0/TCP 192.0.2.1;branch=z9hG4bK1\r\n" +
	"From: <sip:a@b>;tag=1\r\nTo: <sip:b@b>\r\nCall-ID: c\r\nCSeq: 1 INFO\r\nMax-Forwards: 70\r\n%s\r\n"

// streamMessage is a message with further header lines and a body.
func streamMessage(lines, body string) string { return fmt.Sprintf(streamed, lines) + body }

// cut pushes a stream in pieces of n bytes and lists what comes out: messages,
// "ping", and at the end the error or "held" where an incomplete message is.
func cut(stream string, n int) (out []string) {
	var f Framer
	last := More
	for len(stream) > 0 {
		piece := []byte(stream[:min(n, len(stream))])
		stream = stream[len(piece):]
		f.Push(piece)
		for {
			u, raw, err := f.Next()
			if err != nil {
				return append(out, fmt.Sprintf("%d %s", err.(*FrameError).Status, err.(*FrameError).Reason))
			}
			if last = u; u == Whole {
				out = append(out, string(raw))
			} else if u == Ping {
				out = append(out, "ping")
			} else {
				break
			}
		}
		clear(piece) // the framer must not use it any more
	}
	if last == Waiting {
		out = append(out, "held")
	}
	return out
}

func TestFramerCutsStreams(t *testing.T) {
	one, two := streamMessage("Content-Length: 0\r\n", ""), streamMessage("Content-Length: 5\r\n", "hello")
	for name, tc := range map[string]struct {
		stream string
		want   []string
	}{
		"one message":                          {one, []string{one}},
		"two messages":                         {two + one, []string{two, one}},
		"line breaks around messages":          {"\r\n" + one + "\r\n" + two + "\r\n", []string{one, two}},
		"a ping":                               {"\r\n\r\n", []string{"ping"}},
		"a ping between messages":              {one + "\r\n\r\n" + two, []string{one, "ping", two}},
		"two pings":                            {"\r\n\r\n\r\n\r\n", []string{"ping", "ping"}},
		"a pong is no ping":                    {"\r\n", nil},
		"bare line feeds are no ping":          {"\n\n\n\n" + one, []string{one}},
		"a message without end":                {one + two[:len(two)-1], []string{one, "held"}},
		"a header without end":                 {one + two[:30], []string{one, "held"}},
		"a body of line breaks":                {streamMessage("Content-Length: 4\r\n", "\r\n\r\n"), []string{streamMessage("Content-Length: 4\r\n", "\r\n\r\n")}},
		"the compact form":                     {streamMessage("l: 5\r\n", "hello") + one, []string{streamMessage("l: 5\r\n", "hello"), one}},
		"any letter case, white space, folded": {streamMessage("CONTENT-length \t:\r\n  5 \r\n", "hello"), []string{streamMessage("CONTENT-length \t:\r\n  5 \r\n", "hello")}},
		"a length in another header's folding": {streamMessage("Subject: x\r\n Content-Length: 3\r\nl: 0\r\n", ""), []string{streamMessage("Subject: x\r\n Content-Length: 3\r\nl: 0\r\n", "")}},

		"no length":               {streamMessage("", "hello"), []string{"400 Missing Content-Length"}},
		"two lengths":             {streamMessage("Content-Length: 5\r\nl: 4\r\n", "hello"), []string{"400 More Than One Content-Length"}},
		"two equal lengths":       {streamMessage("Content-Length: 5\r\nl: 5\r\n", "hello"), []string{"400 More Than One Content-Length"}},
		"a list of lengths":       {streamMessage("Content-Length: 5, 5\r\n", "hello"), []string{"400 Malformed Content-Length"}},
		"a negative length":       {streamMessage("Content-Length: -1\r\n", ""), []string{"400 Malformed Content-Length"}},
		"a signed length":         {streamMessage("Content-Length: +5\r\n", "hello"), []string{"400 Malformed Content-Length"}},
		"a hexadecimal length":    {streamMessage("Content-Length: 0x5\r\n", "hello"), []string{"400 Malformed Content-Length"}},
		"an empty length":         {streamMessage("Content-Length:\r\n", ""), []string{"400 Malformed Content-Length"}},
		"a length of 4 GB":        {streamMessage("Content-Length: 4294967296\r\n", ""), []string{"400 Malformed Content-Length"}},
		"a length beyond 64 bits": {streamMessage("Content-Length: 99999999999999999999999\r\n", ""), []string{"400 Malformed Content-Length"}},
		"a length without colon":  {streamMessage("Content-Length 5\r\n", "hello"), []string{"400 Malformed Header Line"}},
		"a length above 64 kB":    {streamMessage("Content-Length: 65536\r\n", ""), []string{"513 Message Too Large"}},
		"a header above 64 kB":    {streamMessage("Subject: "+strings.Repeat("x", MaxSize)+"\r\n", ""), []string{"513 Message Too Large"}},
		"bare line feeds":         {"INFO sip:b@b SIP/2.0\nContent-Length: 0\n\n", []string{"400 Bare CR, LF or NUL in Header"}},
		"an error after messages": {one + two + streamMessage("", ""), []string{one, two, "400 Missing Content-Length"}},

		"another protocol":     {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", []string{"0 Not SIP"}},
		"a TLS handshake":      {"\x16\x03\x01\x02\x00\x01", []string{"0 Not SIP"}},
		"NUL between messages": {one + "\x00", []string{one, "0 Not SIP"}},
		"white space":          {" " + one, []string{"0 Not SIP"}},
		"no line within 64 kB": {strings.Repeat("x", MaxSize+1), []string{"0 Not SIP"}},
		"an answer is framed":  {"SIP/2.0 200 OK\r\nl: 0\r\n\r\n", []string{"SIP/2.0 200 OK\r\nl: 0\r\n\r\n"}},
	} {
		for _, n := range []int{1, 2, 3, 7, 100, 1 << 20} {
			if got := cut(tc.stream, n); fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("%s, in pieces of %d:\n got %q\nwant %q", name, n, got, tc.want)
			}
		}
	}
}

func TestFramerLeavesEnoughToAnswer(t *testing.T) {
	var f Framer
	f.Push([]byte(streamMessage("Content-Length: -7\r\n", "")))
	_, _, err := f.Next()
	var bad *FrameError
	if !errors.As(err, &bad) {
		t.Fatalf("got %v", err)
	}
	var m Message
	_ = m.Parse(bad.Head) // it is wrong, of course
	if !m.Answerable() || m.Response(bad.Status, bad.Reason, "x").Status() != 400 {
		t.Errorf("cannot be answered: %q", bad.Head)
	}
	f.Push([]byte(streamMessage("Content-Length: 0\r\n", "")))
	if _, _, again := f.Next(); again != err {
		t.Errorf("after the error: %v", again)
	}
}

func TestFramerTakesNoMemoryForAClaim(t *testing.T) {
	var before, after runtime.MemStats
	msg := []byte(streamMessage("Content-Length: 64000\r\n", "a"))
	fs := make([]Framer, 1000)
	runtime.ReadMemStats(&before)
	for i := range fs {
		fs[i].Push(msg)
		if u, _, err := fs[i].Next(); u != Waiting || err != nil || fs[i].Held() > 1024 {
			t.Fatal(u, err, fs[i].Held())
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / 1000; n > 1024 {
		t.Errorf("%d bytes for each", n)
	}
}

func TestFramerLetsMemoryGo(t *testing.T) {
	var f Framer
	big := []byte(streamMessage("Content-Length: 60000\r\n", strings.Repeat("x", 60000)))
	f.Push(big[:50000])
	if u, _, _ := f.Next(); u != Waiting {
		t.Fatal(u)
	}
	f.Push(append(big[50000:], "INFO"...))
	if u, raw, _ := f.Next(); u != Whole || !bytes.Equal(raw, big) {
		t.Fatal(u)
	}
	if u, _, _ := f.Next(); u != Waiting || f.Held() > 64 {
		t.Errorf("%d, holds %d bytes for 4", u, f.Held())
	}
}

// FuzzFramer: however a stream is cut, the same comes out; and Parse agrees
// with the framer where each message ends.
func FuzzFramer(f *testing.F) {
	for _, s := range []string{
		streamMessage("Content-Length: 0\r\n", ""), streamMessage("l: 5\r\n", "hello") + "\r\n\r\n" + streamMessage("Content-Length: 0\r\n", ""),
		streamMessage("", ""), "\r\n\r\n\r\n", streamMessage("Content-Length\r\n : 3\r\n", "abc"), streamMessage("Content-Length: 1\r\nl: 2\r\n", "abc"), "SIP/2.0 200 OK\r\n\r\n",
		streamMessage(" l: 0\r\nl:\r\n\t1\r\n", "x"),
	} {
		f.Add(s, uint8(1))
	}
	f.Fuzz(func(t *testing.T, stream string, n uint8) {
		whole, pieces := cut(stream, len(stream)+1), cut(stream, int(n)+1)
		if fmt.Sprint(whole) != fmt.Sprint(pieces) {
			t.Fatalf("at once %q\nin pieces of %d %q", whole, int(n)+1, pieces)
		}
		for _, raw := range whole {
			if m, err := Parse([]byte(raw + "INFO sip:next SIP/2.0\r\n")); err == nil && string(m.Append(nil)) != raw {
				t.Fatalf("the message is %q\nParse reads %q", raw, m.Append(nil))
			}
		}
	})
}
