package frontproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	probeEvery  = time.Second
	probeAgain  = probeEvery / 4
	probeWithin = 900 * time.Millisecond
	probeFresh  = 3 * time.Second // an answer older than this does not count
)

// prober judges readiness from the data path: it sends a SIP OPTIONS to each
// address of the node's own P-CSCF entry over a real socket, which a worker must
// answer.
type prober struct {
	entries []netip.AddrPort

	mu   sync.Mutex
	last time.Time // when the last good answer came
	why  error     // of the last failure
}

// run probes until ctx ends: each second while answers come, else more often.
func (p *prober) run(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		var err error
		for _, e := range p.entries {
			if err = probe(ctx, e, n); err != nil {
				break
			}
		}
		p.mu.Lock()
		p.why = err
		if err == nil {
			p.last = time.Now()
		}
		p.mu.Unlock()
		pause := probeEvery
		if err != nil {
			pause = probeAgain
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func probe(ctx context.Context, entry netip.AddrPort, n int) error {
	var d net.Dialer
	d.LocalAddr = &net.UDPAddr{IP: entry.Addr().AsSlice()}
	c, err := d.DialContext(ctx, "udp", entry.String())
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	local := c.LocalAddr().String()
	id := fmt.Sprintf("ready-%d-%s", n, local)
	msg := fmt.Sprintf("OPTIONS sip:%[1]s SIP/2.0\r\nVia: SIP/2.0/UDP %[2]s;branch=z9hG4bK%[4]d;rport\r\nMax-Forwards: 70\r\n"+
		"From: <sip:ready@%[2]s>;tag=%[4]d\r\nTo: <sip:%[1]s>\r\nCall-ID: %[3]s\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
		entry, local, id, time.Now().UnixNano())
	if _, err := c.Write([]byte(msg)); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(probeWithin)) // a closed socket fails at the read
	buf := make([]byte, 4096)
	n, err = c.Read(buf)
	if err != nil {
		return fmt.Errorf("no answer to OPTIONS on the P-CSCF port %s", entry)
	}
	line, _, _ := bytes.Cut(buf[:n], []byte("\r\n"))
	if !bytes.HasPrefix(line, []byte("SIP/2.0 200 ")) {
		return fmt.Errorf("OPTIONS on the P-CSCF port %s was answered %q", entry, line)
	}
	return nil
}

// ready returns nil while answers come.
func (p *prober) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) <= probeFresh {
		return nil
	}
	if p.why != nil {
		return p.why
	}
	return errors.New("not probed yet")
}
