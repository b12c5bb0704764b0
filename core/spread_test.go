// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"slices"
	"testing"
)

// fleet is processes that count one rule with shards for everybody in one store, and what they let through.
type fleet struct {
	*counters
	t     *testing.T
	nodes []*Ruleset
	plan  Plan
	// had is what was let through, as of a single client of the whole limit.
	had greedy
}

func newFleet(t *testing.T, nodes int, r Rule) *fleet {
	t.Helper()
	r.Name, r.PerNone = "all", true
	f := &fleet{counters: newCounters(), t: t, had: greedy{limit: r.Limits[0]}}
	f.now = noon
	for range nodes {
		f.nodes = append(f.nodes, mustCompile(t, Policy{Name: "n", Rules: []Rule{r}}))
	}
	return f
}

// ask makes a request of a node and reports whether it is let through.
func (f *fleet) ask(node int, a Attributes) bool {
	f.plan.Reset()
	f.plan.Add(f.nodes[node], a)
	f.take(f.plan.Checks(), f.plan.Results())
	if d := f.plan.Decide(); d.Refused() {
		return false
	}
	f.had.used = append(f.had.used, usage{at: f.now, units: f.plan.Checks()[0].Cost})
	return true
}

// keeps fails the test if more was let through than the limit does.
func (f *fleet) keeps(text string) {
	f.t.Helper()
	l := &f.had.limit
	if l.algorithm == SlidingLog {
		if most := f.had.mostInSpan(); most > l.count {
			f.t.Fatalf("%s: %d units in a span of a window", text, most)
		}
	}
	if l.algorithm != TokenBucket {
		for at, units := range f.had.perWindow() {
			if units > l.count {
				f.t.Fatalf("%s: %d units in the window from %d", text, units, at)
			}
		}
		return
	}
	for i := range f.had.used {
		units := int64(0)
		for _, u := range f.had.used[i:] {
			units += u.units
			if refilled := mulDiv(l.count, int64(u.at-f.had.used[i].at), int64(l.window)); units > l.burst+refilled {
				f.t.Fatalf("%s: %d units within %s", text, units, u.at-f.had.used[i].at)
			}
		}
	}
}

// TestShardsNeverOver: whatever the algorithm, the costs, the processes and the instants, all shards together keep what the
// whole limit promises.
func TestShardsNeverOver(t *testing.T) {
	rng := randomSource(t)
	for range 150 {
		shards := 2 + rng.IntN(ShardsMax-1)
		count := int64(shards) * (1 + rng.Int64N(8))
		algorithm, burst := FixedWindow+Algorithm(rng.IntN(4)), int64(0)
		if algorithm == TokenBucket {
			burst = int64(shards) * (1 + rng.Int64N(8))
		}
		l, err := NewLimit(algorithm, count, []Micros{999_983, Second, Minute}[rng.IntN(3)], burst)
		if err != nil {
			t.Fatal(err)
		}
		r := Rule{Shards: shards, Limits: []Limit{l}}
		if most := l.Capacity() / int64(shards); rng.IntN(2) == 0 {
			r.Cost = []Cost{{N: 1 + rng.Int64N(most), Match: Match{Path: []string{"/dear"}}}}
		}
		f := newFleet(t, 1+rng.IntN(4), r)
		for range 600 {
			f.ask(rng.IntN(len(f.nodes)), get("192.0.2.1", []string{"/", "/dear"}[rng.IntN(2)]))
			if rng.IntN(4) == 0 {
				f.now += Micros(rng.Int64N(int64(l.window)/2)) / Micros(1+rng.IntN(50))
			}
		}
		f.keeps(fmt.Sprintf("%s over %d shards", &l, shards))
	}
}

