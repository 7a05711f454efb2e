package consensus

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// streams carries raft over the mesh.
type streams struct {
	net.Listener
	c    *Controller
	self raft.ServerAddress
}

func (c *Controller) newStreams() *streams {
	self, _ := c.member(c.cfg.Node)
	return &streams{Listener: c.door, c: c, self: raft.ServerAddress(self.Addr)}
}

// address is a member's address as net.Addr.
type address raft.ServerAddress

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// Addr is the configured address, which others can reach even if the mesh
// listens on every address.
func (s *streams) Addr() net.Addr { return address(s.self) }

// ServerAddr gives the configured address, where the log may hold an old one.
func (s *streams) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	m, ok := s.c.member(string(id))
	if !ok {
		return "", fmt.Errorf("node %s is not one of the controllers", id)
	}
	return raft.ServerAddress(m.Addr), nil
}

// Dial implements raft.StreamLayer.
func (s *streams) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.c.ctx, timeout)
	defer cancel()
	for _, m := range s.c.members {
		if m.Addr == string(addr) {
			return s.c.cfg.Mesh.Dial(ctx, m.Addr, m.Name, RaftProtocol)
		}
	}
	return nil, fmt.Errorf("%s is not the address of a controller", addr)
}
