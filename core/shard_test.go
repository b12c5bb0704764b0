// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
	"iter"
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// fleet is a set of processes that share a rule with shards and a store. A fleet records the
// admitted requests.
type fleet struct {
	*mapStore
	t     *testing.T
	nodes []*Ruleset
	plan  Plan
	had   greedy // the admitted units, as if one client had used the whole limit
}

func newFleet(t *testing.T, nodes int, r policy.Rule) *fleet {
	t.Helper()
	r.Name, r.PerNone = "all", true
	f := &fleet{mapStore: newCounters(), t: t, had: greedy{limit: r.Limits[0]}}
	f.now = noon
	for range nodes {
		f.nodes = append(f.nodes, mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{r}}))
	}
	return f
}

// fleet.ask sends a request to a node and reports whether it is admitted.
func (f *fleet) ask(node int, a policy.Attributes) bool {
	f.plan.Reset()
	f.plan.Add(f.nodes[node], a)
	f.take(f.plan.Checks(), f.plan.Results())
	if d := f.plan.Decide(); d.Denied() {
		return false
	}
	f.had.used = append(f.had.used, usage{at: f.now, units: f.plan.Checks()[0].Cost})
	return true
}

// wantNeverOver fails the test if more units were admitted than the limit permits.
func (f *fleet) wantNeverOver(text string) {
	f.t.Helper()
	l := &f.had.limit
	if l.Algorithm() == counter.SlidingLog {
		if most := f.had.mostInSpan(); most > l.Count() {
			f.t.Fatalf("%s: %d units in a span of a window", text, most)
		}
	}
	if l.Algorithm() != counter.TokenBucket {
		for at, units := range f.had.perWindow() {
			if units > l.Count() {
				f.t.Fatalf("%s: %d units in the window from %d", text, units, at)
			}
		}
		return
	}
	for i := range f.had.used {
		units := int64(0)
		for _, u := range f.had.used[i:] {
			units += u.units
			if refilled := countGained(l, u.at-f.had.used[i].at); units > l.Capacity()+refilled {
				f.t.Fatalf("%s: %d units within %s", text, units, u.at-f.had.used[i].at)
			}
		}
	}
}

// TestShardsNeverOver: all shards together never exceed the limit, whatever the algorithm, the
// costs, the processes and the instants.
func TestShardsNeverOver(t *testing.T) {
	rng := seed.Random(t)
	for range 150 {
		shards := 2 + rng.IntN(counter.ShardsMax-1)
		count := int64(shards) * (1 + rng.Int64N(8))
		algorithm, burst := counter.FixedWindow+counter.Algorithm(rng.IntN(4)), int64(0)
		if algorithm == counter.TokenBucket {
			burst = int64(shards) * (1 + rng.Int64N(8))
		}
		l, err := counter.NewLimit(algorithm, count, []counter.Micros{999_983, counter.Second, counter.Minute}[rng.IntN(3)], burst)
		if err != nil {
			t.Fatal(err)
		}
		r := policy.Rule{Shards: shards, Limits: []counter.Limit{l}}
		if most := l.Capacity() / int64(shards); rng.IntN(2) == 0 {
			r.Cost = []policy.Cost{{N: 1 + rng.Int64N(most), Match: policy.Match{Path: []string{"/dear"}}}}
		}
		f := newFleet(t, 1+rng.IntN(4), r)
		for range 600 {
			f.ask(rng.IntN(len(f.nodes)), get("192.0.2.1", []string{"/", "/dear"}[rng.IntN(2)]))
			if rng.IntN(4) == 0 {
				f.now += counter.Micros(rng.Int64N(int64(l.Window())/2)) / counter.Micros(1+rng.IntN(50))
			}
		}
		f.wantNeverOver(fmt.Sprintf("%s over %d shards", &l, shards))
	}
}

