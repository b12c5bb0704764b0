// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tierOf is a policy's word for tiers: the attribute "tier".
var tierOf = []Source{{Kind: SourceAttr, Name: "tier"}}

// ofTier is a request of a client of a tier.
func ofTier(tier string) *client {
	return &client{peer: netip.MustParseAddr("192.0.2.1"), attr: map[string]string{"tier": tier}}
}

// own returns limits of a client's own; "unlimited" alone is no limit.
func own(tb testing.TB, byRule map[string]string) *Overrides {
	tb.Helper()
	sets := map[string]LimitSet{}
	for rule, text := range byRule {
		sets[rule] = LimitSet{Unlimited: true}
		if text != "unlimited" {
			sets[rule] = LimitSet{Limits: limits(tb, strings.Split(text, ",")...)}
		}
	}
	o, err := NewOverrides(sets)
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// TestTierKeepsWhatWasConsumed: the key holds window and algorithm only, so a client that changes its tier goes on from
// what it has consumed, in those windows that both tiers have.
func TestTierKeepsWhatWasConsumed(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Tier: tierOf, Rules: []Rule{{Name: "api", Limits: limits(t, "2/1m"),
		Tiers: map[string]LimitSet{"gold": {Limits: limits(t, "10/1m", "100/1h")}, "free": {Unlimited: true}}}}})
	store := newCounters()
	for range 2 {
		store.ask(t, ofTier(""), rs)
	}
	if _, d := store.ask(t, ofTier(""), rs); !d.Refused() {
		t.Fatalf("without a tier: %+v", d)
	}
	plan, d := store.ask(t, ofTier("gold"), rs)
	wantKeys(t, plan, "rl1:n:api:{ip:192.0.2.1}:60s:sw", "rl1:n:api:{ip:192.0.2.1}:3600s:sw")
	if d.Refused() || d.Policy != "api-1m" || d.Remaining != 7 || d.Used != 3 {
		t.Errorf("gold: %+v", d)
	}
	if f := plan.Headers(&d); f.Policy != `"api-1m";q=10;w=60, "api-1h";q=100;w=3600` || f.Limit != "10" {
		t.Errorf("gold is told %+v", f)
	}
	if _, d = store.ask(t, ofTier(""), rs); !d.Refused() || d.Policy != "api" {
		t.Errorf("back without a tier: %+v", d)
	}
	if plan, d = store.ask(t, ofTier("free"), rs); d.Outcome != OutcomeAllowed || len(plan.Checks()) > 0 ||
		plan.Headers(&d) != (Fields{}) {
		t.Errorf("unlimited: %d checks, %+v", len(plan.Checks()), d)
	}
}

