// Package control lets root tell a running daemon what to do, over the unix socket that serves its status: the routes of the
// daemon's side, and the calls of the client's. It decides nothing.
package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"vtepd/daemon/config"
	"vtepd/daemon/status"
)

// Daemon is who is told.
type Daemon interface {
	Confirm(ctx context.Context) error
	Rollback(ctx context.Context, to *uint64, allowDisruptive bool) error
	Apply(ctx context.Context, srcs []config.Source, confirm time.Duration, allowDisruptive bool) error
}

// maxBody bounds what Apply takes.
const maxBody = 64 << 20

// Routes are POST /confirm, /rollback?to=GENERATION and /apply?confirm=DURATION with the files as JSON; the latter two take
// allow-disruptive=BOOL too. What d refuses is answered with 409 and its words, what makes no sense with 400.
func Routes(d Daemon) func(*http.ServeMux) {
	return func(mux *http.ServeMux) {
		mux.HandleFunc("POST /confirm", func(w http.ResponseWriter, r *http.Request) {
			answer(w, d.Confirm(r.Context()))
		})
		mux.HandleFunc("POST /rollback", func(w http.ResponseWriter, r *http.Request) {
			var to *uint64
			if s := r.FormValue("to"); s != "" {
				g, err := strconv.ParseUint(s, 10, 64)
				if err != nil {
					http.Error(w, fmt.Sprintf("to=%q is no generation", s), http.StatusBadRequest)
					return
				}
				to = &g
			}
			if allow, ok := allowed(w, r); ok {
				answer(w, d.Rollback(r.Context(), to, allow))
			}
		})
		mux.HandleFunc("POST /apply", func(w http.ResponseWriter, r *http.Request) {
			confirm, err := time.ParseDuration(r.URL.Query().Get("confirm"))
			if err != nil || confirm < 0 {
				http.Error(w, "confirm must be a duration, such as 60s", http.StatusBadRequest)
				return
			}
			allow, ok := allowed(w, r)
			if !ok {
				return
			}
			var srcs []config.Source
			err = json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&srcs)
			if err == nil && len(srcs) == 0 {
				err = errors.New("the list is empty")
			}
			if err != nil {
				http.Error(w, fmt.Sprintf("no config files in the request: %v", err), http.StatusBadRequest)
				return
			}
			answer(w, d.Apply(r.Context(), srcs, confirm, allow))
		})
	}
}

const allowKey = "allow-disruptive"

// allowed is whether a request allows what isn't hitless; one that makes no sense has its answer then.
func allowed(w http.ResponseWriter, r *http.Request) (allow, ok bool) {
	s := r.URL.Query().Get(allowKey)
	if s == "" {
		return false, true
	}
	allow, err := strconv.ParseBool(s)
	if err != nil {
		http.Error(w, allowKey+" must be true or false", http.StatusBadRequest)
	}
	return allow, err == nil
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// Confirm tells the daemon at socket that the change that waits is good.
func Confirm(ctx context.Context, socket string) error {
	return post(ctx, socket, "/confirm", nil, nil)
}

// Rollback tells it to go back: to the config of a generation, or for nil to where it came from; with allowDisruptive even
// where that isn't hitless.
func Rollback(ctx context.Context, socket string, to *uint64, allowDisruptive bool) error {
	q := url.Values{allowKey: {strconv.FormatBool(allowDisruptive)}}
	if to != nil {
		q.Set("to", strconv.FormatUint(*to, 10))
	}
	return post(ctx, socket, "/rollback", q, nil)
}

// Apply gives it files to carry out in place of what was dropped; with allowDisruptive even where that isn't hitless.
func Apply(ctx context.Context, socket string, srcs []config.Source, confirm time.Duration, allowDisruptive bool) error {
	return post(ctx, socket, "/apply", url.Values{"confirm": {confirm.String()}, allowKey: {strconv.FormatBool(allowDisruptive)}}, srcs)
}

func post(ctx context.Context, socket, path string, q url.Values, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://vtepd"+path+"?"+q.Encode(), bytes.NewReader(raw))
	if err != nil {
		return err
	}
	resp, err := status.Client(socket).Do(req)
	if err != nil {
		return fmt.Errorf("no answer from vtepd at %s: %w", socket, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	words, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("vtepd at %s: %w", socket, err)
	}
	return errors.New(strings.TrimSpace(string(words)))
}
