package consensus

import (
	"fmt"
	"net"
	"sync"

	"bellwether/controller/mesh"
)

// door is the listener of Raft's protocol. Until it is opened, the port takes
// no connections of that protocol: Raft must not hear of votes and entries.
type door struct {
	mesh   *mesh.Mesh
	opened chan struct{}
	closed chan struct{}

	mu sync.Mutex
	l  net.Listener // nil until it is open
}

func newDoor(m *mesh.Mesh) *door {
	return &door{mesh: m, opened: make(chan struct{}), closed: make(chan struct{})}
}

func (d *door) open() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.l != nil || d.isClosed() {
		return
	}
	d.l = d.mesh.Handle(RaftProtocol)
	close(d.opened)
}

func (d *door) isClosed() bool {
	select {
	case <-d.closed:
		return true
	default:
		return false
	}
}

func (d *door) Accept() (net.Conn, error) {
	select {
	case <-d.opened:
		return d.l.Accept()
	case <-d.closed:
		return nil, fmt.Errorf("accept %s: %w", RaftProtocol, mesh.ErrClosed)
	}
}

func (d *door) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isClosed() {
		return nil
	}
	close(d.closed)
	if d.l != nil {
		return d.l.Close()
	}
	return nil
}

// Addr is not used: see streams.Addr.
func (d *door) Addr() net.Addr { return d.mesh.Addr() }
