// SPDX-License-Identifier: Apache-2.0

package ruletable

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/policyfile"
)

// priorityDefault is the priority of a row without one, and priorityMax bounds the priorities of a
// table.
const priorityDefault, priorityMax = 100, 1_000_000_000

// Options holds the settings that a table does not contain.
type Options struct {
	// If First is set, only the first of the rules that match a request counts, by priority.
	// Otherwise all of them count.
	First bool
	// MaxDelay is how long a request waits under the action throttle; "" means that it is denied.
	MaxDelay string
}

// rule is a rule with its priority, and the row that it is from.
type rule struct {
	policyfile.Rule
	priority int64
	row      *row
}

// Import adds the rules of a table to a policy. The result notes says what could not be carried
// over.
func Import(into *policyfile.Document, from io.Reader, o Options) (notes []string, err error) {
	f, rows, problems, notes := read(from)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	var rules []*rule
	names := map[string]bool{}
	for i := range into.Rules {
		names[into.Rules[i].Name] = true
	}
	for _, r := range rows {
		r.errors, r.notes = &problems, &notes
		one := f.read(r)
		one.priority, one.row = priorityDefault, r
		if n, ok := r.number("priority"); ok {
			if one.priority = n; n < -priorityMax || n > priorityMax {
				r.addProblem("priority", "is not within %d of 0", priorityMax)
			}
		}
		if !r.truth("enabled") {
			one.Enabled = new(bool)
		}
		one.Name = nameOf(cmp.Or(r.text("name"), r.text("rule_name"), r.text("rule_id"), r.text("id")), names)
		one.setAction(r, o)
		rules = append(rules, one)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	order(into, rules, f.greatest, o.First)
	return notes, nil
}

// order adds the rules to the policy in the order of their priorities.
func order(into *policyfile.Document, rules []*rule, greatest, first bool) {
	most := int64(0)
	for _, r := range rules {
		most = max(most, r.priority)
	}
	for _, r := range rules {
		if greatest { // in a policy the lowest comes first
			r.priority = most - r.priority
		}
	}
	slices.SortStableFunc(rules, func(a, b *rule) int { return cmp.Compare(a.priority, b.priority) })
	if first {
		into.Enforce = "first"
	}
	later := false
	for _, r := range rules {
		if first && r.Action != "block" {
			r.Priority = int(r.priority)
			later = later || r.Enabled == nil
		} else if first && later && r.Enabled == nil {
			r.row.note("action", "comes before all other rules here, though its priority comes after that of others")
		}
		into.Rules = append(into.Rules, r.Rule)
	}
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9._]+`)

// nameOf returns a name that a rule may have, and that no other rule has.
func nameOf(text string, names map[string]bool) string {
	const bytesMax = 56 // leaves room for a number
	name := strings.Trim(notInNames.ReplaceAllString(text, "-"), "-")
	name = cmp.Or(name[:min(len(name), bytesMax)], "rule")
	for n, base := 2, name; names[name]; n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	names[name] = true
	return name
}

// rule.setAction sets what the rule does.
func (one *rule) setAction(r *row, o Options) {
	switch action := strings.ToLower(r.text("action")); action {
	case "", "reject":
	case "throttle":
		if o.MaxDelay == "" {
			r.note("action", "denies with 429 here; to let requests wait instead, give --max-delay")
			break
		}
		one.Action, one.Throttle = "throttle", &policyfile.Throttle{MaxDelay: o.MaxDelay}
	case "log", "log_only":
		one.Action = "log_only"
	case "block", "allow":
		one.Action, one.Limit, one.Per = action, nil, nil
		if action == "allow" && !o.First {
			r.addProblem("action", "exempts from rules that come later, so the first rule of a request must be the only one that counts: give --enforce first")
		}
		return
	default:
		r.addProblem("action", "is unknown: there are reject, throttle, log, log_only, block and allow")
	}
	if len(one.Limit) == 0 {
		*r.errors = append(*r.errors, fmt.Errorf("line %d: the rule has no limit", r.line))
	}
}

// row.algorithm returns the algorithm of a row in a policy's words.
func (r *row) algorithm() string {
	switch name := strings.ToLower(r.text("algorithm")); name {
	case "", "sliding_window", "sliding_window_counter":
		return "sliding_window"
	case "sliding_log", "sliding_window_log":
		return "sliding_log"
	case "fixed_window", "token_bucket":
		return name
	}
	r.addProblem("algorithm", "is unknown: there are fixed_window, sliding_window, sliding_window_counter, sliding_log, sliding_window_log and token_bucket")
	return "sliding_window"
}

// limit returns a limit as it is written in a policy. The argument burst is 0 if the limit has no
// burst.
func limit(units, seconds, burst int64, algorithm string) string {
	text := fmt.Sprintf("%d/%s", units, window(seconds))
	if burst > 0 {
		text += fmt.Sprintf(" burst %d", burst)
	}
	return text + " " + algorithm
}

func window(seconds int64) string {
	for _, unit := range []struct {
		seconds int64
		name    string
	}{{24 * 60 * 60, "d"}, {60 * 60, "h"}, {60, "m"}} {
		if seconds > 0 && seconds%unit.seconds == 0 {
			return fmt.Sprint(seconds/unit.seconds, unit.name)
		}
	}
	return fmt.Sprint(seconds, "s")
}

// row.burst returns the burst of a row. Only a token bucket has a burst.
func (r *row) burst(column, algorithm string) int64 {
	n, ok := r.number(column)
	if ok && algorithm != "token_bucket" {
		r.note(column, "has no effect with %s, and is left out", algorithm)
		return 0
	}
	return n
}

// newMatch returns a pointer to m, or nil if m names no path, method, address or tier.
func newMatch(m policyfile.Match) *policyfile.Match {
	if len(m.Path)+len(m.Method)+len(m.IP)+len(m.Tier) == 0 {
		return nil
	}
	return &m
}

// words returns the words that are not empty; none if one of them is * or /*, which match
// everything.
func words(texts ...string) (w policyfile.Words) {
	for _, text := range texts {
		if text == "*" || text == "/*" {
			return nil
		}
		if text != "" {
			w = append(w, text)
		}
	}
	return w
}

// readCountAndWindow reads a rule from a row that has the columns limit_count and window_seconds.
func readCountAndWindow(r *row) *rule {
	one := new(rule)
	one.Match = newMatch(policyfile.Match{Path: words(r.list("endpoints")...), Tier: words(r.list("plan_tiers")...)})
	if per := r.countedBy(); per != nil {
		one.Per = &per
	}
	algorithm := r.algorithm()
	burst := r.burst("burst_limit", algorithm)
	if algorithm != "token_bucket" && r.text("refill_rate") != "" {
		r.note("refill_rate", "has no effect with %s, and is left out", algorithm)
	}
	units, ok := r.number("limit_count")
	seconds, timed := r.number("window_seconds")
	if !ok {
		return one
	}
	if !timed {
		r.addProblem("window_seconds", "is missing")
		return one
	}
	if algorithm == "token_bucket" {
		if rate := r.rate(units, seconds); rate != "" {
			one.Limit = policyfile.Words{fmt.Sprintf("%s burst %d token_bucket", rate, cmp.Or(burst, units))}
			return one
		}
	}
	one.Limit = policyfile.Words{limit(units, seconds, burst, algorithm)}
	return one
}

// row.countedBy returns the field "per" of the rule, from the columns key_pattern and scope. It
// returns nil if the row has neither.
func (r *row) countedBy() policyfile.Words {
	per := r.placeholders("key_pattern")
	scope := r.oneOf("scope", map[string]policyfile.Words{"global": {}, "tenant": {"tenant"}, "user": {"user"}, "ip": {"ip"}, "endpoint": {"endpoint"}, "": nil})
	switch {
	case scope == nil && per == nil && r.text("key_pattern") != "":
		r.addProblem("key_pattern", "has no placeholder, and there is no scope: write user:{user_id}, or the scope global")
	case per == nil:
		return scope
	case scope != nil && !slices.ContainsFunc(per, func(name string) bool {
		// A key or a client may be that of a tenant or a user.
		return slices.Contains(scope, name) || (name == "api_key" || name == "client") && (slices.Contains(scope, "tenant") || slices.Contains(scope, "user"))
	}):
		r.note("scope", "contradicts key_pattern %.60q, which decides here", r.text("key_pattern"))
	}
	return per
}

// row.rate returns the rate of a token bucket whose refill_rate, in units a second, differs from
// the rate of its limit; "" if the rates are equal. Rates are decimals that were rounded, so 16.67
// is 1000 in 60 seconds.
func (r *row) rate(units, seconds int64) string {
	text := r.text("refill_rate")
	if text == "" {
		return ""
	}
	rate, ok := new(big.Rat).SetString(text)
	if !ok || rate.Sign() <= 0 || len(text) > 30 || strings.ContainsAny(text, "eE/") {
		r.addProblem("refill_rate", "is no number of units a second")
		return ""
	}
	limit := big.NewRat(units, max(seconds, 1))
	if limit.Sign() > 0 {
		off, _ := new(big.Rat).Quo(rate, limit).Float64()
		if off > 0.99 && off < 1.01 {
			return ""
		}
	}
	if !rate.Num().IsInt64() || !rate.Denom().IsInt64() {
		r.addProblem("refill_rate", "has too many digits")
		return ""
	}
	return fmt.Sprintf("%d/%s", rate.Num().Int64(), window(rate.Denom().Int64()))
}

var placeholder = regexp.MustCompile(`\{([^{}]*)\}`)

// row.placeholders returns the dimensions that the placeholders of a key pattern name, such as
// api_key in tenant:{api_key}; nil if the pattern has no placeholder.
func (r *row) placeholders(column string) (per policyfile.Words) {
	for _, found := range placeholder.FindAllStringSubmatch(r.text(column), -1) {
		name := strings.TrimSuffix(strings.ToLower(found[1]), "_id")
		switch name {
		case "path", "route":
			name = "endpoint"
		case "plan":
			name = "tier"
		case "client", "user", "api_key", "tenant", "tier", "ip", "host", "method", "endpoint":
		default:
			r.addProblem(column, "has the placeholder {%s}, which is unknown", found[1])
			continue
		}
		if !slices.Contains(per, name) {
			per = append(per, name)
		}
	}
	return per
}

// oneOf returns what the word in a column stands for, according to the map of known words.
func (r *row) oneOf(column string, known map[string]policyfile.Words) policyfile.Words {
	w, ok := known[strings.ToLower(r.text(column))]
	if !ok {
		r.addProblem(column, "is unknown")
	}
	return w
}

// readRates reads a row with the columns requests_per_second to requests_per_day.
func readRates(r *row) *rule {
	one := new(rule)
	one.Match = newMatch(policyfile.Match{Path: words(r.text("endpoint_pattern")), Method: words(r.text("http_method")), IP: words(r.text("ip_range")),
		Tier: words(r.text("user_tier"))})
	algorithm := r.algorithm()
	burst := r.burst("burst_size", algorithm)
	for _, rate := range []struct {
		column  string
		seconds int64
	}{{"requests_per_second", 1}, {"requests_per_minute", 60}, {"requests_per_hour", 60 * 60}, {"requests_per_day", 24 * 60 * 60}} {
		if units, ok := r.number(rate.column); ok {
			one.Limit = append(one.Limit, limit(units, rate.seconds, burst, algorithm))
			burst = 0 // the burst belongs only to the shortest window
		}
	}
	one.respond(r, "response_status")
	if seconds, ok := r.number("retry_after_seconds"); ok {
		one.RetryAfter = fmt.Sprint(seconds, "s")
	}
	return one
}

// readLimits reads a row with the columns limit and window.
func readLimits(r *row) *rule {
	one := new(rule)
	one.Match = newMatch(policyfile.Match{Path: words(r.text("resource")), Tier: words(r.text("tier"))})
	if per := r.oneOf("subject_type", map[string]policyfile.Words{"user": {"user"}, "ip": {"ip"}, "api_key": {"api_key"}, "": nil}); per != nil {
		one.Per = &per
	}
	algorithm := r.algorithm()
	units, ok := r.number("limit")
	seconds, timed := r.number("window")
	if ok && !timed {
		r.addProblem("window", "is missing")
	}
	if ok {
		one.Limit = policyfile.Words{limit(units, seconds, 0, algorithm)}
	}
	one.respond(r, "response_code")
	return one
}

// rule.respond sets the response of a denial.
func (one *rule) respond(r *row, column string) {
	const usual = 429
	status, ok := r.number(column)
	message := r.text("response_message")
	if (!ok || status == usual) && message == "" {
		return
	}
	one.Response = &policyfile.Response{Message: message}
	if ok && status != usual {
		n := int(status)
		one.Response.Status = &n
	}
}
