// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// mapStore.look answers the checks that Looks returns for a plan.
func (c *mapStore) look(plan *Plan) {
	results := make([]counter.Result, 0, len(plan.Looks()))
	for _, one := range plan.Looks() {
		answer := make([]counter.Result, 1)
		c.take([]counter.Check{one}, answer)
		results = append(results, answer...)
	}
	plan.Looked(results)
}

// explainBeforehand explains a request without charging it.
func (c *mapStore) explainBeforehand(t *testing.T, rs *Ruleset, a policy.Attributes) (Explanation, Decision) {
	t.Helper()
	plan := new(Plan)
	plan.Trace()
	plan.Add(rs, a)
	c.look(plan)
	decision := plan.Decide()
	return plan.Explain()[0], decision
}

// TestExplainLooksAtAllShards: the sums in the explanation of a limit equal the sums of the
// client's counters, read one by one. The process that explains need not be the one that charged.
// Nothing is charged.
func TestExplainLooksAtAllShards(t *testing.T) {
	rng := seed.Random(t)
	for range 200 {
		shards := 2 + rng.IntN(counter.ShardsMax-1)
		count := int64(shards) * (1 + rng.Int64N(4))
		algorithm := counter.FixedWindow + counter.Algorithm(rng.IntN(4))
		texts := []string{fmt.Sprintf("%d/1h %s", count, algorithm), fmt.Sprintf("%d/day", 2*count)}
		policy := policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "plain", Limits: limittest.All(t, "1000/1m")},
			{Name: "all", PerNone: rng.IntN(2) == 0, Shards: shards, Limits: limittest.All(t, texts[:1+rng.IntN(2)]...)}}}
		store, a := newCounters(), get("192.0.2.1", "/")
		a.now = store.now
		charging, asking := mustCompile(t, policy), mustCompile(t, policy)
		for range rng.Int64N(2 * count) {
			store.ask(t, a, charging)
		}
		kept := fmt.Sprint(store.slots)
		e, _ := store.explainBeforehand(t, asking, a)
		if plain := &e.Rules[0]; plain.Shards != 0 || plain.Used[0] != 1000-plain.Results[0].Remaining {
			t.Errorf("of a rule without shards: %+v", plain)
		}
		remaining, used, reset := store.sumShards(asking, a)
		r := &e.Rules[1]
		for i, l := range r.Limited {
			if got := r.Results[i]; r.Shards != shards || got.Remaining != remaining[l.String()] || r.Used[i] != used[l.String()] ||
				got.Remaining+r.Used[i] != l.Capacity() || got.Reset != reset[l.String()] {
				t.Errorf("%s over %d shards: %d left and %d used until %s, where the shards say %d, %d and %s", l, r.Shards, got.Remaining,
					r.Used[i], got.Reset, remaining[l.String()], used[l.String()], reset[l.String()])
			}
		}
		if now := fmt.Sprint(store.slots); now != kept {
			t.Fatalf("looking changed %s\nto %s", kept, now)
		}
	}
}

// sumShards looks at each counter of the client separately. For each limit it returns the sums over
// all shards, and the latest reset.
func (c *mapStore) sumShards(rs *Ruleset, a policy.Attributes) (remaining, used map[string]int64, reset map[string]counter.Micros) {
	remaining, used, reset = map[string]int64{}, map[string]int64{}, map[string]counter.Micros{}
	plan := new(Plan)
	for range plan.AllCounters(rs, a) {
		c.take(plan.Checks(), plan.Results())
		for i, check := range plan.Checks() {
			limit, result := plan.Counter(i).Limit.String(), &plan.Results()[i]
			remaining[limit] += result.Remaining
			used[limit] += check.Limit.Capacity() - result.Remaining
			reset[limit] = max(reset[limit], result.Reset)
		}
	}
	return remaining, used, reset
}

