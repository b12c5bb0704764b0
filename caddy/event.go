// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"strings"

	"github.com/penstock/penstock/core"
)

// DeniedEvent is the name of the event that a denied request emits. Its data are `policy`, `rule`,
// `decision`, `status`, `client`, `identity`, `user`, `tenant`, `tier`, `credential` (the reason
// for a 401), `limit`, `remaining`, `retry_after` (seconds), `host`, `method` and `path`.
const DeniedEvent = "penstock_denied"

// Handler.emit emits the event if a handler is subscribed. It checks first, because creating an
// event costs more than a decision.
func (h *Handler) emit(r *http.Request, d *core.Decision) {
	if !h.app.events.ShouldEmit(DeniedEvent) {
		return
	}
	var limit int64
	if d.Limit != nil {
		limit = d.Limit.Capacity()
	}
	credential := ""
	if d.Outcome == core.OutcomeUnauthorized {
		credential = d.Credential.String()
	}
	h.app.events.Emit(h.ctx, DeniedEvent, map[string]any{
		"policy": d.Policy, "rule": d.Rule, "decision": d.Outcome.String(), "status": d.Status,
		"client": strings.Clone(d.Client.ID), "identity": d.Client.Kind, "user": strings.Clone(d.Client.User),
		"tenant": strings.Clone(d.Client.Tenant), "tier": strings.Clone(d.Client.Tier), "credential": credential,
		"limit": limit, "remaining": d.Remaining,
		"retry_after": retryAfterSeconds(d.RetryAfter), "host": r.Host, "method": r.Method, "path": r.URL.Path,
	})
}
