// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/policyfile"
)

var shadowTotal = shadow.NewTotal()

// readers is a pool of attributes, through which the evaluation of a candidate reads requests.
var readers = sync.Pool{New: func() any { return new(attributes) }}

func startShadows(store counter.Store) *shadow.Runner {
	return shadow.Start(shadow.Options{Store: store, Total: shadowTotal, Panicked: func(policy string, reason any) {
		caddy.Log().Named("penstock").Error("a shadow policy has panicked", zap.String("policy", policy), zap.Any("reason", reason),
			zap.Stack("stack"))
	}})
}

// tryOut starts a trial of each candidate once per request, in the background. The trial of a
// candidate that charges by the response starts when the response is known: tryOut adds the
// candidate's settlement to waiting.
func (h *Handler) tryOut(rec *record, r *http.Request, denied bool, waiting *settlement) *settlement {
	for _, candidate := range h.tried {
		if isDisabled(candidate) || !rec.begin(candidate) {
			continue
		}
		if s := h.app.tryRequest(candidate, r, denied); s != nil {
			s.next, waiting = waiting, s
		}
	}
	return waiting
}

// passObserved passes on a request to which no policy in force applies. Candidates that wait for
// the response receive it.
func (rec *record) passObserved(w http.ResponseWriter, r *http.Request, waiting *settlement, next caddyhttp.Handler) error {
	if waiting == nil {
		return next.ServeHTTP(w, r)
	}
	own := rec.responder(w)
	own.settlement = waiting
	return own.pass(r, next)
}

// tryRequest reads the request and leaves the rest of the trial to a worker, because the request
// must not be read after its handler has returned. If the candidate charges by the response,
// tryRequest returns the settlement that starts the trial. The directory knows the client at this
// point, unless no policy in force applies.
func (a *App) tryRequest(candidate *live.Policy, r *http.Request, denied bool) (waiting *settlement) {
	attrs := readers.Get().(*attributes)
	attrs.reset(r, varsOf(r))
	t := a.shadows.Begin(candidate.Current(), denied)
	t.Add(attrs, a.store.directory)
	attrs.release() // the plan contains all data of the request that is needed
	readers.Put(attrs)
	if !denied {
		response := settlements.Get().(*settlement)
		if t.Plan.Expect(&response.Settlement) {
			t.Response, response.trial = response, t
			return response
		}
		response.Release()
	}
	t.Start()
	return nil
}

// Pending implements [shadow.Response].
func (s *settlement) Pending() *core.Settlement { return &s.Settlement }

var _ shadow.Response = (*settlement)(nil)

func init() { collectors = append(collectors, shadowTotal) }

// openShadowFile opens a candidate in a file for an app or a handler.
func (a *App) openShadowFile(path, place string, complete func(*policyfile.Document) error) (*live.Policy, error) {
	resolved, err := resolvePath(path)
	if err != nil {
		return nil, err
	}
	return a.openShadow(live.File(resolved), place, complete)
}

// openShadow opens a candidate for an app or a handler. It completes the document with the function
// complete, and appends [shadow.Suffix] to the document's name.
func (a *App) openShadow(source live.Source, place string, complete func(*policyfile.Document) error) (*live.Policy, error) {
	if a.shadows == nil {
		a.shadows = startShadows(a.store)
	}
	return a.open(source, place+", shadow policy", func(d *policyfile.Document) error {
		if err := complete(d); err != nil {
			return err
		}
		d.Name += shadow.Suffix
		return nil
	})
}
