// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"io"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
)

// The response header fields as net/http spells them, so that Caddy's own header directive finds them.
const (
	fieldLimit      = "X-Ratelimit-Limit"
	fieldRemaining  = "X-Ratelimit-Remaining"
	fieldReset      = "X-Ratelimit-Reset"
	fieldRateLimit  = "Ratelimit"
	fieldPolicy     = "Ratelimit-Policy"
	fieldRetryAfter = "Retry-After"
	fieldCost       = "X-Ratelimit-Cost"
)

// responder adds the rate limit fields to a response when its header is written: after the upstream, a file server or an
// error has said what it has to say. It is for one request.
type responder struct {
	caddyhttp.ResponseWriterWrapper
	values    core.Telling // the header's slices point into it
	remaining int64
	applied   bool
	record    *record
	// settlement is the first of what remains to be done when the response is known; nil for nothing, and when it was done.
	settlement *settlement
	body       *bodyWatch // of the request, if something is to be settled; nil if it has none
	failed     bool       // something could not be sent to the client
}

// fieldNames are the fields in the order of responder.values.
var fieldNames = [core.ToldCount]string{fieldLimit, fieldRemaining, fieldReset, fieldRateLimit, fieldPolicy, fieldRetryAfter,
	fieldCost}

// tell sets what the client is to be told.
func (w *responder) tell(f core.Fields, remaining int64) {
	w.values, w.remaining = f.Telling(), remaining
}

// correct puts the true cost in place of the estimate.
func (w *responder) correct(cost int64) { w.values.Correct(cost) }

// apply merges the fields into the header, once. What another penstock handler inside of this one wrote when it refused
// stays as it is.
func (w *responder) apply() {
	if w.applied {
		return
	}
	w.applied = true
	h := w.ResponseWriter.Header()
	yields := w.record.refusedBy != nil && w.record.refusedBy != w
	w.values.Merge(w.remaining, yields, func(f core.Told) []string { return h[fieldNames[f]] })
	for i, name := range fieldNames {
		if w.values[i] != "" {
			h[name] = w.values[i : i+1 : i+1]
		}
	}
}

// WriteHeader adds the fields to everything but interim responses.
func (w *responder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.begin(status)
		w.apply()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *responder) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	w.apply()
	n, err := w.ResponseWriter.Write(p)
	w.failed = w.failed || err != nil
	for s := w.settlement; s != nil; s = s.next {
		if s.tap != nil {
			_, _ = s.tap.Write(p[:n]) // it takes everything
		}
	}
	return n, err
}

// ReadFrom keeps sendfile possible, where nobody reads the body.
func (w *responder) ReadFrom(r io.Reader) (int64, error) {
	w.begin(http.StatusOK)
	w.apply()
	if w.listens() {
		return io.Copy(struct{ io.Writer }{w}, r)
	}
	return w.ResponseWriterWrapper.ReadFrom(r)
}

// FlushError is here because a flush writes the header, and would otherwise go past us to the writer within.
func (w *responder) FlushError() error {
	w.begin(http.StatusOK)
	w.apply()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush is for callers who do not use [http.ResponseController].
func (w *responder) Flush() { _ = w.FlushError() }

var (
	_ http.ResponseWriter = (*responder)(nil)
	_ http.Flusher        = (*responder)(nil)
	_ io.ReaderFrom       = (*responder)(nil)
)