// TestShardsBound: at the first denial at most (N-1)(M-1) units are left, and after that many
// further requests the whole limit has been admitted.
func TestShardsBound(t *testing.T) {
	rng := seed.Random(t)
	for range 200 {
		shards, nodes := 2+rng.IntN(15), 1+rng.IntN(5)
		count := int64(shards) * (1 + rng.Int64N(40))
		l, err := counter.NewLimit(counter.FixedWindow+counter.Algorithm(rng.IntN(4)), count, counter.Hour, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := newFleet(t, nodes, policy.Rule{Shards: shards, Limits: []counter.Limit{l}})
		// The windows of shards can begin at different instants, and nodes can begin at different
		// shards.
		for range rng.IntN(3) {
			f.nodes[rng.IntN(nodes)].rules[0].spread.(*shardRotation).turn.Add(rng.Uint64N(1000))
		}
		bound := int64((shards - 1) * (nodes - 1))
		text := fmt.Sprintf("%s over %d shards and %d nodes", &l, shards, nodes)
		admitted, first := int64(0), int64(-1)
		for range count + bound {
			switch node := rng.IntN(1 + rng.IntN(nodes)); {
			case f.ask(node, get("192.0.2.1", "/")):
				admitted++
			case first < 0:
				first = count - admitted
			}
		}
		if first > bound {
			t.Errorf("%s: refused while %d units are left, more than %d", text, first, bound)
		}
		if admitted != count {
			t.Errorf("%s: %d of %d let through by %d requests", text, admitted, count, count+bound)
		}
	}
}

// TestShardsBoundIsReached: the bound is reached if all nodes are at the same shard.
func TestShardsBoundIsReached(t *testing.T) {
	const shards, nodes = 4, 3
	f := newFleet(t, nodes, policy.Rule{Shards: shards, Limits: limittest.All(t, "20/1h fw")})
	for node := range nodes {
		for range shards {
			f.ask(node, get("192.0.2.1", "/"))
		}
	}
	for node := range nodes { // two of the first shard's 5 units are left
		if admitted := f.ask(node, get("192.0.2.1", "/")); admitted != (node < 2) {
			t.Errorf("node %d: %v", node, admitted)
		}
	}
	if left := 20 - len(f.had.used); left != (shards-1)*(nodes-1) {
		t.Errorf("%d left at the first denial", left)
	}
}

// TestDeniedRequestsLeaveTheirShard: a request that another rule denies leaves its shard to the
// next request, so that no pattern of requests prevents a shard from being used. Otherwise only
// every other request would be admitted here.
func TestDeniedRequestsLeaveTheirShard(t *testing.T) {
	rules := []policy.Rule{
		{Name: "all", PerNone: true, Shards: 4, Limits: limittest.All(t, "40/1h fw")},
		{Name: "one", Limits: limittest.All(t, "1/1h fw"), Match: policy.Match{IP: prefixes("198.51.100.0/24")}},
		{Name: "key", Missing: policy.MissingDeny, Unverified: true, Per: []policy.Dimension{{Kind: policy.PerHeader, Name: "X-Key"}}, Limits: limittest.All(t, "9/1h"),
			Match: policy.Match{Path: []string{"/key"}}},
	}
	for what, other := range map[string]*client{"over another limit": get("198.51.100.7", "/"), "refused at once": get("192.0.2.9", "/key")} {
		rs, store := mustCompile(t, policy.Policy{Name: "n", Rules: rules}), newCounters()
		blocks := mustCompile(t, policy.Policy{Name: "b", Rules: []policy.Rule{{Name: "no", Action: policy.ActionBlock, Match: policy.Match{Path: []string{"/blocked"}}}}})
		store.ask(t, get("198.51.100.7", "/"), rs)
		admitted := 1
		for range 40 {
			if _, d := store.ask(t, other, rs); !d.Denied() {
				t.Fatalf("%s: %+v", what, d)
			}
			if _, d := store.ask(t, get("192.0.2.2", "/blocked"), rs, blocks); d.Outcome != OutcomeBlocked {
				t.Fatalf("%s: %+v", what, d)
			}
			if _, d := store.ask(t, get("192.0.2.1", "/"), rs); !d.Denied() {
				admitted++
			}
		}
		if admitted != 40 {
			t.Errorf("%s: %d of 40 let through", what, admitted)
		}
	}
}

// TestShardsOfOneClientAreDrawn: clients that alternate do not always get the same shards.
func TestShardsOfOneClientAreDrawn(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Shards: 2, Limits: limittest.All(t, "400/1h fw")}}})
	store, met := newCounters(), map[string]int{}
	for range 200 {
		plan, _ := store.ask(t, get("192.0.2.1", "/"), rs)
		met[string(plan.Checks()[0].Key)]++
		store.ask(t, get("192.0.2.2", "/"), rs)
	}
	for key, n := range met {
		if len(met) != 2 || n < 60 {
			t.Errorf("%s is met %d times of 200", key, n)
		}
	}
}

