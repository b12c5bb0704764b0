// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
	hashfnv "hash/fnv"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// strictPenalty returns a penalty of twice the wait after two denials.
func strictPenalty() *counter.Penalty {
	return &counter.Penalty{Window: counter.Hour, Threshold: 2, Multipliers: []int64{2, 4}, Max: 20 * counter.Minute}
}

// TestPenaltyOfAClient: the second violation causes a penalty, which the response to the same
// request reports. The penalty covers the whole policy and only this client, and it ends.
func TestPenaltyOfAClient(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Penalty: strictPenalty(), Rules: []policy.Rule{
		{Name: "a", Limits: limittest.All(t, "1/1m fw"), Match: policy.Match{Path: []string{"/a"}}},
		{Name: "b", Limits: limittest.All(t, "9/1m fw"), Match: policy.Match{Path: []string{"/b"}}}}})
	store := newCounters() // 20.3 s into a minute
	a, b := get("192.0.2.1", "/a"), get("192.0.2.1", "/b")
	plan, d := store.ask(t, a, rs)
	wantKeys(t, plan, "rl1:n:~penalty:{ip:192.0.2.1}", "rl1:n:a:{ip:192.0.2.1}:60s:fw")
	if d.Outcome != OutcomeAllowed || d.Rule != "a" || d.Remaining != 0 {
		t.Errorf("within the limit: %+v", d)
	}
	for range 20 {
		if _, d = store.ask(t, a, rs); d.Outcome != OutcomeDenied || d.RetryAfter != 39_700*counter.Millisecond {
			t.Fatalf("one violation however often: %+v", d)
		}
	}
	store.now += 39_700 * counter.Millisecond // the next minute begins
	store.ask(t, a, rs)
	plan, d = store.ask(t, a, rs)
	if d.Outcome != OutcomePenalized || d.Status != 429 || d.RetryAfter != 2*counter.Minute || d.Rule != "a" || d.Limit != nil || d.Delay != 0 {
		t.Fatalf("two violations: %+v", d)
	}
	wantFields := Fields{RetryAfter: "120"}
	if got := HeadersOf(plan, &d); got != wantFields {
		t.Errorf("fields %+v", got)
	}
	body := problem(t, plan, &d)
	if body["type"] != "https://iana.org/assignments/http-problem-types#abnormal-usage-detected" || body["retry_after"] != 120.0 || fmt.Sprint(body["violated-policies"]) != "[a]" {
		t.Errorf("body %v", body)
	}
	if o := plan.Outcomes(); len(o) != 2 || o[0].Index != -1 || o[0].Outcome != OutcomePenalized || o[1].Outcome != OutcomeDenied {
		t.Errorf("outcomes %v", o)
	}
	store.now += counter.Minute
	plan, d = store.ask(t, b, rs)
	if d.Outcome != OutcomePenalized || d.RetryAfter != counter.Minute || d.Rule != "" {
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
	store.now += counter.Minute
	plan, d = store.ask(t, b, rs)
	if d.Outcome != OutcomeAllowed || plan.Outcomes()[0].Outcome != OutcomeNone {
		t.Errorf("after the penalty: %+v %v", d, plan.Outcomes())
	}
}

