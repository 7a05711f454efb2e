package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"bellwether/controller/api"
)

const (
	maxBody       = 64 << 10
	maxWatchers   = 64
	watchDeadline = 10 * time.Second
)

// Handler serves the API from src.
func Handler(src Source) http.Handler {
	h := &handler{src: src, mux: http.NewServeMux(), watchers: make(chan struct{}, maxWatchers)}
	h.get(api.PathStatus, func(r *http.Request) (any, error) { return src.Status(r.Context()) })
	h.get(api.PathVersion, func(r *http.Request) (any, error) { return src.Version(r.Context()) })
	h.get(api.PathNodes, func(r *http.Request) (any, error) { return listed(src.Nodes(r.Context())) })
	h.get(api.PathWorkers, func(r *http.Request) (any, error) { return listed(src.Workers(r.Context())) })
	h.get(api.PathCalls, func(r *http.Request) (any, error) { return listed(src.Calls(r.Context())) })
	h.get(api.PathWorker, named("id", func(r *http.Request, id string) (any, error) { return src.Worker(r.Context(), id) }))
	h.get(api.PathUser, named("identity", func(r *http.Request, id string) (any, error) { return src.User(r.Context(), id) }))
	h.get(api.PathSubscriber, named("impi", func(r *http.Request, id string) (any, error) { return src.Subscriber(r.Context(), id) }))
	h.get(api.PathUsers, paged(func(r *http.Request, after string, limit int) (any, error) {
		page, err := src.Users(r.Context(), after, limit)
		if page.Users == nil {
			page.Users = []api.Registration{}
		}
		return page, err
	}))
	h.get(api.PathSubscribers, paged(func(r *http.Request, after string, limit int) (any, error) {
		page, err := src.Subscribers(r.Context(), after, limit)
		if page.Subscribers == nil {
			page.Subscribers = []api.Subscriber{}
		}
		return page, err
	}))
	h.answer("PUT "+api.PathSubscriber, named("impi", h.addSubscriber))
	h.answer("DELETE "+api.PathSubscriber, named("impi", func(r *http.Request, impi string) (any, error) {
		return struct{}{}, src.RemoveSubscriber(r.Context(), impi)
	}))
	h.get(api.PathBans, func(r *http.Request) (any, error) {
		list, err := src.Bans(r.Context())
		list.Bans, list.Silent = notNil(list.Bans), notNil(list.Silent)
		return list, err
	})
	h.answer("PUT "+api.PathBans, h.addBan)
	h.answer("DELETE "+api.PathBans, named("prefix", func(r *http.Request, text string) (any, error) {
		p, err := api.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		return src.RemoveBan(r.Context(), p)
	}))
	h.answer("POST "+api.PathReload, func(r *http.Request) (any, error) { return src.Reload(r.Context()) })
	h.answer("POST "+api.PathImport, h.importSubscribers)
	h.mux.HandleFunc("GET "+api.PathExport, h.exportSubscribers)
	h.mux.HandleFunc("GET "+api.PathWatch, h.watch)
	return h
}

type handler struct {
	src      Source
	mux      *http.ServeMux
	watchers chan struct{} // holds one token for each watch
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, pattern := h.mux.Handler(r); pattern == "" {
		fail(w, api.Errorf(api.Unsupported, "the API has no %s %q", r.Method, r.URL.Path).Advise("see whether client and node are of the same version"))
		return
	}
	h.mux.ServeHTTP(w, r)
}

func (h *handler) get(path string, f func(*http.Request) (any, error)) { h.answer("GET "+path, f) }

// answer serves what f returns.
func (h *handler) answer(pattern string, f func(*http.Request) (any, error)) {
	h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v) // a client that went away needs no answer
	})
}

// listed makes an empty list [] in JSON, not null.
func listed[T any](list []T, err error) (any, error) { return notNil(list), err }

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// named passes a query value that must not be empty.
func named(key string, f func(*http.Request, string) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		v := r.URL.Query().Get(key)
		if v == "" {
			return nil, api.Errorf(api.Invalid, "%s has no %s", r.URL.Path, key).Advise("give it as ?" + key + "=")
		}
		return f(r, v)
	}
}

// paged passes where a page begins and how much it may hold.
func paged(f func(r *http.Request, after string, limit int) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		limit := 100
		if s := r.URL.Query().Get("limit"); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > api.MaxPage {
				return nil, api.Errorf(api.Invalid, "the limit %q is out of range", s).Advise(fmt.Sprintf("write a number from 1 to %d", api.MaxPage))
			}
			limit = n
		}
		return f(r, r.URL.Query().Get("after"), limit)
	}
}

