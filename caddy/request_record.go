// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce/live"
)

// recordVar is the Caddy variable that holds a request's record. Caddy variables stay with a
// request through rewrites, subroutes and error routes. No configuration can write this name, so
// "vars penstock x" cannot discard the record.
const recordVar = "\x00penstock"

// record is the state of one request: the policies that have charged it and the last decision. A
// record lives as long as the request, because access logs read placeholders after the handlers
// return.
type record struct {
	done     []*live.Policy
	doneRoom [4]*live.Policy
	decision verdict
	kind     string         // how the client was identified; the string belongs to the policy
	about    *clientDetails // data that does not fit in clientRoom, or nil
	deniedBy *responder
	first    responder // for the first handler; later handlers allocate their own

	clientRoom [48]byte // holds short client identifiers without an allocation
	clientLen  uint8
	firstTaken bool
	kept       bool // a handler has decided
	unread     bool // addLater is running and no placeholder was read meanwhile
}

// clientDetails describes a client that has a long identifier, a user, a tenant or a tier.
type clientDetails struct{ client, user, tenant, tier string }

// verdict holds the part of a decision that the placeholders need. Every request keeps a verdict,
// so a verdict is less than half as large as a decision.
type verdict struct {
	outcome    core.Outcome
	rule       string
	limit      int64 // capacity of the reported limit, or 0
	remaining  int64
	retryAfter counter.Micros
}

// varsOf returns the Caddy variables of the request, or nil if there are none. A search of the
// request's context takes time, so callers keep the result.
func varsOf(r *http.Request) map[string]any {
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	return vars
}

// recordOf returns the request's record, which is in its variables. recordOf creates the record on
// first use.
func recordOf(r *http.Request, vars map[string]any) *record {
	if rec, ok := vars[recordVar].(*record); ok {
		return rec
	}
	rec := new(record)
	rec.done = rec.doneRoom[:0]
	if vars != nil {
		vars[recordVar] = rec
	}
	if replacer, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		replacer.Map(rec.placeholder)
	}
	return rec
}

// record.begin records that the policy charges the request. It returns false if the policy has
// already charged the request.
func (rec *record) begin(e *live.Policy) bool {
	if slices.Contains(rec.done, e) {
		return false
	}
	rec.done = append(rec.done, e)
	return true
}

// storeDecision stores the decision. storeDecision copies the client, because the client's strings
// belong to a plan that will be reused.
func (rec *record) storeDecision(d *core.Decision) {
	if rec.kept && d.Outcome == core.OutcomeNone {
		return // a later handler without a matching rule changes nothing
	}
	rec.kept = true
	rec.decision = verdict{outcome: d.Outcome, rule: d.Rule, remaining: d.Remaining, retryAfter: d.RetryAfter}
	if d.Limit != nil {
		rec.decision.limit = d.Limit.Capacity()
	}
	rec.identify(&d.Client)
}

// record.identify stores the client's identity.
func (rec *record) identify(c *policy.Identity) {
	rec.kind, rec.about, rec.clientLen = c.Kind, nil, 0
	short := len(c.ID) <= len(rec.clientRoom)
	if short {
		rec.clientLen = uint8(copy(rec.clientRoom[:], c.ID))
	}
	if short && c.User == "" && c.Tenant == "" && c.Tier == "" {
		return
	}
	text := c.ID + c.User + c.Tenant + c.Tier // one copy of all four
	take := func(n int) (part string) {
		part, text = text[:n], text[n:]
		return part
	}
	rec.about = &clientDetails{client: take(len(c.ID)), user: take(len(c.User)), tenant: take(len(c.Tenant)), tier: take(len(c.Tier))}
}

func (rec *record) responder(w http.ResponseWriter) *responder {
	own := &rec.first
	if rec.firstTaken {
		own = new(responder)
	}
	rec.firstTaken = true
	own.ResponseWriter = w
	own.record = rec
	return own
}

// record.placeholder resolves {http.penstock.*}. Reads are rare, so values are computed on
// demand.
func (rec *record) placeholder(key string) (any, bool) {
	name, ok := strings.CutPrefix(key, "http.penstock.")
	if !ok {
		return nil, false
	}
	if rec.unread { // goroutines that read together after the decision must not write
		rec.unread = false
	}
	switch name {
	case "decision":
		return rec.decision.outcome.String(), true
	case "rule":
		return rec.decision.rule, true
	case "limit":
		if rec.decision.limit == 0 {
			return "", true
		}
		return rec.decision.limit, true
	case "remaining":
		if rec.decision.limit == 0 {
			return "", true
		}
		return rec.decision.remaining, true
	case "retry_after":
		return retryAfterSeconds(rec.decision.retryAfter), true
	case "client":
		if rec.clientLen > 0 {
			return string(rec.clientRoom[:rec.clientLen]), true
		}
	case "identity":
		return rec.kind, true
	case "user", "tenant", "tier":
	default:
		return nil, false
	}
	return rec.about.clientText(name), true
}

// clientText returns the value of a placeholder that describes the client.
func (a *clientDetails) clientText(name string) string {
	if a == nil {
		return ""
	}
	return map[string]string{"client": a.client, "user": a.user, "tenant": a.tenant, "tier": a.tier}[name]
}

// retryAfterSeconds returns the wait in whole seconds, rounded up, or "" if there is no wait or
// waiting does not help.
func retryAfterSeconds(wait counter.Micros) any {
	if wait <= 0 || wait == counter.Never {
		return ""
	}
	return int64((wait + counter.Second - 1) / counter.Second)
}
