// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
)

// recordVar is where a request's record is kept: Caddy's variables stay with a request through rewrites, subroutes and
// error routes. The name is one that no configuration can write, so that "vars penstock x" does not make the request a
// new one.
const recordVar = "\x00penstock"

// record is what this package knows of one request: which policies it has been charged for, and what was decided last.
// It lives as long as the request, for access logs read the placeholders after the handlers are done.
type record struct {
	done      []*enforced
	doneRoom  [4]*enforced
	decision  verdict
	kind      string // how the client was found; it belongs to the policy
	about     *about // what is not in clientRoom; nil if nothing is
	refusedBy *responder
	first     responder // of the first handler; a further one makes its own

	clientRoom [48]byte // an address or a short identifier, so that keeping it costs no allocation
	clientLen  uint8
	firstTaken bool
	kept       bool // a handler has decided
}

// about is what is known of a client beside a short identifier.
type about struct{ client, user, tenant, tier string }

// verdict is what the placeholders tell of a decision: less than half of it, for every request keeps one.
type verdict struct {
	outcome    core.Outcome
	rule       string
	limit      int64 // capacity of the limit that is shown; 0 if none is
	remaining  int64
	retryAfter core.Micros
}

// recordOf returns the request's record and makes one the first time.
func recordOf(r *http.Request) *record {
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
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

// begin notes that the request is charged for the policy, and reports false if it has been before.
func (rec *record) begin(e *enforced) bool {
	if slices.Contains(rec.done, e) {
		return false
	}
	rec.done = append(rec.done, e)
	return true
}

// keep remembers the decision. Its client is copied, because its strings belong to a plan that will be used again.
func (rec *record) keep(d *core.Decision) {
	if rec.kept && d.Outcome == core.OutcomeNone {
		return // a further handler without a rule for the request says nothing
	}
	rec.kept = true
	rec.decision = verdict{outcome: d.Outcome, rule: d.Rule, remaining: d.Remaining, retryAfter: d.RetryAfter}
	if d.Limit != nil {
		rec.decision.limit = d.Limit.Capacity()
	}
	rec.identify(&d.Client)
}

// identify remembers who the client is.
func (rec *record) identify(c *core.Identity) {
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
	rec.about = &about{client: take(len(c.ID)), user: take(len(c.User)), tenant: take(len(c.Tenant)), tier: take(len(c.Tier))}
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

// placeholder answers {http.penstock.*}. It is asked late and seldom, so nothing is made ready for it.
func (rec *record) placeholder(key string) (any, bool) {
	name, ok := strings.CutPrefix(key, "http.penstock.")
	if !ok {
		return nil, false
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
	return rec.about.text(name), true
}

// text returns what is known under a placeholder's name.
func (a *about) text(name string) string {
	if a == nil {
		return ""
	}
	return map[string]string{"client": a.client, "user": a.user, "tenant": a.tenant, "tier": a.tier}[name]
}

// retryAfterSeconds is the wait in whole seconds, rounded up; "" if there is none or waiting does not help.
func retryAfterSeconds(wait core.Micros) any {
	if wait <= 0 || wait == core.Never {
		return ""
	}
	return int64((wait + core.Second - 1) / core.Second)
}
