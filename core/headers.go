// SPDX-License-Identifier: Apache-2.0

package core

import "strconv"

// Fields are the response header fields of a decision; "" means that the field is absent.
type Fields struct {
	Limit      string // X-RateLimit-Limit
	Remaining  string // X-RateLimit-Remaining
	Reset      string // X-RateLimit-Reset: Unix seconds
	RateLimit  string // RateLimit
	Policy     string // RateLimit-Policy
	RetryAfter string // Retry-After: seconds
	Cost       string // X-RateLimit-Cost
	// Authenticate is WWW-Authenticate, which goes with every 401.
	Authenticate string
}

// authenticate is what a client is told whose credential is not accepted. It names no scheme of API keys: there is none
// that is registered.
const authenticate = `Bearer error="invalid_token"`

// Headers returns what the client is told, by the table in docs/policy.md. Each policy has its own families: a family
// tells of the limits of those policies that have it. A refusal is told only by the policy that refuses. It allocates
// once.
func (p *Plan) Headers(d *Decision) Fields {
	var f Fields
	x, ietf := p.chosen(d, HeadersX), p.chosen(d, HeadersIETF)
	p.out = p.out[:0]
	var remaining, reset, rateLimit, policy, retryAfter, cost span
	if x >= 0 {
		remaining = p.field(strconv.AppendInt(p.out, p.left(x), 10))
		reset = p.field(strconv.AppendInt(p.out, resetSeconds(&p.results[x]), 10))
		if n := p.costOf(x); n > 0 {
			cost = p.field(strconv.AppendInt(p.out, n, 10))
		}
	}
	if ietf >= 0 {
		rateLimit = p.field(p.appendRateLimit(p.out, d, ietf))
		f.Policy, policy = p.policies()
	}
	switch {
	case d.RetryAfter == Never:
	case d.Outcome == OutcomeDenied, d.Outcome == OutcomePenalized, d.Outcome == OutcomeDegradedDenied && d.RetryAfter > 0:
		retryAfter = p.field(strconv.AppendInt(p.out, retrySeconds(d), 10))
	}
	text := string(p.out)
	if x >= 0 {
		f.Limit = p.asked[x].limit.quota
		f.Remaining, f.Reset, f.Cost = remaining.of(text), reset.of(text), cost.of(text)
	}
	if d.Outcome == OutcomeUnauthorized {
		f.Authenticate = authenticate
	}
	f.RateLimit, f.RetryAfter = rateLimit.of(text), retryAfter.of(text)
	if f.Policy == "" {
		f.Policy = policy.of(text)
	}
	return f
}

// span is where a field stands in the text of all fields.
type span struct{ start, end int }

func (s span) of(text string) string { return text[s.start:s.end] }

// field keeps what was appended to p.out as a field of its own.
func (p *Plan) field(appended []byte) span {
	s := span{len(p.out), len(appended)}
	p.out = appended
	return s
}

// chosen returns the check that a family of fields tells of, -1 if none: the decision's, or, if nothing was refused and
// the decision's policy is without the family, the tightest of those that have it.
func (p *Plan) chosen(d *Decision, family HeaderFamilies) int {
	switch {
	case d.Limit == nil:
		return -1
	case p.shows(d.shown, family):
		return d.shown
	case d.Refused():
		return -1
	default:
		return p.tightest(family)
	}
}

// appendRateLimit appends the RateLimit field: "default";r=2;t=57. Where the cost can never pass, or a bucket is full,
// there is no time to tell.
func (p *Plan) appendRateLimit(dst []byte, d *Decision, check int) []byte {
	result := &p.results[check]
	dst = append(dst, '"')
	dst = append(dst, p.asked[check].limit.policy...)
	dst = append(dst, `";r=`...)
	dst = strconv.AppendInt(dst, p.left(check), 10)
	switch {
	case d.Refused() && d.RetryAfter != Never:
		dst = strconv.AppendInt(append(dst, ";t="...), retrySeconds(d), 10)
	case !d.Refused() && result.Next > 0:
		dst = strconv.AppendInt(append(dst, ";t="...), ceilSeconds(result.Next), 10)
	}
	return dst
}

// policies returns the RateLimit-Policy field: every limit shown. One limit's item was made when the policy was
// compiled, several are put together.
func (p *Plan) policies() (item string, several span) {
	start := len(p.out)
	for i := range p.asked {
		if !p.shows(i, HeadersIETF) {
			continue
		}
		switch {
		case item == "":
			item = p.asked[i].limit.item
			continue
		case len(p.out) == start:
			p.out = append(p.out, item...)
		}
		p.out = append(append(p.out, ", "...), p.asked[i].limit.item...)
	}
	if len(p.out) > start {
		return "", span{start, len(p.out)}
	}
	return item, span{}
}

// policyItem returns a limit's item in RateLimit-Policy. w is left out where whole seconds cannot say it.
func policyItem(name string, l *Limit) string {
	item := `"` + name + `";q=` + strconv.FormatInt(l.count, 10)
	if l.calendar == 0 && l.window%Second == 0 {
		item += ";w=" + strconv.FormatInt(int64(l.window/Second), 10)
	}
	if l.algorithm == TokenBucket {
		item += ";penstock-burst=" + strconv.FormatInt(l.burst, 10)
	}
	return item
}

// resetSeconds returns X-RateLimit-Reset: rounded up, and at least one second ahead, so that a client that waits for it
// never comes too early and never spins.
func resetSeconds(r *Result) int64 { return ceilSeconds(r.At + max(r.Reset, Second)) }

// retrySeconds returns Retry-After: rounded up, at least 1.
func retrySeconds(d *Decision) int64 { return max(1, ceilSeconds(d.RetryAfter)) }

func ceilSeconds(m Micros) int64 { return ceilDiv(int64(m), int64(Second)) }
