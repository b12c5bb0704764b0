// SPDX-License-Identifier: Apache-2.0

package core

import "strconv"

// The problem types of draft-ietf-httpapi-ratelimit-headers-10, with the titles of its examples (one word of the third spelt right).
const (
	typeQuotaExceeded  = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	titleQuotaExceeded = "Request cannot be satisfied as assigned quota has been exceeded"
	typeReduced        = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	titleReduced       = "Request cannot be satisfied due to temporary server capacity constraints"
	typeAbnormal       = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
	titleAbnormal      = "Request not satisfied due to detection of abnormal request pattern"
	typeUnspecified    = "about:blank"
	titleForbidden     = "Forbidden"
	titleUnauthorized  = "Unauthorized"
	titleURITooLong    = "URI Too Long"
	titleFieldsLarge   = "Request Header Fields Too Large"
)

// What refusals say to people.
const (
	detailUnavailable   = "The service cannot take the request at the moment."
	detailForbidden     = "The request is not allowed."
	detailURITooLong    = "The path is longer than 8192 bytes, or has more than 128 segments."
	detailFieldsLarge   = "A header field is longer than 8192 bytes, or has more than 1000 elements."
	detailMissing       = "The request lacks what it would be counted by."
	detailNeverPasses   = "The request costs more than the limit lets through at once: it can never pass."
	detailQuotaExceeded = "Too many requests: try again in "
	detailPenalized     = "Too many requests, again and again: try again in "
)

// credentialDetails say what is wrong with a credential. They tell nobody what a right one would be.
var credentialDetails = [CredentialStateCount]string{
	CredentialAbsent:    "The request carries no credential.",
	CredentialMalformed: "The credential is malformed.",
	CredentialInvalid:   "The credential is not valid.",
	CredentialExpired:   "The credential is expired, or not in force yet.",
	CredentialUnknown:   "The credential is not known.",
	CredentialValid:     "The credential is not accepted.",
	CredentialRevoked:   "The credential was revoked.",
	CredentialInactive:  "The credential is not active.",
	CredentialLapsed:    "The credential is expired.",
}

// AppendProblem appends the body of a refusal to dst: the one that the rule has written, or else an
// application/problem+json document; [Decision.ContentType] says which. It appends nothing for a request that goes on.
func (p *Plan) AppendProblem(dst []byte, d *Decision) []byte {
	if d.Response != nil && d.Response.Body != "" {
		return append(dst, d.Response.Body...)
	}
	switch d.Outcome {
	case OutcomeDenied:
		return p.appendExceeded(dst, d, typeQuotaExceeded, titleQuotaExceeded)
	case OutcomePenalized:
		return p.appendExceeded(dst, d, typeAbnormal, titleAbnormal)
	case OutcomeDegradedDenied:
		return appendPlain(dst, d, typeReduced, titleReduced, "Service unavailable")
	case OutcomeUnauthorized:
		return appendPlain(dst, d, typeUnspecified, titleUnauthorized, titleUnauthorized)
	case OutcomeOversized:
		title := titleFieldsLarge
		if d.Status == statusURITooLong {
			title = titleURITooLong
		}
		return appendPlain(dst, d, typeUnspecified, title, title)
	case OutcomeBlocked, OutcomeMissing:
		return appendPlain(dst, d, typeUnspecified, titleForbidden, titleForbidden)
	default:
		return dst
	}
}

// appendPlain appends a problem that says no more than why.
//
//go:noinline
func appendPlain(dst []byte, d *Decision, kind, title, short string) []byte {
	dst = appendHead(dst, d, kind, title)
	return append(append(append(dst, `,"error":"`...), short...), `"}`...)
}

// appendHead appends the members that every problem has; the object stays open.
func appendHead(dst []byte, d *Decision, kind, title string) []byte {
	dst = append(append(dst, `{"type":"`...), kind...)
	dst = append(append(dst, `","title":"`...), title...)
	dst = strconv.AppendInt(append(dst, `","status":`...), int64(d.Status), 10)
	dst = append(dst, `,"detail":"`...)
	if d.Response != nil && d.Response.Message != "" {
		dst = appendJSON(dst, d.Response.Message)
	} else {
		dst = appendDetail(dst, d) // our own sentences hold nothing that JSON escapes
	}
	return append(dst, '"')
}

func (p *Plan) appendExceeded(dst []byte, d *Decision, kind, title string) []byte {
	dst = appendHead(dst, d, kind, title)
	dst = p.appendViolated(dst, d)
	dst = append(dst, `,"error":"Rate limit exceeded"`...)
	if d.RetryAfter != Never {
		dst = strconv.AppendInt(append(dst, `,"retry_after":`...), retrySeconds(d), 10)
	}
	return append(dst, '}')
}

// appendViolated appends the policies that refuse, but for hidden ones; without any the member is left out, as it is when
// what refuses longest is hidden. Policy names hold nothing that JSON escapes: Compile sees to it.
func (p *Plan) appendViolated(dst []byte, d *Decision) []byte {
	if d.Limit == nil && d.Outcome != OutcomePenalized {
		return dst
	}
	opening, named := `,"violated-policies":["`, false
	for i := range p.asked {
		if !p.results[i].Refused || p.checks[i].Shadow || !p.shows(i, HeadersX|HeadersIETF|HeadersNone) {
			continue
		}
		dst = append(append(append(dst, opening...), p.asked[i].limit.policy...), '"')
		opening, named = `,"`, true
	}
	if !named {
		return dst
	}
	return append(dst, ']')
}