// TestClientsWithoutPenalty: exempt clients, clients without an identity, and clients without an
// applicable rule have no penalty.
func TestClientsWithoutPenalty(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "shop", Penalty: strictPenalty(), Exempt: []policy.Listed{{IP: prefixes("192.0.2.9/32")}},
		Identify: []policy.Identify{{Kind: policy.IdentifyAttr, Name: "user"}, {IPv6Prefix: 48}},
		Rules: []policy.Rule{{Name: "a", Limits: limittest.All(t, "1/1m fw"), Match: policy.Match{Path: []string{"/a"}}},
			{Name: "skipped", Limits: limittest.All(t, "1/1m fw"), Match: policy.Match{Path: []string{"/skip"}}, Missing: policy.MissingSkip,
				Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "none"}}}}})
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
				if string(check.Key[:check.ScopeLen]) != "rl1:shop:~penalty:" || i != 0 {
					t.Errorf("%s: check %d with the scope %q", c.what, i, check.Key[:check.ScopeLen])
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestViolations tests which denials count as violations, and that each counter has a distinct
// number.
func TestViolations(t *testing.T) {
	rules := []policy.Rule{
		{Name: "own", Limits: limittest.All(t, "9/1m", "99/1h")},
		{Name: "everybody", Limits: limittest.All(t, "9/1m"), PerNone: true},
		{Name: "hosts", Limits: limittest.All(t, "9/1m"), Per: []policy.Dimension{{Kind: policy.PerHost}}},
		{Name: "own-hosts", Limits: limittest.All(t, "9/1m"), Per: []policy.Dimension{{Kind: policy.PerHost}, {Kind: policy.PerClient}}},
		{Name: "shadow", Limits: limittest.All(t, "9/1m"), Action: policy.ActionLogOnly},
		throttleRule(t, "slow", "9/1m", counter.Second),
		{Name: "user", Limits: limittest.All(t, "9/1m"), Per: []policy.Dimension{{Kind: policy.PerUser}}},
	}
	users := tokenUsers{"token": {Kind: "user", ID: "u1", User: "u1"}}
	rs := mustCompile(t, policy.Policy{Name: "n", Penalty: strictPenalty(), Rules: rules,
		Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: users}, {}}})
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

// tokenUsers is a verifier with a fixed set of tokens.
type tokenUsers map[string]policy.Identity

func (u tokenUsers) Verify(token string) (*policy.Identity, policy.CredentialState) {
	if id, ok := u[token]; ok {
		return &id, policy.CredentialValid
	}
	return nil, policy.CredentialInvalid
}

func TestViolationNumbers(t *testing.T) {
	rng := seed.Random(t)
	for range 10_000 {
		key := make([]byte, rng.IntN(40))
		for i := range key {
			key[i] = byte(rng.IntN(256))
		}
		hash := hashfnv.New64a()
		_, _ = hash.Write(key)
		sum := hash.Sum64()
		want := int64(sum%(1<<52)) ^ int64(sum>>52)
		if got := violationOf(key); got != want || got < 1 || got > counter.ViolationMax {
			t.Fatalf("%x: %d, want %d", key, got, want)
		}
	}
}

// TestPenaltyAndAllow: as long as a client has no penalty, an allow rule exempts it, as in a policy
// without penalties.
func TestPenaltyAndAllow(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Penalty: strictPenalty(), Rules: []policy.Rule{
		{Name: "health", Group: "g", Action: policy.ActionAllow, Match: policy.Match{Path: []string{"/health"}}},
		{Name: "rest", Group: "g", Limits: limittest.All(t, "1/1m fw")}}})
	store := newCounters()
	if _, d := store.ask(t, get("192.0.2.1", "/health"), rs); d.Outcome != OutcomeExempt || d.Status != 0 {
		t.Errorf("before: %+v", d)
	}
	for range 3 {
		store.ask(t, get("192.0.2.1", "/"), rs)
		store.now += counter.Minute
		store.ask(t, get("192.0.2.1", "/"), rs)
		store.ask(t, get("192.0.2.1", "/"), rs)
	}
	if _, d := store.ask(t, get("192.0.2.1", "/health"), rs); d.Outcome != OutcomePenalized {
		t.Errorf("penalized: %+v", d)
	}
}

// TestPenaltyAndTooManyChecks: the penalty takes one place among the checks of a call.
func TestPenaltyAndTooManyChecks(t *testing.T) {
	var rules []policy.Rule
	for i := range counter.ChecksMax {
		rules = append(rules, policy.Rule{Name: fmt.Sprintf("r%d", i), Limits: limittest.All(t, "9/1m")})
	}
	if _, err := Compile(policy.Policy{Name: "n", Rules: rules}); err != nil {
		t.Fatalf("without a penalty: %v", err)
	}
	if _, err := Compile(policy.Policy{Name: "n", Rules: rules, Penalty: strictPenalty()}); err == nil {
		t.Error("with a penalty there is one check too many, and nobody said so")
	}
	beside := mustCompile(t, policy.Policy{Name: "beside", Penalty: strictPenalty(), Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}}})
	var plan Plan
	plan.Trace()
	plan.Add(mustCompile(t, policy.Policy{Name: "n", Rules: rules}), get("192.0.2.1", "/"))
	plan.Add(beside, get("192.0.2.1", "/"))
	d := plan.Decide()
	if said := plan.Explain()[1].Denied; said != "it meets more limits than one call of the store can check" || d.Rule != "r" {
		t.Errorf("explained as %q, refused by the rule %q", said, d.Rule)
	}
}

