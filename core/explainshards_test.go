// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"testing"
)

// look answers the looks of a plan.
func (c *counters) look(plan *Plan) {
	results := make([]Result, 0, len(plan.Looks()))
	for _, one := range plan.Looks() {
		answer := make([]Result, 1)
		c.take([]Check{one}, answer)
		results = append(results, answer...)
	}
	plan.Looked(results)
}

// explainBeforehand explains a request that is not made.
func (c *counters) explainBeforehand(t *testing.T, rs *Ruleset, a Attributes) (Explanation, Decision) {
	t.Helper()
	plan := new(Plan)
	plan.Trace()
	plan.Add(rs, a)
	c.look(plan)
	decision := plan.Decide()
	return plan.Explain()[0], decision
}

// TestExplainLooksAtAllShards: what is told of a limit is the sum of what its shards say to who looks at each of the client's
// counters, whatever the algorithm, the cost and the process that asks; and nothing is charged.
func TestExplainLooksAtAllShards(t *testing.T) {
	rng := randomSource(t)
	for range 200 {
		shards := 2 + rng.IntN(ShardsMax-1)
		count := int64(shards) * (1 + rng.Int64N(4))
		algorithm := FixedWindow + Algorithm(rng.IntN(4))
		texts := []string{fmt.Sprintf("%d/1h %s", count, algorithm), fmt.Sprintf("%d/day", 2*count)}
		policy := Policy{Name: "n", Rules: []Rule{{Name: "plain", Limits: limits(t, "1000/1m")},
			{Name: "all", PerNone: rng.IntN(2) == 0, Shards: shards, Limits: limits(t, texts[:1+rng.IntN(2)]...)}}}
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
		remaining, used, reset := store.sums(asking, a)
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

// sums looks at each counter of who asks by itself, and returns by limit what all shards have, and when the last is reset.
func (c *counters) sums(rs *Ruleset, a Attributes) (remaining, used map[string]int64, reset map[string]Micros) {
	remaining, used, reset = map[string]int64{}, map[string]int64{}, map[string]Micros{}
	plan := new(Plan)
	for from, more := 0, true; more; more = from != 0 {
		plan.Reset()
		from = plan.AddAll(rs, a, from)
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

// TestExplainSaysHowManyShardsRefuse: a request goes on as long as there is a shard that lets it through under all limits of
// the rule, and is refused until the first does again.
func TestExplainSaysHowManyShardsRefuse(t *testing.T) {
	policy := Policy{Name: "n", Rules: []Rule{{Name: "all", PerNone: true, Expose: true, Shards: 3, Limits: limits(t, "6/1m fw", "9/1h fw")}}}
	rs := mustCompile(t, policy)
	for _, c := range []struct {
		minute, hour [3]int64 // what each shard has used: of 2, and of 3
		refusing     int
		key          string // of the shard that stands for the others
		remaining    int64
		wait         Micros
	}{
		{remaining: 6, key: "~0"},
		{minute: [3]int64{2, 1, 2}, refusing: 2, key: "~1", remaining: 1},
		{minute: [3]int64{2, 2}, hour: [3]int64{1, 1, 3}, refusing: 3, key: "~0", remaining: 2, wait: Minute},
		{hour: [3]int64{3, 3, 3}, refusing: 3, key: "~0", remaining: 6, wait: Hour},
	} {
		store := newCounters()
		store.now = store.now / Hour * Hour
		for shard := range 3 {
			for window, used := range map[Micros]int64{Minute: c.minute[shard], Hour: c.hour[shard]} {
				key := fmt.Sprintf("rl1:n:all:{~%d:all}:%s:fw", shard, window)
				store.slots = add(store.slots, key, Slot{State: State{At: store.now, Used: used}})
			}
		}
		e, d := store.explainBeforehand(t, rs, get("192.0.2.1", "/"))
		r := &e.Rules[0]
		if r.Refusing != c.refusing || string(r.Checks[0].Key) != "rl1:n:all:{"+c.key+":all}:60s:fw" ||
			string(r.Checks[1].Key) != "rl1:n:all:{"+c.key+":all}:3600s:fw" || r.Results[0].Remaining != c.remaining {
			t.Errorf("%+v: %d refuse, %d left, %s and %s", c, r.Refusing, r.Results[0].Remaining, r.Checks[0].Key, r.Checks[1].Key)
		}
		if d.Refused() != (c.refusing == 3) || d.RetryAfter != c.wait {
			t.Errorf("%+v: %s, retry after %s", c, d.Outcome, d.RetryAfter)
		}
	}
}

// add adds a slot to those of a store.
func add(slots map[string]Slot, key string, slot Slot) map[string]Slot {
	if slots == nil {
		slots = map[string]Slot{}
	}
	slots[key] = slot
	return slots
}

// TestExplainWhatDivisionLoses: it is neither left nor used.
func TestExplainWhatDivisionLoses(t *testing.T) {
	who := &knownClient{&Identity{Kind: "user", ID: "u", User: "u", Overrides: own(t, map[string]string{"all": "15/1h"})}, CredentialValid}
	rs := mustCompile(t, Policy{Name: "n", Identify: []Identify{{Kind: IdentifyJWT, Verifier: who}},
		Rules: []Rule{{Name: "all", PerNone: true, Shards: 8, Limits: limits(t, "80/1h")}}})
	store, a := newCounters(), get("192.0.2.1", "/")
	a.header = map[string]string{"Authorization": "Bearer x"}
	store.ask(t, a, rs)
	e, _ := store.explainBeforehand(t, rs, a)
	if r := &e.Rules[0]; r.Limited[0].Capacity() != 15 || r.Results[0].Remaining != 7 || r.Used[0] != 1 || r.Shards != 8 {
		t.Errorf("%+v", r)
	}
}

// TestLooksChargeNothing: they are looks of all that a plan asks, each at another counter, with nobody's penalty in their wake.
func TestLooksChargeNothing(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Penalty: strict(), Rules: []Rule{{Name: "a", Limits: limits(t, "1/1m")},
		{Name: "b", Shards: 64, Limits: limits(t, "64/1m", "640/1h")}}})
	plan := new(Plan)
	plan.Trace()
	plan.Add(rs, get("192.0.2.1", "/"))
	keys := map[string]bool{}
	for _, c := range plan.Looks() {
		if keys[string(c.Key)] = true; c.Op != OpLook || c.Guard != 0 || c.Violation != 0 {
			t.Errorf("%+v", c)
		}
	}
	if len(keys) != 1+1+2*64 || len(plan.Looks()) != len(keys) || !keys["rl1:n:b:{~63:ip:192.0.2.1}:3600s:sw"] {
		t.Errorf("%d looks at %d counters", len(plan.Looks()), len(keys))
	}
}
