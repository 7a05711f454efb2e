// Package admintest has a Source of the admin API that lives in memory, for
// tests of what stands before it: the handler, the command line, the screens.
//
// It follows the Source's contract for subscribers; nodes, workers, users and
// calls are what the test puts in. It is no cluster and keeps no secrets: it
// stores only for which algorithms there is one.
package admintest

import (
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"bellwether/controller/api"
)

// Source is an admin.Source. The zero value is an empty cluster.
type Source struct {
	// Set before use.
	State      api.Status // its Subscribers, Users and Calls are counted
	Registered []api.User // ordered by IMPI
	CallList   []api.Call
	Reloaded   api.Reload
	Release    api.Version
	Banned     []api.Ban // changes with AddBan and RemoveBan
	Silent     []string
	Err        error                           // if set, every method fails with it
	Stored     func(s api.NewSubscriber)       // sees each stored subscriber, if set
	WatchFrom  func(send func(api.Event) bool) // sends events after the first, if set

	mu          sync.Mutex
	subscribers map[string]api.Subscriber
}

// Status counts what is there.
func (s *Source) Status(context.Context) (api.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.State
	st.Subscribers, st.Users, st.Calls = len(s.subscribers), len(s.Registered), len(s.CallList)
	return st, s.Err
}

// Version returns Release.
func (s *Source) Version(context.Context) (api.Version, error) { return s.Release, s.Err }

// Nodes returns those of State.
func (s *Source) Nodes(context.Context) ([]api.Node, error) { return s.State.Nodes, s.Err }

// Workers returns those of State.
func (s *Source) Workers(context.Context) ([]api.Worker, error) { return s.State.Workers, s.Err }

// Calls returns CallList.
func (s *Source) Calls(context.Context) ([]api.Call, error) { return s.CallList, s.Err }

// Worker finds in State.
func (s *Source) Worker(_ context.Context, id string) (api.Worker, error) {
	for _, w := range s.State.Workers {
		if w.ID == id {
			return w, s.Err
		}
	}
	return api.Worker{}, s.or(api.Errorf(api.NotFound, "there is no worker %q", id).Advise("see bellwether worker list"))
}

// Users pages by IMPI.
func (s *Source) Users(_ context.Context, after string, limit int) (api.UserPage, error) {
	var page api.UserPage
	for _, u := range s.Registered {
		if u.IMPI <= after {
			continue
		}
		if len(page.Users) == limit {
			page.Next = page.Users[limit-1].IMPI
			break
		}
		page.Users = append(page.Users, api.Registration{Identity: u.Identity, IMPI: u.IMPI, PCSCF: u.PCSCF, SCSCF: u.SCSCF})
	}
	return page, s.Err
}

// User finds by any identity of the implicit set.
func (s *Source) User(_ context.Context, identity string) (api.User, error) {
	for _, u := range s.Registered {
		if u.Identity == identity || slices.Contains(u.Identities, identity) {
			return u, s.Err
		}
	}
	return api.User{}, s.or(api.Errorf(api.NotFound, "%s is not registered", identity))
}

// or returns Err if it is set, else err.
func (s *Source) or(err error) error {
	if s.Err != nil {
		return s.Err
	}
	return err
}

// Subscribers pages by IMPI.
func (s *Source) Subscribers(_ context.Context, after string, limit int) (api.SubscriberPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var page api.SubscriberPage
	for _, impi := range slices.Sorted(maps.Keys(s.subscribers)) {
		if impi <= after {
			continue
		}
		if len(page.Subscribers) == limit {
			page.Next = page.Subscribers[limit-1].IMPI
			break
		}
		page.Subscribers = append(page.Subscribers, s.subscribers[impi])
	}
	return page, s.Err
}

// Subscriber finds by IMPI or identity.
func (s *Source) Subscriber(_ context.Context, name string) (api.Subscriber, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub, ok := s.subscribers[name]; ok {
		return sub, s.Err
	}
	if impi, ok := s.owner(name); ok {
		return s.subscribers[impi], s.Err
	}
	return api.Subscriber{}, s.or(api.Errorf(api.NotFound, "there is no subscriber %s", name).Advise("see bellwether subscriber list"))
}

func (s *Source) owner(uri string) (impi string, ok bool) {
	for impi, sub := range s.subscribers {
		for _, id := range sub.Identities {
			if id.URI == uri {
				return impi, true
			}
		}
	}
	return "", false
}

// AddSubscriber stores one.
func (s *Source) AddSubscriber(_ context.Context, sub api.NewSubscriber, replace bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, exists := s.subscribers[sub.IMPI]; exists && !replace {
		return s.or(api.Errorf(api.Conflict, "%s exists already", sub.IMPI).Advise("give --replace to overwrite it"))
	}
	if err := s.or(s.taken(sub)); err != nil {
		return err
	}
	s.store(sub)
	return nil
}