// TestShardsOfManyClients tests a figure in docs/guides/leases.md: if clients with 100 units each,
// over 4 shards, send requests in random order, half of the clients are denied with 16 or more
// units left.
func TestShardsOfManyClients(t *testing.T) {
	rng := seed.Random(t)
	rs, store := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Shards: 4, Limits: limittest.All(t, "100/1h fw")}}}), newCounters()
	const clients = 200
	var left []int
	for admitted := map[int]int{}; len(left) < clients; {
		i := rng.IntN(clients)
		if admitted[i] < 0 {
			continue
		}
		if _, d := store.ask(t, get(fmt.Sprintf("192.0.2.%d", i), "/"), rs); !d.Denied() {
			admitted[i]++
			continue
		}
		left, admitted[i] = append(left, 100-admitted[i]), -1
	}
	slices.Sort(left)
	if median := left[clients/2]; median < 11 || median > 22 {
		t.Errorf("half are denied with %d left", median)
	}
}

// TestTheNumberOfShardsChanges: changing the number of shards admits, once, at most the additional
// units stated in docs/guides/leases.md, even while processes with both numbers run.
func TestTheNumberOfShardsChanges(t *testing.T) {
	for _, c := range []struct{ newAttributes, to, besides int }{{4, 8, 40}, {8, 4, 40}, {2, 16, 70}, {16, 2, 70}, {0, 4, 80}, {4, 0, 80}, {4, 4, 0}} {
		f := newFleet(t, 1, policy.Rule{Shards: c.newAttributes, Limits: limittest.All(t, "80/1h fw")})
		f.nodes = append(f.nodes, newFleet(t, 1, policy.Rule{Shards: c.to, Limits: limittest.All(t, "80/1h fw")}).nodes...)
		for range 160 {
			f.ask(0, get("192.0.2.1", "/"))
		}
		for turn := range 800 {
			f.ask(1-turn/20%2, get("192.0.2.1", "/"))
		}
		if n := len(f.had.used); n != 80+c.besides {
			t.Errorf("from %d to %d: %d let through, want %d", c.newAttributes, c.to, n, 80+c.besides)
		}
	}
}