// TestShardsBound: the first refusal leaves (N-1)(M-1) units at most, and after as many requests more the whole limit has been
// let through.
func TestShardsBound(t *testing.T) {
	rng := randomSource(t)
	for range 200 {
		shards, nodes := 2+rng.IntN(15), 1+rng.IntN(5)
		count := int64(shards) * (1 + rng.Int64N(40))
		l, err := NewLimit(FixedWindow+Algorithm(rng.IntN(4)), count, Hour, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := newFleet(t, nodes, Rule{Shards: shards, Limits: []Limit{l}})
		for range rng.IntN(3) { // turns need not begin together, nor where a shard does
			f.nodes[rng.IntN(nodes)].rules[0].spread.(*turns).turn.Add(rng.Uint64N(1000))
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

// TestShardsBoundIsReached: by nodes that are all at the same shard.
func TestShardsBoundIsReached(t *testing.T) {
	const shards, nodes = 4, 3
	f := newFleet(t, nodes, Rule{Shards: shards, Limits: limits(t, "20/1h fw")})
	for node := range nodes {
		for range shards {
			f.ask(node, get("192.0.2.1", "/"))
		}
	}
	for node := range nodes { // of the first shard's 5 units are 2 left
		if admitted := f.ask(node, get("192.0.2.1", "/")); admitted != (node < 2) {
			t.Errorf("node %d: %v", node, admitted)
		}
	}
	if left := 20 - len(f.had.used); left != (shards-1)*(nodes-1) {
		t.Errorf("%d left at the first refusal", left)
	}
}

// TestTurnsThatCameToNothing: a request that is refused for something else leaves its shard to the next, so that no order of
// requests keeps shards from being asked. By turns, only every other one is let in here.
func TestTurnsThatCameToNothing(t *testing.T) {
	rules := []Rule{
		{Name: "all", PerNone: true, Shards: 4, Limits: limits(t, "40/1h fw")},
		{Name: "one", Limits: limits(t, "1/1h fw"), Match: Match{IP: prefixes("198.51.100.0/24")}},
		{Name: "key", Missing: MissingDeny, Unverified: true, Per: []Dimension{{Kind: PerHeader, Name: "X-Key"}}, Limits: limits(t, "9/1h"),
			Match: Match{Path: []string{"/key"}}},
	}
	for what, other := range map[string]*client{"over another limit": get("198.51.100.7", "/"), "refused at once": get("192.0.2.9", "/key")} {
		rs, store := mustCompile(t, Policy{Name: "n", Rules: rules}), newCounters()
		blocks := mustCompile(t, Policy{Name: "b", Rules: []Rule{{Name: "no", Action: ActionBlock, Match: Match{Path: []string{"/blocked"}}}}})
		store.ask(t, get("198.51.100.7", "/"), rs)
		admitted := 1
		for range 40 {
			if _, d := store.ask(t, other, rs); !d.Refused() {
				t.Fatalf("%s: %+v", what, d)
			}
			if _, d := store.ask(t, get("192.0.2.2", "/blocked"), rs, blocks); d.Outcome != OutcomeBlocked {
				t.Fatalf("%s: %+v", what, d)
			}
			if _, d := store.ask(t, get("192.0.2.1", "/"), rs); !d.Refused() {
				admitted++
			}
		}
		if admitted != 40 {
			t.Errorf("%s: %d of 40 let through", what, admitted)
		}
	}
}

// TestShardsOfOneClientAreDrawn: clients that come by turns do not always meet the same shards.
func TestShardsOfOneClientAreDrawn(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Shards: 2, Limits: limits(t, "400/1h fw")}}})
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

// TestShardsOfManyClients holds what docs/policy.md says: of clients with 100 units over 4 shards that come in any order, half are
// refused with 16 or more left.
func TestShardsOfManyClients(t *testing.T) {
	rng := randomSource(t)
	rs, store := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Shards: 4, Limits: limits(t, "100/1h fw")}}}), newCounters()
	const clients = 200
	var left []int
	for admitted := map[int]int{}; len(left) < clients; {
		i := rng.IntN(clients)
		if admitted[i] < 0 {
			continue
		}
		if _, d := store.ask(t, get(fmt.Sprintf("192.0.2.%d", i), "/"), rs); !d.Refused() {
			admitted[i]++
			continue
		}
		left, admitted[i] = append(left, 100-admitted[i]), -1
	}
	slices.Sort(left)
	if median := left[clients/2]; median < 11 || median > 22 {
		t.Errorf("half are refused with %d left", median)
	}
}

