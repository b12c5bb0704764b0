// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/validate"
	"github.com/penstock/penstock/core/policy"
)

// tierOf takes the tier from the attribute "tier".
var tierOf = []policy.Source{{Kind: policy.SourceAttr, Name: "tier"}}

// ofTier returns a request of a client with a tier.
func ofTier(tier string) *client {
	return &client{peer: netip.MustParseAddr("192.0.2.1"), attr: map[string]string{"tier": tier}}
}

// parseOwnLimits parses a client's own limits; "unlimited" alone means no limit.
func parseOwnLimits(tb testing.TB, byRule map[string]string) *policy.Overrides {
	tb.Helper()
	sets := map[string]policy.LimitSet{}
	for rule, text := range byRule {
		sets[rule] = policy.LimitSet{Unlimited: true}
		if text != "unlimited" {
			sets[rule] = policy.LimitSet{Limits: limittest.All(tb, strings.Split(text, ",")...)}
		}
	}
	o, err := policy.NewOverrides(sets)
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// TestTierKeepsConsumption: a key contains only the window and the algorithm of a limit. So a
// client that changes its tier keeps its usage in the windows that both tiers have.
func TestTierKeepsConsumption(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Tier: tierOf, Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "2/1m"),
		Tiers: map[string]policy.LimitSet{"gold": {Limits: limittest.All(t, "10/1m", "100/1h")}, "free": {Unlimited: true}}}}})
	store := newCounters()
	for range 2 {
		store.ask(t, ofTier(""), rs)
	}
	if _, d := store.ask(t, ofTier(""), rs); !d.Denied() {
		t.Fatalf("without a tier: %+v", d)
	}
	plan, d := store.ask(t, ofTier("gold"), rs)
	wantKeys(t, plan, "rl1:n:api:{ip:192.0.2.1}:60s:sw", "rl1:n:api:{ip:192.0.2.1}:3600s:sw")
	if d.Denied() || d.Policy != "api-1m" || d.Remaining != 7 || d.Used != 3 {
		t.Errorf("gold: %+v", d)
	}
	if f := HeadersOf(plan, &d); f.Policy != `"api-1m";q=10;w=60, "api-1h";q=100;w=3600` || f.Limit != "10" {
		t.Errorf("gold is told %+v", f)
	}
	if _, d = store.ask(t, ofTier(""), rs); !d.Denied() || d.Policy != "api" {
		t.Errorf("back without a tier: %+v", d)
	}
	if plan, d = store.ask(t, ofTier("free"), rs); d.Outcome != OutcomeAllowed || len(plan.Checks()) > 0 ||
		HeadersOf(plan, &d) != (Fields{}) {
		t.Errorf("unlimited: %d checks, %+v", len(plan.Checks()), d)
	}
}

// TestUnlimited: a rule that does not limit the client is not reported, never denies when the store
// does not answer, and is not charged when another rule denies.
func TestUnlimited(t *testing.T) {
	free := map[string]policy.LimitSet{"gold": {Unlimited: true}}
	rs := mustCompile(t, policy.Policy{Name: "n", Tier: tierOf, OnError: counter.OnErrorDeny, Rules: []policy.Rule{
		{Name: "api", Limits: limittest.All(t, "2/1m"), Tiers: free},
		{Name: "open", Limits: limittest.All(t, "1/1m"), OnError: counter.OnErrorAllow, Match: policy.Match{Path: []string{"/open"}}},
		{Name: "user", Limits: limittest.All(t, "1/1m"), Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "user"}}, Missing: policy.MissingDeny,
			Match: policy.Match{Path: []string{"/user"}}},
	}})
	gold := ofTier("gold")
	gold.path = "/open"
	store := newCounters()
	for _, want := range []string{"allowed", "denied"} {
		plan, d := store.ask(t, gold, rs)
		api := map[string]string{"allowed": "allowed", "denied": "uncharged"}[want]
		wantOutcomes(t, plan, map[string]string{"n/api": api, "n/open": want})
		if d.Policy != "open" {
			t.Errorf("%+v", d)
		}
	}
	plan := new(Plan)
	plan.Add(rs, gold)
	if d := plan.Degrade(); d.Denied() {
		t.Errorf("without the store: %+v", d)
	}
	wantOutcomes(t, plan, map[string]string{"n/api": "allowed", "n/open": "degraded_allowed"})
	gold.path = "/user"
	plan, d := store.ask(t, gold, rs)
	wantOutcomes(t, plan, map[string]string{"n/api": "uncharged", "n/user": "missing"})
	if d.Rule != "user" {
		t.Errorf("%+v", d)
	}
}

