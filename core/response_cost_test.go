// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// afterProblem is a rule with exactly one problem.
type afterProblem struct {
	rule       policy.Rule
	path, says string
}

// wantProblems compiles each rule in a policy of its own and compares the problem with the expected
// one.
func wantProblems(t *testing.T, problems []afterProblem) {
	t.Helper()
	for _, c := range problems {
		c.rule.Name, c.rule.Limits = "r", limittest.All(t, "100/1m")
		paths, text := problemPaths(t, policy.Policy{Name: "n", Rules: []policy.Rule{c.rule}})
		if diff := cmp.Diff([]string{"rules[0]" + c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%+v:\n%s\nwant %q about %s alone", c.rule, text, c.says, c.path)
		}
	}
}

// TestCompileRejectsActions tests each mistake in costs, settlements and throttles.
func TestCompileRejectsActions(t *testing.T) {
	trusted := prefixes("10.0.0.0/8")
	after := func(c policy.CostAfter) policy.Rule { return policy.Rule{CostAfter: &c} }
	throttle := func(d counter.Micros, n int) policy.Rule {
		return policy.Rule{Action: policy.ActionThrottle, Throttle: &policy.Throttle{MaxDelay: d, MaxWaiting: n}}
	}
	wantProblems(t, []afterProblem{
		{policy.Rule{Cost: []policy.Cost{{N: 1, Header: "X-Cost"}}}, ".cost[0].trusted", "no proxy is trusted"},
		{policy.Rule{Cost: []policy.Cost{{N: 1, Header: "X Cost", Trusted: trusted}}}, ".cost[0].header", "not the name"},
		{policy.Rule{Cost: []policy.Cost{{N: 1, Trusted: trusted}}}, ".cost[0].trusted", "without a header"},
		{policy.Rule{Cost: []policy.Cost{{N: 1, Max: 5}}}, ".cost[0].max", "without a header"},
		{policy.Rule{Cost: []policy.Cost{{N: 1, Header: "X-Cost", Trusted: trusted, Max: -1}}}, ".cost[0].max", "out of bounds"},
		{policy.Rule{Cost: []policy.Cost{{N: 0, Header: "X-Cost", Trusted: trusted}}}, ".cost[0].n", "out of bounds"},
		{policy.Rule{Cost: []policy.Cost{{N: 1, Header: "X-Cost", Trusted: append(prefixes("::/0"), netip.Prefix{})}}}, ".cost[0].trusted[1]",
			"not an address range"},
		{after(policy.CostAfter{Estimate: 1}), ".cost_after", "neither header nor json"},
		{after(policy.CostAfter{Estimate: 1, Header: "X-A", JSON: "a"}), ".cost_after", "both"},
		{after(policy.CostAfter{Estimate: 1, Header: "a b"}), ".cost_after.header", "not the name"},
		{after(policy.CostAfter{Estimate: 1, JSON: "a..b"}), ".cost_after.json", "not a path"},
		{after(policy.CostAfter{Estimate: 1, JSON: "$.a"}), ".cost_after.json", "not a path"},
		{after(policy.CostAfter{Estimate: 1, JSON: "a\n"}), ".cost_after.json", "not a path"},
		{after(policy.CostAfter{Estimate: 1, JSON: strings.Repeat("a", 257)}), ".cost_after.json", "257 bytes"},
		{after(policy.CostAfter{Estimate: 1, JSON: strings.Repeat("a.", 16) + "a"}), ".cost_after.json", "17 parts"},
		{after(policy.CostAfter{JSON: "a"}), ".cost_after.estimate", "out of bounds"},
		{after(policy.CostAfter{JSON: "a", Estimate: 101}), ".cost_after.estimate", "can never pass limit[0]"},
		{after(policy.CostAfter{JSON: "a", Estimate: 1, Default: -1}), ".cost_after.default", "out of bounds"},
		{after(policy.CostAfter{JSON: "a", Estimate: 1, Max: counter.CountMax + 1}), ".cost_after.max", "out of bounds"},
		{after(policy.CostAfter{JSON: "a", Estimate: 9, Max: 8}), ".cost_after.max", "less than the estimate"},
		{after(policy.CostAfter{JSON: "a", Estimate: 1, Default: 9, Max: 8}), ".cost_after.max", "less than the estimate"},
		{policy.Rule{CostAfter: &policy.CostAfter{JSON: "a", Estimate: 1}, Cost: []policy.Cost{{N: 1}}}, ".cost_after", "conflicts with cost"},
		{policy.Rule{CountIf: []policy.Statuses{{From: 99, To: 99}}}, ".count_if.status[0]", "neither a status"},
		{policy.Rule{CountIf: []policy.Statuses{{From: 401, To: 401}, {From: 500, To: 400}}}, ".count_if.status[1]", "neither a status"},
		{policy.Rule{RefundOn: []policy.Statuses{{From: 500, To: 600}}}, ".refund_on.status[0]", "neither a status"},
		{policy.Rule{CountIf: make([]policy.Statuses, 65)}, ".count_if.status", "more than 64"},
		{policy.Rule{CountIf: []policy.Statuses{{From: 401, To: 401}}, RefundOn: []policy.Statuses{{From: 400, To: 499}}}, ".refund_on", "no request would count"},
		{policy.Rule{CountIf: []policy.Statuses{{From: 401, To: 401}}, RefundOn: []policy.Statuses{{From: 500, To: 599}}}, ".refund_on", "no effect"},
		{policy.Rule{RefundOn: []policy.Statuses{{From: 100, To: 599}}}, ".refund_on", "no request would count"},
		{policy.Rule{RetryAfter: counter.Second - 1}, ".retry_after", "1s to"},
		{policy.Rule{RetryJitter: counter.Day + 1}, ".retry_jitter", "1s to"},
		{policy.Rule{RetryAfter: -counter.Second}, ".retry_after", "1s to"},
		{policy.Rule{Action: policy.ActionLogOnly, RetryAfter: counter.Second}, ".retry_after", "denies nothing"},
		{policy.Rule{Action: policy.ActionLogOnly, Response: &policy.Response{Status: 429}}, ".response", "denies nothing"},
		{policy.Rule{Action: policy.ActionThrottle}, ".throttle", "is missing"},
		{policy.Rule{Throttle: &policy.Throttle{MaxDelay: counter.Second, MaxWaiting: 1}}, ".throttle", "action: throttle only"},
		{throttle(counter.Millisecond-1, 1), ".throttle.max_delay", "1ms to 1m"},
		{throttle(counter.Minute+1, 1), ".throttle.max_delay", "1ms to 1m"},
		{throttle(counter.Second, 0), ".throttle.max_waiting", "1 to 100000"},
		{throttle(counter.Second, 100_001), ".throttle.max_waiting", "1 to 100000"},
	})
}

// TestCompileRejectsResponses tests each mistake in the response to a denied client.
func TestCompileRejectsResponses(t *testing.T) {
	fields := func(name, value string) *policy.Response {
		return &policy.Response{Headers: []policy.Field{{Name: name, Value: value}}}
	}
	wantProblems(t, []afterProblem{
		{policy.Rule{Response: &policy.Response{}}, ".response", "empty"},
		{policy.Rule{Response: &policy.Response{Status: 399}}, ".response.status", "400 to 599"},
		{policy.Rule{Response: &policy.Response{Status: 600}}, ".response.status", "400 to 599"},
		{policy.Rule{Response: &policy.Response{Message: strings.Repeat("a", 1025)}}, ".response.message", "1025 bytes"},
		{policy.Rule{Response: &policy.Response{Message: "\xff"}}, ".response.message", "UTF-8"},
		{policy.Rule{Response: &policy.Response{Message: "a", Body: "b"}}, ".response.message", "beside body"},
		{policy.Rule{Response: &policy.Response{Body: strings.Repeat("a", 64<<10+1)}}, ".response.body", "65537 bytes"},
		{policy.Rule{Response: &policy.Response{Body: `{"a":}`, ContentType: "application/json; charset=utf-8"}}, ".response.body", "not JSON"},
		{policy.Rule{Response: &policy.Response{Body: `{`, ContentType: "application/x+json"}}, ".response.body", "not JSON"},
		{policy.Rule{Response: &policy.Response{Message: "a", ContentType: "text/html"}}, ".response.content_type", "which is JSON"},
		{policy.Rule{Response: &policy.Response{Body: "a", ContentType: "html"}}, ".response.content_type", "not a content type"},
		{policy.Rule{Response: &policy.Response{Body: "a", ContentType: "text/html\r\nX: y"}}, ".response.content_type", "control character"},
		{policy.Rule{Response: fields("", "a")}, ".response.headers[0]", "not the name"},
		{policy.Rule{Response: fields("a b", "a")}, ".response.headers[0]", "not the name"},
		{policy.Rule{Response: fields("X-A: b\r\nX-B", "a")}, ".response.headers[0]", "not the name"},
		{policy.Rule{Response: fields("X-A", "a\r\nX-B: c")}, ".response.headers.X-A", "control character"},
		{policy.Rule{Response: fields("X-A", "a\x00")}, ".response.headers.X-A", "control character"},
		{policy.Rule{Response: fields("X-A", " a")}, ".response.headers.X-A", "space"},
		{policy.Rule{Response: fields("X-A", strings.Repeat("a", 4097))}, ".response.headers.X-A", "4097 bytes"},
		{policy.Rule{Response: fields("connection", "close")}, ".response.headers.connection", "cannot be set by a policy"},
		{policy.Rule{Response: fields("Transfer-Encoding", "chunked")}, ".response.headers.Transfer-Encoding", "cannot be set by a policy"},
		{policy.Rule{Response: fields("content-length", "1")}, ".response.headers.content-length", "cannot be set by a policy"},
		{policy.Rule{Response: fields("Content-Type", "a/b")}, ".response.headers.Content-Type", "content_type"},
		{policy.Rule{Response: fields("Retry-After", "1")}, ".response.headers.Retry-After", "retry_after"},
		{policy.Rule{Response: fields("x-ratelimit-limit", "1")}, ".response.headers.x-ratelimit-limit", "Penstock sets it"},
		{policy.Rule{Response: fields("RateLimit", "1")}, ".response.headers.RateLimit", "Penstock sets it"},
		{policy.Rule{Response: fields("RateLimit-Policy", "1")}, ".response.headers.RateLimit-Policy", "Penstock sets it"},
		{policy.Rule{Response: &policy.Response{Headers: []policy.Field{{Name: "X-A", Value: "1"}, {Name: "x-a", Value: "2"}}}}, ".response.headers.x-a", "twice"},
		{policy.Rule{Response: &policy.Response{Headers: make([]policy.Field, 33)}}, ".response.headers", "more than 32"},
	})
}

// TestCompileRejectsActionsWithoutLimits: rules without limits cannot settle, throttle or set retry
// times.
func TestCompileRejectsActionsWithoutLimits(t *testing.T) {
	for _, c := range []struct {
		rule policy.Rule
		path string
	}{
		{policy.Rule{RetryAfter: counter.Second}, ".retry_after"},
		{policy.Rule{RetryJitter: counter.Second}, ".retry_jitter"},
		{policy.Rule{CostAfter: &policy.CostAfter{JSON: "a", Estimate: 1}}, ".cost_after"},
		{policy.Rule{CountIf: []policy.Statuses{{From: 401, To: 401}}}, ".count_if"},
		{policy.Rule{RefundOn: []policy.Statuses{{From: 500, To: 599}}}, ".refund_on"},
		{policy.Rule{Throttle: &policy.Throttle{MaxDelay: counter.Second, MaxWaiting: 1}}, ".throttle"},
	} {
		for _, action := range []policy.Action{policy.ActionBlock, policy.ActionAllow} {
			c.rule.Name, c.rule.Action, c.rule.Group = "r", action, "g"
			if paths, text := problemPaths(t, policy.Policy{Name: "n", Rules: []policy.Rule{c.rule}}); len(paths) != 1 || paths[0] != "rules[0]"+c.path {
				t.Errorf("%+v: %s", c.rule, text)
			}
		}
	}
	answers := policy.Rule{Name: "r", Action: policy.ActionBlock, Response: &policy.Response{Status: 600}}
	if paths, text := problemPaths(t, policy.Policy{Name: "n", Rules: []policy.Rule{answers}}); len(paths) != 1 || paths[0] != "rules[0].response.status" {
		t.Errorf("block: %s", text)
	}
	answers.Action, answers.Group = policy.ActionAllow, "g"
	if paths, text := problemPaths(t, policy.Policy{Name: "n", Rules: []policy.Rule{answers}}); len(paths) != 1 || paths[0] != "rules[0].response" {
		t.Errorf("allow: %s", text)
	}
}

// TestCompileRejectsPenalties tests each mistake in penalties.
func TestCompileRejectsPenalties(t *testing.T) {
	own := []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}}
	for _, c := range []struct {
		change     func(*counter.Penalty)
		rules      []policy.Rule
		path, says string
	}{
		{func(p *counter.Penalty) { p.Window = counter.Second - 1 }, own, "penalty.window", "1s to 366d"},
		{func(p *counter.Penalty) { p.Window = counter.PenaltyMax + 1 }, own, "penalty.window", "1s to 366d"},
		{func(p *counter.Penalty) { p.Threshold = 0 }, own, "penalty.threshold", "1 to 1000"},
		{func(p *counter.Penalty) { p.Threshold = counter.ViolationsMax + 1 }, own, "penalty.threshold", "1 to 1000"},
		{func(p *counter.Penalty) { p.Max = counter.Second - 1 }, own, "penalty.max", "1s to 366d"},
		{func(p *counter.Penalty) { p.Multipliers = nil }, own, "penalty.multipliers", "are missing"},
		{func(p *counter.Penalty) { p.Multipliers = make([]int64, 65) }, own, "penalty.multipliers", "more than 64"},
		{func(p *counter.Penalty) { p.Multipliers = []int64{1, 0} }, own, "penalty.multipliers[1]", "out of bounds"},
		{func(p *counter.Penalty) { p.Multipliers = []int64{counter.MultiplierMax + 1} }, own, "penalty.multipliers[0]", "out of bounds"},
		{func(*counter.Penalty) {}, []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"), PerNone: true}}, "penalty", "no effect"},
		{func(*counter.Penalty) {}, []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"), Action: policy.ActionLogOnly}}, "penalty", "no effect"},
		{func(*counter.Penalty) {}, []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"), Per: []policy.Dimension{{Kind: policy.PerHost}}}}, "penalty", "no effect"},
		{func(*counter.Penalty) {}, []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"), Disabled: true}}, "penalty", "no effect"},
	} {
		p := strictPenalty()
		c.change(p)
		paths, text := problemPaths(t, policy.Policy{Name: "n", Rules: c.rules, Penalty: p})
		if diff := cmp.Diff([]string{c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%s\nwant %q about %s alone", text, c.says, c.path)
		}
	}
}

// TestCostsOfTiers: a cost is compared with the limits of the tier to which it applies.
func TestCostsOfTiers(t *testing.T) {
	tiers := map[string]policy.LimitSet{"free": {Limits: limittest.All(t, "5/1m")}, "premium": {Limits: limittest.All(t, "1000/1m")},
		"enterprise": {Unlimited: true}}
	for _, c := range []struct {
		cost policy.Cost
		path string
		says string
	}{
		{policy.Cost{N: 5}, "", ""},
		{policy.Cost{N: 6}, ".cost[0].n", "can never pass tiers.free[0], 5/1m"},
		{policy.Cost{N: 500, Match: policy.Match{Tier: []string{"premium", "enterprise"}}}, "", ""},
		{policy.Cost{N: 1001, Match: policy.Match{Tier: []string{"premium"}}}, ".cost[0].n", "can never pass tiers.premium[0]"},
		{policy.Cost{N: 101, Match: policy.Match{Tier: []string{"other"}}}, ".cost[0].n", "can never pass limit[0]"},
	} {
		rule := policy.Rule{Name: "r", Limits: limittest.All(t, "100/1m"), Tiers: tiers, Cost: []policy.Cost{c.cost}}
		id := []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: tokenUsers{}}, {}}
		_, err := Compile(policy.Policy{Name: "n", Identify: id, Rules: []policy.Rule{rule}})
		switch {
		case c.path == "" && err != nil:
			t.Errorf("%+v: %v", c.cost, err)
		case c.path != "" && (err == nil || !strings.Contains(err.Error(), "rules[0]"+c.path) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%+v: %v, want %q", c.cost, err, c.says)
		}
	}
}
