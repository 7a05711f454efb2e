package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// maxAnswer bounds an answer that is read as a whole, in bytes.
const maxAnswer = 64 << 20

// Client calls the admin API of one node. It is safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client of the node whose unix socket is at path.
// It connects when it is first used.
func New(path string) *Client {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	return &Client{
		socket: path,
		http: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", path)
			},
			DisableCompression: true,
			MaxIdleConns:       2,
		}},
	}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns the state of the cluster.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return get[Status](ctx, c, PathStatus, nil)
}

// Version returns what the node runs.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return get[Version](ctx, c, PathVersion, nil)
}

// Nodes returns all nodes, by name.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	return get[[]Node](ctx, c, PathNodes, nil)
}

// Workers returns all workers, by id.
func (c *Client) Workers(ctx context.Context) ([]Worker, error) {
	return get[[]Worker](ctx, c, PathWorkers, nil)
}

// Worker returns one worker.
func (c *Client) Worker(ctx context.Context, id string) (Worker, error) {
	return get[Worker](ctx, c, PathWorker, url.Values{"id": {id}})
}

// User returns a registered user by a public identity.
func (c *Client) User(ctx context.Context, identity string) (User, error) {
	return get[User](ctx, c, PathUser, url.Values{"identity": {identity}})
}

// Users returns who is registered: at most limit private identities that come
// after the given one, with an entry for each public identity that a phone registered.
func (c *Client) Users(ctx context.Context, after string, limit int) (UserPage, error) {
	return get[UserPage](ctx, c, PathUsers, url.Values{"after": {after}, "limit": {strconv.Itoa(limit)}})
}

// Calls returns the calls in progress, oldest first.
func (c *Client) Calls(ctx context.Context) ([]Call, error) {
	return get[[]Call](ctx, c, PathCalls, nil)
}

// Subscribers returns at most limit subscribers whose IMPI comes after the given one.
func (c *Client) Subscribers(ctx context.Context, after string, limit int) (SubscriberPage, error) {
	return get[SubscriberPage](ctx, c, PathSubscribers, url.Values{"after": {after}, "limit": {strconv.Itoa(limit)}})
}

// Subscriber returns a subscriber by IMPI or public identity.
func (c *Client) Subscriber(ctx context.Context, name string) (Subscriber, error) {
	return get[Subscriber](ctx, c, PathSubscriber, url.Values{"impi": {name}})
}