// TestTheNumberOfShardsChanges: what may be let through besides, once, is what docs/policy.md says; also while there are processes
// of both.
func TestTheNumberOfShardsChanges(t *testing.T) {
	for _, c := range []struct{ from, to, besides int }{{4, 8, 40}, {8, 4, 40}, {2, 16, 70}, {16, 2, 70}, {0, 4, 80}, {4, 0, 80}, {4, 4, 0}} {
		f := newFleet(t, 1, Rule{Shards: c.from, Limits: limits(t, "80/1h fw")})
		f.nodes = append(f.nodes, newFleet(t, 1, Rule{Shards: c.to, Limits: limits(t, "80/1h fw")}).nodes...)
		for range 160 {
			f.ask(0, get("192.0.2.1", "/"))
		}
		for turn := range 800 {
			f.ask(1-turn/20%2, get("192.0.2.1", "/"))
		}
		if n := len(f.had.used); n != 80+c.besides {
			t.Errorf("from %d to %d: %d let through, want %d", c.from, c.to, n, 80+c.besides)
		}
	}
}

// TestShardKeys: all limits of a rule meet one shard, which stands in the braces; and whose counter it is stands beside it
// as before.
func TestShardKeys(t *testing.T) {
	long := &client{path: "/", header: map[string]string{"X-A": "~1:{b}", "X-B": string(make([]byte, 250)), "X-C": string(make([]byte, 250))}}
	many := []Dimension{{PerHeader, "X-A"}, {PerHeader, "X-B"}, {PerHeader, "X-C"}}
	for _, c := range []struct {
		rule Rule
		who  *client
	}{
		{Rule{Name: "all", PerNone: true}, get("192.0.2.1", "/")},
		{Rule{Name: "one"}, get("192.0.2.1", "/")},
		{Rule{Name: "head", Per: many[:1], Unverified: true}, long},
		{Rule{Name: "long", Per: many, Unverified: true}, long},
	} {
		c.rule.Limits = limits(t, "12/1m", "30/1h burst 60")
		plain := mustCompile(t, Policy{Name: "n", Rules: []Rule{c.rule}})
		c.rule.Shards = 6
		spread := mustCompile(t, Policy{Name: "n", Rules: []Rule{c.rule}})
		seen := map[string]bool{}
		for range 6 {
			want, got := new(Plan), new(Plan)
			want.Add(plain, c.who)
			got.Add(spread, c.who)
			first, _ := ShardOf(got.Checks()[0].Key)
			for i, check := range got.Checks() {
				whole := want.Checks()[i]
				shard, ok := ShardOf(check.Key)
				if _, split := ShardOf(whole.Key); split || !ok || shard != first {
					t.Fatalf("%s is shard %d, the first %d, of %s", check.Key, shard, first, whole.Key)
				}
				if key := AppendWholeKey(nil, check.Key); string(key) != string(whole.Key) || string(AppendWholeKey(nil, whole.Key)) != string(whole.Key) {
					t.Fatalf("%s is a shard of %s, want %s", check.Key, key, whole.Key)
				}
				if check.Whole.String() != whole.Limit.String() || whole.Whole != nil || check.Limit.count*6 != whole.Limit.count ||
					check.Limit.burst*6 != whole.Limit.burst {
					t.Fatalf("%s of %s, want %s", check.Limit, check.Whole, whole.Limit)
				}
				seen[string(check.Key)] = true
			}
		}
		if len(seen) != 12 {
			t.Errorf("%s: 6 requests meet %d counters of 12", c.rule.Name, len(seen))
		}
	}
	for _, key := range []string{"", "{", "{~", "{~:a}", "{~1}", "{~x:a}", "{~64:a}", "{~-1:a}", "rl1:n:r:{a:~1:b}"} {
		if shard, ok := ShardOf([]byte(key)); ok {
			t.Errorf("%q is shard %d", key, shard)
		}
	}
}

