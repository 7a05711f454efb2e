package localcluster

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bellwether/controller/api"
)

// stopLimit is how long a node may take to stop before it is killed.
const stopLimit = 15 * time.Second

// Node is one node of a local cluster.
type Node struct {
	NodeSpec
	Admin *api.Client

	spec Spec
	dir  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Files and addresses of the node.
func (n *Node) ConfigFile() string { return filepath.Join(n.dir, "bellwether.yaml") }
func (n *Node) DataDir() string    { return filepath.Join(n.dir, "data") }
func (n *Node) RunDir() string     { return filepath.Join(n.dir, "run") }
func (n *Node) LogFile() string    { return filepath.Join(n.dir, "node.log") }
func (n *Node) P() netip.AddrPort  { return netip.AddrPortFrom(n.Address, n.spec.PortP) }
func (n *Node) P6() netip.AddrPort { return netip.AddrPortFrom(n.Address6, n.spec.PortP) }
func (n *Node) HTTP() string {
	return "http://" + netip.AddrPortFrom(n.Address, n.spec.PortHTTP).String()
}
func (n *Node) AdminSocket() string { return filepath.Join(n.RunDir(), "admin.sock") }

var kinds = map[byte]string{'p': "p-cscf", 'i': "i-cscf", 's': "s-cscf"}

// config is the node's configuration file.
func (n *Node) config() string {
	var b strings.Builder
	isolation := n.spec.Isolation
	if isolation == "" {
		isolation = "process"
	}
	fmt.Fprintf(&b, "node:\n  name: %s\n  data_dir: %q\n  run_dir: %q\n  isolation: %s\n", n.Name, n.DataDir(), n.RunDir(), isolation)
	ip := func(a netip.Addr) string {
		if a.Is6() {
			return strconv.Quote(a.String()) // YAML reads colons and brackets
		}
		return a.String()
	}
	at := func(a netip.Addr, port uint16) string {
		s := netip.AddrPortFrom(a, port).String()
		if a.Is6() {
			s = strconv.Quote(s)
		}
		return s
	}
	fmt.Fprintf(&b, "cluster:\n  address: %s\n  controllers:\n", at(n.Address, n.spec.PortNode))
	for _, m := range n.spec.Nodes {
		fmt.Fprintf(&b, "    - {name: %s, address: %s}\n", m.Name, at(m.Address, n.spec.PortNode))
	}
	fmt.Fprintf(&b, "sip:\n  domain: %s\n  address: %s\n  p_cscf: %d\n  i_cscf: %d\n  s_cscf: %d\n", n.spec.Domain, ip(n.Address), n.spec.PortP, n.spec.PortI, n.spec.PortS)
	if n.Address6.IsValid() {
		fmt.Fprintf(&b, "  address6: %s\n", ip(n.Address6))
	}
	for _, line := range n.spec.SIP {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	var workers []string
	for _, w := range n.Workers {
		workers = append(workers, fmt.Sprintf("{id: %s, kind: %s}", w, kinds[w[0]]))
	}
	// An empty list is not the same as none, which means one worker of each kind.
	fmt.Fprintf(&b, "workers: [%s]\n", strings.Join(workers, ", "))
	fmt.Fprintf(&b, "metrics:\n  listen: %s\n", at(n.Address, n.spec.PortHTTP))
	if len(n.spec.Flood) > 0 {
		fmt.Fprintf(&b, "flood:\n  %s\n", strings.Join(n.spec.Flood, "\n  "))
	}
	return b.String()
}

// Start starts the node's process, which must not run.
func (n *Node) Start() error {
	if n.running() {
		return fmt.Errorf("start node %s: it runs", n.Name)
	}
	log, err := os.OpenFile(n.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start node %s: %w", n.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(n.spec.Binary, "node", "-c", n.ConfigFile())
	cmd.Stdout, cmd.Stderr = log, log
	// A process group of its own, so that an interrupt at the terminal ends
	// the demo in order and not the nodes under it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !n.spec.Detached {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	}
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The kernel ties the death signal to the thread that starts the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
		close(done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start node %s: %w", n.Name, err)
	}
	n.cmd, n.done = cmd, done
	return nil
}

func (n *Node) running() bool {
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.done:
		return false
	default:
		return true
	}
}

func (n *Node) terminate() {
	if n.running() {
		_ = n.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by now
	}
}

// Stop ends the node in order.
func (n *Node) Stop() error {
	if !n.running() {
		return nil
	}
	n.terminate()
	select {
	case <-n.done:
		return nil
	case <-time.After(stopLimit):
		n.Kill()
		return fmt.Errorf("stop node %s: it did not end within %v and was killed", n.Name, stopLimit)
	}
}

// Kill ends every process of the node at once, as a power cut would.
func (n *Node) Kill() {
	if n.running() {
		_ = syscall.Kill(-n.cmd.Process.Pid, syscall.SIGKILL) // it may have ended by now
		<-n.done
	}
}

// PID is the process id of the node's supervisor.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// LogTail is the end of the node's log.
func (n *Node) LogTail(lines int) string {
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// readyz asks the node whether SIP through it is answered.
func (n *Node) readyz(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.HTTP()+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz says %s", resp.Status)
	}
	return nil
}
