package admin

import (
	"fmt"
	"net/http"
)

// Health serves /metrics, /livez and /readyz, for a loopback listener.
// live and ready return nil, or why not; they are to judge from the data path
// and to answer at once. A node that is not live should be restarted, one
// that is not ready should get no new traffic.
func Health(metrics http.Handler, live, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /livez", verdict(live))
	mux.HandleFunc("GET /readyz", verdict(ready))
	return mux
}

func verdict(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, err)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}
