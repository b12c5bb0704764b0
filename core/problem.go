// SPDX-License-Identifier: Apache-2.0

package core

import "strconv"

// The problem types of draft-ietf-httpapi-ratelimit-headers-10, with the titles they are registered under.
const (
	typeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	titleQuotaExceeded  = "Request cannot be satisfied as assigned quota has been exceeded"
	typeReduced         = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	titleReduced        = "Request cannot be satisfied due to temporary server capacity constraints"
	typeUnspecified     = "about:blank"
	titleForbidden      = "Forbidden"
	detailUnavailable   = "The service cannot take the request at the moment."
	detailForbidden     = "The request is not allowed."
	detailMissing       = "The request lacks what it would be counted by."
	detailNeverPasses   = "The request costs more than the limit lets through at once: it can never pass."
	detailQuotaExceeded = "Too many requests: try again in "
)

// AppendProblem appends the body of a refusal, an application/problem+json document, to dst. It appends nothing for a
// request that goes on.
func (p *Plan) AppendProblem(dst []byte, d *Decision) []byte {
	switch d.Status {
	case 0:
		return dst
	case statusDenied:
		return p.appendExceeded(dst, d)
	case statusUnavailable:
		dst = appendHead(dst, typeReduced, titleReduced, d.Status)
		dst = append(dst, `,"detail":"`+detailUnavailable+`","error":"Service unavailable"}`...)
	default:
		detail := detailForbidden
		if d.Outcome == OutcomeMissing {
			detail = detailMissing
		}
		dst = appendHead(dst, typeUnspecified, titleForbidden, d.Status)
		dst = append(append(append(dst, `,"detail":"`...), detail...), `","error":"Forbidden"}`...)
	}
	return dst
}

// appendHead appends the members that every problem has; the object stays open.
func appendHead(dst []byte, kind, title string, status int) []byte {
	dst = append(append(dst, `{"type":"`...), kind...)
	dst = append(append(dst, `","title":"`...), title...)
	return strconv.AppendInt(append(dst, `","status":`...), int64(status), 10)
}

func (p *Plan) appendExceeded(dst []byte, d *Decision) []byte {
	dst = appendHead(dst, typeQuotaExceeded, titleQuotaExceeded, d.Status)
	dst = append(dst, `,"detail":"`...)
	if d.RetryAfter == Never {
		dst = append(dst, detailNeverPasses...)
	} else {
		seconds := retrySeconds(d)
		dst = strconv.AppendInt(append(dst, detailQuotaExceeded...), seconds, 10)
		if seconds == 1 {
			dst = append(dst, " second."...)
		} else {
			dst = append(dst, " seconds."...)
		}
	}
	dst = p.appendViolated(append(dst, '"'), d)
	dst = append(dst, `,"error":"Rate limit exceeded"`...)
	if d.RetryAfter != Never {
		dst = strconv.AppendInt(append(dst, `,"retry_after":`...), retrySeconds(d), 10)
	}
	return append(dst, '}')
}

// appendViolated appends the policies that refuse, but for hidden ones; without any the member is left out, as it is when
// what refuses longest is hidden. Policy names hold nothing that JSON escapes: Compile sees to it.
func (p *Plan) appendViolated(dst []byte, d *Decision) []byte {
	if d.Limit == nil {
		return dst
	}
	opening := `,"violated-policies":["`
	for i := range p.asked {
		if !p.results[i].Refused || p.checks[i].Shadow || !p.shows(i, HeadersX|HeadersIETF|HeadersNone) {
			continue
		}
		dst = append(append(append(dst, opening...), p.asked[i].limit.policy...), '"')
		opening = `,"`
	}
	return append(dst, ']')
}
