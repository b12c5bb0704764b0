// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"fmt"
	"net/netip"

	"github.com/penstock/penstock/core"
)

func ExampleParseLimit() {
	limit, err := core.ParseLimit("10/1s burst 20")
	fmt.Println(limit.Algorithm(), limit.Count(), limit.Window(), limit.Capacity(), err)
	_, err = core.ParseLimit("100/hour")
	fmt.Println(err)
	// Output:
	// token_bucket 10 1s 20 <nil>
	// window "hour" has no number: write 1h
}

// visit is the least a front must know of a request.
type visit struct{ path, peer string }

func (v visit) Path() string                 { return v.path }
func (v visit) Method() string               { return "GET" }
func (v visit) Host() string                 { return "shop.example.com" }
func (v visit) Header(string) (string, bool) { return "", false }
func (v visit) Peer() netip.Addr             { return netip.MustParseAddr(v.peer) }
func (v visit) Query() string                { return "" }
func (v visit) Remote() netip.Addr           { return v.Peer() }
func (v visit) Now() core.Micros             { return 0 }
func (v visit) Attr(string) (string, bool)   { return "", false }

func ExamplePlan() {
	limit, _ := core.ParseLimit("2/1m fixed_window")
	ruleset, err := core.Compile(core.Policy{Name: "shop", Rules: []core.Rule{
		{Name: "api", Match: core.Match{Path: []string{"/api/*"}}, Limits: []core.Limit{limit}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	var plan core.Plan
	slots := make([]core.Slot, 1) // a store for one counter; see internal/memstore for a real one
	for range 3 {
		plan.Reset()
		plan.Add(ruleset, visit{"/api/items", "192.0.2.1"})
		if checks := plan.Checks(); len(checks) > 0 {
			core.Decide(1_700_000_000*core.Second, checks, slots, plan.Results())
		}
		decision := plan.Decide()
		fields := plan.Headers(&decision)
		fmt.Printf("%s %s %q\n", decision.Outcome, fields.RateLimit, fields.RetryAfter)
	}
	fmt.Printf("%s\n", plan.Checks()[0].Key)
	// Output:
	// allowed "api";r=1;t=40 ""
	// allowed "api";r=0;t=40 ""
	// denied "api";r=0;t=40 "40"
	// rl1:shop:api:{ip:192.0.2.1}:60s:fw
}
