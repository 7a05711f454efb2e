package frontproc

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"bellwether/appliance/workerlink"
	"bellwether/appliance/workerproc"
	"bellwether/controller/link"
	"bellwether/controller/mesh"
)

const redial = 250 * time.Millisecond

// mute ignores what another node's front says.
type mute struct{}

func (mute) SIP(*link.Conn, *link.SIP)         {}
func (mute) Notify(*link.Conn, string, []byte) {}
func (mute) Call(*link.Conn, string, []byte) ([]byte, error) {
	return nil, errors.New("nothing is served here")
}

// fronts are the links to the other controllers' fronts.
type fronts struct {
	mu    sync.Mutex
	conns map[*link.Conn]string // the node at the other end
}

func (s *fronts) put(c *link.Conn, node string, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		s.conns = map[*link.Conn]string{}
	}
	if up {
		s.conns[c] = node
	} else {
		delete(s.conns, c)
	}
}

// tell says something to every other front that is there.
func (s *fronts) tell(method string, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Notify(method, payload) // one that is gone does not hear it
	}
}

// askFronts calls a method on every other front at once and hands each answer to
// got, one at a time. It returns the controllers that did not answer.
func (p *Process) askFronts(ctx context.Context, method string, payload []byte, got func(node string, b []byte) error) (silent []string) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	type answer struct {
		node    string
		payload []byte
		err     error
	}
	p.shown.mu.Lock()
	answers := make(chan answer, len(p.shown.conns))
	asked := len(p.shown.conns)
	for c, node := range p.shown.conns {
		go func() {
			b, err := c.Call(ctx, method, payload)
			answers <- answer{node, b, err}
		}()
	}
	p.shown.mu.Unlock()
	answered := map[string]bool{p.cfg.Node.Name: true}
	for range asked {
		if a := <-answers; a.err == nil && got(a.node, a.payload) == nil {
			answered[a.node] = true
		}
	}
	for _, c := range p.cfg.Cluster.Controllers {
		if !answered[c.Name] {
			silent = append(silent, c.Name)
		}
	}
	return silent
}

// show keeps a link to every other controller, so that each of them sees
// within two seconds whether this node is there, and hears what happened to its
// processes.
func (p *Process) show(ctx context.Context, m *mesh.Mesh) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, c := range p.cfg.Cluster.Controllers {
		if c.Name == p.cfg.Node.Name {
			continue
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				p.showTo(ctx, m, c.Address.String(), c.Name)
				select {
				case <-ctx.Done():
				case <-time.After(redial):
				}
			}
		})
	}
}

func (p *Process) showTo(ctx context.Context, m *mesh.Mesh, addr, node string) {
	nc, err := m.Dial(ctx, addr, node, workerproc.ALPN)
	if err != nil {
		return // the raft transport says more about it
	}
	c := link.New(nc, mute{}, link.Options{})
	stop := context.AfterFunc(ctx, c.Close)
	defer stop()
	hello := workerlink.HelloMsg{Node: p.cfg.Node.Name, Version: p.version, PID: os.Getpid(), Front: true}
	_ = c.Notify(workerlink.Hello, workerlink.Encode(hello)) // Run says if the link is broken
	p.shown.put(c, node, true)
	defer p.shown.put(c, node, false)
	_ = c.Run()
}
