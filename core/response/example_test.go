// SPDX-License-Identifier: Apache-2.0

package response_test

import (
	"fmt"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/request"
)

// A decision becomes the header fields of the response, and the body of a denial.
func ExampleWriter_Headers() {
	limit, err := counter.ParseLimit("1/1m fixed_window")
	if err != nil {
		fmt.Println(err)
		return
	}
	ruleset, err := core.Compile(policy.Policy{Name: "shop", Rules: []policy.Rule{{Name: "api", Limits: []counter.Limit{limit}}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	var plan core.Plan
	var writer response.Writer
	slots := make([]counter.Slot, 1) // a store for one counter; see internal/store/memstore for a real one
	for range 2 {
		plan.Reset()
		plan.Add(ruleset, &request.Attributes{PathText: "/"})
		counter.Decide(1_700_000_000*counter.Second, plan.Checks(), slots, plan.Results())
		decision := plan.Decide()
		fields := writer.Headers(&plan, &decision)
		for i, name := range response.FieldNames {
			if fields[i] != "" {
				fmt.Printf("%s: %s\n", name, fields[i])
			}
		}
		if decision.Denied() {
			fmt.Printf("%d %s\n", decision.Status, response.Detail(&decision))
		}
	}
	// Output:
	// x-ratelimit-limit: 1
	// x-ratelimit-remaining: 0
	// x-ratelimit-reset: 1700000040
	// ratelimit: "api";r=0;t=40
	// ratelimit-policy: "api";q=1;w=60
	// x-ratelimit-limit: 1
	// x-ratelimit-remaining: 0
	// x-ratelimit-reset: 1700000040
	// ratelimit: "api";r=0;t=40
	// ratelimit-policy: "api";q=1;w=60
	// retry-after: 40
	// 429 Too many requests: try again in 40 seconds.
}

// Merge returns no fields to set if the upstream's own fields leave the client fewer requests.
func ExampleMerge() {
	own := response.Fields{response.FieldLimit: "100", response.FieldRemaining: "40"}
	for _, remaining := range []string{"3", "60"} {
		upstream := [][2]string{{"x-ratelimit-limit", "80"}, {"x-ratelimit-remaining", remaining}}
		fmt.Println(response.Merge(&own, 40, upstream))
	}
	// Output:
	// []
	// [[x-ratelimit-limit 100] [x-ratelimit-remaining 40]]
}
