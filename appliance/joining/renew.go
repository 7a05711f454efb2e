package joining

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"bellwether/appliance/pki"
	"bellwether/controller/mesh"
)

const (
	renewPart     = 50 // after a failure it is tried again in this part of the lifetime, but
	renewAtLeast  = time.Second
	renewAtMost   = 10 * time.Minute
	lookAtLeast   = 100 * time.Millisecond
	lookAtMost    = time.Hour // a clock may be set, a file changed by hand
	renewDeadline = 10 * time.Second
)

// ErrNoFounder means that there was nobody to renew a certificate.
var ErrNoFounder = errors.New("no controller that answers holds the certificate authority")

// Renewer keeps a node's certificate good.
type Renewer struct {
	Dir       string // the node's pki folder
	CADir     string // where the CA is, on the founder
	Node      string
	Addresses []netip.Addr // informative
	Others    []Member     // the controllers that may be the founder
	Dial      func(ctx context.Context, addr, node, alpn string) (net.Conn, error)
	Log       *slog.Logger

	mu   sync.Mutex
	last error // of the last attempt
}

// Founder reports whether a directory holds the CA.
func Founder(caDir string) bool {
	_, err := os.Stat(filepath.Join(caDir, pki.CAKeyFile))
	return err == nil
}

// Renew gets a new key certified and puts both into the node's folder: by the
// CA that is here, or by the controller that has it.
func (r *Renewer) Renew(ctx context.Context) (pki.Certificate, error) {
	err := r.renew(ctx)
	r.mu.Lock()
	r.last = err
	r.mu.Unlock()
	if err != nil {
		return pki.Certificate{}, fmt.Errorf("renew the certificate of node %s: %w", r.Node, err)
	}
	return pki.ReadNode(r.Dir)
}

func (r *Renewer) renew(ctx context.Context) error {
	csr, err := pki.NewRequest(r.Node)
	if err != nil {
		return err
	}
	ca, err := pki.LoadCA(r.CADir)
	if err == nil {
		cert, err := ca.Certify(csr.DER, r.Node, pki.Controller, r.Addresses)
		if err != nil {
			return err
		}
		return replace(csr, ca.CertPEM(), cert, r.Dir)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewDeadline)
	defer cancel()
	var why []string
	for _, m := range r.Others {
		rep, err := r.ask(ctx, m, csr.DER)
		if err == nil {
			return replace(csr, rep.CA, rep.Cert, r.Dir)
		}
		why = append(why, m.Name+" "+unwilling(err))
	}
	if len(why) == 0 {
		return fmt.Errorf("there is no other controller that could have the certificate authority, and %s is not there", r.CADir)
	}
	return fmt.Errorf("%w (%s); start the one where bellwether cluster init was run, or put a copy of its folder ca at %s", ErrNoFounder, strings.Join(why, ", "), r.CADir)
}

// unwilling says in a few words why a controller renewed nothing.
func unwilling(err error) string {
	var refusal *Refusal
	switch {
	case errors.As(err, &refusal):
		return "says: " + refusal.Text
	case errors.Is(err, mesh.ErrNotServed):
		return "does not hold it"
	case errors.Is(err, mesh.ErrRefused):
		return "refuses the connection, see its log"
	}
	return "does not answer"
}

func (r *Renewer) ask(ctx context.Context, m Member, csr []byte) (reply, error) {
	c, err := r.Dial(ctx, m.Addr, m.Name, Protocol)
	if err != nil {
		return reply{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	return ask(c, request{Ask: askRenew, CSR: csr})
}

func replace(csr *pki.Request, ca, cert []byte, dir string) error {
	b, err := csr.Bundle(ca, cert)
	if err != nil {
		return err
	}
	return b.Replace(dir)
}

// Run renews the certificate each time that two thirds of its lifetime are
// over, until ctx ends.
func (r *Renewer) Run(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		c, err := pki.ReadNode(r.Dir)
		pause := renewAtLeast
		if err == nil {
			pause = min(max(time.Until(c.RenewAt()), lookAtLeast), lookAtMost)
			if c.Due(time.Now()) {
				next, renewErr := r.Renew(ctx)
				if err = renewErr; err == nil {
					r.Log.Info("the certificate is renewed", "until", next.NotAfter.UTC())
					said = ""
					continue
				}
				pause = min(max(c.NotAfter.Sub(c.NotBefore)/renewPart, renewAtLeast), renewAtMost)
			}
		}
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			r.Log.Warn("the certificate is not renewed", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// Status is what the certificate says, and why the last attempt to renew it
// failed.
func (r *Renewer) Status() (c pki.Certificate, last, err error) {
	r.mu.Lock()
	last = r.last
	r.mu.Unlock()
	c, err = pki.ReadNode(r.Dir)
	return c, last, err
}

// RenewHere renews, where the CA is, a certificate that has run out while the
// node was off, or was made while its clock was ahead. What cannot be renewed is left as it is: loading it says more.
func RenewHere(dir, caDir, node string, addr netip.Addr) {
	c, err := pki.ReadNode(dir)
	if err != nil || c.Node != node || !c.Due(time.Now()) || !Founder(caDir) {
		return
	}
	r := &Renewer{Dir: dir, CADir: caDir, Node: node, Addresses: []netip.Addr{addr}}
	_, _ = r.Renew(context.Background())
}
