// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	hashfnv "hash/fnv"
	"testing"
)

// strict makes two refusals a penalty of twice the wait.
func strict() *Penalty {
	return &Penalty{Window: Hour, Threshold: 2, Multipliers: []int64{2, 4}, Max: 20 * Minute}
}

// TestPenaltyOfAClient: the second violation brings a penalty, which this very answer tells; it is of the whole policy,
// of this client only, and ends.
func TestPenaltyOfAClient(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Penalty: strict(), Rules: []Rule{
		{Name: "a", Limits: limits(t, "1/1m fw"), Match: Match{Path: []string{"/a"}}},
		{Name: "b", Limits: limits(t, "9/1m fw"), Match: Match{Path: []string{"/b"}}}}})
	store := newCounters() // 20.3 s into a minute
	a, b := get("192.0.2.1", "/a"), get("192.0.2.1", "/b")
	plan, d := store.ask(t, a, rs)
	wantKeys(t, plan, "rl1:n:~penalty:{ip:192.0.2.1}", "rl1:n:a:{ip:192.0.2.1}:60s:fw")
	if d.Outcome != OutcomeAllowed || d.Rule != "a" || d.Remaining != 0 {
		t.Errorf("within the limit: %+v", d)
	}
	for range 20 {
		if _, d = store.ask(t, a, rs); d.Outcome != OutcomeDenied || d.RetryAfter != 39_700*Millisecond {
			t.Fatalf("one violation however often: %+v", d)
		}
	}
	store.now += 39_700 * Millisecond // the next minute begins
	store.ask(t, a, rs)
	plan, d = store.ask(t, a, rs)
	if d.Outcome != OutcomePenalized || d.Status != 429 || d.RetryAfter != 2*Minute || d.Rule != "a" || d.Limit != nil || d.Delay != 0 {
		t.Fatalf("two violations: %+v", d)
	}
	wantFields := Fields{RetryAfter: "120"}
	if got := plan.Headers(&d); got != wantFields {
		t.Errorf("fields %+v", got)
	}
	body := problem(t, plan, &d)
	if body["type"] != typeAbnormal || body["retry_after"] != 120.0 || fmt.Sprint(body["violated-policies"]) != "[a]" {
		t.Errorf("body %v", body)
	}
	if o := plan.Outcomes(); len(o) != 2 || o[0].Index != -1 || o[0].Outcome != OutcomePenalized || o[1].Outcome != OutcomeDenied {
		t.Errorf("outcomes %v", o)
	}
	store.now += Minute
	plan, d = store.ask(t, b, rs)
	if d.Outcome != OutcomePenalized || d.RetryAfter != Minute || d.Rule != "" {
		t.Errorf("another path: %+v", d)
	}
	if o := plan.Outcomes(); o[0].Outcome != OutcomePenalized || o[1].Outcome != OutcomeUncharged {
		t.Errorf("outcomes %v", o)
	}
	if _, named := problem(t, plan, &d)["violated-policies"]; named {
		t.Error("a penalty names a policy that has room")
	}
	if _, d = store.ask(t, get("192.0.2.2", "/a"), rs); d.Outcome != OutcomeAllowed {
		t.Errorf("another client: %+v", d)
	}
	store.now += Minute
	plan, d = store.ask(t, b, rs)
	if d.Outcome != OutcomeAllowed || plan.Outcomes()[0].Outcome != OutcomeNone {
		t.Errorf("after the penalty: %+v %v", d, plan.Outcomes())
	}
}

