// SPDX-License-Identifier: Apache-2.0

package response

import (
	"strconv"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// The problem types of draft-ietf-httpapi-ratelimit-headers-10, with the titles of its examples
// (with a spelling error in the third corrected).
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

// The details of denials, for people.
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

// credentialDetails describe what is wrong with a credential, by its state. No request is denied
// because its credential is valid, so the text for that state is only a precaution.
var credentialDetails = [policy.CredentialStateCount]string{
	policy.CredentialAbsent:    "The request carries no credential.",
	policy.CredentialMalformed: "The credential is malformed.",
	policy.CredentialInvalid:   "The credential is not valid.",
	policy.CredentialExpired:   "The credential is expired, or not in force yet.",
	policy.CredentialUnknown:   "The credential is not known.",
	policy.CredentialValid:     "The credential is not accepted.",
	policy.CredentialRevoked:   "The credential was revoked.",
	policy.CredentialInactive:  "The credential is not active.",
	policy.CredentialLapsed:    "The credential is expired.",
}

// ContentType returns the content type of what [AppendProblem] appends.
func ContentType(d *core.Decision) string {
	if d.Response != nil && d.Response.ContentType != "" {
		return d.Response.ContentType
	}
	return policy.ContentProblem
}

// AppendProblem appends the body of a denial to dst: the body that the rule sets, or else an
// application/problem+json document. [ContentType] returns the content type. For an admitted
// request AppendProblem appends nothing.
func AppendProblem(dst []byte, p *core.Plan, d *core.Decision) []byte {
	if d.Response != nil && d.Response.Body != "" {
		return append(dst, d.Response.Body...)
	}
	switch d.Outcome {
	case core.OutcomeDenied:
		return appendExceeded(dst, p, d, typeQuotaExceeded, titleQuotaExceeded)
	case core.OutcomePenalized:
		return appendExceeded(dst, p, d, typeAbnormal, titleAbnormal)
	case core.OutcomeDegradedDenied:
		return appendPlain(dst, d, typeReduced, titleReduced, "Service unavailable")
	case core.OutcomeUnauthorized:
		return appendPlain(dst, d, typeUnspecified, titleUnauthorized, titleUnauthorized)
	case core.OutcomeOversized:
		title := titleFieldsLarge
		if d.Status == match.StatusURITooLong {
			title = titleURITooLong
		}
		return appendPlain(dst, d, typeUnspecified, title, title)
	case core.OutcomeBlocked, core.OutcomeMissing:
		return appendPlain(dst, d, typeUnspecified, titleForbidden, titleForbidden)
	default:
		return dst
	}
}

// appendPlain appends a problem that has only the common members and the error.
//
//go:noinline
func appendPlain(dst []byte, d *core.Decision, kind, title, short string) []byte {
	dst = appendHead(dst, d, kind, title)
	return appendTexts(dst, `,"error":"`, short, `"}`)
}

// appendHead appends the members that every problem has. appendHead does not close the object.
func appendHead(dst []byte, d *core.Decision, kind, title string) []byte {
	dst = appendTexts(dst, `{"type":"`, kind, `","title":"`, title, `","status":`)
	dst = appendTexts(strconv.AppendInt(dst, int64(d.Status), 10), `,"detail":"`)
	if d.Response != nil && d.Response.Message != "" {
		dst = slim.AppendJSON(dst, d.Response.Message)
	} else {
		dst = appendDetail(dst, d) // the built-in details need no JSON escapes
	}
	return append(dst, '"')
}

// appendExceeded appends the problem of a denial by limits or by a penalty.
func appendExceeded(dst []byte, p *core.Plan, d *core.Decision, kind, title string) []byte {
	dst = appendHead(dst, d, kind, title)
	dst = appendViolated(dst, p, d)
	dst = appendTexts(dst, `,"error":"Rate limit exceeded"`)
	if d.RetryAfter != counter.Never {
		dst = strconv.AppendInt(appendTexts(dst, `,"retry_after":`), retrySeconds(d), 10)
	}
	return append(dst, '}')
}

// appendViolated appends the policies that deny, except hidden ones. appendViolated omits the
// member if no policy is left, or if the policy with the longest wait is hidden. Policy names need
// no JSON escapes, because Compile restricts them.
func appendViolated(dst []byte, p *core.Plan, d *core.Decision) []byte {
	if d.Limit == nil && d.Outcome != core.OutcomePenalized {
		return dst
	}
	opening, named := `,"violated-policies":["`, false
	checks, results := p.Checks(), p.Results()
	for i := range checks {
		if !results[i].Denied || checks[i].Shadow {
			continue
		}
		shown := p.Shown(i, policy.HeadersX|policy.HeadersIETF|policy.HeadersNone)
		if shown == nil {
			continue
		}
		dst = appendTexts(dst, opening, shown.Name, `"`)
		opening, named = `,"`, true
	}
	if !named {
		return dst
	}
	return append(dst, ']')
}

// InvalidTarget is the body of the response to a request for which [core.ServesTarget] is false.
const InvalidTarget = `{"type":"about:blank","title":"Bad Request","status":400,` +
	`"detail":"The target or the host is of a form that is not served."}`
