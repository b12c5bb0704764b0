// SPDX-License-Identifier: Apache-2.0

package response

import (
	"strconv"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/match"
)

// Detail returns the detail of a denial for people, in plain text; "" for an admitted request.
func Detail(d *core.Decision) string {
	if grpcCode(d) == 0 {
		return ""
	}
	return string(appendDetail(nil, d))
}

// appendDetail appends the detail of a denial: the rule's message, or else the reason. The reason
// contains no name, claim or identifier of a client.
func appendDetail(dst []byte, d *core.Decision) []byte {
	text := detail(d)
	if text == "" {
		return appendTryAgain(dst, d)
	}
	return append(dst, text...)
}

// detail returns the fixed detail of a denial, or "" if the detail must include the
// time of a retry.
func detail(d *core.Decision) string {
	if d.Response != nil && d.Response.Message != "" {
		return d.Response.Message
	}
	switch d.Outcome {
	case core.OutcomeUnauthorized:
		return credentialDetails[d.Credential]
	case core.OutcomeOversized:
		if d.Status == match.StatusURITooLong {
			return detailURITooLong
		}
		return detailFieldsLarge
	case core.OutcomeMissing:
		return detailMissing
	case core.OutcomeDegradedDenied:
		return detailUnavailable
	case core.OutcomeDenied, core.OutcomePenalized:
		if d.RetryAfter == counter.Never {
			return detailNeverPasses
		}
		return ""
	}
	return detailForbidden
}

// appendTryAgain appends the detail for a denied request that can be retried: the reason, and the
// number of seconds to wait.
func appendTryAgain(dst []byte, d *core.Decision) []byte {
	reason, unit := detailQuotaExceeded, " seconds."
	if d.Outcome == core.OutcomePenalized {
		reason = detailPenalized
	}
	seconds := retrySeconds(d)
	if seconds == 1 {
		unit = " second."
	}
	return appendTexts(strconv.AppendInt(appendTexts(dst, reason), seconds, 10), unit)
}
