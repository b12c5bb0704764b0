// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package core

import (
	"github.com/penstock/penstock/core/internal/validate"
	"github.com/penstock/penstock/core/policy"
)

// BodyContentType returns the content type of a body for which the policy sets none: JSON if the
// body is a JSON object or array, text for any other body, and "" for no body. The code that reads
// policies calls BodyContentType. The filter does not call it, since a JSON parser would add 11 KB
// to the filter.
func BodyContentType(body string) string {
	switch {
	case body == "":
		return ""
	case (body[0] == '{' || body[0] == '[') && validate.ValidJSON(body):
		return policy.ContentJSON
	default:
		return policy.ContentText
	}
}
