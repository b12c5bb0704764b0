// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// afterProblem is a rule that must be refused for one thing only.
type afterProblem struct {
	rule       Rule
	path, says string
}

// wantProblems compiles a policy of each rule alone.
func wantProblems(t *testing.T, problems []afterProblem) {
	t.Helper()
	for _, c := range problems {
		c.rule.Name, c.rule.Limits = "r", limits(t, "100/1m")
		paths, text := problemPaths(t, Policy{Name: "n", Rules: []Rule{c.rule}})
		if diff := cmp.Diff([]string{"rules[0]" + c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%+v:\n%s\nwant %q about %s alone", c.rule, text, c.says, c.path)
		}
	}
}

// TestCompileRefusesWhatFollows holds each mistake about costs, settlements and throttles.
func TestCompileRefusesWhatFollows(t *testing.T) {
	trusted := prefixes("10.0.0.0/8")
	after := func(c CostAfter) Rule { return Rule{CostAfter: &c} }
	throttle := func(d Micros, n int) Rule {
		return Rule{Action: ActionThrottle, Throttle: &Throttle{MaxDelay: d, MaxWaiting: n}}
	}
	wantProblems(t, []afterProblem{
		{Rule{Cost: []Cost{{N: 1, Header: "X-Cost"}}}, ".cost[0].trusted", "nobody is believed"},
		{Rule{Cost: []Cost{{N: 1, Header: "X Cost", Trusted: trusted}}}, ".cost[0].header", "not the name"},
		{Rule{Cost: []Cost{{N: 1, Trusted: trusted}}}, ".cost[0].trusted", "without a header"},
		{Rule{Cost: []Cost{{N: 1, Max: 5}}}, ".cost[0].max", "without a header"},
		{Rule{Cost: []Cost{{N: 1, Header: "X-Cost", Trusted: trusted, Max: -1}}}, ".cost[0].max", "out of bounds"},
		{Rule{Cost: []Cost{{N: 0, Header: "X-Cost", Trusted: trusted}}}, ".cost[0].n", "out of bounds"},
		{Rule{Cost: []Cost{{N: 1, Header: "X-Cost", Trusted: append(prefixes("::/0"), netip.Prefix{})}}}, ".cost[0].trusted[1]",
			"not an address range"},
		{after(CostAfter{Estimate: 1}), ".cost_after", "neither header nor json"},
		{after(CostAfter{Estimate: 1, Header: "X-A", JSON: "a"}), ".cost_after", "both"},
		{after(CostAfter{Estimate: 1, Header: "a b"}), ".cost_after.header", "not the name"},
		{after(CostAfter{Estimate: 1, JSON: "a..b"}), ".cost_after.json", "not a path"},
		{after(CostAfter{Estimate: 1, JSON: "$.a"}), ".cost_after.json", "not a path"},
		{after(CostAfter{Estimate: 1, JSON: "a\n"}), ".cost_after.json", "not a path"},
		{after(CostAfter{Estimate: 1, JSON: strings.Repeat("a", 257)}), ".cost_after.json", "257 bytes"},
		{after(CostAfter{Estimate: 1, JSON: strings.Repeat("a.", 16) + "a"}), ".cost_after.json", "17 parts"},
		{after(CostAfter{JSON: "a"}), ".cost_after.estimate", "out of bounds"},
		{after(CostAfter{JSON: "a", Estimate: 101}), ".cost_after.estimate", "can never pass limit[0]"},
		{after(CostAfter{JSON: "a", Estimate: 1, Default: -1}), ".cost_after.default", "out of bounds"},
		{after(CostAfter{JSON: "a", Estimate: 1, Max: CountMax + 1}), ".cost_after.max", "out of bounds"},
		{after(CostAfter{JSON: "a", Estimate: 9, Max: 8}), ".cost_after.max", "less than the estimate"},
		{after(CostAfter{JSON: "a", Estimate: 1, Default: 9, Max: 8}), ".cost_after.max", "less than the estimate"},
		{Rule{CostAfter: &CostAfter{JSON: "a", Estimate: 1}, Cost: []Cost{{N: 1}}}, ".cost_after", "beside cost"},
		{Rule{CountIf: []Statuses{{99, 99}}}, ".count_if.status[0]", "no status"},
		{Rule{CountIf: []Statuses{{401, 401}, {500, 400}}}, ".count_if.status[1]", "no status"},
		{Rule{RefundOn: []Statuses{{500, 600}}}, ".refund_on.status[0]", "no status"},
		{Rule{CountIf: make([]Statuses, 65)}, ".count_if.status", "more than 64"},
		{Rule{CountIf: []Statuses{{401, 401}}, RefundOn: []Statuses{{400, 499}}}, ".refund_on", "no request would count"},
		{Rule{CountIf: []Statuses{{401, 401}}, RefundOn: []Statuses{{500, 599}}}, ".refund_on", "no effect"},
		{Rule{RefundOn: []Statuses{{100, 599}}}, ".refund_on", "no request would count"},
		{Rule{RetryAfter: Second - 1}, ".retry_after", "1s to"},
		{Rule{RetryJitter: Day + 1}, ".retry_jitter", "1s to"},
		{Rule{RetryAfter: -Second}, ".retry_after", "1s to"},
		{Rule{Action: ActionLogOnly, RetryAfter: Second}, ".retry_after", "refuses nobody"},
		{Rule{Action: ActionLogOnly, Response: &Response{Status: 429}}, ".response", "refuses nobody"},
		{Rule{Action: ActionThrottle}, ".throttle", "is missing"},
		{Rule{Throttle: &Throttle{MaxDelay: Second, MaxWaiting: 1}}, ".throttle", "action: throttle only"},
		{throttle(Millisecond-1, 1), ".throttle.max_delay", "1ms to 1m"},
		{throttle(Minute+1, 1), ".throttle.max_delay", "1ms to 1m"},
		{throttle(Second, 0), ".throttle.max_waiting", "1 to 100000"},
		{throttle(Second, 100_001), ".throttle.max_waiting", "1 to 100000"},
	})
}

// TestCompileRefusesResponses holds each mistake about what a refused client is told.
func TestCompileRefusesResponses(t *testing.T) {
	fields := func(name, value string) *Response { return &Response{Headers: []Field{{name, value}}} }
	wantProblems(t, []afterProblem{
		{Rule{Response: &Response{}}, ".response", "empty"},
		{Rule{Response: &Response{Status: 399}}, ".response.status", "400 to 599"},
		{Rule{Response: &Response{Status: 600}}, ".response.status", "400 to 599"},
		{Rule{Response: &Response{Message: strings.Repeat("a", 1025)}}, ".response.message", "1025 bytes"},
		{Rule{Response: &Response{Message: "\xff"}}, ".response.message", "UTF-8"},
		{Rule{Response: &Response{Message: "a", Body: "b"}}, ".response.message", "beside body"},
		{Rule{Response: &Response{Body: strings.Repeat("a", 64<<10+1)}}, ".response.body", "65537 bytes"},
		{Rule{Response: &Response{Body: `{"a":}`, ContentType: "application/json; charset=utf-8"}}, ".response.body", "not JSON"},
		{Rule{Response: &Response{Body: `{`, ContentType: "application/x+json"}}, ".response.body", "not JSON"},
		{Rule{Response: &Response{Message: "a", ContentType: "text/html"}}, ".response.content_type", "which is JSON"},
		{Rule{Response: &Response{Body: "a", ContentType: "html"}}, ".response.content_type", "not a content type"},
		{Rule{Response: &Response{Body: "a", ContentType: "text/html\r\nX: y"}}, ".response.content_type", "control character"},
		{Rule{Response: fields("", "a")}, ".response.headers[0]", "not the name"},
		{Rule{Response: fields("a b", "a")}, ".response.headers[0]", "not the name"},
		{Rule{Response: fields("X-A: b\r\nX-B", "a")}, ".response.headers[0]", "not the name"},
		{Rule{Response: fields("X-A", "a\r\nX-B: c")}, ".response.headers.X-A", "control character"},
		{Rule{Response: fields("X-A", "a\x00")}, ".response.headers.X-A", "control character"},
		{Rule{Response: fields("X-A", " a")}, ".response.headers.X-A", "space"},
		{Rule{Response: fields("X-A", strings.Repeat("a", 4097))}, ".response.headers.X-A", "4097 bytes"},
		{Rule{Response: fields("connection", "close")}, ".response.headers.connection", "not for a policy"},
		{Rule{Response: fields("Transfer-Encoding", "chunked")}, ".response.headers.Transfer-Encoding", "not for a policy"},
		{Rule{Response: fields("content-length", "1")}, ".response.headers.content-length", "not for a policy"},
		{Rule{Response: fields("Content-Type", "a/b")}, ".response.headers.Content-Type", "content_type"},
		{Rule{Response: fields("Retry-After", "1")}, ".response.headers.Retry-After", "retry_after"},
		{Rule{Response: fields("x-ratelimit-limit", "1")}, ".response.headers.x-ratelimit-limit", "tells of the limit"},
		{Rule{Response: fields("RateLimit", "1")}, ".response.headers.RateLimit", "tells of the limit"},
		{Rule{Response: fields("RateLimit-Policy", "1")}, ".response.headers.RateLimit-Policy", "tells of the limit"},
		{Rule{Response: &Response{Headers: []Field{{"X-A", "1"}, {"x-a", "2"}}}}, ".response.headers.x-a", "twice"},
		{Rule{Response: &Response{Headers: make([]Field, 33)}}, ".response.headers", "more than 32"},
	})
}

// TestCompileRefusesWhatFollowsNothing: rules that count nothing settle nothing, and refuse for good or not at all.
func TestCompileRefusesWhatFollowsNothing(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		path string
	}{
		{Rule{RetryAfter: Second}, ".retry_after"},
		{Rule{RetryJitter: Second}, ".retry_jitter"},
		{Rule{CostAfter: &CostAfter{JSON: "a", Estimate: 1}}, ".cost_after"},
		{Rule{CountIf: []Statuses{{401, 401}}}, ".count_if"},
		{Rule{RefundOn: []Statuses{{500, 599}}}, ".refund_on"},
		{Rule{Throttle: &Throttle{MaxDelay: Second, MaxWaiting: 1}}, ".throttle"},
	} {
		for _, action := range []Action{ActionBlock, ActionAllow} {
			c.rule.Name, c.rule.Action, c.rule.Group = "r", action, "g"
			if paths, text := problemPaths(t, Policy{Name: "n", Rules: []Rule{c.rule}}); len(paths) != 1 || paths[0] != "rules[0]"+c.path {
				t.Errorf("%+v: %s", c.rule, text)
			}
		}
	}
	answers := Rule{Name: "r", Action: ActionBlock, Response: &Response{Status: 600}}
	if paths, text := problemPaths(t, Policy{Name: "n", Rules: []Rule{answers}}); len(paths) != 1 || paths[0] != "rules[0].response.status" {
		t.Errorf("block: %s", text)
	}
	answers.Action, answers.Group = ActionAllow, "g"
	if paths, text := problemPaths(t, Policy{Name: "n", Rules: []Rule{answers}}); len(paths) != 1 || paths[0] != "rules[0].response" {
		t.Errorf("allow: %s", text)
	}
}

