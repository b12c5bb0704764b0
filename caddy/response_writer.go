// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"io"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core/response"
)

// Response header fields in the canonical form of net/http, so that Caddy's header directive finds
// them.
const (
	fieldLimit      = "X-Ratelimit-Limit"
	fieldRemaining  = "X-Ratelimit-Remaining"
	fieldReset      = "X-Ratelimit-Reset"
	fieldRateLimit  = "Ratelimit"
	fieldPolicy     = "Ratelimit-Policy"
	fieldRetryAfter = "Retry-After"
	fieldCost       = "X-Ratelimit-Cost"
)

// responder adds the rate limit fields to one response when its header is written. By then the
// upstream, the file server or the error handler has set its own fields.
type responder struct {
	caddyhttp.ResponseWriterWrapper
	values    response.Fields // the slices in the header point into this field
	remaining int64
	applied   bool
	record    *record
	// settlement is the first in the list of pending settlements. The field is nil if there are
	// none.
	settlement *settlement
	body       *bodyWatch // the body of the request, if there are settlements; nil without a body
	sending    *sendWatch // nil without settlements
	failed     bool       // a write to the client failed
}

// fieldNames lists the fields in the order of responder.values.
var fieldNames = [response.FieldCount]string{fieldLimit, fieldRemaining, fieldReset, fieldRateLimit, fieldPolicy, fieldRetryAfter,
	fieldCost}

// setFields sets the field values to send to the client.
func (w *responder) setFields(f response.Fields, remaining int64) {
	w.values, w.remaining = f, remaining
}

// correctCost replaces the estimated cost with the actual cost.
func (w *responder) correctCost(cost int64) { w.values.Correct(cost) }

// applyFields merges the fields into the header. Later calls do nothing. If an inner penstock
// handler denied the request, its fields take precedence.
func (w *responder) applyFields() {
	if w.applied {
		return
	}
	w.applied = true
	h := w.ResponseWriter.Header()
	yields := w.record.deniedBy != nil && w.record.deniedBy != w
	w.values.Merge(w.remaining, yields, func(f response.Field) []string { return h[fieldNames[f]] })
	for i, name := range fieldNames {
		if w.values[i] != "" {
			h[name] = w.values[i : i+1 : i+1]
		}
	}
}

// WriteHeader adds the fields to every final response and to a protocol switch.
func (w *responder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.begin(status)
		w.applyFields()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *responder) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	w.applyFields()
	n, err := w.ResponseWriter.Write(p)
	w.failed = w.failed || err != nil
	for s := w.settlement; s != nil; s = s.next {
		if s.tap != nil {
			_, _ = s.tap.Write(p[:n]) // a tap always accepts all bytes
		}
	}
	return n, err
}

// ReadFrom allows the use of sendfile if no settlement reads the body.
func (w *responder) ReadFrom(r io.Reader) (int64, error) {
	w.begin(http.StatusOK)
	w.applyFields()
	if w.hasTap() {
		return io.Copy(struct{ io.Writer }{w}, r)
	}
	return w.ResponseWriterWrapper.ReadFrom(r)
}

// FlushError applies the fields, because a flush writes the header. Without this method the flush
// would bypass the responder.
func (w *responder) FlushError() error {
	w.begin(http.StatusOK)
	w.applyFields()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush serves callers that do not use [http.ResponseController].
func (w *responder) Flush() { _ = w.FlushError() }

var (
	_ http.ResponseWriter = (*responder)(nil)
	_ http.Flusher        = (*responder)(nil)
	_ io.ReaderFrom       = (*responder)(nil)
)