// TestUnlimited: beside other rules it is told nothing of, is never refused for the store's sake, and is uncharged when
// another refuses.
func TestUnlimited(t *testing.T) {
	free := map[string]LimitSet{"gold": {Unlimited: true}}
	rs := mustCompile(t, Policy{Name: "n", Tier: tierOf, OnError: OnErrorDeny, Rules: []Rule{
		{Name: "api", Limits: limits(t, "2/1m"), Tiers: free},
		{Name: "open", Limits: limits(t, "1/1m"), OnError: OnErrorAllow, Match: Match{Path: []string{"/open"}}},
		{Name: "user", Limits: limits(t, "1/1m"), Per: []Dimension{{Kind: PerAttr, Name: "user"}}, Missing: MissingDeny,
			Match: Match{Path: []string{"/user"}}},
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
	if d := plan.Degrade(); d.Refused() {
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

// TestCompileRefusesTiers holds each mistake about tiers and time zones.
func TestCompileRefusesTiers(t *testing.T) {
	one := limits(t, "100/1m")
	tiers := func(name string, texts ...string) map[string]LimitSet {
		return map[string]LimitSet{name: {Limits: limits(t, texts...)}}
	}
	many := map[string]LimitSet{}
	for i := range tiersMax + 1 {
		many[fmt.Sprint(i)] = LimitSet{Unlimited: true}
	}
	var crowd []Limit
	for i := range ChecksMax + 1 {
		crowd = append(crowd, mustLimit(t, fmt.Sprintf("1/%dm", i+1)))
	}
	gold := Match{Tier: []string{"gold"}}
	for _, c := range []struct {
		rule       Rule
		path, says string
	}{
		{Rule{Tiers: map[string]LimitSet{"a": {Unlimited: true, Limits: one}}}, ".tiers.a", "does not go with limits"},
		{Rule{Tiers: map[string]LimitSet{"a": {}}}, ".tiers.a", "is missing a limit"},
		{Rule{Tiers: map[string]LimitSet{"": {Unlimited: true}}}, ".tiers.", "names no tier"},
		{Rule{Tiers: tiers(strings.Repeat("t", 256), "1/1m")}, ".tiers." + strings.Repeat("t", 64) + "…", "at most 255"},
		{Rule{Tiers: map[string]LimitSet{"a": {Limits: []Limit{{}}}}}, ".tiers.a[0]", "is not a limit"},
		{Rule{Tiers: tiers("a", "1/1m", "1/1d", "2/60s")}, ".tiers.a[2]", "limit[0]"},
		{Rule{Tiers: tiers("a", "1/day", "1/1d fixed_window", "2/day")}, ".tiers.a[2]", "limit[0]"},
		{Rule{Tiers: map[string]LimitSet{"a": {Limits: crowd}}}, ".tiers.a", "more than 64"},
		{Rule{Tiers: many}, ".tiers", "more than 256"},
		{Rule{Tiers: tiers("silver", "1/1m"), Match: gold}, ".tiers.silver", "match does not name"},
		{Rule{Tiers: tiers("gold", "1/1m"), Match: gold}, ".tiers", "limit has no effect"},
		{Rule{Tiers: tiers("a", "1/90s", "1/1h")}, ".tiers.a[0]", "also the name of rules[0]"},
	} {
		c.rule.Name, c.rule.Limits = "r", one
		paths, text := problemPaths(t, Policy{Name: "n", Tier: tierOf,
			Rules: []Rule{{Name: "r-90s", Limits: one}, c.rule}})
		if diff := cmp.Diff([]string{"rules[1]" + c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%s\nwant %q about rules[1]%s alone", text, c.says, c.path)
		}
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		policy Policy
		path   string
	}{
		{Policy{Timezone: berlin, Rules: []Rule{{Name: "r", Limits: one}}}, "timezone"},
		{Policy{Timezone: berlin, Rules: []Rule{{Name: "r", Limits: limits(t, "1/day")}}}, ""},
		{Policy{Timezone: berlin, Tier: tierOf, Rules: []Rule{{Name: "r", Limits: one, Tiers: tiers("a", "1/year")}}}, ""},
		{Policy{Rules: []Rule{{Name: "r", Limits: one, Tiers: tiers("a", "1/1m")}}}, "rules[0].tiers"},
		{Policy{Tier: tierOf, Rules: []Rule{{Name: "r", Action: ActionBlock, Tiers: tiers("a", "1/1m")}}}, "rules[0].tiers"},
	} {
		paths, text := problemPaths(t, c.policy)
		if got := strings.Join(paths, " "); got != c.path {
			t.Errorf("%s\nwant %q alone", text, c.path)
		}
	}
}

// TestCompileFindsCrowdsOfATier: what only clients of a tier would meet too much of is refused, too; limits that no client
// meets together are not.
func TestCompileFindsCrowdsOfATier(t *testing.T) {
	five := LimitSet{Limits: limits(t, "1/1m", "1/2m", "1/3m", "1/4m", "1/5m")}
	for _, alike := range []bool{true, false} {
		p := Policy{Name: "n", Tier: tierOf}
		for i := range 14 {
			tier := "gold"
			if !alike {
				tier = fmt.Sprint("tier-", i)
			}
			p.Rules = append(p.Rules, Rule{Name: fmt.Sprint("r", i), Limits: limits(t, "1/1m"),
				Tiers: map[string]LimitSet{tier: five}})
		}
		paths, text := problemPaths(t, p)
		if (len(paths) == 1) != alike || alike && !strings.Contains(text, `of tier "gold" meets more than 64`) {
			t.Errorf("alike %v: %s", alike, text)
		}
	}
}

// TestLimitsOfAgainstOracle compares whose limits hold with the rule of precedence written down, on random policies.
func TestLimitsOfAgainstOracle(t *testing.T) {
	random := randomSource(t)
	for range 2_000 {
		texts := map[string]string{"rule": "1/1m", "tier": "", "named": "", "star": ""}
		for _, where := range []string{"tier", "named", "star"} {
			texts[where] = []string{"", "unlimited", fmt.Sprintf("%d/1m", 2+random.IntN(1000))}[random.IntN(3)]
		}
		rule := Rule{Name: "r", Limits: limits(t, texts["rule"])}
		perHost := random.IntN(2) == 0
		if perHost {
			rule.Per = []Dimension{{Kind: PerHost}}
		}
		if text := texts["tier"]; text != "" {
			rule.Tiers = map[string]LimitSet{"gold": {Unlimited: text == "unlimited"}}
			if text != "unlimited" {
				rule.Tiers["gold"] = LimitSet{Limits: limits(t, text)}
			}
		}
		mine := map[string]string{}
		if text := texts["named"]; text != "" {
			mine["r"] = text
		}
		if text := texts["star"]; text != "" {
			mine["*"] = text
		}
		who := knownClient{&Identity{Kind: "user", ID: "u", User: "u", Overrides: own(t, mine)}, CredentialValid}
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
		rs := mustCompile(t, Policy{Name: "n", Identify: []Identify{{Kind: IdentifyJWT, Verifier: &who}}, Rules: []Rule{rule}})
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
