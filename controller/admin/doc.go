// Package admin serves the admin API: HTTP and JSON over a Source.
//
// It checks and bounds what comes in, turns results and errors into JSON and
// streams watches. It keeps no state of the cluster and decides nothing; a
// Source does. Who may connect is decided by the mode of the unix socket.
//
// A request body over its limit, malformed JSON and unknown fields are
// refused before the Source sees anything. An error of a Source that is not
// an *api.Error is answered as internal, with its text. A watcher that does
// not read for 10 seconds is cut off.
package admin

import (
	"context"
	"iter"
	"net/netip"

	"bellwether/controller/api"
)

// Source knows and changes the cluster. Its methods may be called at the same
// time; they should return an *api.Error where one of the codes fits.
type Source interface {
	Status(ctx context.Context) (api.Status, error)
	Version(ctx context.Context) (api.Version, error)
	Nodes(ctx context.Context) ([]api.Node, error)
	Workers(ctx context.Context) ([]api.Worker, error)
	Worker(ctx context.Context, id string) (api.Worker, error)
	// Users returns who is registered: at most limit (1 to api.MaxPage) private
	// identities that come after the given one.
	Users(ctx context.Context, after string, limit int) (api.UserPage, error)
	// User returns who is registered under a public identity.
	User(ctx context.Context, identity string) (api.User, error)
	Calls(ctx context.Context) ([]api.Call, error)

	// Subscribers returns at most limit (1 to api.MaxPage) subscribers whose
	// IMPI comes after the given one.
	Subscribers(ctx context.Context, after string, limit int) (api.SubscriberPage, error)
	// Subscriber finds by IMPI or by public identity.
	Subscriber(ctx context.Context, name string) (api.Subscriber, error)
	// AddSubscriber stores s; without replace, one of the same IMPI is a Conflict.
	AddSubscriber(ctx context.Context, s api.NewSubscriber, replace bool) error
	RemoveSubscriber(ctx context.Context, impi string) error
	// ImportSubscribers stores all or none; each one has passed Check and has
	// its Line, and no IMPI or identity comes twice in all.
	ImportSubscribers(ctx context.Context, all []api.NewSubscriber) (api.ImportResult, error)
	// ExportSubscribers returns all, ordered by IMPI, as they are now.
	ExportSubscribers(ctx context.Context) (iter.Seq[api.Subscriber], error)

	// Bans lists what is banned and allowed.
	Bans(ctx context.Context) (api.BanList, error)
	// AddBan stores a ban that has passed Check.
	AddBan(ctx context.Context, b api.NewBan) (api.Ban, error)
	// RemoveBan ends one, given as api.ParsePrefix gives it.
	RemoveBan(ctx context.Context, p netip.Prefix) (api.Unban, error)

	// Reload reads the configuration again and applies what can be applied.
	Reload(ctx context.Context) (api.Reload, error)
	// Watch sends a status event, then one event for each change, until ctx
	// ends (then it returns nil) or send fails (then it returns that error).
	// send blocks while the watcher is slow; changes that meet in the meantime
	// are to be merged, not queued.
	Watch(ctx context.Context, send func(api.Event) error) error
}