// TestCompileRefusesPenalties holds each mistake about penalties.
func TestCompileRefusesPenalties(t *testing.T) {
	own := []Rule{{Name: "r", Limits: limits(t, "9/1m")}}
	for _, c := range []struct {
		change     func(*Penalty)
		rules      []Rule
		path, says string
	}{
		{func(p *Penalty) { p.Window = Second - 1 }, own, "penalty.window", "1s to 366d"},
		{func(p *Penalty) { p.Window = PenaltyMax + 1 }, own, "penalty.window", "1s to 366d"},
		{func(p *Penalty) { p.Threshold = 0 }, own, "penalty.threshold", "1 to 1000"},
		{func(p *Penalty) { p.Threshold = ViolationsMax + 1 }, own, "penalty.threshold", "1 to 1000"},
		{func(p *Penalty) { p.Max = Second - 1 }, own, "penalty.max", "1s to 366d"},
		{func(p *Penalty) { p.Multipliers = nil }, own, "penalty.multipliers", "are missing"},
		{func(p *Penalty) { p.Multipliers = make([]int64, 65) }, own, "penalty.multipliers", "more than 64"},
		{func(p *Penalty) { p.Multipliers = []int64{1, 0} }, own, "penalty.multipliers[1]", "out of bounds"},
		{func(p *Penalty) { p.Multipliers = []int64{MultiplierMax + 1} }, own, "penalty.multipliers[0]", "out of bounds"},
		{func(*Penalty) {}, []Rule{{Name: "r", Limits: limits(t, "9/1m"), PerNone: true}}, "penalty", "no effect"},
		{func(*Penalty) {}, []Rule{{Name: "r", Limits: limits(t, "9/1m"), Action: ActionLogOnly}}, "penalty", "no effect"},
		{func(*Penalty) {}, []Rule{{Name: "r", Limits: limits(t, "9/1m"), Per: []Dimension{{Kind: PerHost}}}}, "penalty", "no effect"},
		{func(*Penalty) {}, []Rule{{Name: "r", Limits: limits(t, "9/1m"), Disabled: true}}, "penalty", "no effect"},
	} {
		p := strict()
		c.change(p)
		paths, text := problemPaths(t, Policy{Name: "n", Rules: c.rules, Penalty: p})
		if diff := cmp.Diff([]string{c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%s\nwant %q about %s alone", text, c.says, c.path)
		}
	}
}

// TestCostsOfTiers: a cost is compared with the limits of those who pay it.
func TestCostsOfTiers(t *testing.T) {
	tiers := map[string]LimitSet{"free": {Limits: limits(t, "5/1m")}, "premium": {Limits: limits(t, "1000/1m")},
		"enterprise": {Unlimited: true}}
	for _, c := range []struct {
		cost Cost
		path string
		says string
	}{
		{Cost{N: 5}, "", ""},
		{Cost{N: 6}, ".cost[0].n", "can never pass tiers.free[0], 5/1m"},
		{Cost{N: 500, Match: Match{Tier: []string{"premium", "enterprise"}}}, "", ""},
		{Cost{N: 1001, Match: Match{Tier: []string{"premium"}}}, ".cost[0].n", "can never pass tiers.premium[0]"},
		{Cost{N: 101, Match: Match{Tier: []string{"other"}}}, ".cost[0].n", "can never pass limit[0]"},
	} {
		rule := Rule{Name: "r", Limits: limits(t, "100/1m"), Tiers: tiers, Cost: []Cost{c.cost}}
		id := []Identify{{Kind: IdentifyJWT, Verifier: users{}}, {}}
		_, err := Compile(Policy{Name: "n", Identify: id, Rules: []Rule{rule}})
		switch {
		case c.path == "" && err != nil:
			t.Errorf("%+v: %v", c.cost, err)
		case c.path != "" && (err == nil || !strings.Contains(err.Error(), "rules[0]"+c.path) || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%+v: %v, want %q", c.cost, err, c.says)
		}
	}
}