// TestShardKeys: all limits of a rule use the same shard, which is written first in the braces of
// the key. Without the shard, the key is that of a rule without shards.
func TestShardKeys(t *testing.T) {
	long := &client{path: "/", header: map[string]string{"X-A": "~1:{b}", "X-B": string(make([]byte, 250)), "X-C": string(make([]byte, 250))}}
	many := []policy.Dimension{{Kind: policy.PerHeader, Name: "X-A"}, {Kind: policy.PerHeader, Name: "X-B"}, {Kind: policy.PerHeader, Name: "X-C"}}
	for _, c := range []struct {
		rule policy.Rule
		who  *client
	}{
		{policy.Rule{Name: "all", PerNone: true}, get("192.0.2.1", "/")},
		{policy.Rule{Name: "one"}, get("192.0.2.1", "/")},
		{policy.Rule{Name: "head", Per: many[:1], Unverified: true}, long},
		{policy.Rule{Name: "long", Per: many, Unverified: true}, long},
	} {
		c.rule.Limits = limittest.All(t, "12/1m", "30/1h burst 60")
		plain := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{c.rule}})
		c.rule.Shards = 6
		spread := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{c.rule}})
		seen := map[string]bool{}
		for range 6 {
			want, got := new(Plan), new(Plan)
			want.Add(plain, c.who)
			got.Add(spread, c.who)
			first, _ := counter.ShardOf(got.Checks()[0].Key)
			for i, check := range got.Checks() {
				whole := want.Checks()[i]
				shard, ok := counter.ShardOf(check.Key)
				if _, split := counter.ShardOf(whole.Key); split || !ok || shard != first {
					t.Fatalf("%s is shard %d, the first %d, of %s", check.Key, shard, first, whole.Key)
				}
				if key := counter.AppendUnshardedKey(nil, check.Key); string(key) != string(whole.Key) || string(counter.AppendUnshardedKey(nil, whole.Key)) != string(whole.Key) {
					t.Fatalf("%s is a shard of %s, want %s", check.Key, key, whole.Key)
				}
				if check.UnshardedLimit.String() != whole.Limit.String() || whole.UnshardedLimit != nil || check.Limit.Count()*6 != whole.Limit.Count() ||
					check.Limit.Capacity()*6 != whole.Limit.Capacity() {
					t.Fatalf("%s of %s, want %s", check.Limit, check.UnshardedLimit, whole.Limit)
				}
				seen[string(check.Key)] = true
			}
		}
		if len(seen) != 12 {
			t.Errorf("%s: 6 requests meet %d counters of 12", c.rule.Name, len(seen))
		}
	}
	for _, key := range []string{"", "{", "{~", "{~:a}", "{~1}", "{~x:a}", "{~64:a}", "{~-1:a}", "rl1:n:r:{a:~1:b}"} {
		if shard, ok := counter.ShardOf([]byte(key)); ok {
			t.Errorf("%q is shard %d", key, shard)
		}
	}
}

// TestShardsInHeaders: clients see the whole limit, and the remaining units as if every shard had
// as many left as this one.
func TestShardsInHeaders(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", PerNone: true, Expose: true, Shards: 4, Limits: limittest.All(t, "40/1m burst 80")}}})
	store := newCounters()
	for i, left := range []string{"76", "76", "76", "76", "72"} {
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		f := HeadersOf(plan, &d)
		if f.Limit != "80" || f.Remaining != left || f.Policy != `"r";q=40;w=60;penstock-burst=80` || d.Limit.String() != "40/1m burst 80" ||
			fmt.Sprint(d.Remaining) != left || d.Used != 80-d.Remaining {
			t.Errorf("request %d: %+v of %+v", i, f, d)
		}
	}
	plan := new(Plan)
	plan.Trace()
	plan.Add(rs, get("192.0.2.1", "/"))
	store.take(plan.Checks(), plan.Results())
	plan.Decide()
	if e := plan.Explain()[0].Rules[0]; e.Limited[0].String() != "40/1m burst 80" || e.Results[0].Remaining != 72 {
		t.Errorf("explained as %s, %+v", e.Limited[0], e.Results[0])
	}
}

