// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/throttle"
)

// lines are the requests that wait for a throttle rule. They are the process's and no configuration's, so that a reload
// lets nobody push ahead.
var lines = throttle.New(throttle.Options{})

// statusClientGone is what Caddy writes into its log for a request whose client did not wait for the answer.
const statusClientGone = 499

// decideThrottled decides a request that may have to wait. It reports whether its client has left meanwhile: then there
// is nobody to answer and nothing was charged.
func (h *Handler) decideThrottled(r *http.Request, s *scratch, throttled []core.Throttled) (d core.Decision, gone bool) {
	s.asks = h
	d, end := s.wait.Decide(r.Context(), lines, &s.plan, throttled, s)
	s.asks = nil
	if end != throttle.EndNone {
		common.Waits.WithLabelValues(string(end)).Inc()
	}
	return d, end == throttle.EndGone
}

// Ask implements [throttle.Asker].
func (s *scratch) Ask(checks []core.Check) (core.Decision, bool) { return s.asks.ask(s, checks) }
