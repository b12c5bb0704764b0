// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/internal/validate"
	"github.com/penstock/penstock/core/policy"
)

// compileResponse returns a copy with canonical header names, and with a content type if there is a
// body. If the policy sets no content type, the body's first byte determines it.
func compileResponse(source *policy.Response) *policy.Response {
	if source == nil {
		return nil
	}
	r := *source
	r.Headers = slices.Clone(source.Headers)
	for i := range r.Headers {
		r.Headers[i].Name = match.CanonicalHeader(r.Headers[i].Name)
	}
	if r.Body != "" && r.ContentType == "" {
		if r.ContentType = policy.ContentText; r.Body[0] == '{' || r.Body[0] == '[' {
			r.ContentType = policy.ContentJSON
		}
	}
	return &r
}

// BodyContentType returns the content type of a body for which the policy sets none: JSON if the
// body is a JSON object or array, text for any other body, and "" for no body. Readers of policies
// call it. The filter does not, since a JSON parser would add 11 KB to it.
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