// TestShardsOfAClientsOwn: limits that cannot be divided evenly lose at most a hundredth, and each
// part can hold the rule's costs.
func TestShardsOfAClientsOwn(t *testing.T) {
	for _, c := range []struct {
		parseOwnLimits string
		cost           int64
		shards         int
		part           string
		whole          string
	}{
		{parseOwnLimits: "800/1m", cost: 1, shards: 8, part: "100/1m", whole: "800/1m"},
		{parseOwnLimits: "1001/1m", cost: 1, shards: 8, part: "125/1m", whole: "1001/1m"},
		{parseOwnLimits: "15/1m", cost: 1, shards: 5, part: "3/1m", whole: "15/1m"},
		{parseOwnLimits: "7/1m", cost: 1, shards: 7, part: "1/1m", whole: "7/1m"},
		{parseOwnLimits: "97/1m", cost: 1, part: "97/1m", whole: "97/1m"},
		{parseOwnLimits: "1/1m", cost: 1, part: "1/1m", whole: "1/1m"},
		{parseOwnLimits: "800/1m", cost: 300, shards: 2, part: "400/1m", whole: "800/1m"},
		{parseOwnLimits: "800/1m", cost: 500, part: "800/1m", whole: "800/1m"},
		{parseOwnLimits: "800/1m burst 15", cost: 1, shards: 5, part: "160/1m burst 3", whole: "800/1m burst 15"},
		{parseOwnLimits: "800/day", cost: 1, shards: 8, part: "100/day", whole: "800/day"},
	} {
		who := &knownClient{&policy.Identity{Kind: "user", ID: "u", Overrides: parseOwnLimits(t, map[string]string{"r": c.parseOwnLimits, "*": "6/1m"})}, policy.CredentialValid}
		policy := policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: who}},
			Rules: []policy.Rule{{Name: "r", Shards: 8, Limits: limittest.All(t, "80000/1m"), Cost: []policy.Cost{{N: c.cost}}},
				{Name: "s", Shards: 4, Limits: limittest.All(t, "80000/1m")}, {Name: "t", Limits: limittest.All(t, "9/1m")}}}
		a := get("192.0.2.1", "/")
		a.header = map[string]string{"Authorization": "Bearer x"}
		for range 2 {
			plan := new(Plan)
			plan.Add(mustCompile(t, policy), a)
			checks := plan.Checks()
			if len(checks) != 3 || checks[0].Limit.String() != c.part || plan.asked[0].limit.wholeLimit().String() != c.whole ||
				checks[1].Limit.String() != "2/1m" || checks[2].Limit.String() != "6/1m" || int(plan.uses[0].shards) != c.shards {
				t.Errorf("%s, cost %d: %s, %s and %s over %d", c.parseOwnLimits, c.cost, checks[0].Limit, checks[1].Limit, checks[2].Limit, plan.uses[0].shards)
			}
		}
	}
}

// TestShardsOfOwnLimitsHoldEveryCharge: a shard of a client's own limit can record every charge
// that a response can cause.
func TestShardsOfOwnLimitsHoldEveryCharge(t *testing.T) {
	for own1, want := range map[string]int{"800/1m fw": 8, "100/1m fw": 4, "40/1m fw": 0, "5/1m fw": 0, "50/1m burst 800": 2, "800/1m burst 50": 2} {
		who := &knownClient{&policy.Identity{Kind: "user", ID: "u", Overrides: parseOwnLimits(t, map[string]string{"r": own1})}, policy.CredentialValid}
		rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: who}}, Rules: []policy.Rule{{Name: "r", Shards: 8,
			Limits: limittest.All(t, "80000/1m"), CostAfter: &policy.CostAfter{Header: "X-Cost", Estimate: 1, Max: 25}}}})
		a := get("192.0.2.1", "/")
		a.header = map[string]string{"Authorization": "Bearer x"}
		plan := new(Plan)
		plan.Add(rs, a)
		if got := int(plan.uses[0].shards); got != want {
			t.Errorf("%s: %d shards, want %d", own1, got, want)
		}
		if n := testing.AllocsPerRun(50, func() {
			plan.Reset()
			plan.Add(rs, a)
		}); n != 0 {
			t.Errorf("%s: planning allocates %v times", own1, n)
		}
	}
}

// TestShardsOfDescriptors: descriptors of one request under the same rule use the same shard.
func TestShardsOfDescriptors(t *testing.T) {
	r := perAttr("a", "9/1m", t)
	r.Shards = 3
	rs := compiled(t, policy.Policy{Name: "n", Rules: []policy.Rule{r}})
	for range 5 {
		plan := new(Plan)
		plan.AddDescriptors([]Descriptor{{Ruleset: rs, Attributes: entriesOnly("a", "x"), Hits: 1}, {Ruleset: rs, Attributes: entriesOnly("a", "x"), Hits: 3},
			{Ruleset: rs, Attributes: entriesOnly("a", "y"), Hits: 1}})
		checks := plan.Checks()
		if len(checks) != 2 || checks[0].Cost != 3 {
			t.Fatalf("%+v", checks)
		}
		one, _ := counter.ShardOf(checks[0].Key)
		if other, _ := counter.ShardOf(checks[1].Key); other != one {
			t.Errorf("%s and %s", checks[0].Key, checks[1].Key)
		}
	}
}

