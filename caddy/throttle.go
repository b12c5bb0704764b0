// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/throttle"
)

// throttleQueues hold the waiting requests. The queues belong to the process, so that after a
// reload no new request overtakes a waiting one.
var throttleQueues = throttle.New(throttle.Options{})

// statusClientGone is the status that Caddy logs for a request whose client disconnected before the
// response.
const statusClientGone = 499

// decideThrottled decides a request that may have to wait. decideThrottled reports whether the
// client left while the request waited. In that case nothing is charged.
func (h *Handler) decideThrottled(r *http.Request, s *scratchSpace, throttled []core.Throttled) (d core.Decision, gone bool) {
	s.asks = h
	d, end := s.wait.Decide(r.Context(), throttleQueues, &s.plan, throttled, s)
	s.asks = nil
	if end != throttle.EndNone {
		common.Waits.WithLabelValues(string(end)).Inc()
	}
	return d, end == throttle.EndGone
}

// Ask implements [throttle.Asker].
func (s *scratchSpace) Ask(checks []counter.Check) (core.Decision, bool) {
	return s.asks.askStore(s, checks)
}

// Replan implements [throttle.Asker].
func (s *scratchSpace) Replan(p *core.Plan) {
	clients := s.asks.app.store.directory
	useDirectory(p, clients)
	s.addTo(p)
	s.resolve(p, clients)
}
