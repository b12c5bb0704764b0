// SPDX-License-Identifier: Apache-2.0

package response_test

import (
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/request"
)

// get returns a GET request.
func get(peer, path string) *request.Attributes {
	return &request.Attributes{PathText: path, MethodText: "GET", HostText: "example.com", PeerAddr: netip.MustParseAddr(peer)}
}

// mapStore is a store that keeps its counters in a map, at a fixed time.
type mapStore struct {
	now   counter.Micros
	slots map[string]counter.Slot
}

func newCounters() *mapStore {
	return &mapStore{now: 1_700_000_000*counter.Second + 300*counter.Millisecond, slots: map[string]counter.Slot{}}
}

func (c *mapStore) take(checks []counter.Check, results []counter.Result) {
	slots := make([]counter.Slot, len(checks))
	for i := range checks {
		slots[i] = c.slots[string(checks[i].Key)]
	}
	counter.Decide(c.now, checks, slots, results)
	for i := range checks {
		if slots[i].Write {
			c.slots[string(checks[i].Key)] = slots[i]
		}
	}
}

// mapStore.ask decides a request under the policies.
func (c *mapStore) ask(t *testing.T, a policy.Attributes, policies ...*core.Ruleset) (*core.Plan, core.Decision) {
	t.Helper()
	plan := new(core.Plan)
	for _, rs := range policies {
		plan.Add(rs, a)
	}
	c.take(plan.Checks(), plan.Results())
	return plan, plan.Decide()
}

func compile(t *testing.T, p policy.Policy) *core.Ruleset {
	t.Helper()
	rs, err := core.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func headers(plan *core.Plan, d *core.Decision) response.Fields {
	return new(response.Writer).Headers(plan, d)
}