// TestShardsAreTold: clients are told of the whole limit, and of what a shard has left as if the others had as much.
func TestShardsAreTold(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", PerNone: true, Expose: true, Shards: 4, Limits: limits(t, "40/1m burst 80")}}})
	store := newCounters()
	for i, left := range []string{"76", "76", "76", "76", "72"} {
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		f := plan.Headers(&d)
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

// TestShardsOfAClientsOwn: limits that cannot be divided lose a hundredth at most, and hold what the rule's costs take.
func TestShardsOfAClientsOwn(t *testing.T) {
	for _, c := range []struct {
		own    string
		cost   int64
		shards int
		part   string
		whole  string
	}{
		{"800/1m", 1, 8, "100/1m", "800/1m"},
		{"1001/1m", 1, 8, "125/1m", "1001/1m"},
		{"15/1m", 1, 5, "3/1m", "15/1m"},
		{"7/1m", 1, 7, "1/1m", "7/1m"},
		{"97/1m", 1, 0, "97/1m", "97/1m"},
		{"1/1m", 1, 0, "1/1m", "1/1m"},
		{"800/1m", 300, 2, "400/1m", "800/1m"},
		{"800/1m", 500, 0, "800/1m", "800/1m"},
		{"800/1m burst 15", 1, 5, "160/1m burst 3", "800/1m burst 15"},
		{"800/day", 1, 8, "100/day", "800/day"},
	} {
		who := &knownClient{&Identity{Kind: "user", ID: "u", Overrides: own(t, map[string]string{"r": c.own, "*": "6/1m"})}, CredentialValid}
		policy := Policy{Name: "n", Identify: []Identify{{Kind: IdentifyJWT, Verifier: who}},
			Rules: []Rule{{Name: "r", Shards: 8, Limits: limits(t, "80000/1m"), Cost: []Cost{{N: c.cost}}},
				{Name: "s", Shards: 4, Limits: limits(t, "80000/1m")}, {Name: "t", Limits: limits(t, "9/1m")}}}
		a := get("192.0.2.1", "/")
		a.header = map[string]string{"Authorization": "Bearer x"}
		for range 2 {
			plan := new(Plan)
			plan.Add(mustCompile(t, policy), a)
			checks := plan.Checks()
			if len(checks) != 3 || checks[0].Limit.String() != c.part || plan.asked[0].limit.told().String() != c.whole ||
				checks[1].Limit.String() != "2/1m" || checks[2].Limit.String() != "6/1m" || int(plan.uses[0].shards) != c.shards {
				t.Errorf("%s, cost %d: %s, %s and %s over %d", c.own, c.cost, checks[0].Limit, checks[1].Limit, checks[2].Limit, plan.uses[0].shards)
			}
		}
	}
}

// TestShardsOfAClientsOwnHoldWhatResponsesSay: a shard of a client's own limit takes all that is charged to it in the end.
func TestShardsOfAClientsOwnHoldWhatResponsesSay(t *testing.T) {
	for own1, want := range map[string]int{"800/1m fw": 8, "100/1m fw": 4, "40/1m fw": 0, "5/1m fw": 0, "50/1m burst 800": 2, "800/1m burst 50": 2} {
		who := &knownClient{&Identity{Kind: "user", ID: "u", Overrides: own(t, map[string]string{"r": own1})}, CredentialValid}
		rs := mustCompile(t, Policy{Name: "n", Identify: []Identify{{Kind: IdentifyJWT, Verifier: who}}, Rules: []Rule{{Name: "r", Shards: 8,
			Limits: limits(t, "80000/1m"), CostAfter: &CostAfter{Header: "X-Cost", Estimate: 1, Max: 25}}}})
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

// TestShardsOfDescriptors: descriptions of one request that meet a rule meet one shard of it.
func TestShardsOfDescriptors(t *testing.T) {
	r := perAttr("a", "9/1m", t)
	r.Shards = 3
	rs := compiled(t, Policy{Name: "n", Rules: []Rule{r}})
	for range 5 {
		plan := new(Plan)
		plan.AddDescriptors([]Descriptor{{Ruleset: rs, Attributes: entries("a", "x"), Hits: 1}, {Ruleset: rs, Attributes: entries("a", "x"), Hits: 3},
			{Ruleset: rs, Attributes: entries("a", "y"), Hits: 1}})
		checks := plan.Checks()
		if len(checks) != 2 || checks[0].Cost != 3 {
			t.Fatalf("%+v", checks)
		}
		one, _ := ShardOf(checks[0].Key)
		if other, _ := ShardOf(checks[1].Key); other != one {
			t.Errorf("%s and %s", checks[0].Key, checks[1].Key)
		}
	}
}

// TestShardsSettle: what was charged is settled in the shard that was charged, in another process too.
func TestShardsSettle(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Shards: 2, PerNone: true, Limits: limits(t, "200/1m fw"),
		CostAfter: &CostAfter{Header: "X-Cost", Estimate: 10, Max: 100}, RefundOn: []Statuses{{500, 599}}}}})
	store := newCounters()
	for _, cost := range []string{"35", "3", "100", "refund"} {
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		key := string(plan.Checks()[0].Key)
		before := store.used(key) - 10
		said, want := answer{status: 200, header: map[string]string{"X-Cost": cost}}, int64(0)
		if cost == "refund" {
			said.status = 503
		} else {
			fmt.Sscan(cost, &want)
		}
		var sent, s Settlement
		if d.Refused() || !plan.Settlement(&sent) || ReadSettlement(&s, rs, sent.AppendCompact(nil, rs)) != nil {
			t.Fatalf("%s: %+v", cost, d)
		}
		checks, _ := store.settle(t, &s, said)
		if len(checks) != 1 || string(checks[0].Key) != key || store.used(key) != before+want {
			t.Errorf("%s: %s holds %d, want %d: %+v", cost, key, store.used(key), before+want, checks)
		}
	}
}