func (h *handler) addSubscriber(r *http.Request, impi string) (any, error) {
	replace := false
	if s := r.URL.Query().Get("replace"); s != "" {
		var err error
		if replace, err = strconv.ParseBool(s); err != nil {
			return nil, api.Errorf(api.Invalid, "replace is %q", s).Advise("write true or false")
		}
	}
	var s api.NewSubscriber
	dec := decoder(r, maxBody)
	if err := dec.Decode(&s); err != nil {
		return nil, malformed(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, malformed(errors.New("something follows the subscriber"))
	}
	if s.IMPI != impi {
		return nil, api.Errorf(api.Invalid, "the body names %q, the address %q", s.IMPI, impi).Advise("write the same IMPI in both")
	}
	if err := s.Check(); err != nil {
		return nil, err
	}
	return struct{}{}, h.src.AddSubscriber(r.Context(), s, replace)
}

func (h *handler) addBan(r *http.Request) (any, error) {
	var b api.NewBan
	dec := decoder(r, maxBody)
	if err := dec.Decode(&b); err != nil {
		return nil, malformed(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, malformed(errors.New("something follows the ban"))
	}
	if err := b.Check(); err != nil {
		return nil, err
	}
	return h.src.AddBan(r.Context(), b)
}

func (h *handler) importSubscribers(r *http.Request) (any, error) {
	var all []api.NewSubscriber
	first := map[string]int{} // line of each IMPI and identity
	dec := decoder(r, api.MaxImportBytes)
	for {
		s := api.NewSubscriber{Line: len(all) + 1}
		err := dec.Decode(&s)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, malformed(err)
		}
		if len(all) == api.MaxImport {
			return nil, api.Errorf(api.TooLarge, "there are more than %d subscribers", api.MaxImport).Advise("import them in parts")
		}
		if err := s.Check(); err != nil {
			return nil, atLine(s.Line, err)
		}
		for _, name := range names(s) {
			if line, twice := first[name]; twice {
				return nil, api.Errorf(api.Invalid, "%s is on line %d already", name, line).Advise("give it once").OnLine(s.Line)
			}
			first[name] = s.Line
		}
		all = append(all, s)
	}
	return h.src.ImportSubscribers(r.Context(), all)
}

// names are what may not come twice in one import.
func names(s api.NewSubscriber) []string {
	all := []string{"IMPI " + s.IMPI}
	for _, id := range s.Identities {
		all = append(all, id.URI)
	}
	return all
}

// atLine says in which line of the import an error is.
func atLine(line int, err error) error {
	var e *api.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("line %d: %w", line, err)
	}
	return e.OnLine(line)
}

func (h *handler) exportSubscribers(w http.ResponseWriter, r *http.Request) {
	all, err := h.src.ExportSubscribers(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	for s := range all {
		if enc.Encode(s) != nil {
			return // the client went away
		}
	}
}

func (h *handler) watch(w http.ResponseWriter, r *http.Request) {
	select {
	case h.watchers <- struct{}{}:
		defer func() { <-h.watchers }()
	default:
		fail(w, api.Errorf(api.Unavailable, "%d watches run already", maxWatchers).Advise("end one of them"))
		return
	}
	begun := false
	control := http.NewResponseController(w)
	enc := json.NewEncoder(w)
	err := h.src.Watch(r.Context(), func(e api.Event) error {
		if !begun {
			w.Header().Set("Content-Type", "application/x-ndjson")
			begun = true
		}
		// Without deadlines (a recorder in a test) a slow reader just waits.
		if err := control.SetWriteDeadline(time.Now().Add(watchDeadline)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		if err := enc.Encode(e); err != nil {
			return err
		}
		return control.Flush()
	})
	switch {
	case err == nil || r.Context().Err() != nil:
	case !begun:
		fail(w, err)
	default:
		panic(http.ErrAbortHandler) // the only way to tell the client that the stream is not complete
	}
}

func decoder(r *http.Request, limit int64) *json.Decoder {
	dec := json.NewDecoder(http.MaxBytesReader(nil, r.Body, limit))
	dec.DisallowUnknownFields()
	return dec
}

func malformed(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return api.Errorf(api.TooLarge, "the request has more than %d bytes", large.Limit).Advise("send it in parts")
	}
	// The decoder names offsets, fields and types, never the values of strings.
	return api.Errorf(api.Invalid, "the request is malformed: %v", err).Advise("see whether client and node are of the same version")
}

var statuses = map[api.Code]int{
	api.NotFound:    http.StatusNotFound,
	api.Unsupported: http.StatusNotFound,
	api.Invalid:     http.StatusBadRequest,
	api.Conflict:    http.StatusConflict,
	api.TooLarge:    http.StatusRequestEntityTooLarge,
	api.NoLeader:    http.StatusServiceUnavailable,
	api.Unavailable: http.StatusServiceUnavailable,
	api.Internal:    http.StatusInternalServerError,
}

func fail(w http.ResponseWriter, err error) {
	var e *api.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, context.DeadlineExceeded):
		e = api.Errorf(api.Unavailable, "the cluster did not answer in time").Advise("try again, and look at bellwether status")
	default:
		e = api.Errorf(api.Internal, "%v", err)
	}
	status, known := statuses[e.Code]
	if !known {
		status = http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(e) // a client that went away needs no answer
}
