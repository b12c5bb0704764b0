// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// TestShardsDoNotAllocate: neither planning nor returning a shard's turn allocates.
func TestShardsDoNotAllocate(t *testing.T) {
	rules := []policy.Rule{{Name: "all", PerNone: true, Shards: 4, Limits: limittest.All(t, "4/1m", "400/1h")},
		{Name: "own", Shards: 64, Limits: limittest.All(t, "640/1m"), Cost: []policy.Cost{{N: 2}}}}
	rs := mustCompile(t, policy.Policy{Name: "n", Penalty: strictPenalty(), Rules: rules})
	var a policy.Attributes = get("192.0.2.1", "/")
	var plan Plan
	denied := []counter.Result{{}, {Denied: true, Wait: counter.Second}, {}, {}}
	if n := testing.AllocsPerRun(200, func() {
		plan.Reset()
		plan.Add(rs, a)
		plan.LocalDecision()
		copy(plan.Results(), denied)
		if d := plan.Decide(); !d.Denied() {
			t.Fatal("admitted")
		}
	}); n != 0 {
		t.Errorf("planning and deciding allocates %v times", n)
	}
}

// BenchmarkShards measures the plan of one rule with and without shards.
func BenchmarkShards(b *testing.B) {
	for _, shards := range []int{0, 8} {
		b.Run(fmt.Sprint(shards), func(b *testing.B) {
			rs := mustCompile(b, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "all", PerNone: true, Shards: shards, Limits: limittest.All(b, "800/1m")}}})
			var a policy.Attributes = get("192.0.2.1", "/")
			var plan Plan
			for b.Loop() {
				plan.Reset()
				plan.Add(rs, a)
				plan.Decide()
			}
		})
	}
}
