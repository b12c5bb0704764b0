// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// sendWatch records whether a request has been sent to an upstream, at least in part. The upstream
// may then have processed the request, whatever became of later attempts.
type sendWatch struct {
	begun atomic.Bool // transports write in goroutines of their own
	trace httptrace.ClientTrace
}

// watchSending adds a sendWatch to the context of a request and returns it.
func watchSending(r *http.Request) *sendWatch {
	watch := new(sendWatch)
	watch.trace.WroteHeaders = func() { watch.begun.Store(true) }
	// Outer handlers have the same request, so the request is changed in place.
	*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &watch.trace))
	return watch
}
