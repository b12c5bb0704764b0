// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// An Overrides holds a client's own limits, by the name of the rule whose limits they replace.
func ExampleNewOverrides() {
	limit, err := counter.ParseLimit("500/1m")
	if err != nil {
		fmt.Println(err)
		return
	}
	own, err := policy.NewOverrides(map[string]policy.LimitSet{
		"search":         {Limits: []counter.Limit{limit}},
		policy.EveryRule: {Unlimited: true},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, rule := range own.Rules() {
		set, _ := own.Of(rule)
		fmt.Println(rule, set.Unlimited, set.Limits)
	}
	// Output:
	// * true []
	// search false [500/1m]
}

func ExampleProblem_String() {
	problem := policy.Problem{
		Path:   "rules[0].limit[0]",
		Value:  "10",
		Why:    "has no window",
		Remedy: "write COUNT/WINDOW, for example 100/1m",
		Place:  "policy.yaml:12",
		Rule:   "search",
	}
	fmt.Println(problem)
	// Output:
	// policy.yaml:12: rules[0] "search".limit[0]: "10": has no window; write COUNT/WINDOW, for example 100/1m
}
