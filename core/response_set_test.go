// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/response"
)

func init() {
	var writer response.Writer // tests that use this variable do not run in parallel
	core.HeadersOf = func(p *core.Plan, d *core.Decision) core.Fields {
		f := writer.Headers(p, d)
		return core.Fields{Limit: f[response.FieldLimit], Remaining: f[response.FieldRemaining],
			Reset: f[response.FieldReset], RateLimit: f[response.FieldRateLimit], Policy: f[response.FieldPolicy],
			RetryAfter: f[response.FieldRetryAfter], Cost: f[response.FieldCost], Authenticate: response.Challenge(d)}
	}
	core.ProblemOf, core.DetailOf = response.AppendProblem, response.Detail
}