// AddSubscriber stores a subscriber. Without replace, one of the same IMPI is a Conflict.
func (c *Client) AddSubscriber(ctx context.Context, s NewSubscriber, replace bool) error {
	body, err := json.Marshal(reveal(s))
	if err != nil {
		return fmt.Errorf("encode subscriber: %w", err)
	}
	q := url.Values{"impi": {s.IMPI}, "replace": {strconv.FormatBool(replace)}}
	resp, err := c.call(ctx, http.MethodPut, PathSubscriber, q, bytes.NewReader(body))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// revealed is a NewSubscriber as it is sent: its secrets are not hidden.
type revealed struct {
	NewSubscriber
	HA1 secrets `json:"ha1"`
	AKA *keys   `json:"aka,omitempty"`
}

// secrets are Credentials, and keys AKA, without the methods that hide them.
type (
	secrets Credentials
	keys    AKA
)

func reveal(s NewSubscriber) revealed { return revealed{s, secrets(s.HA1), (*keys)(s.AKA)} }

// RemoveSubscriber deletes a subscriber.
func (c *Client) RemoveSubscriber(ctx context.Context, impi string) error {
	resp, err := c.call(ctx, http.MethodDelete, PathSubscriber, url.Values{"impi": {impi}}, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ImportSubscribers stores all of them or, if one is refused, none.
// Those whose IMPI exists are replaced.
func (c *Client) ImportSubscribers(ctx context.Context, all []NewSubscriber) (ImportResult, error) {
	body, w := io.Pipe()
	go func() {
		enc := json.NewEncoder(w)
		for _, s := range all {
			if err := enc.Encode(reveal(s)); err != nil {
				break // the reader is gone, and says why
			}
		}
		w.Close()
	}()
	defer body.Close()
	resp, err := c.call(ctx, http.MethodPost, PathImport, nil, body)
	if err != nil {
		return ImportResult{}, err
	}
	return decode[ImportResult](resp)
}

// ExportSubscribers calls fn for every subscriber, ordered by IMPI, as they were at one moment.
func (c *Client) ExportSubscribers(ctx context.Context, fn func(Subscriber) error) error {
	return stream(ctx, c, PathExport, fn)
}

// Bans returns what is banned and allowed.
func (c *Client) Bans(ctx context.Context) (BanList, error) {
	return get[BanList](ctx, c, PathBans, nil)
}

// AddBan stores a ban or an allowance and returns it.
func (c *Client) AddBan(ctx context.Context, b NewBan) (Ban, error) {
	body, err := json.Marshal(b)
	if err != nil {
		return Ban{}, fmt.Errorf("encode ban: %w", err)
	}
	resp, err := c.call(ctx, http.MethodPut, PathBans, nil, bytes.NewReader(body))
	if err != nil {
		return Ban{}, err
	}
	return decode[Ban](resp)
}

// RemoveBan ends the ban or the allowance of exactly that prefix, and what nodes
// banned within it by themselves.
func (c *Client) RemoveBan(ctx context.Context, p netip.Prefix) (Unban, error) {
	resp, err := c.call(ctx, http.MethodDelete, PathBans, url.Values{"prefix": {p.String()}}, nil)
	if err != nil {
		return Unban{}, err
	}
	return decode[Unban](resp)
}

// Reload makes the node read its configuration again.
func (c *Client) Reload(ctx context.Context) (Reload, error) {
	resp, err := c.call(ctx, http.MethodPost, PathReload, nil, nil)
	if err != nil {
		return Reload{}, err
	}
	return decode[Reload](resp)
}

// Watch calls fn for every event until ctx ends, fn fails or the node goes away.
func (c *Client) Watch(ctx context.Context, fn func(Event) error) error {
	return stream(ctx, c, PathWatch, fn)
}

func get[T any](ctx context.Context, c *Client, path string, q url.Values) (T, error) {
	resp, err := c.call(ctx, http.MethodGet, path, q, nil)
	if err != nil {
		var none T
		return none, err
	}
	return decode[T](resp)
}

func decode[T any](resp *http.Response) (T, error) {
	defer resp.Body.Close()
	var v T
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&v); err != nil {
		return v, fmt.Errorf("read the node's answer: %w", err)
	}
	return v, nil
}

func stream[T any](ctx context.Context, c *Client, path string, fn func(T) error) error {
	resp, err := c.call(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			return fmt.Errorf("read the node's answer: %w", err)
		}
		if err := fn(v); err != nil {
			return err
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case lines.Err() != nil:
		return &Error{Code: Unreachable, Message: "the connection to the node broke", WhatToDo: "see whether it still runs, then try again"}
	}
	return nil
}

// call sends a request and returns its response if the status is 2xx.
func (c *Client) call(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "node", Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("ask the node: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	var e Error
	if json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&e) != nil || e.Code == "" {
		return nil, Errorf(Internal, "the node answered %s", resp.Status).Advise("see whether " + c.socket + " is the socket of a bellwether node")
	}
	return nil, &e
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ask the node: %w", ctx.Err())
	}
	e := &Error{Code: Unreachable, WhatToDo: "start it with bellwether node -c FILE, or name its socket with --socket"}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Message = "no node runs here: there is no " + c.socket
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Message = "no node runs here: nobody answers at " + c.socket
	case errors.Is(err, fs.ErrPermission):
		e.Message = "you may not use " + c.socket
		e.WhatToDo = "run this as " + allowed(c.socket)
	default:
		e.Message = fmt.Sprintf("the node does not answer at %s: %v", c.socket, errors.Unwrap(err))
		e.WhatToDo = "see whether it still runs, then try again"
	}
	return e
}

// allowed says who may use a socket that the caller may not use.
func allowed(socket string) string {
	const write, enter = 0o020, 0o010
	info, err := os.Stat(socket)
	need := fs.FileMode(write)
	if err != nil { // then its directory is what keeps us out
		info, err = os.Stat(filepath.Dir(socket))
		need = enter
	}
	if err != nil {
		return "root"
	}
	owner := info.Sys().(*syscall.Stat_t)
	return users(owner.Uid, owner.Gid, info.Mode()&need != 0)
}

// users names those who may use what belongs to a user and a group.
func users(uid, gid uint32, group bool) string {
	who := "root"
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil && uid != 0 {
		who += ", as " + u.Username
	}
	if g, err := user.LookupGroupId(strconv.FormatUint(uint64(gid), 10)); err == nil && gid != 0 && group {
		who += ", or as a member of the group " + g.Name
	}
	return who
}
