// SPDX-License-Identifier: Apache-2.0

package response

import (
	"strconv"
	"strings"
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// authenticate is the challenge sent to a client whose credential is not accepted. The
// challenge names no scheme for API keys, because none is registered with IANA.
const authenticate = `Bearer error="invalid_token"`

// Challenge returns the WWW-Authenticate field of the response. Every 401 that Penstock sends has
// one; for any other response Challenge returns "".
func Challenge(d *core.Decision) string {
	if d.Outcome == core.OutcomeUnauthorized {
		return authenticate
	}
	return ""
}

// Writer writes header fields. The zero Writer is ready to use, and a Writer can be reused to save
// its buffer. A Writer must not be used concurrently.
type Writer struct {
	// Shares makes the fields share the writer's buffer. The fields are then valid until the next
	// call of Headers, which allocates nothing after the buffer has grown.
	Shares bool

	text []byte // the text of all fields of one response
}

// Headers returns the header fields of the plan's decision, as the table in docs/reference/http.md
// specifies. Each policy selects its header families, and a family shows the limits of the policies
// that selected it. The fields of a denial come only from the policy that denies. Headers allocates
// once, unless Shares is set.
func (w *Writer) Headers(p *core.Plan, d *core.Decision) Fields {
	var f Fields
	x, ietf := p.ShownCheck(d, policy.HeadersX), p.ShownCheck(d, policy.HeadersIETF)
	w.text = w.text[:0]
	var remaining, reset, rateLimit, items, retryAfter, cost span
	if x >= 0 {
		remaining = w.endField(strconv.AppendInt(w.text, p.Remaining(x), 10))
		reset = w.endField(strconv.AppendInt(w.text, resetSeconds(&p.Results()[x]), 10))
		if n := p.Cost(x); n > 0 {
			cost = w.endField(strconv.AppendInt(w.text, n, 10))
		}
	}
	if ietf >= 0 {
		rateLimit = w.endField(appendRateLimit(w.text, p, d, ietf))
		f[FieldPolicy], items = w.policiesField(p)
	}
	switch {
	case d.RetryAfter == counter.Never:
	case d.Outcome == core.OutcomeDenied, d.Outcome == core.OutcomePenalized, d.Outcome == core.OutcomeDegradedDenied && d.RetryAfter > 0:
		retryAfter = w.endField(strconv.AppendInt(w.text, retrySeconds(d), 10))
	}
	text := unsafe.String(unsafe.SliceData(w.text), len(w.text))
	if !w.Shares {
		text = strings.Clone(text)
	}
	if x >= 0 {
		f[FieldLimit] = p.Shown(x, policy.HeadersX).Quota
		f[FieldRemaining], f[FieldReset], f[FieldCost] = remaining.of(text), reset.of(text), cost.of(text)
	}
	f[FieldRateLimit], f[FieldRetryAfter] = rateLimit.of(text), retryAfter.of(text)
	if f[FieldPolicy] == "" {
		f[FieldPolicy] = items.of(text)
	}
	return f
}

// span is the position of a field in the text of all fields.
type span struct{ start, end int }

func (s span) of(text string) string { return text[s.start:s.end] }

// endField ends the current field, which consists of the text appended since the previous call.
func (w *Writer) endField(appended []byte) span {
	s := span{len(w.text), len(appended)}
	w.text = appended
	return s
}

// appendRateLimit appends the RateLimit field: "default";r=2;t=57. The parameter t is omitted if
// the cost can never pass, or if a bucket is full.
func appendRateLimit(dst []byte, p *core.Plan, d *core.Decision, check int) []byte {
	result := &p.Results()[check]
	dst = appendTexts(dst, `"`, p.Shown(check, policy.HeadersIETF).Name, `";r=`)
	dst = strconv.AppendInt(dst, p.Remaining(check), 10)
	var seconds int64
	switch {
	case d.Denied() && d.RetryAfter != counter.Never:
		seconds = retrySeconds(d)
	case !d.Denied() && result.Next > 0:
		seconds = ceilSeconds(result.Next)
	default:
		return dst
	}
	return strconv.AppendInt(appendTexts(dst, ";t="), seconds, 10)
}

// appendTexts appends the texts. One call compiles to less code in the filter than several appends.
//
//go:noinline
func appendTexts(dst []byte, texts ...string) []byte {
	for _, text := range texts {
		dst = append(dst, text...)
	}
	return dst
}

// policiesField returns the RateLimit-Policy field, which lists all shown limits. The item of a
// single limit was built when the policy was compiled; several items are joined in the writer's
// text.
func (w *Writer) policiesField(p *core.Plan) (item string, several span) {
	start := len(w.text)
	for i := range p.Checks() {
		shown := p.Shown(i, policy.HeadersIETF)
		if shown == nil {
			continue
		}
		switch {
		case item == "":
			item = shown.Item
			continue
		case len(w.text) == start:
			w.text = append(w.text, item...)
		}
		w.text = appendTexts(w.text, ", ", shown.Item)
	}
	if len(w.text) > start {
		return "", span{start, len(w.text)}
	}
	return item, span{}
}

// resetSeconds returns the value of X-RateLimit-Reset. The value is rounded up and at least one
// second in the future, so that a client that waits until then is not too early.
func resetSeconds(r *counter.Result) int64 { return ceilSeconds(r.At + max(r.Reset, counter.Second)) }

// retrySeconds returns the value of Retry-After in seconds, rounded up, at least 1.
func retrySeconds(d *core.Decision) int64 { return max(1, ceilSeconds(d.RetryAfter)) }

func ceilSeconds(m counter.Micros) int64 { return int64((m + counter.Second - 1) / counter.Second) }