// TestShardsOfOnePenalty: a limit is one violation, whichever of its shards refuses.
func TestShardsOfOnePenalty(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Penalty: &Penalty{Window: Hour, Threshold: 2, Multipliers: []int64{1}},
		Rules: []Rule{{Name: "r", Shards: 4, Limits: limits(t, "4/1m fw")}}})
	plain := mustCompile(t, Policy{Name: "n", Penalty: &Penalty{Window: Hour, Threshold: 2, Multipliers: []int64{1}},
		Rules: []Rule{{Name: "r", Limits: limits(t, "4/1m fw")}}})
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

// TestShardsAreLookedAt: all of them, page by page.
func TestShardsAreLookedAt(t *testing.T) {
	rules := []Rule{{Name: "a", Limits: limits(t, "6/1m")}}
	for _, name := range []string{"b", "c"} {
		rules = append(rules, Rule{Name: name, Shards: 64, Limits: limits(t, "64/1m", "640/1h", "6400/day")})
	}
	rules = append(rules, Rule{Name: "d", PerNone: true, Shards: 2, Limits: limits(t, "6/1m")})
	rs := mustCompile(t, Policy{Name: "n", Rules: rules, Penalty: strict()})
	a := get("192.0.2.1", "/")
	a.now = noon
	looks, pages := all(t, rs, func(p *Plan, from int) int { return p.AddAll(rs, a, from) })
	slices.Sort(looks)
	if want := 2 + 2*64*3 + 2; len(looks) != want || len(slices.Compact(looks)) != want || pages != 7 {
		t.Errorf("%d looks on %d pages, want %d", len(looks), pages, want)
	}
	plan := new(Plan)
	plan.AddAll(rs, a, 0)
	if c := plan.Counter(3); c.Shards != 64 || c.Limit.String() != "640/1h" || string(plan.Checks()[3].Key) != "rl1:n:b:{~0:ip:192.0.2.1}:3600s:sw" {
		t.Errorf("%+v of %s", c, plan.Checks()[3].Key)
	}
}

// TestShardsDoNotAllocate: neither in the plan, nor where turns come back.
func TestShardsDoNotAllocate(t *testing.T) {
	rules := []Rule{{Name: "all", PerNone: true, Shards: 4, Limits: limits(t, "4/1m", "400/1h")},
		{Name: "own", Shards: 64, Limits: limits(t, "640/1m"), Cost: []Cost{{N: 2}}}}
	rs := mustCompile(t, Policy{Name: "n", Penalty: strict(), Rules: rules})
	var a Attributes = get("192.0.2.1", "/")
	var plan Plan
	refused := []Result{{}, {Refused: true, Wait: Second}, {}, {}}
	if n := testing.AllocsPerRun(200, func() {
		plan.Reset()
		plan.Add(rs, a)
		plan.Aside()
		copy(plan.Results(), refused)
		if d := plan.Decide(); !d.Refused() {
			t.Fatal("admitted")
		}
	}); n != 0 {
		t.Errorf("planning and deciding allocates %v times", n)
	}
}

// BenchmarkShards is a plan of one rule, with shards and without.
func BenchmarkShards(b *testing.B) {
	for _, shards := range []int{0, 8} {
		b.Run(fmt.Sprint(shards), func(b *testing.B) {
			rs := mustCompile(b, Policy{Name: "n", Rules: []Rule{{Name: "all", PerNone: true, Shards: shards, Limits: limits(b, "800/1m")}}})
			var a Attributes = get("192.0.2.1", "/")
			var plan Plan
			for b.Loop() {
				plan.Reset()
				plan.Add(rs, a)
				plan.Decide()
			}
		})
	}
}