func (s *Source) taken(sub api.NewSubscriber) error {
	for _, id := range sub.Identities {
		if impi, ok := s.owner(id.URI); ok && impi != sub.IMPI {
			return api.Errorf(api.Conflict, "%s belongs to %s", id.URI, impi).Advise("give each public identity to one subscriber")
		}
	}
	return nil
}

func (s *Source) store(sub api.NewSubscriber) {
	if s.subscribers == nil {
		s.subscribers = map[string]api.Subscriber{}
	}
	kept := api.Subscriber{IMPI: sub.IMPI, Realm: sub.Realm, Identities: sub.Identities}
	if sub.HA1.MD5 != "" {
		kept.Algorithms = append(kept.Algorithms, "MD5")
	}
	if sub.HA1.SHA256 != "" {
		kept.Algorithms = append(kept.Algorithms, "SHA-256")
	}
	if sub.AKA != nil {
		kept.AKA = &api.StoredAKA{AMF: sub.AKA.AMF}
	}
	s.subscribers[sub.IMPI] = kept
	if s.Stored != nil {
		s.Stored(sub)
	}
}

// RemoveSubscriber deletes one.
func (s *Source) RemoveSubscriber(_ context.Context, impi string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.subscribers[impi]; !ok {
		return s.or(api.Errorf(api.NotFound, "there is no subscriber %s", impi).Advise("see bellwether subscriber list"))
	}
	delete(s.subscribers, impi)
	return s.Err
}

// ImportSubscribers stores all or none.
func (s *Source) ImportSubscribers(_ context.Context, all []api.NewSubscriber) (api.ImportResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var res api.ImportResult
	if s.Err != nil {
		return res, s.Err
	}
	for _, sub := range all {
		if err := s.taken(sub); err != nil {
			return res, err.(*api.Error).OnLine(sub.Line)
		}
	}
	for _, sub := range all {
		if _, exists := s.subscribers[sub.IMPI]; exists {
			res.Replaced++
		} else {
			res.Added++
		}
		s.store(sub)
	}
	return res, nil
}

// ExportSubscribers returns all as they are now.
func (s *Source) ExportSubscribers(context.Context) (iter.Seq[api.Subscriber], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []api.Subscriber
	for _, impi := range slices.Sorted(maps.Keys(s.subscribers)) {
		all = append(all, s.subscribers[impi])
	}
	return slices.Values(all), s.Err
}

// Bans lists Banned.
func (s *Source) Bans(context.Context) (api.BanList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return api.BanList{Bans: slices.Clone(s.Banned), Silent: s.Silent}, s.Err
}

// AddBan adds to Banned.
func (s *Source) AddBan(_ context.Context, b api.NewBan) (api.Ban, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Prefix.Bits() == 0 && !b.Allow && !b.Force {
		return api.Ban{}, s.or(api.Errorf(api.Conflict, "%s is everybody", b.Prefix))
	}
	out := api.Ban{Prefix: b.Prefix, Allow: b.Allow, Reason: b.Reason, Since: time.Now()}
	if b.Seconds > 0 {
		out.Until = out.Since.Add(time.Duration(b.Seconds) * time.Second)
	}
	s.Banned = append(s.Banned, out)
	return out, s.Err
}

// RemoveBan removes from Banned.
func (s *Source) RemoveBan(_ context.Context, p netip.Prefix) (api.Unban, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := api.Unban{Prefix: p}
	s.Banned = slices.DeleteFunc(s.Banned, func(b api.Ban) bool {
		if b.Prefix != p {
			return false
		}
		if b.Automatic {
			out.Automatic++
		} else {
			out.Removed = true
		}
		return true
	})
	if !out.Removed && out.Automatic == 0 {
		return out, s.or(api.Errorf(api.NotFound, "%s is neither banned nor allowed", p))
	}
	return out, s.Err
}

// Reload returns Reloaded.
func (s *Source) Reload(context.Context) (api.Reload, error) { return s.Reloaded, s.Err }

// Watch sends the status, then what WatchFrom sends, then waits for ctx.
func (s *Source) Watch(ctx context.Context, send func(api.Event) error) error {
	st, err := s.Status(ctx)
	if err != nil {
		return err
	}
	if err := send(api.Event{Type: "status", Time: time.Now(), Status: &st}); err != nil {
		return err
	}
	if s.WatchFrom != nil {
		var failed error
		s.WatchFrom(func(e api.Event) bool {
			failed = send(e)
			return failed == nil && ctx.Err() == nil
		})
		return failed
	}
	<-ctx.Done()
	return nil
}