// TestCompileRejectsTiers tests each mistake in tiers and time zones.
func TestCompileRejectsTiers(t *testing.T) {
	one := limittest.All(t, "100/1m")
	tiers := func(name string, texts ...string) map[string]policy.LimitSet {
		return map[string]policy.LimitSet{name: {Limits: limittest.All(t, texts...)}}
	}
	many := map[string]policy.LimitSet{}
	for i := range validate.TiersMax + 1 {
		many[fmt.Sprint(i)] = policy.LimitSet{Unlimited: true}
	}
	var tooMany []counter.Limit
	for i := range counter.ChecksMax + 1 {
		tooMany = append(tooMany, limittest.Parse(t, fmt.Sprintf("1/%dm", i+1)))
	}
	gold := policy.Match{Tier: []string{"gold"}}
	for _, c := range []struct {
		rule       policy.Rule
		path, says string
	}{
		{policy.Rule{Tiers: map[string]policy.LimitSet{"a": {Unlimited: true, Limits: one}}}, ".tiers.a", "does not go with limits"},
		{policy.Rule{Tiers: map[string]policy.LimitSet{"a": {}}}, ".tiers.a", "is missing a limit"},
		{policy.Rule{Tiers: map[string]policy.LimitSet{"": {Unlimited: true}}}, ".tiers.", "names no tier"},
		{policy.Rule{Tiers: tiers(strings.Repeat("t", 256), "1/1m")}, ".tiers." + strings.Repeat("t", 64) + "…", "at most 255"},
		{policy.Rule{Tiers: map[string]policy.LimitSet{"a": {Limits: []counter.Limit{{}}}}}, ".tiers.a[0]", "is not a limit"},
		{policy.Rule{Tiers: tiers("a", "1/1m", "1/1d", "2/60s")}, ".tiers.a[2]", "limit[0]"},
		{policy.Rule{Tiers: tiers("a", "1/day", "1/1d fixed_window", "2/day")}, ".tiers.a[2]", "limit[0]"},
		{policy.Rule{Tiers: map[string]policy.LimitSet{"a": {Limits: tooMany}}}, ".tiers.a", "more than 64"},
		{policy.Rule{Tiers: many}, ".tiers", "more than 256"},
		{policy.Rule{Tiers: tiers("silver", "1/1m"), Match: gold}, ".tiers.silver", "match does not name"},
		{policy.Rule{Tiers: tiers("gold", "1/1m"), Match: gold}, ".tiers", "limit has no effect"},
		{policy.Rule{Tiers: tiers("a", "1/90s", "1/1h")}, ".tiers.a[0]", "also the name of rules[0]"},
	} {
		c.rule.Name, c.rule.Limits = "r", one
		paths, text := problemPaths(t, policy.Policy{Name: "n", Tier: tierOf,
			Rules: []policy.Rule{{Name: "r-90s", Limits: one}, c.rule}})
		if diff := cmp.Diff([]string{"rules[1]" + c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%s\nwant %q about rules[1]%s alone", text, c.says, c.path)
		}
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		policy policy.Policy
		path   string
	}{
		{policy.Policy{Timezone: berlin, Rules: []policy.Rule{{Name: "r", Limits: one}}}, "timezone"},
		{policy.Policy{Timezone: berlin, Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1/day")}}}, ""},
		{policy.Policy{Timezone: berlin, Tier: tierOf, Rules: []policy.Rule{{Name: "r", Limits: one, Tiers: tiers("a", "1/year")}}}, ""},
		{policy.Policy{Rules: []policy.Rule{{Name: "r", Limits: one, Tiers: tiers("a", "1/1m")}}}, "rules[0].tiers"},
		{policy.Policy{Tier: tierOf, Rules: []policy.Rule{{Name: "r", Action: policy.ActionBlock, Tiers: tiers("a", "1/1m")}}}, "rules[0].tiers"},
	} {
		paths, text := problemPaths(t, c.policy)
		if got := strings.Join(paths, " "); got != c.path {
			t.Errorf("%s\nwant %q alone", text, c.path)
		}
	}
}

// TestCompileFindsTooManyChecksOfATier: a policy is rejected if clients of one tier would need too
// many checks. Limits that never apply to the same client are not added up.
func TestCompileFindsTooManyChecksOfATier(t *testing.T) {
	five := policy.LimitSet{Limits: limittest.All(t, "1/1m", "1/2m", "1/3m", "1/4m", "1/5m")}
	for _, alike := range []bool{true, false} {
		p := policy.Policy{Name: "n", Tier: tierOf}
		for i := range 14 {
			tier := "gold"
			if !alike {
				tier = fmt.Sprint("tier-", i)
			}
			p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprint("r", i), Limits: limittest.All(t, "1/1m"),
				Tiers: map[string]policy.LimitSet{tier: five}})
		}
		paths, text := problemPaths(t, p)
		if (len(paths) == 1) != alike || alike && !strings.Contains(text, `of tier "gold" makes more than 64`) {
			t.Errorf("alike %v: %s", alike, text)
		}
	}
}

// TestLimitsOfAgainstOracle compares the limits in force with a literal implementation of the rule
// of precedence, on random policies.
func TestLimitsOfAgainstOracle(t *testing.T) {
	random := seed.Random(t)
	for range 2_000 {
		texts := map[string]string{"rule": "1/1m", "tier": "", "named": "", "star": ""}
		for _, where := range []string{"tier", "named", "star"} {
			texts[where] = []string{"", "unlimited", fmt.Sprintf("%d/1m", 2+random.IntN(1000))}[random.IntN(3)]
		}
		rule := policy.Rule{Name: "r", Limits: limittest.All(t, texts["rule"])}
		perHost := random.IntN(2) == 0
		if perHost {
			rule.Per = []policy.Dimension{{Kind: policy.PerHost}}
		}
		if text := texts["tier"]; text != "" {
			rule.Tiers = map[string]policy.LimitSet{"gold": {Unlimited: text == "unlimited"}}
			if text != "unlimited" {
				rule.Tiers["gold"] = policy.LimitSet{Limits: limittest.All(t, text)}
			}
		}
		mine := map[string]string{}
		if text := texts["named"]; text != "" {
			mine["r"] = text
		}
		if text := texts["star"]; text != "" {
			mine["*"] = text
		}
		who := knownClient{&policy.Identity{Kind: "user", ID: "u", User: "u", Overrides: parseOwnLimits(t, mine)}, policy.CredentialValid}
		isGold := random.IntN(2) == 0
		if isGold {
			who.identity.Tier = "gold"
		}
		want := texts["rule"]
		if isGold && texts["tier"] != "" {
			want = texts["tier"]
		}
		if !perHost && texts["star"] != "" {
			want = texts["star"]
		}
		if texts["named"] != "" {
			want = texts["named"]
		}
		rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: &who}}, Rules: []policy.Rule{rule}})
		plan, _ := newCounters().ask(t, &client{header: map[string]string{"Authorization": "Bearer x"}}, rs)
		got := "unlimited"
		if checks := plan.Checks(); len(checks) > 0 {
			got = checks[0].Limit.String()
		}
		if got != want {
			t.Fatalf("%v, gold %v, per host %v: %s, want %s", texts, isGold, perHost, got, want)
		}
	}
}
