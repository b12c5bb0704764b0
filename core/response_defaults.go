// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"github.com/penstock/penstock/core/internal/match"
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
