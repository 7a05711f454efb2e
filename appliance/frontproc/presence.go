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
	conns map[*link.Conn]bool
}

func (s *fronts) put(c *link.Conn, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		s.conns = map[*link.Conn]bool{}
	}
	if up {
		s.conns[c] = true
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
	p.shown.put(c, true)
	defer p.shown.put(c, false)
	_ = c.Run()
}