// TestShardsSettle: a charge is settled in the shard that was charged, even by another process.
func TestShardsSettle(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Shards: 2, PerNone: true, Limits: limittest.All(t, "200/1m fw"),
		CostAfter: &policy.CostAfter{Header: "X-Cost", Estimate: 10, Max: 100}, RefundOn: []policy.Statuses{{From: 500, To: 599}}}}})
	store := newCounters()
	for _, cost := range []string{"35", "3", "100", "refund"} {
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		key := string(plan.Checks()[0].Key)
		before := store.unitsUsed(key) - 10
		said, want := testAnswer{status: 200, header: map[string]string{"X-Cost": cost}}, int64(0)
		if cost == "refund" {
			said.status = 503
		} else {
			fmt.Sscan(cost, &want)
		}
		var sent, s Settlement
		if d.Denied() || !plan.Settlement(&sent) || ReadSettlement(&s, rs, sent.AppendCompact(nil, rs)) != nil {
			t.Fatalf("%s: %+v", cost, d)
		}
		checks, _ := store.settle(t, &s, said)
		if len(checks) != 1 || string(checks[0].Key) != key || store.unitsUsed(key) != before+want {
			t.Errorf("%s: %s holds %d, want %d: %+v", cost, key, store.unitsUsed(key), before+want, checks)
		}
	}
}

// TestShardsOfOnePenalty: denials by several shards of a limit count as one violation.
func TestShardsOfOnePenalty(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 2, Multipliers: []int64{1}},
		Rules: []policy.Rule{{Name: "r", Shards: 4, Limits: limittest.All(t, "4/1m fw")}}})
	plain := mustCompile(t, policy.Policy{Name: "n", Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 2, Multipliers: []int64{1}},
		Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "4/1m fw")}}})
	want := new(Plan)
	want.Add(plain, get("192.0.2.1", "/"))
	store := newCounters()
	for range 40 {
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		if plan.Checks()[1].Violation != want.Checks()[1].Violation || d.Outcome == OutcomePenalized || plan.Results()[0].Violations > 1 {
			t.Fatalf("%+v of %+v", d, plan.Results()[0])
		}
	}
}

// TestShardsAreLookedAt: AllCounters includes all shards, page by page.
func TestShardsAreLookedAt(t *testing.T) {
	rules := []policy.Rule{{Name: "a", Limits: limittest.All(t, "6/1m")}}
	for _, name := range []string{"b", "c"} {
		rules = append(rules, policy.Rule{Name: name, Shards: 64, Limits: limittest.All(t, "64/1m", "640/1h", "6400/day")})
	}
	rules = append(rules, policy.Rule{Name: "d", PerNone: true, Shards: 2, Limits: limittest.All(t, "6/1m")})
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: rules, Penalty: strictPenalty()})
	a := get("192.0.2.1", "/")
	a.now = noon
	looks, pages := readAll(t, rs, func(p *Plan) iter.Seq[[]counter.Check] { return p.AllCounters(rs, a) })
	slices.Sort(looks)
	if want := 2 + 2*64*3 + 2; len(looks) != want || len(slices.Compact(looks)) != want || pages != 7 {
		t.Errorf("%d looks on %d pages, want %d", len(looks), pages, want)
	}
	plan := new(Plan)
	for range plan.AllCounters(rs, a) {
		if c := plan.Counter(3); c.Shards != 64 || c.Limit.String() != "640/1h" || string(plan.Checks()[3].Key) != "rl1:n:b:{~0:ip:192.0.2.1}:3600s:sw" {
			t.Errorf("%+v of %s", c, plan.Checks()[3].Key)
		}
		break
	}
}