// TestExplainReportsHowManyShardsDeny: a request passes as long as one shard admits it under all
// limits of the rule. Otherwise the request is denied until the first shard admits again.
func TestExplainReportsHowManyShardsDeny(t *testing.T) {
	policy := policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "all", PerNone: true, Expose: true, Shards: 3, Limits: limittest.All(t, "6/1m fw", "9/1h fw")}}}
	rs := mustCompile(t, policy)
	for _, c := range []struct {
		minute, hour [3]int64 // the used units of each shard, which has 2 a minute and 3 an hour
		denying      int
		key          string // the shard that represents the others
		remaining    int64
		wait         counter.Micros
	}{
		{remaining: 6, key: "~0"},
		{minute: [3]int64{2, 1, 2}, denying: 2, key: "~1", remaining: 1},
		{minute: [3]int64{2, 2}, hour: [3]int64{1, 1, 3}, denying: 3, key: "~0", remaining: 2, wait: counter.Minute},
		{hour: [3]int64{3, 3, 3}, denying: 3, key: "~0", remaining: 6, wait: counter.Hour},
	} {
		store := newCounters()
		store.now = store.now / counter.Hour * counter.Hour
		for shard := range 3 {
			for window, used := range map[counter.Micros]int64{counter.Minute: c.minute[shard], counter.Hour: c.hour[shard]} {
				key := fmt.Sprintf("rl1:n:all:{~%d:all}:%s:fw", shard, window)
				store.slots = add(store.slots, key, counter.Slot{State: counter.State{At: store.now, Used: used}})
			}
		}
		e, d := store.explainBeforehand(t, rs, get("192.0.2.1", "/"))
		r := &e.Rules[0]
		if r.Denying != c.denying || string(r.Checks[0].Key) != "rl1:n:all:{"+c.key+":all}:60s:fw" ||
			string(r.Checks[1].Key) != "rl1:n:all:{"+c.key+":all}:3600s:fw" || r.Results[0].Remaining != c.remaining {
			t.Errorf("%+v: %d refuse, %d left, %s and %s", c, r.Denying, r.Results[0].Remaining, r.Checks[0].Key, r.Checks[1].Key)
		}
		if d.Denied() != (c.denying == 3) || d.RetryAfter != c.wait {
			t.Errorf("%+v: %s, retry after %s", c, d.Outcome, d.RetryAfter)
		}
	}
}

// add adds a slot to a store.
func add(slots map[string]counter.Slot, key string, slot counter.Slot) map[string]counter.Slot {
	if slots == nil {
		slots = map[string]counter.Slot{}
	}
	slots[key] = slot
	return slots
}

// TestExplainUnitsLostByDivision: units lost by dividing a limit are neither remaining nor used.
func TestExplainUnitsLostByDivision(t *testing.T) {
	who := &knownClient{&policy.Identity{Kind: "user", ID: "u", User: "u", Overrides: parseOwnLimits(t, map[string]string{"all": "15/1h"})}, policy.CredentialValid}
	rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: who}},
		Rules: []policy.Rule{{Name: "all", PerNone: true, Shards: 8, Limits: limittest.All(t, "80/1h")}}})
	store, a := newCounters(), get("192.0.2.1", "/")
	a.header = map[string]string{"Authorization": "Bearer x"}
	store.ask(t, a, rs)
	e, _ := store.explainBeforehand(t, rs, a)
	if r := &e.Rules[0]; r.Limited[0].Capacity() != 15 || r.Results[0].Remaining != 7 || r.Used[0] != 1 || r.Shards != 8 {
		t.Errorf("%+v", r)
	}
}

// TestLooksChargeNothing: Looks returns an OpLook check for every check of a plan, each for a
// different counter, and none causes a penalty.
func TestLooksChargeNothing(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Penalty: strictPenalty(), Rules: []policy.Rule{{Name: "a", Limits: limittest.All(t, "1/1m")},
		{Name: "b", Shards: 64, Limits: limittest.All(t, "64/1m", "640/1h")}}})
	plan := new(Plan)
	plan.Trace()
	plan.Add(rs, get("192.0.2.1", "/"))
	keys := map[string]bool{}
	for _, c := range plan.Looks() {
		if keys[string(c.Key)] = true; c.Op != counter.OpLook || c.Guard != 0 || c.Violation != 0 {
			t.Errorf("%+v", c)
		}
	}
	if len(keys) != 1+1+2*64 || len(plan.Looks()) != len(keys) || !keys["rl1:n:b:{~63:ip:192.0.2.1}:3600s:sw"] {
		t.Errorf("%d looks at %d counters", len(plan.Looks()), len(keys))
	}
}
