package supervisor

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

const (
	tailLines = 20
	maxLine   = 64 << 10
)

// tail passes whole lines on and remembers the last of them.
type tail struct {
	mu   sync.Mutex
	out  io.Writer
	line []byte
	last []string
}

// Write takes any part of the child's output. It never fails: a child must
// not stop because nobody can read what it says.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		part := p
		if end >= 0 {
			part = p[:end+1]
		}
		part = part[:min(len(part), maxLine-len(t.line))]
		t.line = append(t.line, part...)
		p = p[len(part):]
		if t.line[len(t.line)-1] == '\n' || len(t.line) == maxLine {
			t.flush()
		}
	}
	return n, nil
}

func (t *tail) flush() {
	if len(t.line) == 0 {
		return
	}
	t.out.Write(t.line)
	if len(t.last) == tailLines {
		t.last = t.last[1:]
	}
	t.last = append(t.last, strings.TrimRight(string(t.line), "\n"))
	t.line = t.line[:0]
}

// end passes an unfinished line on and returns the last lines.
func (t *tail) end() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush()
	return t.last
}