// TestWhoIsGuarded: exempt and unknown clients and those that no rule is for have no penalty.
func TestWhoIsGuarded(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "shop", Penalty: strict(), Exempt: []Listed{{IP: prefixes("192.0.2.9/32")}},
		Identify: []Identify{{Kind: IdentifyAttr, Name: "user"}, {IPv6Prefix: 48}},
		Rules: []Rule{{Name: "a", Limits: limits(t, "1/1m fw"), Match: Match{Path: []string{"/a"}}},
			{Name: "skipped", Limits: limits(t, "1/1m fw"), Match: Match{Path: []string{"/skip"}}, Missing: MissingSkip,
				Per: []Dimension{{Kind: PerAttr, Name: "none"}}}}})
	for _, c := range []struct {
		what string
		a    *client
		want string
	}{
		{"a client", get("192.0.2.1", "/a"), "rl1:shop:~penalty:{ip:192.0.2.1}"},
		{"a prefix", get("2001:db8:1:2::3", "/a"), "rl1:shop:~penalty:{ip:2001%3Adb8%3A1%3A%3A/48}"},
		{"a user", &client{path: "/a", attr: map[string]string{"user": "u{1}:2"}}, "rl1:shop:~penalty:{attr.user:u%7B1%7D%3A2}"},
		{"an exempt client", get("192.0.2.9", "/a"), ""},
		{"nobody", &client{path: "/a"}, ""},
		{"no rule", get("192.0.2.1", "/b"), ""},
		{"no rule but one that is skipped", get("192.0.2.1", "/skip"), ""},
	} {
		var plan Plan
		plan.Add(rs, c.a)
		var got string
		for i := range plan.Checks() {
			if check := &plan.Checks()[i]; check.Penalty != nil {
				got = string(check.Key)
				if string(check.scope()) != "rl1:shop:~penalty:" || i != 0 {
					t.Errorf("%s: check %d with the scope %q", c.what, i, check.scope())
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestViolations: whose refusals count, and that each counter has a number of its own.
func TestViolations(t *testing.T) {
	rules := []Rule{
		{Name: "own", Limits: limits(t, "9/1m", "99/1h")},
		{Name: "everybody", Limits: limits(t, "9/1m"), PerNone: true},
		{Name: "hosts", Limits: limits(t, "9/1m"), Per: []Dimension{{Kind: PerHost}}},
		{Name: "own-hosts", Limits: limits(t, "9/1m"), Per: []Dimension{{Kind: PerHost}, {Kind: PerClient}}},
		{Name: "shadow", Limits: limits(t, "9/1m"), Action: ActionLogOnly},
		throttled(t, "slow", "9/1m", Second),
		{Name: "user", Limits: limits(t, "9/1m"), Per: []Dimension{{Kind: PerUser}}},
	}
	users := users{"token": {Kind: "user", ID: "u1", User: "u1"}}
	rs := mustCompile(t, Policy{Name: "n", Penalty: strict(), Rules: rules,
		Identify: []Identify{{Kind: IdentifyJWT, Verifier: users}, {}}})
	for _, c := range []struct {
		a    *client
		want map[string]bool
	}{
		{get("192.0.2.1", "/"), map[string]bool{"own": true, "own-hosts": true}},
		{&client{header: map[string]string{"Authorization": "Bearer token"}}, map[string]bool{"own": true, "own-hosts": true,
			"user": true}},
	} {
		var plan Plan
		plan.Add(rs, c.a)
		numbers := map[int64]string{}
		for i := range plan.Checks() {
			check := &plan.Checks()[i]
			if check.Penalty != nil {
				continue
			}
			name := plan.ruleOf(i).name
			if (check.Guard == 1) != c.want[name] || (check.Violation != 0) != c.want[name] {
				t.Errorf("%s: guard %d, violation %d", check.Key, check.Guard, check.Violation)
			}
			if other := numbers[check.Violation]; other != "" && check.Violation != 0 {
				t.Errorf("%s and %s have one number", other, check.Key)
			}
			numbers[check.Violation] = string(check.Key)
		}
	}
}

// users is a verifier of tokens that are written down.
type users map[string]Identity

func (u users) Verify(token string) (*Identity, CredentialState) {
	if id, ok := u[token]; ok {
		return &id, CredentialValid
	}
	return nil, CredentialInvalid
}

func TestViolationNumbers(t *testing.T) {
	rng := randomSource(t)
	for range 10_000 {
		key := make([]byte, rng.IntN(40))
		for i := range key {
			key[i] = byte(rng.IntN(256))
		}
		hash := hashfnv.New64a()
		_, _ = hash.Write(key)
		sum := hash.Sum64()
		want := int64(sum%(1<<52)) ^ int64(sum>>52)
		if got := violationOf(key); got != want || got < 1 || got > ViolationMax {
			t.Fatalf("%x: %d, want %d", key, got, want)
		}
	}
}

// TestPenaltyAndAllow: who is not penalized is exempt where a rule allows, as without a penalty.
func TestPenaltyAndAllow(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Penalty: strict(), Rules: []Rule{
		{Name: "health", Group: "g", Action: ActionAllow, Match: Match{Path: []string{"/health"}}},
		{Name: "rest", Group: "g", Limits: limits(t, "1/1m fw")}}})
	store := newCounters()
	if _, d := store.ask(t, get("192.0.2.1", "/health"), rs); d.Outcome != OutcomeExempt || d.Status != 0 {
		t.Errorf("before: %+v", d)
	}
	for range 3 {
		store.ask(t, get("192.0.2.1", "/"), rs)
		store.now += Minute
		store.ask(t, get("192.0.2.1", "/"), rs)
		store.ask(t, get("192.0.2.1", "/"), rs)
	}
	if _, d := store.ask(t, get("192.0.2.1", "/health"), rs); d.Outcome != OutcomePenalized {
		t.Errorf("penalized: %+v", d)
	}
}

// TestPenaltyAndCrowd: the penalty takes a place among the checks of a call.
func TestPenaltyAndCrowd(t *testing.T) {
	var rules []Rule
	for i := range ChecksMax {
		rules = append(rules, Rule{Name: fmt.Sprintf("r%d", i), Limits: limits(t, "9/1m")})
	}
	if _, err := Compile(Policy{Name: "n", Rules: rules}); err != nil {
		t.Fatalf("without a penalty: %v", err)
	}
	if _, err := Compile(Policy{Name: "n", Rules: rules, Penalty: strict()}); err == nil {
		t.Error("with a penalty there is one check too many, and nobody said so")
	}
	beside := mustCompile(t, Policy{Name: "beside", Penalty: strict(), Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m")}}})
	var plan Plan
	plan.Trace()
	plan.Add(mustCompile(t, Policy{Name: "n", Rules: rules}), get("192.0.2.1", "/"))
	plan.Add(beside, get("192.0.2.1", "/"))
	d := plan.Decide()
	if said := plan.Explain()[1].Refused; said != "it meets more limits than a store is asked at once" || d.Rule != "r" {
		t.Errorf("explained as %q, refused by the rule %q", said, d.Rule)
	}
}

// TestTwoPolicies: each has its own penalty; the one in force refuses, whichever it is, and a store that fails is no
// penalty.
func TestTwoPolicies(t *testing.T) {
	first := mustCompile(t, Policy{Name: "first", Penalty: strict(), Rules: []Rule{{Name: "a", Limits: limits(t, "9/1m fw")}}})
	second := mustCompile(t, Policy{Name: "second", Penalty: &Penalty{Window: Hour, Threshold: 1, Multipliers: []int64{3}},
		Rules: []Rule{{Name: "b", Limits: limits(t, "1/1m fw")}}})
	store := newCounters()
	store.ask(t, get("192.0.2.1", "/"), first, second)
	plan, d := store.ask(t, get("192.0.2.1", "/"), first, second)
	if d.Outcome != OutcomePenalized || d.RetryAfter != 3*39_700*Millisecond {
		t.Fatalf("%+v", d)
	}
	want := []RuleOutcome{{first, -1, OutcomeNone}, {first, 0, OutcomeUncharged}, {second, -1, OutcomePenalized}, {second, 0, OutcomeDenied}}
	for i, o := range plan.Outcomes() {
		if o != want[i] {
			t.Errorf("outcome %d: %+v, want %+v", i, o, want[i])
		}
	}
	if d = plan.Degrade(); d.Outcome != OutcomeDegradedAllowed {
		t.Errorf("degraded: %+v", d)
	}
	for i, o := range plan.Outcomes() {
		if wantNone := i%2 == 0; (o.Outcome == OutcomeNone) != wantNone {
			t.Errorf("degraded, outcome %d: %v", i, o.Outcome)
		}
	}
}

// TestPoliciesOfOneNamespace share a client's record: a store that were asked for it twice would answer neither.
func TestPoliciesOfOneNamespace(t *testing.T) {
	of := func(rule, limit string, p *Penalty, methods ...Identify) *Ruleset {
		return mustCompile(t, Policy{Name: "shop", Identify: methods, Penalty: p, Rules: []Rule{{Name: rule, Limits: limits(t, limit)}}})
	}
	once := &Penalty{Window: Hour, Threshold: 1, Multipliers: []int64{2}}
	app, site := of("app", "9/1m fw", once), of("site", "1/1m fw", strict())
	store := newCounters()
	plan, _ := store.ask(t, get("192.0.2.1", "/"), app, site)
	wantKeys(t, plan, "rl1:shop:~penalty:{ip:192.0.2.1}", "rl1:shop:app:{ip:192.0.2.1}:60s:fw", "rl1:shop:site:{ip:192.0.2.1}:60s:fw")
	if checks := plan.Checks(); checks[1].Guard != 1 || checks[2].Guard != 1 {
		t.Errorf("guards: %d and %d", checks[1].Guard, checks[2].Guard)
	}
	if plan, d := store.ask(t, get("192.0.2.1", "/"), app, site); d.Outcome != OutcomePenalized || len(plan.Outcomes()) != 3 {
		t.Errorf("refused by the second policy, punished by the first: %+v", d)
	}
	byUser := of("user", "1/1m fw", strict(), Identify{Kind: IdentifyHeader, Name: "X-User", Unverified: true})
	request := get("192.0.2.2", "/")
	request.header = map[string]string{"X-User": "a"}
	plan, _ = store.ask(t, request, app, byUser)
	if checks := plan.Checks(); len(checks) != 4 || checks[3].Guard != 3 {
		t.Errorf("another name is another record: %+v", checks)
	}
}

// TestHiddenLimitsStayHidden also from those who are penalized for them.
func TestHiddenLimitsStayHidden(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Penalty: &Penalty{Window: Hour, Threshold: 1, Multipliers: []int64{1}}, Rules: []Rule{
		{Name: "own", Limits: limits(t, "1/1m fw")}, {Name: "all", Limits: limits(t, "1/1m fw"), PerNone: true}}})
	store := newCounters()
	store.ask(t, get("192.0.2.1", "/"), rs)
	plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
	if got := fmt.Sprint(problem(t, plan, &d)["violated-policies"]); got != "[own]" || d.Outcome != OutcomePenalized {
		t.Errorf("%s: %+v", got, d)
	}
	if got := plan.Headers(&d); got != (Fields{RetryAfter: "40"}) {
		t.Errorf("%+v", got)
	}
}

// TestGuardDoesNotAllocate: a policy with penalties costs a request no allocation.
func TestGuardDoesNotAllocate(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Penalty: strict(), Rules: []Rule{{Name: "a", Limits: limits(t, "9/1m fw")}}})
	var plan Plan
	a := get("192.0.2.1", "/")
	run := func() {
		plan.Reset()
		plan.Add(rs, a)
		plan.Decide()
	}
	run()
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
