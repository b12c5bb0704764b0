// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"fmt"
	"net/netip"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
)

func ExampleParseLimit() {
	limit, err := counter.ParseLimit("10/1s burst 20")
	fmt.Println(limit.Algorithm(), limit.Count(), limit.Window(), limit.Capacity(), err)
	_, err = counter.ParseLimit("100/hour")
	fmt.Println(err)
	// Output:
	// token_bucket 10 1s 20 <nil>
	// window "hour" has no number: write 1h
}

// visit is the minimum that a front must know about a request.
type visit struct{ path, peer string }

func (v visit) Path() string                 { return v.path }
func (v visit) Method() string               { return "GET" }
func (v visit) Host() string                 { return "shop.example.com" }
func (v visit) Header(string) (string, bool) { return "", false }
func (v visit) Peer() netip.Addr             { return netip.MustParseAddr(v.peer) }
func (v visit) Query() string                { return "" }
func (v visit) Remote() netip.Addr           { return v.Peer() }
func (v visit) Now() counter.Micros          { return 0 }
func (v visit) Attr(string) (string, bool)   { return "", false }

func ExamplePlan() {
	limit, _ := counter.ParseLimit("2/1m fixed_window")
	ruleset, err := core.Compile(policy.Policy{Name: "shop", Rules: []policy.Rule{
		{Name: "api", Match: policy.Match{Path: []string{"/api/*"}}, Limits: []counter.Limit{limit}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	var plan core.Plan
	var writer response.Writer
	// a store for one counter; see internal/store/memstore for a real one
	slots := make([]counter.Slot, 1)
	for range 3 {
		plan.Reset()
		plan.Add(ruleset, visit{"/api/items", "192.0.2.1"})
		if checks := plan.Checks(); len(checks) > 0 {
			counter.Decide(1_700_000_000*counter.Second, checks, slots, plan.Results())
		}
		decision := plan.Decide()
		fields := writer.Headers(&plan, &decision)
		fmt.Printf("%s %s %q\n", decision.Outcome, fields[response.FieldRateLimit], fields[response.FieldRetryAfter])
	}
	fmt.Printf("%s\n", plan.Checks()[0].Key)
	// Output:
	// allowed "api";r=1;t=40 ""
	// allowed "api";r=0;t=40 ""
	// denied "api";r=0;t=40 "40"
	// rl1:shop:api:{ip:192.0.2.1}:60s:fw
}