// TestTwoPolicies: each policy has its own penalty, and either penalty denies while it is in force.
// A failure of the store does not cause a penalty.
func TestTwoPolicies(t *testing.T) {
	first := mustCompile(t, policy.Policy{Name: "first", Penalty: strictPenalty(), Rules: []policy.Rule{{Name: "a", Limits: limittest.All(t, "9/1m fw")}}})
	second := mustCompile(t, policy.Policy{Name: "second", Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{3}},
		Rules: []policy.Rule{{Name: "b", Limits: limittest.All(t, "1/1m fw")}}})
	store := newCounters()
	store.ask(t, get("192.0.2.1", "/"), first, second)
	plan, d := store.ask(t, get("192.0.2.1", "/"), first, second)
	if d.Outcome != OutcomePenalized || d.RetryAfter != 3*39_700*counter.Millisecond {
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

// TestPoliciesOfOneNamespace: two policies of one namespace share a client's penalty record. A
// store that received two checks for it would reject the call.
func TestPoliciesOfOneNamespace(t *testing.T) {
	of := func(rule, limit string, p *counter.Penalty, methods ...policy.Identify) *Ruleset {
		return mustCompile(t, policy.Policy{Name: "shop", Identify: methods, Penalty: p, Rules: []policy.Rule{{Name: rule, Limits: limittest.All(t, limit)}}})
	}
	once := &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{2}}
	app, site := of("app", "9/1m fw", once), of("site", "1/1m fw", strictPenalty())
	store := newCounters()
	plan, _ := store.ask(t, get("192.0.2.1", "/"), app, site)
	wantKeys(t, plan, "rl1:shop:~penalty:{ip:192.0.2.1}", "rl1:shop:app:{ip:192.0.2.1}:60s:fw", "rl1:shop:site:{ip:192.0.2.1}:60s:fw")
	if checks := plan.Checks(); checks[1].Guard != 1 || checks[2].Guard != 1 {
		t.Errorf("guards: %d and %d", checks[1].Guard, checks[2].Guard)
	}
	if plan, d := store.ask(t, get("192.0.2.1", "/"), app, site); d.Outcome != OutcomePenalized || len(plan.Outcomes()) != 3 {
		t.Errorf("refused by the second policy, punished by the first: %+v", d)
	}
	byUser := of("user", "1/1m fw", strictPenalty(), policy.Identify{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true})
	request := get("192.0.2.2", "/")
	request.header = map[string]string{"X-User": "a"}
	plan, _ = store.ask(t, request, app, byUser)
	if checks := plan.Checks(); len(checks) != 4 || checks[3].Guard != 3 {
		t.Errorf("another name is another record: %+v", checks)
	}
}

// TestHiddenLimitsStayHidden: hidden limits stay hidden from clients that are penalized for them.
func TestHiddenLimitsStayHidden(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{1}}, Rules: []policy.Rule{
		{Name: "own", Limits: limittest.All(t, "1/1m fw")}, {Name: "all", Limits: limittest.All(t, "1/1m fw"), PerNone: true}}})
	store := newCounters()
	store.ask(t, get("192.0.2.1", "/"), rs)
	plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
	if got := fmt.Sprint(problem(t, plan, &d)["violated-policies"]); got != "[own]" || d.Outcome != OutcomePenalized {
		t.Errorf("%s: %+v", got, d)
	}
	if got := HeadersOf(plan, &d); got != (Fields{RetryAfter: "40"}) {
		t.Errorf("%+v", got)
	}
}

// TestGuardDoesNotAllocate: a policy with penalties causes no allocation for a request.
func TestGuardDoesNotAllocate(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Penalty: strictPenalty(), Rules: []policy.Rule{{Name: "a", Limits: limittest.All(t, "9/1m fw")}}})
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
